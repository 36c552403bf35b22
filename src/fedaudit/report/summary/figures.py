"""Figures of a summary: of each question the strongest, with its range, chance and baseline."""

from collections.abc import Iterator
from typing import NamedTuple

from fedaudit.core import metric_names
from fedaudit.report import evidence, words
from fedaudit.report.deciding.clients import highest_auc
from fedaudit.report.deciding.epsilons import shown_bounds
from fedaudit.report.grid import shortened
from fedaudit.report.text.clusters import clustered_of, label_of, riskiest
from fedaudit.report.text.points import (
    behind_mechanism,
    epsilon,
    most_right,
    short,
    shown_points,
    without_mechanism,
)
from fedaudit.report.text.sources import on_sources, strongest_on_sources
from fedaudit.report.verdict import (
    WITHHELD,
    figures_by_side,
    unlearning_verdict,
)
from fedaudit.results.doubts import relied_on
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import PointPlayed
from fedaudit.results.metrics import CHANCE_VIOLATIONS, VIOLATIONS
from fedaudit.results.record import Record
from fedaudit.results.unlearning import most_left, unlearning_rows

NO_INTERVAL = "no interval"
NOTHING = "–"
"""Placeholder for a chance level or baseline that a figure does not have."""
_GUESS = 0.5
"""AUC, balanced accuracy and share of games that a guess has."""
_RATE = metric_names.tpr_at(0.01)


class Figure(NamedTuple):
    """One row of the answer.

    Attributes:
        meaning: What the figure is, in a sentence for a reader who has not seen the report.
        value: The measured value.
        interval: Its range with the level of confidence.
        chance: What a guess has.
        baseline: What else the value is compared with.
        attack: Catalogue name of the attack; empty for a figure of no attack.
    """

    meaning: str
    value: str
    interval: str
    chance: str
    baseline: str
    attack: str = ""


def figures_of(record: Record) -> list[Figure]:
    """Return the figures that a record's answer rests on, less those that a control takes back."""
    if record.kind == "games":
        return list(_of_games(record))
    return [
        *_of_members(record),
        *_of_sources(record),
        *_of_clusters(record),
        *_of_epsilon(record),
        *_of_deletion(record),
    ]


def _interval(figure: Estimate) -> str:
    limits = words.interval_of(figure)
    level = words.level_of(figure.method)
    return f"{limits} ({level})" if limits and level else limits or NO_INTERVAL


def _of_members(record: Record) -> Iterator[Figure]:
    for side, every_figure in figures_by_side(record).items():
        figures = relied_on(every_figure)
        auc = evidence.strongest_found(figures, metric_names.AUC) or highest_auc(figures)
        rate = evidence.rate_found(figures) or evidence.strongest(figures, _RATE)
        # An attack's rate at few false alarms may be another attack's than the AUC.
        for figure in (auc, rate):
            if figure is not None:
                yield _of_member(record, figure, figures, side)


def _of_member(record: Record, figure: Estimate, figures: list[Estimate], side: str) -> Figure:
    share = metric_names.rate_of(figure.metric)
    unit = "people" if record.unit == "person" else "members"
    if share is None:
        meaning = "AUC: how often the attack ranks a member above a non-member"
        chance = words.shown(_GUESS, figure.metric)
    else:
        meaning = (
            f"{words.metric_name(figure.metric)}: {unit} found while {words.percent(share)} of "
        )
        meaning += "non-members are wrongly accused"
        chance = words.percent(share)
    labels = figure.labels_alone
    baseline = NOTHING if labels is None else f"{words.number(labels)} from labels alone"
    where = _where(record, figure, figures, side)
    return Figure(
        f"{meaning}. {where}",
        words.value_of(figure),
        _interval(figure),
        chance,
        baseline,
        figure.attack,
    )


def _where(record: Record, figure: Estimate, figures: list[Estimate], side: str) -> str:
    against = words.contrast_meaning(figure.contrast, record.unit)
    mean = figure.note.partition(":")[0] if figure.note.startswith("mean over") else ""
    label = evidence.label_among(figure, figures)
    parts = (side, "" if label in side else label, mean)
    more = "; ".join(part for part in parts if part)
    return f"Attack {shortened(figure.attack, 60)}, against {against}{more and f' ({more})'}."


