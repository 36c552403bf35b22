"""The folder of a study: checks against overwriting another study, and growth of a study."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedaudit.attacks import SET_SETTINGS, attack_set
from fedaudit.core.errors import BadInput, Damaged, FedauditError, option, setting
from fedaudit.core.files import (
    RECORD_FILE,
    REPORT_FILE,
    SCORES_FILE,
    exclusive_access,
    read_object,
    refuse_absent,
    write_object,
)
from fedaudit.plan.games import GameStudy, Plan, plan_from
from fedaudit.plan.identity import FOR_PEOPLE, settings_of
from fedaudit.plan.sections import Study
from fedaudit.results.older import GROWTH, resolve_older_settings
from fedaudit.results.text import one_line, plain, plain_json
from fedaudit.study.running.outputs import refuse_page_alone

if TYPE_CHECKING:
    from fedaudit.results.record import Record

AFTER_A_LOOK = "chosen after a look at the figures"
"""Words by which a record's note on growth is recognised."""

_LONGEST_NAME = 500
"""Largest number of characters of an added name."""
_MOST_NAMES = 10_000
"""Largest number of added names of one kind."""

_LISTS = ("metrics", "fprs")
_SWITCHES = ("planted_leak", "blind_classifier")
_TABLES = ("references", "unlearning")
"""Tables that train further federations, and leave the runs as they are."""


class Growth(NamedTuple):
    """Names of the seeds, attacks and settings that were added to a study."""

    seeds: list[str]
    attacks: list[str]
    figures: list[str]

    def __str__(self) -> str:
        added = {"seed": self.seeds, "attack": self.attacks, "setting": self.figures}
        parts = [
            f"the {kind}{'s' if len(names) > 1 else ''} {', '.join(names)}"
            for kind, names in added.items()
            if names
        ]
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def growth_of(before: Study, after: Study) -> Growth | None:
    """Return what was added to a study; None if other settings differ.

    Args:
        before: The study that was run.
        after: The study to run now. It may have more seeds, attacks, metrics and false-positive
            rates, list more exposed members, turn controls on, and have a table of references or of
            unlearning. All other settings must be the same.
    """
    (fixed, old), (other_fixed, new) = _split(before), _split(after)
    if fixed != other_fixed or any(not old[name] <= new[name] for name in old):
        return None
    added = {name: sorted(new[name] - old[name]) for name in new}
    return Growth(
        seeds=[str(seed) for seed in after.seeds if seed not in before.seeds],
        attacks=[name for name in _attacks(after) if name not in _attacks(before)],
        figures=[name for name, values in added.items() if values and name not in _LISTED_APART],
    )


_LISTED_APART = ("seeds", "attacks", "code")


def _split(study: Study) -> tuple[dict[str, object], dict[str, frozenset[str]]]:
    """Return the settings that cannot grow, and those that can, as sets."""
    values = {
        name: value
        for name, value in settings_of(study).items()
        if name not in (*_LISTED_APART, *_TABLES, "attack_set", "figures")
    }
    figures = study.figures.model_dump(mode="json")
    parts = {
        "seeds": frozenset(map(str, study.seeds)),
        "attacks": frozenset(map(_text, _attacks(study).items())),
        "code": frozenset(map(_text, study.code.items())),
        "figures.most_exposed": frozenset(map(str, range(figures.pop("most_exposed")))),
    }
    for name in _LISTS:
        parts[f"figures.{name}"] = frozenset(map(_text, figures.pop(name)))
    for name in _SWITCHES:
        parts[f"figures.{name}"] = frozenset({"true"} if figures.pop(name) else ())
    for name in _TABLES:
        table = getattr(study, name)
        parts[name] = frozenset() if table is None else frozenset({table.model_dump_json()})
    return {**values, "figures": figures}, parts


def _attacks(study: Study) -> Mapping[str, object]:
    """Return the settings of the attacks that a study names, or of those in its set."""
    settings = SET_SETTINGS.get(study.attack_set, {})
    return study.attacks or {name: settings.get(name, {}) for name in attack_set(study.attack_set)}


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def total_growth(before: Growth, added: Growth) -> Growth:
    """Return what was added before and what is added now, with names as the study file has them."""
    both = zip(before, added, strict=True)
    return Growth(*(list(dict.fromkeys([*old, *map(_cut, new)])) for old, new in both))


def growth_notes(growth: Growth | None) -> list[str]:
    """Return a note on what was added to a study after its first record, if anything was."""
    if growth is None or not any(growth):
        return []
    is_single = sum(map(len, growth)) == 1
    return [
        plain(
            f"Whether {growth} {'was' if is_single else 'were'} {AFTER_A_LOOK}: "
            f"{'it was' if is_single else 'they were'} added to a study that had a record. Tests "
            "are corrected over all attacks, and not over such a choice."
        )
    ]


