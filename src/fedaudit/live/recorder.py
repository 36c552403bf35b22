"""The recorder: what an adversary sees of somebody's live loop, measured while it runs."""

import re
import secrets
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Literal, cast, get_args

from torch import nn

from fedaudit.core.devices import device_named
from fedaudit.core.errors import BadInput, type_of, unknown_name
from fedaudit.core.locking import Lock, kept_to_this_process
from fedaudit.core.progress import on_stderr, size_of, time_of
from fedaudit.core.tasks import (
    CLASSIFICATION,
    TASKS,
    PerSampleLoss,
    Task,
    classification_by,
    cross_entropy,
    of_loss,
    task_named,
)
from fedaudit.core.values import ClientId, Model
from fedaudit.datasets.dataset import samples_of_task
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.engines.local import one_thread
from fedaudit.live.attack import attacks_in, live_setup
from fedaudit.live.beside import (
    MOST_WAITING,
    Beside,
    Outcome,
    is_left_alone,
    refuse_impossible,
)
from fedaudit.live.files import claim, write_audit, write_untrained
from fedaudit.live.network import Network, network_of
from fedaudit.live.recording import (
    ByClient,
    Called,
    Recording,
    RoundEntry,
    append_round,
    mended_round_log,
    number_of,
    numbers_of,
    recording_of,
    refuse_otherwise_called,
    round_entry,
    write_recording,
)
from fedaudit.live.waiting import clear, hand_over, read_waiting, waiting
from fedaudit.live.weights import (
    Answers,
    Kind,
    Sent,
    Weights,
    refuse_other_kind,
    round_of_globals,
    round_of_uploads,
)
from fedaudit.observe.kept_files import write_round
from fedaudit.observe.layout import MAX_ROUND, Keep, round_bytes
from fedaudit.observe.measurements import MeasuredRound, write_measured
from fedaudit.observe.round import Round
from fedaudit.observe.views import seen_from, view_named
from fedaudit.results.text import plain
from fedaudit.signals.measure import measure_round
from fedaudit.study.controls import untrained_rounds
from fedaudit.study.figures.accuracy import accuracy_notes, evaluation_split

_EVERY = 5.0
"""Seconds between two lines on how far a measurement is; what takes less is not told of."""

_LARGE = 10**7
"""Numbers in all clients' models together from which they take seconds to be drawn."""

_LONGEST_NAME = 200

When = Literal["now", "beside", "after"]
"""Times at which rounds are measured."""


