"""Encoding of a table's columns as features, inside each client if the table names clients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fedaudit.core.values import positions_of
from fedaudit.datasets.tables.columns import MISSING, Column, NumberColumn, TextColumn

if TYPE_CHECKING:
    from sklearn.compose import ColumnTransformer


class Scaling(NamedTuple):
    """Declared mean and standard deviation of a column of numbers."""

    mean: float
    spread: float


class Encoding(NamedTuple):
    """How columns become features.

    Attributes:
        standardise: Whether numbers without declared scaling are standardised.
        scaling: Declared scaling by column.
        categories: Declared values by column, in the order of their features.
        hash_width: Number of features of an undeclared column of texts in a table with clients.
    """

    standardise: bool
    scaling: Mapping[str, Scaling]
    categories: Mapping[str, Sequence[str]]
    hash_width: int


class Codes(NamedTuple):
    """Categories of a column as positions of its 0/1 features.

    Attributes:
        values: For each row, the position of its feature; -1 if it has none.
        width: Number of features.
        words: How the features were chosen, in words.
    """

    values: Int[ndarray, " rows"]
    width: int
    words: str


class Encoded(NamedTuple):
    """Features of all rows.

    Attributes:
        features: One row of features for each row of the table.
        words: How each column was encoded, by name.
    """

    features: Float[ndarray, "rows features"]
    words: dict[str, str]


def encoded(
    columns: Mapping[str, Column],
    encoding: Encoding,
    *,
    client: Int[ndarray, " rows"] | None,
    is_train: Bool[ndarray, " rows"],
) -> Encoded:
    """Return features: numbers, then indicators of missing numbers, then categories.

    With clients, medians, means and standard deviations are those of the training rows of a row's
    client, and everything else is the same whatever the rows are: each column of numbers has an
    indicator, and undeclared texts are hashed. Without clients, statistics and vocabularies are
    those of all training rows, and only columns with gaps have an indicator.

    Args:
        columns: Columns of features.
        encoding: Settings.
        client: Client of each row; None if the table names no clients.
        is_train: Mask of the training rows, from which statistics are computed.
    """
    numbers = {name: c.values for name, c in columns.items() if isinstance(c, NumberColumn)}
    codes = {
        name: _codes(name, column, encoding, hashes=client is not None, is_train=is_train)
        for name, column in columns.items()
        if isinstance(column, TextColumn)
    }
    names = [*numbers, *codes]
    parts = [*numbers.values(), *(code.values for code in codes.values())]
    values = np.column_stack(parts).astype(np.float64)
    with_indicator = [n for n, v in numbers.items() if client is not None or np.isnan(v).any()]
    transformer = partial(
        _transformer,
        fitted=[names.index(name) for name in numbers if name not in encoding.scaling],
        declared={names.index(n): encoding.scaling[n] for n in numbers if n in encoding.scaling},
        indicators=[names.index(name) for name in with_indicator],
        widths={names.index(name): code.width for name, code in codes.items()},
        standardise=encoding.standardise,
    )
    groups = [np.arange(len(values))] if client is None else positions_of(client).values()
    features = _fitted_by_group(transformer, values, groups, is_train)
    whose = "the client's" if client is not None else "the"
    words = {name: _number_words(name, encoding, whose, with_indicator) for name in numbers}
    return Encoded(features, words | {name: code.words for name, code in codes.items()})


def width_of(columns: Mapping[str, Column], encoding: Encoding, *, has_clients: bool) -> int:
    """Return the largest number of features that columns can have, without encoding them."""
    return sum(
        2
        if isinstance(column, NumberColumn)
        else 1 + _largest_width(name, column, encoding, has_clients)
        for name, column in columns.items()
    )


def _largest_width(name: str, column: TextColumn, encoding: Encoding, has_clients: bool) -> int:
    if name in encoding.categories:
        return len(encoding.categories[name])
    return encoding.hash_width if has_clients else len(column.words)


def _codes(
    name: str,
    column: TextColumn,
    encoding: Encoding,
    *,
    hashes: bool,
    is_train: Bool[ndarray, " rows"],
) -> Codes:
    if name in encoding.categories:
        values = encoding.categories[name]
        place = {value: number for number, value in enumerate(values)}
        position = [place.get(word, -1) for word in column.words]
        words = f"one 0/1 feature for each of {len(values)} declared values and for missing ones"
        n_unknown = int(column.counts[np.array(position, dtype=np.int64) < 0].sum())
        words += f" ({n_unknown:,} cells have other values, and 0 in all)" * bool(n_unknown)
        return Codes(_placed(column, position, len(values)), len(values) + 1, words)
    if hashes:
        width = encoding.hash_width
        words = f"hashed into {width} 0/1 features, and one for missing values"
        return Codes(_placed(column, _hashed(name, column.words, width), width), width + 1, words)
    in_training = TextColumn(column.codes[is_train], column.words).counts > 0
    position = np.where(in_training, np.cumsum(in_training) - 1, -1).tolist()
    count, has_gaps = int(in_training.sum()), bool(column.missing.any())
    words = f"one 0/1 feature for each of {count} values of the training rows"
    words += " and for missing ones" * has_gaps
    return Codes(_placed(column, position, count), count + has_gaps, words)


def _placed(column: TextColumn, position: Sequence[int], of_missing: int) -> Int[ndarray, " rows"]:
    """Return the position of each row's feature."""
    # The code of a missing text is -1, the last entry.
    assert MISSING == -1
    place = np.array([*position, of_missing], dtype=np.int64)
    placed: Int[ndarray, " rows"] = place[column.codes]
    return placed


