"""Studies of SCAFFOLD, whose clients send control variates in addition to updates."""

from pathlib import Path
from typing import Any

import pytest

from fedaudit.core.errors import NotVisible, Unsupported
from fedaudit.core.values import Capability
from fedaudit.evaluation.guarantees import formal_epsilons
from fedaudit.plan.sections import Study
from fedaudit.study.build import build_setup
from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study

ATTACKS: dict[str, dict[str, object]] = {
    "avg-cosine": {},
    "fedmia-2": {},
    "avg-cosine-control": {},
    "fedmia-2-control": {},
}
DP = {"clip": 1.0, "noise_multiplier": 1.0}


def scaffold_study(option: str = "II", **changes: object) -> Study:
    algorithm = {"name": "scaffold", "options": {"option": option}}
    return quick_study(**{"attacks": ATTACKS, "algorithm": algorithm, **changes})


def epsilon(option: str, defense: dict[str, object]) -> float | None:
    (whole, *_) = formal_epsilons([build_setup(scaffold_study(option, defense=defense), 1, None)])
    if whole.value is None:
        assert "in addition to the update" in whole.note
    return whole.value


def test_client_level_noise_guarantees_nothing_for_control_variates() -> None:
    assert epsilon("II", {"name": "client-dp", "options": DP}) is None
    assert epsilon("I", {"name": "client-dp", "options": DP}) is None


def test_dp_sgd_covers_control_variates_that_are_computed_from_its_steps() -> None:
    dp_sgd: dict[str, object] = {"name": "dp-sgd", "options": DP}
    covered = epsilon("II", dp_sgd)
    assert covered is not None
    chain = {**dp_sgd, "chain": [{"name": "client-dp", "options": DP}]}
    assert epsilon("II", chain) == covered
    assert epsilon("I", dp_sgd) is None


def test_perturbed_features_cover_all_control_variates() -> None:
    bitrand: dict[str, object] = {"name": "bitrand", "options": {"nominal_epsilon": 5.0}}
    assert epsilon("I", bitrand) == epsilon("II", bitrand) is not None


def test_only_studies_of_scaffold_show_control_variates() -> None:
    assert Capability.CONTROL_VARIATES in build_setup(scaffold_study(), 1, None).view.offers
    others = quick_study()
    assert Capability.CONTROL_VARIATES not in build_setup(others, 1, None).view.offers
    with pytest.raises(NotVisible, match=r"needs the clients' control variates.*such as scaffold"):
        build_setup(scaffold_study(algorithm={"name": "fedavg"}), 1, None)


@pytest.mark.parametrize("audit", [{"view": "sum"}, {"view": "globals"}, {"merge": [0, 1]}])
def test_attacks_on_control_variates_need_single_uploads(audit: dict[str, object]) -> None:
    with pytest.raises(NotVisible, match="the clients' control variates"):
        build_setup(scaffold_study(attacks={"avg-cosine-control": {}}, audit=audit), 1, None)


def test_canaries_and_malicious_clients_are_refused() -> None:
    tables: list[dict[str, Any]] = [{"canaries": {"count": 60}}, {"attacker": {"first": 1}}]
    for table in tables:
        changes: dict[str, Any] = {"attacks": {"blackbox-loss": {}}, "audit": {"view": "globals"}}
        study = scaffold_study(**changes, **table)
        with pytest.raises(Unsupported, match=r"send only an update.*Scaffold"):
            build_setup(study, 1, None)


@pytest.mark.slow
def test_a_study_of_control_variates_is_complete(tmp_path: Path) -> None:
    study = scaffold_study(audit={"keep": "full"}, figures={"planted_leak": True})
    record = run_study(study, tmp_path)
    assert {row.name: row.status for row in record.attacks} == dict.fromkeys(ATTACKS, "run")
    planted = [check for check in record.controls if check.control == "planted leak"]
    assert {check.attack for check in planted if check.passed} == set(ATTACKS)
    assert not [check for check in record.controls if check.passed is False]
    assert record.where(metric="test_accuracy")[0].number > 0.3
    # Each round, a client receives and sends a tensor for each parameter.
    parameters = build_setup(study, 1, None).algorithm.architecture.initial(0).params
    size = sum(value.nbytes for value in parameters.values())
    assert {row.extra_bytes for row in record.usage} == {2 * size * study.training.rounds}
