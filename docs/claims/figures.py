"""The figures of records: all that the page of claims asks of one goes through `rows`."""

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
from fedaudit.results.aggregate import Value, Values, subtract_figures
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import (
    EPOCHS,
    HELD_OUT,
    SIGN_AUC,
    SUCCESS,
    TRUE_NEGATIVES,
    TRUE_POSITIVES,
    PointPlayed,
    Spread,
)
from fedaudit.results.guessing import mark_doubts
from fedaudit.results.read import read_record
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

LATE = (0.6, 1.0)
"""Shares of the rounds at which the gap of loss is a figure."""
CERTAIN = 1e-8
"""The probability of failure that AMI's certificates are given for."""
MEMBERSHIP_FIRST = 0.1
"""The false-positive rate of an attacker who tells members from others before naming owners."""
SHARES = "Clopper-Pearson 95%"


class Asked(NamedTuple):
    """What names a figure of a record.

    Attributes:
        figure: "auc", "tpr@0.001", "test_accuracy", "train_accuracy", "generalisation_gap";
            "loss_gap@0.6", the mean loss of non-members less members' when so many of the rounds
            are over; of clients with a defense, held against those without one in the same run,
            "seconds_ratio" (of training) and "uses_ratio" (of the median sample); of sources
            "success", "excess", "over_label_baseline", "best_round", "least_round",
            "overfitting", "named_after_membership" (of all samples, those that an attack calls
            members, at 10 % false positives, and names the owner of); a figure of clustered
            learning, or "last change of accuracy" of a group's model; of games "adv", "tpr",
            "tnr", "held_out", "epochs", "spread_auc" (of one target's neuron), "uncertified"
            (share of targets whose printed certificate fails with more than 1e-8), "games" and
            "targets" of a point, and "detector_auc"; "seconds" that a record took. Of several
            records together "hypervolume" (`hypervolumes`).
        attack: Of the catalogue; a point of games, or a sign of the detector.
        contrast: Of figures about membership.
        target: Likewise.
        group: Of clients; the server that a detector met.
    """

    figure: str
    attack: str = ""
    contrast: str = ""
    target: int | None = None
    group: str = "everybody"


SECONDS = Asked("seconds")
OF_A_MACHINE = ("seconds", "seconds_ratio")
"""Figures that are others whenever they are measured again."""


def path_of(study: str, variant: str) -> Path:
    """Where a committed record lies."""
    return RECORDS / study / f"{named(study, variant)}.json"


@cache
def rows(study: str, variant: str) -> Mapping[Asked, Values] | None:
    """All figures of a committed record by seed; None where there is no such record."""
    path = path_of(study, variant)
    return rows_at(path) if path.is_file() else None


@cache
def has_older_levels(study: str, variant: str) -> bool:
    """Whether a committed record has the level of label distributions of an earlier version."""
    path = path_of(study, variant)
    found = read_record(path).on_sources if path.is_file() else ()
    return any(one.against == LABELS and has_older_level(one) for one in found)


def rows_at(path: Path) -> Mapping[Asked, Values]:
    """All figures of a record by seed, under None what it says over its runs."""
    found: dict[Asked, dict[int | None, Value]] = {}
    record = read_record(path)
    for asked, seed, value in _of_games(record) if record.kind == "games" else _of_record(record):
        found.setdefault(asked, {})[seed] = value
    return {asked: {s: {None: v} for s, v in by.items()} for asked, by in found.items()}


@cache
def directions(study: str, variant: str) -> Directions:
    """Return the direction of each attack by its figures in an undefended committed record.

    Args:
        study: Folder of records.
        variant: The undefended one.
    """
    path = path_of(study, variant)
    return directions_of(mark_doubts(read_record(path)).findings) if path.is_file() else {}


def counted(
    base: tuple[str, str], attacks: Sequence[str], contrast: str, metric: str, target: int | None
) -> dict[str, Direction]:
    """Return those of some attacks that count in an average, with the direction of each.

    Args:
        base: Study and variant of the undefended record that decides.
        attacks: Named by the claim.
        contrast: Of the figure.
        metric: Likewise.
        target: Likewise.
    """
    known = directions(*base)
    found = {a: known.get(AttackKey(a, contrast, metric), {}).get(target, 0) for a in attacks}
    return {attack: direction for attack, direction in found.items() if direction}


