"""Attacks on a live recording: as on a study's, with what is not known said."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import nn

from fedaudit.core import Architecture
from fedaudit.errors import BadInput, Damaged
from fedaudit.importing import code_named_in, is_own, sources_of
from fedaudit.live.files import read_audit, read_untrained
from fedaudit.live.heard import Heard, heard
from fedaudit.live.parts import SEED, live_setup
from fedaudit.live.recording import Recording, read_recording
from fedaudit.observe.measured_files import Stored, fault_in, read_measured, tell_of_unhashed
from fedaudit.observe.round import EVERYBODY
from fedaudit.progress import Tick, quiet
from fedaudit.results.record import Record
from fedaudit.results.text import made_plain, plain
from fedaudit.study.accuracy import counts_fit
from fedaudit.study.conclusion import conclude
from fedaudit.study.environment import Clock
from fedaudit.study.observing import Work
from fedaudit.study.other_record import refuse_other_record
from fedaudit.study.parts import Watched

_MOST_NAMED = 10
_NO_MODEL = "the model of a recording is not there to be run; its signals were measured before"


def attack_recording(
    folder: Path,
    names: Sequence[str],
    out: Path,
    *,
    figures: Mapping[str, object] | None = None,
    trust: bool = False,
    tick: Tick = quiet,
    say: Callable[[str], None] = lambda text: None,
) -> Record:
    """Runs attacks on what a recorder measured of somebody's federation.

    Args:
        folder: The recording.
        names: Attacks to run; those that it was made for if empty.
        out: Folder for the record.
        figures: Settings of figures to change, by name.
        trust: Import code that the recording names. Else it is refused, since the folder may be
            somebody else's.
        tick: Called with (phase, done, total) as the work goes on.
        say: Takes lines of text for the user.

    Raises:
        BadInput: No recording, or one without a measured round, an attack that it was not made
            for, a folder for the record that holds one of other settings, or code that is not
            trusted.
        Damaged: The recording is incomplete or altered.
    """
    with code_named_in(folder, trusted=trust, folder=Path.cwd()):
        return _attacked(folder, names, out, figures or {}, tick, say)


def _attacked(
    folder: Path,
    names: Sequence[str],
    out: Path,
    figures: Mapping[str, object],
    tick: Tick,
    say: Callable[[str], None],
) -> Record:
    clock = Clock()
    recording, audit, told = read_recording(folder), read_audit(folder), heard(folder)
    stored = _stored(folder, recording, len(audit))
    tell_of_unhashed(folder, say)
    unasked = sorted(set(names) - set(recording.attacks))
    if unasked:
        raise BadInput(
            f"{unasked[0]!r} was not recorded for; this recording has what "
            f"{', '.join(recording.attacks)} need"
        )
    wanted = dict(figures)
    blind = audit.samples.features.flatten(1).shape[1] > 0
    if not blind:
        wanted["blind_classifier"] = False
    config = _config(recording, names, wanted)
    refuse_other_record(out, config)
    run = live_setup(
        recording,
        audit,
        Architecture(recording.model, _no_model),
        clients=_clients(stored, told),
        rounds=tuple(one.measured.index for one in stored),
        figures=wanted,
        attacks=names,
        watched=Watched(
            untrained=read_untrained(folder, recording.key, len(audit)),
            config=config,
            missing=tuple(_missing(told, blind=blind)),
            names=recording.names,
        ),
    )
    for one in stored:
        fault = fault_in(one.measured, run.deal.clients, len(audit))
        if fault or not counts_fit(run, one.notes):
            raise Damaged(
                f"the measured round {one.measured.index} in {folder} is damaged: "
                f"{fault or 'its counts of correct predictions cannot be'}; restore it"
            )
    return conclude([run], [stored], out, Work(tick=tick), clock, say, places={SEED: folder})


def changed_figures(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings of figures by their own names, from dotted ones.

    Raises:
        BadInput: A setting of something else.
    """
    others = [name for name in settings if not name.startswith("figures.")]
    if others:
        raise BadInput(
            f"{others[0]!r} cannot be changed on a recording; only settings of figures can"
        )
    return {name.removeprefix("figures."): value for name, value in settings.items()}


def _stored(folder: Path, recording: Recording, samples: int) -> list[Stored]:
    stored = read_measured(folder)
    if not stored:
        raise BadInput(
            f"{folder} has no measured round yet; record at least {recording.every} rounds"
        )
    strangers = [one.measured.index for one in stored if one.notes.get("run") != recording.key]
    if strangers:
        raise Damaged(
            f"the measured round {strangers[0]} in {folder} is of another recording; restore it"
        )
    return stored


def _clients(stored: Sequence[Stored], told: Sequence[Heard]) -> list[int]:
    measured = {c for one in stored for c in (*one.measured.clients, *one.measured.stands_for)}
    return sorted((measured | {c for one in told for c in one.asked}) - {EVERYBODY})


def _config(
    recording: Recording, names: Sequence[str], figures: Mapping[str, object]
) -> dict[str, object]:
    """What is known of the federation; no settings of a study, since there was none.

    Its keys are among ``OF_A_RECORDER`` of :mod:`fedaudit.results.record`.
    """
    said = recording.model_dump(mode="json", exclude={"format", "version", "refused"})
    known = {"name": recording.name, "recording": said, "figures": dict(figures)}
    if names:
        known["attacks"] = {name: {} for name in names}
    own = [("attack", name) for name in (names or recording.attacks) if is_own(name)]
    if own:
        known["code"] = sources_of(own)
    # A recording may be anybody's, and hold any character.
    return {name: made_plain(value) for name, value in known.items()}


def _missing(told: Sequence[Heard], *, blind: bool) -> list[str]:
    """What a reader must know that was not heard or not recorded."""
    found = []
    partial = [one.round for one in told if not one.complete]
    if partial:
        found.append(f"What clients did that were asked and did not answer, in {_rounds(partial)}.")
    lost = [one.round for one in told if one.note]
    if lost:
        reason = next(plain(one.note) for one in told if one.note)
        found.append(f"What was not recorded of {_rounds(lost)}: {reason}")
    known = {one.round for one in told}
    between = sorted({*range(1, max(known, default=0) + 1)} - known)
    if between:
        found.append(f"What happened in {_rounds(between)}, which the recorder did not hear of.")
    if not blind:
        found.append(
            "Whether inputs alone tell members from others: the recording keeps no samples."
        )
    return found


def _rounds(numbers: Sequence[int]) -> str:
    named = ", ".join(str(number) for number in numbers[:_MOST_NAMED])
    more = len(numbers) - _MOST_NAMED
    return f"round{'s' * (len(numbers) > 1)} {named}" + (f" and {more} more" if more > 0 else "")


def _no_model() -> nn.Module:
    raise BadInput(_NO_MODEL)
