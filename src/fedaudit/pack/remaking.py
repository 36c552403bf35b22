"""The record of a study's pack, made again from what its run has measured.

Figures can be right and still hide a leak, if whoever made the pack left out the attack that finds
it. The folder of the run and the receiver's policy say which attacks were expected.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import BaseModel

from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import ATTACKED, RECORD_FILE
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import Policy
from fedaudit.live.attack import attack_recording
from fedaudit.live.recording import read_recording
from fedaudit.pack.suppressing import counted, suppressed
from fedaudit.pack.verifying import (
    ABSENT,
    FROM_THE_RUN,
    Findings,
    Verified,
    as_table,
    asked_attacks,
    attacks_of,
    change_at,
    differing_paths,
    listed,
    made_where,
    not_shown_alone,
    setting_at,
)
from fedaudit.plan.sections import FiguresSection
from fedaudit.report.grid import shortened
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.study.running.folder import recorded_study
from fedaudit.study.running.reattack import contradicting_signals, reattack, unmeasurable

_BY_ITSELF = {"environment", "content_hash", "name", "config"}
"""Fields of a record that do not follow from its recording, or are compared by themselves."""
_NAME, _KEY, _STARTED = ("recording", "name"), ("recording", "key"), ("recording", "started")
_OF_A_RECORDER = {("name",), _NAME, _KEY, _STARTED}
"""Settings that tell several recordings of one federation apart."""
_MADE_WITH = ("commit", "device", "versions")
_NAMES = ("attack", "metric", "control", "contrast", "target", "client", "group", "seed", "defense")


def held_by(
    found: Verified, recording: Path, data_dir: Path | None = None, *, trust: bool = False
) -> Verified:
    """The result of checking a pack, with what the recording of its run says of the record.

    Args:
        found: As the pack was checked; as it is where its record could not be read.
        recording: The folder of the study's run, or of a live recording.
        data_dir: Folder with data sets.
        trust: Import code that the recording names.

    Raises:
        BadInput: The record is of games, whose content hash needs no recording.
        FedauditError: The folder is no recording, or is damaged.
    """
    record, manifest = found.record, found.manifest
    if record is None or manifest is None:
        return found
    _refuse_games(record)
    made = made_again(record, recording, data_dir, trust=trust)
    choices = compare_choices(record, recording, found.own_policy)
    problems = [
        *found.problems,
        *choices.problems,
        *faults_in(record, made, recording, manifest.smallest_group, manifest.suppressed),
        *_other_verdicts(found, made),
    ]
    kept = [] if record.watched else contradicting_signals(recording, data_dir, trust=trust)
    problems += kept
    alone = set(not_shown_alone(record))
    left = [*choices.unchecked, *not_shown(record, recording)]
    checked = [*found.checked, FROM_THE_RUN, *choices.checked]
    unmeasured = _unmeasured(record, recording)
    if unmeasured:
        left.append(f"whether signals are those of the updates: {unmeasured}")
    else:
        checked.append("signals are those of the updates that the run kept")
    return found._replace(
        problems=problems,
        checked=found.checked if problems else checked,
        unchecked=[*(one for one in found.unchecked if one not in alone), *left],
    )


def made_again(
    record: Record, recording: Path, data_dir: Path | None = None, *, trust: bool = False
) -> Record:
    """Return the whole record that the run gives with the attacks and figures of a packed one.

    Raises:
        BadInput: The record is of games, whose content hash needs no recording.
        FedauditError: The folder is no recording, or is damaged.
    """
    _refuse_games(record)
    with TemporaryDirectory() as folder:
        whole = _attacked(record, recording, Path(folder) / "again", data_dir, trust)
    # By way of its text, as the pack has it.
    return Record.model_validate_json(whole.model_dump_json())


def _refuse_games(record: Record) -> None:
    if record.kind == "games":
        raise BadInput("a record of games holds all that its content hash is over; leave it out")


def faults_in(
    record: Record,
    again: Record,
    recording: Path,
    smallest_group: int = 0,
    counts: Mapping[str, int] | None = None,
) -> Iterator[str]:
    """Yield each part of a packed record that its run does not give, with the first difference.

    If the folder has a record of the same content, commit, device and versions are compared with
    that one. What :func:`not_shown` names is not compared.

    Args:
        record: As it is packed.
        again: By :func:`made_again`.
        recording: The folder of the study's run, or of a live recording.
        smallest_group: Groups with fewer samples are suppressed in the pack.
        counts: How many entries the pack says were; not compared if None.
    """
    made, hidden = suppressed(again, smallest_group)
    yield from _other_settings(record, made)
    for field in Record.model_fields:
        if field not in _BY_ITSELF and getattr(record, field) != getattr(made, field):
            yield _difference(field, getattr(record, field), getattr(made, field))
    if made.content_hash != record.content_hash:
        yield (
            "the record's content hash is not that of what the run has measured; on another "
            "machine or with other versions, last digits may differ"
        )
    own = _own_record(record, recording)
    if own is not None:
        yield from _other_making(record, own)
    for name, count in counted(hidden, made).items():
        if counts is not None and counts.get(name) != count:
            yield (
                f"the manifest says that {counts.get(name, 0)} of {name} were suppressed, and of "
                f"what the run gives it is {count}"
            )


def _other_verdicts(found: Verified, made: Record) -> Iterator[str]:
    policies = {"the packed": found.policy, "your": found.own_policy}
    for whose, policy in policies.items():
        if policy is not None and found.record is not None:
            packed, whole = (evaluate_policy(one, policy).outcome for one in (found.record, made))
            if packed is not whole:
                yield (
                    f"by {whose} policy the verdict on the packed record is {packed}, and on all "
                    f"that the run gives {whole}"
                )


def _unmeasured(record: Record, recording: Path) -> str:
    """Return why signals cannot be compared with the updates; empty if they can."""
    return "a recording does not hold the network" if record.watched else unmeasurable(recording)


def not_shown(record: Record, recording: Path) -> Iterator[str]:
    """Statements of a packed record that its recording does not show, in words."""
    own, place = _own_record(record, recording), made_where(record)
    if own is None:
        yield f"{place}: the folder has no record of just this content to compare with"
    elif own.environment == record.environment:
        yield f"{place}, but that the folder's own record says the same"
    else:
        yield (
            f"{place}: the folder's own record was made at another time "
            f"({shortened(own.environment.started) or 'not said'}), as it may be several times"
        )
    there = read_recording(recording) if record.watched else None
    if there is not None and setting_at(record.config, _KEY) != there.key:
        began = shortened(str(setting_at(record.config, _STARTED)))
        yield (
            "name, key and start of the recording: the record is of another one "
            f"({shortened(repr(record.name))}, {began}) than the folder "
            f"({shortened(repr(there.name))}, {shortened(there.started)}), of the same measurements"
        )


def _other_settings(record: Record, made: Record) -> Iterator[str]:
    """Settings that are not those of the run; what tells recordings apart may be another's."""
    apart = list(differing_paths(record.config, made.config))
    another = record.watched and _KEY in apart and _is_of_a_recording(record)
    for path in apart:
        if not (another and path in _OF_A_RECORDER):
            one, other = (setting_at(config, path) for config in (record.config, made.config))
            values = (
                "is not in those of the run"
                if other is ABSENT
                else "is missing"
                if one is ABSENT
                else f"is {one!r} instead of {other!r}"
            )
            yield f"the record's setting {shortened('.'.join(path))} {shortened(values, 120)}"
    if record.name != made.name and not another:
        yield f"the record's name is {shortened(repr(record.name))} instead of {made.name!r}"


