"""Reference models of a recording, for attacks that compare with them (RMIA, LiRA)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.attacks.base import Attack
from fedaudit.attacks.references import ReferenceCalibrated
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import create_subfolder
from fedaudit.observe.measurements import (
    MeasuredRound,
    Measurements,
    measured_rounds_in,
    reason_invalid,
    stacked,
    write_measured,
)
from fedaudit.observe.tensors import read_tensors, write_tensors

_FOLDER = "references"
_TRAINED_FILE = "trained-on.safetensors"


class References(NamedTuple):
    """Reference models, measured on all audited samples.

    Attributes:
        rounds: The measured rounds, in which model n is stored as client n.
        trained_on: Whether each model was trained on each audited sample.
        signals: Names of the measured signals.
    """

    rounds: Sequence[MeasuredRound]
    trained_on: Bool[Tensor, "references samples"]
    signals: frozenset[str]

    def attach_to_attacks(self, attacks: Mapping[str, Attack]) -> dict[str, Attack]:
        """Return the attacks, with the reference models in those that need some."""
        measurements = stacked(self.rounds)
        models = [
            {name: _of_model(values, number) for name, values in measurements.items()}
            for number in range(len(self.trained_on))
        ]
        return {
            name: attack.with_references(models, 0, self.trained_on)
            for name, attack in attacks.items()
        }

    def reason_against(self, attack: Attack) -> str:
        """Return why an attack cannot use the reference models; empty if it can."""
        for signal in attack.signals:
            if signal.name not in self.signals:
                return (
                    f"the references lack the signal {signal.name!r}; add it to the "
                    "table of reference models"
                )
        try:
            if isinstance(attack.rule, ReferenceCalibrated):
                attack.rule.check_reference_counts(self.trained_on)
        except BadInput as error:
            return str(error)
        return ""


def _of_model(measurements: Measurements, number: int) -> Measurements:
    """Return the measurements of one reference model, as those of client 0."""
    column = slice(number, number + 1)
    return replace(
        measurements,
        values=measurements.values[:, column],
        clients=(0,),
        bases=measurements.bases[:, column],
    )


def write_references(folder: Path, references: References, metadata: Mapping[str, str]) -> None:
    """Write reference models to a recording's folder, with the metadata in every file."""
    references_folder = create_subfolder(folder, _FOLDER)
    for measured in references.rounds:
        write_measured(references_folder, measured, metadata)
    tensors = {"trained_on": references.trained_on}
    write_tensors(tensors, references_folder / _TRAINED_FILE, metadata, owner_only=True)


def read_references(folder: Path, run_id: str, count: int, samples: int) -> References:
    """Read the reference models of a recording.

    Args:
        folder: The recording.
        run_id: The recording's identity, which must be in the metadata of every file.
        count: Number of reference models.
        samples: Number of audited samples.

    Raises:
        Damaged: A file is missing, invalid, or belongs to another recording.
    """
    references_folder = folder / _FOLDER
    stored = measured_rounds_in(references_folder)
    tensors, metadata = read_tensors(references_folder / _TRAINED_FILE)
    trained_on = tensors.get("trained_on", torch.empty(0))
    models = {client for entry in stored for client in entry.measured.clients}
    is_valid = (
        trained_on.dtype == torch.bool
        and trained_on.shape == (count, samples)
        and models == {*range(count)}
        and not any(reason_invalid(entry.measured, range(count), samples) for entry in stored)
        and metadata.get("run") == run_id
        and all(entry.notes.get("run") == run_id for entry in stored)
    )
    if not is_valid:
        raise Damaged(
            f"the reference models in {references_folder} are damaged; restore the recording"
        )
    rounds = [entry.measured for entry in stored]
    return References(rounds, trained_on, frozenset(rounds[0].signals))