def growth_from(values: object, source: str) -> Growth | None:
    """Return what was added to a study after its first record; None without a record.

    Raises:
        Damaged: The values are something else.
    """
    if values is None:
        return None
    if not (
        isinstance(values, dict)
        and values.keys() == {*Growth._fields}
        and all(
            isinstance(names, list) and len(names) <= _MOST_NAMES and all(map(_is_cut, names))
            for names in values.values()
        )
    ):
        raise Damaged(
            f"the list in {source} of additions to the study is damaged; restore the file "
            "from a copy"
        )
    return Growth(**values)


def _cut(name: str) -> str:
    return one_line(name)[:_LONGEST_NAME]


def _is_cut(name: object) -> bool:
    return isinstance(name, str) and name != "" and name == _cut(name)


STUDY_FILE = "study.json"
ATTACKS = frozenset({"attacks", "attack_set", "code"})
"""Settings that may differ between two attacks on one recording."""

RECORDING = "the folder of a study that was run, or of a live recording"


def recorded_study(recording: Path) -> Study:
    """Return the study in a folder, whose measurements can be attacked.

    Raises:
        BadInput: As :func:`read_study_file`, or the folder holds games.
        Damaged: As :func:`read_study_file`.
    """
    study = read_study_file(recording).study
    if isinstance(study, GameStudy):
        raise BadInput(
            f"{recording} holds security games, which keep no rounds that could be attacked; "
            "change the study and run it again"
        )
    return study


class _StudyFile(NamedTuple):
    """Contents of a study's file.

    Attributes:
        study: The study.
        growth: What was added to it after its first record; None before that.
    """

    study: Plan
    growth: Growth | None


def read_study_file(recording: Path) -> _StudyFile:
    """Return the study in a folder, and what was added to it.

    Raises:
        BadInput: The folder holds no study.
        Damaged: The study's file cannot be read.
    """
    refuse_absent(recording, RECORDING)
    path = recording / STUDY_FILE
    if not path.is_file():
        fault = f"its {STUDY_FILE} is not a regular file"
        fault = fault if path.exists() else f"it has no {STUDY_FILE}"
        raise BadInput(f"{recording} is not a recording: {fault}; check the path")
    values = read_object(path)
    growth = growth_from(values.pop(GROWTH, None), str(path))
    return _StudyFile(plan_from(resolve_older_settings(values), source=str(path)), growth)


def as_begun(study: Study, out: Path) -> Study:
    """Return the study with the number of samples for source inference that its folder has.

    If a study does not set the number, it resumes with the number of its start, also if another
    version started it or its attacks have changed.

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


def claim(out: Path, study: Plan) -> Growth | None:
    """Write the study to its folder, which may hold a smaller version of the same study.

    Returns:
        What was added after the first record; None without a record.

    Raises:
        BadInput: The folder holds another study, its record, or a larger version of the same study,
            or cannot be written.
        Damaged: The study or record in the folder cannot be read.
    """
    refuse_other_study(out, study)
    with exclusive_access(out):
        return _write_study_file(out, study, has_record=(out / RECORD_FILE).exists())


def claim_record(out: Path, study: Plan) -> None:
    """Note in the study's file that the study now has a record.

    Another process may have written a larger version of the study since :func:`claim`. The folder
    must be locked by this process; see :func:`fedaudit.core.files.exclusive_access`.

    Raises:
        BadInput: As :func:`claim`.
        Damaged: The study or record in the folder cannot be read.
    """
    _write_study_file(out, study, has_record=True)


def _write_study_file(out: Path, study: Plan, *, has_record: bool) -> Growth | None:
    added = refuse_other_study(out, study)
    record = refuse_other_record(out, study)
    growth = None
    if (out / STUDY_FILE).exists():
        growth = read_study_file(out).growth
    elif record is not None:
        added = _growth_since(record, out, study)
    if growth is None and has_record:
        growth = Growth([], [], [])
    if growth is not None and added is not None:
        growth = total_growth(growth, added)
    values = study.model_dump(mode="json")
    if growth is not None:
        values[GROWTH] = growth._asdict()
    write_object(out / STUDY_FILE, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    return growth


def _growth_since(record: "Record", out: Path, study: Plan) -> Growth | None:
    """Return what was added to the study of a record, if the study's file is missing."""
    if any(AFTER_A_LOOK in sentence for sentence in record.untested):
        raise BadInput(
            f"{out} holds the record of a study that was extended, and no {STUDY_FILE}, which "
            f"lists what was added; restore that file, or choose another folder with "
            f"{option('out')}"
        )
    recorded = plan_from(resolve_older_settings(record.config), source=str(out / RECORD_FILE))
    if isinstance(recorded, Study) and isinstance(study, Study):
        return growth_of(recorded, study)
    return None


