"""Files that store models and updates of rounds, for keep = "snapshots" and keep = "full"."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged, NotVisible
from fedaudit.core.files import create_subfolder, path_without_links
from fedaudit.core.values import (
    Architecture,
    ClientId,
    Model,
    Params,
    add_scaled,
    scaled,
    with_prefix,
)
from fedaudit.observe.round import ObservedModels, Round, group_models
from fedaudit.observe.tensors import (
    Keep,
    client_ids_in,
    group_pairs,
    groups_of,
    read_tensors,
    round_paths,
    write_tensors,
)

_WRITERS = 4


def write_round(folder: Path, round: Round, keep: Keep) -> None:
    """Write a round's global models for "snapshots", and also its updates for "full".

    Each update is divided by its largest entry before the conversion to 16 bits. Without this
    scaling, the rounding of small updates changes cosines by up to 1.5e-2.
    """
    if keep == "signals":
        return
    round_folder = create_subfolder(folder, "rounds", f"round-{round.index:06d}")
    clients = sorted(round.observed)
    bases = [round.observed[client].base for client in clients]
    visible = [base for base in bases if base is not None]
    unique_models, base_numbers = group_models(visible)
    updates: Iterable[_File] = ()
    if keep == "full":
        if len(visible) < len(clients):
            raise NotVisible(
                'this view hides the models that clients receive, so keep = "full" is not '
                'possible; set keep = "signals"'
            )
        updates = (
            _File(
                round_folder / f"client-{client:06d}.safetensors",
                *_compressed_update(round, client, number),
            )
            for client, number in zip(clients, base_numbers, strict=True)
        )
    server = {
        "asked": torch.tensor(round.selected, dtype=torch.int64),
        "answered": torch.tensor(round.answered, dtype=torch.int64),
        "stands_for": group_pairs(round.group_of),
    }
    server |= tensors_of_models("base", dict(enumerate(unique_models)))
    server |= tensors_of_models("after", round.after)
    # The server's file is the largest, so it is written first, while updates are converted.
    _write_all(chain([_File(round_folder / "server.safetensors", server, {})], updates))


def tensors_of_models(prefix: str, models: Mapping[int, Model] | Mapping[str, Model]) -> Params:
    """Return the tensors of several models, under the names ``prefix/model/tensor``."""
    return {
        f"{prefix}/{name}/{key}": value
        for name, model in models.items()
        for key, value in model.tensors().items()
    }


def models_in(tensors: Params, prefix: str, architecture: Architecture) -> dict[str, Model]:
    """Return models by name, from the tensors of :func:`tensors_of_models`."""
    by_name: dict[str, Params] = {}
    for key, value in with_prefix(tensors, f"{prefix}/").items():
        name, _, tensor = key.partition("/")
        by_name.setdefault(name, {})[tensor] = value
    return {name: Model.from_tensors(architecture, params) for name, params in by_name.items()}


def _read_models(tensors: Params, prefix: str, architecture: Architecture) -> dict[str, Model]:
    models = models_in(tensors, prefix, architecture)
    initial = architecture.initial(0)
    for model in models.values():
        raise_if_misfit(model, initial)
        if model.tensors().keys() != initial.tensors().keys():
            raise ValueError("it lacks tensors of the model")
    return models


def raise_if_misfit(model: Model, initial: Model) -> None:
    """Raise if a model has a tensor that its architecture does not have; tensors may be missing.

    Raises:
        ValueError: A tensor has another name or shape, or no floating-point numbers.
    """
    expected, actual = initial.tensors(), model.tensors()
    if not actual.keys() <= expected.keys():
        raise ValueError("it has tensors that the model does not have")
    for name, value in actual.items():
        if value.shape != expected[name].shape or not value.is_floating_point():
            raise ValueError(f"its tensor {name!r} has another shape or type than in the model")


class _File(NamedTuple):
    path: Path
    tensors: Params
    notes: dict[str, str]


def _write_all(files: Iterable[_File]) -> None:
    """Write files in a few threads, so that one file is converted while others are flushed."""
    with ThreadPoolExecutor(max_workers=_WRITERS) as pool:
        pending = deque[Future[None]]()
        for file in files:
            # Waiting here limits the number of converted files in memory.
            if len(pending) == _WRITERS:
                pending.popleft().result()
            pending.append(pool.submit(write_tensors, file.tensors, file.path, file.notes))
        for future in pending:
            future.result()


def _compressed_update(round: Round, client: ClientId, base: int) -> tuple[Params, dict[str, str]]:
    """Convert a client's update to 16 bits; also return the notes that are needed to restore it."""
    observed = round.observed[client]
    if observed.update is None or observed.local is None:
        raise NotVisible(
            f"this view hides the update of client {client}, so it cannot be stored; set keep = "
            '"signals" or "snapshots"'
        )
    tensors, divisor = _in_16_bits("update", observed.update)
    tensors |= {f"buffers/{n}": v for n, v in observed.local.buffers.items()}
    notes = {"peak": repr(divisor), "weight": repr(round.weights[client]), "base": str(base)}
    if observed.control_variate is not None:
        compressed, divisor = _in_16_bits("control", observed.control_variate)
        tensors |= compressed
        notes["control_peak"] = repr(divisor)
    if observed.gradient_scale is not None:
        notes["gradient_scale"] = repr(observed.gradient_scale)
    return tensors, notes


