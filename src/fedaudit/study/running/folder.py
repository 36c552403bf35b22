"""Folder of a study: protection of other results, and additions to a study that already ran.

Seeds, attacks and some evaluation settings can be added to a study without repeating its runs.
``study.json`` lists these *additions*, because the correction of the tests does not cover attacks
that were chosen after a look at the results.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedaudit.attacks import SET_SETTINGS, attack_set
from fedaudit.core.errors import BadInput, Damaged, FedauditError, format_option, format_setting
from fedaudit.core.files import (
    RECORD_FILE,
    REPORT_FILE,
    SCORES_FILE,
    exclusive_access,
    raise_if_absent,
    read_object,
    write_object,
)
from fedaudit.plan.games import AnyStudy, GameStudy, any_study_from
from fedaudit.plan.identity import DESCRIPTIVE_SETTINGS, settings_of
from fedaudit.plan.sections import Study
from fedaudit.results.older import ADDITIONS_KEY, resolve_older_settings
from fedaudit.results.text import clean_text, one_line, plain_json
from fedaudit.study.running.outputs import raise_if_page_without_source

if TYPE_CHECKING:
    from fedaudit.results.record import Record

POST_HOC_MARKER = "post-hoc choice of"
"""Text in a record's note on additions, by which the note is recognised."""
_OLDER_MARKER = "chosen after a look at the figures"
"""Text in the note on additions of older versions."""

_MAX_NAME = 500
"""Maximum number of characters of an added name."""
_MAX_NAMES = 10_000
"""Maximum number of added names of one kind."""

_LISTS = ("metrics", "fprs")
"""Evaluation settings to which values can be added."""
_SWITCHES = ("planted_leak", "blind_classifier")
"""Evaluation settings that can be turned on."""
_TABLES = ("references", "unlearning")
"""Tables that can be added, since they train auxiliary federations and do not change the runs."""


class Additions(NamedTuple):
    """Names of the seeds, attacks and settings that were added to a study."""

    seeds: list[str]
    attacks: list[str]
    settings: list[str]

    def __str__(self) -> str:
        added = {"seed": self.seeds, "attack": self.attacks, "setting": self.settings}
        parts = [
            f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}"
            for kind, names in added.items()
            if names
        ]
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)

    def file_values(self) -> dict[str, list[str]]:
        """Return the lists of names by their keys in the study's file."""
        return dict(zip(_FILE_KEYS, self, strict=True))


_FILE_KEYS = ("seeds", "attacks", "figures")
"""Keys of the fields of :class:`Additions` in the study's file."""


def find_additions(before: Study, after: Study) -> Additions | None:
    """Return the additions to a study; None if other settings differ.

    Args:
        before: The study that was run.
        after: The study to run now. It may have more seeds, attacks, metrics and false-positive
            rates, list more exposed members, turn controls on, and have a table of references or of
            unlearning. All other settings must be the same.
    """
    fixed_before, old = _split(before)
    fixed_after, new = _split(after)
    if fixed_before != fixed_after or any(not old[name] <= new[name] for name in old):
        return None
    changed = [name for name in new if new[name] - old[name]]
    return Additions(
        seeds=[str(seed) for seed in after.seeds if seed not in before.seeds],
        attacks=[name for name in _attacks(after) if name not in _attacks(before)],
        settings=[name for name in changed if name not in _NOT_SETTINGS],
    )


_NOT_SETTINGS = ("seeds", "attacks", "code")
"""Names that are not in ``Additions.settings``. The code is the code of attacks."""


def _split(study: Study) -> tuple[dict[str, object], dict[str, frozenset[str]]]:
    """Return the fixed settings, and each setting that accepts additions as a set of texts.

    A setting has additions if the set of the earlier study is a proper subset of the new set.
    """
    fixed = {
        name: value
        for name, value in settings_of(study).items()
        if name not in (*_NOT_SETTINGS, *_TABLES, "attack_set", "figures")
    }
    figures = study.figures.model_dump(mode="json")
    extensible = {
        "seeds": frozenset(map(str, study.seeds)),
        "attacks": frozenset(map(_text, _attacks(study).items())),
        "code": frozenset(map(_text, study.code.items())),
        "figures.most_exposed": frozenset(map(str, range(figures.pop("most_exposed")))),
    }
    for name in _LISTS:
        extensible[f"figures.{name}"] = frozenset(map(_text, figures.pop(name)))
    for name in _SWITCHES:
        extensible[f"figures.{name}"] = frozenset({"true"} if figures.pop(name) else ())
    for name in _TABLES:
        table = getattr(study, name)
        extensible[name] = frozenset() if table is None else frozenset({table.model_dump_json()})
    return {**fixed, "figures": figures}, extensible


