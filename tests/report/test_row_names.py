"""Names of a comparison's rows: by what differs."""

import pytest

from fedaudit.report.text.comparison import labels_of
from fedaudit.results.comparison import NOT_SET, Comparison, Row, Source


def comparison(*rows: tuple[str, dict[str, str]]) -> Comparison:
    return Comparison.model_construct(
        sources=[Source.model_construct(name="study") for _ in rows],
        rows=[
            Row(source=at, defense=name, family=name, clients=10, settings=settings)
            for at, (name, settings) in enumerate(rows)
        ],
    )


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        (
            (
                {
                    "algorithm.name": "fedavg",
                    "algorithm.options": "{}",
                    "algorithm.options.mu": NOT_SET,
                },
                {
                    "algorithm.name": "fedprox",
                    "algorithm.options": NOT_SET,
                    "algorithm.options.mu": "0.1",
                },
            ),
            ["algorithm fedavg", "algorithm fedprox, mu 0.1"],
        ),
        (
            ({"audit.fair": "10", "shadow.fair": "0"}, {"audit.fair": "20", "shadow.fair": "10"}),
            ["audit fair 10, shadow fair 0", "audit fair 20, shadow fair 10"],
        ),
        (
            ({"partition.scheme": "iid"}, {"partition.scheme": "shards"}),
            ["partition iid", "partition shards"],
        ),
    ],
)
def test_rows_without_a_defense_are_named_by_what_differs(
    settings: tuple[dict[str, str], ...], labels: list[str]
) -> None:
    assert labels_of(comparison(*(("none", one) for one in settings))) == labels


def test_a_row_without_a_defense_says_so_beside_one_with_it() -> None:
    rows = comparison(("none", {"model.name": "mlp"}), ("mixup", {"model.name": "mlp"}))
    assert labels_of(rows) == ["no defense · model mlp", "mixup · all 10 clients · model mlp"]
