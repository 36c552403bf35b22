"""Keys of studies and runs: hashes of all settings and source code that affect results."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import TypeVar, cast

from fedaudit.core.errors import BadInput
from fedaudit.core.importing import (
    code_key,
    installed_entry_points,
    is_custom,
    is_not_importable,
    module_digest,
    source_digests,
)
from fedaudit.datasets.catalog import DATA_SET_PREFIXES, custom_source
from fedaudit.plan.games import AnyStudy, GameStudy
from fedaudit.plan.optional import OPTIONAL_SECTIONS
from fedaudit.plan.sections import RiskSection, Study
from fedaudit.results.older import ADVERSARY_FEDERATIONS, FIRST_SET
from fedaudit.results.text import plain_json

StudyKind = TypeVar("StudyKind", bound=AnyStudy)

_AFTER_TRAINING = {"attack", "metric"}
"""Kinds of custom parts that do not affect training."""
DESCRIPTIVE_SETTINGS = {"about", "hours"}
"""Settings that only describe a study for its readers."""
_NOT_IN_RUN_KEY = {"name", "seeds", "figures", "attacks", "attack_set", "references", "unlearning"}
"""Settings that affect neither training nor the adversary's observations of it."""
_ADDED_SETTINGS: Mapping[str, object] = {
    "algorithm": {"name": "fedavg", "options": {}},
    "server": {"name": "honest", "options": {}},
    "code": {},
    "data.classes": [],
    "data.first_class": 0,
    "models": [],
    "pretraining": None,
    "task": {"name": "classification", "options": {}},
    **dict.fromkeys(OPTIONAL_SECTIONS),
    "shift": None,
    "risk": RiskSection().model_dump(mode="json"),
    "audit.merge": [],
    "audit.unit": "sample",
    "audit.clients_per_person": 1,
    "audit.sources": 0,
    "figures.metrics": [],
    "defense.chain": [],
    "defense.also": [],
    "attack_set": FIRST_SET,
}
"""Settings that the first version did not have, with the value that matches its behaviour.

A setting with this value is left out of keys, so the keys of older results stay the same.
"""


def settings_of(study: AnyStudy) -> dict[str, object]:
    """Return all settings that affect results, as plain values."""
    return _settings(study, DESCRIPTIVE_SETTINGS)


def config_of(study: AnyStudy) -> dict[str, object]:
    """Return all settings in the form in which a record stores them, without control characters."""
    values = study.model_dump(mode="json", exclude=_unused_sections(study))
    return {name: plain_json(value) for name, value in values.items()}


def _unused_sections(study: AnyStudy) -> set[str]:
    """Return sections without effect, which keys and records leave out, as older versions did."""
    drops_detector = isinstance(study, GameStudy) and not study.detector.runs
    return {*(() if study.code else ("code",)), *(("detector",) if drops_detector else ())}


def study_key(study: AnyStudy) -> str:
    """Return the key of a study: a hash of all settings that affect results."""
    return _digest([settings_of(study)])


def run_key(study: Study, seed: int, kind: str = "cpu") -> str:
    """Return the key of one run: a hash of the settings that affect its training or observation.

    Args:
        study: Settings.
        seed: Seed of the run.
        kind: Type of device, since devices differ in the last digits of their results.
    """
    # A shadow federation is a separate run with a separate key. In the other mode, the adversary
    # knows some members and non-members of this run, which are measured in it.
    is_shadow_separate = study.shadow is None or study.shadow.mode == "federation"
    parts = [part for part in named_custom_parts(study) if part[0] not in _AFTER_TRAINING]
    keys = {code_key(*part) for part in parts}
    code = {key: digest for key, digest in study.code.items() if key in keys}
    study = study.model_copy(update={"code": code})
    excluded = DESCRIPTIVE_SETTINGS | _NOT_IN_RUN_KEY
    settings = _settings(study, excluded | {"shadow"} if is_shadow_separate else excluded)
    # For CPUs, the device is left out, since the keys of the first version contained no device.
    device = [] if kind == "cpu" else [kind]
    return _digest([settings, seed, *device])


