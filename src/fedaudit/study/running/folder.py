"""A study's own folder: guards against overwriting another study, and how a study may grow."""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedaudit.core.errors import BadInput, FedauditError, option, setting
from fedaudit.core.files import (
    RECORD_FILE,
    REPORT_FILE,
    SCORES_FILE,
    alone_in,
    read_object,
    refuse_absent,
    write_object,
)
from fedaudit.plan.games import GameStudy, Plan, plan_from
from fedaudit.plan.identity import FOR_PEOPLE, settings_of
from fedaudit.plan.sections import Study
from fedaudit.results.older import GROWTH, resolve_older_settings
from fedaudit.results.text import plain_json
from fedaudit.study.running.outputs import refuse_page_alone

if TYPE_CHECKING:
    from fedaudit.results.record import Record

from fedaudit.attacks import SET_SETTINGS, attack_set
from fedaudit.core.errors import Damaged
from fedaudit.results.text import one_line, plain

AFTER_A_LOOK = "chosen after a look at the figures"
"""What the record says of that."""

_LONGEST_NAME = 500
"""Characters of a name that was added."""
_MOST_NAMES = 10_000
"""Names of one kind that were added."""

_MORE = ("metrics", "fprs")
_SWITCHES = ("planted_leak", "blind_classifier")
_TABLES = ("references", "unlearning")
"""Tables that train federations of their own, next to runs that stay as they are."""


class Growth(NamedTuple):
    """What a study has more than an earlier one, each by name; all empty if they are the same."""

    seeds: list[str]
    attacks: list[str]
    figures: list[str]

    def __str__(self) -> str:
        named = {"seed": self.seeds, "attack": self.attacks, "setting": self.figures}
        parts = [
            f"the {kind}{'s' if len(names) > 1 else ''} {', '.join(names)}"
            for kind, names in named.items()
            if names
        ]
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def growth_of(there: Study, here: Study) -> Growth | None:
    """Return what a study has more than another; None if it is no extension of it.

    Args:
        there: The study that was run.
        here: The one that is asked for. It may have more seeds, attacks, metrics and
            false-positive rates, list more exposed members, turn controls on, and have a table of
            references or of unlearning. Everything else must be the same.
    """
    (fixed, parts), (other, more) = _split(there), _split(here)
    if fixed != other or any(not parts[name] <= more[name] for name in parts):
        return None
    added = {name: sorted(more[name] - parts[name]) for name in more}
    return Growth(
        seeds=[str(seed) for seed in here.seeds if seed not in there.seeds],
        attacks=[name for name in _attacks(here) if name not in _attacks(there)],
        figures=[name for name, values in added.items() if values and name not in _NAMED],
    )


_NAMED = ("seeds", "attacks", "code")


def _split(study: Study) -> tuple[dict[str, object], dict[str, frozenset[str]]]:
    """Return the settings that cannot grow, and as sets those that can."""
    values = {
        name: value
        for name, value in settings_of(study).items()
        if name not in (*_NAMED, *_TABLES, "attack_set", "figures")
    }
    figures = study.figures.model_dump(mode="json")
    parts = {
        "seeds": frozenset(map(str, study.seeds)),
        "attacks": frozenset(map(_text, _attacks(study).items())),
        "code": frozenset(map(_text, study.code.items())),
        "figures.most_exposed": frozenset(map(str, range(figures.pop("most_exposed")))),
    }
    for name in _MORE:
        parts[f"figures.{name}"] = frozenset(map(_text, figures.pop(name)))
    for name in _SWITCHES:
        parts[f"figures.{name}"] = frozenset({"true"} if figures.pop(name) else ())
    for name in _TABLES:
        table = getattr(study, name)
        parts[name] = frozenset() if table is None else frozenset({table.model_dump_json()})
    return {**values, "figures": figures}, parts


def _attacks(study: Study) -> Mapping[str, object]:
    """Settings of the attacks that a study names, or of all in its set."""
    given = SET_SETTINGS.get(study.attack_set, {})
    return study.attacks or {name: given.get(name, {}) for name in attack_set(study.attack_set)}


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def more(known: Growth, added: Growth) -> Growth:
    """Return all that was added to a study, as the study's file keeps it.

    Args:
        known: What was added before.
        added: What is added now.
    """
    both = zip(known, added, strict=True)
    return Growth(*(list(dict.fromkeys([*old, *map(_cut, new)])) for old, new in both))


def growth_notes(growth: Growth | None) -> list[str]:
    """Return a sentence on what was added to a study after it had a record, if anything was."""
    if growth is None or not any(growth):
        return []
    one = sum(map(len, growth)) == 1
    return [
        plain(
            f"Whether {growth} {'was' if one else 'were'} {AFTER_A_LOOK}: "
            f"{'it was' if one else 'they were'} added to a study that had a record. Tests are "
            "corrected over all attacks, and not over such a choice."
        )
    ]


