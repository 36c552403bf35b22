"""Attacks on a live recording: as on a study's, with unknown parts named."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from fedaudit.attacks import ATTACK_SETS, DEFAULT_SET, attack_named, catalogued
from fedaudit.attacks.base import Attack
from fedaudit.core.errors import BadInput, Damaged, NotVisible
from fedaudit.core.importing import code_named_in, is_own, refusing_exits, sources_of
from fedaudit.core.origin import Origin
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.tasks import Task, lacking
from fedaudit.core.values import Architecture, ClientId, Sees
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import AuditSet, Deal
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.training.local import LocalTraining
from fedaudit.live.coverage import coverage_of
from fedaudit.live.files import read_audit, read_untrained
from fedaudit.live.recording import (
    Called,
    Recording,
    RoundEntry,
    number_of,
    read_recording,
    read_round_log,
)
from fedaudit.live.unsent import ESTIMATED
from fedaudit.live.waiting import waiting
from fedaudit.observe.measurements import (
    Stored,
    fault_in,
    rounds_with,
    stored_in,
    tell_of_unhashed,
)
from fedaudit.observe.round import EVERYBODY
from fedaudit.observe.views import View, view_named
from fedaudit.results.clusters import EVERYBODY as EVERY_CLIENT
from fedaudit.results.record import Record
from fedaudit.results.text import made_plain, plain
from fedaudit.study.figures.accuracy import counts_fit
from fedaudit.study.running.environment import Clock
from fedaudit.study.running.folder import ATTACKS, refuse_other_record, replaced_attacks
from fedaudit.study.running.record import conclude
from fedaudit.study.settings.sections import (
    AuditSection,
    DataSection,
    FiguresSection,
    PartitionSection,
    Study,
    TrainingSection,
)
from fedaudit.study.settings.values import study_from
from fedaudit.study.setup.dealing import Groups
from fedaudit.study.setup.parts import Setup, Watched, Work

SEED = 1
"""Of what is drawn for controls and figures; the federation's own is not known."""

RECORDED = "recorded"

_NEVER_RECORDED = {
    Sees.REFERENCE_MODELS: "reference models, trained as the federation trains",
    Sees.CHOOSES_UPLOAD: "an adversary that chooses what a client sends",
    Sees.CHOOSES_MODEL: "an adversary that chooses the model that clients are sent",
}
"""What only an adversary of a simulated federation has."""


def live_setup(
    recording: Recording,
    audit: AuditSet,
    architecture: Architecture,
    *,
    clients: Sequence[ClientId] = (),
    rounds: tuple[int, ...] = (),
    figures: Mapping[str, object] | None = None,
    attacks: Sequence[str] = (),
    watched: Watched | None = None,
) -> Setup:
    """The parts of a run that was watched, with stand-ins for what nobody knows of it.

    Args:
        recording: What it says of itself.
        audit: The audited samples.
        architecture: What clients train; never built where ``watched`` is given.
        clients: That took part, beside the owners of audited samples.
        rounds: That were measured.
        figures: Settings of figures.
        attacks: To be run; those that the recording was made for if empty.
        watched: What is known of the federation, once it has been recorded.

    Raises:
        BadInput: A target of whom no member is audited, or an unknown attack.
        NotVisible: An attack needs more than the view shows.
    """
    view, task = view_named(recording.view), architecture.task
    names = tuple(attacks) or recording.attacks
    study = Study(
        name=recording.name,
        seeds=(SEED,),
        data=DataSection(name=RECORDED),
        partition=PartitionSection(clients=max(2, len(clients))),
        training=TrainingSection(rounds=max(rounds, default=1)),
        audit=AuditSection(
            draw=RECORDED,
            targets=recording.targets,
            every=recording.every,
            view=recording.view,
            keep=recording.keep,
        ),
        attacks={name: {} for name in names},
        figures=FiguresSection.model_validate(figures or {}),
    )
    refuse_targets_without_members(audit, recording.targets)
    held = {
        client: audit.samples.take(torch.from_numpy(audit.owner == client))
        for client in sorted({*clients, *audit.owner[audit.owner >= 0].tolist()})
    }
    return Setup(
        study=study,
        seed=SEED,
        dataset=_dataset(recording, audit),
        deal=Deal(held, audit, recording.sizes),
        algorithm=FedAvg(architecture, LocalTraining()),
        defenses={},
        view=view,
        attacks={name: _possible(name, view, task) for name in names},
        refused=recording.refused if not attacks else {},
        measured_rounds=rounds,
        groups=Groups((EVERY_CLIENT,), dict.fromkeys(held, 0), audit.owner),
        watched=watched,
    )


