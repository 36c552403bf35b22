"""Comparison of several studies' records: privacy-utility trade-off of each way to train.

A row is a record and a defense in it. It is compared with the undefended row of the same other
settings.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import AUC, rate_of
from fedaudit.plan.optional import NONE, PartSection
from fedaudit.plan.sections import Study
from fedaudit.plan.values import study_from
from fedaudit.results.aggregate import (
    Value,
    Values,
    average_each,
    describe_runs,
    difference,
    further_runs_interval,
    mean_over_seeds,
    restrict_targets,
    seeds_of,
    subtract_figures,
)
from fedaudit.results.comparison import (
    EVERY_ATTACK,
    NOT_SET,
    OF_SEVERAL,
    STRONGEST_ATTACK,
    AttackEntry,
    Comparison,
    Difference,
    FigureEntry,
    Row,
    Source,
)
from fedaudit.results.estimate import NO_DEFENSE, TEST_ACCURACY, Estimate, errors_cancel
from fedaudit.results.guessing import above_chance, mark_doubts, most_frequent_class
from fedaudit.results.older import resolve_older_settings
from fedaudit.results.read import read_comparison
from fedaudit.results.record import Record
from fedaudit.results.tradeoffs import (
    AttackKey,
    Direction,
    Directions,
    average,
    directions_of,
    fronts,
    strongest,
    undefended_base,
)

Part = Literal["inside", "outside", "reference"]
Targets = frozenset[int | None]

_APART = (
    *("name", "about", "hours", "seeds", "defense", "attacks", "attack_set", "shadow"),
    "references",
)
"""Settings that do not distinguish studies."""

_COMPARABLE = ("evaluation", "nobody_is_a_member")
"""Of the settings of figures, those that must agree for figures to be compared."""

NOTHING_COUNTS = "no attack is above chance undefended, so that there is no average"
NO_UNDEFENDED_ROW = "no undefended row shows which attacks count"
NO_SHARED_RUN = "no run has every attack that counts, so that there is no average"


class _AttackFigures(NamedTuple):
    """Figures of a row's record on one attack, contrast and metric.

    Attributes:
        values: Figures by seed and target, those over the record's runs under the seed None.
        note: Why a figure was refused; None if none was.
        above: Targets at which a figure is above guessing, by test and interval.
        by_test: Targets at which the test alone finds it above guessing.
        tested: Whether any figure was tested.
        directions: The attack's direction by the row's own figures, at each target.
        behind: Attacks behind a figure of several, by target.
    """

    values: Values
    note: str | None = None
    above: Targets = frozenset()
    by_test: Targets = frozenset()
    tested: bool = False
    directions: Mapping[int | None, Direction] = {}
    behind: Mapping[int | None, tuple[str, ...]] = {}


_RowFigures = dict[AttackKey, _AttackFigures]
_MISSING = _AttackFigures({})


def compared(records: Sequence[Record], paths: Sequence[str] = ()) -> Comparison:
    """Return differences between studies: attacks, accuracy, who is outside, and the fronts.

    Args:
        records: At least two; the first is the base where no undefended one fits.
        paths: Where the records are, relative to where the comparison will be; may be left out.

    Raises:
        BadInput: Fewer than two records, one of security games, or of people and of samples.
    """
    games = next((record for record in records if record.kind == "games"), None)
    if games is not None:
        raise BadInput(
            f"{games.name[:80]!r} is a record of games, and a comparison is of studies; the points "
            "of games stand side by side in their own report"
        )
    if len(records) < 2:
        raise BadInput(
            f"a comparison needs at least 2 records, got {len(records)}; write a report of the "
            "one record instead"
        )
    if len({record.unit for record in records if record.findings}) > 1:
        raise BadInput(
            "some of these records are audits of people and others of single samples, whose "
            "figures are not one scale; compare those of one unit (audit.unit)"
        )
    records = [mark_doubts(record) for record in records]
    rows = rows_of(records)
    known = [_attack_figures(records[row.source], row.family) for row in rows]
    known = _with_averages(rows, known)
    return Comparison(
        sources=[
            Source(name=record.name, content_hash=record.content_hash, path=path)
            for record, path in zip(records, paths or [""] * len(records), strict=True)
        ],
        rows=rows,
        entries=_entries(rows, known),
        figures=figure_entries(rows, records),
        fronts=fronts(
            rows,
            [{key: one.values for key, one in row.items() if one.values} for row in known],
            [_accuracy(records[row.source], row.family) for row in rows],
            [_inside(row, one) for row, one in zip(rows, known, strict=True)],
        ),
    )


def relative(path: Path, folder: Path) -> str:
    """Return a path as seen from a folder, with forward slashes."""
    return Path(os.path.relpath(path, folder)).as_posix()


def named_records(comparison: Path) -> list[Path]:
    """Return paths of the records of a comparison on disk.

    Raises:
        BadInput: A record is not there any more, or the comparison does not say where it is.
        Damaged: The comparison cannot be read.
    """
    found = []
    for source in read_comparison(comparison).sources:
        path = comparison.parent / source.path
        if not source.path or not path.is_file():
            raise BadInput(
                f"{comparison} is of the record {source.name[:80]!r}, which is not at {path}; put "
                "it there again, or give the records themselves"
            )
        found.append(path)
    return found


def _keys(known: Sequence[_RowFigures]) -> list[AttackKey]:
    """Return what any row has a figure of, and after it what has only ever been refused."""
    every = [(key, one) for row in known for key, one in row.items()]
    valued = [key for key, one in every if one.values]
    return list(dict.fromkeys([*valued, *(key for key, one in every if one.note is not None)]))


def _with_averages(rows: Sequence[Row], known: Sequence[_RowFigures]) -> list[_RowFigures]:
    """Add the mean over the attacks that count, and the strongest attack, to each row.

    A mean is over attacks that every row has, where these are several.
    """
    keys, found = _keys(known), []
    for at, one in enumerate(known):
        undefended = _undefended(rows, at)
        base = {} if undefended is None else known[undefended]
        directions = {key: figures.directions for key, figures in base.items()}
        more: _RowFigures = {}
        for contrast, metric in dict.fromkeys((key.contrast, key.metric) for key in keys):
            own = [key for key in keys if (key.contrast, key.metric) == (contrast, metric)]
            shared = [k for k in own if all(other.get(k, _MISSING).values for other in known)]
            if len(shared) > 1:
                mean, why = average(*_by_attack(shared, one, directions)), None
                if not mean.values:
                    why = NO_SHARED_RUN if mean.attacks else NOTHING_COUNTS
                    why = NO_UNDEFENDED_ROW if undefended is None else why
                key = AttackKey(EVERY_ATTACK, contrast, metric)
                more[key] = _AttackFigures(mean.values, why, behind=mean.attacks)
            best = strongest(*_by_attack(own, one, directions))
            counts = [one.get(key, _MISSING).directions for key in own]
            more[AttackKey(STRONGEST_ATTACK, contrast, metric)] = _AttackFigures(
                best.values,
                above=frozenset(t for by in counts for t, direction in by.items() if direction),
                tested=any(one.get(key, _MISSING).tested for key in own),
                behind=best.attacks,
            )
        found.append(one | more)
    return found


def _by_attack(
    keys: Sequence[AttackKey], known: _RowFigures, directions: Directions
) -> tuple[dict[str, Values], dict[str, Mapping[int | None, Direction]]]:
    return (
        {key.attack: known[key].values for key in keys if key in known and known[key].values},
        {key.attack: directions.get(key, {}) for key in keys},
    )


def _undefended(rows: Sequence[Row], at: int) -> int | None:
    """Return the undefended row of a row's regime, which may be itself; None without one."""
    return at if rows[at].family == NONE else undefended_base(rows, at)


