"""Columns of a table by their role: label, client, person, group and features.

Columns are checked for cells that would probably be misread, such as dates read as numbers.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import compress, islice

import numpy as np
from jaxtyping import Bool, Int, Shaped
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.datasets.tables.columns import (
    Column,
    NumberColumn,
    Table,
    TextColumn,
    as_numbers,
    as_texts,
    is_code,
    parse_number,
    raise_if_infinite,
)
from fedaudit.datasets.tables.settings import TableSettings

_MIN_ROWS = 10
"""Minimum number of rows of a client, from which its mean and standard deviation are computed."""
_MAX_NUMBER = float(np.finfo(np.float32).max)
_MAX_GROUPS = 100
_MAX_CLASSES = 1000
_MAX_LISTED = 40
"""Maximum number of columns that a message lists."""
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


def targets_of(
    table: Table, settings: TableSettings
) -> tuple[Shaped[ndarray, " rows"], tuple[str, ...]]:
    """Return the target of each row, and the names of the classes (none for a regression)."""
    name = settings.label
    column = _complete_column(table, name, "label")
    if settings.regression:
        numbers = as_numbers(table, name)
        if numbers is None:
            raise BadInput(
                f"label {name!r} of {table.name!r} has texts, and a regression predicts numbers; "
                "leave regression out, or name another label"
            )
        raise_if_infinite(table, name, numbers)
        if np.ptp(numbers.values) == 0:
            raise _constant_error(table, f"label {name!r}", "name another label")
        return numbers.values.astype(np.float32), ()
    texts = as_texts(column)
    parsed = [parse_number(word, table.decimal) for word in texts.texts]
    values = [value for value in parsed if value is not None]
    are_numbers = len(values) == len(parsed)
    _raise_if_missing_classes(table, name, texts.texts)
    if are_numbers and any(value % 1 != 0 for value in values):
        raise BadInput(
            f"label {name!r} of {table.name!r} has numbers that are not whole; set regression = "
            "true if they are to be predicted, or name a column of classes"
        )
    count = len(texts.texts)
    if count < 2:
        raise _constant_error(table, f"label {name!r}", "a classifier needs two classes")
    if count > min(_MAX_CLASSES, table.rows // 2):
        raise BadInput(
            f"label {name!r} of {table.name!r} has {count} distinct values in {table.rows} rows, "
            "too many for classes; name another label, or set regression = true to predict numbers"
        )
    _raise_if_similar_names(table, f"label {name!r}", texts.texts)
    order = np.argsort(values, kind="stable") if are_numbers else np.arange(count)
    number = np.empty(count, dtype=np.int64)
    number[order] = np.arange(count)
    return number[texts.codes], tuple(texts.texts[index] for index in order)


def _constant_error(table: Table, subject: str, remedy: str) -> BadInput:
    return BadInput(
        f"{subject} of {table.name!r} has the same value in all {table.rows} rows; {remedy}"
    )


def clients_of(table: Table, name: str) -> TextColumn:
    """Return the client of each row."""
    column = as_texts(_complete_column(table, name, "client"))
    if len(column.texts) < 2:
        raise _constant_error(table, f"client {name!r}", "leave client out, or give two clients")
    _raise_if_similar_names(table, f"client {name!r}", column.texts)
    counts = column.counts
    if counts.min() < _MIN_ROWS:
        smallest = column.texts[int(counts.argmin())]
        raise BadInput(
            f"client {smallest!r} of {table.name!r} has {counts.min()} rows, and each needs at "
            f"least {_MIN_ROWS} ({int((counts < _MIN_ROWS).sum())} of {len(counts)} clients have "
            "fewer); remove or merge small clients"
        )
    return column


def groups_of(table: Table, name: str) -> TextColumn:
    """Return the group of each row; rows without a group are in the group "(missing)"."""
    column = as_texts(table.column(name, "group"))
    if len(column.texts) > _MAX_GROUPS:
        raise BadInput(
            f"group {name!r} of {table.name!r} has {len(column.texts)} distinct values, and at "
            f"most {_MAX_GROUPS} groups are compared; name a column with fewer values"
        )
    if not column.missing.any():
        return column
    codes = np.where(column.missing, len(column.texts), column.codes)
    return TextColumn(codes, (*column.texts, "(missing)"))


def people_of(table: Table, settings: TableSettings) -> Int[ndarray, " rows"]:
    """Return the number of each row's person."""
    return as_texts(_complete_column(table, settings.person, "person")).codes


