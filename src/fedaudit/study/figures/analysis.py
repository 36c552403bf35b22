"""From measurements and the truth to figures: one run, one target, one attack at a time."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, TypedDict

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.attacks.base import Attack
from fedaudit.core.errors import FedauditError, TooFewPeers, TooFewRounds
from fedaudit.core.metric_names import AUC, EPSILON, rate_of
from fedaudit.core.origin import Origin
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.seeds import seed_for, seeded_numpy
from fedaudit.core.values import ClientId
from fedaudit.fl.hooks import Visit
from fedaudit.metrics import (
    Evaluated,
    auc_by_group,
    auc_by_owner,
    clustered_auc,
    evaluate,
    labels_alone_auc,
    limits_of_rate,
    most_exposed,
    one_run_epsilon,
    redraw,
    roc_curve,
    scaled_within,
    thin,
)
from fedaudit.metrics.epsilon import bound_method, one_sided_coins
from fedaudit.metrics.evaluate import CONTRASTS, estimates
from fedaudit.metrics.table import metric_named
from fedaudit.observe.measurements import Measurements
from fedaudit.results.estimate import PEOPLE_IGNORED, Estimate, Interval
from fedaudit.results.record import Curve, ExposedSample, Histogram, Trajectory
from fedaudit.study.figures.truth import (
    Comparison,
    Findings,
    TargetTruth,
    UnitTruth,
    has_equal_clients,
    pooled,
    repeats,
    target_truth,
)
from fedaudit.study.settings.sections import Study
from fedaudit.study.setup.defenses import assigns_classes
from fedaudit.study.setup.parts import Setup

GUESSED_SHARE = 0.2
"""Of the fairly drawn samples, how many the one-run epsilon bound guesses about: fixed here,
before anybody has looked at scores."""

_CURVE_POINTS = 120
_HISTOGRAM_BINS = 40
_PICTURE_DIGITS = 5
"""Significant digits of what is only drawn; figures keep all of theirs."""


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
    first = len(findings.figures), len(findings.groups)
    total = len(setup.study.audit.targets) * len(setup.on_membership)
    progress(phase, done, total)
    audited = list[UnitTruth]()
    for target in setup.study.audit.targets:
        truth = target_truth(setup, target)
        units = truth.units
        audited.append(units)
        cubes = {name: _as_evaluated(setup, m, truth) for name, m in measured.items()}
        for name, cube in cubes.items():
            findings.trajectories.extend(_trajectories(setup, name, cube, truth))
        for name, attack in setup.on_membership.items():
            of_samples = _scores(setup, name, attack, cubes, truth, findings)
            if of_samples is not None:
                scores = truth.of_units(of_samples)
                findings.scores[setup.seed, target, name] = scores
                _add_figures(setup, name, scores, units, findings)
                if truth.subject is not None:
                    findings.figures += _of_single_samples(setup, name, of_samples, truth)
                _add_pictures(setup, name, scores, units, findings)
                findings.groups.extend(_groups(setup, name, of_samples, truth))
            done += 1
            progress(phase, done, total)
    if not has_equal_clients(setup):
        _add_pooled(setup, audited, findings)
    if setup.ignores_people:
        for figures, start in zip((findings.figures, findings.groups), first, strict=True):
            figures[start:] = map(_without_people, figures[start:])


def _without_people(figure: Estimate) -> Estimate:
    """Return the figure with a method that says what its limits leave out.

    Bounds on epsilon rest on a coin for each sample, however alike samples are.
    """
    if figure.high is None or figure.metric == EPSILON:
        return figure
    return figure.model_copy(update={"method": f"{figure.method}, {PEOPLE_IGNORED}"})


def _labels_alone(
    audited: Sequence[UnitTruth], clients: Collection[int], contrast: str, seed: int
) -> float | None:
    """Estimate the AUC of labels alone over these clients; None if units have no classes."""
    parts = [one for one in audited if one.target in clients]
    labels, is_member, client = [], [], []
    for one in parts:
        if not isinstance(one, TargetTruth) or not one.has_classes:
            return None
        chosen = one.fair & np.isin(one.origin, [Origin.MEMBER, *CONTRASTS[contrast]])
        labels.append(one.labels[chosen])
        is_member.append(one.is_member[chosen])
        client.append(np.full(int(chosen.sum()), one.target))
    rng = seeded_numpy(seed, "labels alone", "pooled", contrast)
    return labels_alone_auc(
        np.concatenate(labels),
        np.concatenate(is_member),
        rng=rng,
        strata=np.concatenate(client),
    )


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
        attack = attack.on_samples(torch.from_numpy(truth.kept))
        return attack.scores(cubes, truth.target).numpy()
    except FedauditError as refusal:
        called = setup.called(truth.target)
        where = called if setup.watched else f"seed {setup.seed}, {called}"
        reason = str(refusal).replace(f"client {truth.target}", called)
        kind = findings.failed
        if isinstance(refusal, TooFewRounds):
            kind = findings.uncovered
        elif isinstance(refusal, TooFewPeers):
            kind = findings.alone
        kind.setdefault(name, {})[where] = f"{where}: {reason}"
        return None


def _of_single_samples(
    setup: Setup, name: str, scores: Float[ndarray, " samples"], truth: TargetTruth
) -> Iterator[Estimate]:
    """The AUC of the samples of people taken one by one, with people for what is drawn.

    Not tested: the study's family is of figures on people.
    """
    assert truth.subject is not None
    of = AttackRun(name, setup.study.defense.label, setup.view.name, setup.seed)
    for contrast, against in CONTRASTS.items():
        chosen = np.isin(truth.origin, [Origin.MEMBER, *against])
        is_member, subject = truth.is_member[chosen], truth.subject[chosen]
        if is_member.all() or not is_member.any():
            continue
        found = clustered_auc(scores[chosen], is_member, subject)
        yield Estimate(
            **of._asdict(),
            unit="sample",
            target=truth.target,
            contrast=contrast,
            metric=AUC,
            value=found.value,
            low=found.low,
            high=found.high,
            method=found.method,
            n_members=int(is_member.sum()),
            n_nonmembers=int((~is_member).sum()),
        )


def _add_figures(
    setup: Setup,
    name: str,
    scores: Float[ndarray, " units"],
    truth: UnitTruth,
    findings: Findings,
) -> None:
    study = setup.study
    of = AttackRun(name, study.defense.label, setup.view.name, setup.seed)
    add_figures(of, scores, truth, findings, study.figures.fprs)
    for metric in study.figures.metrics:
        rng = seeded_numpy(setup.seed, "metric", metric, truth.target, name)
        made = metric_named(metric)
        for contrast, compared in truth.comparisons.items():
            units, origin = scores[compared.chosen], truth.origin[compared.chosen]
            found = estimates(
                metric, made, units, origin, rng=rng, origin_codes=True, contrasts=(contrast,)
            )
            findings.figures += [_figure(of, truth, one, compared) for one in found]
    epsilon = _epsilon(setup, name, scores, truth)
    if epsilon is not None:
        findings.figures.append(epsilon)


def add_figures(
    of: AttackRun,
    scores: Float[ndarray, " units"],
    truth: UnitTruth,
    findings: Findings,
    fprs: Sequence[float],
) -> None:
    """Adds one attack's figures on one client in one run, but for the bound on epsilon.

    Args:
        of: The attack and run of figures they are.
        scores: One a sample or person.
        truth: About these.
        findings: Grown in place.
        fprs: False-positive rates to report at.
    """
    for contrast, compared in truth.comparisons.items():
        chosen = compared.chosen
        if not truth.is_member[chosen].any():
            findings.figures.append(_figure(of, truth, _without_a_class(contrast), compared))
            continue
        if truth.is_member[chosen].all():
            # No such non-members: the evaluation says so.
            chosen = np.ones_like(chosen)
        _add_contrast(
            of,
            _Scored(truth, scores[chosen], truth.origin[chosen]),
            contrast,
            compared,
            findings,
            fprs,
            is_tested=not repeats(contrast, truth),
        )


class _Scored(NamedTuple):
    """Scores of the units of one contrast.

    Attributes:
        about: The client and unit that they are of.
        scores: One a unit.
        origin: Where each unit comes from.
        strata: For units of several clients, the client whose draw decided about each.
    """

    about: UnitTruth
    scores: Float[ndarray, " units"]
    origin: Int[ndarray, " units"]
    strata: Int[ndarray, " units"] | None = None


def _add_contrast(
    of: AttackRun,
    units: _Scored,
    contrast: str,
    compared: Comparison,
    findings: Findings,
    fprs: Sequence[float],
    *,
    is_tested: bool,
) -> None:
    """Add the figures of one contrast, with p-values and with limits of rates at any error."""
    scores, is_member = units.scores, units.origin == Origin.MEMBER
    scaled = scores if units.strata is None else scaled_within(scores, units.strata)
    for estimate in evaluate(
        scores,
        units.origin,
        fprs=fprs,
        seed=of.seed,
        origin_codes=True,
        contrasts=(contrast,),
        strata=units.strata,
    ):
        place, rate = len(findings.figures), rate_of(estimate.metric)
        if estimate.p_value is not None and is_tested:
            findings.p_values[place] = estimate.p_value
        if rate is not None and estimate.value is not None:
            findings.limits[place] = limits_of_rate(scaled, is_member, rate)
        figure = _figure(of, units.about, estimate, compared)
        if units.strata is not None:
            figure = figure.model_copy(update={"target": None})
        findings.figures.append(figure)


def _add_pooled(setup: Setup, audited: Sequence[UnitTruth], findings: Findings) -> None:
    """Add figures over all audited clients, each compared with its own non-members only.

    A client with a few dozen audited samples settles nothing by itself. Only units whose membership
    a fair draw decided are pooled, and only where all clients are defended or none is.
    """
    study = setup.study
    for name in setup.on_membership:
        parts = [
            (scores[one.fair], one.origin[one.fair], np.full(int(one.fair.sum()), one.target))
            for one in pooled(setup, audited)
            if (scores := findings.scores.get((setup.seed, one.target, name))) is not None
        ]
        if len(parts) < 2:
            continue
        scores, origin, client = (np.concatenate(column) for column in zip(*parts, strict=True))
        of = AttackRun(name, study.defense.label, setup.view.name, setup.seed)
        present = set(origin.tolist())
        for contrast, against in CONTRASTS.items():
            if not present.issuperset(against):
                continue
            chosen = np.isin(origin, [Origin.MEMBER, *against])
            units = _Scored(audited[0], scores[chosen], origin[chosen], client[chosen])
            alone = _labels_alone(audited, set(client.tolist()), contrast, setup.seed)
            compared = Comparison(chosen, within="client", labels_alone=alone)
            fprs = study.figures.fprs
            _add_contrast(of, units, contrast, compared, findings, fprs, is_tested=True)


def _without_a_class(contrast: str) -> Evaluated:
    return Evaluated(
        contrast=contrast,
        metric=AUC,
        value=None,
        low=None,
        high=None,
        note="inconclusive: no class has both members and such non-members, and label "
        "distributions alone would distinguish them",
    )


def _figure(of: AttackRun, truth: UnitTruth, estimate: Evaluated, compared: Comparison) -> Estimate:
    return Estimate(
        **of._asdict(),
        unit=truth.unit,
        target=truth.target,
        contrast=estimate.contrast,
        metric=estimate.metric,
        within=compared.within,
        fair=compared.fair,
        labels_alone=compared.labels_alone if estimate.metric == AUC else None,
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
    setup: Setup, name: str, scores: Float[ndarray, " units"], truth: UnitTruth
) -> Estimate | None:
    """The one-run bound on members against unseen under independent fair inclusion."""
    chosen = truth.fair & (truth.origin != Origin.OTHER_CLIENT)
    guesses = 2 * int(GUESSED_SHARE * chosen.sum() / 2)
    if guesses < 2 or setup.study.figures.evaluation == "redraw":
        return None
    study = setup.study
    family = len(setup.on_membership) * len(study.audit.targets) * len(study.seeds)
    alpha = study.figures.alpha / family
    inside = truth.is_member[chosen]
    figure = partial(
        Estimate,
        attack=name,
        defense=study.defense.label,
        view=setup.view.name,
        unit=truth.unit,
        target=truth.target,
        seed=setup.seed,
        contrast="unseen",
        metric=EPSILON,
        n_members=int(inside.sum()),
        n_nonmembers=int((~inside).sum()),
    )
    shared = f"; error shared by {family} bounds"
    refusal = one_sided_coins(inside)
    if refusal:
        method = bound_method("one run", 0.0, alpha) + shared
        return figure(value=None, method=method, note=f"refused: {refusal}")
    bound = one_run_epsilon(scores[chosen], inside, guesses=guesses, alpha=alpha)
    return figure(
        value=bound.value,
        low=bound.value,
        method=bound.method + shared,
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


def _add_pictures(
    setup: Setup,
    name: str,
    scores: Float[ndarray, " units"],
    truth: UnitTruth,
    findings: Findings,
) -> None:
    """Curves, histogram and the most exposed members of one attack."""
    where = _where(setup.study, name, truth.target, setup.seed)
    for contrast, compared in truth.comparisons.items():
        chosen = compared.chosen
        # Both sides are there, or neither is.
        if truth.is_member[chosen].all():
            continue
        roc = thin(roc_curve(scores[chosen], truth.is_member[chosen]), _CURVE_POINTS)
        findings.curves.append(
            Curve(
                **where,
                view=setup.view.name,
                contrast=contrast,
                fpr=_rounded(roc.fpr),
                tpr=_rounded(roc.tpr),
            )
        )
    findings.histograms.append(_histogram(where, scores, truth))
    findings.exposed.extend(
        ExposedSample(
            **where,
            unit=truth.unit,
            sample=int(truth.ids[one.position]),
            label=int(truth.labels[one.position]) if isinstance(truth, TargetTruth) else None,
            above_nonmembers=one.above_nonmembers,
        )
        for one in most_exposed(scores, truth.is_member, top=setup.study.figures.most_exposed)
    )


class _Where(TypedDict):
    attack: str
    defense: str
    target: int
    seed: int


def _where(study: Study, name: str, target: ClientId, seed: int) -> _Where:
    return {"attack": name, "defense": study.defense.label, "target": target, "seed": seed}


def _histogram(where: _Where, scores: Float[ndarray, " units"], truth: UnitTruth) -> Histogram:
    finite = scores[np.isfinite(scores)]
    # A few extreme scores would squeeze all others into one bin; they go to the end bins.
    low, high = np.quantile(finite, [0.02, 0.98]).tolist() if len(finite) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, _HISTOGRAM_BINS + 1)
    counts = {
        origin: np.histogram(np.clip(scores[truth.origin == origin], low, high), edges)[0].tolist()
        for origin in Origin
    }
    return Histogram(
        **where,
        edges=_rounded(edges),
        member=counts[Origin.MEMBER],
        other_client=counts[Origin.OTHER_CLIENT],
        unseen=counts[Origin.UNSEEN],
    )


def _groups(
    setup: Setup, name: str, scores: Float[ndarray, " samples"], truth: TargetTruth
) -> Iterator[Estimate]:
    if truth.subject is not None:
        # Intervals within a class take samples for independent, and those of a person are not.
        return
    is_member = truth.is_member
    by_class = auc_by_group(scores, is_member, groups=truth.labels)
    by_owner = auc_by_owner(scores, is_member, owners=truth.owners)
    for by, contrast, rows in (
        ("class", "mixed", by_class),
        ("client", "other_client", [row for row in by_owner if row.group >= 0]),
    ):
        for row in rows:
            yield Estimate(
                metric=AUC,
                attack=name,
                defense=setup.study.defense.label,
                contrast=contrast,
                by="class" if by == "class" else "client",
                group=str(row.group),
                fair=by == "class" or truth.comparisons["other_client"].fair,
                target=truth.target,
                seed=setup.seed,
                value=row.value,
                low=row.low,
                high=row.high,
                method=row.method,
                n_members=row.n_members,
                n_nonmembers=row.n_nonmembers,
            )


def _trajectories(
    setup: Setup, name: str, cube: Measurements, truth: TargetTruth
) -> Iterator[Trajectory]:
    """A signal at the target over rounds, by origin: mean and the range of the middle 80%."""
    values = cube.of(truth.target).numpy()
    for origin in Origin:
        mine = values[:, truth.origin == origin]
        if mine.shape[1]:
            yield Trajectory(
                signal=name,
                defense=setup.study.defense.label,
                target=truth.target,
                seed=setup.seed,
                origin=_ORIGIN_NAMES[origin],
                rounds=list(cube.rounds),
                mean=_finite(mine.mean(1)),
                low=_finite(np.quantile(mine, 0.1, axis=1)),
                high=_finite(np.quantile(mine, 0.9, axis=1)),
            )


_ORIGIN_NAMES: dict[Origin, Literal["member", "other_client", "unseen"]] = {
    Origin.MEMBER: "member",
    Origin.OTHER_CLIENT: "other_client",
    Origin.UNSEEN: "unseen",
}


def _rounded(values: Float[ndarray, " points"]) -> list[float]:
    return [float(f"{value:.{_PICTURE_DIGITS}g}") for value in values]


def _finite(values: Float[ndarray, " rounds"]) -> list[float | None]:
    return [
        rounded if np.isfinite(value) else None
        for value, rounded in zip(values, _rounded(values), strict=True)
    ]