def attacks_in(
    view: View, names: Sequence[str], task: Task
) -> tuple[dict[str, Attack], dict[str, str]]:
    """The attacks that can be recorded for, and why others cannot.

    Args:
        view: What the adversary sees.
        task: What the model is trained for.
        names: Those asked for; those of the default set if empty.

    Raises:
        BadInput: No such attack.
        NotVisible: One that is asked for needs more than the view shows.
    """
    if names:
        return {name: _possible(name, view, task) for name in catalogued(names)}, {}
    found, refused = {}, {}
    for name in ATTACK_SETS[DEFAULT_SET]:
        try:
            found[name] = _possible(name, view, task)
        except NotVisible as error:
            refused[name] = str(error)
    return found, refused


def refuse_targets_without_members(audit: AuditSet, targets: Sequence[ClientId]) -> None:
    """Refuses an audit in which nobody could be told from anybody."""
    for target in targets:
        origin = audit.origin(target)
        if not ((origin == Origin.MEMBER).any() and (origin != Origin.MEMBER).any()):
            raise BadInput(
                f"client {target} cannot be audited: {int((origin == Origin.MEMBER).sum())} of "
                f"{len(origin)} audited samples are its own; give some that it trains on and some "
                "that it does not"
            )


def _possible(name: str, view: View, task: Task) -> Attack:
    attack = attack_named(name)
    absent = [what for part, what in _NEVER_RECORDED.items() if part in attack.needs]
    if attack.learns or attack.needs_side_information:
        absent = ["a federation to learn from or knowledge of a defense"]
    if absent:
        raise NotVisible(
            f"the attack {name!r} needs {absent[0]}, which a live recording does not have; leave "
            "it out, or simulate the federation with `fedaudit run`"
        )
    view.refuse_unless_offered(attack.needs & ~Sees.AUXILIARY_DATA, f"the attack {name!r}")
    if attack.reads & ~task.readings:
        raise NotVisible(lacking(f"the attack {name!r}", attack.reads, task))
    return attack


def _dataset(recording: Recording, audit: AuditSet) -> Dataset:
    """Members as the training part and unseen samples as the test part, for accuracies."""
    unseen = torch.from_numpy(audit.owner < 0)
    parts = [audit.samples.take(~unseen), audit.samples.take(unseen)]
    numbers = torch.arange(len(audit))
    first = len(parts[0])
    train, test = (
        part.replace(ids=ids)
        for part, ids in zip(parts, (numbers[:first], numbers[first:]), strict=True)
    )
    return Dataset(RECORDED, train, test, recording.classes, "as the federation has it")


_MOST_NAMED = 10
_NO_MODEL = "the model of a recording is not there to be run; its signals were measured before"