def _entries(rows: Sequence[Row], known: Sequence[_RowFigures]) -> list[AttackEntry]:
    keys, found = _keys(known), list[AttackEntry]()
    references = dict[tuple[int, Targets], None]()

    def add(at: int, part: Part, targets: Targets, bases: Mapping[AttackKey, _RowFigures]) -> None:
        found.extend(_entry(at, part, key, known[at], targets, bases.get(key)) for key in keys)

    for at, row in enumerate(rows):
        within = _inside(row, known[at])
        beyond = _audited(known[at]) - within
        bases = dict[AttackKey, _RowFigures]()
        if row.base is not None:
            same = _undefended(rows, at) == _undefended(rows, row.base)
            # Averages of two regimes are over other attacks, and have no difference.
            bases = {k: known[row.base] for k in keys if same or k.attack != EVERY_ATTACK}
            own = _inside(rows[row.base], known[row.base])
            asked = [part for part in (within, beyond) if part and part != own]
            references |= dict.fromkeys((row.base, part) for part in asked)
        add(at, "inside", within, bases)
        if beyond:
            add(at, "outside", beyond, bases)
    for at, targets in references:
        add(at, "reference", targets, {})
    return found


def _entry(
    row: int,
    part: Part,
    key: AttackKey,
    figures: _RowFigures,
    targets: Targets,
    base: _RowFigures | None,
) -> AttackEntry:
    known = figures.get(key, _MISSING)
    values = restrict_targets(known.values, targets)
    estimate, seen = mean_over_seeds(values), _clients(values)
    note = known.note or ("not in this record" if targets else "no audited client")
    change, before = None, {} if base is None else base.get(key, _MISSING).values
    if estimate is not None:
        change = None if base is None else difference(values, before)
        note = "; ".join(_lacks(values, figures, before if change else None))
    behind = [name for t, names in known.behind.items() if t in seen for name in names]
    by_test = bool(known.by_test & targets)
    return AttackEntry(
        row=row,
        part=part,
        attack=key.attack,
        attacks=list(dict.fromkeys(behind)),
        contrast=key.contrast,
        metric=key.metric,
        value=estimate.value if estimate else None,
        low=estimate.low if estimate else None,
        high=estimate.high if estimate else None,
        method=estimate.method if estimate else "",
        clients=sorted(target for target in targets if target is not None),
        targets=sorted(target for target in (seen or targets) if target is not None),
        seeds=estimate.seeds if estimate else 0,
        above=bool(known.above & targets) if known.tested else None,
        by_test=by_test if known.tested and key.attack not in OF_SEVERAL else None,
        further=estimate.further if estimate else None,
        change=change,
        note=note,
    )