def refuse_other_study(out: Path, study: Plan) -> Growth | None:
    """Return what a study adds to the study in a folder; None if it adds nothing.

    Raises:
        BadInput: The folder holds another study, or a larger version of the same study, or cannot
            be used.
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
        growth, missing = growth_of(recorded, study), growth_of(study, recorded)
        if growth is not None:
            return growth
        if missing is not None:
            raise BadInput(
                f"{out} holds a larger version of this study (with {missing}), whose record would "
                f"be replaced by a smaller one; name these too, or choose another folder with "
                f"{option('out')}"
            )
    _refuse_other_weights(out, before, after)
    raise BadInput(
        f"{out} holds a study with other settings ({difference(before, after)}); choose "
        f"another folder with {option('out')}, or delete it (only seeds, attacks and figures can "
        "be added to a study)"
    )


def _refuse_other_weights(
    out: Path, before: Mapping[str, object], after: Mapping[str, object]
) -> None:
    """Raise if two studies differ in the weights of a network that was passed as an object."""
    networks = [_network_class(settings) for settings in (before, after)]
    if networks[0] and networks[0] == networks[1] and before["model"] != after["model"]:
        raise BadInput(
            f"{out} holds an audit of a network of {networks[0]!r} with other initial weights or "
            "settings; seed before you construct the network (torch.manual_seed), pass its class "
            "instead, whose weights the audit's seed decides, or choose another folder with "
            f"{option('out')}"
        )


def _network_class(settings: Mapping[str, object]) -> str:
    """Return the class of a study's network if it is an object, or ""."""
    model = settings.get("model")
    name, is_object, _ = str(model.get("name") if isinstance(model, dict) else "").partition("#")
    return name if is_object else ""


def refuse_other_record(
    folder: Path, ours: Plan | Mapping[str, object], *, ignored: Collection[str] = ()
) -> "Record | None":
    """Return the record in a folder if it may be replaced; None without a record.

    Raises:
        BadInput: The folder holds a record of other settings or one that cannot be read, a
            report.html that fedaudit did not write, or scores without a record.
    """
    path = folder / RECORD_FILE
    refuse_page_alone(folder / REPORT_FILE, path)
    if not path.exists():
        if (folder / SCORES_FILE).exists():
            raise BadInput(
                f"{folder} holds a {SCORES_FILE} without a {RECORD_FILE}, so that it may be from "
                "another program and is not replaced; rename it, or choose another folder with "
                f"{option('out')}"
            )
        return None
    from fedaudit.results.read import read_record

    try:
        record = read_record(path)
        config = record.config
        recorded = (
            config
            if record.watched
            else plan_from(resolve_older_settings(config), source=str(path))
        )
    except FedauditError as refusal:
        raise BadInput(
            f"{folder} holds a {RECORD_FILE} that cannot be read as a record of this study; give "
            f"another folder with {option('out')}, or delete the file"
        ) from refusal
    if isinstance(recorded, Study) and isinstance(ours, Study) and growth_of(recorded, ours):
        return record
    other, new = (_settled(settings, ignored) for settings in (recorded, ours))
    if other != new:
        raise BadInput(
            f"{folder} holds the record of other settings ({difference(other, new)}), which "
            f"would be lost; give another folder with {option('out')}, or delete it"
        )
    return record


def replaced_attacks(record: "Record | None", names: Collection[str]) -> str:
    """Describe the attacks of a record that a record of other attacks replaces.

    Args:
        record: The record that is replaced.
        names: Attacks of the new record; all that the recording allows if empty.

    Returns:
        A sentence; empty if no attack is lost.
    """
    before = [row.name for row in record.attacks if row.status == "run"] if record else []
    lost = [name for name in before if names and name not in names]
    if not lost:
        return ""
    return (
        f"the record of {', '.join(lost)}, by that of {', '.join(names)}; name all of them to have "
        f"them in one record, or give another folder with {option('out')}"
    )


def _settled(settings: Plan | Mapping[str, object], ignored: Collection[str]) -> object:
    """Return settings as they are read from a record's file."""
    values = settings if isinstance(settings, Mapping) else settings_of(settings)
    ignored = {*FOR_PEOPLE, *ignored}
    values = {name: value for name, value in values.items() if name not in ignored}
    return json.loads(json.dumps(plain_json(values)))


def difference(before: object, after: object, name: str = "") -> str:
    """Describe the first setting that differs, by its dotted name and both values."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *after]:
            if before.get(key) != after.get(key):
                inner = f"{name}.{key}" if name else str(key)
                return difference(before.get(key), after.get(key), inner)
    return f"{setting(name)} is {_short(before)} there and {_short(after)} here"


def _short(value: object) -> str:
    """Return a setting's value for a message. An attack without settings is an empty table."""
    if value is None:
        return "left out"
    if value == {}:
        return "named"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
