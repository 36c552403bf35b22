"""Recording of a federation that has ended, from its saved checkpoints."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from torch import nn

from fedaudit.attacks import resolve_attack
from fedaudit.core.errors import (
    BadInput,
    NotVisible,
    format_assignment,
    format_option,
    unknown_name,
)
from fedaudit.core.progress import print_to_stderr
from fedaudit.core.tasks import CLASSIFICATION, PerSampleLoss, Task, cross_entropy
from fedaudit.core.values import Capability, ClientId
from fedaudit.datasets.dataset import prepare_samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.checkpoints.files import path_in_folder
from fedaudit.live.checkpoints.layouts import CheckpointFiles, files_in
from fedaudit.live.checkpoints.means import MeanCheck, fault_of_copies, number_spacing
from fedaudit.live.checkpoints.rounds import (
    CheckpointModels,
    Gaps,
    PlannedRound,
    Saved,
    default_view,
    models_of,
    plan_rounds,
)
from fedaudit.live.clients import ByClient, ClientRef, by_number, number_of
from fedaudit.live.network import network_of
from fedaudit.live.record import record, task_of
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import UPLOAD_VIEWS, read_round_log
from fedaudit.live.setup import attacks_in
from fedaudit.live.weights import Weights
from fedaudit.observe.views import view_named
from fedaudit.results.text import clean_text

_NEEDS_SENT_MODELS = Capability.GLOBAL_MODEL | Capability.UPDATE
"""Observations that are unknown if the models that clients were sent are not saved."""

_MAX_SPACING = 1e-6
"""Relative spacing of numbers above which saved models are rounded; single precision has 1.2e-7."""
_MAX_LISTED = 5


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
    every: int = 1,
    attacks: Sequence[str] = (),
    targets: Sequence[ClientRef] = (),
    name: str = "",
    loss: PerSampleLoss = cross_entropy,
    task: str | Task | PerSampleLoss = CLASSIFICATION,
    not_uploaded: Collection[str] = (),
    keep_samples: bool = True,
    workers: int = 1,
    device: str = "cpu",
    log: Callable[[str], None] = print_to_stderr,
) -> Path:
    """Record a federation that has ended, from its saved global and clients' models.

    If all models were saved, the recording is the same as that of :func:`record` in the training
    loop. Files of torch, safetensors and NumPy are read. A pickled torch module is read without
    running its code; a file that cannot be read without running code is refused. Rounds whose
    models are not saved are listed as missing.

    Args:
        folder: Folder with the checkpoints.
        model: The module that clients trained, or a function that builds one.
        samples: The audit set, from :func:`audit_samples`, or :func:`fair_split` before training.
        out: Folder for the recording; a recording that was stopped is continued.
        global_files: Pattern of the global models, such as ``"round-{round}/global.pt"``. A star
            stands for any text. Without ``{round}`` the pattern names the final model. By default
            the layouts of Flower, NVFlare and PFLlib are recognised.
        client_files: Pattern of the clients' models, such as
            ``"round-{round}/client-{client}.pt"``.
        saved: "after" if the global model of round n is the aggregate of round n, "sent" if it is
            the model that clients were sent in round n.
        first: Number of the first round in the names of files, 0 or 1.
        rounds: Number of rounds that the federation trained. Required if the name of the final
            model has no round.
        initial: Model before the first round, or its file. Not needed if the model is in the folder
            as round 0.
        clients: Maps the name of a client in file names to the audited client (number or name). By
            default, the names are equal.
        sizes: Number of training samples of each client, which are the weights in the average.
        gaps: "missing" omits a round if the global model before it is not saved. "join" measures
            the change between two saved global models as one round; for the view "globals".
        view: The adversary's view. By default "uploads" with clients' models, else "globals", or
            "final" if only the final model is saved.
        every: Interval between measured rounds, in rounds; 1 measures every round.
        attacks: See :func:`record`, as for the other arguments.
        targets: Audited clients.
        name: Name of the federation; by default that of ``out``.
        loss: Per-sample loss for classification.
        task: The clients' task.
        not_uploaded: Names or patterns of parameters that stay at the clients.
        keep_samples: Whether audited samples are stored for the blind-classifier control, which
            predicts membership from the samples alone.
        workers: Threads for the gradient signals.
        device: Device on which models are run.
        log: Receives lines of text for the user.

    Returns:
        The folder of the recording, for :func:`attack_recording`.

    Raises:
        BadInput: No file name has a round, clients' names in files are not those of audited
            clients, the mean of the clients' models contradicts ``saved`` or is the global model of
            another round, no round can be measured, or a file cannot be read without running code.
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
    for setting, value, choices in (("saved", saved, Saved), ("gaps", gaps, Gaps)):
        if value not in get_args(choices):
            raise unknown_name(f"choice of {setting}", str(value), get_args(choices))
    source = Path(folder)
    files = files_in(source, global_files, client_files)
    models = models_of(files, source, saved=saved, first=first, rounds=rounds, initial=initial)
    audited_owners = {*samples.owner[samples.owner >= 0].tolist()}
    client_of_name = _clients_by_name(files, clients or {}, audited_owners, sizes or {})
    view = view or default_view(models, gaps)
    planned = plan_rounds(models, view, gaps)
    resolved_task = task_of(task, loss)
    names = _possible_attacks(attacks, view, resolved_task, planned)
    log(_summary(files, models, view))
    numbers = {name: number_of(client) for name, client in client_of_name.items()}
    check = MeanCheck(models, by_number(sizes or {}), numbers)
    if view in UPLOAD_VIEWS:
        check.check_saved(saved)
    if view != "final" and isinstance(every, int) and every > models.last:
        raise BadInput(
            f"{format_assignment('every', str(every))} measures no round of {models.last}; pass a "
            "smaller number"
        )
    _raise_if_other_network(models, model, samples, resolved_task, not_uploaded)
    if warning := _precision_warning(models):
        log(warning)
    if view in UPLOAD_VIEWS:
        check.compare_all()
    recorder = record(
        out,
        model,
        samples,
        name=name,
        attacks=names,
        targets=targets,
        view=view,
        # The view "final" has only one round, the last.
        every=1 if view == "final" else every,
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
        # Missing rounds come last: if the first round fails, the recorder expects all to fail.
        for planned_round in sorted(planned, key=lambda planned_round: bool(planned_round.missing)):
            _record(recorder, planned_round, models, check, client_of_name, audited_owners)
    if warning := check.warning():
        log(warning)
    entries = read_round_log(Path(out))
    if not any(entry.measured for entry in entries):
        reason = next((entry.note for entry in entries if entry.note), "no model can be measured")
        raise BadInput(f"no round of {source} can be measured: {clean_text(reason)}")
    return Path(out)


def _raise_if_other_network(
    models: CheckpointModels,
    network: nn.Module | Callable[[], nn.Module],
    samples: AuditSet,
    task: Task,
    not_uploaded: Collection[str],
) -> None:
    """Raise if the layers of a global model differ from the network's, before recording starts."""
    samples = replace(samples, samples=prepare_samples(samples.samples, task))
    layout = network_of(network, samples, task, not_uploaded).layout
    for source in [*models.sent.values(), *models.after.values()][:1]:
        subject = "initial"
        if isinstance(source, Path):
            subject = f"the model in {path_in_folder(source)}"
        layout.model_of(models.weights(source), subject=subject)


def _precision_warning(models: CheckpointModels) -> str:
    """Return a warning if the first global model has numbers of 16 bits; empty otherwise."""
    for source in [*models.sent.values(), *models.after.values()][:1]:
        if number_spacing(models.weights(source)) > _MAX_SPACING:
            return (
                "warning: models are saved in 16 bits, so updates are rounded: unless clients send "
                "16 bits, attacks on updates may find less than in the training loop"
            )
    return ""


def _clients_by_name(
    files: CheckpointFiles,
    clients: Mapping[str, ClientRef],
    audited: Collection[ClientId],
    sizes: ByClient[int],
) -> dict[str, ClientRef]:
    """Return the audited client for each client's name in file names."""
    names = sorted(files.client_names)
    if unknown := sorted({*clients} - {*names}):
        raise BadInput(
            f"{format_option('clients')} names {unknown[0]!r}, and there is no file of such a "
            "client"
        )
    client_of_name = {name: clients.get(name, name) for name in names}
    numbers = {name: number_of(client) for name, client in client_of_name.items()}
    if len({*numbers.values()}) < len(numbers):
        raise BadInput(
            f"{format_option('clients')} maps two names in files to the same client; give each its "
            "own client"
        )
    if names and not {*audited} & {*numbers.values()}:
        raise BadInput(
            f"the files are of the clients {', '.join(names[:_MAX_LISTED])}, and none of them is "
            f"audited (audited are {', '.join(map(str, sorted(audited)[:_MAX_LISTED]))}); state "
            f"the audited client of each name in files with {format_option('clients')}"
        )
    sized = {number_of(client) for client in sizes}
    if sized and (missing_names := [name for name in names if numbers[name] not in sized]):
        client, alias = client_of_name[missing_names[0]], ""
        if str(client) != missing_names[0]:
            alias = f", whose name in files is {missing_names[0]!r}"
        raise BadInput(
            f"{format_option('sizes')} has no number of samples of client '{client}'{alias}; give "
            "those of all clients, by their numbers or names in the audit"
        )
    return client_of_name


def _possible_attacks(
    attacks: Sequence[str], view: str, task: Task, planned: Sequence[PlannedRound]
) -> Sequence[str]:
    """Return the attacks to record for, without attacks that need a sent model if none is saved."""
    if view == "final" or any(planned_round.sent is not None for planned_round in planned):
        return attacks
    visible, _ = attacks_in(view_named(view), attacks, task)
    possible = [name for name in visible if not resolve_attack(name).needs & _NEEDS_SENT_MODELS]
    if impossible := [name for name in attacks if name not in possible]:
        raise NotVisible(
            f"the attack {impossible[0]!r} needs the models that clients were sent, which are not "
            f"saved; pass {format_option('initial')}, or leave the attack out"
        )
    return possible


def _summary(files: CheckpointFiles, models: CheckpointModels, view: str) -> str:
    layout = f"{files.framework}'s layout, " if files.framework else ""
    n_clients = len(files.client_names)
    clients = f"models of {n_clients} clients" if n_clients else "no clients' models"
    return (
        f"{models.folder.name}: {layout}global models after {len(models.after)} of {models.last} "
        f"rounds, {clients}, view {view!r}"
    )


def _record(
    recorder: Recorder,
    planned: PlannedRound,
    models: CheckpointModels,
    check: MeanCheck,
    client_of_name: Mapping[str, ClientRef],
    audited: Collection[ClientId],
) -> None:
    """Record a round, or log why it is missing."""
    index, missing, mean_fault, copy_fault = planned.number, planned.missing, "", ""
    after = models.weights(models.after[index]) if index in models.after else None
    sent = after if planned.sent is None else models.weights(planned.sent)
    uploads = models.uploads(index) if recorder.sees_uploads and not missing else {}
    if uploads:
        mean_fault = check.fault(index)
        # Without a sent model, the model after the round stands in for it, and there is no update.
        if planned.sent is not None and sent is not None:
            copy_fault = fault_of_copies(uploads, sent, after)
        if after is None and not check.average_is_known:
            missing = "the global model after it is not saved, and its average is unknown"
        elif check.contradicts_other_rounds(index) or recorder.recording.view == "sum":
            missing = mean_fault and "; ".join(filter(None, (mean_fault, copy_fault)))
    if missing or sent is None:
        recorder.missed(index, missing)
        return
    participants = {check.number_of_name[name] for name in uploads}
    # Without the file of an audited client, it is unknown whether that client took part.
    faults = ("" if {*audited} <= participants else mean_fault, copy_fault)
    recorder.round(
        index,
        sent=sent,
        uploads={client_of_name[name]: weights for name, weights in uploads.items()},
        weights={number: check.sizes[number] for number in participants} if check.sizes else None,
        after=after,
        unattributed_fault="; ".join(filter(None, faults)),
    )