def growth_from(values: object, source: str) -> Growth | None:
    """Return what was added to a study that has a record; None if it has none yet.

    Args:
        values: What the study's file holds of it: lists of short texts, by name.
        source: The file, for refusals.

    Raises:
        Damaged: They are something else.
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
            f"{source} does not say what was added to the study as fedaudit writes it; restore "
            "it from a copy"
        )
    return Growth(**values)


def _cut(name: str) -> str:
    return one_line(name)[:_LONGEST_NAME]


def _is_cut(name: object) -> bool:
    return isinstance(name, str) and name != "" and name == _cut(name)


STUDY_FILE = "study.json"
ATTACKS = frozenset({"attacks", "attack_set", "code"})
"""Settings in which two attacks on one recording may differ."""

RECORDING = "the folder of a study that was carried out, or of a live recording"


def recorded_study(recording: Path) -> Study:
    """The settings of the study that a folder holds, whose measurements can be attacked.

    Raises:
        BadInput: There is none in it.
        Damaged: The settings cannot be read.
    """
    study = _recorded(recording)
    if isinstance(study, GameStudy):
        raise BadInput(
            f"{recording} holds security games, which keep no rounds that could be attacked; "
            "change the study and run it again"
        )
    return study


class _Kept(NamedTuple):
    """What a study's file holds.

    Attributes:
        study: Its settings.
        growth: What was added to it after its first record; None before that.
    """

    study: Plan
    growth: Growth | None


def _recorded(recording: Path) -> Plan:
    return _kept(recording).study


def _kept(recording: Path) -> _Kept:
    refuse_absent(recording, RECORDING)
    path = recording / STUDY_FILE
    if not path.is_file():
        what = (
            f"its {STUDY_FILE} is no regular file" if path.exists() else f"it has no {STUDY_FILE}"
        )
        raise BadInput(f"{recording} is no recording: {what}; check the path")
    values = read_object(path)
    growth = growth_from(values.pop(GROWTH, None), str(path))
    return _Kept(plan_from(resolve_older_settings(values), source=str(path)), growth)


def recorded_growth(out: Path) -> Growth | None:
    """Return what was added to a study after its first record; None if it has no record yet.

    Args:
        out: Its folder.

    Raises:
        BadInput: It holds no study.
        Damaged: The study's file is not as fedaudit writes it.
    """
    return _kept(out).growth


def as_begun(study: Study, out: Path) -> Study:
    """Return the study with the samples for source inference of the one that a folder holds.

    A study that leaves their number to the program continues as it was begun, whichever version
    began it and with whichever attacks.

    Args:
        study: Its settings.
        out: Its folder, which may hold nothing yet.

    Raises:
        Damaged: What the folder holds cannot be read.
    """
    if study.audit.sources is not None or not (out / STUDY_FILE).is_file():
        return study
    there = _recorded(out)
    if isinstance(there, GameStudy) or there.audit.draw != study.audit.draw:
        return study
    audit = study.audit.model_copy(update={"sources": there.audit.sources})
    return study.model_copy(update={"audit": audit})


def claim(out: Path, study: Plan) -> Growth | None:
    """Make a folder this study's own; a study that it holds may grow into this one.

    Returns:
        What was added after the first record; None if there is no record yet.

    Raises:
        BadInput: It holds another study or its record, one that has more than this one, or cannot
            be written.
        Damaged: What it holds cannot be read.
    """
    refuse_other_study(out, study)
    with alone_in(out):
        return _claimed(out, study, has_record=(out / RECORD_FILE).exists())


def claim_record(out: Path, study: Plan) -> None:
    """Note that a study gets its record now, which may be a further one.

    Another process may have made the folder that of a larger study since it was claimed. The
    folder must be kept to this process; see :func:`fedaudit.core.files.alone_in`.

    Raises:
        BadInput: As :func:`claim`.
        Damaged: What the folder holds cannot be read.
    """
    _claimed(out, study, has_record=True)


def _claimed(out: Path, study: Plan, *, has_record: bool) -> Growth | None:
    added = refuse_other_study(out, study)
    record = refuse_other_record(out, study)
    known = recorded_growth(out) if (out / STUDY_FILE).exists() else None
    if record is not None and not (out / STUDY_FILE).exists():
        added = _added_to(record, out, study)
    if known is None and has_record:
        known = Growth([], [], [])
    if known is not None and added is not None:
        known = more(known, added)
    values = study.model_dump(mode="json")
    if known is not None:
        values[GROWTH] = known._asdict()
    write_object(out / STUDY_FILE, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    return known


def _added_to(record: "Record", out: Path, study: Plan) -> Growth | None:
    """Return what a study adds to that of a record whose study's file is gone."""
    if any(AFTER_A_LOOK in sentence for sentence in record.untested):
        raise BadInput(
            f"{out} holds the record of a study that had grown, and no {STUDY_FILE}, which says by "
            f"what; restore that file, or choose another folder with {option('out')}"
        )
    there = plan_from(resolve_older_settings(record.config), source=str(out / RECORD_FILE))
    if isinstance(there, Study) and isinstance(study, Study):
        return growth_of(there, study)
    return None


