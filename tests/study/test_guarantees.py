"""Formal guarantees in records."""

from pathlib import Path

import pytest

from fedaudit.defenses.ldp.bit_mechanisms import BitRandPublished
from fedaudit.evaluation.guarantees import formal_epsilons
from fedaudit.fl.accounting import FORMAL_DELTA, gaussian_mechanism_epsilon
from fedaudit.results.estimate import Estimate
from fedaudit.study.build import build_setup
from fedaudit.study.running.run import run_study
from tests.study.studies import small_study


def proven(name: str, folder: Path, **options: object) -> dict[str, Estimate]:
    """What is stated of a defense, by metric."""
    record = run_study(
        small_study(
            defense={"name": name, "options": options},
            attacks={"loss-series": {}},
            partition={"samples_per_client": 40},
        ),
        folder,
    )
    return {
        estimate.metric: estimate
        for estimate in record.findings
        if estimate.metric.startswith("formal_epsilon")
    }


@pytest.mark.slow
def test_dp_sgd_epsilon_is_stated_per_run_and_per_round(
    tmp_path: Path,
) -> None:
    # The fair draw leaves the target 39 of its 40 samples; 4 rounds of 2 epochs of 4 steps, each
    # with batches of 10 on average.
    stated = proven("dp-sgd", tmp_path, clip=1.0, noise_multiplier=1.5)
    figure = stated["formal_epsilon"]
    assert figure.value == pytest.approx(
        gaussian_mechanism_epsilon(1.5, 32, rate=10 / 39, delta=1e-5)
    )
    assert figure.note == "unit: one sample, in 32 steps that each draw it with probability 0.256"
    figure = stated["formal_epsilon_of_a_round"]
    assert figure.value == pytest.approx(
        gaussian_mechanism_epsilon(1.5, 8, rate=10 / 39, delta=1e-5)
    )
    assert figure.note.startswith("one round alone; unit: one sample, in 8 steps")


def test_with_all_clients_the_least_protected_is_stated() -> None:
    # Sizes differ. The smallest client's samples are drawn most often, whatever the target.
    study = small_study(
        defense={"name": "dp-sgd", "options": {"clip": 1.0, "noise_multiplier": 1.5}},
        attacks={"sia": {}},
        partition={"scheme": "dirichlet", "options": {"beta": 0.5}},
        audit={"draw": "sia", "fair": 1, "options": {"per_client": 2}},
    )
    run = build_setup(study, 1, None)
    smallest = min(run.assignment.sizes, key=run.assignment.sizes.__getitem__)
    assert smallest not in study.audit.targets
    epsilons = [
        run.defenses[client].guarantee(run.algorithm.data_use(4, size), delta=FORMAL_DELTA)
        for client, size in run.assignment.sizes.items()
    ]
    all_clients, _ = formal_epsilons([run])
    assert all_clients.value == max(epsilon.epsilon for epsilon in epsilons if epsilon is not None)


@pytest.mark.slow
def test_the_weakest_guarantee_over_seeds_is_stated(tmp_path: Path) -> None:
    def stated(*seeds: int) -> float:
        study = small_study(
            seeds=list(seeds),
            defense={"name": "dp-sgd", "options": {"clip": 1.0, "noise_multiplier": 1.5}},
            attacks={"loss-series": {}},
            partition={"scheme": "dirichlet", "options": {"beta": 0.5}},
            audit={"fair": 20},
            training={"rounds": 2, "epochs": 1},
        )
        folder = tmp_path / "-".join(map(str, seeds))
        record = run_study(study, folder, pool=tmp_path / "pool")
        (value,) = [f.value for f in record.findings if f.metric == "formal_epsilon"]
        assert value is not None
        return value

    first, second = stated(1), stated(2)
    assert first != second
    assert stated(1, 2) == stated(2, 1) == max(first, second)


def test_without_noise_nothing_is_stated(tmp_path: Path) -> None:
    figure = proven("dp-sgd", tmp_path, clip=1.0, noise_multiplier=0.0)["formal_epsilon"]
    assert figure.value is None
    assert figure.note == "without noise there is no guarantee"


def test_perturbed_features_have_actual_and_nominal_epsilon(
    tmp_path: Path,
) -> None:
    figure = proven("bitrand", tmp_path, nominal_epsilon=5.0)["formal_epsilon"]
    features = build_setup(small_study(), 1, None).dataset.train.features[0].numel()
    assert features > 1
    assert figure.value == pytest.approx(BitRandPublished(5.0).actual_epsilon(features))
    assert figure.method == "claimed epsilon 5; log ratios summed over bits"
    assert figure.note == (
        "unit: one sample's features against any other features; labels are not protected"
    )


def test_a_shared_mask_gives_no_guarantee_with_a_reason(
    tmp_path: Path,
) -> None:
    stated = proven("bitrand", tmp_path, nominal_epsilon=5.0, shared_mask=True)
    figure = stated["formal_epsilon"]
    assert figure.value is None
    assert figure.note == "there is no guarantee: claimed epsilon 5; one mask for all samples"
