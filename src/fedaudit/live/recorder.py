"""The recorder: what an adversary sees of somebody's live loop, round by round."""

import re
import secrets
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import NoReturn, cast, get_args

from torch import nn

from fedaudit.core.devices import device_named
from fedaudit.core.errors import BadInput, type_of, unknown_name
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
from fedaudit.evaluation.uploads import Metric, metrics_in
from fedaudit.live.beside import refuse_impossible
from fedaudit.live.clients import (
    Attendance,
    ByClient,
    Called,
    number_of,
    numbers_of,
    participants_of,
    plain_name,
    refuse_otherwise_called,
    usable_number,
)
from fedaudit.live.files import claim, waiting_entries, write_audit, write_untrained
from fedaudit.live.measuring import Measuring, When, locked
from fedaudit.live.network import Network, network_of
from fedaudit.live.recording import (
    MOST_CLIENTS,
    MOST_CONFLICTS,
    UPLOAD_VIEWS,
    Recording,
    RoundEntry,
    append_round,
    mended_round_log,
    recording_of,
    recording_text,
    round_entry,
    write_recording,
)
from fedaudit.live.rounds import (
    Answers,
    Heard,
    Kind,
    Sent,
    bases_of,
    digest_of_models,
    finite_model,
    round_of_globals,
    round_of_uploads,
)
from fedaudit.live.setup import attacks_in, recorded_run
from fedaudit.live.weights import NOT_FINITE, Weights, estimated_layers, named_few
from fedaudit.observe.round import EVERYBODY, Round
from fedaudit.observe.tensors import MAX_ROUND, Keep
from fedaudit.observe.views import seen_from, view_named
from fedaudit.results.text import log_line, plain

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
        self._strict, self._told, self._log = strict, set[str](), log
        place = device_named(device)
        if measure == "beside":
            refuse_impossible(place)
        claimed = claim(folder, recording, samples)
        self.recording = claimed.model_copy(update={"is_closed": False})
        lock = locked(folder, log)
        left = waiting_entries(folder)
        clients = samples.owner[samples.owner >= 0].tolist()
        self._setup = recorded_run(
            self.recording, samples, net.architecture, clients=clients, rounds=(MAX_ROUND,)
        )
        self._other_run = ""
        before = mended_round_log(folder)
        # A round that failed may be told again.
        self._past = {one.round: one for one in before if not one.failed}
        self._attendance = Attendance(
            {*clients, *self.recording.targets, *self.recording.sizes},
            [*before, *left.values()],
            self._called,
        )
        for index in left:
            self._count(index)
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
        # Settings that could not be read back are refused before anything is measured.
        recording_text(self.recording, folder)
        if not before and not left:
            untrained = self._measuring.untrained()
            # Of one that was begun before and stopped before its first round, not of this one.
            write_untrained(folder, untrained, self.recording.key)
            write_audit(folder, samples, features=keep_samples)
        if self.recording != claimed or not (before or left):
            write_recording(self.recording, folder)
        self._past |= left
        self._earlier = {*self._past}
        if self._past:
            log(f"{self.recording.name}: continues after round {max(self._past)}")
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
        try:
            self._close(finish=error is None)
        except Exception:
            # The error that stops the loop is the one to be seen.
            if error is None:
                raise

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
        kept_out: Collection[Called] = (),
        note: str = "",
        reported: ByClient[Mapping[str, float]] | None = None,
    ) -> None:
        """Records one round; a round that was recorded before is compared with what was told then.

        Clients are called as the audited samples were told of them: by number, or by name. A client
        whose upload cannot be measured (values that are not finite, another shape, another part of
        the model, an impossible weight) is left out of the round by name. The figures of the others
        are those of a round in which it did not answer.

        Args:
            index: Its number, from 1.
            sent: The global model that clients were sent; by client where they differ.
            uploads: What came back of each client; nothing for a client that sees no uploads.
            weights: Shares of clients in the average; in proportion to their sizes, or equal, by
                default.
            asked: Clients that were sent something; those that answered by default.
            unnamed: How many more were sent something, did not answer, and never said which
                clients they are.
            after: The global model afterwards. By default the mean of the uploads that can be
                measured; in a view without uploads the model that is sent next.
            excluded: Clients that answered with an upload that cannot be read, and why. The round
                is measured without them, and the log names them.
            kept_out: Clients whose upload the server kept out of the average. What they sent is
                measured, but no later model depends on it, so that nothing is missing if it cannot
                be measured. An upload that is not finite counts as kept out if ``after`` is finite.
            note: What was wrong with the uploads of clients that are not known.
            reported: Accuracy ("accuracy", as a share or in percent) and mean loss ("loss") on its
                training data that a client computed with the model it uploads. They are compared
                with the recorder's own figures on the client's audited members.

        Raises:
            BadInput: Something does not fit, and the recording is strict.
        """
        entry: RoundEntry | None = None
        try:
            self._count(index)
            self._keep_names(*(asked or ()), *(uploads or ()), *(excluded or ()))
            came = participants_of(
                uploads or {}, asked or (), excluded or {}, self.recording.targets
            )
            answered = {*came.uploads, *came.faulty}
            entry = round_entry(
                index, came.asked, answered, unnamed + came.unnamed, came.faulty, note or came.note
            )
            shares = self._by_number(weights or {})
            numbers = self._by_number(dict.fromkeys(kept_out, 0.0))
            entry = entry.model_copy(
                update={
                    "unknown": bool(entry.note),
                    "kept_out": tuple(sorted(answered & numbers.keys())),
                    "reported": self._reported(reported or {}, came.uploads),
                }
            )
            self._hear(entry, Answers(sent, came.uploads, shares, after, entry.kept_out))
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
        answered: Collection[Called] | None = None,
        unnamed: int = 0,
    ) -> None:
        """Tells of a round that cannot be recorded; the record says so, and why.

        Args:
            index: Its number, from 1.
            reason: What stood in the way, in words.
            asked: Clients that were sent something, as far as they are known.
            answered: Clients that answered; None if it is not known who did, or not of all.
            unnamed: As for :meth:`round`.

        Raises:
            BadInput: The recording is strict.
        """
        entry, failure = None, BadInput(reason)
        try:
            if self.has(index):
                return
            self._count(index)
            self._keep_names(*asked, *(answered or ()))
            came = participants_of(
                {}, asked, dict.fromkeys(answered or (), reason), self.recording.targets
            )
            entry = round_entry(index, came.asked, came.faulty, unnamed + came.unnamed)
            entry = entry.model_copy(update={"unknown": answered is None or bool(came.note)})
        except Exception as error:
            failure = BadInput(str(error))
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
        self._warn(text, text)

    def has(self, index: int) -> bool:
        """True if a round is recorded, in this run or in one that it continues."""
        return index in self._past

    @property
    def uploads(self) -> Kind:
        """The kind of uploads that :meth:`round` is given."""
        return self._uploads

    @property
    def sees_uploads(self) -> bool:
        """True if the adversary sees what clients send, each or in sum."""
        return self.recording.view in UPLOAD_VIEWS

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
        except Exception as error:
            if self._strict:
                raise
            self._warn(plain(f"what waits could not be measured: {error}"), str(error))
        finally:
            with self._never_raising():
                self._measuring.close()
        if finish:
            self._listen()
            with self._never_raising():
                self._restate(is_closed=True)
        if summary := self._attendance.summary():
            self._warn(plain(summary), summary)

    @contextmanager
    def _never_raising(self) -> Iterator[None]:
        """Raise nothing inside, unless the recording is strict."""
        try:
            yield
        except Exception as error:
            if self._strict:
                raise
            self._warn(plain(f"the recorder failed: {error}"), str(error))

    def _keep_names(self, *clients: Called) -> None:
        known, new = self.recording.names, dict[ClientId, str]()
        for client in clients:
            name = plain_name(client) if isinstance(client, str) else ""
            if name and not name.isdecimal():
                with suppress(BadInput):
                    new[usable_number(name, self.recording.targets)] = name[:200]
        if len(known) < MOST_CLIENTS and not new.keys() <= known.keys():
            # More names than can be read back are shown as numbers: no round is lost for them.
            with suppress(BadInput):
                self._restate(names=dict(islice((known | new).items(), MOST_CLIENTS)))

    def _restate(self, **changes: object) -> None:
        recording = self.recording.model_copy(update=changes)
        write_recording(recording, self._folder)
        self.recording = recording

    def _by_number(self, values: ByClient[float]) -> dict[ClientId, float]:
        """Values by the number of their client, without those of clients that have none."""
        found = dict[ClientId, float]()
        for client, value in values.items():
            with suppress(BadInput):
                found[usable_number(client, self.recording.targets)] = value
        return found

    def _called(self, client: ClientId) -> str:
        return self.recording.names.get(client, str(client))

    def _refuse_faulty(self, entry: RoundEntry, given: Answers) -> None:
        """Raise if uploads are missing and the recording is strict, or their sum is measured."""
        missing = {c: why for c, why in entry.excluded.items() if c not in entry.kept_out}
        of_sum = self.recording.view == "sum" or (
            self.recording.view != "uploads" and given.after is None
        )
        if (missing or entry.note) and (self._strict or of_sum):
            client, why = next(iter(missing.items()), (None, entry.note))
            raise BadInput(why if client is None else f"of client {self._called(client)}: {why}")

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
        if self._other_run:
            raise BadInput(self._other_run)
        if not given.uploads and not self.sees_uploads:
            self._follow(entry, cast("Weights", given.sent), given.after)
            return
        if not given.uploads:
            if entry.excluded:
                self._refuse_all(entry.excluded)
            raise BadInput("no client's upload came back")
        if entry.round % self.recording.every:
            bases = bases_of(given.sent, sorted(given.uploads), self._shape)[0]
            entry = entry.model_copy(update={"sent": digest_of_models(bases), "note": ""})
            if not self._is_repeated(entry):
                self._meet(entry)
                self._note(entry.logged())
            return
        heard = round_of_uploads(entry, given, self._shape, self._uploads, self.recording.sizes)
        entry = _with_findings(entry, given, heard)
        if self._is_repeated(entry):
            return
        if heard.round is None:
            self._refuse_all(entry.excluded)
        self._refuse_faulty(entry, given)
        self._meet(entry)
        self._measure(heard.round, entry)
        self._warn_of_faulty(entry.round, entry.excluded)
        if entry.note:
            # With every audited client's upload at hand, the other is of a client without audit.
            whole = {*self.recording.targets} <= {*entry.answered}
            how = "is recorded without an upload" if whole else "is not recorded in full"
            self._warn(plain(f"round {entry.round} {how}: {entry.note}"), entry.note)

    def _is_repeated(self, entry: RoundEntry) -> bool:
        """Return True if a round was recorded before; raise if the folder holds another run."""
        before = self._past.get(entry.round)
        if self._waiting is not None and self._waiting[1].round == entry.round:
            before = self._waiting[1]
        if before is None:
            return False
        pairs = ((before.sent, entry.sent), (before.uploads, entry.uploads))
        if not any(then and now and then != now for then, now in pairs):
            self._earlier.discard(entry.round)
            return True
        what = "models sent" if before.sent != entry.sent else "uploads"
        text = f"round {entry.round} was recorded before with other {what}"
        if entry.round in self._earlier:
            self._keep_conflict(
                entry.round,
                f"that of another run, with other {what}; of that run nothing more is measured",
            )
            self._other_run = (
                f"{text}: the folder holds another run, which is kept, and nothing of this one is "
                "recorded from here on; give this run a folder of its own"
            )
            raise BadInput(self._other_run)
        self._keep_conflict(
            entry.round, f"its second version, with other {what}; the first is measured"
        )
        text += " in this run, and these are kept; give each round a number of its own"
        if self._strict:
            raise BadInput(text)
        self._warn(text, text)
        return True

    def _keep_conflict(self, index: int, reason: str) -> None:
        known = self.recording.conflicts
        if index not in known and len(known) < MOST_CONFLICTS:
            with suppress(BadInput):
                self._restate(conflicts={**known, index: reason})

    def _meet(self, entry: RoundEntry) -> None:
        """Warn, or raise, if no client so far is audited: it may be called by another number."""
        fault = self._attendance.fault(entry)
        if fault and self._strict:
            raise BadInput(fault)
        if fault:
            self._warn(fault, "nobody is audited")

    def _refuse_all(self, faulty: Mapping[ClientId, str]) -> NoReturn:
        client, reason = next(iter(sorted(faulty.items())))
        raise BadInput(
            f"no upload can be measured; that of client {self._called(client)}: {reason}"
        )

    def _warn_of_faulty(self, index: int, faulty: Mapping[ClientId, str]) -> None:
        for client, why in faulty.items():
            called = self._called(client)
            text = plain(f"round {index} is recorded without client {called}: {why}")
            self._warn(text, f"{called}: {why}")

    def _follow(self, entry: RoundEntry, sent: Weights, after: Weights | None) -> None:
        """A round of which only the model sent is known: measured when the next one comes."""
        now = finite_model(sent, self._shape, f"the model sent in round {entry.round}")
        entry = entry.model_copy(update={"sent": digest_of_models({EVERYBODY: now})})
        if self._is_repeated(entry):
            return
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
            self._between(now, finite_model(after, self._shape, "the model afterwards"), entry)

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
        self._past[entry.round] = entry

    def _listen(self) -> None:
        """Warn of rounds that could not be measured in full; raise if the recording is strict."""
        with self._never_raising():
            for index, _, error, faulty in self._measuring.outcomes():
                if error:
                    self._past.pop(index, None)
                    self._count(index, error)
                if self._strict and (error or faulty):
                    why = error or next(iter(faulty.values()))
                    raise BadInput(f"round {index} could not be measured: {why}")
                if error:
                    self._warn(plain(f"round {index} is not recorded: {error}"), error)
                self._warn_of_faulty(index, faulty)

    def _note(self, entry: RoundEntry) -> None:
        append_round(entry, self._folder)
        if not entry.failed:
            self._past[entry.round] = entry

    def _count(self, index: object, reason: str = "") -> None:
        """Count a round, with the reason if it is not recorded; a later outcome counts instead."""
        self._attendance.reasons[str(index)[:80]] = reason

    def _failed(self, index: int, entry: RoundEntry | None, error: Exception) -> None:
        if self._strict:
            raise error
        reason = str(error) or type(error).__name__
        # Somebody else may have chosen the words: clients, nodes, those who name parameters.
        text = plain(f"round {index} is not recorded: {reason}")
        # Before the warning, which some loops have raised. A round that is there stays so.
        if entry is not None and index not in self._past:
            self._failed_quietly(entry, text)
        if not self._past and not any(self._attendance.reasons.values()):
            text += ". No round is recorded so far, and later ones will fail likewise"
        self._count(index, reason)
        self._warn(text, reason)

    def _warn(self, text: str, reason: str) -> None:
        # What no round can be recorded for is said once, and not of every round.
        if reason in self._told:
            return
        self._told.add(reason)
        text = log_line(text)
        try:
            warnings.warn(f"fedaudit: {text}", RuntimeWarning, stacklevel=4)
        # A loop that has warnings raised is not to end by ours.
        except RuntimeWarning:
            with suppress(Exception):
                self._log(f"warning: {text}")

    def _failed_quietly(self, entry: RoundEntry, note: str) -> None:
        # A full disk is what may have been in the way in the first place.
        with suppress(Exception):
            self._note(entry.logged(note=note[:2000]))


