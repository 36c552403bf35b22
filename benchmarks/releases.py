"""Outcomes of the gate for simulated pairs of releases with and without an increase of the leakage.

    python -m benchmarks.releases [--pairs 20]

Prints the number of pairs for each outcome, in about ten minutes on one core. A pair has the audit
of a last release and that of a new one, which has other seeds. A neutral release has no other
change. A raising release trains longer, so that the models memorise more. Without other rules, the
policy checks whether any AUC is larger than in the last release, beyond noise.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Mapping
from statistics import fmean

from fedaudit.core.metric_names import AUC
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import policy_from
from fedaudit.plan.values import study_from
from fedaudit.results.record import Record
from fedaudit.study.running.run import run_study

POLICY = policy_from(
    """
name = "no worse"
[baseline]
relevant = 0.15
[controls]
required = ["permuted members"]
"""
)
BASE = {"rounds": 2, "epochs": 2, "batch_size": 10, "lr": 0.1}
CHANGES: dict[str, Mapping[str, object]] = {
    "neutral": {},
    "raising": {"rounds": 5, "epochs": 20},
}
"""Changes of training from the last release to the new one."""


def audit(name: str, seeds: tuple[int, int], changes: Mapping[str, object]) -> Record:
    study = study_from(
        {
            "name": name,
            "seeds": list(seeds),
            "data": {"name": "diabetes"},
            "partition": {"clients": 3},
            "training": {**BASE, **changes},
            "audit": {"samples": 240, "background": 0, "every": 1},
            "figures": {"permutations": 20, "blind_classifier": False},
            "attacks": {"loss-series": {}, "avg-cosine": {}},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        return run_study(study, folder)


def mean_auc(record: Record) -> float:
    """Return the mean AUC over attacks, against unseen samples."""
    figures = record.where(metric=AUC, contrast="unseen", by="")
    return fmean(figure.number for figure in figures if figure.seed is None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20, help="pairs for each kind of change")
    args = parser.parse_args()
    outcomes = {name: Counter[str]() for name in CHANGES}
    increases: dict[str, list[float]] = {name: [] for name in CHANGES}
    for pair in range(args.pairs):
        old = audit("last-release", (4 * pair + 1, 4 * pair + 2), {})
        for name, changes in CHANGES.items():
            new = audit("new-release", (4 * pair + 3, 4 * pair + 4), changes)
            outcomes[name][str(evaluate_policy(new, POLICY, old).outcome)] += 1
            increases[name].append(mean_auc(new) - mean_auc(old))
        print(f"{pair + 1} of {args.pairs}: {outcomes}", flush=True)
    print("\n| change | mean increase of AUC | pass | fail | inconclusive |")
    print("|---|---|---|---|---|")
    for name, counts in outcomes.items():
        numbers = " | ".join(str(counts[outcome]) for outcome in ("pass", "fail", "inconclusive"))
        print(f"| {name} | {fmean(increases[name]):+.3f} | {numbers} |")


if __name__ == "__main__":
    main()
