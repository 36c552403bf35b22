"""Encoding of a table's columns as features; if the table names clients, separately for each."""

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
    std: float


class Encoding(NamedTuple):
    """Rules by which columns become features.

    Attributes:
        standardise: Whether columns of numbers are standardised, unless their scaling is declared.
        scaling: Declared scaling by column.
        categories: Declared values by column, in the order of their features.
        hash_width: Number of features of a column of texts without declared values, in a table
            that names clients.
    """

    standardise: bool
    scaling: Mapping[str, Scaling]
    categories: Mapping[str, Sequence[str]]
    hash_width: int


class Codes(NamedTuple):
    """Categories of a column, as positions among the 0/1 features of this column.

    Attributes:
        values: Position of the feature that is 1 in each row; -1 if all features are 0.
        width: Number of features.
        description: How the features were chosen.
    """

    values: Int[ndarray, " rows"]
    width: int
    description: str


class Encoded(NamedTuple):
    """Features of all rows, and a description of each column's encoding."""

    features: Float[ndarray, "rows features"]
    descriptions: dict[str, str]


def encode_columns(
    columns: Mapping[str, Column],
    encoding: Encoding,
    *,
    client: Int[ndarray, " rows"] | None,
    is_train: Bool[ndarray, " rows"],
) -> Encoded:
    """Return features: numbers, then indicators of missing numbers, then categories.

    With clients, the medians, means and standard deviations of a client are computed from its
    training rows. Nothing else depends on the rows, so that all clients have the same features:
    each column of numbers has an indicator, and texts without declared values are hashed.

    Without clients, statistics and vocabularies are computed from all training rows, and only
    columns with missing numbers have an indicator.
    """
    numbers = {name: c.values for name, c in columns.items() if isinstance(c, NumberColumn)}
    codes = {
        name: _codes(name, column, encoding, hashes=client is not None, is_train=is_train)
        for name, column in columns.items()
        if isinstance(column, TextColumn)
    }
    names = [*numbers, *codes]
    columns_of_values = [*numbers.values(), *(code.values for code in codes.values())]
    values = np.column_stack(columns_of_values).astype(np.float64)
    with_indicator = [
        name for name, column in numbers.items() if client is not None or np.isnan(column).any()
    ]
    declared = [name for name in numbers if name in encoding.scaling]
    transformer = partial(
        _transformer,
        fitted=[names.index(name) for name in numbers if name not in declared],
        declared={
            names.index(name): encoding.scaling[name]
            for name in numbers
            if name in encoding.scaling
        },
        indicators=[names.index(name) for name in with_indicator],
        widths={names.index(name): code.width for name, code in codes.items()},
        standardise=encoding.standardise,
    )
    groups = [np.arange(len(values))] if client is None else positions_of(client).values()
    features = _fitted_by_group(transformer, values, groups, is_train)
    whose = "the client's" if client is not None else "the"
    descriptions = {
        name: _describe_number(name, encoding, whose, with_indicator) for name in numbers
    }
    descriptions.update({name: code.description for name, code in codes.items()})
    return Encoded(features, descriptions)


def max_feature_count(
    columns: Mapping[str, Column], encoding: Encoding, *, has_clients: bool
) -> int:
    """Return an upper bound on the number of features, without encoding the columns."""
    width = 0
    for name, column in columns.items():
        # One more feature indicates missing values.
        if isinstance(column, NumberColumn):
            width += 2
        elif name in encoding.categories:
            width += 1 + len(encoding.categories[name])
        else:
            width += 1 + (encoding.hash_width if has_clients else len(column.texts))
    return width


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
        declared_position = {value: index for index, value in enumerate(values)}
        positions = [declared_position.get(text, -1) for text in column.texts]
        description = (
            f"one 0/1 feature for each of {len(values)} declared values and for missing ones"
        )
        n_unknown = int(column.counts[np.array(positions, dtype=np.int64) < 0].sum())
        if n_unknown:
            description += f" ({n_unknown:,} cells have other values, and 0 in all)"
        return Codes(_by_row(column, positions, len(values)), len(values) + 1, description)
    if hashes:
        width = encoding.hash_width
        description = f"hashed into {width} 0/1 features, and one for missing values"
        positions = _hash_texts(name, column.texts, width)
        return Codes(_by_row(column, positions, width), width + 1, description)
    in_training = TextColumn(column.codes[is_train], column.texts).counts > 0
    positions = np.where(in_training, np.cumsum(in_training) - 1, -1).tolist()
    count, has_missing = int(in_training.sum()), bool(column.missing.any())
    description = f"one 0/1 feature for each of {count} values of the training rows"
    if has_missing:
        description += " and for missing ones"
    return Codes(_by_row(column, positions, count), count + has_missing, description)