def _attacks(study: Study) -> Mapping[str, object]:
    """Return the settings of the attacks that a study names, or those of its attack set."""
    settings = SET_SETTINGS.get(study.attack_set, {})
    return study.attacks or {name: settings.get(name, {}) for name in attack_set(study.attack_set)}


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def total_additions(earlier: Additions, added: Additions) -> Additions:
    """Return earlier and new additions together, with names shortened for the study's file."""
    pairs = zip(earlier, added, strict=True)
    return Additions(*(list(dict.fromkeys([*old, *map(_shorten, new)])) for old, new in pairs))


def additions_note(additions: Additions | None) -> list[str]:
    """Return a note on the additions after the first record; empty if nothing was added."""
    if additions is None or not any(additions):
        return []
    return [
        clean_text(
            f"The {POST_HOC_MARKER} {additions} (added after a first result). Holm's correction "
            "covers all attacks, but not this choice."
        )
    ]


def parse_additions(values: object, source: str) -> Additions | None:
    """Return the additions in a study's file; None if the study has no record yet.

    Raises:
        Damaged: The values are not lists of names.
    """
    if values is None:
        return None
    if not (
        isinstance(values, dict)
        and values.keys() == {*_FILE_KEYS}
        and all(
            isinstance(names, list) and len(names) <= _MAX_NAMES and all(map(_is_valid_name, names))
            for names in values.values()
        )
    ):
        raise Damaged(
            f"the list of additions to the study in {source} is damaged; restore the file from a "
            "copy"
        )
    return Additions(*(values[key] for key in _FILE_KEYS))


def _shorten(name: str) -> str:
    return one_line(name)[:_MAX_NAME]


def _is_valid_name(name: object) -> bool:
    return isinstance(name, str) and name != "" and name == _shorten(name)


STUDY_FILE = "study.json"
REATTACK_MAY_CHANGE = frozenset({"attacks", "attack_set", "code"})
"""Settings that may differ between a recording and further attacks on it."""

RECORDING = "the folder of a study that was run, or of a live recording"
"""What a recording is, for messages."""


def recorded_study(folder: Path) -> Study:
    """Return the study in a folder whose measurements can be attacked.

    Raises:
        BadInput: As :func:`read_study_file`, or the folder has security games.
        Damaged: As :func:`read_study_file`.
    """
    study = read_study_file(folder).study
    if isinstance(study, GameStudy):
        raise BadInput(
            f"{folder} has security games, which store no rounds to attack; change the study and "
            "run it again"
        )
    return study


class _StudyFile(NamedTuple):
    """Study and additions in a study's file.

    Attributes:
        study: The study.
        additions: Additions after the first record; None if the study has no record yet.
    """

    study: AnyStudy
    additions: Additions | None


def read_study_file(folder: Path) -> _StudyFile:
    """Return the study in a folder and its additions.

    Raises:
        BadInput: The folder has no study.
        Damaged: The study's file cannot be read.
    """
    raise_if_absent(folder, RECORDING)
    path = folder / STUDY_FILE
    if not path.is_file():
        if path.exists():
            problem = f"its {STUDY_FILE} is not a regular file"
        else:
            problem = f"it has no {STUDY_FILE}"
        raise BadInput(f"{folder} is not a recording: {problem}; check the path")
    values = read_object(path)
    additions = parse_additions(values.pop(ADDITIONS_KEY, None), str(path))
    return _StudyFile(any_study_from(resolve_older_settings(values), source=str(path)), additions)


