"""Source inference on random training samples of each client."""

import json
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

import fedaudit as fa
from fedaudit.core.errors import BadInput
from fedaudit.core.values import NO_CLIENT
from fedaudit.datasets.draws.audit_set import Assignment
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import policy_from
from fedaudit.pack.suppressing import suppress_small_groups
from fedaudit.plan.assignment import training_samples
from fedaudit.plan.identity import run_key
from fedaudit.plan.sections import Study
from fedaudit.report.sources import source_attacks, source_question, source_sentence, source_table
from fedaudit.results.read import read_record
from fedaudit.results.record import Record, write_record
from fedaudit.results.runs import FAIR_DRAW, OWN_SAMPLES
from fedaudit.study.build import build_setup, with_derived_settings
from fedaudit.study.comparing import compare_records
from fedaudit.study.running.folder import STUDY_FILE
from fedaudit.study.running.reattack import contradicting_signals, reattack
from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study

SKEWED = {"scheme": "dirichlet", "options": {"beta": 0.3}, "samples_per_client": 60}


def skewed_study(**changes: object) -> Study:
    """Four clients with different label distributions, whose members are memorised."""
    return quick_study(
        **{
            "partition": SKEWED,
            "training": {"rounds": 2, "epochs": 10, "lr": 0.3},
            "attacks": {"sia": {}, "loss-series": {}},
            **changes,
        }
    )


@cache
def record(sources: int | None = None) -> Record:
    with TemporaryDirectory() as folder:
        return run_study(skewed_study(audit=audit_settings(sources)), Path(folder))


def audit_settings(sources: int | None) -> dict[str, object]:
    return {} if sources is None else {"sources": sources}


def number_of(**changes: object) -> int | None:
    return with_derived_settings(skewed_study(**changes)).audit.sources


def test_the_default_number_of_source_samples() -> None:
    assert number_of() == 90 // 12
    assert number_of(audit={"fair": 40}) == 3
    assert number_of(partition={**SKEWED, "clients": 8}) == 3
    assert number_of(attacks={}) == 7


@pytest.mark.parametrize(
    "changes",
    [
        {"attacks": {"loss-series": {}}},
        {"partition": {"samples_per_client": 60}},
        {"audit": {"draw": "sia", "options": {"per_client": 5}}},
        {"attacks": {}, "audit": {"view": "sum"}},
        {"audit": {"sources": 0}},
    ],
    ids=["membership alone", "equal clients", "published draw", "view of a sum", "asked"],
)
def test_other_draws_have_no_source_samples(changes: dict[str, object]) -> None:
    study = skewed_study(**changes)
    run = build_setup(study, 1, None)
    assert run.study.audit.sources == 0
    assert run.assignment.source_samples is None
    assert run.assignment.measured is run.assignment.audit.samples


def test_a_given_number_of_source_samples_is_kept() -> None:
    assert number_of(audit={"sources": 9}) == 9
    iid = {"samples_per_client": 60}
    assert number_of(partition=iid, audit={"sources": 9}) == 9


def test_source_samples_raise_for_published_draws() -> None:
    with pytest.raises(BadInput, match=r"audit\.sources is 5; remove it"):
        skewed_study(audit={"draw": "sia", "sources": 5})


def assignment(sources: int) -> Assignment:
    return build_setup(skewed_study(audit={"sources": sources}), 1, None).assignment


def test_source_samples_are_equally_many_per_client() -> None:
    assigned = assignment(20)
    assert assigned.source_samples is not None
    assert Counter(assigned.source_samples.owner.tolist()) == dict.fromkeys(range(4), 20)
    ids = assigned.measured.ids[torch.from_numpy(assigned.source_samples.position)].tolist()
    for client, sample_id in zip(assigned.source_samples.owner.tolist(), ids, strict=True):
        assert sample_id in assigned.clients[client].ids
    assert len(set(ids)) == len(ids)


def test_audited_source_samples_are_measured_once() -> None:
    assigned = assignment(60)
    assert assigned.source_samples is not None
    audited = assigned.audit.samples.ids[torch.from_numpy(assigned.audit.owner != NO_CLIENT)]
    assert not torch.isin(assigned.source_samples.unaudited.ids, audited).any()
    assert (assigned.source_samples.position < len(assigned.audit)).sum() > 0
    assert len(assigned.measured) == len(assigned.audit) + len(assigned.source_samples.unaudited)


