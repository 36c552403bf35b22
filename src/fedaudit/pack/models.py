"""Comparison of the file of a model with the models of a packed record."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import torch
from torch import Tensor

from fedaudit.core.errors import BadInput, format_option
from fedaudit.core.files import open_regular
from fedaudit.formatting.grid import shorten
from fedaudit.live.checkpoints.files import read_checkpoint
from fedaudit.live.weights import as_cpu_tensor
from fedaudit.observe.layout import digest_of_base, plain_name
from fedaudit.observe.tensors import digest_of, hash_of_tensor, read_tensors
from fedaudit.pack.choices import CheckResults
from fedaudit.pack.manifest import ModelFile
from fedaudit.results.record import Record
from fedaudit.results.runs import Coverage

_MAX_OVERHEAD = 1024
"""Largest number of bytes that a file of torch needs for the name and place of a tensor."""
_CHUNK_BYTES = 1 << 20
_COUNTER = "num_batches_tracked"
"""End of the name of BatchNorm's counter, which evaluation does not use."""


class ComparedModel(NamedTuple):
    """Comparison of a file with the models of a record.

    Attributes:
        results: Confirmed, unconfirmed and wrong statements about the file.
        digest: Digest of the final model or adapter that the file has; empty if it has none.
    """

    results: CheckResults
    digest: str = ""


class _KnownModel(NamedTuple):
    """Model of a record.

    Attributes:
        digest: SHA-256 of the tensors that clients train.
        base: SHA-256 of the other tensors; empty if there are none, or if it is unknown.
        name: Name of the model, such as "model-0"; empty for the only model of the server.
        when: Part of a sentence that names the model's round.
        is_final: True for a model after the last round.
    """

    digest: str
    base: str
    name: str
    when: str
    is_final: bool = False


def compare_model(record: Record, file: Path) -> ComparedModel:
    """Find the model of a file among the models of a record.

    Only a model after the last round, or its adapter, is confirmed. An earlier model and the base
    model are listed as not checked. Numbers of 16 bits may have been 32-bit numbers in the run.

    Args:
        record: The packed record.
        file: Weights by parameter name, as a file of torch, safetensors or NumPy. Nothing in it is
            executed.

    Raises:
        BadInput: The file cannot be read, its weights have no names, or the record identifies no
            model.
    """
    if record.coverage is None or not record.coverage.models:
        remedy = (
            "record the run again, and pass the model after each round to the recorder (after=)"
            if record.watched
            else "run the study again in another folder"
        )
        raise BadInput(
            f"the record identifies no model, so {file} cannot be compared with it; {remedy}"
        )
    compared = compare_with(record.coverage, file)
    if not compared.digest or not (further := _further_contents(file)):
        return compared
    results = compared.results
    return compared._replace(results=results._replace(unchecked=[*results.unchecked, further]))


def released_file(record: Record, path: Path) -> ModelFile:
    """Describe the file of the released model of a record.

    Args:
        record: The record.
        path: The file, which must have the final model of the record, or its adapter.

    Raises:
        BadInput: The file cannot be read, or has another model.
    """
    compared = compare_model(record, path)
    if not compared.digest:
        reasons = [*compared.results.problems, *compared.results.unchecked]
        raise BadInput(
            f"{path} is not packed as the released model: {reasons[0]}; give the model after the "
            f"last round, or leave out {format_option('model')}"
        )
    return describe_file(path, compared.digest)


