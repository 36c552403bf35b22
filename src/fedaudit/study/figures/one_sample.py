"""The check of what a defense claims for one sample, by canary records."""

from collections.abc import Sequence

from fedaudit.core.origin import Origin
from fedaudit.defenses.accounting import FORMAL_DELTA
from fedaudit.metrics import one_run_epsilon
from fedaudit.results.record import ControlResult
from fedaudit.study.figures.analysis import GUESSED_SHARE
from fedaudit.study.figures.truth import Findings, target_truth
from fedaudit.study.setup.parts import Setup

_CLAIM_ERROR = 0.01
"""How often a sound claim may be called refuted, by any attack, target or run."""


def sample_claim_checked(
    runs: Sequence[Setup], findings: Findings, claimed: float | None
) -> list[ControlResult]:
    """The control that canary records do not refute the claimed epsilon; none without a claim.

    Args:
        runs: Of one study.
        findings: With the scores of its attacks.
        claimed: Of the audited client that is protected least, at ``FORMAL_DELTA``.
    """
    if claimed is None or runs[0].study.audit.draw != "canaries" or not findings.scores:
        return []
    bounds = []
    for run in runs:
        for target in run.study.audit.targets:
            truth = target_truth(run, target)
            chosen = truth.fair & (truth.origin != Origin.OTHER_CLIENT)
            guesses = 2 * int(GUESSED_SHARE * chosen.sum() / 2)
            for name in run.on_membership:
                scores = findings.scores.get((run.seed, target, name))
                if scores is not None and guesses >= 2:
                    bound = one_run_epsilon(
                        scores[chosen],
                        truth.is_member[chosen],
                        guesses=guesses,
                        delta=FORMAL_DELTA,
                        alpha=_CLAIM_ERROR / len(findings.scores),
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
