"""The recorder: what an adversary sees of somebody's live loop, measured while it runs."""

import re
import secrets
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import cast

from torch import nn

from fedaudit.core import ClientId, Model, PerSampleLoss, cross_entropy
from fedaudit.data.audit_set import AuditSet
from fedaudit.devices import device_named
from fedaudit.errors import BadInput
from fedaudit.live.files import claim, write_audit, write_untrained
from fedaudit.live.network import Network, network_of
from fedaudit.live.parts import attacks_in, live_setup
from fedaudit.live.recording import (
    Heard,
    Recording,
    add_heard,
    heard_to_go_on,
    recording_of,
    write_recording,
)
from fedaudit.live.rounds import Answers, Kind, Sent, round_of_globals, round_of_uploads
from fedaudit.live.weights import Weights
from fedaudit.locking import Lock, kept_to_this_process
from fedaudit.observe.round import Round
from fedaudit.observe.store import MAX_ROUND, Keep, write_measured, write_round
from fedaudit.observe.views import seen_from, view_named
from fedaudit.signals.measure import measure_round
from fedaudit.study.accuracy import accuracy_notes, exam
from fedaudit.study.controls import untrained_rounds

_MOST_NAMED = 5
_LONGEST_NAME = 200


def record(
    path: Path | str,
    model: nn.Module | Callable[[], nn.Module],
    samples: AuditSet,
    *,
    name: str = "",
    attacks: Sequence[str] = (),
    targets: Sequence[ClientId] = (),
    view: str = "uploads",
    every: int = 1,
    keep: Keep = "signals",
    uploads: Kind = "models",
    sizes: Mapping[ClientId, int] | None = None,
    loss: PerSampleLoss = cross_entropy,
    keep_samples: bool = True,
    strict: bool = False,
    workers: int = 1,
    device: str = "cpu",
) -> "Recorder":
    """Starts a recording of a federation that somebody else runs, or goes on with one.

    Args:
        path: Folder for the recording; one that was stopped is gone on with.
        model: What clients train: a module, or what makes one. It is copied, never changed.
        samples: What is audited: of :func:`fair_split` or :func:`audit_samples`.
        name: Of the federation; that of the folder by default.
        attacks: Attacks to measure for; all that the view and a recording allow by default.
        targets: Clients under audit; all with audited members by default.
        view: What the adversary is taken to see; "globals" for a client that sees no uploads.
        every: Rounds are measured so far apart.
        keep: "signals" keeps measurements only, "full" also every update of measured rounds.
        uploads: What :meth:`Recorder.round` is given: clients' models after training, their
            changes of the model they were sent, or gradients at it.
        sizes: Training samples of each client; for attacks with a prior.
        loss: Per-sample loss of (outputs, labels) that clients minimise.
        keep_samples: Keeps the audited samples' features in the recording, which the control
            with a classifier that sees inputs alone needs. Without, the recording holds none.
        strict: Whether a round that cannot be recorded stops the loop. By default it is warned
            of, and the record says that it is missing: no audit may end another's training.
        workers: Threads for the gradient signals.
        device: Where models are run, such as "cuda".

    Raises:
        BadInput: Settings or samples that make no audit, a folder of something else, or one that
            another process records to.
        NotVisible: An attack needs what the view does not show.
        Damaged: The recording to go on with cannot be read.
    """
    folder = Path(path)
    offered = view_named(view)
    possible, refused = attacks_in(offered, attacks)
    owners = sorted(set(samples.owner[samples.owner >= 0].tolist()))
    net = network_of(model, samples, loss)
    given = recording_of(
        name=name or _named_after(folder),
        key=secrets.token_hex(16),
        view=view,
        every=every,
        keep=keep,
        attacks=tuple(possible),
        refused=refused,
        targets=tuple(targets) or tuple(owners),
        classes=net.classes,
        sizes=dict(sizes or {}),
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
        workers=workers,
        device=device,
    )


def _named_after(folder: Path) -> str:
    """A name for people, of the characters that names may have."""
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", folder.absolute().name)
    return name.lstrip("._=,+-")[:_LONGEST_NAME] or "recording"


