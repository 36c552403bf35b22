"""Comparison of several studies' records: privacy-utility trade-off of each way to train.

A row is a record and a defense in it; it is held against the undefended row of the same other
settings.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import AUC, rate_of
from fedaudit.results.aggregate import (
    Value,
    Values,
    difference,
    estimated,
    restricted,
    runs_of,
)
from fedaudit.results.averages import (
    AttackKey,
    Average,
    Direction,
    Directions,
    average,
    directions_of,
    strongest,
)
from fedaudit.results.compare_figures import figure_entries
from fedaudit.results.comparison import (
    EVERY_ATTACK,
    NOT_SET,
    OF_SEVERAL,
    STRONGEST_ATTACK,
    AttackEntry,
    Comparison,
    Row,
    Source,
)
from fedaudit.results.doubts import with_doubts
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.fronts import fronts, undefended_base
from fedaudit.results.guessing import above_chance, most_frequent_class
from fedaudit.results.metrics import TEST_ACCURACY
from fedaudit.results.older import settled
from fedaudit.results.read import read_comparison
from fedaudit.results.record import Record
from fedaudit.study.settings.defense import NONE, PartSection
from fedaudit.study.settings.sections import Study
from fedaudit.study.settings.values import study_from

Part = Literal["inside", "outside", "reference"]


_APART = (
    "name",
    "about",
    "hours",
    "seeds",
    "defense",
    "attacks",
    "attack_set",
    "shadow",
    "references",
)

_COMPARABLE = ("evaluation", "nobody_is_a_member")
"""Of the settings of figures, those that must agree for figures to be compared."""


class _FigureIndex(NamedTuple):
    """All that a row's record says of attacks and accuracy.

    Attributes:
        values: Figures by seed and target, those over the record's runs under the seed None.
        notes: Why a figure was refused.
        above: Targets at which a figure is above guessing, by test and interval.
        by_test: Targets at which the test alone finds it above guessing.
        tested: Figures that were tested at all.
        accuracy: Test accuracy by seed; its one target is None.
        directions: Each attack's direction by the row's own figures.
        behind: Attacks behind a figure of several, by target.
    """

    values: Mapping[AttackKey, Values]
    notes: Mapping[AttackKey, str]
    above: Mapping[AttackKey, set[int | None]]
    by_test: Mapping[AttackKey, set[int | None]]
    tested: set[AttackKey]
    accuracy: Values
    directions: Directions
    behind: Mapping[AttackKey, Mapping[int | None, tuple[str, ...]]] = {}


def compared(records: Sequence[Record], paths: Sequence[str] = ()) -> Comparison:
    """Differences between studies: attacks, accuracy, who is outside, and the fronts.

    Args:
        records: At least two; the first is the base where no undefended one fits.
        paths: Where the records are, relative to where the comparison will be; may be left out.

    Raises:
        BadInput: Fewer than two records, one of security games, or people beside samples.
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
    records = [with_doubts(record) for record in records]
    rows = rows_of(records)
    known = [_figure_index_of(records[row.source], row) for row in rows]
    known = _with_averages(rows, known)
    keys = _keys(known)
    return Comparison(
        sources=[
            Source(name=record.name, content_hash=record.content_hash, path=path)
            for record, path in zip(records, paths or [""] * len(records), strict=True)
        ],
        rows=rows,
        entries=_entries(rows, known, keys),
        figures=figure_entries(rows, records),
        fronts=fronts(
            rows,
            [{(k.attack, k.contrast, k.metric): v for k, v in one.values.items()} for one in known],
            [one.accuracy for one in known],
            [_inside(row, one.values) for row, one in zip(rows, known, strict=True)],
        ),
    )


def relative(path: Path, folder: Path) -> str:
    """A path as seen from a folder, with forward slashes."""
    return Path(os.path.relpath(path, folder)).as_posix()


