"""How often a guard sends a leaking upload during a run, and how many samples a guard needs.

    python -m benchmarks.guard_errors [--runs 400]

Prints two tables in Markdown. The first has the percentage of runs in which at least one leaking
upload is sent. The scores of 270 members and 270 held-out samples are normal, with a given AUC and
a given correlation between rounds, for one attack and a limit of 0.6. The second table has the
number of audited samples at which a given percentage of uploads without a leak is sent, found by
bisection: for one attack, and for five attacks with independent scores.
"""

import argparse
from collections.abc import Sequence
from math import sqrt

import numpy as np
from scipy.stats import norm

from fedaudit.guard.policy import DecideBy, GuardPolicy
from fedaudit.metrics import auc_interval

SIDE, ROUNDS = 270, (1, 10, 50)


def is_sent(policy: GuardPolicy, scores: np.ndarray) -> bool:
    """Return True if an upload with these scores is sent. The first half of them are members."""
    is_member = np.arange(len(scores)) < len(scores) // 2
    interval = auc_interval(scores, is_member, confidence=policy.level)
    return not policy.exceeds(interval.value, interval.low, interval.high)


def first_sent(
    policy: GuardPolicy, auc: float, correlation: float, rng: np.random.Generator
) -> int | None:
    """Return the first round of a run whose upload is sent, or None."""
    shift = norm.ppf(auc) * sqrt(2) * (np.arange(2 * SIDE) < SIDE)
    shared = sqrt(correlation) * rng.normal(size=2 * SIDE)
    for number in range(1, max(ROUNDS) + 1):
        scores = shared + sqrt(1 - correlation) * rng.normal(size=2 * SIDE) + shift
        if is_sent(policy, scores):
            return number
    return None


def over_rounds(runs: int) -> None:
    print(
        "| decide_by | true AUC | correlation | "
        + " | ".join(f"to round {n}" for n in ROUNDS)
        + " |"
    )
    print("|---" * (3 + len(ROUNDS)) + "|")
    rng = np.random.default_rng(0)
    choices: Sequence[DecideBy] = ("upper", "estimate")
    for decide_by in choices:
        policy = GuardPolicy(limit=0.6, decide_by=decide_by, attacks=("blackbox-loss",))
        for auc in (0.6, 0.65):
            for correlation in (0.0, 0.5, 0.9, 0.99):
                first = [first_sent(policy, auc, correlation, rng) for _ in range(runs)]
                rates = (np.mean([n is not None and n <= last for n in first]) for last in ROUNDS)
                cells = " | ".join(f"{rate:.1%}" for rate in rates)
                print(f"| {decide_by} | {auc} | {correlation} | {cells} |", flush=True)


def rate_sent(side: int, limit: float, attacks: int, rng: np.random.Generator) -> float:
    """Return the fraction of uploads without a leak that are sent."""
    policy, uploads = GuardPolicy(limit=limit, attacks=("blackbox-loss",)), 1500
    # An upload is sent only if all attacks stay below the limit.
    sent = sum(
        all(is_sent(policy, rng.normal(size=2 * side)) for _ in range(attacks))
        for _ in range(uploads)
    )
    return sent / uploads


def sizes() -> None:
    print("\n| limit | 50 %, one attack | 90 %, one attack | 90 %, five attacks |")
    print("|---" * 4 + "|")
    rng = np.random.default_rng(1)
    for limit in (0.55, 0.6, 0.65, 0.7):
        needed = list[int]()
        for target, attacks in ((0.5, 1), (0.9, 1), (0.9, 5)):
            low, high = 8, 2500
            while high - low > max(1, low * 0.02):
                middle = (low + high) // 2
                if rate_sent(middle, limit, attacks, rng) >= target:
                    high = middle
                else:
                    low = middle
            needed.append(2 * high)
        print(f"| {limit} | " + " | ".join(f"{size:,}" for size in needed) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=400)
    args = parser.parse_args()
    over_rounds(args.runs)
    sizes()


if __name__ == "__main__":
    main()