class Recorder:
    """A recording that is being made; see :func:`record`."""

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
        workers: int,
        device: str,
    ) -> None:
        self._folder, self._shape, self._uploads = folder, net.shape, uploads
        self._strict = strict
        self._workers, self._device = workers, device_named(device)
        self.recording = claim(folder, recording, samples)
        self._lock: Lock | None = kept_to_this_process(folder)
        clients = samples.owner[samples.owner >= 0].tolist()
        self._setup = live_setup(
            self.recording, samples, net.architecture, clients=clients, rounds=(MAX_ROUND,)
        )
        self._exam = exam(self._setup)
        self._past = {one.round for one in heard_to_go_on(folder)}
        self._waiting: tuple[Model, Heard] | None = None
        if not self._past:
            write_untrained(
                folder,
                untrained_rounds(self._setup, samples.samples, self._device),
                # Of one that was begun before and stopped before its first round, not of this one.
                self.recording.key,
            )
            write_audit(folder, samples, features=keep_samples)
            write_recording(self.recording, folder)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def round(
        self,
        index: int,
        *,
        sent: Sent,
        uploads: Mapping[ClientId, Weights] | None = None,
        weights: Mapping[ClientId, float] | None = None,
        asked: Collection[ClientId] | None = None,
        unnamed: int = 0,
        after: Weights | None = None,
    ) -> None:
        """Records one round; rounds that were recorded before are passed over.

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
        told: Heard | None = None
        try:
            told = _told(index, asked or (), uploads or {}, unnamed)
            self._hear(told, Answers(sent, uploads or {}, weights or {}, after))
        # Whatever it is: no audit may end another's training.
        except Exception as error:
            self._failed(index, told, error)

    def missed(
        self,
        index: int,
        reason: str,
        *,
        asked: Collection[ClientId] = (),
        answered: Collection[ClientId] = (),
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
        told, failure = None, BadInput(reason)
        try:
            told = _told(index, asked, answered, unnamed)
        except BadInput as error:
            failure = error
        self._failed(index, told, failure)

    def has(self, index: int) -> bool:
        """Whether a round was told of before, in this run or in one that is gone on with."""
        return index in self._past

    @property
    def uploads(self) -> Kind:
        """What :meth:`round` is given of clients."""
        return self._uploads

    @property
    def strict(self) -> bool:
        """Whether a round that cannot be recorded stops the loop."""
        return self._strict

    def close(self) -> None:
        """Ends the recording; what is there stays, and can be gone on with."""
        if self._waiting is not None:
            self._failed_quietly(self._waiting[1], "no model followed")
            self._waiting = None
        self._lock = None

    def _hear(self, told: Heard, given: Answers) -> None:
        if not given.uploads:
            if self.recording.view in ("uploads", "sum"):
                raise BadInput("no client's upload came back")
            self._follow(told, cast("Weights", given.sent), given.after)
        elif told.round % self.recording.every:
            self._note(told)
        else:
            sizes = self.recording.sizes
            self._measure(round_of_uploads(told, given, self._shape, self._uploads, sizes), told)

    def _follow(self, told: Heard, sent: Weights, after: Weights | None) -> None:
        """A round of which only the model sent is known: measured when the next one comes."""
        now = self._shape.model_of(sent, whose=f"the model sent in round {told.round}")
        if self._waiting is not None and told.round < self._waiting[1].round:
            raise BadInput(
                f"it comes after round {self._waiting[1].round}, and where no uploads are seen a "
                "round ends with the model that is sent next; tell of rounds in their order"
            )
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            before, heard_then = waiting
            self._between(before, now, heard_then)
        if after is None:
            self._waiting = (now, told)
        else:
            self._between(now, self._shape.model_of(after, whose="after"), told)

    def _between(self, base: Model, after: Model, told: Heard) -> None:
        if told.round % self.recording.every:
            self._note(told)
        else:
            client = self.recording.targets[0]
            self._measure(round_of_globals(told, base, after, client), told)

    def _measure(self, round: Round, told: Heard) -> None:
        (seen,) = seen_from([round], self._setup.view)
        samples = self._setup.deal.audit.samples
        measured = measure_round(
            seen, self._setup.signals, samples, workers=self._workers, device=self._device
        )
        write_round(self._folder, seen, self.recording.keep)
        notes = {"complete": str(told.complete), "run": self.recording.key}
        notes |= accuracy_notes(self._setup, self._exam, seen, self._device)
        write_measured(self._folder, measured, notes)
        self._note(told.model_copy(update={"measured": True}))

    def _note(self, told: Heard) -> None:
        add_heard(told, self._folder)
        self._past.add(told.round)

    def _failed(self, index: int, told: Heard | None, error: Exception) -> None:
        if self._strict:
            raise error
        text = f"round {index} is not recorded: {error}"
        # Before the warning, which some loops have raised.
        if told is not None:
            self._failed_quietly(told, text)
        warnings.warn(f"fedaudit: {text}", RuntimeWarning, stacklevel=3)

    def _failed_quietly(self, told: Heard, note: str) -> None:
        # A full disk is what may have been in the way in the first place.
        with suppress(OSError):
            self._note(told.model_copy(update={"note": note[:2000]}))


def _told(
    index: int, asked: Collection[ClientId], answered: Collection[ClientId], unnamed: int
) -> Heard:
    try:
        return Heard(
            round=index,
            asked=tuple(sorted({*asked, *answered})),
            answered=tuple(sorted(answered)),
            measured=False,
            unnamed=unnamed,
        )
    except (TypeError, ValueError) as error:
        clients = ", ".join(repr(client) for client in [*asked, *answered][:_MOST_NAMED])
        raise BadInput(
            f"rounds have whole numbers from 1 to {MAX_ROUND} and clients from 0, got round "
            f"{index!r} of the clients {clients}; number them so"
        ) from error
