"""Reference models in tables of signals."""

import numpy as np
import torch

from fedaudit.core.errors import BadInput
from fedaudit.live.references import References
from fedaudit.live.tables.columns import Columns, SignalTable, columns_of
from fedaudit.live.tables.layout import TableLayout, layout_of, measured_rounds_of, membership_in
from fedaudit.live.tables.signals import signals_of

_OPTIONAL = ("round", "label", "trained", "loss", "confidence")


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
    columns = columns_of(table, "references", required=("model", "sample"), optional=_OPTIONAL)
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
