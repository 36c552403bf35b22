"""Canary records, the draw "canaries": the check of what a defense claims for one sample."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedaudit.core.metric_names import FORMAL_EPSILON
from fedaudit.core.origin import Origin
from fedaudit.datasets.dataset import Dataset
from fedaudit.defenses.accounting import FORMAL_DELTA
from fedaudit.metrics import one_run_epsilon
from fedaudit.study.figures.guarantees import formal_epsilons
from fedaudit.study.setup.parts import Conclusion, Extension, MeasuredRun, Scores, Setup

if TYPE_CHECKING:
    from fedaudit.results.record import ControlResult

_CLAIM_ERROR = 0.01
"""How often a sound claim may be called refuted, by any attack, target or run."""


class CanaryRecords(Extension):
    """Audited samples that are canary records."""

    @classmethod
    def added(cls, run: Setup, dataset: Dataset) -> Setup:
        """The run, which is held against what its defense claims if it audits canary records."""
        return run.extended(cls()) if run.study.audit.draw == "canaries" else run

    @classmethod
    def concluded(cls, found: Sequence[MeasuredRun], scores: Scores) -> Conclusion:
        """The control that canary records do not refute the claim; none without a claim."""
        runs = [one.run for one in found]
        proven = {one.metric: one.value for one in formal_epsilons(runs)}
        return Conclusion(checks=_claim_checked(runs, scores, proven.get(FORMAL_EPSILON)))

    def untested(self) -> str:
        """A sentence on what was not tested because of the draw."""
        return "Ordinary samples, which leak less: the audited ones are canary records."


def _claim_checked(
    runs: Sequence[Setup], scores: Scores, claimed: float | None
) -> "list[ControlResult]":
    from fedaudit.results.record import ControlResult
    from fedaudit.study.figures.analysis import GUESSED_SHARE
    from fedaudit.study.figures.truth import target_truth

    if claimed is None or not scores:
        return []
    bounds = []
    for run in runs:
        for target in run.study.audit.targets:
            truth = target_truth(run, target)
            chosen = truth.fair & (truth.origin != Origin.OTHER_CLIENT)
            guesses = 2 * int(GUESSED_SHARE * chosen.sum() / 2)
            for name in run.on_membership:
                given = scores.get((run.seed, target, name))
                if given is not None and guesses >= 2:
                    bound = one_run_epsilon(
                        given[chosen],
                        truth.is_member[chosen],
                        guesses=guesses,
                        delta=FORMAL_DELTA,
                        alpha=_CLAIM_ERROR / len(scores),
                    )
                    bounds.append((bound.value, name, bound.method))
    if not bounds:
        return []
    value, name, method = max(bounds)
    return [
        ControlResult(
            control="claimed epsilon",
            defense=runs[0].study.defense.label,
            expected="canary records do not refute what the defense claims for one sample",
            value=None,
            passed=value <= claimed,
            note=f"epsilon at least {value:.3f} ({name}; {method}), claimed {claimed:.3f}",
        )
    ]
