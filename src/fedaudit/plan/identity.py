"""Identity of studies and runs: everything that changes a result."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import TypeVar, cast

from fedaudit.core.errors import BadInput
from fedaudit.core.importing import (
    code_key,
    installed,
    is_handed_over,
    is_own,
    module_digest,
    sources_of,
)
from fedaudit.datasets.catalog import READERS, custom_source
from fedaudit.plan.games import GameStudy, Plan
from fedaudit.plan.optional import OPTIONAL
from fedaudit.plan.sections import RiskSection, Study
from fedaudit.results.older import DEFENDED_LIKE_THE_RUN, FIRST_SET
from fedaudit.results.text import plain_json

PlanKind = TypeVar("PlanKind", bound=Plan)

_AFTER_TRAINING = {"attack", "metric"}
FOR_PEOPLE = {"about", "hours"}
_AFTERWARDS = {"name", "seeds", "figures", "attacks", "attack_set", "references", "unlearning"}
_NEWER: Mapping[str, object] = {
    "algorithm": {"name": "fedavg", "options": {}},
    "server": {"name": "honest", "options": {}},
    "code": {},
    "data.classes": [],
    "data.first_class": 0,
    "models": [],
    "pretraining": None,
    "task": {"name": "classification", "options": {}},
    **dict.fromkeys(OPTIONAL),
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
"""Settings that older versions did not have, with the value under which a study is what it was."""


def settings_of(study: Plan) -> dict[str, object]:
    """All settings that change a result, as plain values."""
    return _settings(study, FOR_PEOPLE)


def config_of(study: Plan) -> dict[str, object]:
    """All settings as a record has them: what a user wrote may hold any character."""
    values = study.model_dump(mode="json", exclude=_off(study))
    return {name: plain_json(value) for name, value in values.items()}


def _off(study: Plan) -> set[str]:
    """Settings of what is not there: most studies have no parts of their own."""
    undetected = isinstance(study, GameStudy) and not study.detector.runs
    return {*(() if study.code else ("code",)), *(("detector",) if undetected else ())}


def study_key(study: Plan) -> str:
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
    # Which attacks there are makes no other run, nor does what they are.
    parts = [part for part in own_parts(study) if part[0] not in _AFTER_TRAINING]
    trained = {code_key(*part) for part in parts}
    code = {key: digest for key, digest in study.code.items() if key in trained}
    study = study.model_copy(update={"code": code})
    settings = _settings(study, FOR_PEOPLE | _AFTERWARDS | ({"shadow"} if apart else set()))
    # A run on the CPU keeps the name it had before there were others.
    device = [] if kind == "cpu" else [kind]
    return _digest([settings, seed, *device])


def own_parts(study: Plan) -> list[tuple[str, str]]:
    """Kind and name of all parts that are no catalogue's: the user's own, or of a package."""
    given = _parts_of_games(study) if isinstance(study, GameStudy) else _parts(study)
    return [
        (kind, name)
        for kind, name in given
        if is_own(name, READERS if kind == "data set" else ()) or name in installed(kind)
    ]


def _parts_of_games(study: GameStudy) -> list[tuple[str, str]]:
    return [
        ("data set", study.data.name),
        ("extractor", study.records.features),
        ("defense", study.mechanism.name),
        ("defense", study.rounds.defense),
    ]


def _parts(study: Study) -> list[tuple[str, str]]:
    parts = [part for group in study.defense.groups(0) for part in group.parts]
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


def with_code(study: PlanKind) -> PlanKind:
    """Return the study with the digest of the source that defines each of its own parts.

    Raises:
        BadInput: A module cannot be imported or must not be, or a part is another than the one
            that the study was made with.
    """
    parts = own_parts(study)
    for kind, name in parts:
        if kind == "data set":
            # It may be a misspelt format, which a refusal to import does not say.
            custom_source(name)
    found = sources_of(parts)
    modules = {key.partition(":")[0] for key in found if not is_handed_over(key)}
    for key, digest in study.code.items():
        is_module = key in modules
        now = module_digest(key) if is_module else found.get(key, digest)
        if now == digest:
            continue
        if is_handed_over(key):
            raise BadInput(
                f"{key!r} is not what it was when the audit {study.name!r} was begun; take "
                "another folder, or restore it"
            )
        what = f"the module {key!r}" if is_module else f"{key!r}"
        raise BadInput(
            f"{what} is not the one that {study.name!r} was made with: its source has the "
            f"SHA-256 {now[:16]}... instead of {digest[:16]}...; restore the file, or run the "
            "study again without that entry of code"
        )
    return cast(PlanKind, study.model_copy(update={"code": found}))


def _settings(study: Plan, without: Collection[str]) -> dict[str, object]:
    """The settings as plain values; a newer one at its default is not mentioned.

    Studies thus keep the identity, and results on disk the name, that they were made under.
    """
    unused = {"attack_set"} if isinstance(study, Study) and study.attacks else set()
    settings = study.model_dump(mode="json", exclude={*without, *unused, *_off(study)})
    for dotted, default in _NEWER.items():
        *path, last = dotted.split(".")
        place: object = settings
        for section in path:
            place = place.get(section) if isinstance(place, dict) else None
        if isinstance(place, dict) and last in place and place[last] == default:
            del place[last]
    for table in DEFENDED_LIKE_THE_RUN:
        given = settings.get(table)
        # Without a defense both values mean one thing; "none" is what older versions did.
        if isinstance(given, dict) and "none" in (given["defense"], _defense_of(study)):
            del given["defense"]
    return settings


def _defense_of(study: Plan) -> str:
    return study.defense.label if isinstance(study, Study) else ""


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