def _is_of_a_recording(record: Record) -> bool:
    """True if name, key and start are what a recorder writes, and the names are one."""
    key, started = (setting_at(record.config, path) for path in (_KEY, _STARTED))
    try:
        datetime.fromisoformat(str(started))
    except ValueError:
        return False
    names = {str(setting_at(record.config, path)) for path in (("name",), _NAME)}
    return names == {record.name} and re.fullmatch("[0-9a-f]{32}", str(key)) is not None


def _own_record(record: Record, recording: Path) -> Record | None:
    """The record that the folder has of what was packed; None where it has none or another."""
    for path in (recording / RECORD_FILE, recording / ATTACKED / RECORD_FILE):
        try:
            own = read_record(path)
        except FedauditError:
            continue
        same_recording = setting_at(own.config, _KEY) == setting_at(record.config, _KEY)
        if own.content_hash == record.content_hash and same_recording:
            return own
    return None


def _other_making(record: Record, own: Record) -> Iterator[str]:
    for name in _MADE_WITH:
        one, other = (getattr(each.environment, name) for each in (record, own))
        if one != other:
            values = shortened(f"{one!r} instead of {other!r}", 120)
            yield (
                f"the record's {name} is {values}, as the folder's own record of the same has it; "
                "where that was made again since, pack it anew"
            )


