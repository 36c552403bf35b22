"""Source inference, and other algorithms than FedAvg, in complete studies."""

from fractions import Fraction
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedaudit.attacks import DEFAULT_SET, attack_set
from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.evaluation.accuracy import evaluation_split
from fedaudit.evaluation.source import source_queries, source_results
from fedaudit.evaluation.truth import EvaluationResults
from fedaudit.observe.views import ADVERSARY_RESOURCES
from fedaudit.plan.sections import Study
from fedaudit.results.estimate import Estimate
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.results.runs import LABEL_BASELINE, LABELS, SourceResult
from fedaudit.study.build import build_setup, raise_if_misfits
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.study.studies import Carried, quick_study, small_study

SIA: dict[str, dict[str, object]] = {
    name: {} for name in ("sia", "sia-mean", "sia-product", "sia-likelihood", "sia-cosine")
}
PRIVATE = {"name": "digits", "classes": [7, 8, 9], "first_class": 10}


def source_study(**changes: object) -> Study:
    """As many digits of every client are asked about; clients overfit, so that they are found."""
    return small_study(
        **{
            "audit": {"draw": "sia", "fair": 1, "options": {"per_client": 12, "n_unseen": 30}},
            "training": {"epochs": 20, "lr": 0.3},
            "partition": {"clients": 4, "samples_per_client": 20},
            "attacks": SIA,
            **changes,
        }
    )


@cache
def record() -> Record:
    with TemporaryDirectory() as folder:
        return run_study(source_study(), Path(folder))


def result(name: str = "sia", audit_record: Record | None = None) -> SourceResult:
    return next(s for s in (audit_record or record()).sources if s.attack == name)


def figure(name: str = "sia", audit_record: Record | None = None, against: str = "") -> Estimate:
    (estimate,) = (audit_record or record()).where(
        topic="source", attack=name, against=against, seed=1
    )
    return estimate


@pytest.mark.parametrize("name", SIA)
def test_overfitted_clients_are_identified_beyond_their_labels(name: str) -> None:
    estimate, beyond = figure(name), figure(name, against=LABELS)
    assert estimate.samples == 48
    assert (estimate.low or 0) > (estimate.level or 0) == 0.25
    assert (estimate.tests[0].p_value or 0) < 0.01
    assert (beyond.tests[0].p_value or 0) < 0.01
    assert beyond.number > 0


def test_source_counts_of_a_record_are_consistent() -> None:
    source_result = result()
    confusion = np.array(source_result.confusion)
    assert np.trace(confusion) == round(figure().number * source_result.samples)
    assert confusion.sum(1).tolist() == [12] * 4
    assert (
        sum(class_counts.samples for class_counts in source_result.classes) == source_result.samples
    )
    assert sum(class_counts.right for class_counts in source_result.classes) == np.trace(confusion)
    assert [answer.least for answer in source_result.answers] == sorted(
        answer.least for answer in source_result.answers
    )
    answered = [answer.answered for answer in source_result.answers]
    assert answered == sorted(answered, reverse=True)
    over = figure(against=LABEL_BASELINE)
    assert over.number == pytest.approx(figure().number - (over.level or 0))


def test_clients_without_measured_rounds_are_reported(tmp_path: Path) -> None:
    assert result().absent == []
    audit = {"draw": "sia", "fair": 1, "every": 1, "options": {"per_client": 12}}
    training = {"rounds": 1, "participation": 0.5}
    study = source_study(audit=audit, training=training, attacks={"sia": {}})
    (source_result,) = run_study(study, tmp_path).sources
    assert len(source_result.absent) == 2
    confusion = np.array(source_result.confusion)
    assert confusion[:, source_result.absent].sum() == 0
    assert confusion[source_result.absent].sum() == 24