def named_records(comparison: Path) -> list[Path]:
    """Paths of the records of a comparison on disk.

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


def _keys(known: Sequence[_FigureIndex]) -> list[AttackKey]:
    """Everything that a row has a figure of, and after it what has only ever been refused."""
    valued = [key for one in known for key in one.values]
    return list(dict.fromkeys([*valued, *(key for one in known for key in one.notes)]))


NOTHING_COUNTS = "no attack is above chance undefended, so that there is no average"
NO_UNDEFENDED_ROW = "no undefended row shows which attacks count"
NO_SHARED_RUN = "no run has every attack that counts, so that there is no average"


def _with_averages(rows: Sequence[Row], known: Sequence[_FigureIndex]) -> list[_FigureIndex]:
    """Add the mean over the attacks that count, and the strongest attack, to each row.

    A mean is over attacks that every row has, where these are several.
    """
    keys = _keys(known)
    found = []
    for at, one in enumerate(known):
        undefended = _undefended(rows, at)
        directions = {} if undefended is None else known[undefended].directions
        values, notes, behind = dict(one.values), dict(one.notes), dict(one.behind)
        above, tested = dict(one.above), set(one.tested)
        for contrast, metric in dict.fromkeys((key.contrast, key.metric) for key in keys):
            own = [key for key in keys if (key.contrast, key.metric) == (contrast, metric)]
            shared = [key for key in own if all(key in other.values for other in known)]
            parts: dict[str, Average] = {}
            if len(shared) > 1:
                parts[EVERY_ATTACK] = average(*_by_attack(shared, one, directions))
            parts[STRONGEST_ATTACK] = strongest(*_by_attack(own, one, directions))
            for attack, made in parts.items():
                key = AttackKey(attack, contrast, metric)
                behind[key] = made.attacks
                if made.values:
                    values[key] = made.values
                elif attack == EVERY_ATTACK:
                    why = NO_SHARED_RUN if made.attacks else NOTHING_COUNTS
                    notes[key] = NO_UNDEFENDED_ROW if undefended is None else why
            if any(key in one.tested for key in own):
                best = AttackKey(STRONGEST_ATTACK, contrast, metric)
                counts = [one.directions.get(key, {}) for key in own]
                above[best] = {t for by in counts for t, direction in by.items() if direction}
                tested.add(best)
        found.append(
            one._replace(values=values, notes=notes, behind=behind, above=above, tested=tested)
        )
    return found


def _by_attack(
    keys: Sequence[AttackKey], known: _FigureIndex, directions: Directions
) -> tuple[dict[str, Values], dict[str, Mapping[int | None, Direction]]]:
    return (
        {key.attack: known.values[key] for key in keys if key in known.values},
        {key.attack: directions.get(key, {}) for key in keys},
    )


def _undefended(rows: Sequence[Row], at: int) -> int | None:
    """Return the undefended row of a row's regime, which may be itself; None without one."""
    return at if rows[at].family == NONE else undefended_base(rows, at)


def _entries(
    rows: Sequence[Row], known: Sequence[_FigureIndex], keys: Sequence[AttackKey]
) -> list[AttackEntry]:
    found, references = [], dict[tuple[int, frozenset[int | None]], None]()
    for at, (row, one) in enumerate(zip(rows, known, strict=True)):
        within = _inside(row, one.values)
        beyond = _audited(one.values) - within
        base = None if row.base is None else known[row.base]
        same = row.base is not None and _undefended(rows, at) == _undefended(rows, row.base)
        # Averages of two regimes are over other attacks, and have no difference.
        bases = {key: base if same or key.attack != EVERY_ATTACK else None for key in keys}
        found += [_entry(at, "inside", key, one, within, bases[key]) for key in keys]
        if beyond:
            found += [_entry(at, "outside", key, one, beyond, bases[key]) for key in keys]
        if row.base is not None:
            own = _inside(rows[row.base], known[row.base].values)
            asked = [frozenset(part) for part in (within, beyond) if part and part != own]
            references |= dict.fromkeys((row.base, part) for part in asked)
    for at, targets in references:
        found += [_entry(at, "reference", key, known[at], set(targets), None) for key in keys]
    return found


