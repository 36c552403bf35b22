"""Recording of a federation that was measured elsewhere, from a table of signals."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.progress import print_to_stderr
from fedaudit.core.tasks import CLASSIFICATION
from fedaudit.core.values import NO_CLIENT, Capability
from fedaudit.live.clients import ByClient, ClientRef, by_number, numbers_of, plain_name
from fedaudit.live.files import AUDIT_FILE, DRAWN_FOR, prepare_folder
from fedaudit.live.recording import (
    append_round,
    is_recording,
    new_recording,
    round_entry,
    task_of_known_losses,
    write_recording,
)
from fedaudit.live.references import References, write_references
from fedaudit.live.tables.columns import Columns, SignalTable, columns_of, concatenate
from fedaudit.live.tables.layout import (
    TableLayout,
    audit_of,
    layout_of,
    measured_rounds_of,
    membership_in,
)
from fedaudit.live.tables.signals import attacks_on, signals_of
from fedaudit.observe.measurements import write_measured
from fedaudit.observe.tensors import write_tensors
from fedaudit.observe.views import updates_view, view_named, with_resources

_OPTIONAL_OF_REFERENCES = ("round", "label", "trained", "loss", "confidence")
"""Columns that a table of reference models may lack."""


def from_signals(
    table: SignalTable | Sequence[SignalTable],
    *,
    out: Path | str,
    members: ByClient[Collection[object]] | None = None,
    fair: bool = False,
    attacks: Sequence[str] = (),
    targets: Sequence[ClientRef] = (),
    sizes: ByClient[int] | None = None,
    view: str = "uploads",
    references: SignalTable | None = None,
    name: str = "",
    log: Callable[[str], None] = print_to_stderr,
) -> Path:
    """Record a federation of any library from a table of signals that were measured elsewhere.

    A row is one audited sample under one client's model after one round. It has the columns
    ``round``, ``client`` and ``sample``, and at least one signal:

    - ``loss``: the loss; if it is missing, it is the cross-entropy of ``confidence``;
    - ``confidence``: the probability of the true class;
    - ``logit_0``, ``logit_1``, ... or ``probability_0``, ...: outputs by class (an array may have
      ``logits`` or ``probabilities`` with one column per class); they need ``label``;
    - ``cosine``: the cosine between the gradient of the sample's loss at the model that was sent,
      and the sent model minus the client's model; it is larger for members;
    - ``gradient_norm``: the norm of this gradient;
    - ``projection_residual``: the fraction of the sample's input to a linear layer that lies
      outside the row space of the layer's update;
    - ``global_loss``, ``global_confidence``: the loss and the confidence under the global model
      after the round.

    Membership comes from ``members``, from a column ``owner`` (the client that trains on the
    sample, empty for held-out samples), or from a column ``member`` (1 if the row's client trains
    on the sample). ``label`` is the sample's class.

    Each client needs every sample in every round in which it took part. If each client was
    measured only on its own samples, as by sites that do not share samples, only attacks on a
    client's own signals are possible.

    Args:
        table: A pandas data frame, a mapping from column names to arrays, a CSV file, or a list of
            these, one for each site.
        out: Folder for the recording.
        members: For each client, by number or name, the samples that it trains on.
        fair: Whether a fair coin decided for each sample if its client trains on it, as bounds on
            epsilon need. The client is that of the column ``drawn_for``, or the only one that was
            measured on the sample.
        attacks: Attacks that the recording is for; by default those of the default set that the
            signals allow.
        targets: Audited clients; by default all clients with members and signals.
        sizes: Number of training samples of each client, for attacks that use it as a prior.
        view: The adversary's view.
        references: Table of reference models that the adversary trained, for RMIA and LiRA. A row
            is one model on one audited sample, with the columns ``model``, ``sample`` and ``loss``,
            ``confidence`` or outputs by class. The column ``trained`` is 1 if the model was trained
            on the sample; without it, no model was (offline attacks). The column ``round`` is the
            audited round with which the model is compared; without it, every model is compared
            with all rounds.
        name: Name of the federation; by default that of ``out``.
        log: Receives lines of text for the user.

    Returns:
        The folder of the recording, for :func:`attack_recording`.

    Raises:
        BadInput: A column is unknown, a value is not finite, a row is repeated or missing, a sample
            has two owners, or the folder has another recording.
        NotVisible: An attack needs a signal that the table lacks, or compares clients that were
            measured on different samples.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> rng = np.random.default_rng(1)
        >>> rounds, clients, samples = np.indices((3, 2, 80)).reshape(3, -1)
        >>> owner = np.where(samples < 40, samples % 2, -1)
        >>> loss = rng.exponential(np.where(owner == clients, 0.5, 1.0))
        >>> table = {
        ...     "round": rounds + 1,
        ...     "client": clients,
        ...     "sample": samples,
        ...     "owner": owner,
        ...     "loss": loss,
        ... }
        >>> path = fa.from_signals(table, out="runs/table", log=lambda line: None)
        >>> fa.attack_recording(path, ["loss-series"], "runs/table-record").name
        'table'
    """
    folder = Path(out)
    if is_recording(folder):
        raise BadInput(f"{folder} has a recording already; give another folder")
    adversary = updates_view(view_named(view))
    tables = list(table) if isinstance(table, list | tuple) else [cast("SignalTable", table)]
    if not tables:
        raise BadInput("there is no table; give at least one")
    columns = concatenate(
        [
            columns_of(part, "the table" if len(tables) == 1 else f"table {number}")
            for number, part in enumerate(tables, 1)
        ]
    )
    signals = signals_of(columns)
    layout = layout_of(columns)
    audit, numbers = audit_of(columns, layout, members, fair=fair)
    task = CLASSIFICATION if "label" in columns else task_of_known_losses("loss")
    models = None if references is None else references_of(references, columns, layout)
    if models is not None:
        adversary = with_resources(adversary, Capability.REFERENCE_MODELS)
    possible, refused = attacks_on(
        signals,
        attacks,
        task,
        view=adversary,
        is_separate=layout.is_separate,
        reference_fault=None if models is None else models.reason_against,
    )
    owners = {*audit.owner[audit.owner != NO_CLIENT].tolist()}
    if not owners:
        raise BadInput(
            "no client trains on a sample of the table; give members as well as held-out samples"
        )
    measured = {numbers[client] for client in layout.clients}
    recording = new_recording(
        folder,
        name,
        view=view,
        every=1,
        keep="signals",
        attacks=tuple(possible),
        refused=refused,
        targets=tuple(numbers_of(targets).values()) or tuple(sorted(owners & measured)),
        classes=int(audit.samples.labels.max()) + 1,
        task={"name": task.name},
        sizes=by_number(sizes or {}),
        names={
            number: plain_name(client)[:200]
            for client, number in numbers.items()
            if not client.isdecimal()
        },
        table="separate" if layout.is_separate else "joint",
        references=0 if models is None else len(models.trained_on),
        is_closed=True,
        model="models of a table",
    )
    prepare_folder(folder, recording, audit)
    notes = {"complete": "True", "run": recording.key}
    for round in measured_rounds_of(layout, signals, numbers):
        entry = round_entry(round.index, round.clients, round.clients, 0)
        write_measured(folder, round, notes)
        append_round(entry.logged(measured=True), folder)
    if models is not None:
        write_references(folder, models, notes)
    tensors = audit.tensors()
    if audit.drawn_for is not None:
        tensors[DRAWN_FOR] = torch.from_numpy(audit.drawn_for)
    write_tensors(tensors, folder / AUDIT_FILE, owner_only=True)
    # Write this file last: a folder without it is an import that was stopped.
    write_recording(recording, folder)
    log(
        f"{recording.name}: {len(layout.rounds)} rounds, {len(layout.clients)} clients and "
        f"{len(audit)} samples; attacks: {', '.join(possible)}"
    )
    return folder


def references_of(
    table: SignalTable, client_columns: Columns, client_layout: TableLayout
) -> References:
    """Return the reference models of a table.

    Args:
        table: Table of the reference models, with the columns ``model``, ``sample`` and signals.
        client_columns: Table of the audited clients.
        client_layout: Layout of the clients' table.

    Raises:
        BadInput: A model was not measured on every audited sample, or a value is invalid.
    """
    columns = columns_of(
        table, "references", required=("model", "sample"), optional=_OPTIONAL_OF_REFERENCES
    )
    position = {name: number for number, name in enumerate(client_layout.samples)}
    is_audited = np.array([name in position for name in columns["sample"].tolist()], dtype=bool)
    if not is_audited.any():
        raise BadInput("references have no audited sample; name samples as in the table of clients")
    columns = Columns({name: values[is_audited] for name, values in columns.items()})
    # From here on, reference models are handled as clients are.
    columns["client"] = columns.pop("model")
    columns.setdefault("round", np.full(columns.n_rows, client_layout.rounds[-1]))
    if "label" not in columns and "label" in client_columns:
        labels = np.empty(len(position))
        labels[client_layout.sample_of] = client_columns["label"]
        columns["label"] = labels[[position[name] for name in columns["sample"].tolist()]]
    layout = layout_of(columns, "model")
    if layout.is_separate or layout.samples != client_layout.samples:
        missing_samples = sorted({*client_layout.samples} - {*columns["sample"].tolist()})
        sample = f", such as {missing_samples[0]}" if missing_samples else ""
        raise BadInput(
            f"references were not measured on every audited sample{sample}; give a row of every "
            "model and audited sample"
        )
    signals = signals_of(columns)
    numbers = {name: number for number, name in enumerate(layout.clients)}
    rounds = tuple(measured_rounds_of(layout, signals, numbers))
    trained_on = np.zeros(layout.has.shape, dtype=bool)
    if "trained" in columns:
        trained_on = membership_in(
            columns, layout, "trained", "the reference model was trained on the sample"
        )
    return References(rounds, torch.from_numpy(trained_on[:, layout.order]), frozenset(signals))
