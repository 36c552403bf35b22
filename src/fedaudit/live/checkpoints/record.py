"""Recordings of federations that have ended, from the checkpoints that they saved."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from torch import nn

from fedaudit.attacks import attack_named
from fedaudit.core.errors import BadInput, NotVisible, option, unknown_name
from fedaudit.core.progress import on_stderr
from fedaudit.core.tasks import CLASSIFICATION, PerSampleLoss, Task, cross_entropy
from fedaudit.core.values import Sees
from fedaudit.datasets.dataset import samples_of_task
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.checkpoints.files import named_in
from fedaudit.live.checkpoints.layouts import CheckpointFiles, files_in
from fedaudit.live.checkpoints.means import Means
from fedaudit.live.checkpoints.rounds import (
    CheckpointModels,
    Gaps,
    Saved,
    Step,
    models_of,
    plan_rounds,
    usual_view,
)
from fedaudit.live.clients import ByClient, ClientRef, number_of
from fedaudit.live.network import network_of
from fedaudit.live.record import record, task_of
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import UPLOAD_VIEWS, read_round_log
from fedaudit.live.setup import attacks_in
from fedaudit.live.weights import Weights
from fedaudit.observe.views import view_named
from fedaudit.results.text import plain

_OF_UPDATES = Sees.GLOBAL_MODEL | Sees.UPDATE
_MOST_NAMED = 5


def from_checkpoints(
    folder: Path | str,
    model: nn.Module | Callable[[], nn.Module],
    samples: AuditSet,
    *,
    out: Path | str,
    global_files: str = "",
    client_files: str = "",
    saved: Saved = "after",
    first: int = 1,
    rounds: int = 0,
    initial: Path | str | Weights | None = None,
    clients: Mapping[str, ClientRef] | None = None,
    sizes: ByClient[int] | None = None,
    gaps: Gaps = "missing",
    view: str = "",
    attacks: Sequence[str] = (),
    targets: Sequence[ClientRef] = (),
    name: str = "",
    loss: PerSampleLoss = cross_entropy,
    task: str | Task | PerSampleLoss = CLASSIFICATION,
    not_uploaded: Collection[str] = (),
    keep_samples: bool = True,
    workers: int = 1,
    device: str = "cpu",
    log: Callable[[str], None] = on_stderr,
) -> Path:
    """Record a federation that has ended, from its saved global and clients' models.

    The recording is the same as that of :func:`record` in the training loop, if all models were
    saved. Files of torch (weights, or a pickled module, whose code is not run), safetensors and
    NumPy are read. Rounds whose models are not saved are listed as missing.

    Args:
        folder: Folder with the checkpoints.
        model: The module that clients trained, or a function that builds one.
        samples: The audit set, from :func:`audit_samples`, or :func:`fair_split` before training.
        out: Folder for the recording; a recording that was stopped is continued.
        global_files: Pattern of the global models, such as ``"round-{round}/global.pt"``. A star
            stands for any text. Without ``{round}`` it names the final model. By default the
            layouts of Flower, NVFlare and PFLlib are recognised.
        client_files: Pattern of the clients' models, such as
            ``"round-{round}/client-{client}.pt"``.
        saved: "after" if the global model of round n is the aggregate of round n, "sent" if it is
            the model that clients were sent in round n.
        first: Number of the first round in the names of files, 0 or 1.
        rounds: Number of rounds that the federation trained. Required if the name of the final
            model has no round.
        initial: Model before the first round, or its file, if it is not in the folder as round 0.
        clients: Audited client, by number or name, for each client's name in the names of files; by
            default the names are those of the audited samples.
        sizes: Training samples of each client, which are the weights in the average.
        gaps: "missing" omits a round if the global model before it is not saved. "join" measures
            the change between two saved global models as one round; for the view "globals".
        view: The adversary's view. By default "uploads" with clients' models, else "globals", or
            "final" if only the final model is saved.
        attacks: See :func:`record`, as for the other arguments.
        targets: Audited clients.
        name: Name of the federation; by default that of ``out``.
        loss: Per-sample loss for classification.
        task: The clients' task.
        not_uploaded: Names or patterns of parameters that stay at the clients.
        keep_samples: Whether audited samples are stored for the control on inputs.
        workers: Threads for the gradient signals.
        device: Where models are run.
        log: Takes lines of text for the user.

    Returns:
        The folder of the recording, for :func:`attack_recording`.

    Raises:
        BadInput: No file can be matched with a round, client names do not match, the mean of the
            clients' models contradicts ``saved``, no round can be measured, or a file runs code.
        NotVisible: An attack needs models that are not saved.
        Damaged: A file cannot be read.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> from pathlib import Path
        >>> net = torch.nn.Linear(2, 2)
        >>> Path("saved").mkdir()
        >>> for number in (1, 2, 3):
        ...     torch.save(net.state_dict(), f"saved/model_{number}.pt")
        >>> x, y = torch.randn(60, 2), torch.arange(60) % 2
        >>> audited = fa.audit_samples({0: (x[:30], y[:30])}, (x[30:], y[30:]))
        >>> path = fa.from_checkpoints(
        ...     "saved", net, audited, out="runs/saved", initial=net, log=lambda line: None
        ... )
        >>> fa.attack_recording(path, ["loss-series"], "runs/saved-record").name
        'saved'
    """
    for what, value, choices in (("saved", saved, Saved), ("gaps", gaps, Gaps)):
        if value not in get_args(choices):
            raise unknown_name(f"choice of {what}", str(value), get_args(choices))
    source = Path(folder)
    files = files_in(source, global_files, client_files)
    models = models_of(files, source, saved=saved, first=first, rounds=rounds, initial=initial)
    by_name = _clients_of(files, clients, samples, sizes)
    view = view or usual_view(models, gaps)
    chosen = plan_rounds(models, view, gaps)
    chosen_task = task_of(task, loss)
    names = _attacks(attacks, view, chosen_task, chosen)
    log(_summary(files, models, view))
    audited = {*samples.owner[samples.owner >= 0].tolist()}
    means = Means(models, {number_of(c): size for c, size in (sizes or {}).items()}, by_name)
    if view in UPLOAD_VIEWS:
        means.check_order(saved)
    _refuse_other_network(models, model, samples, chosen_task, not_uploaded)
    recorder = record(
        out,
        model,
        samples,
        name=name,
        attacks=names,
        targets=targets,
        view=view,
        sizes=sizes,
        loss=loss,
        task=task,
        not_uploaded=not_uploaded,
        keep_samples=keep_samples,
        workers=workers,
        device=device,
        log=log,
    )
    with recorder:
        # Missing rounds last, since a recorder takes a first round that fails for a fault of all.
        for step in sorted(chosen, key=lambda step: bool(step.missing)):
            _record(recorder, step, models, means, audited)
    if warning := means.warning():
        log(warning)
    entries = read_round_log(Path(out))
    if not any(entry.measured for entry in entries):
        reason = plain(next((entry.note for entry in entries if entry.note), "no model fits"))
        raise BadInput(f"no round of {source} can be measured: {reason}")
    return Path(out)


def _refuse_other_network(
    models: CheckpointModels,
    network: nn.Module | Callable[[], nn.Module],
    samples: AuditSet,
    task: Task,
    not_uploaded: Collection[str],
) -> None:
    """Raise if a global model is not one of the network, before a recording is begun."""
    samples = replace(samples, samples=samples_of_task(samples.samples, task))
    shape = network_of(network, samples, task, not_uploaded).shape
    for source in list({**models.sent, **models.after}.values())[:1]:
        whose = f"the model in {named_in(source)}" if isinstance(source, Path) else "initial"
        shape.model_of(models.weights(source), whose=whose)


def _clients_of(
    files: CheckpointFiles,
    clients: Mapping[str, ClientRef] | None,
    samples: AuditSet,
    sizes: ByClient[int] | None,
) -> dict[str, ClientRef]:
    """Return the audited client of each client's name in files."""
    names = sorted(files.names)
    if unknown := sorted({*(clients or {})} - {*names}):
        raise BadInput(f"clients names {unknown[0]!r}, and there is no file of such a client")
    by_name = {name: (clients or {}).get(name, name) for name in names}
    owners = {*samples.owner[samples.owner >= 0].tolist()}
    numbers = [number_of(client) for client in by_name.values()]
    if len({*numbers}) < len(numbers):
        raise BadInput("clients gives two names in files the same client; give each another one")
    if names and not owners & {*numbers}:
        raise BadInput(
            f"the files are of the clients {', '.join(names[:_MOST_NAMED])}, and none of them is "
            f"audited (audited are {', '.join(map(str, sorted(owners)[:_MOST_NAMED]))}); pass "
            "clients={name in files: audited client}"
        )
    sized = {number_of(client) for client in sizes or {}}
    if sized and (
        absent := [name for name, n in zip(names, numbers, strict=True) if n not in sized]
    ):
        raise BadInput(f"sizes has no number of samples of client {absent[0]!r}; give those of all")
    return by_name