def refuse_other_study(out: Path, study: Plan) -> Growth | None:
    """Return what a study adds to the one in a folder; None if there is none, or the same.

    Raises:
        BadInput: The folder holds another study, one that has more, or cannot be used.
        Damaged: What it holds cannot be read.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        taken = (out / STUDY_FILE).exists()
    except (OSError, ValueError) as error:
        raise BadInput(f"{out} cannot be used ({error}); choose another folder") from error
    if not taken:
        return None
    recorded = _recorded(out)
    there, here = settings_of(recorded), settings_of(study)
    if there == here:
        return None
    if isinstance(recorded, Study) and isinstance(study, Study):
        growth, less = growth_of(recorded, study), growth_of(study, recorded)
        if growth is not None:
            return growth
        if less is not None:
            raise BadInput(
                f"{out} holds this study with more ({less}), and a record of fewer would take the "
                f"place of its record; name them too, or choose another folder with "
                f"{option('out')}"
            )
    _refuse_other_weights(out, there, here)
    raise BadInput(
        f"{out} holds a study with other settings ({difference(there, here)}); choose "
        f"another folder with {option('out')}, or delete it (only seeds, attacks and figures can "
        "be added to a study)"
    )


def _refuse_other_weights(
    out: Path, there: Mapping[str, object], here: Mapping[str, object]
) -> None:
    """Raise if two studies differ only in the values of a network that was passed as an object."""
    before, now = (json.dumps(values.get("model")) for values in (there, here))
    classes = [re.fullmatch(r'.*"name": "([^"#]*)#\w+".*', text) for text in (before, now)]
    if before != now and classes[0] and classes[1] and classes[0][1] == classes[1][1]:
        raise BadInput(
            f"{out} holds an audit of a network of {classes[0][1]!r} with other initial weights or "
            "settings; seed before you construct the network (torch.manual_seed), pass its class "
            f"instead, whose weights the audit's seed decides, or choose another folder with "
            f"{option('out')}"
        )


def refuse_other_record(
    folder: Path, ours: Plan | Mapping[str, object], *, besides: Collection[str] = ()
) -> "Record | None":
    """Return the record that ours may replace: of the same settings, or of fewer; None if none.

    Args:
        folder: Where the record is to be written.
        ours: Its settings: a study, or what the record of a live recording says of it.
        besides: Settings that may differ.

    Raises:
        BadInput: The folder holds a record of other settings, or one that cannot be read, or a
            report.html that is no HTML or not of a record, or scores without a record.
    """
    path = folder / RECORD_FILE
    refuse_page_alone(folder / REPORT_FILE, path)
    if not path.exists():
        if (folder / SCORES_FILE).exists():
            raise BadInput(
                f"{folder} holds a {SCORES_FILE} without a {RECORD_FILE}, so that it may be "
                "somebody else's and is not replaced; rename it, or write elsewhere with "
                f"{option('out')}"
            )
        return None
    from fedaudit.results.read import read_record

    try:
        found = read_record(path)
        config = found.config
        there = (
            config if found.watched else plan_from(resolve_older_settings(config), source=str(path))
        )
    except FedauditError as refusal:
        raise BadInput(
            f"{folder} holds a {RECORD_FILE} that is not of this study as far as can be read; "
            f"give another folder with {option('out')}, or delete the file"
        ) from refusal
    if isinstance(there, Study) and isinstance(ours, Study) and growth_of(there, ours) is not None:
        return found
    other, own = (_settled(one, besides) for one in (there, ours))
    if other != own:
        raise BadInput(
            f"{folder} holds the record of other settings ({difference(other, own)}), which "
            f"would be lost; give another folder with {option('out')}, or delete it"
        )
    return found


def replaced_attacks(record: "Record | None", names: Collection[str]) -> str:
    """Return a sentence on the attacks of a record that one of other attacks replaces.

    Args:
        record: The record that is replaced.
        names: The attacks named now; all that a recording allows if empty.

    Returns:
        Empty if no attack is lost.
    """
    before = [row.name for row in record.attacks if row.status == "run"] if record else []
    lost = [name for name in before if names and name not in names]
    if not lost:
        return ""
    return (
        f"the record of {', '.join(lost)}, by that of {', '.join(names)}; name all of them to have "
        f"them in one record, or give another folder with {option('out')}"
    )


def _settled(given: Plan | Mapping[str, object], besides: Collection[str]) -> object:
    """Settings as they come back from a record's file."""
    values = given if isinstance(given, Mapping) else settings_of(given)
    left_out = {*FOR_PEOPLE, *besides}
    values = {name: value for name, value in values.items() if name not in left_out}
    return json.loads(json.dumps(plain_json(values)))


def difference(there: object, here: object, name: str = "") -> str:
    """The first setting that differs, by its dotted name, with both values."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in [*there, *here]:
            if there.get(key) != here.get(key):
                inner = f"{name}.{key}" if name else str(key)
                return difference(there.get(key), here.get(key), inner)
    return f"{setting(name)} is {_short(there)} there and {_short(here)} here"


def _short(value: object) -> str:
    """A setting's value for a message; a table without settings, such as an attack's, is named."""
    if value is None:
        return "left out"
    if value == {}:
        return "named"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
