"""From the records of several studies to what a defense buys, for whom and at what cost."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from fedaudit.errors import BadInput
from fedaudit.study.compared import (
    EVERY_ATTACK,
    Accuracy,
    Comparison,
    Entry,
    Row,
    Source,
)
from fedaudit.study.defense_section import NONE
from fedaudit.study.differences import (
    Value,
    Values,
    difference,
    estimated,
    reduced,
    restricted,
)
from fedaudit.study.fronts import fronts
from fedaudit.study.guessing import above_chance
from fedaudit.study.reading import read_comparison
from fedaudit.study.record import Figure, Record
from fedaudit.study.rows import is_compared, rows_of

Part = Literal["inside", "outside", "reference"]


class Key(NamedTuple):
    """What a figure is of, within a row."""

    attack: str
    contrast: str
    metric: str


class Known(NamedTuple):
    """All that a row's record says of attacks and accuracy.

    Attributes:
        values: Figures by seed and target.
        notes: Why a figure was refused.
        above: Targets at which a figure is above guessing, by test and interval.
        by_test: Targets at which the test alone finds it above guessing.
        tested: Figures that were tested at all.
        accuracy: Test accuracy by seed; its one target is None.
    """

    values: Mapping[Key, Values]
    notes: Mapping[Key, str]
    above: Mapping[Key, set[int | None]]
    by_test: Mapping[Key, set[int | None]]
    tested: set[Key]
    accuracy: Values


def compared(records: Sequence[Record], paths: Sequence[str] = ()) -> Comparison:
    """What changes between studies: attacks, accuracy, who is outside, and the fronts.

    Args:
        records: At least two; the first is the base where no undefended one fits.
        paths: Where the records are, relative to where the comparison will be; may be left out.

    Raises:
        BadInput: Fewer than two records.
    """
    if len(records) < 2:
        raise BadInput(
            f"a comparison needs at least 2 records, got {len(records)}; write a report of the "
            "one record instead"
        )
    rows = rows_of(records)
    known = [_known(records[row.source], row) for row in rows]
    keys = _keys(known)
    means = _means(known, keys)
    known = [
        one._replace(values={**one.values, **mean}) for one, mean in zip(known, means, strict=True)
    ]
    keys += means[0]
    return Comparison(
        sources=[
            Source(name=record.name, content_hash=record.content_hash, path=path)
            for record, path in zip(records, paths or [""] * len(records), strict=True)
        ],
        rows=rows,
        entries=_entries(rows, known, keys),
        accuracies=_accuracies(rows, known),
        fronts=fronts(
            rows,
            [{(k.attack, k.contrast, k.metric): v for k, v in one.values.items()} for one in known],
            [one.accuracy for one in known],
            [inside(row, one.values) for row, one in zip(rows, known, strict=True)],
        ),
    )


def relative(path: Path, folder: Path) -> str:
    """A path as seen from a folder, with forward slashes."""
    return Path(os.path.relpath(path, folder)).as_posix()


def named_records(comparison: Path) -> list[Path]:
    """Where the records of a comparison on disk are.

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


def audited(values: Mapping[Key, Values]) -> set[int | None]:
    """All clients that a row has figures of."""
    return {t for by_seed in values.values() for by in by_seed.values() for t in by}


def inside(row: Row, values: Mapping[Key, Values]) -> set[int | None]:
    """Audited clients that a row's defense is of; all where it has none, or all use it."""
    targets = audited(values)
    return targets if row.coalition is None else targets.intersection(row.coalition)


def _known(record: Record, row: Row) -> Known:
    own = [f for f in record.findings if is_compared(f) and (f.defense or NONE) == row.family]
    single = [figure for figure in own if figure.seed is not None] or own
    tested = [f for f in _most_summarised(own) if f.value is not None and f.significant is not None]
    return Known(
        values=_values(single),
        notes=_notes(single),
        above=_targets(figure for figure in tested if above_chance(figure)),
        by_test=_targets(figure for figure in tested if figure.significant),
        tested={_key(figure) for figure in tested},
        accuracy=_accuracy(record, row.family),
    )


def _key(figure: Figure) -> Key:
    return Key(figure.attack, figure.contrast, figure.metric)


def _targets(figures: Iterable[Figure]) -> dict[Key, set[int | None]]:
    found: dict[Key, set[int | None]] = {}
    for figure in figures:
        found.setdefault(_key(figure), set()).add(figure.target)
    return found