class Recorder:
    """A recording that is being made; see :func:`fedaudit.record`."""

    def __init__(
        self,
        folder: Path,
        recording: Recording,
        samples: AuditSet,
        net: Network,
        *,
        uploads: Kind,
        keep_samples: bool,
        strict: bool,
        measure: When,
        workers: int,
        device: str,
        log: Callable[[str], None],
    ) -> None:
        self._folder, self._shape, self._uploads = folder, net.shape, uploads
        self._strict, self._log = strict, log
        self._workers, self._device, self._when = workers, device_named(device), measure
        if measure == "beside":
            refuse_impossible(self._device)
        self.recording = claim(folder, recording, samples)
        self._lock: Lock | None = _locked(folder, log)
        left = {index for index, _ in waiting(folder)}
        clients = samples.owner[samples.owner >= 0].tolist()
        self._setup = live_setup(
            self.recording, samples, net.architecture, clients=clients, rounds=(MAX_ROUND,)
        )
        self._evaluation = evaluation_split(self._setup)
        self._past = {one.round for one in mended_round_log(folder)}
        self._waiting: tuple[Model, RoundEntry] | None = None
        self._told: set[str] = set()
        self._waited = 0.0
        self._outcomes: list[Outcome] = []
        watch = _Watch(log)
        if not self._past | left:
            if len(set(clients)) * net.shape.numbers >= _LARGE:
                log(f"{self.recording.name}: a model that nobody trained is measured first")
            untrained = untrained_rounds(self._setup, samples.samples, self._device, watch.measured)
            log(self._cost(watch.seconds, untrained[0]))
            # Of one that was begun before and stopped before its first round, not of this one.
            write_untrained(folder, untrained, self.recording.key)
            write_audit(folder, samples, features=keep_samples)
            write_recording(self.recording, folder)
        self._past |= left
        self._beside = (
            Beside(folder, self._measure_file, watch.seconds, [self._lock.number])
            if measure == "beside"
            else None
        )
        if left and self._beside is not None:
            self._beside.handed()
        elif left and measure == "now":
            self._measure_left()
            self._listen()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(finish=error is None)

    def round(
        self,
        index: int,
        *,
        sent: Sent,
        uploads: ByClient[Weights] | None = None,
        weights: ByClient[float] | None = None,
        asked: Collection[Called] | None = None,
        unnamed: int = 0,
        after: Weights | None = None,
    ) -> None:
        """Records one round; rounds that were recorded before are passed over.

        Clients are called as the audited samples were told of them: by number, or by name.

        Args:
            index: Its number, from 1.
            sent: The global model that clients were sent; by client where they differ.
            uploads: What came back of each client; nothing for a client that sees no uploads.
            weights: Shares of clients in the average; in proportion to their sizes, or equal, by
                default.
            asked: Clients that were sent something; those that answered by default.
            unnamed: How many more were sent something, did not answer, and never said which
                clients they are.
            after: The global model afterwards. By default the mean of the uploads; in a view
                without uploads the model that is sent next.

        Raises:
            BadInput: Something does not fit, and the recording is strict.
        """
        if self.has(index):
            return
        entry: RoundEntry | None = None
        try:
            numbers = self._numbers(*(asked or ()), *(uploads or ()), *(weights or ()))
            came = {numbers[client]: upload for client, upload in (uploads or {}).items()}
            shares = {numbers[client]: share for client, share in (weights or {}).items()}
            entry = round_entry(index, [numbers[client] for client in asked or ()], came, unnamed)
            self._hear(entry, Answers(sent, came, shares, after))
        # Whatever it is: no audit may end another's training.
        except Exception as error:
            self._failed(index, entry, error)
        # Of earlier rounds, after this one is safe.
        self._listen()

    def missed(
        self,
        index: int,
        reason: str,
        *,
        asked: Collection[Called] = (),
        answered: Collection[Called] = (),
        unnamed: int = 0,
    ) -> None:
        """Tells of a round that cannot be recorded; the record says so, and why.

        Args:
            index: Its number, from 1.
            reason: What stood in the way, in words.
            asked: Clients that were sent something, as far as they are known.
            answered: Clients that answered, as far as they are known.
            unnamed: As for :meth:`round`.

        Raises:
            BadInput: The recording is strict.
        """
        if self.has(index):
            return
        entry, failure = None, BadInput(reason)
        try:
            numbers = self._numbers(*asked, *answered)
            entry = round_entry(
                index, [numbers[c] for c in asked], [numbers[c] for c in answered], unnamed
            )
        except BadInput as error:
            failure = error
        self._failed(index, entry, failure)

    def begin_at(self, index: int, what: str) -> None:
        """Says so if a run begins with a round that another run has told of before.

        Frameworks count every run from the start, so that all of its rounds would be passed over.

        Args:
            index: The run's first round.
            what: A run of what, in words.

        Raises:
            BadInput: There is such a round, and the recording is strict.
        """
        if not self.has(index):
            return
        text = (
            f"round {index} was recorded before, and what is recorded is not replaced; give {what} "
            "a folder of its own"
        )
        if self._strict:
            raise BadInput(text)
        warnings.warn(f"fedaudit: {text}", RuntimeWarning, stacklevel=4)

    def has(self, index: int) -> bool:
        """True if a round was told of before, in this run or in one that is gone on with."""
        return index in self._past

    @property
    def uploads(self) -> Kind:
        """The kind of uploads that :meth:`round` is given."""
        return self._uploads

    @property
    def sees_uploads(self) -> bool:
        """True if the adversary sees what clients send, each or in sum."""
        return self.recording.view in ("uploads", "sum")

    @property
    def strict(self) -> bool:
        """True if a round that cannot be recorded stops the loop."""
        return self._strict

    def close(self) -> None:
        """Ends the recording, once all its rounds are measured; it can be gone on with."""
        self._close(finish=True)

    def _close(self, *, finish: bool) -> None:
        """Ends the recording; where a loop was stopped, what waits is left to be measured."""
        if self._waiting is not None:
            self._failed_quietly(self._waiting[1], "no model followed")
            self._waiting = None
        if self._lock is None:
            return
        try:
            left = len(waiting(self._folder)) if self._when != "now" else 0
            if left and finish:
                self._log(f"{_rounds(left)} {_are(left)} still to be measured")
            if self._beside is not None and finish:
                self._beside.wait(0)
            if finish:
                self._measure_left()
            elif left and self._beside is None:
                self._log(
                    f"{_rounds(left)} {_are(left)} still to be measured: open the recording again "
                    "with fedaudit.record, and close it"
                )
            if self._waited >= _EVERY:
                self._log(f"training waited {time_of(self._waited)} in all for measuring")
            if finish:
                self._listen()
        finally:
            if self._beside is not None:
                self._beside.close()
            if self._when != "now":
                clear(self._folder)
            self._lock = None

    def _numbers(self, *clients: Called) -> dict[Called, ClientId]:
        """The number of each client; the recording keeps the names of those that have one.

        Raises:
            BadInput: A client that is none, or called otherwise than audited ones.
        """
        numbers, known = numbers_of(clients), self.recording.names
        refuse_otherwise_called(numbers, self.recording.targets)
        named = {n: str(c) for c, n in numbers.items() if not str(c).isdecimal()}
        new = {number: name[:200] for number, name in named.items()}
        if not new.keys() <= known.keys():
            self.recording = self.recording.model_copy(update={"names": known | new})
            write_recording(self.recording, self._folder)
        return numbers

    def _hear(self, entry: RoundEntry, given: Answers) -> None:
        if not given.uploads:
            if self.sees_uploads:
                raise BadInput("no client's upload came back")
            self._follow(entry, cast("Weights", given.sent), given.after)
        elif entry.round % self.recording.every:
            self._note(entry)
        else:
            sizes = self.recording.sizes
            self._measure(round_of_uploads(entry, given, self._shape, self._uploads, sizes), entry)

    def _follow(self, entry: RoundEntry, sent: Weights, after: Weights | None) -> None:
        """A round of which only the model sent is known: measured when the next one comes."""
        now = self._shape.model_of(sent, whose=f"the model sent in round {entry.round}")
        if self._waiting is not None and entry.round < self._waiting[1].round:
            raise BadInput(
                f"it comes after round {self._waiting[1].round}, and where no uploads are seen a "
                "round ends with the model that is sent next; tell of rounds in their order"
            )
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            before, heard_then = waiting
            self._between(before, now, heard_then)
        if after is None:
            self._waiting = (now, entry)
        else:
            self._between(now, self._shape.model_of(after, whose="after"), entry)

    def _between(self, base: Model, after: Model, entry: RoundEntry) -> None:
        if entry.round % self.recording.every:
            self._note(entry)
        else:
            client = self.recording.targets[0]
            self._measure(round_of_globals(entry, base, after, client), entry)

    def _cost(self, seconds: float, untrained: MeasuredRound) -> str:
        """Cost of a measured round, by that of an untrained model."""
        said, numbers = self.recording, self._shape.numbers
        values = sum(part.numel() for part in untrained.signals.values())
        senders = len(self._setup.deal.clients) if self.sees_uploads else 1
        disk = round_bytes(
            keep=said.keep, clients=len(untrained.clients), values=values, parameters=numbers
        )
        # Of each client its model and its change, and of the server two models.
        memory = 4 * numbers * (2 * senders + 2) + 8 * values
        often = "every round" if said.every == 1 else f"every {said.every} rounds"
        advice = "; every=10 would measure each tenth round only" if said.every == 1 else ""
        waits = size_of(4 * numbers * (senders + 2))
        where = {
            "now": "in this process",
            "beside": f"in a process beside it, for which at most {MOST_WAITING} rounds wait "
            f"({waits} each)",
            "after": f"when the recording is closed, until when each round waits ({waits})",
        }[self._when]
        return (
            f"{said.name}: {len(self._setup.deal.audit)} samples are measured {often} by "
            f"{len(untrained.signals)} signals, which takes about {time_of(seconds)} {where}, "
            f"{size_of(disk)} of disk and {size_of(memory)} of memory each time{advice}"
        )

    def _measure(self, round: Round, entry: RoundEntry) -> None:
        (seen,) = seen_from([round], self._setup.view)
        if self._when != "now" and self._lock is None:
            raise BadInput("the recording is closed; open it again with fedaudit.record")
        if self._beside is not None:
            self._wait_for_room(entry)
        if self._when == "now" or not hand_over(self._folder, seen, entry):
            self._tell(entry.round, self._measured(seen, entry))
            return
        self._past.add(entry.round)
        if self._beside is not None:
            self._beside.handed()

    def _measured(self, seen: Round, entry: RoundEntry) -> float:
        """Measures a round; says how many seconds it took."""
        began = monotonic()
        samples = self._setup.deal.audit.samples
        # The same digits in whichever process it is.
        with one_thread():
            measured = measure_round(
                seen, self._setup.signals, samples, workers=self._workers, device=self._device
            )
            write_round(self._folder, seen, self.recording.keep)
            notes = {"complete": str(entry.complete), "run": self.recording.key}
            notes |= accuracy_notes(self._setup, self._evaluation, seen, self._device)
        write_measured(self._folder, measured, notes)
        self._note(entry.model_copy(update={"measured": True}))
        return monotonic() - began

    def _measure_file(self, path: Path) -> None:
        """Measures a round that waits, and takes it away."""
        entry: RoundEntry | None = None
        try:
            seen, entry = read_waiting(path, self._shape.model.architecture)
            self._measured(seen, entry)
        # Whatever it is: the next round is another one.
        except Exception as error:
            if entry is not None:
                self._failed_quietly(entry, plain(f"round {entry.round} is not recorded: {error}"))
            path.unlink(missing_ok=True)
            raise
        path.unlink(missing_ok=True)

    def _measure_left(self) -> None:
        """Measures what waits, here and now."""
        left = waiting(self._folder)
        for done, (index, path) in enumerate(left):
            began, said = monotonic(), ""
            try:
                self._measure_file(path)
            except Exception as error:
                said = str(error)
            self._outcomes.append(Outcome(index, 0.0, said))
            if monotonic() - began >= _EVERY:
                self._log(f"{done + 1} of {_rounds(len(left))} are measured")

    def _wait_for_room(self, entry: RoundEntry) -> None:
        assert self._beside is not None
        if self._beside.given_up:
            self._say_once(
                "the process that measures could not be kept running; what waits is measured when "
                "the recording is closed"
            )
        elif len(waiting(self._folder)) >= MOST_WAITING:
            self._say_once(
                f"round {entry.round} waits until one of {MOST_WAITING} earlier ones is measured; "
                "measuring takes longer than training, see every= and measure='after'"
            )
            began = monotonic()
            self._beside.wait(MOST_WAITING - 1)
            self._waited += monotonic() - began

    def _listen(self) -> None:
        """Says what became of rounds that were measured elsewhere."""
        told, self._outcomes = self._outcomes, []
        for one in [*told, *(self._beside.outcomes() if self._beside else ())]:
            self._heard(one)

    def _heard(self, one: Outcome) -> None:
        if not one.error:
            self._tell(one.round, one.seconds)
        elif self._strict:
            raise BadInput(f"round {one.round} could not be measured: {one.error}")
        else:
            self._warn(plain(f"round {one.round} is not recorded: {one.error}"), one.error)

    def _tell(self, index: int, seconds: float) -> None:
        if seconds >= _EVERY:
            self._log(f"round {index} is measured, in {time_of(seconds)}")

    def _say_once(self, text: str) -> None:
        kind = re.sub(r"\d+", "", text)
        if kind not in self._told:
            self._told.add(kind)
            self._log(text)

    def _note(self, entry: RoundEntry) -> None:
        append_round(entry, self._folder)
        self._past.add(entry.round)

    def _failed(self, index: int, entry: RoundEntry | None, error: Exception) -> None:
        if self._strict:
            raise error
        # Somebody else may have chosen the words: clients, nodes, those who name parameters.
        text = plain(f"round {index} is not recorded: {error}")
        # Before the warning, which some loops have raised.
        if entry is not None:
            self._failed_quietly(entry, text)
        self._warn(text, str(error))

    def _warn(self, text: str, reason: str) -> None:
        # What no round can be recorded for is said once, and not of every round.
        if reason in self._told:
            return
        self._told.add(reason)
        warnings.warn(f"fedaudit: {text}", RuntimeWarning, stacklevel=4)

    def _failed_quietly(self, entry: RoundEntry, note: str) -> None:
        # A full disk is what may have been in the way in the first place.
        with suppress(OSError):
            self._note(entry.model_copy(update={"note": note[:2000]}))


