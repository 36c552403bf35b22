"""Rows and tables of a record."""

from collections.abc import Iterator
from typing import get_args

import pytest
from pydantic import BaseModel

from fedaudit.results.estimate import Estimate
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from results.archives import unpacked
from tests.estimates import changed, estimate
from tests.report.clustered import clustered, with_clusters
from tests.report.games import played
from tests.report.records import record, source, with_sources
from tests.study.compare_records import PLAIN

RECORDS = unpacked()
COMMITTED = (
    "sia-mnist/sia-mnist",
    "ami-digits/ami-digits",
    "canaries-mnist/canaries-mnist",
    "secure-sum-mnist/secure-sum-mnist",
    "unlearning-location30/unlearning-location30",
)


def examples() -> dict[str, Record]:
    records = {
        "membership": record(),
        "sources": with_sources(source(), source(seed=2), membership=True),
        "clusters": with_clusters(clustered(), clustered(seed=2)),
        "games": played(),
        "utility": PLAIN,
    }
    return records | {name: read_record(RECORDS / f"{name}.json") for name in COMMITTED}


EXAMPLES = examples()


def places_of_estimates(
    kind: object, place: str = "", seen: tuple[object, ...] = ()
) -> Iterator[str]:
    """Where a type holds estimates, field by field."""
    if kind is Estimate:
        yield place
    elif isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
        for name, field in kind.model_fields.items():
            yield from places_of_estimates(field.annotation, f"{place}.{name}", (*seen, kind))
    else:
        for inner in get_args(kind):
            yield from places_of_estimates(inner, place, seen)


def test_a_record_holds_estimates_in_one_place_alone() -> None:
    assert list(places_of_estimates(Record)) == [".estimates"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_estimate_is_a_row_or_a_mean_row_once(name: str) -> None:
    example = EXAMPLES[name]
    rows, means = example.rows(), example.mean_rows()
    assert len(rows) + len(means) == len(example.estimates)
    values = [(estimate.topic, estimate.metric, estimate.value) for estimate in example.estimates]
    rows_of_values = [(row["topic"], row["metric"], row["value"]) for row in (*rows, *means)]
    assert sorted(map(str, rows_of_values)) == sorted(map(str, values))
    assert all(row["seed"] is None for row in means)


def test_the_examples_are_of_every_topic_and_of_groups() -> None:
    rows = [row for example in EXAMPLES.values() for row in example.rows()]
    topics = {str(row["topic"]) for row in rows}
    assert topics >= {
        "membership",
        "source",
        "clusters",
        "utility",
        "games",
        "detector",
        "unlearning",
    }
    assert {str(row["by"]) for row in rows} >= {"class", ""}


def test_no_row_without_a_seed_repeats_a_figure_of_the_runs() -> None:
    for example in EXAMPLES.values():
        alone = [row for row in example.rows() if row["seed"] is None]
        coordinates = (
            "topic",
            "metric",
            "attack",
            "contrast",
            "target",
            "point",
            "group",
            "against",
        )
        of_runs = {
            tuple(row[name] for name in coordinates)
            for row in example.rows()
            if row["seed"] is not None
        }
        assert all(tuple(row[name] for name in coordinates) not in of_runs for row in alone)


def test_record_rows_use_common_field_names() -> None:
    plain = estimate(metric="auc", attack="a", value=0.7, seed=1)
    example = changed(PLAIN, estimates=[plain, *PLAIN.estimates])
    bare, tested = example.rows()[:2]
    for row in (bare, tested):
        assert {"further.low", "further.method", "at_threshold.high"} <= row.keys()
        assert not any(isinstance(value, list | dict) for value in row.values())
    assert tested["test.guessing.significant"] is True
    assert "test.guessing.significant" not in bare


def test_a_table_has_the_rows_and_groups_by_seed_count_no_figure_twice() -> None:
    pandas = pytest.importorskip("pandas")
    example = EXAMPLES["canaries-mnist/canaries-mnist"]
    frame, means = example.frame(), example.mean_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert isinstance(means, pandas.DataFrame)
    assert (len(frame), len(means)) == (len(example.rows()), len(example.mean_rows()))
    utility = frame[frame.topic == "utility"]
    assert set(utility.groupby("metric").size()) == {len(example.seeds)}
