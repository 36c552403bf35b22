"""Figures on unlearning: forgotten against unseen samples before, after, and retrained."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import NamedTuple

from jaxtyping import Float
from numpy import ndarray

from fedaudit.core.metric_names import AUC
from fedaudit.core.origin import Origin
from fedaudit.core.values import ClientId
from fedaudit.metrics import above_chance, holm
from fedaudit.metrics.delong import SEPARATE, AucInterval
from fedaudit.metrics.unlearning import unlearned, unlearning_verdict, verdict_words
from fedaudit.observe.measurements import Stored, stacked
from fedaudit.results.aggregate import corrected, each_over_runs
from fedaudit.results.estimate import Estimate, Test
from fedaudit.results.metrics import TEST_ACCURACY, TRAIN_ACCURACY
from fedaudit.results.record import ControlResult
from fedaudit.results.unlearning import AFTER, BEFORE, BOTH, RETRAINED, UNLEARNING, of_point
from fedaudit.study.figures.accuracy import utility
from fedaudit.study.figures.analysis import analyse
from fedaudit.study.figures.truth import Findings, target_truth
from fedaudit.study.setup.parts import Scores, Setup


class UnlearningRun(NamedTuple):
    """One run, and the models before and after unlearning and retrained, as they were measured.

    Attributes:
        run: The run.
        before: The last round of its released model.
        after: Of the model after unlearning.
        retrained: Of the federation that never had the forgotten samples.
        after_setup: The parts of what was trained after the run.
        retrained_setup: The parts of the retrained federation.
    """

    run: Setup
    before: Stored
    after: Stored
    retrained: Stored
    after_setup: Setup
    retrained_setup: Setup


def unlearning_figures(found: Sequence[UnlearningRun], scores: Scores) -> list[Estimate]:
    """Figures of each run and over all of them, with the verdict of each attack as a note.

    Args:
        found: The runs of one study.
        scores: Of the attacks on each run's released model, by seed, target and attack.
    """
    study = found[0].run.study
    assert study.unlearning is not None
    single = [figure for one in found for figure in (*_of_run(one, scores), *_utility(one))]
    alpha = study.figures.alpha
    whole = corrected(each_over_runs(single), alpha)
    judge = partial(_judged, margin=study.unlearning.margin)
    return judge(corrected(single, alpha)) + judge(whole)


def retrained_control(
    found: Sequence[UnlearningRun], figures: Sequence[Estimate]
) -> list[ControlResult]:
    """The control that attacks tell nothing of a federation that never had the forgotten samples.

    Args:
        found: The runs of one study.
        figures: Those of :func:`unlearning_figures`.
    """
    checks = []
    for one in found:
        checks.append(_left_as_it_is(one.run, figures))
        alone = [f for f in figures if f.seed == one.run.seed and f.point == RETRAINED and f.tests]
        tests = [test.p_value for figure in alone for test in figure.tests]
        least = min((p for p in holm(tests).adjusted if p is not None), default=None)
        checks.append(
            ControlResult(
                control="retrained federation",
                defense=one.run.study.defense.label,
                seed=one.run.seed,
                expected="no attack tells the forgotten samples from unseen ones in a federation "
                "that never had them",
                value=least,
                passed=None if least is None else least > _RETRAINED_ERROR,
                note="smallest p-value of all attacks and targets, corrected (Holm)",
            )
        )
    return checks


def _left_as_it_is(run: Setup, figures: Sequence[Estimate]) -> ControlResult:
    """The control that the released model, from which nothing was deleted, is told as such."""
    own = [one for one in figures if one.seed == run.seed and one.attack and not one.against]
    told = [one for one in own if one.point == BEFORE and (one.low or 0.0) > 0.5]
    apart = 0
    for one in told:
        retrained = of_point(own, one, RETRAINED)
        high = None if retrained is None else retrained.high
        apart += high is not None and (one.low or 0.0) > high
    return ControlResult(
        control="nothing deleted",
        defense=run.study.defense.label,
        seed=run.seed,
        expected="where an attack tells the samples of the model before deletion, one tells that "
        "model from the retrained federation",
        value=None,
        passed=bool(apart) if told else None,
        note=f"{apart} of {len(told)} attacks that tell them"
        if told
        else "no attack tells the samples before deletion, so that nothing follows",
    )


_RETRAINED_ERROR = 0.01
"""How often a sound retrained federation may fail its control."""


def _of_run(one: UnlearningRun, scores: Scores) -> list[Estimate]:
    run, (after, retrained) = one.run, (_scores(one, at) for at in (one.after, one.retrained))
    figures: list[Estimate] = []
    for target in run.study.audit.targets:
        truth = target_truth(run, target).units
        chosen = truth.origin != Origin.OTHER_CLIENT
        forgotten = truth.is_member[chosen]
        for name in run.on_membership:
            key = (run.seed, target, name)
            if not all(key in known for known in (scores, after, retrained)):
                continue
            three = [known[key][chosen] for known in (scores, after, retrained)]
            figures += _figures(run, target, name, three, forgotten)
    return figures


def _scores(one: UnlearningRun, stored: Stored) -> Scores:
    """The run's attacks on another model, measured on the run's audited samples."""
    # Reference models are of the round in which the run's own model was released.
    moved = replace(stored.measured, index=one.before.measured.index)
    findings = Findings()
    analyse(one.run, stacked([moved]), findings)
    return findings.scores


def _figures(
    run: Setup,
    target: ClientId,
    name: str,
    scores: Sequence[Float[ndarray, " samples"]],
    forgotten: ndarray,
) -> list[Estimate]:
    before, after, retrained = scores
    found = unlearned(before, after, retrained, is_forgotten=forgotten)
    assert found.retrained is not None
    figure = partial(
        Estimate,
        topic=UNLEARNING,
        metric=AUC,
        attack=name,
        defense=run.study.defense.label,
        view=run.view.name,
        unit=run.study.audit.unit,
        contrast="unseen",
        target=target,
        seed=run.seed,
        n_members=int(forgotten.sum()),
        n_nonmembers=int((~forgotten).sum()),
    )

    def auc(point: str, given: AucInterval, tests: Sequence[Test] = ()) -> Estimate:
        return figure(point=point, **asdict(given), tests=list(tests))

    never_seen = Test(level=0.5, p_value=above_chance(retrained, forgotten))
    excess = found.excess
    return [
        auc(BEFORE, found.before),
        auc(AFTER, found.after),
        auc(RETRAINED, found.retrained, [never_seen]),
        figure(
            point=AFTER,
            against=RETRAINED,
            value=excess.value,
            low=excess.low,
            high=excess.high,
            method=excess.method,
            tests=[
                Test(
                    null=RETRAINED,
                    level=found.retrained.value,
                    p_value=excess.p_value,
                    two_sided=True,
                )
            ],
        ),
        auc(BOTH, found.both),
    ]


def _utility(one: UnlearningRun) -> list[Estimate]:
    """Utility of each of the three models, where they stand for themselves."""
    run = one.run
    models = {
        BEFORE: (run, one.before),
        AFTER: (one.after_setup, one.after),
        RETRAINED: (one.retrained_setup, one.retrained),
    }
    shown = {TEST_ACCURACY, TRAIN_ACCURACY}
    return [
        figure.model_copy(update={"topic": UNLEARNING, "point": point, "seed": run.seed})
        for point, (setup, stored) in models.items()
        for figure in utility(setup, [stored])
        if figure.metric in shown or figure.metric.startswith("test ")
    ]


def _judged(figures: Sequence[Estimate], margin: float) -> list[Estimate]:
    """The figures, with the verdict of each attack beside what is left after unlearning."""
    found = []
    for figure in figures:
        if not figure.against or figure.low is None or figure.high is None:
            found.append(figure)
            continue
        before = of_point(figures, figure, BEFORE)
        told = before is not None and before.low is not None and before.low > 0.5
        # Limits of two AUCs apart have no p-value, and are wider than any that has one.
        apart = SEPARATE in figure.method and figure.low > 0
        above = (bool(figure.significant) and figure.number > 0) or apart
        said = unlearning_verdict(
            figure.low, figure.high, margin=margin, told_before=told, above=above
        )
        note = "; ".join(part for part in (verdict_words(said, margin), figure.note) if part)
        found.append(figure.model_copy(update={"note": note}))
    return found
