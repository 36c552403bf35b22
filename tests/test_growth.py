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
from tests.study.compare_records import make_record

EACH = policy_from(
    'name = "x"\n[membership]\nauc = 0.6\ntpr = { "0.01" = 0.05 }\nepsilon = 2.0\ngroup_auc = 0.7\n'
)
POOLED = policy_from('name = "x"\n[membership]\nauc = 0.6\nclients = "pooled"\n')


def of_targets(count: int) -> Record:
    """Return a record that repeats the figures and controls of one client for many clients."""
    full = record(details=False)
    first = next(estimate for estimate in full.findings if estimate.target is not None)
    selected = [
        estimate
        for estimate in full.findings
        if (estimate.target, estimate.seed, estimate.contrast)
        == (first.target, first.seed, "unseen")
        and estimate.attack in ("fedmia-2", "loss-series")
    ]
    each = range(count)
    return full.model_copy(
        update={
            "estimates": [
                estimate.model_copy(update={"target": client})
                for client in each
                for estimate in selected
            ],
            "controls": [
                result.model_copy(update={"target": client})
                for client in each
                for result in full.controls
            ],
        }
    )


def without_figures(count: int) -> Record:
    """Return a record whose settings name many clients, only one of which has figures."""
    single = of_targets(1)
    config = {**single.config, "audit": {"targets": [*range(count)]}}
    return single.model_copy(update={"config": config})


def of_studies(count: int) -> list[Record]:
    """Return records that differ in one setting."""
    return [
        make_record(f"r{number}", {"a": {1: {0: 0.6}}}, {1: 0.5}, rounds=10 + number)
        for number in range(count)
    ]


def of_settings(count: int) -> list[Record]:
    """Return two records that differ in many settings."""
    two = [make_record(name, {"a": {1: {0: 0.6}}}, {1: 0.5}) for name in "ab"]
    return [
        study_record.model_copy(
            update={
                "config": {
                    **study_record.config,
                    "other": {f"k{n}": number for n in range(50 * count)},
                }
            }
        )
        for number, study_record in enumerate(two)
    ]


def page_of(records: list[Record]) -> str:
    return comparison_html(compare_records(records), records)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("use", "make"),
    [
        pytest.param(report_html, of_targets, id="report"),
        pytest.param(clauses_json, of_targets, id="clauses"),
        pytest.param(lambda audited: evaluate_policy(audited, EACH), of_targets, id="gate"),
        pytest.param(
            lambda audited: evaluate_policy(audited, EACH), without_figures, id="missing figures"
        ),
        pytest.param(
            lambda audited: evaluate_policy(audited, POOLED), of_targets, id="pooled gate"
        ),
        pytest.param(page_of, of_studies, id="comparison of studies"),
        pytest.param(page_of, of_settings, id="comparison of settings"),
    ],
)
def test_twice_the_input_takes_twice_the_calls(
    use: Callable[[object], object], make: Callable[[int], object]
) -> None:
    few, many = make(12), make(24)
    use(make(2))  # loads modules and fills caches
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


def test_positions_of_values_equal_a_separate_search_for_each() -> None:
    values = np.random.default_rng(0).integers(-2, 9, 200)
    by_value = positions_of(values)
    assert list(by_value) == np.unique(values).tolist()
    for value, positions in by_value.items():
        assert np.array_equal(positions, np.flatnonzero(values == value))
    assert positions_of(values[:0]) == {}