def _values(figures: Sequence[Figure]) -> dict[Key, Values]:
    found: dict[Key, dict[int | None, dict[int | None, Value]]] = {}
    for figure in figures:
        if figure.value is not None:
            value = Value(figure.value, figure.low, figure.high, figure.method)
            by_seed = found.setdefault(_key(figure), {})
            by_seed.setdefault(figure.seed, {})[figure.target] = value
    return dict(found)


def _notes(figures: Sequence[Figure]) -> dict[Key, str]:
    """Why figures were refused; of several reasons the first."""
    found: dict[Key, str] = {}
    for figure in figures:
        if figure.value is None:
            found.setdefault(_key(figure), figure.note)
    return found


def _keys(known: Sequence[Known]) -> list[Key]:
    """Everything that a row has a figure of, and after it what has only ever been refused."""
    valued = [key for one in known for key in one.values]
    return list(dict.fromkeys([*valued, *(key for one in known for key in one.notes)]))


def _most_summarised(figures: Sequence[Figure]) -> list[Figure]:
    """Figures over seeds where there are any: they make a family of tests of their own."""
    return [figure for figure in figures if figure.seed is None] or list(figures)


def _accuracy(record: Record, defense: str) -> Values:
    return {
        result.seed: {
            None: Value(
                result.test_accuracy, result.test_low, result.test_high, "Clopper-Pearson 95%"
            )
        }
        for result in record.utility
        if (result.defense or NONE) == defense
    }


def _means(known: Sequence[Known], keys: Sequence[Key]) -> list[dict[Key, Values]]:
    """For each row the mean over those attacks that every row has, where they are several."""
    shared: dict[Key, list[Key]] = {}
    for key in keys:
        parts = shared.setdefault(Key(EVERY_ATTACK, key.contrast, key.metric), [])
        if all(key in one.values for one in known):
            parts.append(key)
    return [
        {
            mean: reduced([one.values[part] for part in parts], fmean)
            for mean, parts in shared.items()
            if len(parts) > 1
        }
        for one in known
    ]


def _entries(rows: Sequence[Row], known: Sequence[Known], keys: Sequence[Key]) -> list[Entry]:
    found, references = [], dict[tuple[int, frozenset[int | None]], None]()
    for at, (row, one) in enumerate(zip(rows, known, strict=True)):
        within = inside(row, one.values)
        beyond = audited(one.values) - within
        base = None if row.base is None else known[row.base]
        found += [_entry(at, "inside", key, one, within, base) for key in keys]
        if beyond:
            found += [_entry(at, "outside", key, one, beyond, base) for key in keys]
        if row.base is not None:
            own = inside(rows[row.base], known[row.base].values)
            asked = [frozenset(part) for part in (within, beyond) if part and part != own]
            references |= dict.fromkeys((row.base, part) for part in asked)
    for at, targets in references:
        found += [_entry(at, "reference", key, known[at], set(targets), None) for key in keys]
    return found


def _entry(
    row: int, part: Part, key: Key, known: Known, targets: set[int | None], base: Known | None
) -> Entry:
    values = restricted(known.values.get(key, {}), targets)
    estimate = estimated(values)
    note, tested = known.notes.get(key, ""), key in known.tested
    if estimate is None and not note:
        note = "no audited client" if not targets else "not in this record"
    change = None
    if base is not None and estimate is not None:
        change = difference(values, base.values.get(key, {}))
    seen = {target for by_target in values.values() for target in by_target}
    return Entry(
        row=row,
        part=part,
        attack=key.attack,
        contrast=key.contrast,
        metric=key.metric,
        value=estimate and estimate.value,
        low=estimate and estimate.low,
        high=estimate and estimate.high,
        method=estimate.method if estimate else "",
        targets=sorted(target for target in (targets or seen) if target is not None),
        seeds=estimate.seeds if estimate else 0,
        above=bool(known.above.get(key, set()) & targets) if tested else None,
        by_test=bool(known.by_test.get(key, set()) & targets) if tested else None,
        change=change,
        note=note if estimate is None else "",
    )


def _accuracies(rows: Sequence[Row], known: Sequence[Known]) -> list[Accuracy]:
    found = []
    for at, (row, one) in enumerate(zip(rows, known, strict=True)):
        estimate = estimated(one.accuracy)
        if estimate is None:
            continue
        base = None if row.base is None else known[row.base].accuracy
        found.append(
            Accuracy(
                row=at,
                value=estimate.value,
                low=estimate.low,
                high=estimate.high,
                method=estimate.method,
                seeds=estimate.seeds,
                change=None if base is None else difference(one.accuracy, base),
            )
        )
    return found
