"""Error rates of a guard over the rounds of a run, and the number of samples that it needs.

    python -m benchmarks.guard_errors [--runs 400]

Prints three tables in Markdown:

- The fraction of runs in which at least one round is sent. Scores of 270 members and as many
  held-out samples are normal, with a given AUC and correlation between rounds. The guard has one
  attack and a limit of 0.6; its error applies to one round or to a run of 50.
- The number of audited samples with which a given fraction of uploads without a leak is sent, found
  by bisection, for one attack and for five attacks with independent scores.
- The same for one attack, if the error applies to a run.
"""

import argparse
from collections.abc import Sequence
from math import sqrt

import numpy as np
from scipy.stats import norm

from fedaudit.guard.policy import GuardPolicy
from fedaudit.metrics import auc_interval
from fedaudit.results.runs import DecideBy

SIDE, ROUNDS = 270, (1, 10, 50)


def is_sent(policy: GuardPolicy, scores: np.ndarray) -> bool:
    """Return whether an upload with these scores is sent. The first half of them are members."""
    is_member = np.arange(len(scores)) < len(scores) // 2
    interval = auc_interval(scores, is_member, confidence=policy.level)
    return not policy.exceeds(interval.value, interval.low, interval.high)


def first_sent(
    policy: GuardPolicy, auc: float, correlation: float, rng: np.random.Generator
) -> int | None:
    """Return the first round of a run that is sent; None if no round is sent."""
    shift = norm.ppf(auc) * sqrt(2) * (np.arange(2 * SIDE) < SIDE)
    shared = sqrt(correlation) * rng.normal(size=2 * SIDE)
    for number in range(1, max(ROUNDS) + 1):
        scores = shared + sqrt(1 - correlation) * rng.normal(size=2 * SIDE) + shift
        if is_sent(policy, scores):
            return number
    return None


def over_rounds(runs: int) -> None:
    print(
        "| decide_by | most_uploads | true AUC | correlation | "
        + " | ".join(f"to round {number}" for number in ROUNDS)
        + " |"
    )
    print("|---" * (4 + len(ROUNDS)) + "|")
    rng = np.random.default_rng(0)
    choices: Sequence[tuple[DecideBy, int | None]] = (
        ("upper", None),
        ("estimate", None),
        ("upper", max(ROUNDS)),
    )
    for decide_by, most in choices:
        policy = GuardPolicy(
            limit=0.6, decide_by=decide_by, attacks=("blackbox-loss",), most_uploads=most
        )
        for auc in (0.6, 0.65):
            for correlation in (0.0, 0.5, 0.9, 0.99):
                first_rounds = [first_sent(policy, auc, correlation, rng) for _ in range(runs)]
                shares = (
                    np.mean([number is not None and number <= last for number in first_rounds])
                    for last in ROUNDS
                )
                cells = " | ".join(f"{share:.1%}" for share in shares)
                print(f"| {decide_by} | {most} | {auc} | {correlation} | {cells} |", flush=True)


def share_sent(policy: GuardPolicy, side: int, attacks: int, rng: np.random.Generator) -> float:
    """Return the fraction of uploads without a leak that are sent."""
    turns = 1500
    # An upload is sent only if no attack exceeds the limit.
    sent = sum(
        all(is_sent(policy, rng.normal(size=2 * side)) for _ in range(attacks))
        for _ in range(turns)
    )
    return sent / turns


def needed(policy: GuardPolicy, target: float, attacks: int, rng: np.random.Generator) -> int:
    """Return the audited samples with which this fraction of uploads without a leak is sent."""
    low, high = 8, 5000
    while high - low > max(1, low * 0.02):
        middle = (low + high) // 2
        if share_sent(policy, middle, attacks, rng) >= target:
            high = middle
        else:
            low = middle
    return 2 * high


def sizes() -> None:
    print("\n| limit | 50 %, one attack | 90 %, one attack | 90 %, five attacks |")
    print("|---" * 4 + "|")
    rng = np.random.default_rng(1)
    for limit in (0.55, 0.6, 0.65, 0.7):
        policy = GuardPolicy(limit=limit, attacks=("blackbox-loss",))
        counts = [needed(policy, *case, rng) for case in ((0.5, 1), (0.9, 1), (0.9, 5))]
        print(f"| {limit} | " + " | ".join(f"{count:,}" for count in counts) + " |", flush=True)


def sizes_of_runs() -> None:
    print("\n| limit | most_uploads | 50 % | 90 % |")
    print("|---" * 4 + "|")
    rng = np.random.default_rng(2)
    for limit in (0.6, 0.65, 0.7):
        for most in (None, 10, 50):
            policy = GuardPolicy(limit=limit, attacks=("blackbox-loss",), most_uploads=most)
            counts = [needed(policy, share, 1, rng) for share in (0.5, 0.9)]
            cells = " | ".join(f"{count:,}" for count in counts)
            print(f"| {limit} | {most} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=400)
    args = parser.parse_args()
    over_rounds(args.runs)
    sizes()
    sizes_of_runs()


if __name__ == "__main__":
    main()