def test_with_disjoint_classes_labels_explain_all_success(
    tmp_path: Path,
) -> None:
    study = source_study(
        partition={"scheme": "shards", "samples_per_client": 60, "options": {"per_client": 2}},
        training={"rounds": 1},
        audit={"draw": "sia", "fair": 1, "every": 1, "options": {"per_client": 12}},
        attacks={"sia": {}},
    )
    record = run_study(study, tmp_path)
    (labels,) = figure(audit_record=record, against=LABELS).tests
    assert (labels.level or 0) > 0.7
    assert (labels.p_value or 0) > 0.05
    # All the more above guessing.
    assert (figure(audit_record=record).tests[0].high or 1) < 0.4
    # The baseline by hand: of whose data a sample's class is the largest share.
    run = build_setup(study, 1, None)
    samples = source_queries(run)
    assert samples is not None
    class_shares = [
        [
            Fraction(
                int((run.assignment.clients[client].labels == label).sum()),
                run.assignment.sizes[client],
            )
            for client in samples.clients
        ]
        for label in samples.labels.tolist()
    ]
    right = [
        row.index(max(row)) == owner for row, owner in zip(class_shares, samples.owner, strict=True)
    ]
    baseline = figure(audit_record=record, against=LABEL_BASELINE).level
    assert baseline is not None
    assert baseline == pytest.approx(np.mean(right))
    assert baseline > 0.7


def test_success_by_round_is_of_the_single_round_attack() -> None:
    source_result = result()
    assert source_result.rounds == [2, 4]
    assert source_result.by_round[-1] == figure().number
    assert result("sia-mean").by_round == []


def test_overfitting_is_measured_for_every_client() -> None:
    source_result = result()
    assert len(source_result.overfitting) == 4
    # Twenty digits in twenty epochs are memorised.
    assert min(source_result.overfitting) > 0.02


def test_the_upload_gap_is_the_mean_over_clients() -> None:
    (gap,) = record().where(metric="upload_gap")
    assert gap.value == pytest.approx(np.mean(result().overfitting))


def test_overfitting_uses_all_classes_of_a_sorted_test_part(
    tmp_path: Path,
) -> None:
    labels = np.repeat(np.arange(4), 600)
    features = np.random.default_rng(0).normal(size=(2400, 4)) + 9 * np.eye(4)[labels]
    np.savez(
        tmp_path / "sorted.npz", x_train=features, y_train=labels, x_test=features, y_test=labels
    )
    run = build_setup(source_study(data={"name": "sorted"}), 1, tmp_path)
    tried = torch.bincount(evaluation_split(run).small_test.labels)
    assert tried.sum() == 1000
    assert tried.min() > 200


def test_chained_inference_respects_the_false_positive_rate() -> None:
    strict, loose = result().chained
    assert (strict.fpr, loose.fpr) == (0.01, 0.1)
    assert strict.realised_fpr <= 0.01
    assert loose.realised_fpr <= 0.1
    assert strict.called <= loose.called <= 48
    assert loose.right <= loose.called


def test_each_seed_reports_clients_without_source_samples() -> None:
    results = EvaluationResults()
    for seed in (1, 2):
        few = build_setup(source_study(audit={"fair": 1}), seed, None)
        assert source_results(few, {}, results, {}) == []
    assert list(results.failed) == list(SIA)
    assert list(results.failed["sia"]) == ["seed 1", "seed 2"]


def test_untrained_models_give_chance_level_source_accuracy() -> None:
    controls = [c for c in record().controls if c.attack in SIA]
    assert len(controls) == len(SIA)
    assert all(c.passed for c in controls)


def test_default_studies_include_source_inference(small: Carried) -> None:
    default_record = small.record
    assert {s.attack for s in default_record.sources} == set(SIA)
    # As many of each client as the one with fewest audited samples has.
    each = min(row.audited or 0 for row in default_record.clients)
    assert {s.samples for s in default_record.sources} == {4 * each}


def test_missing_source_inference_names_the_client_without_samples(tmp_path: Path) -> None:
    study = quick_study(partition={"clients": 8}, audit={"fair": 5}, attacks={"sia": {}})
    assert source_queries(build_setup(study, 1, None)) is None
    (row,) = run_study(study, tmp_path).attacks
    assert row.status == "failed"
    assert "needs samples of every client" in row.note


def test_source_inference_can_run_on_a_recording(tmp_path: Path) -> None:
    run_study(source_study(attacks={"loss-series": {}}), tmp_path / "run")
    record = reattack(tmp_path / "run", ["sia"], tmp_path / "again")
    assert result(audit_record=record) == result()
    assert figure(audit_record=record) == figure()