def with_stored_source_samples(study: Study, out: Path) -> Study:
    """Return the study with the number of source-inference samples that its folder states.

    A stopped study that does not set this number must resume with the stored number. The default
    may differ if another version of fedaudit started the study, or if attacks were added to it.

    Raises:
        Damaged: The study in the folder cannot be read.
    """
    if study.audit.sources is not None or not (out / STUDY_FILE).is_file():
        return study
    recorded = read_study_file(out).study
    if isinstance(recorded, GameStudy) or recorded.audit.draw != study.audit.draw:
        return study
    audit = study.audit.model_copy(update={"sources": recorded.audit.sources})
    return study.model_copy(update={"audit": audit})


def store_study(out: Path, study: AnyStudy) -> Additions | None:
    """Write the study to its folder, which may contain the same study without some additions.

    Returns:
        Additions after the first record; None if the study has no record yet.

    Raises:
        BadInput: The folder has another study or its record, or the same study with further
            additions, or it cannot be written.
        Damaged: The study or record in the folder cannot be read.
    """
    additions_or_raise(out, study)
    with exclusive_access(out):
        return _write_study_file(out, study, has_record=(out / RECORD_FILE).exists())


def mark_recorded(out: Path, study: AnyStudy) -> None:
    """Mark in the study's file that the study now has a record.

    This raises an error if another process has added to the study since :func:`store_study`. This
    process must have locked the folder; see :func:`fedaudit.core.files.exclusive_access`.

    Raises:
        BadInput: As :func:`store_study`.
        Damaged: The study or record in the folder cannot be read.
    """
    _write_study_file(out, study, has_record=True)


