"""Clients that the data name keep their samples, except those of the fair draw."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedaudit as fa
from fedaudit.api.federation import plan_of
from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import NO_CLIENT
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Assignment
from fedaudit.plan.assignment import draw_assignment, shifted_groups
from fedaudit.plan.named import partition_of
from fedaudit.plan.sections import Study
from tests.datasets.tables import patients, written

NATURAL: dict[str, Any] = {"scheme": "natural", "clients": 3}


def table(folder: Path, **options: Any) -> Dataset:
    columns = patients(900)
    # Hospitals differ in their label distributions, and patients have three rows each.
    columns["readmitted"] = [
        "yes" if row % (hospital + 2) == 0 else "no"
        for row, hospital in enumerate(int(name[-1]) for name in columns["hospital"])
    ]
    columns["patient"] = [f"{row % 3}-{row // 9}" for row in range(900)]
    path = written(folder, columns)
    options = {"client": "hospital", "person": "patient", **options}
    return fa.datasets.csv(path, label="readmitted", **options).read(seed=1)


def study(**sections: Any) -> Study:
    audit = {"samples": 60, "targets": [1]}
    return fa.study_from({"name": "x", "partition": NATURAL, "audit": audit, **sections})


def deal_of(dataset: Dataset, plan: Study) -> Assignment:
    return draw_assignment(plan, partition_of(plan), dataset, seed=3)


def test_all_samples_but_the_audited_ones_stay_with_their_client(tmp_path: Path) -> None:
    dataset = table(tmp_path)
    assert dataset.client is not None
    assignment = deal_of(dataset, study())
    audited = assignment.audit.samples.ids
    for client, samples in assignment.clients.items():
        background = samples.ids[~torch.isin(samples.ids, audited)]
        assert set(dataset.client[background].tolist()) == {client}
        assert torch.equal(samples.labels, dataset.samples(samples.ids).labels)
    # Audited samples are all of the target, and its owner is as fair as in other partitions.
    assert set(dataset.client[audited].tolist()) == {1}
    assert set(assignment.audit.owner.tolist()) == {NO_CLIENT, 0, 1, 2}
    of_target = dataset.train.labels[dataset.client[: len(dataset.train)] == 1]
    share = float((assignment.audit.samples.labels == 1).float().mean())
    assert share == pytest.approx(float((of_target == 1).float().mean()), abs=1 / 60)
    assert int(assignment.audit.samples.labels.max()) < dataset.classes


def test_clients_of_the_same_size_draw_it_from_their_own_samples(tmp_path: Path) -> None:
    dataset = table(tmp_path)
    assignment = deal_of(dataset, study(partition=NATURAL | {"samples_per_client": 100}))
    assert all(abs(size - 100) < 20 for size in assignment.sizes.values())
    with pytest.raises(BadInput, match="of the needed 500 training samples"):
        deal_of(dataset, study(partition=NATURAL | {"samples_per_client": 500}))


def test_audited_people_are_those_of_the_target(tmp_path: Path) -> None:
    dataset = table(tmp_path)
    assert dataset.client is not None
    assert dataset.person is not None
    assignment = deal_of(dataset, study(audit={"samples": 30, "targets": [2], "unit": "person"}))
    ids = assignment.audit.samples.ids
    assert set(dataset.client[ids].tolist()) == {2}
    people, owners = dataset.person[ids].numpy(), assignment.audit.owner
    assert len(np.unique(people)) == 30
    for person in np.unique(people):
        assert len(np.unique(owners[people == person])) == 1
    with pytest.raises(BadInput, match="have training samples of this client alone"):
        deal_of(dataset, study(audit={"samples": 200, "targets": [2], "unit": "person"}))


def test_canaries_have_labels_among_the_classes(tmp_path: Path) -> None:
    dataset = table(tmp_path)
    audit = {"draw": "canaries", "targets": [1], "options": {"count": 40}}
    assignment = deal_of(dataset, study(audit=audit))
    truth = dataset.samples(assignment.audit.samples.ids).targets
    assert torch.equal(assignment.audit.samples.targets, 1 - truth)


def test_held_out_samples_resemble_their_own_client(tmp_path: Path) -> None:
    dataset, plan = table(tmp_path), study()
    assert dataset.client is not None
    assignment = deal_of(dataset, plan)
    place = shifted_groups(plan, dataset, assignment, seed=3).groups.similar_client
    test_ids = dataset.test.ids
    assert np.array_equal(place[test_ids.numpy()], dataset.client[test_ids].numpy())
    for client, samples in assignment.clients.items():
        assert set(place[samples.ids.numpy()].tolist()) == {client}


@pytest.mark.parametrize(
    ("options", "sections", "message"),
    [
        (
            {},
            {"partition": {"clients": 3}},
            r"assigns samples to other clients; use 'natural' .*Natural\(3\)",
        ),
        ({}, {"partition": NATURAL | {"clients": 4}}, "names 3 clients, .* is 4; set it to 3"),
        ({"client": "", "ignore": ["hospital"]}, {}, "does not name the client of each sample"),
    ],
)
def test_other_partitions_and_numbers_are_refused(
    tmp_path: Path, options: dict[str, Any], sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        deal_of(table(tmp_path, **options), study(**sections))


def test_an_audit_of_more_samples_than_a_client_has_is_refused(tmp_path: Path) -> None:
    message = r"the audit of client 1 \('hospital-1'\) needs 260 .* but it has 240; lower"
    audit = {"samples": 250, "extra_unseen": 10, "targets": [1]}
    with pytest.raises(BadInput, match=message):
        deal_of(table(tmp_path), study(audit=audit))
    assert deal_of(table(tmp_path), study(audit=audit | {"samples": 230})).sizes[1] < 240


def test_a_shift_is_refused(tmp_path: Path) -> None:
    dataset = table(tmp_path, group="ward")
    with pytest.raises(Unsupported, match="cannot be combined with a shift"):
        deal_of(dataset, study(shift={"kind": "attribute"}))


def test_a_report_names_the_clients(tmp_path: Path) -> None:
    columns = patients(300)
    columns["hospital"] = [["North", "South", "East"][row % 3] for row in range(300)]
    data = fa.datasets.csv(written(tmp_path, columns), label="readmitted", client="hospital")
    federation = fa.Federation(
        data,
        clients=fa.partitions.Natural(3),
        model=fa.models.MLP(hidden="8"),
        training=fa.Training(rounds=2),
    )
    run = fa.audit(
        federation,
        attacks="blackbox-loss",
        audit=fa.Audit(samples=30),
        out=tmp_path / "run",
        progress=False,
    )
    assert [row.name for row in run.record.clients] == ["East", "North", "South"]
    page = run.save_report(tmp_path / "report.html")
    assert "East" in Path(page or tmp_path / "report.html").read_text(encoding="utf-8")


def test_quotas_are_the_counts_of_each_client_alone() -> None:
    counts = np.array([3, 1, 0, 5, 2, 2])
    quotas = fa.partitions.Natural(3).quotas(counts, 3, rng=np.random.default_rng(0))
    assert quotas.tolist() == [[3, 1, 0, 0, 0, 0], [0, 0, 0, 5, 0, 0], [0, 0, 0, 0, 2, 2]]
    drawn = fa.partitions.Natural(3, samples_per_client=4)
    sizes = drawn.quotas(counts, 3, rng=np.random.default_rng(0)).sum(axis=1)
    assert sizes.tolist() == [4, 4, 4]
    with pytest.raises(BadInput, match="too many to assign"):
        fa.partitions.Natural(5000).quotas(
            np.ones(10_000, dtype=np.int64), 5000, rng=np.random.default_rng(0)
        )


def test_targets_may_be_named_as_in_the_data(tmp_path: Path) -> None:
    columns = patients(900)
    columns["hospital"] = [f"clinic {'BCA'[row % 3]}" for row in range(900)]
    data = fa.datasets.csv(written(tmp_path, columns), label="readmitted", client="hospital")
    training = fa.Training(rounds=1)
    federation = fa.Federation(
        data, clients=fa.partitions.Natural(3), model="mlp", training=training
    )
    options = {"attacks": ["blackbox-loss"], "audit": fa.Audit(samples=60)}
    result = fa.audit(federation, targets="clinic C", out=tmp_path / "out", **options)  # type: ignore[arg-type]
    assert {figure.target for figure in result.record.findings} == {2}
    scores = result.scores(target="clinic C").scores
    assert np.array_equal(scores, result.scores(target=2).scores)
    assert np.array_equal(scores, result.scores(target="client 2").scores)
    with pytest.raises(
        BadInput, match="no audited client named 'clinic A'; did you mean 'clinic C'"
    ):
        result.scores(target="clinic A")
    by_number = plan_of(federation, targets=["client 2", 0], name="x").study
    assert by_number.audit.targets == (2, 0)
    with pytest.raises(BadInput, match="no client named 'clinic D'; did you mean 'clinic"):
        plan_of(federation, targets=["clinic D"], name="x")
    with pytest.raises(BadInput, match="'diabetes' names no clients; give its number"):
        plan_of(fa.Federation("diabetes"), targets="clinic A", name="x")