def _locked(folder: Path, log: Callable[[str], None]) -> Lock:
    """The folder's lock; where an earlier run is gone, after its last rounds are measured."""
    try:
        return kept_to_this_process(folder)
    except BadInput:
        if not is_left_alone(folder):
            raise
        log(f"the run before still measures {_rounds(len(waiting(folder)))}; waiting for it")
        return kept_to_this_process(folder, wait=True)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _rounds(count: int) -> str:
    return f"{count} round" + "s" * (count != 1)


class _Watch:
    """Times the measurement of an untrained model, and says how far it is if it takes long."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._began = self._said = monotonic()
        self.seconds = 0.0

    def measured(self, done: int, total: int) -> None:
        """So many samples are."""
        now = monotonic()
        if not done:
            self._began = self._said = now
        self.seconds = now - self._began
        if 0 < done < total and now - self._said >= _EVERY:
            self._said = now
            self._log(
                f"a model that nobody trained is measured, for a control: {done} of {total} "
                f"samples after {time_of(self.seconds)}"
            )


def record(
    path: Path | str,
    model: nn.Module | Callable[[], nn.Module],
    samples: AuditSet,
    *,
    name: str = "",
    attacks: Sequence[str] = (),
    targets: Sequence[Called] = (),
    view: str = "uploads",
    every: int = 1,
    keep: Keep = "signals",
    uploads: Kind = "models",
    sizes: ByClient[int] | None = None,
    loss: PerSampleLoss = cross_entropy,
    task: str | Task | PerSampleLoss = CLASSIFICATION,
    keep_samples: bool = True,
    strict: bool = False,
    measure: When = "now",
    workers: int = 1,
    device: str = "cpu",
    log: Callable[[str], None] = on_stderr,
) -> Recorder:
    """Starts a recording of a federation that somebody else runs, or goes on with one.

    The network is tried on a few samples here, before anything is trained; see
    :func:`fedaudit.core.modules.refuse_unfit`.

    Args:
        path: Folder for the recording; one that was stopped is gone on with.
        model: What clients train: a module, or what makes one. It is copied, never changed.
        samples: What is audited: of :func:`fair_split` or :func:`audit_samples`.
        name: Of the federation; that of the folder by default.
        attacks: Attacks to measure for; by default those of the default set that the view and a
            recording allow. They are kept by name in the recording.
        targets: Clients under audit; all with audited members by default.
        view: What the adversary is taken to see; "globals" for a client that sees no uploads.
        every: Rounds are measured so far apart.
        keep: "signals" keeps measurements only, "full" also every update of measured rounds.
        uploads: What :meth:`Recorder.round` is given: clients' models after training, their
            changes of the model they were sent, or gradients at it.
        sizes: Training samples of each client; for attacks with a prior.
        loss: Loss of classification, of (logits, class indices) with a number a sample, where it is
            not cross-entropy.
        task: What clients train for: a name ("next-token"), what ``fedaudit.tasks`` makes, or a
            loss of your own, of (outputs, targets) with a number a sample.
        keep_samples: Keeps the audited samples' features in the recording, which the control
            with a classifier that sees inputs alone needs. Without, the recording holds none.
        strict: Whether a round that cannot be recorded stops the loop. By default it is warned
            of, and the record says that it is missing: no audit may end another's training.
        measure: "now" measures a round before the loop goes on. "beside" leaves it to a process of
            its own, for which a few rounds may wait: with a core to spare the loop pays for a copy
            of the models alone. "after" measures when the recording is closed, and keeps all rounds
            until then. No figure depends on it.
        workers: Threads for the gradient signals.
        device: Where models are run, such as "cuda".
        log: Takes what the recorder tells of its cost: at the start, once, what a measured round
            takes; while it works, how far what takes long is. Lines on standard error by default.

    Raises:
        BadInput: Settings or samples that make no audit, a network that cannot be audited, a
            folder of something else, or one that another process records to.
        NotVisible: An attack needs what the view does not show.
        Damaged: The recording to go on with cannot be read.
    """
    folder = Path(path)
    refuse_other_kind(uploads)
    if measure not in get_args(When):
        raise unknown_name("time of measuring", measure, get_args(When))
    offered = view_named(view)
    chosen = _task(task, loss)
    possible, refused = attacks_in(offered, attacks, chosen)
    for called in (targets, sizes or {}):
        refuse_otherwise_called(called, samples.owner[samples.owner >= 0].tolist())
    owners = sorted(set(samples.owner[samples.owner >= 0].tolist()))
    samples = replace(samples, samples=samples_of_task(samples.samples, chosen))
    net = network_of(model, samples, chosen)
    given = recording_of(
        name=name or _named_after(folder),
        key=secrets.token_hex(16),
        view=view,
        every=every,
        keep=keep,
        attacks=tuple(possible),
        refused=refused,
        targets=tuple(numbers_of(targets).values()) or tuple(owners),
        classes=net.classes if chosen.classes else int(samples.samples.labels.max()) + 1,
        task={"name": chosen.name, "options": dict(chosen.settings)},
        sizes={number_of(client): size for client, size in (sizes or {}).items()},
        model=net.architecture.name,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return Recorder(
        folder,
        given,
        samples,
        net,
        uploads=uploads,
        keep_samples=keep_samples,
        strict=strict,
        measure=measure,
        workers=workers,
        device=device,
        log=log,
    )


def _task(given: str | Task | PerSampleLoss, loss: PerSampleLoss) -> Task:
    if not isinstance(given, str | Task) and not callable(given):
        raise BadInput(
            "task is a name such as 'next-token', what fedaudit.tasks makes, or a loss of "
            f"(outputs, targets); got {type_of(given)}"
        )
    if isinstance(given, str):
        task = task_named(given, {})
    elif isinstance(given, Task):
        task = given
    elif cast("object", given) in list(TASKS.values()):
        task = cast("Callable[[], Task]", given)()
    else:
        task = of_loss(getattr(given, "__name__", type(given).__name__), given)
    if loss is cross_entropy:
        return task
    if task != CLASSIFICATION:
        raise BadInput(
            f"loss is of classification, and the task {task.name!r} has one of its own; leave one "
            "of them out"
        )
    return classification_by(loss)


def _named_after(folder: Path) -> str:
    """A name for people, of the characters that names may have."""
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", folder.absolute().name)
    return name.lstrip("._=,+-")[:_LONGEST_NAME] or "recording"