def _entry(
    row: int,
    part: Part,
    key: AttackKey,
    known: _FigureIndex,
    targets: set[int | None],
    base: _FigureIndex | None,
) -> AttackEntry:
    values = restricted(known.values.get(key, {}), targets)
    estimate = estimated(values)
    note, tested = known.notes.get(key, ""), key in known.tested
    if estimate is None and not note:
        note = "no audited client" if not targets else "not in this record"
    change, before = None, base.values.get(key, {}) if base is not None else {}
    if base is not None and estimate is not None:
        change = difference(values, before)
    seen = _clients(values)
    if estimate is not None:
        note = "; ".join(_lacks(values, known, before if change else None))
    return AttackEntry(
        row=row,
        part=part,
        attack=key.attack,
        attacks=_behind(known.behind.get(key, {}), seen),
        contrast=key.contrast,
        metric=key.metric,
        value=estimate.value if estimate else None,
        low=estimate.low if estimate else None,
        high=estimate.high if estimate else None,
        method=estimate.method if estimate else "",
        clients=sorted(target for target in targets if target is not None),
        targets=sorted(target for target in (seen or targets) if target is not None),
        seeds=estimate.seeds if estimate else 0,
        above=bool(known.above.get(key, set()) & targets) if tested else None,
        by_test=bool(known.by_test.get(key, set()) & targets)
        if tested and key.attack not in OF_SEVERAL
        else None,
        further=estimate.further if estimate else None,
        change=change,
        note=note,
    )


def _clients(values: Values) -> set[int | None]:
    return {target for by_target in values.values() for target in by_target}


def _lacks(values: Values, known: _FigureIndex, base: Values | None) -> Iterator[str]:
    """Yield the runs that a row has and a figure lacks, and the clients that its change lacks.

    Args:
        values: The figure.
        known: All figures of the row.
        base: The figure that it changed from; None without a change.
    """
    clients = _clients(values)
    every = {seed for one in known.values.values() for seed in one if seed is not None}
    counts = sorted({len(runs_of(values, target)) for target in clients})
    if 0 < counts[0] < len(every):
        fewest, most = counts[0], counts[-1]
        number = f"{fewest}" if fewest == most else f"{fewest} to {most}, by client,"
        yield f"over {number} of {len(every)} runs: the others lack it"
    paired = {
        target
        for target in clients
        if base is not None and runs_of(values, target) & runs_of(base, target)
    }
    if base is not None and paired < clients:
        names = ", ".join(f"{target}" for target in sorted(t for t in paired if t is not None))
        yield f"the change is over client{'s' * (len(paired) > 1)} {names} alone"


def _behind(attacks: Mapping[int | None, tuple[str, ...]], targets: set[int | None]) -> list[str]:
    return list(
        dict.fromkeys(name for t, names in attacks.items() if t in targets for name in names)
    )


def rows_of(records: Sequence[Record]) -> list[Row]:
    """A row for each record and each defense in it, in the order given.

    A row with a defense is held against the undefended row of the same other settings, and
    against the first row where there is none; a row without a defense against the first row.
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
    """Names of the defenses that a record has figures of, no defense first."""
    named = [figure.defense for figure in record.findings if _is_compared(figure)]
    named += [one.defense for one in record.where(topic="utility")]
    found = list(dict.fromkeys(name or NONE for name in named))
    return sorted(found, key=lambda name: name != NONE) or [NONE]


def defended(study: Study) -> tuple[int, ...] | None:
    """The clients that use a defense; None where that is all of them, or none of them."""
    clients = study.partition.clients
    used = [group.clients for group in study.defense.groups(clients) if group.parts]
    users = {client for group in used for client in group}
    return tuple(sorted(users)) if 0 < len(users) < clients else None


def _row(place: int, defense: str, study: Study | None, settings: dict[str, str]) -> Row:
    if study is None or study.defense.label != defense:
        clients = 0 if study is None else study.partition.clients
        return Row(
            source=place, defense=defense, family=defense, clients=clients, settings=settings
        )
    users = defended(study)
    return Row(
        source=place,
        defense=_in_words(study),
        family=defense,
        coalition=None if users is None else list(users),
        clients=study.partition.clients,
        settings=settings,
    )


def _in_words(study: Study) -> str:
    """All defenses with their settings: "gradient-noise (sigma 0.01) + mixup"."""
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
    """The row that a row is compared with: its undefended twin, or else the first."""
    twin = _undefended_twin(rows, at)
    if twin is not None:
        return twin
    return None if at == 0 else 0


def _undefended_twin(rows: Sequence[Row], at: int) -> int | None:
    """For a defended row the undefended one of its other settings; of its own record if it can."""
    row = rows[at]
    if row.family == NONE:
        return None
    twins = [
        place
        for place, other in enumerate(rows)
        if other.family == NONE and other.settings == row.settings
    ]
    return min(twins, key=lambda place: rows[place].source != row.source, default=None)


def _study(record: Record) -> Study | None:
    """The study behind a record; None for one whose settings are not this program's."""
    try:
        return study_from(settled(record.config))
    except BadInput:
        return None