def _with_findings(entry: RoundEntry, given: Answers, heard: Heard) -> RoundEntry:
    """Return the entry with what was found out about the uploads."""
    excluded = {**entry.excluded, **heard.faulty}
    kept_out = {*entry.kept_out}
    if given.after is not None and heard.after_is_finite:
        # The mean of what is not finite is not: the model afterwards was made without it.
        kept_out |= {client for client, why in excluded.items() if NOT_FINITE in why}
    return entry.model_copy(
        update={
            "excluded": {client: plain(why)[:2000] for client, why in excluded.items()},
            "kept_out": tuple(sorted(kept_out)),
            "sent": heard.sent,
            "uploads": heard.uploads,
            "weights": heard.weights if given.after is None else {},
        }
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

    Examples:
        >>> import torch
        >>> from fedaudit.live.audited import fair_split
        >>> data = {c: (torch.randn(60, 2), torch.arange(60) % 2) for c in (0, 1)}
        >>> split = fair_split(data, audited=40)
        >>> net = nn.Linear(2, 2)
        >>> recorder = record(
        ...     "runs/live", net, split.audit, attacks=["loss-series"], log=lambda line: None
        ... )
        >>> with recorder:
        ...     for number in (1, 2, 3):  # your loop
        ...         recorder.round(number, sent=net, uploads={0: net, 1: net})
    """
    folder = Path(path)
    _refuse_unlisted("kind of uploads", uploads, get_args(Kind))
    _refuse_unlisted("time of measuring", measure, get_args(When))
    chosen = _task(task, loss)
    possible, refused = attacks_in(view_named(view), attacks, chosen)
    owners = sorted(set(samples.owner[samples.owner >= 0].tolist()))
    for called in (targets, sizes or {}):
        refuse_otherwise_called(called, owners)
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
        sizes=dict(zip(numbers_of(sizes).values(), sizes.values(), strict=True)) if sizes else {},
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


def _refuse_unlisted(what: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise unknown_name(what, given, allowed)


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
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", folder.absolute().name)
    return name.lstrip("._=,+-")[:_LONGEST_NAME] or "recording"