def describe_file(path: Path, tensors_digest: str) -> ModelFile:
    """Return name, size and SHA-256 of the file of a model.

    Args:
        path: The file.
        tensors_digest: SHA-256 of its tensors.

    Raises:
        BadInput: The file cannot be read, or its name has characters that cannot be printed.
    """
    if not path.name.isprintable():
        raise BadInput(
            f"the name of the model {path.name!r} has characters that cannot be printed; rename it"
        )
    digest, size = hashlib.sha256(), 0
    try:
        with open_regular(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise BadInput(
            f"the model {path} cannot be read ({error}); give the path of a file"
        ) from error
    return ModelFile(
        name=path.name, bytes=size, sha256=digest.hexdigest(), tensors_digest=tensors_digest
    )


def compare_file(named: ModelFile, path: Path) -> CheckResults:
    """Compare a file, whose tensors are already compared, with the file that a pack names."""
    name, digest = shorten(repr(named.name), 120), f"SHA-256 {named.sha256}"
    if describe_file(path, named.tensors_digest).sha256 != named.sha256:
        return CheckResults(
            unchecked=[
                f"the released file that the pack names ({name}, {digest}): {path.name} has other "
                "bytes"
            ]
        )
    if path.name != named.name:
        return CheckResults(
            [],
            [f"{path.name} has the bytes of the released file that the pack names ({digest})"],
            [f"the name of the released file: the pack names {name}"],
        )
    return CheckResults([], [f"{path.name} is the released file that the pack names ({digest})"])


def _further_contents(file: Path) -> str:
    """Describe what a file contains in addition to its weights, which no digest covers."""
    if file.suffix == ".safetensors":
        notes = read_tensors(file)[1]
        what = "metadata"
        size = sum(len(key) + len(text) for key, text in notes.items() if key != "format")
    elif file.suffix == ".npz":
        with open_regular(file) as stream, ZipFile(stream) as archive:
            comments = [archive.comment, *(entry.comment for entry in archive.infolist())]
        what, size = "comments", sum(map(len, comments))
    else:
        weights = list(_read_tensors(file).values())
        what = "further objects"
        size = file.stat().st_size - sum(value.nbytes for value in weights)
        size = size if size > _MAX_OVERHEAD * (4 + len(weights)) else 0
    if not size:
        return ""
    return f"the {what} in {file.name} ({size:,} bytes): digests cover only its tensors"


def compare_with(coverage: Coverage, file: Path) -> ComparedModel:
    """Find the model of a file among the models of a coverage; see :func:`compare_model`."""
    stored = _read_tensors(file)
    tensors = {name: value for name, value in stored.items() if value.is_floating_point()}
    whole = [n for n, v in stored.items() if n not in tensors and not n.endswith(_COUNTER)]
    aliases = list(_aliases(tensors, coverage))
    for alias in aliases:
        if alias.stored and hash_of_tensor(tensors[alias.stored]) != hash_of_tensor(
            tensors[alias.name]
        ):
            names = (shorten(repr(name), 80) for name in (alias.name, alias.stored))
            reason = "it has other values for {} than for {}, which are one tensor".format(*names)
            return ComparedModel(_unknown(file.name, reason))
    further = {alias.name: tensors.pop(alias.name) for alias in aliases}
    tensors |= {alias.first: further[alias.name] for alias in aliases if not alias.stored}
    compared = _compare(tensors, coverage, file.name)
    if compared.results.problems and any(_is_half(value) for value in tensors.values()):
        # A recorder of a network with 16-bit parameters computes with 32 bits, which is exact.
        as_single = {n: v.float() if _is_half(v) else v for n, v in tensors.items()}
        other = _compare(as_single, coverage, file.name)
        compared = compared if other.results.problems else other
    if not compared.digest or not whole:
        return compared
    text = (
        f"the whole numbers in {file.name}, such as {shorten(repr(whole[0]), 80)}: digests cover "
        "only floating-point numbers"
    )
    results = compared.results
    return compared._replace(results=results._replace(unchecked=[*results.unchecked, text]))


def _is_half(value: Tensor) -> bool:
    return value.dtype in (torch.float16, torch.bfloat16)


def _compare(tensors: Mapping[str, Tensor], coverage: Coverage, file: str) -> ComparedModel:
    trained, others = _split(tensors, coverage)
    base = digest_of_base(others)
    if not trained:
        is_base = base in {models.base for models in coverage.models}
        text = f"{file} is the base model, which no client trained"
        return ComparedModel(
            CheckResults(unchecked=[f"the adapter: {text}"]) if is_base else _unknown(file)
        )
    digest = digest_of(trained, {})
    known = next((model for model in _known_models(coverage) if model.digest == digest), None)
    if known is None:
        return ComparedModel(_unknown(file))
    what, unchecked = known.name or "the model", list[str]()
    if coverage.adapter and not base:
        what = f"the adapter of {known.name}" if known.name else "the adapter"
        unchecked = [
            f"whether {file} is used with its base model"
            + (f" (SHA-256 {known.base})" if known.base else ", which the record does not identify")
        ]
    elif base and not known.base:
        unchecked = [f"the tensors of {file} that no client trained: they are not identified"]
    elif base != known.base:
        problem = (
            f"{file} has the trained tensors of {known.name or 'the model'} {known.when}, but "
            "other tensors than those of its base model"
        )
        return ComparedModel(CheckResults(problems=[problem]))
    text = f"{file} is {what} {known.when}"
    if known.is_final:
        return ComparedModel(CheckResults(checked=[text], unchecked=unchecked), digest)
    final = "is not the final model" if coverage.final_models else "may not be the final model"
    return ComparedModel(
        CheckResults(unchecked=[f"the final model: {text}, which {final}", *unchecked])
    )


def _read_tensors(file: Path) -> dict[str, Tensor]:
    stored = read_checkpoint(file)
    if not isinstance(stored, Mapping):
        raise BadInput(
            f"the weights in {file} have no names, so they cannot be compared with the record; "
            "save them with names, such as a state_dict in a safetensors file"
        )
    return {name: as_cpu_tensor(value, name) for name, value in stored.items()}


class _Alias(NamedTuple):
    """Further name of a tensor in a file.

    Attributes:
        name: The name in the file.
        first: The name that the digest uses.
        stored: The file's name of the same tensor that stands for ``first``; empty if it has none.
    """

    name: str
    first: str
    stored: str


def _aliases(tensors: Mapping[str, Tensor], coverage: Coverage) -> Iterator[_Alias]:
    """Yield the names in a file that the digest does not use."""
    # PEFT gives a trained copy of a layer the name of the original layer.
    trained = {*coverage.adapter, *coverage.adapter.values()}
    names = {plain_name(name): name for name in tensors if name not in trained}
    for alias, first in coverage.tied.items():
        name = names.get(plain_name(alias))
        if first in coverage.adapter:
            stored = next((n for n in (first, coverage.adapter[first]) if n in tensors), "")
        else:
            stored = names.get(plain_name(first), "")
        if name is not None and name != stored:
            yield _Alias(name, first, stored)


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
    final = coverage.final_models
    for models in reversed(coverage.models):
        if models.after:
            is_final = models in final
            of = "the record" if models.seed is None else f"seed {models.seed}"
            when = f"after the last round of {of}" if is_final else f"after round {models.round}"
            yield _KnownModel(models.after, models.base, models.name, when, is_final)
    for models in reversed(coverage.models):
        if models.sent:
            when = f"that was sent in round {models.round}"
            yield _KnownModel(models.sent, models.base, models.name, when)


def _unknown(
    file: str, reason: str = "its weights, their names or their types differ"
) -> CheckResults:
    return CheckResults(problems=[f"{file} is none of the models of the record: {reason}"])
