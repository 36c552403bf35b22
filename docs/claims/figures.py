"""Figures of records for the page of claims; :func:`rows` returns them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from docs.claims.data import RECORDS, named
from fedaudit.metrics import advantage, hypervolume
from fedaudit.metrics.delong import auc_interval
from fedaudit.metrics.intervals import clopper_pearson
from fedaudit.plan.optional import DefenseSection
from fedaudit.results.aggregate import Value, Values, subtract_estimates
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import (
    EPOCHS,
    HELD_OUT,
    INDICATOR_AUC,
    SUCCESS,
    TRUE_NEGATIVES,
    TRUE_POSITIVES,
    PointPlayed,
    Spread,
)
from fedaudit.results.guessing import mark_doubts
from fedaudit.results.record import Record, Trajectory, UsageRow
from fedaudit.results.runs import (
    LABEL_BASELINE,
    LABELS,
    ClusterResult,
    SourceResult,
    has_older_level,
    models_of_groups,
)
from fedaudit.results.tradeoffs import AttackKey, Direction, Directions, directions_of
from results.archives import committed_record

LATE = (0.6, 1.0)
"""Fractions of the rounds after which the loss gap is a figure."""
CERTAIN = 1e-8
"""Probability of failure of AMI's certificates."""
MEMBERSHIP_FIRST = 0.1
"""False-positive rate of an adversary that infers membership before it infers the owner."""
SHARES = "Clopper-Pearson 95%"


class FigureName(NamedTuple):
    """Name of a figure of a record."""

    # Metric of an estimate, or one of these:
    # - "loss_gap@0.6": mean loss of non-members minus that of members after this fraction of rounds
    # - "seconds_ratio", "uses_ratio": training time, and uses of the median sample, of clients with
    #   a defense, relative to the other clients of the run
    # - "named_after_membership": fraction of samples that an adversary classifies as members at
    #   10 % false positives and whose owner it then identifies
    # - "last change of accuracy": change of a group's accuracy between the last measured rounds
    # - "uncertified": fraction of targets whose certificate fails with a probability above 1e-8
    # - "hypervolume": hypervolume of several records
    # - a figure that :func:`figures_of` derives from games or source attacks
    figure: str
    # Attack of the catalogue; a point of games, or an indicator of the detector.
    attack: str = ""
    # Contrast of membership figures.
    contrast: str = ""
    # Audited client of membership figures.
    target: int | None = None
    # Group of clients; for a detector, the server.
    group: str = "everybody"


SECONDS = FigureName("seconds")
OF_A_MACHINE = ("seconds", "seconds_ratio")
"""Figures that differ in every measurement."""


def path_of(study: str, variant: str) -> Path:
    return RECORDS / study / f"{named(study, variant)}.json"


@cache
def rows(study: str, variant: str) -> Mapping[FigureName, Values] | None:
    """Return all figures of a committed record by seed; None if there is no such record."""
    path = path_of(study, variant)
    return figures_of(committed_record(path)) if path.is_file() else None


@cache
def has_older_levels(study: str, variant: str) -> bool:
    path = path_of(study, variant)
    sources = committed_record(path).source_estimates if path.is_file() else ()
    return any(source.against == LABELS and has_older_level(source) for source in sources)


def figures_of(record: Record) -> Mapping[FigureName, Values]:
    """Return all figures of a record by seed; the key None means over all seeds."""
    by_name: dict[FigureName, dict[int | None, Value]] = {}
    for key, seed, value in _of_games(record) if record.kind == "games" else _of_record(record):
        by_name.setdefault(key, {})[seed] = value
    return {key: {s: {None: v} for s, v in by_seed.items()} for key, by_seed in by_name.items()}


@cache
def directions(study: str, variant: str) -> Directions:
    """Return the direction of each attack in an undefended committed record."""
    path = path_of(study, variant)
    return directions_of(mark_doubts(committed_record(path)).findings) if path.is_file() else {}


def counted(
    base: tuple[str, str], attacks: Sequence[str], contrast: str, metric: str, target: int | None
) -> dict[str, Direction]:
    """Return the attacks whose figures are averaged, with their directions.

    The undefended record ``base`` (study and variant) decides.
    """
    all_directions = directions(*base)
    selected = {
        a: all_directions.get(AttackKey(a, contrast, metric), {}).get(target, 0) for a in attacks
    }
    return {attack: direction for attack, direction in selected.items() if direction}


