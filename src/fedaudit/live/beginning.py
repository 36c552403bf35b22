"""Beginning or continuing a recording of somebody's live loop."""

import re
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from torch import nn

from fedaudit.core.progress import on_stderr
from fedaudit.core.tasks import PerSampleLoss, cross_entropy
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.attack import attacks_in
from fedaudit.live.network import network_of
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import (
    ByClient,
    Called,
    number_of,
    numbers_of,
    recording_of,
    refuse_otherwise_called,
)
from fedaudit.live.rounds import Kind
from fedaudit.observe.layout import Keep
from fedaudit.observe.views import view_named

_LONGEST_NAME = 200


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
    keep_samples: bool = True,
    strict: bool = False,
    workers: int = 1,
    device: str = "cpu",
    log: Callable[[str], None] = on_stderr,
) -> Recorder:
    """Starts a recording of a federation that somebody else runs, or goes on with one.

    What is audited is classification of feature tensors. The network is tried on a few samples
    here, before anything is trained; see :func:`fedaudit.core.modules.refuse_unfit`.

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
        loss: Per-sample loss of (outputs, labels) that clients minimise.
        keep_samples: Keeps the audited samples' features in the recording, which the control
            with a classifier that sees inputs alone needs. Without, the recording holds none.
        strict: Whether a round that cannot be recorded stops the loop. By default it is warned
            of, and the record says that it is missing: no audit may end another's training.
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
    offered = view_named(view)
    possible, refused = attacks_in(offered, attacks)
    for called in (targets, sizes or {}):
        refuse_otherwise_called(called, samples.owner[samples.owner >= 0].tolist())
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
        targets=tuple(numbers_of(targets).values()) or tuple(owners),
        classes=net.classes,
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
        workers=workers,
        device=device,
        log=log,
    )


def _named_after(folder: Path) -> str:
    """A name for people, of the characters that names may have."""
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", folder.absolute().name)
    return name.lstrip("._=,+-")[:_LONGEST_NAME] or "recording"
