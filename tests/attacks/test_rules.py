import pytest
import torch

from fedaudit.attacks import ATTACKS, resolve_attack
from fedaudit.attacks.rules import Largest, Last, Mean, SinceInitialModel
from fedaudit.core.errors import BadInput
from fedaudit.observe.measurements import Measurements

nan = float("nan")

# Three rounds, two clients, two samples; client 1 did not participate in the last round.
VALUES = torch.tensor(
    [
        [[1.0, 2.0], [5.0, 6.0]],
        [[3.0, 8.0], [7.0, 9.0]],
        [[5.0, 5.0], [nan, nan]],
    ]
)
BASES = torch.tensor([[0, 0], [0, 0], [0, -1]])
M = Measurements(VALUES, (10, 20, 30), (0, 1), BASES)


def test_last_is_the_signal_in_the_last_round() -> None:
    assert Last()(M, target=0).tolist() == [5.0, 5.0]


def test_last_uses_the_last_measured_round_of_the_target() -> None:
    assert Last()(M, target=1).tolist() == [7.0, 9.0]


def test_mean_uses_the_measured_rounds_of_the_target() -> None:
    assert Mean()(M, target=0).tolist() == [3.0, 5.0]
    assert Mean()(M, target=1).tolist() == [6.0, 7.5]


def test_largest_uses_the_measured_rounds_of_the_target() -> None:
    assert Largest()(M, target=0).tolist() == [5.0, 8.0]
    assert Largest()(M, target=1).tolist() == [7.0, 9.0]


@pytest.mark.parametrize("rule", [Last(), Mean(), Largest()])
def test_an_unmeasured_target_raises(rule: Last | Mean | Largest) -> None:
    never = Measurements(VALUES[2:], (30,), (0, 1), BASES[2:])
    with pytest.raises(BadInput, match="client 1 took part in none"):
        rule(never, target=1)
    with pytest.raises(BadInput, match="client 7 was never measured"):
        rule(never, target=7)


def test_settings_are_changed_by_name_and_integers_become_floats() -> None:
    attack = resolve_attack("fedmia-2").with_settings({"outlier_sigmas": 5, "leave_one_out": True})
    assert attack.settings() == {
        "outlier_sigmas": 5.0,
        "leave_one_out": True,
        "variance_floor": 0.0,
    }
    assert ATTACKS["fedmia-2"].settings()["outlier_sigmas"] == 3.0


def test_signal_settings_change_the_signal_and_its_name() -> None:
    attack = resolve_attack("grad-diff").with_settings({"scale": "sum"})
    assert attack.signals[0].name == "gradient-difference-sum"


def test_misspelt_attacks_and_settings_get_the_nearest_name() -> None:
    with pytest.raises(BadInput, match="did you mean 'fedmia-1'"):
        resolve_attack("fedmia1")
    with pytest.raises(BadInput, match="did you mean 'outlier_sigmas'"):
        resolve_attack("fedmia-1").with_settings({"outlier_sigma": 2.0})
    with pytest.raises(BadInput, match=r"no setting of this attack.*\(none\)"):
        resolve_attack("avg-cosine").with_settings({"rounds": 2})


@pytest.mark.parametrize("value", [True, "3", 3.5])
def test_settings_of_another_type_are_refused(value: bool | str | float) -> None:
    name = "leave_one_out" if isinstance(value, float) else "outlier_sigmas"
    with pytest.raises(BadInput, match=f"{name} of this attack takes "):
        resolve_attack("fedmia-1").with_settings({name: value})


def test_an_unmeasured_signal_raises_with_the_measured_ones() -> None:
    with pytest.raises(BadInput, match=r"needs the signals \['loss'\].*\['confidence'\]"):
        resolve_attack("loss-series").scores({"confidence": M}, 0)


RECEIVED = Measurements(VALUES / 2, (1, 5, 9), (0, 1), BASES)


def test_the_initial_models_value_is_subtracted_from_the_last() -> None:
    assert SinceInitialModel()(M, RECEIVED, target=0).tolist() == [4.5, 4.0]
    # Client 1 did not take part in the last round, but received the initial model.
    assert SinceInitialModel()(M, RECEIVED, target=1).tolist() == [4.5, 6.0]


def test_the_initial_model_is_that_of_the_targets_first_round() -> None:
    late = Measurements(VALUES.flip(0), (1, 5, 9), (0, 1), BASES.flip(0))
    assert SinceInitialModel()(M, late, target=1).tolist() == [0.0, 0.0]
