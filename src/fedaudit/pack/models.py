"""Comparison of the file of a model with the models of a packed record."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.live.checkpoints.files import read_checkpoint
from fedaudit.live.digests import digest_of_base
from fedaudit.live.weights import as_cpu_tensor
from fedaudit.observe.tensors import digest_of
from fedaudit.pack.choices import Findings
from fedaudit.results.record import Record
from fedaudit.results.runs import Coverage


class _KnownModel(NamedTuple):
    """Global model of a record.

    Attributes:
        digest: SHA-256 of the tensors that clients train.
        base: SHA-256 of the other tensors; empty if there are none, or if it is unknown.
        when: Part of a sentence that names the model's round.
        is_final: True for the model after the last round.
    """

    digest: str
    base: str
    when: str
    is_final: bool = False


def compare_model(record: Record, file: Path) -> Findings:
    """Find the model of a file among the models of a record.

    Only the model after the last round, or its adapter, is confirmed. An earlier model and the base
    model are listed as not checked.

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
            "after each round to the recorder (after=); networks with shared parameters and "
            "results of simulated studies are never identified"
        )
    trained, others = _split(_read_tensors(file), coverage)
    base = digest_of_base(others)
    if not trained:
        is_base = base in {models.base for models in coverage.models}
        text = f"{file.name} is the base model, which no client trained"
        return Findings(unchecked=[f"the adapter: {text}"]) if is_base else _unknown(file)
    digest = digest_of(trained, {})
    known = next((model for model in _known_models(coverage) if model.digest == digest), None)
    if known is None:
        return _unknown(file)
    what, unchecked = "model", list[str]()
    if coverage.adapter and not base:
        what = "adapter"
        unchecked = [
            f"whether {file.name} is used with its base model"
            + (f" (SHA-256 {known.base})" if known.base else ", which the record does not identify")
        ]
    elif base and not known.base:
        unchecked = [f"the tensors of {file.name} that no client trained: they are not identified"]
    elif base != known.base:
        return Findings(
            problems=[
                f"{file.name} has the trained tensors of the model {known.when}, but other tensors "
                "than those of its base model"
            ]
        )
    text = f"{file.name} is the {what} {known.when}"
    if known.is_final:
        return Findings(checked=[text], unchecked=unchecked)
    final = "is not the final model" if coverage.final_model else "may not be the final model"
    return Findings(unchecked=[f"the final model: {text}, which {final}", *unchecked])


def _read_tensors(file: Path) -> dict[str, Tensor]:
    stored = read_checkpoint(file)
    if not isinstance(stored, Mapping):
        raise BadInput(
            f"the weights in {file} have no names, so they cannot be compared with the record; "
            "save them with names, such as a state_dict in a safetensors file"
        )
    tensors = {name: as_cpu_tensor(value, name) for name, value in stored.items()}
    # Digests of records leave out counts, such as those of batches in BatchNorm.
    return {name: value for name, value in tensors.items() if value.is_floating_point()}


def _split(
    tensors: Mapping[str, Tensor], coverage: Coverage
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors that clients train, by the network's names, and the other tensors."""
    if not coverage.adapter:
        return dict(tensors), {}
    names = {file_name: name for name, file_name in coverage.adapter.items()}
    names |= {name: name for name in coverage.adapter}
    trained, others = dict[str, Tensor](), dict[str, Tensor]()
    for name, value in tensors.items():
        is_trained = name in names and names[name] not in trained
        (trained if is_trained else others)[names[name] if is_trained else name] = value
    return trained, others


def _known_models(coverage: Coverage) -> Iterator[_KnownModel]:
    """Yield the models of a record, the last first."""
    for models in reversed(coverage.models):
        if models.after:
            is_final = models.after == coverage.final_model and models.round == coverage.rounds
            when = (
                "after the last round of the record" if is_final else f"after round {models.round}"
            )
            yield _KnownModel(models.after, models.base, when, is_final)
    for models in reversed(coverage.models):
        when = f"that was sent in round {models.round}"
        yield _KnownModel(models.sent, models.base, when)


def _unknown(file: Path) -> Findings:
    return Findings(
        problems=[
            f"{file.name} is none of the models of the record: its weights, their names or their "
            "types differ"
        ]
    )
