"""Settings of tables: the roles of columns, and their encoding."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, TypeAlias

from fedaudit.core.arguments import Condition, ProperFraction, Range, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.datasets.tables.columns import Table


def _are_lists_by_column(values: object) -> bool:
    return isinstance(values, Mapping) and all(
        isinstance(name, str)
        and isinstance(listed, Sequence)
        and not isinstance(listed, str)
        and 0 < len(listed) == len({str(value) for value in listed})
        for name, listed in values.items()
    )


def _are_scalings_by_column(values: object) -> bool:
    return isinstance(values, Mapping) and all(
        isinstance(pair, Sequence)
        and len(pair) == 2
        and all(type(number) in (int, float) for number in pair)
        and abs(pair[0]) < float("inf")
        and 0 < pair[1] < float("inf")
        for pair in values.values()
    )


Names: TypeAlias = Sequence[str]
Categories: TypeAlias = Annotated[
    Mapping[str, Sequence[str | int]],
    Condition(
        'lists of distinct values by column, such as {"ward": ["A", "B"]}', _are_lists_by_column
    ),
]
Scalings: TypeAlias = Annotated[
    Mapping[str, Sequence[float]],
    Condition(
        'a mean and a positive standard deviation by column, such as {"age": [40, 12]}',
        _are_scalings_by_column,
    ),
]
Width: TypeAlias = Annotated[int, Range(ge=2, le=2**16)]


@dataclass(frozen=True)
class TableSettings:
    """Roles of the columns of a table, and their encoding.

    Attributes:
        label: Column of the classes, as texts or whole numbers. Classes are numbered in sorted
            order.
        client: Column that names the client of each row. Each client keeps its rows (partition
            ``natural``), and medians, means and standard deviations are computed for each client
            alone. Empty if the table names no clients.
        person: Column of the person (patient, author, device) of each row, for audits of people;
            empty for none. It is not a feature.
        group: Column that divides rows into groups, such as a protected attribute; empty for none.
            It stays a feature, unless ``ignore`` names it.
        regression: Whether the label is a number to predict, for the task ``regression``.
        numeric: Columns that contain numbers; by default, columns of numbers are recognised.
        categorical: Columns whose numbers are codes of categories.
        ignore: Columns that are not features.
        missing: Texts that mark missing values, in addition to empty cells.
        categories: Values of columns of categories, by column. Each value becomes one 0/1 feature,
            in this order. For any other value, all these features are 0.
        scaling: Mean and standard deviation of columns of numbers, by column. By default, they are
            computed from training rows.
        hash_width: Number of 0/1 features into which the values of a column are hashed. It applies
            if the table names clients and ``categories`` does not list the values.
        test_share: Fraction of each client's rows of each class in the test part, in (0, 1).
        standardise: Whether numbers are scaled to mean 0 and standard deviation 1.
    """

    _: KW_ONLY
    label: str = "label"
    client: str = ""
    person: str = ""
    group: str = ""
    regression: bool = False
    numeric: Names = ()
    categorical: Names = ()
    ignore: Names = ()
    missing: Names = ()
    categories: Categories | None = None
    scaling: Scalings | None = None
    hash_width: Width = 16
    test_share: ProperFraction = 0.2
    standardise: bool = True

    def reads(self, column: str) -> bool:
        """Return whether a column is read: it has a role, or is not ignored."""
        roles = (self.label, self.client, self.person, self.group)
        return column not in self.ignore or column in roles


def raise_if_unknown_columns(table: Table, settings: TableSettings) -> None:
    """Raise if a setting names a column that does not exist, or two settings are contradictory."""
    roles = {name: getattr(settings, name) for name in ("label", "client", "person", "group")}
    lists = {
        name: getattr(settings, name) or ()
        for name in ("numeric", "categorical", "ignore", "categories", "scaling")
    }
    for role, name in roles.items():
        if name:
            table.column(name, role)
    for argument, names in lists.items():
        for name in names:
            if argument != "ignore" or name not in table.unread:
                table.column(name, argument)
    for first, second in (("label", "client"), ("label", "person"), ("client", "person")):
        if roles[first] and roles[first] == roles[second]:
            raise BadInput(
                f"{first} and {second} of {table.name!r} are both {roles[first]!r}; name two "
                "columns, or leave one out"
            )
    declared = {name for key, names in lists.items() if key != "ignore" for name in names}
    unused = sorted(declared & {settings.label, settings.client, settings.person, *settings.ignore})
    if unused:
        raise BadInput(
            f"column {unused[0]!r} of {table.name!r} is no feature, but its encoding is declared; "
            "leave it out of numeric, categorical, categories and scaling"
        )
    numbers = {*lists["numeric"], *lists["scaling"]}
    contradictory = sorted(numbers & {*lists["categorical"], *lists["categories"]})
    if contradictory:
        raise BadInput(
            f"column {contradictory[0]!r} of {table.name!r} is declared as numbers and as "
            "categories; leave it out of one of them"
        )