def _apart(record: Record, study: Study | None) -> dict[str, object]:
    """Settings that tell studies apart: not words, seeds, attacks, nor what is compared."""
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
    """Settings by dotted name, as short texts."""
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


def _audited(values: Mapping[AttackKey, Values]) -> set[int | None]:
    """All clients that a row has figures of."""
    return {t for by_seed in values.values() for by in by_seed.values() for t in by}


def _inside(row: Row, values: Mapping[AttackKey, Values]) -> set[int | None]:
    """Audited clients that a row's defense is of; all where it has none, or all use it."""
    targets = _audited(values)
    return targets if row.coalition is None else targets.intersection(row.coalition)


def _figure_index_of(record: Record, row: Row) -> _FigureIndex:
    """The figures that a row's record has."""
    own = [
        f for f in record.findings if _is_compared(f) and (f.defense or NO_DEFENSE) == row.family
    ]
    # Differences between clients are part of a comparison that no fair draw made.
    own = [figure for figure in own if figure.fair] or own
    tested = [f for f in _most_summarised(own) if f.value is not None and f.significant is not None]
    return _FigureIndex(
        values=_values(own),
        notes=_notes([f for f in own if f.seed is not None] or own),
        above=_targets(figure for figure in tested if above_chance(figure)),
        by_test=_targets(figure for figure in tested if figure.significant),
        tested={_key(figure) for figure in tested},
        accuracy=_accuracy(record, row.family),
        directions=directions_of(own),
    )


def _key(figure: Estimate) -> AttackKey:
    return AttackKey(figure.attack, figure.contrast, figure.metric)


def _targets(figures: Iterable[Estimate]) -> dict[AttackKey, set[int | None]]:
    found: dict[AttackKey, set[int | None]] = {}
    for figure in figures:
        found.setdefault(_key(figure), set()).add(figure.target)
    return found


def _values(figures: Sequence[Estimate]) -> dict[AttackKey, Values]:
    found: dict[AttackKey, dict[int | None, dict[int | None, Value]]] = {}
    for figure in figures:
        if figure.value is not None:
            cancels = rate_of(figure.metric) is None
            value = Value(figure.value, _least(figure), figure.high, figure.method, cancels)
            by_seed = found.setdefault(_key(figure), {})
            by_seed.setdefault(figure.seed, {})[figure.target] = value
    return dict(found)


def _least(figure: Estimate) -> float | None:
    """The lower limit; 0 of a rate with too few non-members for any other, which holds as well."""
    bounded = figure.low is None and figure.high is not None and rate_of(figure.metric) is not None
    return 0.0 if bounded else figure.low


def _notes(figures: Sequence[Estimate]) -> dict[AttackKey, str]:
    """Reason why figures were refused; of several reasons the first."""
    found: dict[AttackKey, str] = {}
    for figure in figures:
        if figure.value is None:
            found.setdefault(_key(figure), figure.note)
    return found


def _most_summarised(figures: Sequence[Estimate]) -> list[Estimate]:
    """Figures over seeds where there are any: they make a family of tests of their own."""
    return [figure for figure in figures if figure.seed is None] or list(figures)


def _accuracy(record: Record, defense: str) -> Values:
    return {
        one.seed: {None: Value(one.value, one.low, one.high, one.method)}
        for one in record.where(topic="utility", metric=TEST_ACCURACY)
        if one.value is not None and (one.defense or NO_DEFENSE) == defense
    }
