"""From the records of several studies to what a defense buys, for whom and at what cost."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fedaudit.core.errors import BadInput
from fedaudit.results.aggregate import Values, difference, estimated, mean_of, restricted
from fedaudit.results.compare_figures import figure_entries
from fedaudit.results.comparison import EVERY_ATTACK, Comparison, Entry, Row, Source
from fedaudit.results.figure_index import FigureIndex, Key, audited, figure_index_of, inside
from fedaudit.results.fronts import fronts
from fedaudit.results.read import read_comparison
from fedaudit.results.record import Record
from fedaudit.study.rows import rows_of

Part = Literal["inside", "outside", "reference"]


def compared(records: Sequence[Record], paths: Sequence[str] = ()) -> Comparison:
    """Differences between studies: attacks, accuracy, who is outside, and the fronts.

    Args:
        records: At least two; the first is the base where no undefended one fits.
        paths: Where the records are, relative to where the comparison will be; may be left out.

    Raises:
        BadInput: Fewer than two records, or one of security games.
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
    rows = rows_of(records)
    known = [figure_index_of(records[row.source], row) for row in rows]
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
        figures=figure_entries(rows, records),
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


def _keys(known: Sequence[FigureIndex]) -> list[Key]:
    """Everything that a row has a figure of, and after it what has only ever been refused."""
    valued = [key for one in known for key in one.values]
    return list(dict.fromkeys([*valued, *(key for one in known for key in one.notes)]))


def _means(known: Sequence[FigureIndex], keys: Sequence[Key]) -> list[dict[Key, Values]]:
    """For each row the mean over those attacks that every row has, where they are several."""
    shared: dict[Key, list[Key]] = {}
    for key in keys:
        parts = shared.setdefault(Key(EVERY_ATTACK, key.contrast, key.metric), [])
        if all(key in one.values for one in known):
            parts.append(key)
    return [
        {
            mean: mean_of([one.values[part] for part in parts])
            for mean, parts in shared.items()
            if len(parts) > 1
        }
        for one in known
    ]


def _entries(rows: Sequence[Row], known: Sequence[FigureIndex], keys: Sequence[Key]) -> list[Entry]:
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
    row: int,
    part: Part,
    key: Key,
    known: FigureIndex,
    targets: set[int | None],
    base: FigureIndex | None,
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
        further=estimate.further if estimate else None,
        change=change,
        note=note if estimate is None else "",
    )
