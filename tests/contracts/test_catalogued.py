"""Every module in a catalogue's folder is in the catalogue or listed as an exception."""

import pkgutil

import pytest

import fedaudit.attacks
import fedaudit.defenses
import fedaudit.fl.algorithms
import fedaudit.models
import fedaudit.signals
from fedaudit.algorithms import ALGORITHMS
from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS
from fedaudit.defenses import DEFENSES, Defense
from fedaudit.models import MODELS
from tests.contracts.test_algorithm_contracts import SETTINGS, make_algorithm

EVERY = (ATTACKS | SOURCE_ATTACKS).values()
ENTRIES: dict[str, set[str]] = {
    "fedaudit.attacks": {type(attack.rule).__module__ for attack in EVERY},
    "fedaudit.signals": {type(s).__module__ for a in EVERY for s in a.signals},
    "fedaudit.defenses": {m.__module__ for m in DEFENSES.values() if m is not Defense},
    "fedaudit.fl.algorithms": {
        type(make_algorithm(name)).__module__ for name in ALGORITHMS.keys() & SETTINGS
    },
    "fedaudit.models": {build.__module__ for build in MODELS.values()},
}
OTHERS: dict[str, set[str]] = {
    "fedaudit.attacks": {"ami", "base", "catalogue"},
    "fedaudit.signals": {
        "base",
        "canary_gradients",
        "gradients",
        "kernels",
        "linear_layers",
        "measure",
    },
    "fedaudit.defenses": {"planted", "soft_labels"},
    "fedaudit.fl.algorithms": {"base"},
    "fedaudit.models": {"base"},
}
"""Files and folders without an entry: interfaces, catalogues and shared code."""


@pytest.mark.parametrize(
    "package",
    [
        fedaudit.attacks,
        fedaudit.defenses,
        fedaudit.signals,
        fedaudit.fl.algorithms,
        fedaudit.models,
    ],
    ids=lambda p: p.__name__,
)
def test_every_file_is_in_its_catalogue_or_a_listed_exception(package: object) -> None:
    name, path = package.__name__, package.__path__  # type: ignore[attr-defined]
    files = {module.name for module in pkgutil.iter_modules(path)}
    entries = {module.removeprefix(f"{name}.").split(".")[0] for module in ENTRIES[name]} - {"base"}
    assert files == entries | OTHERS[name]
