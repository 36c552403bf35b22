"""Checks for cells of a table that would probably be misread, such as dates read as numbers."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import compress

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.datasets.tables.columns import Table, TextColumn, is_code, parse_number

_TIME = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?: ?[AaPp][Mm])?"
_DAY = r"[0-9]{4}([-/.])[0-9]{1,2}\1[0-9]{1,2}|[0-9]{1,2}([-/.])[0-9]{1,2}\2(?:[0-9]{4}|[0-9]{2})"
_DATE = re.compile(rf"(?:{_DAY})(?:[ T]{_TIME}(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})?)?|{_TIME}")
_FORMATTED_NUMBER = re.compile(
    r"\(?[+\-\u2212]?\s*[$€£¥]?\s*"
    r"(?:[0-9]{1,3}(?:[ \u00a0\u202f.,'’_][0-9]{3})+|[0-9]+)(?:[.,][0-9]+)?\s*[%‰$€£¥]?\)?"
)
"""A number with a currency, a percent sign, separators of thousands or an accountant's brackets."""
_NUMBER_WITH_UNIT = re.compile(r"([<>~≈≤≥]*) *[+-]?[0-9]+(?:[.,][0-9]+)? *([a-zA-Zµ°/²³]{0,8})")
"""A number with a sign before it, such as <39, or a unit after it, such as 39 kg."""
_NUMBER_WITH_THOUSANDS = {
    ".": re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+"),
    ",": re.compile(r"[+-]?[1-9][0-9]{0,2}(?:,[0-9]{3})+"),
}
_BELOW_THOUSAND = re.compile(r"[+-]?[0-9]{1,3}")
_DATE_AS_DIGITS = re.compile(r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])")
_MIN_DISTINCT = 3
"""Smallest number of distinct numbers that are recognised as dates or thousands."""
_MIN_WITH_UNIT = 10
"""Smallest number of distinct numbers with one unit; fewer may be categories, such as doses."""
_MISSING_CLASSES = frozenset({"?", "na", "n/a", "#n/a", "nan", "null"})
"""Texts of missing labels, in lower case; other markers such as "none" are often classes."""


def raise_if_formatted(table: Table, name: str, column: TextColumn) -> None:
    """Raise if most cells of a column are dates, times or numbers with further characters."""
    instead = f"set categorical = ['{name}'] if they are categories, or ignore = ['{name}']"
    where = f"column {name!r} of {table.name!r} has"
    is_date = np.array([bool(_DATE.fullmatch(text)) for text in column.texts], dtype=bool)
    if _are_most_cells(column, is_date):
        raise BadInput(
            f"{where} dates or times (the first in {_first_cell(table, column, is_date)}); write "
            f"them as numbers, such as years or hours, {instead}"
        )
    is_number = np.array(
        [bool(_FORMATTED_NUMBER.fullmatch(text)) and not is_code(text) for text in column.texts],
        dtype=bool,
    )
    is_readable = np.array([parse_number(text, table.decimal) is not None for text in column.texts])
    is_misread = is_number & ~is_readable
    if _are_most_cells(column, is_number) and bool(is_misread.any()):
        raise BadInput(
            f"{where} numbers with further characters, such as a currency or separators of "
            f"thousands (the first in {_first_cell(table, column, is_misread)}); write digits and "
            f"the decimal mark only, {instead}"
        )
    has_unit = _numbers_with_one_unit(column)
    if _are_most_cells(column, has_unit):
        raise BadInput(
            f"{where} numbers with a unit or sign (the first in "
            f"{_first_cell(table, column, has_unit)}); write numbers only, {instead}"
        )


def _numbers_with_one_unit(column: TextColumn) -> Bool[ndarray, " texts"]:
    """Return which texts are numbers with the most frequent unit and sign, if there are enough."""
    matches = [_NUMBER_WITH_UNIT.fullmatch(text) for text in column.texts]
    units = [None if match is None else match.groups() for match in matches]
    counts = Counter(unit for unit in units if unit is not None and any(unit))
    if not counts:
        return np.zeros(len(units), dtype=bool)
    unit, count = counts.most_common(1)[0]
    return np.array([u == unit and count >= _MIN_WITH_UNIT for u in units], dtype=bool)


def _are_most_cells(column: TextColumn, mask: Bool[ndarray, " texts"]) -> bool:
    return bool(column.counts[mask].sum() > column.counts.sum() / 2)


def _first_cell(table: Table, column: TextColumn, mask: Bool[ndarray, " texts"]) -> str:
    # The code of a missing text, -1, selects the last entry.
    return table.first(np.append(mask, False)[column.codes])


def raise_if_misread_numbers(table: Table, name: str, column: TextColumn) -> None:
    """Raise if numbers of a column seem to be dates, or to have marks of thousands.

    Dates look like 20240131. Numbers with marks of thousands look like 950 and 1.234: each mark is
    followed by three digits, and numbers below 1,000 have no mark.
    """
    where = f"column {name!r} of {table.name!r} has"
    has_enough = len(column.texts) >= _MIN_DISTINCT
    if has_enough and all(_DATE_AS_DIGITS.fullmatch(text) for text in column.texts):
        raise BadInput(
            f"{where} numbers that may be dates; write years, days or other numbers that can be "
            f"compared, set numeric = ['{name}'] if they are no dates, or ignore = ['{name}']"
        )
    has_mark = np.array([table.decimal in text for text in column.texts], dtype=bool)
    marked = list(compress(column.texts, has_mark))
    unmarked = list(compress(column.texts, ~has_mark))
    if (
        len(marked) >= _MIN_DISTINCT
        and unmarked
        and all(_NUMBER_WITH_THOUSANDS[table.decimal].fullmatch(text) for text in marked)
        and all(_BELOW_THOUSAND.fullmatch(text) for text in unmarked)
    ):
        raise BadInput(
            f"{where} whole numbers, and numbers with {table.decimal!r} and three digits (the "
            f"first in {_first_cell(table, column, has_mark)}), which may be thousands; remove the "
            f"separators, or set numeric = ['{name}'] if {table.decimal!r} is the decimal mark"
        )


def raise_if_missing_classes(table: Table, name: str, classes: Sequence[str]) -> None:
    """Raise if a class has a name that usually marks a missing value, such as "NA"."""
    markers = [text for text in classes if text.lower() in _MISSING_CLASSES]
    if markers:
        raise BadInput(
            f"label {name!r} of {table.name!r} has the class {markers[0]!r}, which usually marks "
            f'missing values; set missing = ["{markers[0]}"] and remove these rows, or write '
            "another name of the class"
        )


def raise_if_similar_names(table: Table, subject: str, names: Sequence[str]) -> None:
    """Raise if two names of classes or clients differ in case, blanks or leading zeros only."""
    first_by_normal_form = dict[str, str]()
    for name in names:
        first = first_by_normal_form.setdefault(_normal_form(name), name)
        if first != name:
            raise BadInput(
                f"{subject} of {table.name!r} has the values {first!r} and {name!r}, which may be "
                "the "
                "same; write them alike, or with names that differ in more than case, blanks or "
                "zeros"
            )


def _normal_form(name: str) -> str:
    """Return a name in lower case, with single blanks and without leading zeros of a number."""
    lower = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    is_number = re.fullmatch(r"[0-9]{1,15}(?:\.[0-9]{0,15})?", lower)
    return f"{float(lower):.15g}" if is_number else lower
