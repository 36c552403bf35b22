"""Checks for texts of a table that would probably be read with the wrong meaning."""

import re
import unicodedata
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
_FORMATTED = re.compile(
    r"\(?[+\-\u2212]?\s*[$€£¥]?\s*"
    r"(?:[0-9]{1,3}(?:[ \u00a0\u202f.,'’_][0-9]{3})+|[0-9]+)(?:[.,][0-9]+)?\s*[%‰$€£¥]?\)?"
)
"""A number with a currency, a percent sign, separators of thousands or an accountant's brackets."""
_THOUSANDS = {
    ".": re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+"),
    ",": re.compile(r"[+-]?[1-9][0-9]{0,2}(?:,[0-9]{3})+"),
}
_BELOW_THOUSAND = re.compile(r"[+-]?[0-9]{1,3}")
_DAY_NUMBER = re.compile(r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])")
_MIN_DISTINCT = 3
"""Minimum number of distinct numbers that are taken for dates or thousands."""
_MISSING_CLASSES = frozenset({"?", "na", "n/a", "#n/a", "nan", "null"})
"""Texts of missing labels, in lower case; other markers such as "none" are often classes."""


def refuse_formatted(table: Table, name: str, column: TextColumn) -> None:
    """Raise if most texts of a column are dates, times or numbers in another format.

    Raises:
        BadInput: Most texts are.
    """
    instead = f"set categorical = ['{name}'] if they are categories, or ignore = ['{name}']"
    where = f"column {name!r} of {table.name!r} has"
    dates = np.array([bool(_DATE.fullmatch(word)) for word in column.texts], dtype=bool)
    if _are_most(dates, column):
        raise BadInput(
            f"{where} dates or times (the first in {_first(table, column, dates)}); write them as "
            f"numbers, such as years or hours, {instead}"
        )
    numbers = np.array(
        [bool(_FORMATTED.fullmatch(word)) and not is_code(word) for word in column.texts],
        dtype=bool,
    )
    plain = np.array([parse_number(word, table.decimal) is not None for word in column.texts])
    if _are_most(numbers, column) and bool((numbers & ~plain).any()):
        raise BadInput(
            f"{where} numbers with further characters, such as a currency or separators of "
            f"thousands (the first in {_first(table, column, numbers & ~plain)}); write digits and "
            f"the decimal mark only, {instead}"
        )


def _are_most(words: Bool[ndarray, " words"], column: TextColumn) -> bool:
    return bool(column.counts[words].sum() > column.counts.sum() / 2)


def _first(table: Table, column: TextColumn, words: Bool[ndarray, " words"]) -> str:
    # The code of a missing text is -1, the last entry.
    return table.first(np.append(words, False)[column.codes])


def refuse_misread_numbers(table: Table, name: str, column: TextColumn) -> None:
    """Raise if the texts of a column of numbers seem to be dates, or to have marks of thousands.

    Raises:
        BadInput: All texts look like 20240131, a date; or like 950 and 1.234, where each mark is
            followed by three digits and numbers below 1,000 have no mark.
    """
    where = f"column {name!r} of {table.name!r} has"
    if len(column.texts) >= _MIN_DISTINCT and all(
        _DAY_NUMBER.fullmatch(word) for word in column.texts
    ):
        raise BadInput(
            f"{where} numbers that may be dates; write years, days or other numbers that can be "
            f"compared, set numeric = ['{name}'] if they are no dates, or ignore = ['{name}']"
        )
    has_mark = np.array([table.decimal in word for word in column.texts], dtype=bool)
    marked, others = (list(compress(column.texts, mask)) for mask in (has_mark, ~has_mark))
    if (
        len(marked) >= _MIN_DISTINCT
        and others
        and all(_THOUSANDS[table.decimal].fullmatch(word) for word in marked)
        and all(_BELOW_THOUSAND.fullmatch(word) for word in others)
    ):
        raise BadInput(
            f"{where} whole numbers, and numbers with {table.decimal!r} and three digits (the "
            f"first in {_first(table, column, has_mark)}), which may be thousands; remove the "
            f"separators, or set numeric = ['{name}'] if {table.decimal!r} is the decimal mark"
        )


def refuse_missing_classes(table: Table, name: str, words: Sequence[str]) -> None:
    """Raise if the text of a class usually marks a missing value.

    Raises:
        BadInput: There is such a class.
    """
    markers = [word for word in words if word.lower() in _MISSING_CLASSES]
    if markers:
        raise BadInput(
            f"label {name!r} of {table.name!r} has the class {markers[0]!r}, which usually marks "
            f'missing values; set missing = ["{markers[0]}"] and remove these rows, or write '
            "another name of the class"
        )


def refuse_similar_names(table: Table, what: str, words: Sequence[str]) -> None:
    """Raise if two names of classes or clients differ in case, blanks or leading zeros only.

    Raises:
        BadInput: There are such names.
    """
    seen = dict[str, str]()
    for word in words:
        other = seen.setdefault(_folded(word), word)
        if other != word:
            raise BadInput(
                f"{what} of {table.name!r} has the values {other!r} and {word!r}, which may be the "
                "same; write them alike, or with names that differ in more than case, blanks or "
                "zeros"
            )


def _folded(word: str) -> str:
    """Return a text without case, accents' encoding, further blanks and zeros of numbers."""
    folded = " ".join(unicodedata.normalize("NFKC", word).casefold().split())
    is_number = re.fullmatch(r"[0-9]{1,15}(?:\.[0-9]{0,15})?", folded)
    return f"{float(folded):.15g}" if is_number else folded