@cache
def hypervolumes(study: str, family: str, attack: str, contrast: str, target: int) -> Values | None:
    """What all strengths of a defense offer of privacy and accuracy, by seed: their hypervolume.

    Args:
        study: Folder of records, of which each has another strength; that of no defense counts too.
        family: The defense's name; with what is chained to it "augmentation+data-sampling".
        attack: By whose AUC the leak is.
        contrast: Of that AUC.
        target: Likewise.

    Returns:
        None where no record has that defense.
    """
    by_defense: dict[str, list[str]] = {}
    for path in sorted((RECORDS / study).glob("*.json")):
        variant = path.stem.removeprefix(study).removeprefix("-")
        by_defense.setdefault(defenses_of(path), []).append(variant)
    if family not in by_defense:
        return None
    asked = Asked("auc", attack, contrast, target)
    points = [_points(study, one, asked) for name in ("none", family) for one in by_defense[name]]
    seeds = [seed for seed in points[0] if all(seed in by_seed for by_seed in points)]
    areas = {seed: hypervolume(np.array([by_seed[seed] for by_seed in points])) for seed in seeds}
    return {seed: {None: Value.without_limits(area)} for seed, area in areas.items()}


@cache
def defenses_of(path: Path) -> str:
    """The defense of a committed record, with what is chained to it."""
    defense = DefenseSection.model_validate(read_record(path).config["defense"])
    return "+".join([defense.name, *(part.name for part in defense.chain)])


def _points(study: str, variant: str, asked: Asked) -> dict[int, tuple[float, float]]:
    """Membership advantage and error of each seed."""
    known = rows(study, variant)
    assert known is not None
    errors = known[Asked("test_accuracy")]
    return {
        seed: (advantage(by[None].value), 1 - errors[seed][None].value)
        for seed, by in known.get(asked, {}).items()
        if seed is not None
    }


def _of_games(record: Record) -> Iterator[tuple[Asked, int | None, Value]]:
    """Points by their label, in the place of attacks."""
    yield SECONDS, None, Value.without_limits(record.environment.seconds or 0.0)
    for point in record.games:
        for figure, value in _of_point(point):
            yield Asked(figure, point.label), None, value
    for (server, sign), found in record.detection.signs.items() if record.detection else ():
        one = found[SIGN_AUC]
        asked = Asked("detector_auc", sign, group=server)
        yield asked, None, Value(one.value or 0.0, one.low, one.high, one.method)


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
    yield "games", Value.without_limits(point.adv.total)
    for one in point.estimates:
        if one.metric in _OF_POINTS and one.value is not None:
            method = SHARES if one.metric in (TRUE_POSITIVES, TRUE_NEGATIVES) else one.method
            yield _OF_POINTS[one.metric], Value(one.value, one.low, one.high, method)
    if point.spread is not None:
        yield "spread_auc", apart(point.spread)
    if point.certificates:
        failing = sum(one.delta_sample > CERTAIN for one in point.certificates)
        limits = clopper_pearson(failing, len(point.certificates))
        yield "uncertified", Value(failing / len(point.certificates), *limits, SHARES)


def apart(spread: Spread) -> Value:
    """How well a neuron's values tell the target's copies from other records: AUC of the bins."""
    bins = np.arange(len(spread.of_target))
    of_target, of_others = (np.repeat(bins, n) for n in (spread.of_target, spread.of_others))
    found = auc_interval(
        np.concatenate([of_target, of_others]),
        np.arange(len(of_target) + len(of_others)) < len(of_target),
    )
    return Value(found.value, found.low, found.high, found.method)