def _complete_column(table: Table, name: str, role: str) -> Column:
    """Return the column with a role; raise if it does not exist or has missing values."""
    column = table.column(name, role)
    is_missing = column.missing
    if is_missing.any():
        raise BadInput(
            f"{role} {name!r} of {table.name!r} is missing in {int(is_missing.sum())} of "
            f"{table.rows} rows (the first is {table.first(is_missing)}); fill in the {role}, or "
            "remove these rows"
        )
    return column


def features_of(table: Table, settings: TableSettings) -> dict[str, Column]:
    """Return the columns of features, as numbers or as texts."""
    excluded = {settings.label, settings.client, settings.person, *settings.ignore}
    columns = {
        name: _feature(table, name, settings) for name in table.columns if name not in excluded
    }
    if not columns:
        raise BadInput(
            f"{table.name!r} has no column of features: label, client, person and ignore name all "
            f"of {', '.join(islice(table.columns, _MAX_LISTED))}; ignore fewer columns"
        )
    return columns


def _feature(table: Table, name: str, settings: TableSettings) -> Column:
    column = table.columns[name]
    is_declared_numeric = name in settings.numeric or name in (settings.scaling or {})
    is_declared_categorical = name in settings.categorical or name in (settings.categories or {})
    is_typed_text = table.is_typed and isinstance(column, TextColumn)
    is_categorical = is_declared_categorical or (is_typed_text and not is_declared_numeric)
    numbers = None if is_categorical else as_numbers(table, name)
    if numbers is not None:
        if isinstance(column, TextColumn) and not is_declared_numeric:
            _raise_if_misread_numbers(table, name, column)
        _raise_if_useless_numbers(table, name, numbers)
        return numbers
    if is_declared_numeric:
        raise BadInput(
            f"column {name!r} of {table.name!r} is declared as numbers and has texts; leave it out "
            "of numeric and scaling, or set missing to the texts that mark missing values"
        )
    texts = as_texts(column)
    if not is_declared_categorical:
        _raise_if_formatted(table, name, texts)
    _raise_if_useless_texts(table, name, texts)
    listed_categories = {str(value) for value in (settings.categories or {}).get(name, ())}
    if listed_categories and not listed_categories & {*texts.texts}:
        raise BadInput(
            f"categories of {table.name!r} lists values of {name!r} that no row has; give the "
            f"values as the table has them, or leave {name!r} out of categories"
        )
    return texts


def _raise_if_useless_numbers(table: Table, name: str, column: NumberColumn) -> None:
    raise_if_infinite(table, name, column)
    known_values = column.values[~column.missing]
    largest = np.abs(known_values).max(initial=0)
    # Up to this limit, the squares in a standard deviation cannot overflow in 64-bit numbers.
    if largest > _MAX_NUMBER:
        raise BadInput(
            f"column {name!r} of {table.name!r} reaches {largest:.3g}, and models compute in "
            f"32-bit numbers up to {_MAX_NUMBER:.3g}; scale it, or set ignore = ['{name}']"
        )
    # A constant column with missing values is useful, because a feature indicates missing values.
    if not len(known_values) or (np.ptp(known_values) == 0 and len(known_values) == table.rows):
        raise _constant_error(table, f"column {name!r}", f"set ignore = ['{name}']")
    if table.rows > 2 and bool((np.diff(np.sort(column.values)) == 1).all()):
        raise BadInput(
            f"column {name!r} of {table.name!r} numbers the rows, and would identify each row; set "
            f"ignore = ['{name}']"
        )


def _raise_if_useless_texts(table: Table, name: str, column: TextColumn) -> None:
    n_present, n_texts = int(column.counts.sum()), len(column.texts)
    if n_texts + bool(column.missing.any()) < 2:
        raise _constant_error(table, f"column {name!r}", f"set ignore = ['{name}']")
    if n_texts == n_present > 2:
        raise BadInput(
            f"column {name!r} of {table.name!r} has a different text in each of its {n_texts} "
            f"cells, like an identifier; set ignore = ['{name}'], or name it as person if it is one"
        )


def _raise_if_formatted(table: Table, name: str, column: TextColumn) -> None:
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


def _raise_if_misread_numbers(table: Table, name: str, column: TextColumn) -> None:
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


def _raise_if_missing_classes(table: Table, name: str, classes: Sequence[str]) -> None:
    """Raise if a class has a name that usually marks a missing value, such as "NA"."""
    markers = [text for text in classes if text.lower() in _MISSING_CLASSES]
    if markers:
        raise BadInput(
            f"label {name!r} of {table.name!r} has the class {markers[0]!r}, which usually marks "
            f'missing values; set missing = ["{markers[0]}"] and remove these rows, or write '
            "another name of the class"
        )


def _raise_if_similar_names(table: Table, subject: str, names: Sequence[str]) -> None:
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