def _in_16_bits(name: str, values: Params) -> tuple[Params, float]:
    """Return tensors divided by their largest entry, in 16 bits, and this entry."""
    divisor = max(_largest_magnitude(value) for value in values.values()) or 1.0
    return {f"{name}/{n}": (v / divisor).half() for n, v in values.items()}, divisor


def _from_16_bits(tensors: Params, name: str, template: Params, divisor: float) -> Params:
    """Return tensors that :func:`_in_16_bits` compressed.

    Raises:
        ValueError: The tensors are not those of the model, or not finite.
    """
    compressed = with_prefix(tensors, f"{name}/")
    if _shapes(compressed) != _shapes(template):
        raise ValueError("its tensors have other names or shapes than those of the model")
    if not 0 < divisor < math.inf:
        raise ValueError(f"peak {divisor} is out of range")
    values = scaled({key: compressed[key].float() for key in template}, divisor)
    if not all(bool(value.isfinite().all()) for value in values.values()):
        raise ValueError(f"its {name} is not finite")
    return values


def _largest_magnitude(value: Tensor) -> float:
    """Return the largest absolute value without a copy of the tensor."""
    low, high = value.aminmax()
    return max(-float(low), float(high))


def read_rounds(folder: Path, architecture: Architecture) -> Iterator[Round]:
    """Read the rounds of a run that stored all updates (keep = "full"), in ascending order.

    Raises:
        BadInput: The updates of a round were not stored.
        Damaged: A file is missing or was not written by fedaudit.
    """
    for index, round_folder in round_paths(folder / "rounds", ""):
        path = round_folder / "server.safetensors"
        if not path.is_file():
            raise Damaged(f"{path} is missing; restore it from a copy, or delete {round_folder}")
        server, _ = read_tensors(path)
        try:
            server_file = _ServerFile(
                _read_models(server, "base", architecture),
                _read_models(server, "after", architecture),
                client_ids_in(server["asked"]),
                client_ids_in(server["answered"]),
                server["stands_for"],
            )
            if not set(server_file.answered) <= set(server_file.selected):
                raise ValueError("a client sent an upload but received no message")
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(
                f"{path} is not a valid file of a stored round ({error}); restore it from a copy"
            ) from error
        yield _read_round(index, round_folder, server_file)


class _ServerFile(NamedTuple):
    bases: dict[str, Model]
    after: dict[str, Model]
    selected: tuple[ClientId, ...]
    answered: tuple[ClientId, ...]
    groups: Tensor


def _read_round(index: int, round_folder: Path, server_file: _ServerFile) -> Round:
    observed: dict[ClientId, ObservedModels] = {}
    weights: dict[ClientId, float] = {}
    for path in sorted(round_folder.glob("client-*.safetensors")):
        client = _client_of(path_without_links(round_folder, path.name))
        observed[client], weights[client] = _read_client(path, server_file.bases)
    if not observed:
        raise BadInput(
            f"{round_folder} contains models but no updates, so clients cannot be attacked; run "
            'the study again with keep = "full"'
        )
    try:
        group_of = groups_of(server_file.groups, observed)
    except ValueError as error:
        raise Damaged(
            f"{round_folder} is not a valid stored round ({error}); restore it from a copy"
        ) from error
    return Round(
        index=index,
        observed=observed,
        sent={},
        uploads={},
        weights=weights,
        selected=server_file.selected,
        answered=server_file.answered,
        after=server_file.after,
        group_of=group_of,
    )


def _client_of(path: Path) -> ClientId:
    try:
        return int(path.stem.removeprefix("client-"))
    except ValueError as error:
        raise Damaged(f"{path} has no client number in its name; rename or delete it") from error


def _read_client(path: Path, bases: Mapping[str, Model]) -> tuple[ObservedModels, float]:
    tensors, notes = read_tensors(path)
    try:
        base = bases[notes["base"]]
        peak, weight = float(notes["peak"]), float(notes["weight"])
        scale = float(notes["gradient_scale"]) if "gradient_scale" in notes else None
        is_scale_valid = scale is None or 0 < scale < math.inf
        if not (0 <= weight < math.inf and is_scale_valid):
            raise ValueError(f"weight {weight} or scale {scale} is out of range")
        update = _from_16_bits(tensors, "update", base.params, peak)
        control_variate = None
        if "control_peak" in notes:
            control_peak = float(notes["control_peak"])
            control_variate = _from_16_bits(tensors, "control", base.params, control_peak)
        local = Model(
            base.architecture, add_scaled(base.params, update), with_prefix(tensors, "buffers/")
        )
        raise_if_misfit(local, base)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Damaged(
            f"{path} is not a valid stored update ({error}); restore it from a copy"
        ) from error
    return ObservedModels(base, local, update, scale, control_variate), weight


def _shapes(tensors: Params) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}