def test_the_content_hash_covers_source_results(tmp_path: Path) -> None:
    pool, sized = tmp_path / "pool", source_study(attacks={"sia": {"prior": "size"}})
    record = run_study(source_study(attacks={"sia": {}}), tmp_path / "one", pool=pool)
    other = run_study(sized, tmp_path / "two", pool=pool)
    assert record.content_hash != other.content_hash
    assert read_record(tmp_path / "one" / "record.json").sources == record.sources


def test_source_inference_is_refused_if_only_sums_are_visible() -> None:
    with pytest.raises(NotVisible, match=r"'sia' needs .*hidden in the view 'sum'"):
        build_setup(source_study(audit={"draw": "sia", "fair": 1, "view": "sum"}), 1, None)


def test_merged_clients_cannot_be_distinguished() -> None:
    with pytest.raises(NotVisible, match="distinguishes single clients"):
        raise_if_misfits([source_study(audit={"draw": "sia", "fair": 1, "merge": [1, 2]})])


def test_source_inference_is_refused_without_members() -> None:
    with pytest.raises(NotVisible, match="infers the client of a sample"):
        raise_if_misfits([source_study(figures={"null_members": True})])


@pytest.mark.parametrize(
    "wrong",
    [
        {"confusion": [[48]]},
        {"samples": 47},
        {"by_round": [0.5]},
        {"overfitting": [0.1]},
        {"clients": [0]},
        {"answers": [{"least": 0.5, "answered": 1, "right": 2}]},
        {"chained": [{"fpr": 0.1, "realised_fpr": 0.1, "called": 1, "right": 2}]},
    ],
)
def test_an_impossible_result_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SourceResult.model_validate({**result().model_dump(), **wrong})