def test_source_samples_are_limited_by_the_smallest_client() -> None:
    assigned = assignment(10_000)
    assert assigned.source_samples is not None
    smallest = min(assigned.sizes.values())
    assert Counter(assigned.source_samples.owner.tolist()) == dict.fromkeys(range(4), smallest)


def test_source_samples_follow_the_label_distribution_of_their_client() -> None:
    assigned = assignment(10_000)
    assert assigned.source_samples is not None
    labels = assigned.measured.labels[torch.from_numpy(assigned.source_samples.position)].numpy()
    counts = assigned.class_counts(10)
    for client in range(4):
        own_counts = np.bincount(labels[assigned.source_samples.owner == client], minlength=10)
        expected = np.array(counts[client]) * own_counts.sum() / sum(counts[client])
        # All or nearly all of each client's samples.
        assert abs(own_counts - expected).max() < 4


def test_source_samples_do_not_change_other_draws() -> None:
    plain, with_sources = assignment(0), assignment(20)
    assert plain.source_samples is None
    stored, also = plain.audit.tensors(), with_sources.audit.tensors()
    assert stored.keys() == also.keys()
    assert all(torch.equal(stored[name], also[name]) for name in stored)
    for client, samples in plain.clients.items():
        assert torch.equal(samples.ids, with_sources.clients[client].ids)


def test_source_samples_exclude_samples_held_out_by_a_client() -> None:
    defense = {"name": "cofedmid", "clients": [0, 1], "options": {"start": 2}}
    run = build_setup(skewed_study(audit={"sources": 1000}, defense=defense), 1, None)
    assert run.assignment.source_samples is not None
    trained_samples = training_samples(run.assignment.clients, run.holdout)
    assert len(trained_samples[0]) < len(run.assignment.clients[0])
    ids = run.assignment.measured.ids[
        torch.from_numpy(run.assignment.source_samples.position)
    ].tolist()
    for client, sample_id in zip(run.assignment.source_samples.owner.tolist(), ids, strict=True):
        assert sample_id in trained_samples[client].ids


def test_source_samples_do_not_change_membership_figures() -> None:
    with_them, without = record(), record(0)
    assert with_them.config["audit"] != without.config["audit"]
    assert with_them.findings == without.findings
    assert with_them.groups == without.groups
    for part in ("curves", "trajectories", "histograms", "exposed", "clients", "accuracies"):
        assert getattr(with_them, part) == getattr(without, part)
    on_members = [control for control in with_them.controls if control.attack != "sia"]
    assert on_members == [control for control in without.controls if control.attack != "sia"]


def test_a_record_keeps_the_figures_of_both_draws() -> None:
    audit_record = record()
    assert {estimate.contrast for estimate in audit_record.source_estimates} == {OWN_SAMPLES}
    assert {estimate.contrast for estimate in audit_record.fair_source_estimates} == {FAIR_DRAW}
    assert audit_record.sources[0].samples == 4 * 7
    fair = [estimate for estimate in record(0).source_estimates if estimate.contrast == FAIR_DRAW]
    # The fair draw's figures are those of a study without further samples.
    assert audit_record.fair_source_estimates == fair


def test_skewed_clients_have_higher_source_accuracy_on_own_samples() -> None:
    (attack,) = source_attacks(record(40))
    assert attack.on_fair_draw is not None
    assert attack.success.samples == 160
    assert attack.success.number > attack.on_fair_draw.number + 0.1
    assert attack.label_level > 0.3


def test_a_report_names_both_draws() -> None:
    assert "the client of each of 28 samples, 7 of each of 4 clients" in source_sentence(record())
    table = source_table(record())
    assert "On the fair draw" in [column.text for column in table.columns]
    assert "all with the label distribution of an audited client" in table.remark
    assert "label distribution of an audited client" in source_question(record(0))
    assert "The success rate can be higher on random samples" in source_sentence(record(0))


def test_a_gate_judges_source_samples_and_mentions_the_fair_draw() -> None:
    policy = policy_from('name = "x"\n[sources]\nabove_label_distributions = 0.9\n')
    for audit_record, expected in ((record(), False), (record(0), True)):
        (check,) = [
            check for check in evaluate_policy(audit_record, policy).checks if "label" in check.name
        ]
        judged = [result.what for result in (check.worst, *check.open) if result is not None]
        assert judged
        assert all(
            (", on the audited samples" in description) == expected for description in judged
        )


