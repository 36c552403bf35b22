"""Canary clients in complete studies."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput, Damaged, Unsupported
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import add_scaled, flat, norm
from fedaudit.defenses.clip import ClientDP, clip_norm
from fedaudit.extensions.canaries import Canaries
from fedaudit.fl.accounting import gaussian_mechanism_epsilon
from fedaudit.fl.canary import CANARIES_FILE, canary_direction
from fedaudit.fl.hooks import TrainingContext
from fedaudit.fl.simulate import simulate
from fedaudit.observe.measurements import read_measured
from fedaudit.observe.round import Upload
from fedaudit.plan.parts import Setup
from fedaudit.plan.sections import Study
from fedaudit.report.first import tiles_of
from fedaudit.results.record import Record
from fedaudit.study.build import build_setup
from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study


@dataclass(frozen=True)
class ForgottenNoise(ClientDP):
    """Claims the noise that it does not add."""

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        """Clipped, and nothing else."""
        return type(upload)(**{**vars(upload), "values": clip_norm(upload.values, self.clip)})


CLAIMS = ("claimed_client_epsilon", "claimed_client_epsilon_without_canaries")


class WithBuffers(nn.Sequential):
    """A network that keeps running statistics."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        """For samples of a shape."""
        width = math.prod(shape)
        super().__init__(
            nn.Flatten(), nn.Linear(width, 16), nn.BatchNorm1d(16), nn.Linear(16, classes)
        )


def canary_study(**changes: object) -> Study:
    values: dict[str, object] = {
        "canaries": {"count": 60},
        "attacks": {"blackbox-loss": {}},
        "defense": {"name": "client-dp", "options": {"clip": 0.5, "noise_multiplier": 1.0}},
    }
    return quick_study(**{**values, **changes})


def values_of(record: Record) -> dict[str, float | None]:
    return {
        estimate.metric: estimate.value
        for estimate in record.findings
        if "client_epsilon" in estimate.metric
    }


def canaries_of(run: Setup) -> Canaries:
    (extension,) = run.extensions
    assert isinstance(extension, Canaries)
    return extension


def canaries_in(run: Setup) -> set[int]:
    return set(canaries_of(run).clients)


@pytest.mark.slow
def test_statistics_are_cosines_with_the_movement_of_the_global_model(tmp_path: Path) -> None:
    study = canary_study()
    run_study(study, tmp_path)
    run = build_setup(study, 1, None)
    canaries = canaries_of(run)
    everybody, seed = run.all_clients, seed_for(1, "federation")
    rounds = list(
        simulate(
            everybody.algorithm, everybody.data, rounds=4, seed=seed, defenses=everybody.defenses
        )
    )
    start = next(iter(rounds[0].sent.values())).model.params
    moved = add_scaled(rounds[-1].after["global"].params, start, -1.0)
    from safetensors.torch import load_file

    z = load_file(tmp_path / "seed-1" / CANARIES_FILE)["z"]
    for number in (0, 17, 59):
        direction = canary_direction(start, canaries.seed, number)
        assert norm(direction) == pytest.approx(1.0, abs=1e-5)
        cosine = torch.cosine_similarity(flat(direction), flat(moved), dim=0)
        expected = float(cosine) * math.sqrt(len(flat(moved)))
        assert float(z[number]) == pytest.approx(expected, abs=1e-4)
    assert set(rounds[0].uploads) == {*run.assignment.clients, *canaries.clients}


def test_canary_uploads_are_clipped_and_hidden_from_views() -> None:
    run = build_setup(canary_study(), 1, None)
    (first, *_) = simulate(
        run.algorithm, run.all_clients.data, rounds=4, seed=1, defenses=run.all_clients.defenses
    )
    canaries = canaries_of(run)
    number = int(canaries.sends.argmax())
    upload = first.uploads[canaries.clients[number]].values
    direction = canary_direction(upload, canaries.seed, number)
    noise = add_scaled(upload, direction, -0.5)
    # Standard deviation 1.0 x 0.5 on each number.
    assert float(flat(noise).std()) == pytest.approx(0.5, rel=0.1)


def test_no_adversary_of_a_sample_sees_a_canary(tmp_path: Path) -> None:
    study = canary_study()
    run_study(study, tmp_path)
    run = build_setup(study, 1, None)
    for stored in read_measured(tmp_path / "seed-1"):
        assert not canaries_in(run) & set(stored.measured.clients)


@pytest.mark.slow
def test_empirical_epsilon_exceeds_the_claim_only_without_noise(
    tmp_path: Path,
) -> None:
    study = canary_study()
    sound = run_study(study, tmp_path / "honest")
    honest = values_of(sound)
    assert [
        control.passed for control in sound.controls if control.control == "claimed epsilon"
    ] == [True]
    run = build_setup(study, 1, None)
    several = len(run.assignment.clients) + 60
    claimed, measured = honest["claimed_client_epsilon"], honest["client_epsilon_if_gaussian"]
    assert claimed is not None
    assert measured is not None
    assert claimed == pytest.approx(
        gaussian_mechanism_epsilon(math.sqrt(several), 4, delta=1e-5), rel=0.02
    )
    assert measured < claimed
    options = {"clip": 0.5, "noise_multiplier": 1.0}
    broken = {"name": f"{__name__}:ForgottenNoise", "options": options}
    record = run_study(canary_study(defense=broken), tmp_path / "broken")
    values = values_of(record)
    (check,) = (control for control in record.controls if control.control == "claimed epsilon")
    assert check.passed is False
    assert "claimed" in check.note
    assert values["claimed_client_epsilon"] == claimed
    assert (values["client_epsilon_if_gaussian"] or 0) > claimed


@pytest.mark.slow
def test_workers_and_stops_change_no_bit(tmp_path: Path) -> None:
    study = canary_study()
    record = run_study(study, tmp_path / "one")
    assert run_study(study, tmp_path / "two", workers=2).content_hash == record.content_hash
    file = tmp_path / "one" / "seed-1" / CANARIES_FILE
    other = canary_study(canaries={"count": 61})
    run_study(other, tmp_path / "other")
    file.write_bytes((tmp_path / "other" / "seed-1" / CANARIES_FILE).read_bytes())
    with pytest.raises(Damaged, match="from another run"):
        run_study(study, tmp_path / "one")


@pytest.mark.slow
def test_canaries_of_several_runs_are_pooled(tmp_path: Path) -> None:
    record = run_study(canary_study(seeds=[1, 2]), tmp_path)
    gaussian = {
        estimate.seed: estimate for estimate in record.where(metric="client_epsilon_if_gaussian")
    }
    assert gaussian.keys() == {1, 2, None}
    together = gaussian[None]
    assert together.n_members == gaussian[1].n_members + gaussian[2].n_members
    assert together.n_members + together.n_nonmembers == 120
    assert (together.value or 0) >= min(gaussian[1].value or 0, gaussian[2].value or 0)
    (tile,) = tiles_of(record)["epsilon"]
    assert "if the mechanism is Gaussian" in tile.detail


def test_a_canary_that_sends_no_direction_sends_only_noise() -> None:
    run = build_setup(canary_study(), 1, None)
    (first, *_) = simulate(
        run.algorithm, run.all_clients.data, rounds=4, seed=1, defenses=run.all_clients.defenses
    )
    canaries = canaries_of(run)
    number = int((~canaries.sends).argmax())
    sent = flat(first.uploads[canaries.clients[number]].values)
    direction = flat(canary_direction(first.uploads[0].values, canaries.seed, number))
    assert float(sent.std()) == pytest.approx(0.5, rel=0.1)
    # Five standard deviations of a normal number of 0.5.
    assert abs(float(sent @ direction)) < 2.5


def test_unprotected_buffers_invalidate_the_claimed_epsilon() -> None:
    run = build_setup(canary_study(model={"name": f"{__name__}:WithBuffers"}), 1, None)
    canaries = canaries_of(run)
    assert canaries.claimed is None
    assert "batch normalisation" in canaries.unclaimed


def test_with_sampled_clients_only_coins_give_a_bound(tmp_path: Path) -> None:
    study = canary_study(
        canaries={"count": 20}, training={"participation": 0.5}, audit={"every": 1}
    )
    values = values_of(run_study(study, tmp_path))
    assert values.keys() == {"client_epsilon", *CLAIMS}


def test_without_a_defense_nothing_is_claimed(tmp_path: Path) -> None:
    values = values_of(
        run_study(canary_study(defense={}, canaries={"count": 40, "length": 1.0}), tmp_path)
    )
    assert values.keys() == {"client_epsilon", "client_epsilon_if_gaussian"}


def test_a_study_without_canaries_keeps_its_identity() -> None:
    assert not build_setup(quick_study(), 1, None).extensions
    run = build_setup(quick_study(), 1, None)
    assert run.all_clients.data == run.assignment.clients


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        (
            {"canaries": {"count": 60, "length": 0.2}},
            BadInput,
            "would not test the largest updates",
        ),
        ({"defense": {}}, BadInput, "canaries.length"),
        (
            {"defense": {"name": "gradient-noise", "options": {"sigma": 0.1}}},
            Unsupported,
            "client-dp",
        ),
        (
            {
                "defense": {
                    "name": "client-dp",
                    "clients": [0],
                    "options": {"clip": 1.0, "noise_multiplier": 1.0},
                }
            },
            Unsupported,
            "for all clients",
        ),
        (
            {"algorithm": {"name": "fedsgd"}, "training": {"epochs": 1}},
            Unsupported,
            "FedSGD",
        ),
        ({"algorithm": {"name": "fednova"}}, Unsupported, "FedNova"),
        ({"audit": {"merge": [0, 1]}}, Unsupported, "audit.merge"),
        (
            {"training": {"participation": 0.02}, "audit": {"view": "final"}},
            BadInput,
            "only canary clients would participate",
        ),
    ],
)
def test_federations_without_room_for_canaries_are_refused(
    changes: dict[str, object], kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        build_setup(canary_study(**changes), 1, None)