def named_custom_parts(study: AnyStudy) -> list[tuple[str, str]]:
    """Return kind and name of all parts that are custom or from other installed packages."""
    return [
        (kind, name)
        for kind, name in _parts(study)
        if is_custom(name, DATA_SET_PREFIXES if kind == "data set" else ())
        or name in installed_entry_points(kind)
    ]


def _parts(study: AnyStudy) -> list[tuple[str, str]]:
    if isinstance(study, GameStudy):
        return [
            ("data set", study.data.name),
            ("extractor", study.samples.features),
            ("defense", study.mechanism.name),
            ("defense", study.rounds.defense),
        ]
    # The number of clients does not affect which defenses are used.
    parts = [part for group in study.defense.groups(clients=0) for part in group.parts]
    filters = [part.options.get("path") for part in parts if part.name == "filter"]
    return [
        ("data set", study.data.name),
        *([("data set", study.pretraining.data.name)] if study.pretraining else ()),
        *(("model", model.name) for model in study.models or (study.model,)),
        ("task", study.task.name),
        ("algorithm", study.algorithm.name),
        ("partition", study.partition.scheme),
        ("view", study.audit.view),
        ("server", study.server.name),
        *(("defense", part.name) for part in parts),
        *(("filter", path) for path in filters if isinstance(path, str)),
        ("measure of risk", study.risk.measure),
        *(("attack", name) for name in study.attacks),
        *(("metric", name) for name in study.figures.metrics),
    ]


def with_code(study: StudyKind) -> StudyKind:
    """Return the study with a digest of the source code of each custom part.

    Raises:
        BadInput: A module cannot be imported or is not trusted, or its code differs from the code
            that the study names.
    """
    parts = named_custom_parts(study)
    for kind, name in parts:
        if kind == "data set":
            # For a misspelt prefix, this raises a better error than a failed import.
            custom_source(name)
    code = source_digests(parts)
    modules = {key.partition(":")[0] for key in code if not is_not_importable(key)}
    for key, digest in study.code.items():
        is_module = key in modules
        # A file or an object that the study no longer uses has no digest here, and is not checked.
        current = module_digest(key) if is_module else code.get(key, digest)
        if current == digest:
            continue
        if is_not_importable(key):
            raise BadInput(
                f"{key!r} has changed since the audit {study.name!r} began; restore it, or choose "
                "another output folder"
            )
        what = f"the module {key!r}" if is_module else f"{key!r}"
        raise BadInput(
            f"{what} has changed since {study.name!r} was written: its source has the SHA-256 "
            f"{current[:16]}... instead of {digest[:16]}...; restore the file, or remove its entry "
            "from [code] and run the study again"
        )
    return cast(StudyKind, study.model_copy(update={"code": code}))


def _settings(study: AnyStudy, excluded: Collection[str]) -> dict[str, object]:
    unused = {"attack_set"} if isinstance(study, Study) and study.attacks else set()
    settings = study.model_dump(mode="json", exclude={*excluded, *unused, *_unused_sections(study)})
    for dotted, default in _ADDED_SETTINGS.items():
        *path, last = dotted.split(".")
        table: object = settings
        for section in path:
            table = table.get(section) if isinstance(table, dict) else None
        if isinstance(table, dict) and last in table and table[last] == default:
            del table[last]
    label = study.defense.label if isinstance(study, Study) else ""
    for name in ADVERSARY_FEDERATIONS:
        table = settings.get(name)
        # ``defense`` of the adversary's federations: "same" uses the study's defense, "none" none.
        # Older versions had no such setting and behaved as with "none". If the study has no
        # defense, both values have the same effect.
        if isinstance(table, dict) and "none" in (table["defense"], label):
            del table["defense"]
    return settings


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
