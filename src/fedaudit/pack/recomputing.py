"""Comparison of a pack's record with a record that is recomputed from its run.

Correct estimates can still hide a leak if the attack that finds it was omitted. The folder of the
run and the receiver's policy therefore determine which attacks are expected.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import BaseModel

from fedaudit import __version__
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import ATTACKED_FOLDER, RECORD_FILE
from fedaudit.formatting.grid import shorten
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import Policy
from fedaudit.live.attack import attack_recording
from fedaudit.live.recording import read_recording
from fedaudit.pack.choices import CheckResults, attacks_of, list_names, required_attacks
from fedaudit.pack.consistency import other_version
from fedaudit.pack.suppressing import suppress_small_groups, total_suppressed
from fedaudit.pack.verifying import FROM_THE_RUN, Verified, describe_environment, not_shown_by_pack
from fedaudit.plan.sections import FiguresSection
from fedaudit.report.differing import change_at, dict_or_empty, differing_paths, setting_at
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.study.running.folder import recorded_study
from fedaudit.study.running.reattack import contradicting_signals, reattack, why_not_remeasurable

_NOT_COMPARED = {"environment", "content_hash", "name", "config"}
"""Fields of a record that the run does not determine, or that are compared separately."""
# Paths of settings that identify a recording.
_NAME, _KEY, _STARTED = ("recording", "name"), ("recording", "key"), ("recording", "started")
_SETTINGS_OF_ONE_RECORDER = {("name",), _NAME, _KEY, _STARTED}
"""Settings that distinguish several recordings of one federation."""
_SENTENCES = {"note", "uncovered", "fairness_note", "description"}
"""Fields of a record's parts that are sentences for readers."""
_COMPARED_ENVIRONMENT = ("commit", "device", "versions")
"""Fields of a record's environment that are compared."""
_IDENTIFYING_FIELDS = (
    "attack",
    "metric",
    "control",
    "contrast",
    "target",
    "client",
    "group",
    "seed",
    "defense",
)
"""Fields that identify an entry of a record in messages."""


def compare_with_run(
    verified: Verified, recording: Path, data_dir: Path | None = None, *, trust: bool = False
) -> Verified:
    """Add the results of a comparison with the run to the results of checking a pack."""
    record, manifest = verified.record, verified.manifest
    if record is None or manifest is None:
        return verified
    _raise_if_security_games(record)
    recomputed = recompute_record(record, recording, data_dir, trust=trust)
    choices = compare_choices(record, recording, verified.receiver_policy)
    problems = [
        *verified.problems,
        *choices.problems,
        *differing_parts(
            record, recomputed, recording, manifest.smallest_group, manifest.suppressed
        ),
        *_different_verdicts(verified, recomputed),
    ]
    if not record.watched:
        problems += contradicting_signals(recording, data_dir, trust=trust)
    notes_without_run = set(not_shown_by_pack(record))
    open_questions = [*choices.unchecked, *not_shown_by_run(record, recording)]
    if version := other_version(record):
        open_questions.append(
            f"notes and the list of what was not tested: fedaudit {shorten(version, 40)} wrote "
            f"them, and {__version__} may word them differently"
        )
    checked = [*verified.checked, FROM_THE_RUN, *choices.checked]
    no_model = "a recording does not contain the model"
    if reason := no_model if record.watched else why_not_remeasurable(recording):
        open_questions.append(f"whether signals agree with the updates: {reason}")
    else:
        checked.append("signals agree with the updates that the run stored")
    return verified._replace(
        problems=problems,
        checked=verified.checked if problems else checked,
        unchecked=[
            *(note for note in verified.unchecked if note not in notes_without_run),
            *open_questions,
        ],
    )


def recompute_record(
    record: Record, recording: Path, data_dir: Path | None = None, *, trust: bool = False
) -> Record:
    """Recompute the record from the run, with the attacks and metrics of the packed one."""
    _raise_if_security_games(record)
    with TemporaryDirectory() as folder:
        attacked = _attack_run(record, recording, Path(folder) / "again", data_dir, trust)
    # Read back from JSON, as the record of the pack was.
    return Record.model_validate_json(attacked.model_dump_json())


def _raise_if_security_games(record: Record) -> None:
    if record.kind == "games":
        raise BadInput(
            "the digest of a result of security games is computed from the record alone; "
            "omit the recording"
        )


