"""Validation of settings by the constructors of attacks."""

from typing import Any

import pytest

import fedaudit as fa
from fedaudit.core.errors import BadInput


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (fa.attacks.FedMIA1, {"outlier_sigmas": "3"}, "outlier_sigmas of FedMIA1 takes a number"),
        (fa.attacks.RMIA, {"offline": "a"}, "offline of RMIA takes a coefficient from 0 to 1"),
        (fa.attacks.LossSeries, {"snapshott": "global"}, "did you mean 'snapshot'"),
        (fa.attacks.SIALikelihood, {"outlier_sigmas": 2}, "no argument of SIALikelihood"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(
    make: Any, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        make(**settings)


def test_an_attack_accepts_settings_of_its_signal() -> None:
    attack = fa.attacks.FedMIA1(snapshot="global", outlier_sigmas=2)
    assert attack.settings()["snapshot"] == "global"
    assert attack.settings()["outlier_sigmas"] == 2.0