@refusing_exits()
def attack_recording(
    folder: Path | str,
    names: Sequence[str],
    out: Path | str,
    *,
    targets: Collection[Called] = (),
    figures: Mapping[str, object] | None = None,
    trust: bool = False,
    progress: Progress = quiet,
    log: Callable[[str], None] = lambda text: None,
) -> Record:
    """Runs attacks on what a recorder measured of somebody's federation.

    Clients are attacked that were measured in at least one round; the record names the others.

    Args:
        folder: The recording.
        names: Attacks to run; those that it was made for if empty.
        out: Folder for the record.
        targets: Clients to be attacked, by number or name; all that are audited if empty.
        figures: Settings of figures to change, by name.
        trust: Import code that the recording names. Else it is refused, since the folder may be
            somebody else's.
        progress: Called with (phase, done, total) as the work goes on.
        log: Takes lines of text for the user.

    Raises:
        BadInput: No recording, or one without a measured round, an attack that it was not made
            for, a folder for the record that holds one of other settings, or code that is not
            trusted.
        Damaged: The recording is incomplete or altered.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> net = torch.nn.Linear(2, 2)
        >>> data = {c: (torch.randn(60, 2), torch.arange(60) % 2) for c in (0, 1)}
        >>> audited = fa.fair_split(data, audited=40).audit
        >>> with fa.record("runs/loop", net, audited, log=lambda line: None) as recorder:
        ...     for number in (1, 2, 3):
        ...         recorder.round(number, sent=net, uploads={0: net, 1: net})
        >>> attack_recording("runs/loop", ["loss-series"], "runs/loop-record").name
        'loop'
    """
    folder = Path(folder)
    with code_named_in(folder, trusted=trust, folder=Path.cwd()):
        _refuse_wrong(figures or {})
        return _attacked(folder, names, Path(out), targets, figures or {}, progress, log)


def _refuse_wrong(figures: Mapping[str, object]) -> None:
    """Refuses settings of figures that no study has, in the words of who gave them."""
    given = {f"figures.{name}" for name in figures}
    study_from({"name": RECORDED, "figures": {**figures}}, source="the attack", overrides=given)


def _attacked(
    folder: Path,
    names: Sequence[str],
    out: Path,
    targets: Collection[Called],
    figures: Mapping[str, object],
    progress: Progress,
    log: Callable[[str], None],
) -> Record:
    clock = Clock()
    # First: what is measured in the meantime is then in the log.
    left = {index for index, _ in waiting(folder)}
    recording, audit, told = read_recording(folder), read_audit(folder), read_round_log(folder)
    stored = _stored(folder, recording, told)
    tell_of_unhashed(folder, log)
    wanted_targets = _targets(recording, targets)
    present = _taking_part(recording, wanted_targets, stored, told)
    names = catalogued(names)
    if unasked := sorted(set(names) - set(recording.attacks)):
        known = recording.refused.get(unasked[0])
        raise BadInput(
            f"{unasked[0]!r} was not recorded for"
            + (f": {plain(known)}" if known else "")
            + f"; this recording has what {', '.join(recording.attacks)} need"
        )
    wanted = dict(figures)
    blind = audit.samples.features.flatten(1).shape[1] > 0
    if not blind:
        wanted["blind_classifier"] = False
    config = _config(recording.model_copy(update={"targets": wanted_targets}), names, wanted)
    refuse_other_record(out, config, besides=ATTACKS)
    run = live_setup(
        recording.model_copy(update={"targets": present}),
        audit,
        Architecture(recording.model, _no_model, task=recording.measured_task()),
        clients=_clients(stored, told),
        rounds=tuple(one.measured.index for one in stored),
        figures=wanted,
        attacks=names,
        watched=Watched(
            untrained=read_untrained(folder, recording.key, len(audit)),
            config=config,
            missing=(
                *(
                    f"What training reveals about {plain(name)}: {plain(why)}"
                    for name, why in recording.unaudited.items()
                ),
                *_not_uploaded(recording, stored),
                *_never_took_part(recording, wanted_targets, present),
                *_missing(told, left, blind=blind),
            ),
            names=recording.names,
            coverage=coverage_of(recording, wanted_targets, stored, told, left),
        ),
    )
    run = _without_source(run, recording, stored, names)
    for one in stored:
        fault = fault_in(one.measured, run.deal.clients, len(audit))
        if fault or not counts_fit(run, one.notes):
            raise Damaged(
                f"the measured round {one.measured.index} in {folder} is damaged: "
                f"{fault or 'its counts of correct predictions cannot be'}; restore it"
            )
    replaced = list[str]()

    def check() -> None:
        before = refuse_other_record(out, config, besides=ATTACKS)
        replaced.append(replaced_attacks(before, names))

    record = conclude(
        [run],
        [stored],
        out,
        Work(progress=progress),
        clock,
        log,
        places={SEED: folder},
        check=check,
    )
    if replaced[0]:
        log(f"replaced in {out}: {replaced[0]}")
    return record


