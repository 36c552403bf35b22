"""Source inference in one run: who has each sample that somebody has, and how often that is so."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from fedaudit.attacks.base import Attack
from fedaudit.core.errors import Refusal
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.seeds import seeded_numpy
from fedaudit.metrics import Limited
from fedaudit.metrics.source import (
    by_label_distribution,
    confusion,
    inferred_source,
    paired,
    source_null,
    source_success,
)
from fedaudit.observe.measurements import Measurements
from fedaudit.results.estimate import GUESSING, Estimate, Test
from fedaudit.results.source_figures import Baseline, source_figures
from fedaudit.results.sources import LABELS, Answered, ClassSuccess, SourceResult
from fedaudit.study.figures.accuracy import overfitting
from fedaudit.study.figures.chained import chained
from fedaudit.study.figures.source_queries import (
    SourceQueries,
    asked,
    asked_alone,
    chances,
    one_by_one,
)
from fedaudit.study.setup.parts import Setup

LEAST_CHANCES = (0.2, 0.3, 0.5, 0.7, 0.9)
"""How sure an adversary may want to be before it names somebody."""


class SourceFound(NamedTuple):
    """The answers of one source attack in one run, and its figures."""

    answers: SourceResult
    figures: list[Estimate]


def source_results(
    run: Setup,
    measured: Mapping[str, Measurements],
    failed: dict[str, dict[str, str]],
    notes: Mapping[str, str],
    progress: Progress = quiet,
) -> list[SourceFound]:
    """The result of each source attack of a run.

    Args:
        run: The run.
        measured: Its measurements by signal.
        failed: Grown in place: by attack and run, why it could not be carried out.
        notes: Of the last measured round.
        progress: Called after each attack.
    """
    samples, found = asked(run), list[SourceFound]()
    phase = f"seed {run.seed}: source inference"
    for done, (name, attack) in enumerate(run.on_source.items()):
        progress(phase, done, len(run.on_source))
        where = f"seed {run.seed}"
        if samples is None:
            why = f"{where}: a client has no audited sample; ask for more"
            failed.setdefault(name, {})[where] = why
            continue
        try:
            found.append(_result(run, name, attack, measured, samples, notes))
        except Refusal as refusal:
            failed.setdefault(name, {})[where] = f"{where}: {refusal}"
    if run.on_source:
        progress(phase, len(run.on_source), len(run.on_source))
    return found


def _result(
    run: Setup,
    name: str,
    attack: Attack,
    measured: Mapping[str, Measurements],
    samples: SourceQueries,
    notes: Mapping[str, str],
) -> SourceFound:
    cubes = asked_alone(attack, measured, samples)
    posterior = chances(run, attack, cubes, samples)
    named = inferred_source(posterior)
    right = named == samples.owner
    success = source_success(named, samples.owner)
    counts = run.deal.class_counts(run.dataset.classes)
    held = np.array([counts[c] for c in samples.clients])
    baseline = by_label_distribution(held, samples.labels)
    change = paired(right, baseline == samples.owner)
    rng = seeded_numpy(run.seed, "shuffled owners")
    null = source_null(named, samples.owner, rng=rng)
    mixed = source_null(named, samples.owner, within=samples.labels, rng=rng)
    rounds = one_by_one(attack, cubes)
    answers = SourceResult(
        attack=name,
        defense=run.study.defense.label,
        view=run.view.name,
        seed=run.seed,
        clients=list(samples.clients),
        samples=len(samples.owner),
        confusion=confusion(named, samples.owner, len(samples.clients)).tolist(),
        classes=_by_class(right, samples),
        answers=[_answered(posterior, samples, least) for least in LEAST_CHANCES],
        chained=chained(run, attack, measured, right, samples),
        rounds=list(run.measured_rounds),
        by_round=[
            source_success(inferred_source(chances(run, attack, one, samples)), samples.owner).value
            for one in rounds
        ],
        overfitting=overfitting(notes, samples.clients),
        absent=sorted({*samples.clients}.difference(*(m.clients for m in cubes.values()))),
    )
    figures = source_figures(
        answers,
        Limited(success.value, success.low, success.high),
        Test(null=GUESSING, level=answers.chance, high=null.high, p_value=null.p_value),
        Test(null=LABELS, level=mixed.mean, p_value=mixed.p_value),
        Baseline(source_success(baseline, samples.owner).value, change.difference, change.p_value),
    )
    return SourceFound(answers, figures)


def _by_class(right: Bool[ndarray, " samples"], samples: SourceQueries) -> list[ClassSuccess]:
    return [
        ClassSuccess(
            label=int(label),
            samples=int((samples.labels == label).sum()),
            right=int(right[samples.labels == label].sum()),
        )
        for label in np.unique(samples.labels)
    ]


def _answered(
    posterior: Float[ndarray, "clients samples"], samples: SourceQueries, least: float
) -> Answered:
    success = source_success(inferred_source(posterior, least=least), samples.owner)
    return Answered(least=least, answered=success.answered, right=success.right)
