"""A record that is read can be reported, printed, gated, compared and packed."""

import json
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedaudit.core.errors import Damaged
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fuzz.same_values import RECORDS, VALUES, faults, kinds, outputs, shortened, with_same_value
from fuzz.target import file
from results.archives import unpacked

SECURE_SUM, SOURCES, CLUSTERS, GAMES = RECORDS
Json = dict[str, Any]


def read_stored(name: str) -> Json:
    return shortened(json.loads((unpacked() / name).read_bytes()))


def read(document: object) -> Record:
    return read_record(file("one.json", json.dumps(document).encode()))


def with_value(name: str, kind: str, value: object) -> Json:
    return cast(Json, with_same_value(read_stored(name), tuple(kind.split(".")), value))


@pytest.mark.parametrize(
    ("name", "kind", "value", "message"),
    [
        (CLUSTERS, "clusters.*.group_names", ["one", "one"], "two groups have the same name"),
        (CLUSTERS, "clusters.*.group_names.*", "", "two groups have the same name"),
        (SECURE_SUM, "usage.*.samples", 0, "distinct samples of only 0"),
        (SECURE_SUM, "usage.*.distinct", [], "at least 1 item"),
        (SECURE_SUM, "usage.*.distinct.*", 10**15, "distinct samples of"),
    ],
)
def test_impossible_studies_raise_on_reading(
    name: str, kind: str, value: object, message: str
) -> None:
    with pytest.raises(Damaged, match=message):
        read(with_value(name, kind, value))


def test_a_client_without_samples_is_reported() -> None:
    document = read_stored(SECURE_SUM)
    for row in document["usage"]:
        row |= {"samples": 0, "distinct": [0] * len(row["distinct"]), "times_used": [0]}
    assert faults(document, read(read_stored(SECURE_SUM))) == []


def test_groups_with_a_common_name_prefix_are_reported() -> None:
    document = read_stored(CLUSTERS)
    for run in document["clusters"]:
        run["group_names"] = ["a" * 40 + str(number) for number, _ in enumerate(run["group_names"])]
        last = run["rounds"][-1]
        last["choice"] = [group % len(last["models"]) for group in run["group"]]
    record = read(document)
    outputs(record, record)["report"]()


@pytest.mark.parametrize("seconds", [0, 61, 90_061.4, 10**15])
def test_any_duration_is_reported(seconds: float) -> None:
    document = with_value(SECURE_SUM, "environment.seconds", seconds)
    assert faults(document, read(read_stored(SECURE_SUM))) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_records_with_duplicate_entries_raise_or_are_processed(
    name: str, data: st.DataObject
) -> None:
    document = read_stored(name)
    kind = data.draw(st.sampled_from([*kinds(document)]))
    value = data.draw(st.sampled_from(VALUES))
    changed = with_same_value(document, kind, value)
    assert faults(changed, read(document), ".".join(kind), value) == []


@pytest.mark.parametrize("name", RECORDS)
def test_fuzzing_starts_from_records_that_all_outputs_accept(name: str) -> None:
    document = read_stored(name)
    assert read(document).content_hash
    assert len([*kinds(document)]) > 50
    assert with_same_value(document, ("name",), "x") == document | {"name": "x"}