@cache
def hypervolumes(study: str, family: str, attack: str, contrast: str, target: int) -> Values | None:
    """Return the hypervolume over all strengths of a defense, by seed; None without records.

    The points are the records of the study with this defense (``family``), such as
    "augmentation+data-sampling", and the undefended record.
    """
    by_defense: dict[str, list[str]] = {}
    for path in sorted((RECORDS / study).glob("*.json")):
        variant = path.stem.removeprefix(study).removeprefix("-")
        by_defense.setdefault(defenses_of(path), []).append(variant)
    if family not in by_defense:
        return None
    key = FigureName("auc", attack, contrast, target)
    points = [
        _points(study, variant_name, key)
        for name in ("none", family)
        for variant_name in by_defense[name]
    ]
    seeds = [seed for seed in points[0] if all(seed in by_seed for by_seed in points)]
    areas = {seed: hypervolume(np.array([by_seed[seed] for by_seed in points])) for seed in seeds}
    return {seed: {None: Value.without_limits(area)} for seed, area in areas.items()}


@cache
def defenses_of(path: Path) -> str:
    defense = DefenseSection.model_validate(committed_record(path).config["defense"])
    return "+".join([defense.name, *(part.name for part in defense.chain)])


def _points(study: str, variant: str, key: FigureName) -> dict[int, tuple[float, float]]:
    figures = rows(study, variant)
    assert figures is not None
    errors = figures[FigureName("test_accuracy")]
    return {
        seed: (advantage(by_target[None].value), 1 - errors[seed][None].value)
        for seed, by_target in figures.get(key, {}).items()
        if seed is not None
    }


def _of_games(record: Record) -> Iterator[tuple[FigureName, int | None, Value]]:
    yield SECONDS, None, Value.without_limits(record.environment.seconds or 0.0)
    for point in record.games:
        for figure, value in _of_point(point):
            yield FigureName(figure, point.label), None, value
    for (server, name), figures in record.detection.indicators.items() if record.detection else ():
        auc = figures[INDICATOR_AUC]
        key = FigureName("detector_auc", name, group=server)
        yield key, None, Value(auc.value or 0.0, auc.low, auc.high, auc.method)


_OF_POINTS = {
    SUCCESS: "adv",
    TRUE_POSITIVES: "tpr",
    TRUE_NEGATIVES: "tnr",
    HELD_OUT: "held_out",
    EPOCHS: "epochs",
}
"""Names of a point's figures in claims."""


def _of_point(point: PointPlayed) -> Iterator[tuple[str, Value]]:
    yield "targets", Value.without_limits(point.targets)
    yield "games", Value.without_limits(point.success.total)
    for entry in point.estimates:
        if entry.metric in _OF_POINTS and entry.value is not None:
            method = SHARES if entry.metric in (TRUE_POSITIVES, TRUE_NEGATIVES) else entry.method
            yield _OF_POINTS[entry.metric], Value(entry.value, entry.low, entry.high, method)
    if point.spread is not None:
        yield "spread_auc", spread_auc(point.spread)
    if point.certificates:
        failing = sum(entry.delta_observed > CERTAIN for entry in point.certificates)
        limits = clopper_pearson(failing, len(point.certificates))
        yield "uncertified", Value(failing / len(point.certificates), *limits, SHARES)


def spread_auc(spread: Spread) -> Value:
    """Return the AUC with which a neuron's values separate target copies from other samples."""
    bins = np.arange(len(spread.of_target))
    of_target, of_others = (np.repeat(bins, n) for n in (spread.of_target, spread.of_others))
    interval = auc_interval(
        np.concatenate([of_target, of_others]),
        np.arange(len(of_target) + len(of_others)) < len(of_target),
    )
    return Value(interval.value, interval.low, interval.high, interval.method)


def _of_record(record: Record) -> Iterator[tuple[FigureName, int | None, Value]]:
    # The record of a run that was attacked again has only the time of the attacks.
    spent = max(record.environment.seconds or 0.0, sum(row.seconds for row in record.usage))
    yield SECONDS, None, Value.without_limits(spent)
    for f in record.findings:
        if f.value is not None and f.attack:
            key = FigureName(f.metric, f.attack, f.contrast, f.target)
            # A rate with too few non-members for a lower limit above 0 has the limit 0.
            low = 0.0 if f.low is None and f.high is not None else f.low
            yield key, f.seed, Value(f.value, low, f.high, f.method, f.metric == "auc")
    for u in record.where(topic="utility"):
        yield FigureName(u.metric), u.seed, Value(u.number, u.low, u.high, u.method)
    for seed in record.seeds:
        usage = [row for row in record.usage if row.seed == seed]
        yield from ((FigureName(name), seed, value) for name, value in of_usage(usage))
        lines = [line for line in record.trajectories if (line.signal, line.seed) == ("loss", seed)]
        yield from ((key, seed, value) for key, value in of_loss(lines))
    for run in record.sources:
        place = (run.attack, run.defense, run.view, run.seed)
        figures = {
            entry.against: entry
            for entry in record.source_estimates
            if (entry.attack, entry.defense, entry.view, entry.seed) == place
        }
        for name, share in _of_sources(run, figures):
            yield FigureName(name, run.attack), run.seed, share
    for result in record.clusters:
        yield from ((key, result.seed, value) for key, value in of_convergence(result))
    on_clusters = record.where(topic="clusters")
    for mean in on_clusters:
        if mean.seed is None:
            key = FigureName(mean.metric, group=mean.group)
            yield key, None, Value(mean.number, mean.low, mean.high, mean.method)
            same = (mean.defense, mean.metric, mean.group)
            runs = [
                entry for entry in on_clusters if (entry.defense, entry.metric, entry.group) == same
            ]
            if len(runs) > 2 or mean.low is None:
                yield from (
                    (key, entry.seed, Value.without_limits(entry.number))
                    for entry in runs
                    if entry is not mean
                )