def _of_sources(record: Record) -> Iterator[Figure]:
    best = strongest_on_sources(on_sources(record))
    if best is None or best.success.doubt:
        return
    attack, mixes = shortened(best.success.attack, 60), words.percent(best.mixes)
    mixes += " (may be too high: earlier version)" * bool(best.older_level)
    yield Figure(
        f"Samples whose client was named. Attack {attack}.",
        words.value_of(best.success),
        _interval(best.success),
        words.percent(best.chance),
        f"{mixes} from label distributions alone",
        best.success.attack,
    )
    yield Figure(
        "The same beyond what the clients' label distributions explain, in percentage points.",
        words.value_of(best.excess),
        _interval(best.excess),
        words.points(0.0),
        NOTHING,
    )


def _of_clusters(record: Record) -> Iterator[Figure]:
    failed = evidence.checks_of(record.controls).failed
    if any(not item.attack for item in failed):
        return
    studies = clustered_of(record)
    for item in studies:
        worst, above, label = riskiest(item), item.mean(VIOLATIONS), label_of(item, studies)
        of = f" ({label})" * bool(label)
        if worst is not None:
            yield Figure(
                f"Risk of the riskiest model{of}: how often an attack tells its training samples "
                "from others.",
                words.value_of(worst),
                _interval(worst),
                words.shown(_GUESS, worst.metric),
                NOTHING,
            )
        if above is not None:
            floor = item.mean(CHANCE_VIOLATIONS)
            total = words.plural(len(item.runs[0].clients), "client")
            yield Figure(
                f"How many of {total} use a model that is riskier than they accept{of}.",
                words.value_of(above),
                _interval(above),
                words.value_of(floor) if floor else NOTHING,
                NOTHING,
            )


_LEAST = "the largest ε that the audit proves, for"


def _of_epsilon(record: Record) -> Iterator[Figure]:
    for bounds in shown_bounds(record):
        assumes = bounds.measured[0].assumes
        yield Figure(
            f"ε at least: {_LEAST} {bounds.unit}{f' {assumes}' * bool(assumes)}.",
            words.value_of(bounds.lead),
            _bound(bounds.lead),
            words.number(0.0),
            bounds.against_claim or NOTHING,
            bounds.lead.attack,
        )


def _bound(figure: Estimate) -> str:
    """Return what a lower bound on epsilon leaves open."""
    level = words.level_of(figure.method)
    most = "; the most this test can show" * evidence.at_ceiling(figure)
    return f"lower limit{f' ({level})' * bool(level)}{most}"


def _of_deletion(record: Record) -> Iterator[Figure]:
    rows = unlearning_rows(record)
    if not rows or unlearning_verdict(record) == WITHHELD:
        return
    row = most_left(rows)
    yield Figure(
        "AUC on the deleted samples after unlearning: what the model still reveals of them. Attack "
        f"{shortened(row.after.attack, 60)}; before deletion {words.value_of(row.before)}.",
        words.value_of(row.after),
        _interval(row.after),
        words.shown(_GUESS, row.after.metric),
        f"{words.value_of(row.retrained)} for a model that never had them",
        row.after.attack,
    )


def _of_games(record: Record) -> Iterator[Figure]:
    every = shown_points(record.games)
    for points in (behind_mechanism(every), without_mechanism(every)):
        if points:
            item = most_right(points)
            adv = item.point.adv
            where = " where the server does best" * (len(points) > 1)
            yield Figure(
                "Games in which the server rightly said whether a record was in the batch"
                f"{where}: {short(item)}.",
                words.percent(adv.value),
                f"{words.interval(adv.low, adv.high, 'accuracy')} (95%)",
                words.percent(_GUESS),
                _budget(item.point),
            )


def _budget(point: PointPlayed) -> str:
    """Return the claimed and the actual epsilon of a point."""
    claimed, actual = point.claimed_epsilon, point.actual_epsilon
    if claimed is None:
        return NOTHING
    real = "has no bound" if actual is None else f"is {epsilon(actual)}"
    return f"ε {epsilon(claimed)} claimed; the actual ε {real}"
