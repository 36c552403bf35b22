"""From measurements and the truth to figures: one run, one target, one attack at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.attacks.base import Attack
from fedaudit.core.errors import Refusal
from fedaudit.core.metric_names import EPSILON, rate_of
from fedaudit.core.origin import Origin
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.seeds import seed_for, seeded_numpy
from fedaudit.core.values import ClientId
from fedaudit.defenses.base import Visit
from fedaudit.metrics import (
    CONTRASTS,
    Evaluated,
    evaluate,
    limits_of_rate,
    one_run_epsilon,
    redraw,
)
from fedaudit.metrics.evaluate import estimates
from fedaudit.metrics.intervals import LimitsAt
from fedaudit.observe.measurements import Measurements
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.study.figures.pictures import add_pictures, trajectories
from fedaudit.study.figures.truth import Findings, TargetTruth, target_truth
from fedaudit.study.setup.build import metric_named
from fedaudit.study.setup.defenses import assigns_classes
from fedaudit.study.setup.parts import Setup

GUESSED_SHARE = 0.2
"""Of the fairly drawn samples, how many the one-run epsilon bound guesses about: fixed here,
before anybody has looked at scores."""


class AttackRun(NamedTuple):
    """Coordinates of figures: the attack, the defense in force, the view and the run."""

    attack: str
    defense: str
    view: str
    seed: int


def analyse(
    setup: Setup,
    measured: Mapping[str, Measurements],
    findings: Findings,
    progress: Progress = quiet,
) -> None:
    """Adds one run's figures for every target and attack.

    Args:
        setup: The run.
        measured: Its measurements by signal.
        findings: Grown in place.
        progress: Called after each attack on each target.
    """
    phase, done = f"seed {setup.seed}: attacks", 0
    total = len(setup.study.audit.targets) * len(setup.on_membership)
    progress(phase, done, total)
    for target in setup.study.audit.targets:
        truth = target_truth(setup, target)
        cubes = {name: _as_evaluated(setup, m, truth) for name, m in measured.items()}
        for name, cube in cubes.items():
            findings.trajectories.extend(trajectories(setup, name, cube, truth))
        for name, attack in setup.on_membership.items():
            scores = _scores(setup, name, attack, cubes, truth, findings)
            if scores is not None:
                findings.scores[setup.seed, target, name] = scores
                _add_figures(setup, name, scores, truth, findings)
                add_pictures(setup, name, scores, truth, findings)
            done += 1
            progress(phase, done, total)


def _as_evaluated(setup: Setup, m: Measurements, truth: TargetTruth) -> Measurements:
    """The kept samples' measurements, redrawn where the study asks for the published way."""
    values = m.values[:, :, torch.from_numpy(truth.kept)]
    if setup.study.figures.evaluation == "redraw":
        rng = seeded_numpy(setup.seed, "redraw", truth.target)
        values = torch.from_numpy(redraw(values.numpy(), truth.is_member, rng=rng))
    return replace(m, values=values)


def _scores(
    setup: Setup,
    name: str,
    attack: Attack,
    cubes: Mapping[str, Measurements],
    truth: TargetTruth,
    findings: Findings,
) -> Float[ndarray, " samples"] | None:
    try:
        if attack.needs_side_information:
            labels = torch.from_numpy(truth.labels)
            attack = attack.with_side_information(
                trainable_by_round(setup, truth.target, next(iter(cubes.values())), labels)
            )
        return attack.scores(cubes, truth.target).numpy()
    except Refusal as refusal:
        where = f"seed {setup.seed}, client {truth.target}"
        findings.failed.setdefault(name, {})[where] = f"{where}: {refusal}"
        return None


def _add_figures(
    setup: Setup,
    name: str,
    scores: Float[ndarray, " samples"],
    truth: TargetTruth,
    findings: Findings,
) -> None:
    study = setup.study
    of = AttackRun(name, study.defense.label, setup.view.name, setup.seed)
    add_figures(of, scores, truth, findings, study.figures.fprs)
    for metric in study.figures.metrics:
        rng = seeded_numpy(setup.seed, "metric", metric, truth.target, name)
        found = estimates(metric, metric_named(metric), scores, truth.origin, rng=rng)
        findings.figures += [_figure(of, truth.target, one) for one in found]
    epsilon = _epsilon(setup, name, scores, truth)
    if epsilon is not None:
        findings.figures.append(epsilon)


def add_figures(
    of: AttackRun,
    scores: Float[ndarray, " samples"],
    truth: TargetTruth,
    findings: Findings,
    fprs: Sequence[float],
) -> None:
    """Adds one attack's figures on one client in one run, but for the bound on epsilon.

    Args:
        of: The attack and run of figures they are.
        scores: One a sample that is kept.
        truth: About these samples.
        findings: Grown in place.
        fprs: False-positive rates to report at.
    """
    for estimate in evaluate(scores, truth.origin, fprs=fprs, seed=of.seed):
        if estimate.p_value is not None and not _repeats(estimate.contrast, truth):
            findings.p_values[len(findings.figures)] = estimate.p_value
        rate = rate_of(estimate.metric)
        if rate is not None and estimate.value is not None:
            findings.limits[len(findings.figures)] = _limits_of(rate, estimate, scores, truth)
        findings.figures.append(_figure(of, truth.target, estimate))


