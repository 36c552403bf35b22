"""Reference models in tables of signals, for attacks that compare with them (RMIA, LiRA)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.attacks.base import Attack
from fedaudit.attacks.references import ReferenceCalibrated
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import own_folder
from fedaudit.live.table_columns import Columns, SignalTable, columns_of
from fedaudit.live.table_layout import Layout, layout_of, measured_rounds_of
from fedaudit.live.table_signals import signals_of
from fedaudit.observe.measurements import (
    MeasuredRound,
    Measurements,
    fault_in,
    stacked,
    stored_in,
    write_measured,
)
from fedaudit.observe.tensors import read_tensors, write_tensors

_FOLDER = "references"
_TRAINED_FILE = "trained-on.safetensors"
_COLUMNS = ("round", "label", "trained", "loss", "confidence")


class References(NamedTuple):
    """Reference models, measured on all audited samples.

    Attributes:
        rounds: The measured rounds, in which client n is reference model n.
        trained_on: Which of the audited samples each model was trained on.
        signals: Names of the measured signals.
    """

    rounds: Sequence[MeasuredRound]
    trained_on: Bool[Tensor, "references samples"]
    signals: frozenset[str]

    def given_to(self, attack: Attack) -> Attack:
        """Return an attack with the reference models; the attack itself if it needs none."""
        cubes = stacked(self.rounds)
        models = [
            {name: _of_model(cube, number) for name, cube in cubes.items()}
            for number in range(len(self.trained_on))
        ]
        return attack.with_references(models, 0, self.trained_on)

    def reason_against(self, attack: Attack) -> str:
        """Return why the models do not suit an attack that needs some; empty if they do."""
        if absent := [signal.name for signal in attack.signals if signal.name not in self.signals]:
            return f"the references lack the signal {absent[0]!r}; give it in their table"
        try:
            if isinstance(attack.rule, ReferenceCalibrated):
                attack.rule.refuse_few(self.trained_on)
        except BadInput as error:
            return str(error)
        return ""


def _of_model(cube: Measurements, number: int) -> Measurements:
    """Return the measurements of one reference model, as those of client 0."""
    column = slice(number, number + 1)
    return replace(cube, values=cube.values[:, column], clients=(0,), bases=cube.bases[:, column])


def references_of(table: SignalTable, columns: Columns, layout: Layout) -> References:
    """Return the reference models of a table.

    Args:
        table: Table with the columns model, sample and signals, and perhaps round and trained.
        columns: Table of the audited clients.
        layout: Its layout.

    Raises:
        BadInput: A model was not measured on every audited sample, or a value cannot be used.
    """
    given = columns_of(table, "references", keys=("model", "sample"), others=_COLUMNS)
    place = {name: position for position, name in enumerate(layout.samples)}
    is_audited = np.array([name in place for name in given["sample"].tolist()], dtype=bool)
    if not is_audited.any():
        raise BadInput("references have no audited sample; name samples as in the table of clients")
    given = Columns({name: values[is_audited] for name, values in given.items()})
    given["client"] = given.pop("model")
    given.setdefault("round", np.full(given.rows, layout.rounds[-1]))
    if "label" not in given and "label" in columns:
        labels = np.empty(len(place))
        labels[layout.sample_of] = columns["label"]
        given["label"] = labels[[place[name] for name in given["sample"].tolist()]]
    of_models = layout_of(given, "model")
    if of_models.is_separate or of_models.samples != layout.samples:
        absent = sorted({*layout.samples} - {*given["sample"].tolist()})
        sample = f", such as {absent[0]}" if absent else ""
        raise BadInput(
            f"references were not measured on every audited sample{sample}; give a row of every "
            "model and audited sample"
        )
    signals = signals_of(given)
    numbers = {name: number for number, name in enumerate(of_models.clients)}
    rounds = tuple(measured_rounds_of(of_models, signals, numbers))
    return References(rounds, _trained_on(given, of_models), frozenset(signals))


def _trained_on(columns: Columns, layout: Layout) -> Bool[Tensor, "references samples"]:
    trained = np.zeros(layout.has.shape, dtype=bool)
    if "trained" in columns:
        values = columns["trained"]
        if not {*np.unique(values).tolist()} <= {0.0, 1.0}:
            raise BadInput(
                "trained has other values than 0 and 1; give 1 if the reference model was trained "
                "on the sample"
            )
        trained[layout.client_of, layout.sample_of] = values > 0
        if bool((trained[layout.client_of, layout.sample_of] != (values > 0)).any()):
            raise BadInput("trained changes between rounds; give the same value in each")
    return torch.from_numpy(trained[:, layout.order])


def write_references(folder: Path, references: References, notes: Mapping[str, str]) -> None:
    """Write reference models to a recording's folder."""
    place = own_folder(folder, _FOLDER)
    for measured in references.rounds:
        write_measured(place, measured, notes)
    tensors = {"trained_on": references.trained_on}
    write_tensors(tensors, place / _TRAINED_FILE, notes, private=True)


def read_references(folder: Path, key: str, count: int, samples: int) -> References:
    """Read the reference models of a recording.

    Args:
        folder: The recording.
        key: Its key, which all files state.
        count: Number of reference models.
        samples: Number of audited samples.

    Raises:
        Damaged: A file is missing, or of another recording.
    """
    place = folder / _FOLDER
    stored = stored_in(place)
    tensors, notes = read_tensors(place / _TRAINED_FILE)
    trained_on = tensors.get("trained_on", torch.empty(0))
    faults = [fault_in(entry.measured, range(count), samples) for entry in stored]
    fits = trained_on.dtype == torch.bool and trained_on.shape == (count, samples)
    all_notes = (notes, *(entry.notes for entry in stored))
    models = {client for entry in stored for client in entry.measured.clients}
    if (
        not fits
        or any(faults)
        or models != {*range(count)}
        or any(note.get("run") != key for note in all_notes)
    ):
        raise Damaged(f"the reference models in {place} are damaged; restore the recording")
    rounds = [entry.measured for entry in stored]
    return References(rounds, trained_on, frozenset(rounds[0].signals))


def with_references(attacks: Mapping[str, Attack], references: References) -> dict[str, Attack]:
    """Return attacks, of which those that need reference models have them."""
    return {name: references.given_to(attack) for name, attack in attacks.items()}