def _clients(values: Values) -> Targets:
    return frozenset(target for by_target in values.values() for target in by_target)


def _lacks(values: Values, known: _RowFigures, base: Values | None) -> Iterator[str]:
    """Yield the runs that a row has and a figure lacks, and the clients that its change lacks."""
    clients = _clients(values)
    every = {seed for one in known.values() for seed in one.values if seed is not None}
    counts = sorted({len(seeds_of(values, target)) for target in clients})
    if 0 < counts[0] < len(every):
        fewest, most = counts[0], counts[-1]
        number = f"{fewest}" if fewest == most else f"{fewest} to {most}, by client,"
        yield f"over {number} of {len(every)} runs: the others lack it"
    paired = {
        target
        for target in clients
        if base is not None and seeds_of(values, target) & seeds_of(base, target)
    }
    if base is not None and paired < clients:
        names = ", ".join(f"{target}" for target in sorted(t for t in paired if t is not None))
        yield f"the change is over client{'s' * (len(paired) > 1)} {names} alone"


def rows_of(records: Sequence[Record]) -> list[Row]:
    """Return a row for each record and each defense in it, in the order given.

    A row with a defense is compared with the undefended row of the same other settings, and with
    the first row where there is none; a row without a defense with the first row.
    """
    studies = [_study(record) for record in records]
    flat = [dict(_leaves(_apart(record, s))) for record, s in zip(records, studies, strict=True)]
    differing = _differing(flat)
    rows: list[Row] = []
    for place, (record, study) in enumerate(zip(records, studies, strict=True)):
        settings = {name: flat[place].get(name, NOT_SET) for name in differing}
        guess = most_frequent_class(record)
        rows += [
            _row(place, defense, study, settings).model_copy(update={"guess": guess})
            for defense in defenses_of(record)
        ]
    return [row.model_copy(update={"base": _base(rows, at)}) for at, row in enumerate(rows)]


def defenses_of(record: Record) -> list[str]:
    """Return names of the defenses that a record has figures of, no defense first."""
    named = [figure.defense for figure in record.findings if _is_compared(figure)]
    named += [one.defense for one in record.where(topic="utility")]
    found = list(dict.fromkeys(name or NONE for name in named))
    return sorted(found, key=lambda name: name != NONE) or [NONE]


def defended(study: Study) -> tuple[int, ...] | None:
    """Return the clients that use a defense; None if all do, or none."""
    clients = study.partition.clients
    used = [group.clients for group in study.defense.groups(clients) if group.parts]
    users = {client for group in used for client in group}
    return tuple(sorted(users)) if 0 < len(users) < clients else None


def _row(place: int, defense: str, study: Study | None, settings: dict[str, str]) -> Row:
    own = None if study is None or study.defense.label != defense else study
    users = None if own is None else defended(own)
    return Row(
        source=place,
        defense=defense if own is None else _in_words(own),
        family=defense,
        coalition=None if users is None else list(users),
        clients=0 if study is None else study.partition.clients,
        settings=settings,
    )