def _by_row(
    column: TextColumn, positions: Sequence[int], missing_position: int
) -> Int[ndarray, " rows"]:
    """Return the position of each row's feature, given the position of each text's feature."""
    # The code of a missing text, -1, selects the last entry.
    assert MISSING == -1
    by_code = np.array([*positions, missing_position], dtype=np.int64)
    by_row: Int[ndarray, " rows"] = by_code[column.codes]
    return by_row


def _hash_texts(name: str, texts: Sequence[str], width: int) -> list[int]:
    """Return a position below ``width`` for each text, which depends on column and text only."""
    from sklearn.feature_extraction import FeatureHasher

    hasher = FeatureHasher(width, input_type="string", alternate_sign=False)
    rows = hasher.transform([f"{name}={text}"] for text in texts)
    positions: list[int] = rows.indices.tolist()
    return positions


def _transformer(
    *,
    fitted: Sequence[int],
    declared: Mapping[int, Scaling],
    indicators: Sequence[int],
    widths: Mapping[int, int],
    standardise: bool,
) -> "ColumnTransformer":
    """Return an unfitted transformer. All arguments refer to columns by position."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

    def median() -> SimpleImputer:
        # If a client has no number in a column, the column becomes 0.
        return SimpleImputer(strategy="median", keep_empty_features=True)

    steps = [
        ("numbers", make_pipeline(median(), *([StandardScaler()] if standardise else [])), fitted)
    ]
    if declared:
        mean, std = np.array([*declared.values()], dtype=np.float64).T
        scale = FunctionTransformer(_scale, kw_args={"mean": mean, "std": std})
        steps.append(("declared", make_pipeline(median(), scale), [*declared]))
    steps.append(("gaps", MissingIndicator(features="all"), indicators))
    one_hot = OneHotEncoder(
        categories=[np.arange(width) for width in widths.values()],
        handle_unknown="ignore",
        sparse_output=False,
    )
    steps.append(("categories", one_hot, [*widths]))
    return ColumnTransformer([step for step in steps if step[2]], sparse_threshold=0)


def _scale(
    values: Float[ndarray, "rows columns"],
    *,
    mean: Float[ndarray, " columns"],
    std: Float[ndarray, " columns"],
) -> Float[ndarray, "rows columns"]:
    scaled: Float[ndarray, "rows columns"] = (values - mean) / std
    return scaled


def _fitted_by_group(
    transformer: "Callable[[], ColumnTransformer]",
    values: Float[ndarray, "rows columns"],
    groups: Iterable[Int[ndarray, " _"]],
    is_train: Bool[ndarray, " rows"],
) -> Float[ndarray, "rows features"]:
    """Return the features of each group by a transformer that is fitted on its training rows."""
    features: Float[ndarray, "rows features"] | None = None
    for rows in groups:
        fitted = transformer().fit(values[rows[is_train[rows]]])
        part = fitted.transform(values[rows])
        if features is None:
            features = np.empty((len(values), part.shape[1]), dtype=np.float32)
        # Numbers beyond the range of float32 become infinite. The caller raises an error with the
        # table's name.
        with np.errstate(over="ignore"):
            features[rows] = part
    assert features is not None
    return features


def _describe_number(
    name: str, encoding: Encoding, whose: str, with_indicator: Sequence[str]
) -> str:
    if name in encoding.scaling:
        mean, std = encoding.scaling[name]
        description = f"minus {mean:g}, divided by {std:g} (declared)"
    elif encoding.standardise:
        description = f"minus {whose} mean, divided by {whose} standard deviation"
    else:
        description = "as stored"
    return (
        f"{description}, missing values replaced by {whose} median"
        if name in with_indicator
        else description
    )