def _hashed(name: str, words: Sequence[str], width: int) -> list[int]:
    """Return a feature below ``width`` for each text, which depends on column and text alone."""
    from sklearn.feature_extraction import FeatureHasher

    hasher = FeatureHasher(width, input_type="string", alternate_sign=False)
    rows = hasher.transform([f"{name}={word}"] for word in words)
    features: list[int] = rows.indices.tolist()
    return features


def _transformer(
    *,
    fitted: Sequence[int],
    declared: Mapping[int, Scaling],
    indicators: Sequence[int],
    widths: Mapping[int, int],
    standardise: bool,
) -> "ColumnTransformer":
    """Return a transformer that is not fitted yet, of columns by position."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

    def median() -> SimpleImputer:
        # A column without any number at a client becomes 0.
        return SimpleImputer(strategy="median", keep_empty_features=True)

    steps = [
        ("numbers", make_pipeline(median(), *([StandardScaler()] if standardise else [])), fitted)
    ]
    if declared:
        mean, spread = np.array([*declared.values()], dtype=np.float64).T
        scale = FunctionTransformer(_scaled, kw_args={"mean": mean, "spread": spread})
        steps.append(("declared", make_pipeline(median(), scale), [*declared]))
    steps.append(("gaps", MissingIndicator(features="all"), indicators))
    one_hot = OneHotEncoder(
        categories=[np.arange(width) for width in widths.values()],
        handle_unknown="ignore",
        sparse_output=False,
    )
    steps.append(("categories", one_hot, [*widths]))
    return ColumnTransformer([step for step in steps if step[2]], sparse_threshold=0)


def _scaled(
    values: Float[ndarray, "rows columns"],
    *,
    mean: Float[ndarray, " columns"],
    spread: Float[ndarray, " columns"],
) -> Float[ndarray, "rows columns"]:
    scaled: Float[ndarray, "rows columns"] = (values - mean) / spread
    return scaled


def _fitted_by_group(
    transformer: "Callable[[], ColumnTransformer]",
    values: Float[ndarray, "rows columns"],
    groups: Iterable[Int[ndarray, " _"]],
    is_train: Bool[ndarray, " rows"],
) -> Float[ndarray, "rows features"]:
    """Return the features of each group by a transformer that its training rows alone have set."""
    features: Float[ndarray, "rows features"] | None = None
    for rows in groups:
        group = transformer().fit(values[rows[is_train[rows]]])
        part = group.transform(values[rows])
        if features is None:
            features = np.empty((len(values), part.shape[1]), dtype=np.float32)
        # Numbers beyond the range become infinite, and are refused with the name of the table.
        with np.errstate(over="ignore"):
            features[rows] = part
    assert features is not None
    return features


def _number_words(name: str, encoding: Encoding, whose: str, with_indicator: Sequence[str]) -> str:
    if name in encoding.scaling:
        mean, spread = encoding.scaling[name]
        words = f"minus {mean:g}, over {spread:g} (declared)"
    elif encoding.standardise:
        words = f"minus {whose} mean, over {whose} standard deviation"
    else:
        words = "as stored"
    return f"{words}, gaps as {whose} median" if name in with_indicator else words
