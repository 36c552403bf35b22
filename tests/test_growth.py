"""Readers process hostile files in linear time."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedaudit.core.values import positions_of
from fedaudit.datasets.catalog import load
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import policy_from
from fedaudit.pack.packing import clauses_json
from fedaudit.report.page import comparison_html, report_html
from fedaudit.results.record import Record
from fedaudit.study.comparing import compare_records
from tests.growth import calls_of
from tests.report.records import record
from tests.study.compare_records import given

EACH = policy_from(
    'name = "x"\n[membership]\nauc = 0.6\ntpr = { "0.01" = 0.05 }\nepsilon = 2.0\ngroup_auc = 0.7\n'
)
POOLED = policy_from('name = "x"\n[membership]\nauc = 0.6\nclients = "pooled"\n')


def of_targets(count: int) -> Record:
    """A record with the figures and controls of one client for each of so many."""
    whole = record(details=False)
    first = next(one for one in whole.findings if one.target is not None)
    own = [
        one
        for one in whole.findings
        if (one.target, one.seed, one.contrast) == (first.target, first.seed, "unseen")
        and one.attack in ("fedmia-2", "loss-series")
    ]
    each = range(count)
    return whole.model_copy(
        update={
            "estimates": [one.model_copy(update={"target": at}) for at in each for one in own],
            "controls": [
                one.model_copy(update={"target": at}) for at in each for one in whole.controls
            ],
        }
    )


def without_figures(count: int) -> Record:
    """A record whose settings name many clients, of which one has figures."""
    whole = of_targets(1)
    config = {**whole.config, "audit": {"targets": [*range(count)]}}
    return whole.model_copy(update={"config": config})


def of_studies(count: int) -> list[Record]:
    """Records that differ in a setting."""
    return [given(f"r{at}", {"a": {1: {0: 0.6}}}, {1: 0.5}, rounds=10 + at) for at in range(count)]


def of_settings(count: int) -> list[Record]:
    """Two records that differ in very many settings."""
    two = [given(name, {"a": {1: {0: 0.6}}}, {1: 0.5}) for name in "ab"]
    return [
        one.model_copy(
            update={"config": {**one.config, "other": {f"k{n}": at for n in range(50 * count)}}}
        )
        for at, one in enumerate(two)
    ]


def page_of(records: list[Record]) -> str:
    return comparison_html(compare_records(records), records)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("use", "make"),
    [
        pytest.param(report_html, of_targets, id="report"),
        pytest.param(clauses_json, of_targets, id="clauses"),
        pytest.param(lambda one: evaluate_policy(one, EACH), of_targets, id="gate"),
        pytest.param(lambda one: evaluate_policy(one, EACH), without_figures, id="missing figures"),
        pytest.param(lambda one: evaluate_policy(one, POOLED), of_targets, id="pooled gate"),
        pytest.param(page_of, of_studies, id="comparison of studies"),
        pytest.param(page_of, of_settings, id="comparison of settings"),
    ],
)
def test_twice_the_input_takes_twice_the_calls(
    use: Callable[[object], object], make: Callable[[int], object]
) -> None:
    few, many = make(12), make(24)
    use(make(2))  # what is loaded or kept once
    assert calls_of(lambda: use(many)) < 2.2 * calls_of(lambda: use(few))


@pytest.mark.slow
def test_classes_of_a_data_set_are_grouped_once(tmp_path: Path) -> None:
    def seconds(classes: int) -> float:
        labels = np.repeat(np.arange(classes), 2)
        features = np.zeros((len(labels), 2), np.uint8)
        features[::7] = 1
        np.savez_compressed(tmp_path / "many.npz", x=features, y=labels)
        start = time.process_time()
        assert load("many", data_dir=tmp_path, test_share=0.5).classes == classes
        return time.process_time() - start

    few, many = (min(seconds(classes) for _ in range(3)) for classes in (20_000, 80_000))
    assert many < 9 * few


def test_positions_of_values_are_those_of_a_search_for_each() -> None:
    values = np.random.default_rng(0).integers(-2, 9, 200)
    found = positions_of(values)
    assert list(found) == np.unique(values).tolist()
    for value, positions in found.items():
        assert np.array_equal(positions, np.flatnonzero(values == value))
    assert positions_of(values[:0]) == {}
