"""What makes two studies, or two runs, the same: everything that changes a result."""

import hashlib
import json
from collections.abc import Collection, Mapping

from fedaudit.study.config import RiskSection, Study
from fedaudit.study.older import FIRST_SET

_FOR_PEOPLE = {"about", "hours"}
_AFTERWARDS = {"name", "seeds", "figures", "attacks", "attack_set"}
_NEWER: Mapping[str, object] = {
    "algorithm": {"name": "fedavg", "options": {}},
    "data.classes": [],
    "data.first_class": 0,
    "shadow": None,
    "shift": None,
    "risk": RiskSection().model_dump(mode="json"),
    "audit.merge": [],
    "defense.chain": [],
    "defense.also": [],
    "attack_set": FIRST_SET,
}
"""Settings that older versions did not have, with the value under which a study is what it was."""


def settings_of(study: Study) -> dict[str, object]:
    """All settings that change a result, as plain values."""
    return _settings(study, _FOR_PEOPLE)


def study_key(study: Study) -> str:
    """Names a study by all settings that change a result."""
    return _digest([settings_of(study)])


def run_key(study: Study, seed: int, kind: str = "cpu") -> str:
    """Names one run's training and what was seen of it; attacks and figures come afterwards.

    Args:
        study: Its settings.
        seed: Of the run.
        kind: Of device; another calculates other last digits.
    """
    # A shadow federation is a run of its own; a known split is measured in this one.
    apart = study.shadow is None or study.shadow.mode == "federation"
    settings = _settings(study, _FOR_PEOPLE | _AFTERWARDS | ({"shadow"} if apart else set()))
    # A run on the CPU keeps the name it had before there were others.
    device = [] if kind == "cpu" else [kind]
    return _digest([settings, seed, *device])


def _settings(study: Study, without: Collection[str]) -> dict[str, object]:
    """The settings as plain values; a newer one at its default is not mentioned.

    Studies thus keep the identity, and results on disk the name, that they were made under.
    """
    unused = {"attack_set"} if study.attacks else set()
    settings = study.model_dump(mode="json", exclude={*without, *unused})
    for dotted, default in _NEWER.items():
        *path, last = dotted.split(".")
        place: object = settings
        for section in path:
            place = place.get(section) if isinstance(place, dict) else None
        if isinstance(place, dict) and last in place and place[last] == default:
            del place[last]
    return settings


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