def _difference(field: str, packed: object, made: object) -> str:
    """One sentence on a field of the record that is not what the run gives."""
    if not (isinstance(packed, list) and isinstance(made, list)):
        return f"the record's {field} is not what the run gives"
    if len(packed) != len(made):
        return f"the record has {len(packed)} {field}, and the run gives {len(made)}"
    pairs = [(one, other) for one, other in zip(packed, made, strict=True) if one != other]
    one, other = pairs[0]
    said = f"{len(pairs)} of {len(packed)} {field} of the record are not what the run gives"
    if not (isinstance(one, BaseModel) and isinstance(other, BaseModel)):
        return said
    # Of a pack, which anybody may have written: shortened, and printed as plain text.
    who = ", ".join(str(getattr(other, name)) for name in _NAMES if getattr(other, name, ""))
    what = next(f for f in type(one).model_fields if getattr(one, f) != getattr(other, f, None))
    values = shortened(f"{getattr(one, what)!r} instead of {getattr(other, what)!r}", 120)
    return f"{said}, such as that of {shortened(who, 80)}: {what} is {values}"


def _attacked(
    record: Record, recording: Path, out: Path, data_dir: Path | None, trust: bool
) -> Record:
    """A record of the same settings, since the hash is over these too."""
    attacks, figures = (_table(record.config.get(name)) for name in ("attacks", "figures"))
    if record.watched:
        # Of the recording's own clients: the pack may name others, which is told of elsewhere.
        known = read_recording(recording).targets
        listed = _table(record.config.get("recording")).get("targets")
        targets = [c for c in known if isinstance(listed, list) and c in listed]
        return attack_recording(
            recording, list(attacks), out, targets=targets, figures=figures, trust=trust
        )
    same = set(recorded_study(recording).attacks) == set(attacks)
    changes = {f"figures.{name}": value for name, value in figures.items()}
    return reattack(recording, [] if same else list(attacks), out, data_dir, changes, trust=trust)


def _table(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}


_ADD_EVIDENCE = frozenset({"planted_leak", "blind_classifier"})
"""Settings of figures that add a control if they are turned on."""


def compare_choices(record: Record, recording: Path, policy: Policy | None) -> Findings:
    """Compare attacks and settings of figures with those that the run was made for.

    Args:
        record: As it is packed.
        recording: Folder of the study's run, or of a live recording.
        policy: The receiver's policy, whose attacks are enough if it names them; None without one.
    """
    study = None if record.watched else recorded_study(recording)
    planned = set(read_recording(recording).attacks if study is None else study.attacks)
    shown = attacks_of(record)
    required = planned if policy is None else (asked_attacks(policy) or planned)
    problems, unchecked = [], []
    if missing := sorted((required & planned) - shown):
        problems.append(f"the record leaves out attacks of the run: {listed(missing)}")
    if left := sorted(planned - required - shown):
        unchecked.append(
            f"attacks of the run that the record leaves out and your policy does not ask for: "
            f"{listed(left)}"
        )
    if added := sorted(shown - planned):
        unchecked.append(
            f"whether attacks were chosen after a look at the figures: the run does not name "
            f"{listed(added)}, and tests are corrected over all"
        )
    figures = FiguresSection() if study is None else study.figures
    expected = figures.model_dump(mode="json")
    given = expected | as_table(record.config.get("figures"))
    changes = [
        change_at(path, given, expected, "figures")
        for path in differing_paths(given, expected)
        if not (path[0] in _ADD_EVIDENCE and given.get(path[0]) is True)
    ]
    if changes and study is not None:
        problems.append(f"settings of figures are not those of the run: {listed(changes)}")
    elif changes:
        unchecked.append(
            "whether settings of figures were chosen after a look at them, as a recording states "
            f"none: {listed(changes)}"
        )
    if record.nobody_is_a_member and not figures.nobody_is_a_member:
        problems.append("the record calls unseen samples members, so that it can show no leak")
    checked = [] if problems else ["attacks and settings of figures are those of the run"]
    return Findings(problems, [] if unchecked else checked, unchecked)