def _without_source(
    run: Setup, recording: Recording, stored: Sequence[Stored], names: Sequence[str]
) -> Setup:
    """The run without source inference where it cannot be made, which is no fault of the others.

    Raises:
        BadInput: It cannot be made, and is asked for by name.
    """
    met = {c for one in stored for c in one.measured.clients} - {EVERYBODY}
    reason = ""
    if len(met) < 2:
        reason = "source inference needs uploads of at least two clients"
    elif absent := [c for c in sorted(run.deal.clients) if not (run.deal.audit.owner == c).any()]:
        reason = (
            f"client {_called(recording, absent[0])} has no audited sample, so that no sample can "
            "be found to be its own"
        )
    refused = dict.fromkeys(run.on_source, reason) if reason else {}
    if asked := [name for name in refused if name in names]:
        raise BadInput(f"{asked[0]!r} cannot be run on this recording: {reason}; leave it out")
    return run.without_attacks(refused)


def _targets(recording: Recording, asked: Collection[Called]) -> tuple[ClientId, ...]:
    """Return the clients that are to be attacked.

    Raises:
        BadInput: One of them is not audited.
    """
    numbers = {number_of(client): client for client in asked}
    for number, client in numbers.items():
        if number not in recording.targets:
            audited = ", ".join(_called(recording, one) for one in recording.targets[:_MOST_NAMED])
            raise BadInput(f"client {str(client)[:80]!r} is not audited; audited are {audited}")
    return tuple(client for client in recording.targets if not asked or client in numbers)


def _taking_part(
    recording: Recording,
    targets: Sequence[ClientId],
    stored: Sequence[Stored],
    log: Sequence[RoundEntry],
) -> tuple[ClientId, ...]:
    """Return the targets of whom at least one upload was measured.

    Raises:
        BadInput: There are none.
    """
    present = tuple(c for c in targets if rounds_with(c, [one.measured for one in stored]))
    if not present:
        named = ", ".join(_called(recording, client) for client in targets[:_MOST_NAMED])
        others = sorted({c for one in stored for c in one.measured.clients})
        met = ", ".join(_called(recording, client) for client in others[:_MOST_NAMED])
        left_out = [(one, client) for one in log for client in targets if client in one.excluded]
        for entry, client in left_out[:1]:
            raise BadInput(
                f"no upload of an audited client ({named}) was measured: {len(left_out)} were left "
                f"out, the first of client {_called(recording, client)} in round {entry.round} for "
                f"this reason: {plain(entry.excluded[client])}"
            )
        raise BadInput(
            f"no upload of an audited client ({named}) was measured, only of {met}; record more "
            "rounds, or call clients as in the audited samples"
        )
    return present