def differing_parts(
    record: Record,
    recomputed: Record,
    recording: Path,
    smallest_group: int = 0,
    counts: Mapping[str, int] | None = None,
) -> Iterator[str]:
    """Yield each part of a packed record that differs from the recomputed record.

    Commit, device and versions are compared if the folder has a record with the same content. The
    pack's numbers of suppressed entries are compared if ``counts`` is given. Sentences are compared
    if this version of fedaudit made the record, since versions word them differently.
    """
    expected_record, hidden = suppress_small_groups(recomputed, smallest_group)
    yield from _different_settings(record, expected_record)
    compare = _without_sentences if other_version(record) else _unchanged
    for field in Record.model_fields:
        packed, expected = (compare(getattr(each, field)) for each in (record, expected_record))
        if field not in _NOT_COMPARED and packed != expected:
            yield _difference(field, packed, expected)
    if expected_record.content_hash != record.content_hash:
        yield (
            "the digest of the result (content_hash) is not that of the run's measurements; on "
            "another machine or with other versions, last digits may differ"
        )
    folder_record = _record_of_run(record, recording)
    if folder_record is not None:
        yield from _different_environment(record, folder_record)
    for name, count in total_suppressed(hidden, expected_record).items():
        if counts is not None and counts.get(name) != count:
            yield (
                f"the manifest says that {counts.get(name, 0)} of {name} were suppressed, and the "
                f"run gives {count}"
            )


def _unchanged(value: object) -> object:
    return value


def _without_sentences(value: object) -> object:
    """Return a field of a record with its sentences for readers replaced by a constant."""
    if isinstance(value, list):
        # A list of sentences, such as what was not tested, is empty then.
        return [_without_sentences(item) for item in value if not isinstance(item, str)]
    if not isinstance(value, BaseModel):
        return value
    names = _SENTENCES & type(value).model_fields.keys()
    present = [name for name in names if getattr(value, name)]
    # Presence of a sentence is compared, since a removed reason would hide a failed attack.
    return value.model_copy(update=dict.fromkeys(present, "a sentence"))


def _different_verdicts(verified: Verified, recomputed: Record) -> Iterator[str]:
    policies = {"the packed": verified.policy, "your": verified.receiver_policy}
    for label, policy in policies.items():
        if policy is not None and verified.record is not None:
            packed_outcome, outcome = (
                evaluate_policy(each, policy, verified.baseline).outcome
                for each in (verified.record, recomputed)
            )
            if packed_outcome is not outcome:
                yield (
                    f"by {label} policy the verdict on the packed record is {packed_outcome}, and "
                    f"on the full results of the run it is {outcome}"
                )


def not_shown_by_run(record: Record, recording: Path) -> Iterator[str]:
    """Yield statements of a packed record that the folder of its run does not confirm."""
    folder_record, environment = _record_of_run(record, recording), describe_environment(record)
    if folder_record is None:
        yield f"{environment}: the folder has no record of this content to compare with"
    elif folder_record.environment == record.environment:
        yield f"{environment}; the record in the folder has the same statements"
    else:
        started = shorten(folder_record.environment.started) or "not stated"
        yield (
            f"{environment}: the record in the folder was made at another time ({started}); a run "
            "can have several records"
        )
    settings = read_recording(recording) if record.watched else None
    if settings is not None and setting_at(record.config, _KEY) != settings.key:
        began = shorten(str(setting_at(record.config, _STARTED)))
        yield (
            "name, key and start of the recording: the record states "
            f"{shorten(repr(record.name))}, {began}, and the folder "
            f"{shorten(repr(settings.name))}, {shorten(settings.started)}, with the same "
            "measurements"
        )


def _different_settings(record: Record, recomputed: Record) -> Iterator[str]:
    """Yield settings that differ, except those that distinguish recordings of one run."""
    differing = list(differing_paths(record.config, recomputed.config))
    is_other_recording = record.watched and _KEY in differing and _has_recorder_settings(record)
    for path in differing:
        if not (is_other_recording and path in _SETTINGS_OF_ONE_RECORDER):
            yield f"the record's setting {change_at(path, record.config, recomputed.config)}"
    if record.name != recomputed.name and not is_other_recording:
        yield f"the record's name is {shorten(repr(record.name))} instead of {recomputed.name!r}"


def _has_recorder_settings(record: Record) -> bool:
    """Return True if name, key and start have the form that a recorder writes, and names agree."""
    key, started = (setting_at(record.config, path) for path in (_KEY, _STARTED))
    try:
        datetime.fromisoformat(str(started))
    except ValueError:
        return False
    names = {str(setting_at(record.config, path)) for path in (("name",), _NAME)}
    return names == {record.name} and re.fullmatch("[0-9a-f]{32}", str(key)) is not None


def _record_of_run(record: Record, recording: Path) -> Record | None:
    """Return the record in the folder of the run with the same content hash, or None."""
    for path in (recording / RECORD_FILE, recording / ATTACKED_FOLDER / RECORD_FILE):
        try:
            candidate = read_record(path)
        except FedauditError:
            continue
        same_recording = setting_at(candidate.config, _KEY) == setting_at(record.config, _KEY)
        if candidate.content_hash == record.content_hash and same_recording:
            return candidate
    return None