def of_convergence(result: ClusterResult) -> Iterator[tuple[FigureName, Value]]:
    """Yield the change of each group's accuracy between the last two measured rounds."""
    last = result.rounds[-2:]
    for group, model in models_of_groups(result).items():
        accuracies = [] if model is None else [state.models[model].accuracy for state in last]
        measured = [accuracy for accuracy in accuracies if accuracy is not None]
        if len(measured) > 1:
            key = FigureName("last change of accuracy", group=result.group_names[group])
            yield key, Value.without_limits(measured[1] - measured[0])


def of_usage(usage: list[UsageRow]) -> Iterator[tuple[str, Value]]:
    """Yield the cost of a defense, relative to undefended clients of the same run."""
    with_it, without = ([row for row in usage if row.defended is on] for on in (True, False))
    if with_it and without:
        seconds = [fmean(row.seconds for row in side) for side in (with_it, without)]
        if min(seconds) > 0:
            yield "seconds_ratio", Value.without_limits(seconds[0] / seconds[1])
        uses, others = (
            np.sort(np.concatenate([np.repeat(range(len(n)), n) for n in side]))
            for side in ([row.times_used for row in rows_] for rows_ in (with_it, without))
        )
        usual = float(np.median(others))
        if usual:
            # Distribution-free limits of a median: the number of values below it is binomial.
            low, high = (int(binom.ppf(share, len(uses), 0.5)) for share in (0.025, 0.975))
            middle, below, above = (
                float(number) / usual for number in (np.median(uses), uses[low - 1], uses[high])
            )
            yield "uses_ratio", Value(middle, below, above, "order statistics 95%")


def of_loss(lines: list[Trajectory]) -> Iterator[tuple[FigureName, Value]]:
    """Yield the mean loss of non-members minus that of members, late in training.

    The signal is minus the loss, because members have higher scores.
    """
    for target in sorted({line.target for line in lines}):
        by_origin = {line.origin: line for line in lines if line.target == target}
        for share in LATE:
            place = round(share * len(by_origin["member"].rounds)) - 1
            member = by_origin["member"].mean[place]
            others = [line.mean[place] for name, line in by_origin.items() if name != "member"]
            losses = [loss for loss in others if loss is not None]
            if member is not None and losses and len(losses) == len(others):
                key = FigureName(f"loss_gap@{share:g}", "", "mixed", target)
                yield key, Value.without_limits(member - fmean(losses))


def _of_sources(run: SourceResult, figures: Mapping[str, Estimate]) -> Iterator[tuple[str, Value]]:
    def share(rate: float) -> Value:
        limits = clopper_pearson(round(rate * run.samples), run.samples)
        return Value(rate, *limits, SHARES, cancels=True)

    success = share(figures[""].number)
    yield "success", success
    beyond = figures[LABELS]
    yield "excess", Value(beyond.number, beyond.low, beyond.high, beyond.method, cancels=True)
    baseline = figures[LABEL_BASELINE].level if LABEL_BASELINE in figures else None
    if baseline is not None:
        # Successes on the same samples correlate positively, so separate limits are wide enough.
        yield "over_label_baseline", subtract_estimates(success, share(baseline))
    if run.by_round:
        yield "best_round", share(max(run.by_round))
        yield "least_round", share(min(run.by_round))
    for chained in run.chained:
        if chained.fpr == MEMBERSHIP_FIRST:
            yield "named_after_membership", share(chained.right / run.samples)
    if run.overfitting:
        yield "overfitting", Value.without_limits(fmean(abs(gap) for gap in run.overfitting))
