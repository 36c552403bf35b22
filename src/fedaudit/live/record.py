"""Start of a recording of a federation that trains elsewhere."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

from torch import nn

from fedaudit.core.arguments import check_arguments
from fedaudit.core.errors import BadInput, type_of, unknown_name
from fedaudit.core.progress import print_to_stderr
from fedaudit.core.task_catalogue import TASKS, of_loss, task_named
from fedaudit.core.tasks import (
    CLASSIFICATION,
    PerSampleLoss,
    Task,
    classification_with_loss,
    cross_entropy,
)
from fedaudit.datasets.dataset import prepare_samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.clients import (
    ByClient,
    ClientRef,
    by_number,
    numbers_of,
    raise_if_mixed_references,
)
from fedaudit.live.measuring import MeasurementTime
from fedaudit.live.network import network_of
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import new_recording
from fedaudit.live.rounds import UploadKind
from fedaudit.live.sending import open_or_warn
from fedaudit.live.setup import attacks_in
from fedaudit.observe.tensors import Keep
from fedaudit.observe.views import view_named
from fedaudit.sinks.base import SinkLike


@check_arguments
def record(
    path: Path | str,
    model: nn.Module | Callable[[], nn.Module],
    samples: AuditSet,
    *,
    name: str = "",
    attacks: Sequence[str] = (),
    targets: Sequence[ClientRef] = (),
    view: str = "uploads",
    every: int = 1,
    keep: Keep = "signals",
    uploads: UploadKind = "models",
    sizes: ByClient[int] | None = None,
    loss: PerSampleLoss = cross_entropy,
    task: str | Task | PerSampleLoss = CLASSIFICATION,
    not_uploaded: Collection[str] = (),
    keep_samples: bool = True,
    strict: bool = False,
    measure: MeasurementTime = "now",
    workers: int = 1,
    device: str = "cpu",
    to: "SinkLike | Sequence[SinkLike] | None" = None,
    log: Callable[[str], None] = print_to_stderr,
) -> Recorder:
    """Start or continue a recording of a federation that runs elsewhere.

    The network is run on a few samples first, and an unsuitable network is refused; see
    :func:`fedaudit.core.modules.raise_if_unusable_model`.

    Args:
        path: Folder for the recording; a recording that was stopped is continued.
        model: The module that clients train, or a function that builds one. It is copied.
        samples: The audit set, from :func:`fair_split` or :func:`audit_samples`.
        name: Name of the federation; by default that of the folder.
        attacks: Attacks whose signals are measured; by default those of the default set that view
            and recording allow.
        targets: Audited clients; by default all clients with audited members.
        view: The adversary's view; "globals" for a client that sees no uploads.
        every: Interval between measured rounds, in rounds; 1 measures every round.
        keep: "signals" stores only measurements, "full" also every update of measured rounds.
        uploads: Kind of uploads that :meth:`Recorder.round` receives: clients' "models" after
            training, "updates" (differences from the sent model), or "gradients" at the sent model.
        sizes: Number of training samples per client; SIA can use it as a prior.
        loss: Per-sample loss of (logits, class indices) for classification.
        task: The clients' task: a name ("next-token"), a task of ``fedaudit.tasks``, or a
            per-sample loss of (outputs, targets).
        not_uploaded: Names, or patterns such as "head.*", of parameters and buffers that clients do
            not upload. Their values are taken from the sent model, or from ``model`` if they are
            not sent. Any other missing parameter is an error; missing running statistics are
            estimated.
        keep_samples: Whether to store the audited samples' features in the recording. The
            blind-classifier control needs them.
        strict: Whether a round that cannot be recorded stops the loop. By default a warning is
            issued, and the record lists the round as missing.
        measure: Time of measurement, on which results do not depend. "now" measures a round before
            the loop continues. "background" measures in a background process, while the loop only
            copies models and continues. "after" stores all rounds, and measures them when the
            recording is closed.
        workers: Threads for the gradient signals.
        device: Device on which models are run, such as "cuda".
        to: Tracker that receives the AUC of each attack after each measured round, with limits:
            "mlflow", "tensorboard" or "wandb", an object with the methods of
            :class:`fedaudit.sinks.base.Sink`, or several. If it fails, a warning is issued and the
            recording continues.
        log: Receives lines about cost and progress; by default they are written to standard error.

    Raises:
        BadInput: Settings or samples are invalid, the network cannot be audited, or the folder has
            other files or is in use by another process.
        NotVisible: An attack needs more than the view shows.
        Unsupported: The library of a tracker is not installed.
        Damaged: The recording to continue cannot be read.

    Examples:
        >>> import fedaudit as fa
        >>> from torch import nn
        >>> import torch
        >>> from fedaudit.live.audited import fair_split
        >>> data = {c: (torch.randn(60, 2), torch.arange(60) % 2) for c in (0, 1)}
        >>> split = fa.fair_split(data, audited=40)
        >>> net = nn.Linear(2, 2)
        >>> recorder = fa.record(
        ...     "runs/live", net, split.audit, attacks=["loss-series"], log=lambda line: None
        ... )
        >>> with recorder:
        ...     for number in (1, 2, 3):  # your loop
        ...         recorder.round(number, sent=net, uploads={0: net, 1: net})
    """
    folder = Path(path)
    if uploads not in get_args(UploadKind):
        raise unknown_name("kind of uploads", uploads, get_args(UploadKind))
    if measure not in get_args(MeasurementTime):
        raise BadInput(f"measure is {measure!r}; give 'now', 'background' or 'after'")
    if not isinstance(samples, AuditSet):
        hint = "; give its attribute audit" if hasattr(samples, "audit") else ""
        raise BadInput(f"samples must be audited samples, got {type_of(samples)}{hint}")
    resolved_task = task_of(task, loss)
    possible_attacks, refused = attacks_in(view_named(view), attacks, resolved_task)
    owners = sorted(set(samples.owner[samples.owner >= 0].tolist()))
    for clients in (targets, sizes or {}):
        raise_if_mixed_references(clients, owners)
    samples = replace(samples, samples=prepare_samples(samples.samples, resolved_task))
    sink = None if to is None else open_or_warn(to, name or folder.name, folder, log)
    net = network_of(model, samples, resolved_task, not_uploaded)
    recording = new_recording(
        folder,
        name,
        view=view,
        every=every,
        keep=keep,
        attacks=tuple(possible_attacks),
        refused=refused,
        targets=tuple(numbers_of(targets).values()) or tuple(owners),
        classes=net.classes if resolved_task.classes else int(samples.samples.labels.max()) + 1,
        task={"name": resolved_task.name, "options": dict(resolved_task.settings)},
        sizes=by_number(sizes or {}),
        not_uploaded=tuple(not_uploaded),
        adapter=net.layout.network.adapter_names,
        tied=net.layout.network.tied_names if net.layout.network.is_identifiable else {},
        unaudited=dict(samples.unaudited),
        model=net.architecture.name,
    )
    return Recorder(
        folder,
        recording,
        samples,
        net,
        uploads=uploads,
        keep_samples=keep_samples,
        strict=strict,
        measure=measure,
        workers=workers,
        device=device,
        log=log,
        sink=sink,
    )


def task_of(task_like: str | Task | PerSampleLoss, loss: PerSampleLoss) -> Task:
    """Return the task for the arguments ``task`` and ``loss`` of :func:`record`."""
    if not isinstance(task_like, str | Task) and not callable(task_like):
        raise BadInput(
            f"task is {type_of(task_like)}; give a name such as 'next-token', a task from "
            "fedaudit.tasks, or a loss of (outputs, targets)"
        )
    if isinstance(task_like, str):
        task = task_named(task_like, {})
    elif isinstance(task_like, Task):
        task = task_like
    elif cast("object", task_like) in list(TASKS.values()):
        task = cast("Callable[[], Task]", task_like)()
    else:
        task = of_loss(getattr(task_like, "__name__", type(task_like).__name__), task_like)
    if loss is cross_entropy:
        return task
    if task != CLASSIFICATION:
        raise BadInput(
            f"loss is for classification, and the task {task.name!r} has its own loss; omit loss "
            "or task"
        )
    return classification_with_loss(loss)