def _different_environment(record: Record, folder_record: Record) -> Iterator[str]:
    for name in _COMPARED_ENVIRONMENT:
        packed, expected = (getattr(each.environment, name) for each in (record, folder_record))
        if packed != expected:
            values = shorten(f"{packed!r} instead of {expected!r}", 120)
            yield (
                f"the record's {name} is {values}, as in the record of the folder; if that record "
                "was written again since, pack it again"
            )


def _difference(field: str, packed: object, recomputed: object) -> str:
    """Describe how a field differs between the record and the recomputed record."""
    if not (isinstance(packed, list) and isinstance(recomputed, list)):
        return f"the record's {field} is not what the run gives"
    if len(packed) != len(recomputed):
        return f"the record has {len(packed)} {field}, and the run gives {len(recomputed)}"
    pairs = [
        (first, second) for first, second in zip(packed, recomputed, strict=True) if first != second
    ]
    first, second = pairs[0]
    summary = f"{len(pairs)} of {len(packed)} {field} of the record are not what the run gives"
    if not (isinstance(first, BaseModel) and isinstance(second, BaseModel)):
        return summary
    # A pack is untrusted: its texts are shortened, and printed as plain text.
    entry = ", ".join(
        str(getattr(second, name)) for name in _IDENTIFYING_FIELDS if getattr(second, name, "")
    ) or str(getattr(second, "name", field))
    difference = next(
        f for f in type(first).model_fields if getattr(first, f) != getattr(second, f, None)
    )
    values = shorten(
        f"{getattr(first, difference)!r} instead of {getattr(second, difference)!r}", 120
    )
    return f"{summary}, such as that of {shorten(entry, 80)}: {difference} is {values}"


def _attack_run(
    record: Record, recording: Path, out: Path, data_dir: Path | None, trust: bool
) -> Record:
    """Attack the run with the packed record's settings."""
    attacks, figures = (dict_or_empty(record.config.get(name)) for name in ("attacks", "figures"))
    if record.watched:
        # Other targets in the pack are reported by `differences`, as a setting that differs.
        clients = read_recording(recording).targets
        packed = dict_or_empty(record.config.get("recording")).get("targets")
        targets = [c for c in clients if isinstance(packed, list) and c in packed]
        return attack_recording(
            recording, list(attacks), out, targets=targets, figures=figures, trust=trust
        )
    same = set(recorded_study(recording).attacks) == set(attacks)
    changes = {f"figures.{name}": value for name, value in figures.items()}
    return reattack(recording, [] if same else list(attacks), out, data_dir, changes, trust=trust)


_CONTROL_SETTINGS = frozenset({"planted_leak", "blind_classifier"})
"""Evaluation settings that add a control if they are turned on."""


def compare_choices(record: Record, recording: Path, policy: Policy | None) -> CheckResults:
    """Compare attacks and evaluation settings with those with which the run was started."""
    study = None if record.watched else recorded_study(recording)
    planned = set(read_recording(recording).attacks if study is None else study.attacks)
    attacks = attacks_of(record)
    required = planned if policy is None else (required_attacks(policy) or planned)
    problems, unchecked = [], []
    if missing := sorted((required & planned) - attacks):
        problems.append(f"the record omits attacks of the run: {list_names(missing)}")
    if not_required := sorted(planned - required - attacks):
        unchecked.append(
            f"attacks of the run that the record omits and your policy does not require: "
            f"{list_names(not_required)}"
        )
    if added := sorted(attacks - planned):
        unchecked.append(
            f"whether attacks were chosen with knowledge of the results: the run does not name "
            f"{list_names(added)}, and p-values are corrected for the number of all attacks"
        )
    figures = FiguresSection() if study is None else study.figures
    expected = figures.model_dump(mode="json")
    figures_used = expected | dict_or_empty(record.config.get("figures"))
    changes = [
        change_at(path, figures_used, expected, "figures")
        for path in differing_paths(figures_used, expected)
        if not (path[0] in _CONTROL_SETTINGS and figures_used.get(path[0]) is True)
    ]
    if changes and study is not None:
        problems.append(f"evaluation settings are not those of the run: {list_names(changes)}")
    elif changes:
        unchecked.append(
            "whether evaluation settings were chosen with knowledge of the results, as a recording "
            f"states none: {list_names(changes)}"
        )
    if record.null_members and not figures.null_members:
        problems.append("the record labels unseen samples as members, so it cannot show a leak")
    checked = [] if problems else ["attacks and evaluation settings are those of the run"]
    return CheckResults(problems, [] if unchecked else checked, unchecked)
