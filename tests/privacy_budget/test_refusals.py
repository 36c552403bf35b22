"""Set-ups that are no mechanism, or that are malformed, are refused in one sentence."""

import re
from pathlib import Path

import pytest

import fedaudit as fa
from fedaudit.core.errors import BadInput
from tests.privacy_budget.setups import client, sample, setup

AT_CLIENTS = {"order": ["clip", "noise", "sum"]}

NO_MECHANISM = {
    "without noise": client(noise_multiplier=0.0),
    "without noise ": client(order=["clip", "sum"]),
    "without clipping": client(clip=None),
    "without clipping ": client(order=["sum", "noise"]),
    "clipping after the noise": client(order=["noise", "clip", "sum"]),
    "the sum is clipped": client(order=["sum", "clip", "noise"]),
    "below the resolution of float32": client(noise_multiplier=1e-7),
    "below the resolution of bfloat16": client(noise_multiplier=1e-3, precision="bfloat16"),
    "no noise is added to this number": client(adaptive_clipping=True),
    "how many clients add theirs": client(**AT_CLIENTS, secure_aggregation=True),
}


@pytest.mark.parametrize("reason", NO_MECHANISM)
def test_steps_that_are_no_mechanism(reason: str) -> None:
    with pytest.raises(BadInput, match=f"this is no mechanism: .*{reason.strip()}") as caught:
        fa.budget(setup(NO_MECHANISM[reason], adjacency="zero-out"))
    assert "\n" not in str(caught.value)


REFUSED = {
    "order needs the step 'sum'": client(order=["clip", "noise"]),
    "names a step twice": client(order=["clip", "clip", "sum", "noise"]),
    "random sampling hides no client": client(**AT_CLIENTS, sampling="poisson", rate=0.1),
    "rate .*a sampling rate is a probability in \\(0, 1\\], got 1.5": client(
        sampling="poisson", rate=1.5
    ),
    "rate would be above 1: clients_per_round is at most 1000": client(
        sampling="poisson", clients_per_round=2000
    ),
    "rate would be above 1: batch_size is at most 200": sample(batch_size=300),
    "needs rate or clients_per_round, and exactly one": client(sampling="poisson"),
    "needs clients_per_round, and exactly one": client(sampling="fixed"),
    "rate has no effect": client(rate=0.1),
    "batch_size has no effect": client(sampling="poisson", batch_size=10),
    "have a guarantee for units that are replaced": client(sampling="fixed", clients_per_round=10),
    "is for samples in epochs": client(sampling="shuffle"),
    "shuffled batches contain other samples": sample(sampling="shuffle", batch_size=None),
    "needs epochs": sample(sampling="shuffle", batch_size=None, epochs=None, steps=3),
    "needs steps or epochs": sample(epochs=None),
    "have no effect on the epsilon": client(epochs=2),
    "the amount of noise reveals": client(**AT_CLIENTS),
    "least_honest_clients has an effect only": client(least_honest_clients=5),
    "clipped_count_stddev has an effect only": client(clipped_count_stddev=5.0),
    "participations counts only": client(sampling="poisson", rate=0.1, participations=5),
    "participations is at most the phase's 100": client(participations=101),
    "DP-SGD clips each sample's gradient": sample(order=["clip", "noise", "sum"]),
    "secure_aggregation is for updates": sample(secure_aggregation=True),
    "local steps over all rounds": sample(rounds=10**6, epochs=None, steps=10**6),
    "tree_aggregation needs participations": client(tree_aggregation=True),
    "tree_aggregation is noise of the server": client(
        tree_aggregation=True, participations=2, sampling="poisson", rate=0.1, amplification=False
    ),
    "least_separation has an effect only": client(least_separation=3),
    "not accounted for with tree_aggregation": client(
        tree_aggregation=True, participations=2, adaptive_clipping=True, clipped_count_stddev=5.0
    ),
    "rounds": client(rounds=0),
    "noise_multiplier": client(noise_multiplier=float("nan")),
    "clip": client(clip=-1.0),
    "clip ": client(clip=True),
    "unknown": client(unknown=1),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_phases_that_contradict_themselves(reason: str) -> None:
    with pytest.raises(BadInput, match=reason.strip()) as caught:
        fa.budget(setup(REFUSED[reason]))
    assert "\n" not in str(caught.value)
    assert "phase.0" in str(caught.value)


SETTINGS: dict[str, dict[str, object]] = {
    "below 1 / 1,000 \\(the number of clients\\), got 0.001": {"delta": 1e-3},
    "delta is above 0": {"delta": 0.0},
    "delta is at least 1e-12": {"delta": 1e-14},
    "delta": {"delta": "small"},
    "adjacency": {"adjacency": "add"},
    "person_clients is at most": {"person_clients": 2000},
    "most_samples is at least samples": {"most_samples": 20},
    "target": {"target": -1.0},
    "unit": {"unit": "user"},
}


@pytest.mark.parametrize("reason", SETTINGS)
def test_settings_that_are_out_of_range(reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        fa.budget(setup(client(), **SETTINGS[reason]))


def test_delta_is_compared_with_the_number_of_samples_for_dp_sgd() -> None:
    with pytest.raises(BadInput, match=re.escape("below 1 / 200,000 (the number of samples)")):
        fa.budget(setup(sample(), delta=1e-5))


def test_dp_sgd_needs_the_number_of_samples() -> None:
    with pytest.raises(BadInput, match="DP-SGD needs samples"):
        fa.budget({"delta": 1e-6, "clients": 10, "phase": [client(), sample()]})


def test_a_set_up_without_delta_or_phases() -> None:
    with pytest.raises(BadInput, match=r"delta .* has no default"):
        fa.budget({"clients": 10, "phase": [client()]})
    with pytest.raises(BadInput, match="phase"):
        fa.budget({"clients": 10, "delta": 1e-6, "phase": []})


@pytest.mark.parametrize("text", ["delta = ", "phase = 3", "[[phase]]\nphase = 1", "", "\0"])
def test_malformed_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "budget.toml"
    path.write_text(text)
    with pytest.raises(BadInput):
        fa.budget(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        fa.budget(tmp_path / "budget.toml")