def _limits_of(
    rate: float, estimate: Evaluated, scores: Float[ndarray, " samples"], truth: TargetTruth
) -> LimitsAt:
    """Limits of a true-positive rate at any errors."""
    kept = np.isin(truth.origin, [Origin.MEMBER, *CONTRASTS[estimate.contrast]])
    return limits_of_rate(scores[kept], truth.is_member[kept], rate)


def _repeats(contrast: str, truth: TargetTruth) -> bool:
    """True if the mixed contrast has one origin only: testing it again would cost the family."""
    missing = not all((truth.origin == origin).any() for origin in Origin)
    return contrast == "mixed" and missing


def _figure(of: AttackRun, target: ClientId, estimate: Evaluated) -> Estimate:
    return Estimate(
        **of._asdict(),
        target=target,
        contrast=estimate.contrast,
        metric=estimate.metric,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        method=estimate.method,
        n_members=estimate.n_members,
        n_nonmembers=estimate.n_nonmembers,
        realised_fpr=estimate.realised_fpr,
        at_threshold=None
        if estimate.high_at_threshold is None
        else Interval(low=estimate.low_at_threshold, high=estimate.high_at_threshold),
        ceiling=estimate.ceiling,
        note=estimate.note,
    )


def _epsilon(
    setup: Setup, name: str, scores: Float[ndarray, " samples"], truth: TargetTruth
) -> Estimate | None:
    """The one-run bound on members against unseen under independent fair inclusion."""
    chosen = truth.fair & (truth.origin != Origin.OTHER_CLIENT)
    guesses = 2 * int(GUESSED_SHARE * chosen.sum() / 2)
    if guesses < 2 or setup.study.figures.evaluation == "redraw":
        return None
    study = setup.study
    family = len(setup.on_membership) * len(study.audit.targets) * len(study.seeds)
    bound = one_run_epsilon(
        scores[chosen],
        truth.is_member[chosen],
        guesses=guesses,
        alpha=study.figures.alpha / family,
    )
    return Estimate(
        attack=name,
        defense=study.defense.label,
        view=setup.view.name,
        target=truth.target,
        seed=setup.seed,
        contrast="unseen",
        metric=EPSILON,
        value=bound.value,
        low=bound.value,
        method=f"{bound.method}; error shared by {family} bounds",
        n_members=int(truth.is_member[chosen].sum()),
        n_nonmembers=int((~truth.is_member[chosen]).sum()),
        ceiling=bound.ceiling,
        note=f"lower bound from {guesses} guesses in one run; it refutes budgets, certifies none",
    )


def trainable_by_round(
    setup: Setup, target: ClientId, m: Measurements, labels: Int[Tensor, " samples"]
) -> dict[int, Bool[Tensor, " samples"]]:
    """By measured round, whether the target's training can have included a sample, by its class.

    Samples that a defense brings back against the assignment are not foreseen. Of clients that
    are attacked as one, any may have trained on a sample.

    Args:
        setup: The run.
        target: The client under audit.
        m: Any of the run's measurements.
        labels: Classes of the samples.
    """
    merged = setup.study.audit.merge
    clients = merged if target in merged else (target,)
    return {
        index: torch.stack(
            [_trains_on(setup, client, index, _cohort(m, row), labels) for client in clients]
        ).any(0)
        for row, index in enumerate(m.rounds)
    }


def _cohort(m: Measurements, row: int) -> tuple[ClientId, ...]:
    """The clients that were there in a round, as far as the adversary can tell them apart."""
    there = [c for c, base in zip(m.clients, m.bases[row].tolist(), strict=True) if base >= 0]
    groups: Mapping[ClientId, ClientId] = m.stands_for[row] if m.stands_for else {}
    return tuple(sorted({*there, *groups}))


def _trains_on(
    setup: Setup,
    client: ClientId,
    index: int,
    cohort: tuple[ClientId, ...],
    labels: Int[Tensor, " samples"],
) -> Bool[Tensor, " samples"]:
    defense = setup.defenses.get(client)
    if defense is None or not assigns_classes(defense):
        return torch.ones(len(labels), dtype=torch.bool)
    if client not in cohort:
        return torch.zeros(len(labels), dtype=torch.bool)
    visit = Visit(
        round=index,
        rounds=setup.study.training.rounds,
        client=client,
        cohort=cohort,
        weights={},
        seed=seed_for(setup.seed, "federation"),
    )
    return defense.dealt(visit, classes=setup.dataset.classes)[labels]
