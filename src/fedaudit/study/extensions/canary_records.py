"""Canary records, the draw "canaries": bounds on epsilon, and the check of a defense's claim."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from fedaudit.core.metric_names import (
    EPSILON_IF_GAUSSIAN,
    EPSILON_IF_NORMAL,
    FORMAL_EPSILON,
    Origin,
)
from fedaudit.datasets.dataset import Dataset
from fedaudit.fl.accounting import FORMAL_DELTA
from fedaudit.metrics import one_run_epsilon
from fedaudit.metrics.canaries import record_bounds
from fedaudit.metrics.epsilon import bound_method, one_sided_coins
from fedaudit.results.estimate import Estimate
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
        """Bounds that rest on a hypothesis, and the control that no claim is refuted by coins."""
        runs = [one.run for one in found]
        proven = {one.metric: one.value for one in formal_epsilons(runs)}
        attacked = list(_attacked(runs, scores))
        return Conclusion(
            figures=[figure for one in attacked for figure in _bounds(one, len(attacked))],
            checks=_claim_checked(runs, attacked, proven.get(FORMAL_EPSILON)),
        )

    def untested(self) -> str:
        """A sentence on what was not tested because of the draw."""
        return "Ordinary samples, which leak less: the audited ones are canary records."


class _Attacked(NamedTuple):
    """One attack's scores of the canary records of one client in one run.

    Attributes:
        run: The run.
        target: The client.
        attack: Name of the attack.
        scores: One a record, larger for likelier members.
        is_member: Whether the client trained on it.
        guesses: Number of guesses that bounds rest on.
    """

    run: Setup
    target: int
    attack: str
    scores: Float[np.ndarray, " canaries"]
    is_member: Bool[np.ndarray, " canaries"]
    guesses: int


def _attacked(runs: Sequence[Setup], scores: Scores) -> Iterator[_Attacked]:
    from fedaudit.study.figures.analysis import GUESSED_SHARE
    from fedaudit.study.figures.truth import target_truth

    for run in runs:
        for target in run.study.audit.targets:
            truth = target_truth(run, target)
            chosen = truth.fair & (truth.origin != Origin.OTHER_CLIENT)
            guesses = 2 * int(GUESSED_SHARE * chosen.sum() / 2)
            for name in run.on_membership:
                given = scores.get((run.seed, target, name))
                if given is not None and guesses >= 2:
                    inside = truth.is_member[chosen]
                    yield _Attacked(run, target, name, given[chosen], inside, guesses)


def _bounds(one: _Attacked, family: int) -> list[Estimate]:
    """Return the bounds on epsilon that rest on a hypothesis, each with an error for itself."""
    study = one.run.study
    if study.figures.evaluation == "redraw":
        return []
    alpha = study.figures.alpha / family
    found = record_bounds(
        one.scores, one.is_member, guesses=one.guesses, delta=FORMAL_DELTA, alpha=alpha
    )
    figure = partial(
        Estimate,
        attack=one.attack,
        defense=study.defense.label,
        view=one.run.view.name,
        target=one.target,
        seed=one.run.seed,
        contrast="unseen",
        n_members=int(one.is_member.sum()),
        n_nonmembers=int((~one.is_member).sum()),
    )
    shared = f"; error shared by {family} bounds"
    figures = []
    for metric, bound, name, hypothesis in (
        (
            EPSILON_IF_GAUSSIAN,
            found.if_gaussian,
            "one run, Gaussian",
            "training is at least as private as a Gaussian",
        ),
        (
            EPSILON_IF_NORMAL,
            found.if_normal,
            "mean-only normal",
            "scores are normal and equally spread",
        ),
    ):
        if bound is None:
            method = bound_method(name, FORMAL_DELTA, alpha)
            note = f"refused: {found.refusal}"
            figures.append(figure(metric=metric, value=None, method=method + shared, note=note))
            continue
        figures.append(
            figure(
                metric=metric,
                value=bound.value,
                low=bound.value,
                ceiling=bound.ceiling,
                method=bound.method + shared,
                note=f"lower bound if {hypothesis}; it certifies no budget",
            )
        )
    return figures


def _claim_checked(
    runs: Sequence[Setup], attacked: Sequence[_Attacked], claimed: float | None
) -> "list[ControlResult]":
    from fedaudit.results.record import ControlResult

    if claimed is None or not attacked:
        return []
    control = partial(
        ControlResult,
        control="claimed epsilon",
        defense=runs[0].study.defense.label,
        expected="canary records do not refute what the defense claims for one sample",
        value=None,
    )
    refusals = [one_sided_coins(one.is_member) for one in attacked]
    tossed = [one for one, refusal in zip(attacked, refusals, strict=True) if not refusal]
    if not tossed:
        return [control(passed=None, note=f"refused: {refusals[0]}")]
    bounds = []
    for one in tossed:
        bound = one_run_epsilon(
            one.scores,
            one.is_member,
            guesses=one.guesses,
            delta=FORMAL_DELTA,
            alpha=_CLAIM_ERROR / len(attacked),
        )
        bounds.append((bound.value, one.attack, bound.method))
    value, name, method = max(bounds)
    return [
        control(
            passed=value <= claimed,
            note=f"epsilon at least {value:.3f} ({name}; {method}), claimed {claimed:.3f}",
        )
    ]
