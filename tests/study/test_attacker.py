"""A malicious client in complete studies."""

from pathlib import Path

import pytest
import torch

import fedaudit
from fedaudit.core.errors import BadInput, NotVisible, Unsupported
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import Capability, flat, norm
from fedaudit.evaluation.truth import target_truth
from fedaudit.extensions.attacker import Attacker, PoisonedUpload
from fedaudit.fl.chain import Chain
from fedaudit.fl.simulate import simulate
from fedaudit.observe.measurements import read_measured
from fedaudit.observe.round import Round
from fedaudit.plan.sections import Study
from fedaudit.study.build import build_setup
from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study

ALL: dict[str, object] = {"blackbox-loss": {}, "recovery": {}}
FEDSGD: dict[str, object] = {
    "algorithm": {"name": "fedsgd"},
    "training": {"rounds": 6, "epochs": 1},
}
MIXUP: dict[str, object] = {"name": "mixup", "options": {"alpha": 0.2}}


def attacker_study(**changes: object) -> Study:
    values: dict[str, object] = {
        "training": {"rounds": 6},
        "audit": {"fair": 90, "every": 3, "view": "globals"},
        "attacker": {"first": 3, "strength": 4.0},
        "attacks": ALL,
    }
    return quick_study(**{**values, **changes})


def rounds_of(study: Study) -> list[Round]:
    everybody = build_setup(study, 1, None).all_clients
    seed, rounds = seed_for(1, "federation"), study.training.rounds
    return list(
        simulate(
            everybody.algorithm,
            everybody.data,
            rounds=rounds,
            seed=seed,
            defenses=everybody.defenses,
        )
    )


def test_the_last_client_trains_on_wrong_labels_of_the_audited_samples() -> None:
    run = build_setup(attacker_study(), 1, None)
    (extension,) = run.extensions
    assert isinstance(extension, Attacker)
    assert extension.client == 3
    poison = extension.poison
    assert torch.equal(poison.probes.ids, run.assignment.audit.samples.ids)
    assert torch.equal(poison.probes.features, run.assignment.audit.samples.features)
    assert not bool((poison.probes.targets == run.assignment.audit.samples.targets).any())
    assert poison.rounds == {3, 5}
    assert set(poison.probes.targets.tolist()) == set(range(10))


def test_the_first_poison_changes_only_one_upload() -> None:
    plain, poisoned = (
        rounds_of(attacker_study(attacker={"first": 3, "strength": 4.0, "kind": kind}))
        for kind in ("none", "mislabel")
    )
    for ours, theirs in zip(plain[:2], poisoned[:2], strict=True):
        assert torch.equal(flat(ours.after["global"].params), flat(theirs.after["global"].params))
    differ = [
        client
        for client, upload in plain[2].uploads.items()
        if not torch.equal(flat(upload.values), flat(poisoned[2].uploads[client].values))
    ]
    assert differ == [3]


def test_the_control_trains_as_if_there_were_no_malicious_client() -> None:
    control = attacker_study(attacker={"kind": "none", "first": 3})
    nobody = attacker_study(attacker=None, attacks={"blackbox-loss": {}})
    for ours, theirs in zip(rounds_of(control), rounds_of(nobody), strict=True):
        assert torch.equal(flat(ours.after["global"].params), flat(theirs.after["global"].params))
    assert not build_setup(control, 1, None).extensions
    assert (
        build_setup(control, 1, None).measured_rounds
        == build_setup(attacker_study(), 1, None).measured_rounds
    )


def test_each_poison_and_the_last_round_before_the_next_are_measured(tmp_path: Path) -> None:
    study = attacker_study(attacker={"first": 2, "every": 3, "strength": 4.0})
    record = run_study(study, tmp_path)
    measured = [stored.measured.index for stored in read_measured(tmp_path / "seed-1")]
    # Only round 2 is poisoned, as honest rounds after round 5 would last until round 7.
    assert measured == [2, 3, 4, 6]
    (extension,) = build_setup(study, 1, None).extensions
    assert isinstance(extension, Attacker)
    assert extension.poison.rounds == {2}
    assert [row.status for row in record.attacks] == ["run", "run"]
    assert "it is client 3" in record.view.description
    assert "choose" in " ".join(record.view.sees)
    assert any("malicious client" in line for line in record.untested)
    assert all(check.passed for check in record.controls if check.attack == "recovery")