def _never_took_part(
    recording: Recording, targets: Sequence[ClientId], present: Collection[ClientId]
) -> list[str]:
    """A note for readers on audited clients of whom nothing was measured."""
    absent = [_called(recording, client) for client in targets if client not in present]
    if not absent:
        return []
    more = len(absent) - _MOST_NAMED
    named = ", ".join(absent[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    which = "Client" if len(absent) == 1 else "Clients"
    return [f"{which} {named}: never took part in a measured round."]


def _called(recording: Recording, client: ClientId) -> str:
    return plain(recording.names.get(client, str(client)))


def _stored(folder: Path, recording: Recording, log: Sequence[RoundEntry]) -> list[Stored]:
    stored = stored_in(folder)
    left = len(waiting(folder))
    if not stored and left:
        raise BadInput(
            f"{folder} has no measured round yet, and {left} to be measured; wait for its recorder "
            "to do so, or open the recording again with fedaudit.record, and close it"
        )
    failed = [one for one in log if one.failed]
    if not stored and failed:
        raise BadInput(
            f"{folder} has no measured round: {len(failed)} failed, the first for this reason: "
            f"{plain(failed[0].note)}; record rounds again once this is mended"
        )
    if not stored:
        raise BadInput(
            f"{folder} has no measured round yet; record {recording.every} rounds or more, of "
            f"which {len(log)} are known"
        )
    strangers = [one.measured.index for one in stored if one.notes.get("run") != recording.key]
    if strangers:
        raise Damaged(
            f"the measured round {strangers[0]} in {folder} is of another recording; restore it"
        )
    return stored


def _clients(stored: Sequence[Stored], told: Sequence[RoundEntry]) -> list[int]:
    measured = {c for one in stored for c in (*one.measured.clients, *one.measured.stands_for)}
    return sorted((measured | {c for one in told for c in one.asked}) - {EVERYBODY})


_NOT_SETTINGS = {"format", "version", "refused", "conflicts", "is_closed"}


def _config(
    recording: Recording, names: Sequence[str], figures: Mapping[str, object]
) -> dict[str, object]:
    """Known settings of the federation; none of a study, since there was none.

    Its keys are among ``OF_A_RECORDER`` of :mod:`fedaudit.results.record`.
    """
    said = recording.model_dump(mode="json", exclude=_NOT_SETTINGS)
    known = {"name": recording.name, "recording": said, "figures": dict(figures)}
    if names:
        known["attacks"] = {name: {} for name in names}
    own = [("attack", name) for name in (names or recording.attacks) if is_own(name)]
    if own:
        known["code"] = sources_of(own)
    # A recording may be anybody's, and hold any character.
    return {name: made_plain(value) for name, value in known.items()}


def _missing(told: Sequence[RoundEntry], left: Collection[int], *, blind: bool) -> list[str]:
    """Notes for readers on parts that were not heard or not recorded."""
    found = []
    partial = [one.round for one in told if not one.complete]
    if partial:
        found.append(f"What clients did that were asked and did not answer, in {_rounds(partial)}.")
    lost = [one.round for one in told if one.note]
    if lost:
        reason = next(plain(one.note) for one in told if one.note)
        found.append(f"What was not recorded of {_rounds(lost)}: {reason}")
    reasons: dict[int, list[tuple[int, str]]] = {}
    for one in told:
        for client, why in one.excluded.items():
            reasons.setdefault(client, []).append((one.round, why))
    found += [
        f"What client {client} sent in {_rounds([r for r, _ in whys])}: {plain(whys[0][1])}"
        for client, whys in sorted(reasons.items())
    ]
    known = {one.round for one in told}
    waits = sorted({*left} - known)
    if waits:
        found.append(f"What happened in {_rounds(waits)}, still to be measured.")
    between = sorted({*range(1, max(known, default=0) + 1)} - known - {*left})
    if between:
        found.append(f"What happened in {_rounds(between)}, which the recorder did not hear of.")
    if not blind:
        found.append(
            "Whether inputs alone tell members from others: the recording keeps no samples."
        )
    return found


def _not_uploaded(recording: Recording, stored: Sequence[Stored]) -> list[str]:
    """Notes for readers on values of the clients' models that nobody sent."""
    notes = []
    if recording.not_uploaded:
        listed = plain(", ".join(recording.not_uploaded[:_MOST_NAMED]))
        notes.append(
            f"What stays at the clients ({listed}): where uploads lack it, it was measured as it "
            "was sent, and not as the clients have it."
        )
    estimated = [one for one in stored if ESTIMATED in one.notes]
    if estimated:
        notes.append(
            f"The clients' own running statistics of {plain(estimated[0].notes[ESTIMATED])}, which "
            f"they do not send: in {_rounds([one.measured.index for one in estimated])} they were "
            "estimated on audited samples."
        )
    return notes


def _rounds(numbers: Sequence[int]) -> str:
    named = ", ".join(str(number) for number in numbers[:_MOST_NAMED])
    more = len(numbers) - _MOST_NAMED
    return f"round{'s' * (len(numbers) > 1)} {named}" + (f" and {more} more" if more > 0 else "")


def _no_model() -> nn.Module:
    raise BadInput(_NO_MODEL)