def _write_study_file(out: Path, study: AnyStudy, *, has_record: bool) -> Additions | None:
    added = additions_or_raise(out, study)
    record = replaceable_record_or_raise(out, study)
    total = None
    if (out / STUDY_FILE).exists():
        total = read_study_file(out).additions
    elif record is not None:
        added = _additions_since(record, out, study)
    if total is None and has_record:
        total = Additions([], [], [])
    if total is not None and added is not None:
        total = total_additions(total, added)
    values = study.model_dump(mode="json")
    if total is not None:
        values[ADDITIONS_KEY] = total.file_values()
    write_object(out / STUDY_FILE, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    return total


def _additions_since(record: "Record", out: Path, study: AnyStudy) -> Additions | None:
    """Return the additions to the study of a record, if its study file is missing."""
    markers = (POST_HOC_MARKER, _OLDER_MARKER)
    if any(marker in sentence for sentence in record.untested for marker in markers):
        raise BadInput(
            f"{out} has the record of a study with additions, but no {STUDY_FILE} that lists the "
            f"additions; restore that file, or choose another folder with {format_option('out')}"
        )
    recorded = any_study_from(resolve_older_settings(record.config), source=str(out / RECORD_FILE))
    if isinstance(recorded, Study) and isinstance(study, Study):
        return find_additions(recorded, study)
    return None


def additions_or_raise(out: Path, study: AnyStudy) -> Additions | None:
    """Return the additions of a study to the study in a folder; None if they are the same.

    Raises:
        BadInput: The folder has another study, or the same study with further additions, or it
            cannot be used.
        Damaged: The study in the folder cannot be read.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        has_study = (out / STUDY_FILE).exists()
    except (OSError, ValueError) as error:
        raise BadInput(f"{out} cannot be used ({error}); choose another folder") from error
    if not has_study:
        return None
    recorded = read_study_file(out).study
    before, after = settings_of(recorded), settings_of(study)
    if before == after:
        return None
    if isinstance(recorded, Study) and isinstance(study, Study):
        additions = find_additions(recorded, study)
        missing = find_additions(study, recorded)
        if additions is not None:
            return additions
        if missing is not None:
            raise BadInput(
                f"{out} has this study with additions ({missing}), whose record would be replaced "
                f"by a smaller one; add {missing} to the study, or choose another folder with "
                f"{format_option('out')}"
            )
    _raise_if_other_weights(out, before, after)
    raise BadInput(
        f"{out} has a study with other settings ({describe_difference(before, after)}); choose "
        f"another folder with {format_option('out')}, or delete it (only seeds, attacks and "
        "evaluation settings can be added to a study)"
    )


def _raise_if_other_weights(
    out: Path, before: Mapping[str, object], after: Mapping[str, object]
) -> None:
    """Raise if two studies differ in the weights of a network that was passed as an object."""
    networks = [_network_class(settings) for settings in (before, after)]
    if networks[0] and networks[0] == networks[1] and before["model"] != after["model"]:
        raise BadInput(
            f"{out} has an audit of a network {networks[0]!r} with other initial weights or "
            "settings; seed torch before you construct the network (torch.manual_seed), pass its "
            "class instead (the audit's seed then determines its weights), or choose another "
            f"folder with {format_option('out')}"
        )


def _network_class(settings: Mapping[str, object]) -> str:
    """Return the class of a network that was passed as an object; empty for other networks."""
    model = settings.get("model")
    name, is_object, _ = str(model.get("name") if isinstance(model, dict) else "").partition("#")
    return name if is_object else ""


def replaceable_record_or_raise(
    folder: Path, current: AnyStudy | Mapping[str, object], *, ignored: Collection[str] = ()
) -> "Record | None":
    """Return the record in a folder if it may be replaced; None if there is no record.

    Args:
        folder: The folder.
        current: Settings of the study or recording whose record will be written.
        ignored: Settings that may differ.

    Raises:
        BadInput: The folder has a record with other settings, an unreadable record, a report.html
            that fedaudit did not write, or scores without a record.
    """
    path = folder / RECORD_FILE
    raise_if_page_without_source(folder / REPORT_FILE, path)
    if not path.exists():
        if (folder / SCORES_FILE).exists():
            raise BadInput(
                f"{folder} has a {SCORES_FILE} without a {RECORD_FILE}; it is not replaced, "
                "since another program may have written it; rename it, or choose another folder "
                f"with {format_option('out')}"
            )
        return None
    from fedaudit.results.read import read_record

    try:
        record = read_record(path)
        config = record.config
        recorded = (
            config
            if record.watched
            else any_study_from(resolve_older_settings(config), source=str(path))
        )
    except FedauditError as error:
        raise BadInput(
            f"{folder} has a {RECORD_FILE} that cannot be read as a record of this study; "
            f"choose another folder with {format_option('out')}, or delete the file"
        ) from error
    if (
        isinstance(recorded, Study)
        and isinstance(current, Study)
        and find_additions(recorded, current)
    ):
        return record
    old, new = (_after_json_roundtrip(settings, ignored) for settings in (recorded, current))
    if old != new:
        raise BadInput(
            f"{folder} has a record with other settings ({describe_difference(old, new)}), which "
            f"would be lost; choose another folder with {format_option('out')}, or delete this one"
        )
    return record


def replaced_attacks(record: "Record | None", names: Collection[str]) -> str:
    """Describe the attacks that are lost if a record is replaced by a record of other attacks.

    Args:
        record: The record that is replaced.
        names: Attacks of the new record; empty if it has all attacks that the recording allows.

    Returns:
        A sentence; empty if no attack is lost.
    """
    old_names = [row.name for row in record.attacks if row.status == "run"] if record else []
    lost = [name for name in old_names if names and name not in names]
    if not lost:
        return ""
    return (
        f"the record of {', '.join(lost)}, by the record of {', '.join(names)}; name all of these "
        f"attacks to keep them in one record, or choose another folder with {format_option('out')}"
    )


def _after_json_roundtrip(
    settings: AnyStudy | Mapping[str, object], ignored: Collection[str]
) -> object:
    """Return settings in the form in which they are read from a record's file."""
    values = settings if isinstance(settings, Mapping) else settings_of(settings)
    ignored = {*DESCRIPTIVE_SETTINGS, *ignored}
    values = {name: value for name, value in values.items() if name not in ignored}
    return json.loads(json.dumps(plain_json(values)))


def describe_difference(before: object, after: object, name: str = "") -> str:
    """Describe the first setting that differs, by its dotted name and both values."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *after]:
            if before.get(key) != after.get(key):
                dotted = f"{name}.{key}" if name else str(key)
                return describe_difference(before.get(key), after.get(key), dotted)
    return f"{format_setting(name)} was {_describe(before)} and is now {_describe(after)}"


def _describe(value: object) -> str:
    """Describe a setting's value for a message."""
    if value is None:
        return "left out"
    # An attack that is named without settings has an empty table.
    if value == {}:
        return "named"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
