"""Small studies for tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fedaudit.plan.sections import Study
from fedaudit.plan.values import study_from
from fedaudit.results.record import Record

Sections = Mapping[str, Mapping[str, object]]

SMALL: Sections = {
    "partition": {"clients": 4},
    "training": {"rounds": 4, "epochs": 2, "batch_size": 10},
    "audit": {"fair": 90, "every": 2},
    "figures": {"permutations": 20, "blind_classifier": False},
}
QUICK: Sections = {
    **SMALL,
    "partition": {**SMALL["partition"], "samples_per_client": 100},
    "training": {**SMALL["training"], "batch_size": 20},
}


class Carried(NamedTuple):
    """A finished study: its record, and its folder, which tests copy before changing it."""

    record: Record
    folder: Path


def small_study(**changes: object) -> Study:
    """All attacks of the catalogue, with some sections' settings replaced."""
    return _changed(SMALL, changes)


def quick_study(**changes: object) -> Study:
    """Less data and two attacks on one signal, for what does not depend on which."""
    return _changed(QUICK, {"attacks": {"loss-series": {}, "blackbox-loss": {}}, **changes})


def _changed(sections: Sections, changes: Mapping[str, object]) -> Study:
    values: dict[str, object] = {"name": "small", **sections}
    for key, value in changes.items():
        if isinstance(value, dict) and key in sections:
            value = {**sections[key], **value}
        values[key] = value
    return study_from(values)