def _attacks(attacks: Sequence[str], view: str, task: Task, steps: Sequence[Step]) -> Sequence[str]:
    """Return the attacks to record for, without those of updates if no update is known."""
    if view == "final" or any(step.sent is not None for step in steps if not step.missing):
        return attacks
    possible, _ = attacks_in(view_named(view), attacks, task)
    of_outputs = [name for name in possible if not attack_named(name).needs & _OF_UPDATES]
    if named := [name for name in attacks if name not in of_outputs]:
        raise NotVisible(
            f"the attack {named[0]!r} needs the models that clients were sent, which are not "
            f"saved; pass {option('initial')}, or leave the attack out"
        )
    return of_outputs


def _summary(files: CheckpointFiles, models: CheckpointModels, view: str) -> str:
    program = f"{files.program}'s layout, " if files.program else ""
    clients = f"models of {len(files.names)} clients" if files.names else "no clients' models"
    return (
        f"{models.folder.name}: {program}global models after {len(models.after)} of {models.last} "
        f"rounds, {clients}, view {view!r}"
    )


def _record(
    recorder: Recorder,
    step: Step,
    models: CheckpointModels,
    means: Means,
    audited: Collection[int],
) -> None:
    """Record a round, or log why it is missing."""
    after = models.after.get(step.number)
    end = None if after is None else models.weights(after)
    sent = end if step.sent is None else models.weights(step.sent)
    missing, note = step.missing, ""
    uploads = models.uploads(step.number) if recorder.sees_uploads and not missing else {}
    if uploads:
        note = means.note(step.number, uploads)
        if end is None and not means.are_known:
            missing = "the global model after it is not saved, and its average is unknown"
        elif note and recorder.recording.view == "sum":
            missing = note
    if missing or sent is None:
        recorder.missed(step.number, missing)
        return
    numbered = {number_of(means.by_name[client]): weights for client, weights in uploads.items()}
    called = {means.by_name[client]: weights for client, weights in uploads.items()}
    # Without a file of an audited client it is unknown whether it took part.
    notes = ["" if {*audited} <= numbered.keys() else note]
    # A folder without the model before a round has no change between both.
    notes.append(means.copies(uploads, sent, end) if step.sent is not None else "")
    recorder.round(
        step.number,
        sent=sent,
        uploads=called,
        weights={n: means.sizes[n] for n in numbered} if means.sizes else None,
        after=end,
        note="; ".join(filter(None, notes)),
    )
