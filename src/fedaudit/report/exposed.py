"""The members that attacks single out, each sample once, with how many attacks agree."""

from collections.abc import Sequence

from fedaudit.report.choosing import above_chance_attacks, distinct
from fedaudit.report.grid import Cell, Grid, columns_of, named, shortened, without_constants
from fedaudit.report.names import defense_name
from fedaudit.report.reading import ExposedSample, Record
from fedaudit.report.words import MISSING, count, listed, percent, plural

MOST_SAMPLES = 20
"""Rows that are shown at most; the record has them all."""

MOST_NAMED = 3
"""Attacks that are named in a row; the number of all of them stands before."""


def exposed_table(record: Record) -> Grid | None:
    """The members that attacks above guessing list, those first on which most of them agree.

    None where the record lists none, or no attack is above guessing: then a list of those who
    score highest is what chance gives.
    """
    trusted = _trusted(record)
    if not trusted:
        return None
    samples: dict[tuple[str, int, int, int], list[ExposedSample]] = {}
    for one in trusted:
        key = (one.defense, one.target, one.sample, one.label)
        samples.setdefault(key, []).append(one)
    sizes = _nonmembers(record)
    ordered = sorted(samples.values(), key=_rank)
    rows = [_row(record, same, sizes) for same in ordered[:MOST_SAMPLES]]
    numeric = ("Attacks that list it", "Non-members as high or higher")
    columns = columns_of(
        "Sample", "Class", "Defense", "Target", "Seeds", *numeric, "Which", numeric=numeric
    )
    left = len(ordered) - len(rows)
    remark = f" {plural(left, 'further sample')} stand in the record." if left else ""
    grid = Grid("Most exposed samples", columns, tuple(rows), remark=remark.strip())
    return without_constants(grid, ("Class", "Seeds", *numeric, "Which"))


def exposed_note(record: Record) -> str:
    """What the list is of, and which attacks had no say in it."""
    if not record.exposed:
        return ""
    trusted = distinct(one.attack for one in _trusted(record))
    others = [name for name in distinct(e.attack for e in record.exposed) if name not in trusted]
    if not trusted:
        return (
            "No attack is above guessing here. Each still has members that score highest, but "
            "such a list is what chance gives, and none is shown."
        )
    several = len({one.seed for one in record.exposed}) > 1
    anew = (
        " Audited members are drawn anew for each seed, so that few can be listed in several."
        if several
        else ""
    )
    without = f" {_names(others)} had no say, being not above guessing." if others else ""
    return (
        "Members whose scores stand out most: averages can be low while these are named with "
        f"confidence. Each attack lists its highest-scoring members of a seed ({_names(trusted)}); "
        f"first stand the samples on which most of them agree.{anew}{without}"
    )


def _names(attacks: Sequence[str]) -> str:
    return listed([shortened(name) for name in attacks])


def _trusted(record: Record) -> list[ExposedSample]:
    above = above_chance_attacks(record)
    return [one for one in record.exposed if (one.attack, one.defense, one.target) in above]


_Sizes = dict[tuple[str, str, int | None, int | None], int]


def _nonmembers(record: Record) -> _Sizes:
    """How many non-members each list was held against: all of a run, of both kinds."""
    found: _Sizes = {}
    for figure in record.findings:
        place = (figure.attack, figure.defense, figure.target, figure.seed)
        if figure.metric == "auc":
            found[place] = max(found.get(place, 0), figure.n_nonmembers)
    return found


def _size(one: ExposedSample, sizes: _Sizes) -> int:
    return sizes.get((one.attack, one.defense, one.target, one.seed), 0)


def _rank(same: Sequence[ExposedSample]) -> tuple[int, float, int]:
    agreeing = len({one.attack for one in same})
    return -agreeing, 1 - max(one.above_nonmembers for one in same), same[0].sample


def _row(record: Record, same: Sequence[ExposedSample], sizes: _Sizes) -> tuple[Cell, ...]:
    best = max(same, key=lambda one: one.above_nonmembers)
    attacks = distinct(one.attack for one in sorted(same, key=lambda o: -o.above_nonmembers))
    asked = {e.attack for e in _trusted(record) if e.defense == best.defense}
    more = f" and {len(attacks) - MOST_NAMED} more" if len(attacks) > MOST_NAMED else ""
    return (
        Cell(f"Sample {best.sample}"),
        Cell(str(best.label)),
        named(defense_name(best.defense)),
        Cell(f"client {best.target}"),
        Cell(", ".join(str(seed) for seed in sorted({one.seed for one in same}))),
        Cell(f"{len(attacks)} of {len(asked)}"),
        _above(best, _size(best, sizes)),
        Cell(shortened(", ".join(attacks[:MOST_NAMED]), 100) + more),
    )


def _above(best: ExposedSample, nonmembers: int) -> Cell:
    """By the attack that singles it out most: a count, which a share near 1 does not show."""
    if not nonmembers:
        return Cell(percent(1 - best.above_nonmembers) if best.above_nonmembers < 1 else MISSING)
    higher = round((1 - best.above_nonmembers) * nonmembers)
    return Cell(f"{count(higher)} of {count(nonmembers)}")
