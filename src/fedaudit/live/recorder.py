"""The recorder: what an adversary sees of somebody's live loop, round by round."""

import re
import secrets
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import cast

from torch import nn

from fedaudit.core.devices import device_named
from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.progress import on_stderr
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
from fedaudit.live.attack import attacks_in, live_setup
from fedaudit.live.beside import Outcome, refuse_impossible
from fedaudit.live.files import claim, write_audit, write_untrained
from fedaudit.live.measuring import Measuring, When, locked, refuse_other_time
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
from fedaudit.live.unsent import estimated_layers, named_few
from fedaudit.live.waiting import waiting
from fedaudit.live.weights import (
    Answers,
    Kind,
    Sent,
    Weights,
    refuse_other_kind,
    round_of_globals,
    round_of_uploads,
)
from fedaudit.observe.layout import MAX_ROUND, Keep
from fedaudit.observe.round import Round
from fedaudit.observe.views import seen_from, view_named
from fedaudit.results.text import plain
from fedaudit.study.figures.reported import Metric, metrics_in

_LONGEST_NAME = 200


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
        self._strict, self._told = strict, set[str]()
        place = device_named(device)
        if measure == "beside":
            refuse_impossible(place)
        self.recording = claim(folder, recording, samples)
        lock = locked(folder, log)
        left = {index for index, _ in waiting(folder)}
        clients = samples.owner[samples.owner >= 0].tolist()
        self._setup = live_setup(
            self.recording, samples, net.architecture, clients=clients, rounds=(MAX_ROUND,)
        )
        self._past = {one.round for one in mended_round_log(folder)}
        self._waiting: tuple[Model, RoundEntry] | None = None
        self._measuring = Measuring(
            folder,
            self.recording,
            self._setup,
            net.shape,
            lock,
            when=measure,
            workers=workers,
            device=place,
            note=self._note,
            failed=self._failed_quietly,
            log=log,
        )
        if not self._past | left:
            untrained = self._measuring.untrained()
            # Of one that was begun before and stopped before its first round, not of this one.
            write_untrained(folder, untrained, self.recording.key)
            write_audit(folder, samples, features=keep_samples)
            write_recording(self.recording, folder)
        self._past |= left
        self._measuring.begin()
        if measure == "now":
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
        excluded: ByClient[str] | None = None,
        note: str = "",
        reported: ByClient[Mapping[str, float]] | None = None,
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
            excluded: Clients that answered with an upload that cannot be read, and why. The round
                is measured without them, and the log names them.
            note: What was wrong with the uploads of clients that are not known.
            reported: Accuracy ("accuracy", as a share or in percent) and mean loss ("loss") on its
                training data that a client computed with the model it uploads. They are compared
                with the recorder's own figures on the client's audited members.

        Raises:
            BadInput: Something does not fit, and the recording is strict.
        """
        if self.has(index):
            return
        entry: RoundEntry | None = None
        try:
            numbers = self._numbers(
                *(asked or ()), *(uploads or ()), *(weights or ()), *(excluded or ())
            )
            came = {numbers[client]: upload for client, upload in (uploads or {}).items()}
            shares = {numbers[client]: share for client, share in (weights or {}).items()}
            reasons = {numbers[client]: why for client, why in (excluded or {}).items()}
            asked_numbers = [numbers[client] for client in asked or ()]
            entry = round_entry(index, asked_numbers, {*came, *reasons}, unnamed, reasons, note)
            self._refuse_incomplete(entry)
            entry = entry.model_copy(update={"reported": self._reported(reported or {}, came)})
            self._hear(entry, Answers(sent, came, shares, after))
            for called, why in (excluded or {}).items():
                self._warn(plain(f"round {index} is recorded without client {called}: {why}"), why)
            if note:
                self._warn(plain(f"round {index} is not recorded in full: {note}"), note)
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
        if self._measuring.is_closed:
            return
        try:
            self._measuring.end(finish=finish)
            if finish:
                self._listen()
        finally:
            self._measuring.close()

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

    def _refuse_incomplete(self, entry: RoundEntry) -> None:
        """Raise if uploads are missing and the recording is strict, or records their sum."""
        reason = next(iter(entry.excluded.values()), entry.note)
        if reason and (self._strict or self.recording.view == "sum"):
            raise BadInput(reason)

    def _reported(
        self, reported: ByClient[Mapping[str, float]], answered: Collection[ClientId]
    ) -> dict[ClientId, dict[Metric, float]]:
        """The usable metrics of audited clients, by number; a client chooses what it reports."""
        # A gradient is taken at the model that was sent, of which the upload says nothing.
        if self._uploads == "gradients":
            return {}
        audited = {*self.recording.targets} & {*answered}
        metrics = dict[ClientId, dict[Metric, float]]()
        for client, values in reported.items():
            # A metric that cannot be used costs no round.
            with suppress(BadInput):
                metrics[number_of(client)] = metrics_in(values)
        return {client: metrics[client] for client in sorted(audited) if metrics.get(client)}

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
            self._measure(round_of_globals(entry, base, after, client, self._shape), entry)

    def _measure(self, round: Round, entry: RoundEntry) -> None:
        (seen,) = seen_from([round], self._setup.view)
        layers = estimated_layers(seen, self._shape.unsent)
        if layers:
            self._warn(
                f"running statistics of {plain(named_few(layers))} are not in what clients send; "
                "they are estimated for each model on audited samples, and the report says so; "
                "send the whole state dict to measure the clients' own",
                "estimated statistics",
            )
        self._measuring.take(seen, entry)
        self._past.add(entry.round)

    def _listen(self) -> None:
        """Says which rounds that waited could not be measured."""
        for one in self._measuring.outcomes():
            self._heard(one)

    def _heard(self, one: Outcome) -> None:
        if one.error and self._strict:
            raise BadInput(f"round {one.round} could not be measured: {one.error}")
        if one.error:
            self._warn(plain(f"round {one.round} is not recorded: {one.error}"), one.error)

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
    not_uploaded: Collection[str] = (),
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
        not_uploaded: Names, or patterns such as "head.*", of parameters and buffers that stay at
            the clients. They are measured as they were sent, else as in ``model``. Others that
            uploads lack are refused, except running statistics, which are estimated.
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
    refuse_other_time(measure)
    offered = view_named(view)
    chosen = _task(task, loss)
    possible, refused = attacks_in(offered, attacks, chosen)
    for called in (targets, sizes or {}):
        refuse_otherwise_called(called, samples.owner[samples.owner >= 0].tolist())
    owners = sorted(set(samples.owner[samples.owner >= 0].tolist()))
    samples = replace(samples, samples=samples_of_task(samples.samples, chosen))
    net = network_of(model, samples, chosen, not_uploaded)
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
        not_uploaded=tuple(not_uploaded),
        unaudited=dict(samples.unaudited),
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