def _in_words(study: Study) -> str:
    """Return all defenses with their settings: "gradient-noise (sigma 0.01) + mixup"."""
    groups = study.defense.groups(study.partition.clients)
    parts = [" + ".join(_part(part) for part in group.parts) for group in groups]
    named = ", ".join(dict.fromkeys(part for part in parts if part))
    return "; ".join([named, *_undefended_models(study)]) if named else NONE


def _undefended_models(study: Study) -> Iterator[str]:
    """Name the models of the adversary that train without the defense, which may miss a leak."""
    for name, given in (("shadow", study.shadow), ("references", study.references)):
        if given is not None and given.defense == "none":
            yield f"undefended {name}"


def _part(part: PartSection) -> str:
    options = ", ".join(f"{name.replace('_', ' ')} {v}" for name, v in part.options.items())
    return f"{part.name} ({options})" if options else part.name


def _base(rows: Sequence[Row], at: int) -> int | None:
    """Return the row that a row is compared with: its undefended twin, or else the first.

    The twin of a defended row has its other settings, and is of the same record if one is.
    """
    row = rows[at]
    twins = [
        place
        for place, other in enumerate(rows)
        if row.family != NONE and other.family == NONE and other.settings == row.settings
    ]
    first = 0 if at else None
    return min(twins, key=lambda place: rows[place].source != row.source, default=first)


def _study(record: Record) -> Study | None:
    """Return the study of a record; None if its settings are not this program's."""
    try:
        return study_from(resolve_older_settings(record.config))
    except BadInput:
        return None


def _apart(record: Record, study: Study | None) -> dict[str, object]:
    """Return settings that distinguish studies, without words, seeds, attacks and defenses."""
    values = dict(record.config) if study is None else study.model_dump(mode="json")
    figures = values.get("figures")
    if isinstance(figures, dict):
        values["figures"] = {name: figures[name] for name in _COMPARABLE if name in figures}
    audit = values.get("audit")
    if isinstance(audit, dict):
        # Further samples, of which no figure of membership knows.
        values["audit"] = {name: one for name, one in audit.items() if name != "sources"}
    return {name: value for name, value in values.items() if name not in _APART}