def _of_record(record: Record) -> Iterator[tuple[Asked, int | None, Value]]:
    # Of runs that were attacked again at least their training.
    spent = max(record.environment.seconds or 0.0, sum(row.seconds for row in record.usage))
    yield SECONDS, None, Value.without_limits(spent)
    for f in record.findings:
        if f.value is not None and f.attack:
            asked = Asked(f.metric, f.attack, f.contrast, f.target)
            # A rate with too few non-members for a lower limit above 0 has that one.
            low = 0.0 if f.low is None and f.high is not None else f.low
            yield asked, f.seed, Value(f.value, low, f.high, f.method, f.metric == "auc")
    for u in record.where(topic="utility"):
        yield Asked(u.metric), u.seed, Value(u.number, u.low, u.high, u.method)
    for seed in record.seeds:
        usage = [row for row in record.usage if row.seed == seed]
        yield from ((Asked(name), seed, value) for name, value in of_usage(usage))
        lines = [line for line in record.trajectories if (line.signal, line.seed) == ("loss", seed)]
        yield from ((asked, seed, value) for asked, value in of_loss(lines))
    for run in record.sources:
        at = (run.attack, run.defense, run.view, run.seed)
        figures = {
            one.against: one
            for one in record.on_sources
            if (one.attack, one.defense, one.view, one.seed) == at
        }
        for name, of in _of_sources(run, figures):
            yield Asked(name, run.attack), run.seed, of
    for result in record.clusters:
        yield from ((asked, result.seed, value) for asked, value in of_convergence(result))
    on_clusters = record.where(topic="clusters")
    for mean in on_clusters:
        if mean.seed is None:
            asked = Asked(mean.metric, group=mean.group)
            yield asked, None, Value(mean.number, mean.low, mean.high, mean.method)
            same = (mean.defense, mean.metric, mean.group)
            runs = [one for one in on_clusters if (one.defense, one.metric, one.group) == same]
            if len(runs) > 2 or mean.low is None:
                yield from (
                    (asked, one.seed, Value.without_limits(one.number))
                    for one in runs
                    if one is not mean
                )


def of_convergence(result: ClusterResult) -> Iterator[tuple[Asked, Value]]:
    """By how much each group's model got more accurate between the last two measured rounds."""
    last = result.rounds[-2:]
    for group, model in models_of_groups(result).items():
        there = [] if model is None else [state.models[model].accuracy for state in last]
        known = [accuracy for accuracy in there if accuracy is not None]
        if len(known) > 1:
            asked = Asked("last change of accuracy", group=result.group_names[group])
            yield asked, Value.without_limits(known[1] - known[0])


def of_usage(usage: list[UsageRow]) -> Iterator[tuple[str, Value]]:
    """What a defense costs its clients beside those of the same run that have none."""
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
            # Distribution-free limits of a median: so many lie below it as heads fall.
            low, high = (int(binom.ppf(share, len(uses), 0.5)) for share in (0.025, 0.975))
            middle, below, above = (
                float(of) / usual for of in (np.median(uses), uses[low - 1], uses[high])
            )
            yield "uses_ratio", Value(middle, below, above, "order statistics 95%")


def of_loss(lines: list[Trajectory]) -> Iterator[tuple[Asked, Value]]:
    """How far non-members' mean loss lies above members', late in training.

    The signal is minus the loss, since larger ones are likelier members'.
    """
    for target in sorted({line.target for line in lines}):
        of = {line.origin: line for line in lines if line.target == target}
        for share in LATE:
            at = round(share * len(of["member"].rounds)) - 1
            member = of["member"].mean[at]
            others = [line.mean[at] for name, line in of.items() if name != "member"]
            known = [loss for loss in others if loss is not None]
            if member is not None and known and len(known) == len(others):
                asked = Asked(f"loss_gap@{share:g}", "", "mixed", target)
                yield asked, Value.without_limits(member - fmean(known))


def _of_sources(run: SourceResult, figures: Mapping[str, Estimate]) -> Iterator[tuple[str, Value]]:
    """What a source attack found in one run, and what of it is beyond label distributions."""

    def share(of: float) -> Value:
        limits = clopper_pearson(round(of * run.samples), run.samples)
        return Value(of, *limits, SHARES, cancels=True)

    success = share(figures[""].number)
    yield "success", success
    beyond = figures[LABELS]
    yield "excess", Value(beyond.number, beyond.low, beyond.high, beyond.method, cancels=True)
    baseline = figures[LABEL_BASELINE].level if LABEL_BASELINE in figures else None
    if baseline is not None:
        # On the same samples, which are rather named together than apart: wide enough.
        yield "over_label_baseline", subtract_figures(success, share(baseline))
    if run.by_round:
        yield "best_round", share(max(run.by_round))
        yield "least_round", share(min(run.by_round))
    for chained in run.chained:
        if chained.fpr == MEMBERSHIP_FIRST:
            yield "named_after_membership", share(chained.right / run.samples)
    if run.overfitting:
        yield "overfitting", Value.without_limits(fmean(abs(gap) for gap in run.overfitting))
