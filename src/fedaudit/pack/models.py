"""Comparison of the file of a model with the models of a packed record."""

from collections.abc import Mapping
from pathlib import Path

from fedaudit.core.errors import BadInput
from fedaudit.live.checkpoints.files import read_checkpoint
from fedaudit.live.weights import as_cpu_tensor
from fedaudit.observe.tensors import digest_of
from fedaudit.pack.verifying import Findings
from fedaudit.results.record import Record


def compare_model(record: Record, file: Path) -> Findings:
    """Find the model of a file among the global models of a record.

    Args:
        record: The packed record.
        file: Weights by parameter name, as a file of torch, safetensors or NumPy. Nothing in it is
            executed.

    Raises:
        BadInput: The file cannot be read, its weights have no names, or the record identifies no
            model.
    """
    coverage = record.coverage
    if coverage is None or not coverage.models:
        raise BadInput(
            f"the record identifies no model, so {file} cannot be compared with it; pass the model "
            "after each round to the recorder (after=); networks with frozen or shared parameters "
            "are never identified"
        )
    stored = read_checkpoint(file)
    if not isinstance(stored, Mapping):
        raise BadInput(
            f"the weights in {file} have no names, so they cannot be compared with the record; "
            "save them with names, such as a state_dict in a safetensors file"
        )
    tensors = {name: as_cpu_tensor(value, name) for name, value in stored.items()}
    # Digests of records leave out counts, such as those of batches in BatchNorm.
    tensors = {name: value for name, value in tensors.items() if value.is_floating_point()}
    digest = digest_of(tensors, {})
    if coverage.final_model == digest:
        return Findings(checked=[f"{file.name} is the model after the last round of the record"])
    after = [(models.after, f"after round {models.round}") for models in coverage.models]
    sent = [(models.sent, f"that was sent in round {models.round}") for models in coverage.models]
    for known_digest, when in (*reversed(after), *reversed(sent)):
        if known_digest == digest:
            text = f"{file.name} is the model {when}, not the final model"
            return Findings(checked=[text])
    return Findings(
        problems=[
            f"{file.name} is none of the models of the record: its weights, their names or their "
            "types differ"
        ]
    )