def _leaves(value: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield settings by dotted name, as short texts."""
    for name, part in value.items():
        if isinstance(part, dict) and part:
            yield from _leaves(part, f"{above}{name}.")
        else:
            yield f"{above}{name}", part if isinstance(part, str) else json.dumps(part)


def _differing(flat: Sequence[Mapping[str, str]]) -> list[str]:
    names = dict.fromkeys(name for settings in flat for name in settings)
    return [name for name in names if len({settings.get(name) for settings in flat}) > 1]


def _is_compared(figure: Estimate) -> bool:
    """Return True for an attack's AUC or rate on one client, or over all in records without these.

    Figures over pooled clients would count each client twice.
    """
    rate = figure.metric == AUC or figure.metric.startswith("tpr@")
    return bool(figure.attack) and rate and figure.within != "client"


def _audited(known: _RowFigures) -> Targets:
    """Return all clients that a row has figures of."""
    return frozenset().union(*(_clients(one.values) for one in known.values()))


def _inside(row: Row, known: _RowFigures) -> Targets:
    """Return audited clients that a row's defense is of; all if it has none, or all use it."""
    targets = _audited(known)
    return targets if row.coalition is None else targets.intersection(row.coalition)


def _attack_figures(record: Record, family: str) -> _RowFigures:
    """Return the figures of attacks that a record has of a defense, what has a value first."""
    own = [f for f in record.findings if _is_compared(f) and (f.defense or NO_DEFENSE) == family]
    # Differences between clients are part of a comparison that no fair draw made.
    own = [figure for figure in own if figure.fair] or own
    # Figures over seeds make a family of tests of their own.
    over_seeds = any(figure.seed is None for figure in own)
    single = [figure for figure in own if figure.seed is not None] or own
    refused = [figure for figure in single if figure.value is None]
    groups: dict[AttackKey, list[Estimate]] = {}
    for figure in [*(figure for figure in own if figure.value is not None), *refused]:
        key = AttackKey(figure.attack, figure.contrast, figure.metric)
        groups.setdefault(key, []).append(figure)
    found, directions = _RowFigures(), directions_of(own)
    for key, figures in groups.items():
        values: dict[int | None, dict[int | None, Value]] = {}
        tested = []
        for figure in figures:
            if figure.value is not None:
                values.setdefault(figure.seed, {})[figure.target] = _value(figure)
                if figure.significant is not None and over_seeds == (figure.seed is None):
                    tested.append(figure)
        found[key] = _AttackFigures(
            values=values,
            note=next((figure.note for figure in figures if figure.value is None), None),
            above=frozenset(figure.target for figure in tested if above_chance(figure)),
            by_test=frozenset(figure.target for figure in tested if figure.significant),
            tested=bool(tested),
            directions=directions.get(key, {}),
        )
    return found


def _value(figure: Estimate) -> Value:
    is_rate = rate_of(figure.metric) is not None
    low = figure.low
    if low is None and figure.high is not None and is_rate:
        # Of a rate with too few non-members for any other, which holds as well.
        low = 0.0
    return Value(figure.number, low, figure.high, figure.method, not is_rate)


def _accuracy(record: Record, defense: str) -> Values:
    return {
        one.seed: {None: Value(one.value, one.low, one.high, one.method)}
        for one in record.where(topic="utility", metric=TEST_ACCURACY)
        if one.value is not None and (one.defense or NO_DEFENSE) == defense
    }


class _OverRuns(NamedTuple):
    """A figure over runs, and of each."""

    whole: Estimate
    runs: Sequence[Estimate]


_figure_key = attrgetter("topic", "attack", "metric", "against", "group", "contrast")
"""Coordinates of a figure within a row; of several views of a record the first counts."""


def figure_entries(rows: Sequence[Row], records: Sequence[Record]) -> list[FigureEntry]:
    """Return test accuracy, and figures of sources and clusters, with changes paired by seed.

    Args:
        rows: Of the comparison.
        records: Its records.
    """
    figures = [_over_runs(records[row.source], row.family) for row in rows]
    found = []
    for at, row in enumerate(rows):
        base: Mapping[object, _OverRuns] = {} if row.base is None else figures[row.base]
        for key, one in figures[at].items():
            change = None
            if key in base and not one.whole.against:
                change = (
                    paired_change(one.whole, base[key].whole, one.runs, base[key].runs)
                    if one.whole.topic == "clusters"
                    else difference(_by_seed(one.runs), _by_seed(base[key].runs))
                )
            found.append(FigureEntry(row=at, figure=one.whole, runs=len(one.runs), change=change))
    return found


def _over_runs(record: Record, family: str) -> dict[object, _OverRuns]:
    utility = record.where(topic="utility", metric=TEST_ACCURACY)
    own = [
        one
        for one in (*utility, *record.on_sources, *record.where(topic="clusters"))
        if (one.defense or NO_DEFENSE) == family
    ]
    wholes = [
        *average_each([one for one in own if one.topic == "utility"]),
        *(one for one in own if one.seed is None),
    ]
    found: dict[object, _OverRuns] = {}
    for whole in wholes:
        key = _figure_key(whole)
        runs = [one for one in own if one.seed is not None and _figure_key(one) == key]
        found.setdefault(key, _OverRuns(whole, [one for one in runs if one.view == whole.view]))
    return found


def _by_seed(runs: Sequence[Estimate]) -> Values:
    """Return the values of runs by seed; the one target is None."""
    return {
        run.seed: {None: Value(run.value, run.low, run.high, run.method, errors_cancel(run.metric))}
        for run in runs
        if run.value is not None
    }


def paired_change(
    mean: Estimate, base: Estimate, runs: Sequence[Estimate], before: Sequence[Estimate]
) -> Difference | None:
    """Return a figure less that of another study of the same seeds; None without a seed of both.

    Two runs of one seed deal the same data to the same groups and begin with the same models, so
    that the luck of the draw falls out of their difference.

    Args:
        mean: The figure over its runs.
        base: The same figure of the other study.
        runs: The figure of each run.
        before: Of each run of the other study.
    """
    values = {one.seed: one.number for one in before}
    gaps = [one.number - values[one.seed] for one in runs if one.seed in values]
    if not gaps:
        return None
    if not len(gaps) == len(runs) == len(before):
        # The limits of either are over runs that the other does not have.
        method = f"over the {len(gaps)} runs that both have"
        further = further_runs_interval(gaps) if len(gaps) > 1 else None
        return Difference(
            value=fmean(gaps), low=None, high=None, method=method, runs=len(gaps), further=further
        )
    here = subtract_figures(
        Value(mean.number, mean.low, mean.high, ""), Value(base.number, base.low, base.high, "")
    )
    how = "limits combined, " * (here.low is not None)
    these = None if here.low is None or here.high is None else (here.low, here.high)
    return Difference(
        value=fmean(gaps),
        low=here.low,
        high=here.high,
        method=f"{how}one seed" if len(gaps) == 1 else f"{how}over {describe_runs(len(gaps))}",
        runs=len(gaps),
        further=further_runs_interval(gaps, these=these) if len(gaps) > 1 else None,
    )