def test_poisoned_uploads_are_clipped_like_others() -> None:
    study = attacker_study(
        attacker={"first": 3, "strength": 1000.0},
        defense={"name": "client-dp", "options": {"clip": 0.5, "noise_multiplier": 0.0}},
    )
    sent = rounds_of(study)[2].uploads[3].values
    assert norm(sent) == pytest.approx(0.5, rel=1e-5)
    everybody = build_setup(study, 1, None).all_clients
    assert isinstance(everybody.defenses[3], Chain)


@pytest.mark.parametrize("kind", ["none", "mislabel"])
def test_samples_of_the_malicious_client_are_of_no_other_client(kind: str) -> None:
    run = build_setup(attacker_study(attacker={"kind": kind, "first": 3}), 1, None)
    owners = target_truth(run, 0).owners
    assert 3 in run.assignment.audit.owner
    assert set(owners.tolist()) == {-1, 0, 1, 2}
    assert len(owners) == int((run.assignment.audit.owner != 3).sum())


def test_reference_federations_have_no_malicious_client() -> None:
    study = attacker_study(
        attacks={**ALL, "rmia": {}}, references={"count": 1}, audit={"fair": 60, "view": "globals"}
    )
    run = build_setup(study, 1, None)
    (reference,) = run.additional_federations
    assert not reference.extensions
    assert reference.study.attacker is None
    assert 3 not in reference.all_clients.defenses


def test_the_same_study_deals_the_same_poison() -> None:
    second, first = (
        build_setup(attacker_study(), 1, None).all_clients.defenses[3] for _ in range(2)
    )
    assert isinstance(second, PoisonedUpload)
    assert isinstance(first, PoisonedUpload)
    assert torch.equal(second.probes.targets, first.probes.targets)


def test_a_run_that_was_stopped_ends_with_the_same_record(tmp_path: Path) -> None:
    record = run_study(attacker_study(), tmp_path / "whole")
    result = run_study(attacker_study(), tmp_path / "whole")
    other = run_study(attacker_study(), tmp_path / "other")
    assert record.content_hash == result.content_hash == other.content_hash


@pytest.mark.parametrize(
    ("changes", "refusal", "says"),
    [
        ({"audit": {"view": "uploads"}}, NotVisible, "sees what a participant sees"),
        ({"audit": {"view": "final"}}, NotVisible, "sees what a participant sees"),
        ({"attacker": {"client": 0}}, BadInput, "attacker.client is 0"),
        ({"attacker": {"client": 4}}, BadInput, "attacker.client is 4"),
        ({"attacker": {"first": 6}}, BadInput, "needs 7 rounds, but training has 6"),
        (
            {"training": {"rounds": 6, "participation": 0.5}},
            Unsupported,
            "must participate in each round",
        ),
        (
            {"algorithm": {"name": "fedsgd"}, "training": {"rounds": 6, "epochs": 1}},
            Unsupported,
            "use fedavg",
        ),
        ({"algorithm": {"name": "ifca"}}, NotVisible, "different models"),
        (
            {"defense": {"name": "mixup", "options": {"alpha": 0.2}}},
            Unsupported,
            "cannot also be changed by a defense",
        ),
        ({"canaries": {"count": 20, "length": 1.0}}, Unsupported, "makes a client malicious"),
        (
            {"audit": {"view": "globals", "targets": [0, 1, 2, 3], "fair": 30}},
            BadInput,
            "must not be audited",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_impossible_settings_raise_before_training(
    changes: dict[str, object], refusal: type[Exception], says: str
) -> None:
    with pytest.raises(refusal, match=says):
        build_setup(attacker_study(**changes), 1, None)


def test_the_attack_needs_a_malicious_client() -> None:
    with pytest.raises(NotVisible, match=r"control over one client's upload.*add \[attacker\]"):
        build_setup(attacker_study(attacker=None), 1, None)


def test_a_malicious_client_has_the_view_of_a_participant() -> None:
    assert fedaudit.views.VIEWS["globals"].can_offer(Capability.CHOOSES_UPLOAD)
    assert not fedaudit.views.VIEWS["sum"].can_offer(Capability.CHOOSES_UPLOAD)


def test_the_attacker_is_an_option_in_python(tmp_path: Path) -> None:
    run = fedaudit.audit(
        fedaudit.Federation(
            "digits", clients=4, training=fedaudit.Training(rounds=6, batch_size=20)
        ),
        attacks=["recovery"],
        options=fedaudit.AuditOptions(attacker=fedaudit.Attacker(kind="ascent", first=3)),
        audit=fedaudit.Audit(samples=60, view="globals"),
        figures=fedaudit.Figures(permutations=20, blind_classifier=False),
        out=tmp_path,
    )
    assert run.record.attacks[0].status == "run"