def test_comparisons_do_not_mix_draws() -> None:
    other = record(40).model_copy(update={"name": "other"})
    for base, same in ((record(), True), (record(0), False)):
        changes = [entry.change for entry in compare_records([base, other]).on("source")]
        assert len(changes) == 2
        assert (changes[1] is not None) == same


def test_comparisons_of_membership_ignore_source_samples() -> None:
    rows = compare_records([record(0), record(40)]).rows
    assert [row.settings for row in rows] == [{}, {}]


@pytest.mark.slow
def test_a_recording_is_attacked_again_on_the_same_samples(tmp_path: Path) -> None:
    study = skewed_study(audit={"keep": "full"})
    first = run_study(study, tmp_path / "run")
    record = reattack(tmp_path / "run", ["sia"], tmp_path / "again")
    assert record.sources == first.sources
    assert [estimate.value for estimate in record.fair_source_estimates] == [
        estimate.value for estimate in first.fair_source_estimates
    ]
    assert contradicting_signals(tmp_path / "run", None) == []


@pytest.mark.slow
def test_a_recording_without_source_samples_has_only_the_fair_draw(tmp_path: Path) -> None:
    run_study(skewed_study(attacks={"loss-series": {}}), tmp_path / "run")
    record = reattack(tmp_path / "run", ["sia"], tmp_path / "again")
    assert {estimate.contrast for estimate in record.where(topic="source")} == {FAIR_DRAW}


@pytest.mark.slow
def test_a_study_of_an_older_version_resumes_unchanged(tmp_path: Path) -> None:
    study = skewed_study()
    first = run_study(skewed_study(audit={"sources": 0}), tmp_path)
    path = tmp_path / STUDY_FILE
    values = json.loads(path.read_text())
    del values["audit"]["sources"]
    path.write_text(json.dumps(values))
    assert run_study(study, tmp_path).content_hash == first.content_hash


def test_a_run_without_source_samples_keeps_its_name_of_older_versions() -> None:
    plain, with_sources = (
        with_derived_settings(skewed_study(audit={"sources": n})) for n in (0, 7)
    )
    assert run_key(plain, 1) != run_key(with_sources, 1)
    values = plain.model_dump(mode="json")
    assert values["audit"]["sources"] == 0
    membership = with_derived_settings(skewed_study(attacks={"loss-series": {}}))
    assert run_key(membership, 1) == run_key(plain, 1)


@pytest.mark.parametrize(
    ("sources", "scheme", "contrast"), [(0, "dirichlet", FAIR_DRAW), (0, "iid", OWN_SAMPLES)]
)
def test_a_record_of_an_older_version_gets_the_name_of_its_draw(
    sources: int, scheme: str, contrast: str, tmp_path: Path
) -> None:
    audit_record = record(sources)
    partition = audit_record.config["partition"]
    assert isinstance(partition, dict)
    unnamed = [
        estimate.model_copy(update={"contrast": "mixed"})
        if estimate.topic == "source"
        else estimate
        for estimate in audit_record.estimates
    ]
    older = audit_record.model_copy(
        update={
            "estimates": unnamed,
            "config": {**audit_record.config, "partition": {**partition, "scheme": scheme}},
        }
    )
    write_record(older, tmp_path / "record.json")
    read = read_record(tmp_path / "record.json")
    assert {estimate.contrast for estimate in read.where(topic="source")} == {contrast}


def test_a_pack_hides_figures_on_too_few_samples_of_a_draw() -> None:
    audit_record = record()
    fair = audit_record.fair_source_estimates[0].samples // 4
    assert fair > 7
    shareable = suppress_small_groups(audit_record, fair).record
    assert shareable.sources == []
    assert shareable.where(topic="source") == []
    larger = record(40)
    shareable = suppress_small_groups(larger, fair + 1).record
    assert len(shareable.sources) == 1
    assert shareable.fair_source_estimates == []
    assert suppress_small_groups(shareable, fair + 1).record == shareable


def test_python_and_study_files_use_the_same_setting(tmp_path: Path) -> None:
    federation = fa.Federation(
        fa.datasets.digits(),
        clients=fa.partitions.Dirichlet(4, beta=0.3, samples_per_client=60),
        algorithm=fa.algorithms.FedAvg(rounds=1),
    )
    audit = fa.Audit(samples=60, sources=6)
    run = fa.audit(federation, attacks=["sia"], audit=audit, out=tmp_path)
    assert run.record.sources[0].samples == 24
    assert {estimate.contrast for estimate in run.record.where(topic="source")} == {
        OWN_SAMPLES,
        FAIR_DRAW,
    }