ALGORITHMS: dict[str, dict[str, object]] = {
    "fedsgd": {"algorithm": {"name": "fedsgd"}, "training": {"epochs": 1}},
    "legacy-fedsgd": {"algorithm": {"name": "legacy-fedsgd"}, "training": {"epochs": 1}},
    "fedprox": {"algorithm": {"name": "fedprox", "options": {"mu": 0.1}}},
    "fedadam": {"algorithm": {"name": "fedadam", "options": {"server_lr": 0.1}}},
    "fednova": {"algorithm": {"name": "fednova"}},
    "scaffold": {"algorithm": {"name": "scaffold", "options": {"option": "I"}}},
    "feddyn": {"algorithm": {"name": "feddyn"}},
    "ditto": {"algorithm": {"name": "ditto"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_study_of_any_algorithm_is_complete(name: str, tmp_path: Path) -> None:
    record = run_study(quick_study(attacks={}, **ALGORITHMS[name]), tmp_path)
    of_its_own = {
        name for name, a in attack_set(DEFAULT_SET).items() if a.needs & ADVERSARY_RESOURCES
    }
    assert {row.name for row in record.attacks if row.status == "refused"} == of_its_own
    assert not [row for row in record.attacks if row.status == "failed"]
    assert record.where(metric="test_accuracy")[0].number > 0.3 or name == "fedsgd"


def test_legacy_fedsgd_is_fedavg_with_one_epoch(tmp_path: Path) -> None:
    once = {"epochs": 1, "lr": 0.3}
    legacy = source_study(algorithm={"name": "legacy-fedsgd"}, training=once)
    record = run_study(legacy, tmp_path / "a")
    two = run_study(source_study(training=once), tmp_path / "b")
    assert result(audit_record=record) == result(audit_record=two)
    assert figure(audit_record=record) == figure(audit_record=two)


def fedmd_study(**changes: object) -> Study:
    return source_study(
        **{
            "algorithm": {
                "name": "fedmd",
                "options": {
                    "public": "digits",
                    "public_samples": 60,
                    "public_epochs": 2,
                    "private_epochs": 3,
                    "student": "",
                    "student_epochs": 3,
                },
            },
            "data": PRIVATE,
            "model": {"name": "mlp", "options": {"hidden": "20"}},
            "training": {"epochs": 2, "lr": 0.01, "optimizer": "adam", "rounds": 3},
            "audit": {"draw": "sia", "fair": 1, "every": 1, "options": {"per_client": 12}},
            "attacks": {"sia": {}, "sia-mean": {}, "blackbox-loss": {}},
            **changes,
        }
    )


def test_fedmd_is_audited_through_students(tmp_path: Path) -> None:
    record = run_study(fedmd_study(model={"name": "mlp"}), tmp_path)
    assert [row.status for row in record.attacks] == ["run"] * 3
    assert result(audit_record=record).rounds == [1, 2, 3]
    # The mean of the clients' own nets, each on its own samples and on the test part.
    train, test, gap = (
        record.where(metric=name)[0]
        for name in ("train_accuracy", "test_accuracy", "generalisation_gap")
    )
    assert train.number > 0.5
    assert test.samples < 200
    # As many samples of each, so that the clients' nets overfit on average as the whole does;
    # that one's test accuracy is of a whole number of samples.
    gaps = result(audit_record=record).overfitting
    assert np.mean(gaps) == pytest.approx(gap.number, abs=0.5 / test.samples)


def test_fedmd_studies_run_all_attacks_except_on_updates(tmp_path: Path) -> None:
    default_record = fedmd_study(model={"name": "mlp"}, training={"rounds": 1}, attacks={})
    record = run_study(default_record, tmp_path)
    refused = {row.name for row in record.attacks if row.status == "refused"}
    assert {"grad-cosine", "avg-cosine", "fedmia-2", "sia-cosine"} <= refused
    assert {"blackbox-loss", "fedmia-1", "sia"}.isdisjoint(refused)


@pytest.mark.parametrize(
    "changes",
    [
        {"attacks": {"grad-cosine": {}}},
        *({"audit": {"draw": "sia", "fair": 1, "view": v}, "attacks": {"blackbox-loss": {}}}
          for v in ("sum", "globals", "final")),
        {"audit": {"draw": "sia", "fair": 1, "merge": [1, 2]}, "attacks": {"blackbox-loss": {}}},
        {"audit": {"draw": "sia", "fair": 1, "keep": "full"}},
    ],
)  # fmt: skip
def test_attacks_on_updates_raise_for_fedmd_before_training(changes: dict[str, object]) -> None:
    for refuse in (
        lambda study: build_setup(study, 1, None),
        lambda study: raise_if_misfits([study]),
    ):
        with pytest.raises(NotVisible, match="outputs on public samples"):
            refuse(fedmd_study(**changes))


def test_fedmd_clients_may_have_different_networks() -> None:
    options = {"public": "digits", "public_samples": 60, "nets": "2,3; 2,2,3", "student": ""}
    study = fedmd_study(algorithm={"name": "fedmd", "options": options})
    nets = build_setup(study, 1, None).algorithm.nets
    sizes = [dict(net.settings)["channels"] for net in nets]
    assert sizes == ["2,3", "2,2,3"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"name": "digits"}}, "set data.first_class to 10"),
        ({"data": {"name": "digits", "classes": [10]}}, "whole numbers from 0 to 9, each once"),
        ({"algorithm": {"name": "fedmd"}}, "needs public"),
        ({"algorithm": {"name": "fedsg"}}, "fedsgd"),
        (
            {"algorithm": {"name": "fedmd", "options": {"public": "synthetic"}}},
            "samples of shape",
        ),
        (
            {"algorithm": {"name": "fedmd", "options": {"public": "digits", "public_samples": 0}}},
            "public_samples of the algorithm",
        ),
    ],
)
def test_settings_that_do_not_fit_an_algorithm_raise(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        build_setup(fedmd_study(**changes), 1, None)


def test_the_dp_sgd_guarantee_counts_the_steps_of_the_algorithm() -> None:
    fedsgd = build_setup(
        source_study(algorithm={"name": "fedsgd"}, training={"epochs": 1}), 1, None
    )
    work = fedsgd.algorithm.data_use(4, 20)
    assert (work.rounds, work.epochs, work.batch_size) == (4, 1, 20)
    fedmd = build_setup(fedmd_study(), 1, None).algorithm.data_use(3, 20)
    assert (fedmd.rounds, fedmd.epochs) == (1, 3 + 2 * 2)


def test_chosen_classes_keep_their_numbers_in_a_study() -> None:
    run = build_setup(fedmd_study(), 1, None)
    assert run.dataset.classes == 13
    assert set(torch.unique(run.assignment.audit.samples.labels).tolist()) <= {10, 11, 12}
