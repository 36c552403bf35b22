"""Studies with several targets, draws and different label distributions."""

from pathlib import Path

import pytest

from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record
from fedaudit.study.comparing import compare_records
from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study

SKEWED = {"scheme": "dirichlet", "clients": 4, "options": {"beta": 0.5}}
EQUAL = {"scheme": "iid", "clients": 4}


def run(folder: Path, draw: str, partition: dict[str, object], **audit: object) -> Record:
    study = quick_study(
        attacks={"blackbox-loss": {}},
        audit={"draw": draw, "targets": [0, 1], **audit},
        partition=partition,
        training={"rounds": 2},
    )
    return run_study(study, folder)


def areas(record: Record) -> list[Estimate]:
    return [
        estimate
        for estimate in record.findings
        if estimate.metric == "auc" and estimate.value is not None
    ]


def test_with_skewed_clients_a_target_is_compared_with_its_own_draw(tmp_path: Path) -> None:
    skewed = areas(run(tmp_path / "skewed", "fair", SKEWED))
    equal = areas(run(tmp_path / "equal", "fair", EQUAL))
    assert all(
        estimate.fair and not estimate.within for estimate in skewed if estimate.target is not None
    )
    assert {estimate.within for estimate in skewed if estimate.target is None} == {"client"}
    # Where clients are equal by construction, samples of other panels narrow the intervals.
    assert all(estimate.target is not None for estimate in equal)
    totals = [
        sum(
            estimate.n_nonmembers
            for estimate in estimates
            if estimate.target == 0 and estimate.contrast == "mixed"
        )
        for estimates in (skewed, equal)
    ]
    assert totals[0] < totals[1]


def test_extra_samples_of_a_draw_count_for_their_target_only(tmp_path: Path) -> None:
    plain = areas(run(tmp_path / "plain", "fair", SKEWED))
    extended = areas(run(tmp_path / "more", "fair", SKEWED, extra_unseen=30))
    numbers = [
        {
            estimate.target: estimate.n_nonmembers
            for estimate in estimates
            if estimate.contrast == "unseen"
        }
        for estimates in (plain, extended)
    ]
    for target in (0, 1):
        assert numbers[1][target] >= numbers[0][target] + 20
        assert numbers[1][target] <= numbers[0][target] + 45


def test_samples_of_the_source_inference_draw_are_matched_in_class(tmp_path: Path) -> None:
    skewed = run(tmp_path, "sia", SKEWED)
    estimates = areas(skewed)
    assert all(estimate.within == "class" and not estimate.fair for estimate in estimates)
    assert all(estimate.labels_alone == pytest.approx(0.5, abs=0.05) for estimate in estimates)
    assert not [estimate for estimate in skewed.controls if estimate.passed is False]


def test_pooled_clients_do_not_count_as_a_client_in_comparisons(tmp_path: Path) -> None:
    record = run(tmp_path, "fair", SKEWED)
    comparison = compare_records([record, record.model_copy(update={"name": "again"})])
    assert comparison.entries
    assert all(set(estimate.targets) <= {0, 1} for estimate in comparison.entries)
    figures = record.where(attack="blackbox-loss", contrast="unseen", metric="auc", by="")
    alone = [estimate.number for estimate in figures if estimate.target is not None]
    entry = next(
        estimate
        for estimate in comparison.entries
        if (estimate.attack, estimate.contrast, estimate.metric)
        == ("blackbox-loss", "unseen", "auc")
    )
    assert entry.value == pytest.approx(sum(alone) / len(alone))


def test_defended_and_undefended_clients_are_not_pooled(tmp_path: Path) -> None:
    study = quick_study(
        attacks={"blackbox-loss": {}},
        audit={"targets": [0, 1]},
        partition=SKEWED,
        training={"rounds": 2},
        defense={"name": "mixup", "clients": [0], "options": {"alpha": 0.2}},
    )
    assert all(estimate.target is not None for estimate in areas(run_study(study, tmp_path)))
