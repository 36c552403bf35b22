"""Models after the last round of a run: their digests, and their files."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from fedaudit.core.errors import BadInput, Damaged, FedauditError, Unsupported, format_option
from fedaudit.core.files import CHECKPOINT_FILE, read_object, write_object
from fedaudit.core.values import Architecture, Model, Params, with_prefix
from fedaudit.observe.layout import NetworkLayout, digest_of_model, trained_statistics
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import digest_of, read_tensors, write_tensors
from fedaudit.plan.parts import MeasuredRun, Setup
from fedaudit.results.fields import RecordPart
from fedaudit.results.runs import MAX_MODELS, ModelDigests, TensorNames

DIGESTS_FILE = "models.json"
"""File in the folder of a run with the digests of its models after the last round."""
_MOST_PERSONAL = 200
"""Largest number of clients whose personal models are identified."""
_MOST_PERSONAL_BYTES = 2**30
"""Largest total size of personal models that are identified; hashing them takes seconds."""
_MOST_UNIDENTIFIED = 100


class FinalModels(RecordPart):
    """Digests of the models after the last round.

    Attributes:
        models: Models of the server, and personal models of clients.
        adapter: Tensors that clients train; see :class:`~fedaudit.results.runs.Coverage`.
        tied: Further names of tensors; see :class:`~fedaudit.results.runs.Coverage`.
        unidentified: Models without a digest.
    """

    models: Annotated[list[ModelDigests], Field(max_length=MAX_MODELS)] = Field(
        default_factory=list
    )
    adapter: TensorNames = Field(default_factory=dict)
    tied: TensorNames = Field(default_factory=dict)
    unidentified: Annotated[
        list[Annotated[str, Field(max_length=200)]], Field(max_length=_MOST_UNIDENTIFIED)
    ] = Field(default_factory=list)


class _DigestsFile(FinalModels):
    """File of digests, with the key of its run."""

    run: str


def write_digests(rounds: Iterable[Round], run: Setup, key: str) -> Iterator[Round]:
    """Yield rounds, and write the digests of the last round's models to the run's folder.

    Call this function before a view hides or merges clients.

    Args:
        rounds: Rounds of the run.
        run: The run.
        key: Key of the run, by which its files are recognised.
    """
    for round in rounds:
        if round.index == run.study.training.rounds and not run.is_auxiliary:
            digests = _digests_of(round, run)
            file = _DigestsFile(run=key, **dict(digests))
            write_object(run.folder / DIGESTS_FILE, file.model_dump_json(exclude_defaults=True))
        yield round
        del round


def _digests_of(round: Round, run: Setup) -> FinalModels:
    # The only model of a server has no name.
    named = {name if len(round.after) > 1 else "": model for name, model in round.after.items()}
    personal = [(c, m) for c, m in round.private_models.items() if c in run.assignment.clients]
    n_bytes = sum(value.nbytes for _, model in personal for value in model.tensors().values())
    unidentified = []
    if len(personal) <= _MOST_PERSONAL and n_bytes <= _MOST_PERSONAL_BYTES:
        named |= {f"personal model of client {client}": model for client, model in personal}
    else:
        unidentified.append(f"{len(personal):,} personal models of clients")
    layouts: dict[Architecture, NetworkLayout] = {}
    models, names = list[ModelDigests](), list[tuple[dict[str, str], dict[str, str]]]()
    for name, model in named.items():
        layout = layouts.get(model.architecture)
        if layout is None:
            module = model.architecture.build_module()
            layout = NetworkLayout(model, module, trained_statistics(module))
            layouts[model.architecture] = layout
        digest = digest_of_model(layout, model)
        if digest is not None:
            names.append((layout.adapter_names, layout.tied_names))
        # A record has one table of names for all models.
        if digest is None or names[-1] != names[0]:
            unidentified.append(name or "the model")
        else:
            models.append(
                ModelDigests(
                    round=round.index,
                    seed=run.seed,
                    name=name[:100],
                    base=digest.base,
                    after=digest.trained,
                )
            )
    adapter, tied = names[0] if names else ({}, {})
    return FinalModels(
        models=models,
        adapter=adapter,
        tied=tied,
        unidentified=_shortened(unidentified),
    )


def read_digests(measured_runs: Sequence[MeasuredRun]) -> FinalModels:
    """Return the digests of all runs of a study. Runs of older versions have none.

    Raises:
        Damaged: A file cannot be read, or belongs to another run.
    """
    parts = list[FinalModels]()
    unidentified = list[str]()
    for measured_run in measured_runs:
        run = measured_run.run
        path = run.folder / DIGESTS_FILE
        if not path.is_file():
            unidentified.append(f"the models of seed {run.seed}")
            continue
        try:
            file = _DigestsFile.model_validate(read_object(path))
        except ValidationError as error:
            raise Damaged(
                f"{path} was not written by fedaudit; restore it from a copy, or delete it"
            ) from error
        is_of_run = file.run == measured_run.key and all(
            models.round == run.study.training.rounds and models.seed == run.seed
            for models in file.models
        )
        if not is_of_run:
            raise Damaged(f"{path} belongs to another run; restore it from a copy, or delete it")
        parts.append(file)
        unidentified += [f"{text} of seed {run.seed}" for text in file.unidentified]
    models = [models for part in parts for models in part.models]
    if len(models) > MAX_MODELS:
        unidentified.append(f"{len(models) - MAX_MODELS:,} further models")
    return FinalModels(
        models=models[:MAX_MODELS],
        adapter=next((part.adapter for part in parts), {}),
        tied=next((part.tied for part in parts), {}),
        unidentified=_shortened(unidentified),
    )


def _shortened(texts: Sequence[str]) -> list[str]:
    if len(texts) <= _MOST_UNIDENTIFIED:
        return [text[:200] for text in texts]
    n_more = len(texts) - _MOST_UNIDENTIFIED + 1
    return [*(text[:200] for text in texts[: _MOST_UNIDENTIFIED - 1]), f"{n_more:,} more models"]


def models_in_checkpoint(run: Setup) -> Mapping[str, Model]:
    """Return the server's models after the last round by name, from the run's checkpoint.

    Raises:
        BadInput: There is no checkpoint.
        Damaged: The checkpoint is not that of the last round of this run.
    """
    path = run.folder / CHECKPOINT_FILE
    if not path.is_file():
        raise BadInput(
            f"{path} does not exist, but the model after the last round is in this file; restore "
            "the file, or run the study in another folder"
        )
    tensors, notes = read_tensors(path)
    state = with_prefix(tensors, "server/")
    expected = run.algorithm.start(0)
    has_expected_shapes = {name: value.shape for name, value in state.items()} == {
        name: value.shape for name, value in expected.items()
    }
    if notes.get("round") != str(run.study.training.rounds) or not has_expected_shapes:
        raise Damaged(f"{path} does not contain the run's final model; restore it from a copy")
    return run.algorithm.models(state)


def raise_if_no_server_model(run: Setup) -> None:
    """Raise if the server of a run has no model that could be written to a file."""
    if not run.algorithm.models(run.algorithm.start(0)):
        raise Unsupported(
            f"the server of {type(run.algorithm).__name__} has no model that could be kept; leave "
            f"out {format_option('keep-model')}"
        )


def write_models(runs: Sequence[Setup], out: Path) -> list[Path]:
    """Write the server's models after the last round as safetensors files, and return their paths.

    The only model is written to ``model.safetensors``. With several models or seeds, the names of
    the files contain these. A file has all tensors of the module's state dict.

    Raises:
        BadInput: A file with another content exists, or a run has no checkpoint.
        Damaged: A checkpoint is not that of the last round.
    """
    paths = []
    for run in runs:
        models = models_in_checkpoint(run)
        for name, model in models.items():
            stem = re.sub("[^A-Za-z0-9_.-]", "-", name) if len(models) > 1 else "model"
            of_seed = f"-seed-{run.seed}" if len(runs) > 1 else ""
            path = out / f"{stem}{of_seed}.safetensors"
            tensors = dict(model.module().state_dict())
            if not path.exists():
                write_tensors(tensors, path)
            elif not _has_tensors(path, tensors):
                raise BadInput(
                    f"{path} has other tensors than the model of this study, so it is not "
                    "replaced; rename it, or choose another folder"
                )
            paths.append(path)
    return paths


def _has_tensors(path: Path, tensors: Params) -> bool:
    try:
        return digest_of(read_tensors(path)[0], {}) == digest_of(tensors, {})
    except FedauditError:
        return False
