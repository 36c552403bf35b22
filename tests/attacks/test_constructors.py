"""Constructors of attacks check their settings, as study files have them checked."""

from typing import Any

import pytest

import fedaudit as fa
from fedaudit.core.errors import BadInput


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (fa.attacks.FedMIA1, {"outlier_sigmas": "3"}, "outlier_sigmas takes a float"),
        (fa.attacks.RMIA, {"offline": "a"}, "offline takes a float"),
        (fa.attacks.LossSeries, {"snapshott": "global"}, "did you mean 'snapshot'"),
        (fa.attacks.SIALikelihood, {"outlier_sigmas": 2}, "no setting of this attack"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(
    make: Any, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        make(**settings)


def test_settings_of_signals_are_taken_too() -> None:
    attack = fa.attacks.FedMIA1(snapshot="global", outlier_sigmas=2)  # type: ignore[call-arg]
    assert attack.settings()["snapshot"] == "global"
    assert attack.settings()["outlier_sigmas"] == 2.0
