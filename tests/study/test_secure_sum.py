"""One client's update in a secure sum, in complete studies."""

from pathlib import Path

import pytest
import torch

import fedaudit as fa
from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import flat
from fedaudit.extensions.secure_sum import SUMS_FILE, sums_of_others, update_of
from fedaudit.fl.simulate import simulate
from fedaudit.metrics.epsilon import gaussian_budget
from fedaudit.observe.round import Round
from fedaudit.plan.parts import Setup
from fedaudit.plan.sections import Study
from fedaudit.report.clauses import measured_epsilon
from fedaudit.report.first import tiles_of
from fedaudit.results.record import Record
from fedaudit.study.build import build_setup
from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study

NOISE = {"name": "client-dp", "options": {"clip": 0.5, "noise_multiplier": 1.0}}


def sum_study(**changes: object) -> Study:
    values: dict[str, object] = {
        "secure_sum": {"draws": 80},
        "attacks": {"blackbox-loss": {}},
        "audit": {"view": "sum"},
        "training": {"rounds": 2},
    }
    return quick_study(**{**values, **changes})


def values(record: Record, seed: int | None = 1) -> dict[str, float]:
    return {
        estimate.metric: estimate.number
        for estimate in record.findings
        if estimate.metric.startswith("secure_sum")
        and estimate.seed == seed
        and estimate.value is not None
    }


def last_round(run: Setup) -> Round:
    everybody, rounds = run.all_clients, run.study.training.rounds
    return list(
        simulate(
            run.algorithm,
            everybody.data,
            rounds=rounds,
            seed=seed_for(run.seed, "federation"),
            defenses=everybody.defenses,
        )
    )[-1]


@pytest.mark.slow
def test_secure_sums_of_few_clients_leak_unless_noise_is_added(tmp_path: Path) -> None:
    plain = run_study(sum_study(), tmp_path / "plain")
    epsilons = values(plain)
    ceiling = next(estimate.ceiling for estimate in plain.where(metric="secure_sum_epsilon"))
    assert epsilons == {"secure_sum_epsilon": ceiling}
    (refused,) = plain.where(metric="secure_sum_epsilon_if_gaussian")
    assert "may not be normally distributed" in refused.note
    (tile,) = tiles_of(plain)["epsilon"]
    assert "in one round's sum" in tile.label

    # Of the bounds of many seeds one in twenty is above the truth, as that of seed 1 is.
    study = sum_study(defense=NOISE, seeds=[2])
    noisy = values(run_study(study, tmp_path / "noisy"), 2)
    sizes = torch.tensor(
        [float(size) for size in build_setup(study, 2, None).assignment.sizes.values()]
    )
    truth = gaussian_budget(float(sizes[0] / sizes.norm()), 1e-5)
    assert noisy["secure_sum_epsilon"] <= truth
    assert 0.5 * truth < noisy["secure_sum_epsilon_if_gaussian"] < truth


@pytest.mark.slow
def test_the_sum_uses_the_targets_update_and_other_data(tmp_path: Path) -> None:
    run = build_setup(sum_study(), 1, None)
    round = last_round(run)
    share = round.weights[0] * flat(round.uploads[0].values).double()
    torch.testing.assert_close(update_of(run, round, 0), share)
    first, second, *other_sums = list(sums_of_others(run, round, 0, 80))
    assert len(other_sums) == 78
    assert not torch.equal(first, second)
    whole_sum = sum(
        round.weights[c] * flat(round.uploads[c].values).double() for c in round.selected if c
    )
    assert not torch.allclose(first, torch.as_tensor(whole_sum))
    assert torch.equal(next(sums_of_others(run, round, 0, 80)), first)


@pytest.mark.slow
def test_the_targets_noise_is_in_the_sums_and_not_in_its_update() -> None:
    run = build_setup(sum_study(defense=NOISE), 1, None)
    round = last_round(run)
    update = update_of(run, round, 0)
    assert float(update.norm()) <= round.weights[0] * 0.5 * (1 + 1e-5)
    drawn = torch.stack(list(sums_of_others(run, round, 0, 80)))
    expected = 0.5 * float(torch.tensor(list(round.weights.values())).norm())
    assert float((drawn - drawn.mean(0)).std()) == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_several_runs_have_the_least_bound_of_all(tmp_path: Path) -> None:
    record = run_study(sum_study(seeds=[1, 2], defense=NOISE), tmp_path)
    each = [values(record, seed) for seed in (1, 2)]
    assert values(record, None) == {name: min(bound[name] for bound in each) for name in each[0]}
    assert "with the last round’s sum" in measured_epsilon(record).text


@pytest.mark.slow
def test_bounds_of_another_run_are_refused(tmp_path: Path) -> None:
    run_study(sum_study(), tmp_path)
    path = tmp_path / "seed-1" / SUMS_FILE
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(Damaged):
        run_study(sum_study(), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audit": {"view": "uploads"}}, 'audit.view = "sum"'),
        ({"training": {"participation": 0.5}}, "participation = 1"),
        ({"algorithm": {"name": "fedsgd"}, "training": {"epochs": 1}}, "FedSgd"),
        ({"algorithm": {"name": "scaffold"}}, "scaffold"),
        ({"algorithm": {"name": "feddyn"}}, "keep tensors between rounds"),
        ({"defense": {"name": "mixup", "options": {"alpha": 0.2}}}, "client-dp"),
        ({"canaries": {"count": 30, "length": 1.0}}, "canaries"),
    ],
)
def test_studies_without_a_secure_sum_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(FedauditError, match=f"(?i).*{message}"):
        build_setup(sum_study(**changes), 1, None)


def test_secure_sum_is_available_in_python() -> None:
    assert fa.SecureSum(draws=100).draws == 100
    with pytest.raises((BadInput, ValueError)):
        fa.SecureSum(draws=10)
