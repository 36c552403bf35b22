"""Models and updates on disk: safetensors only, each file written whole or not at all."""

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
from fedaudit.core.files import own_folder, own_place
from fedaudit.core.values import Architecture, ClientId, Model, Params, plus, scaled
from fedaudit.observe.round import Exposed, Round
from fedaudit.observe.tensors import (
    Keep,
    groups_of,
    numbered,
    numbers_of,
    pairs,
    read_tensors,
    write_tensors,
)
from fedaudit.observe.views import grouped

_WRITERS = 4


def write_round(folder: Path, round: Round, keep: Keep) -> None:
    """Keeps a round's models: nothing for "signals", global models, or updates as well.

    Updates are divided by their largest entry before they become 16-bit numbers: plain 16 bits
    lose 1.5e-2 of a cosine on small updates.
    """
    if keep == "signals":
        return
    place = own_folder(folder, "rounds", f"round-{round.index:06d}")
    clients = sorted(round.exposed)
    bases = [round.exposed[client].base for client in clients]
    shown = [base for base in bases if base is not None]
    distinct, numbers = grouped(shown)
    updates: Iterable[_File] = ()
    if keep == "full":
        if len(shown) < len(clients):
            raise NotVisible('the models sent are hidden in this view; keep "signals" instead')
        updates = (
            _File(place / f"client-{client:06d}.safetensors", *_packed(round, client, number))
            for client, number in zip(clients, numbers, strict=True)
        )
    server = {
        "asked": torch.tensor(round.asked, dtype=torch.int64),
        "answered": torch.tensor(round.answered, dtype=torch.int64),
        "stands_for": pairs(round.stands_for),
    }
    server |= numbered_models("base", dict(enumerate(distinct)))
    server |= numbered_models("after", round.after)
    # The largest first: it is written while updates are packed.
    _write_all(chain([_File(place / "server.safetensors", server, {})], updates))


def numbered_models(part: str, models: Mapping[int, Model] | Mapping[str, Model]) -> Params:
    """The tensors of some models, under ``part/number/``."""
    return {
        f"{part}/{name}/{key}": value
        for name, model in models.items()
        for key, value in model.tensors().items()
    }


def models_in(tensors: Params, part: str, architecture: Architecture) -> dict[str, Model]:
    """The models that :func:`numbered_models` put under a part, by number."""
    found: dict[str, Params] = {}
    for key, value in under(tensors, f"{part}/").items():
        name, _, rest = key.partition("/")
        found.setdefault(name, {})[rest] = value
    return {name: Model.from_tensors(architecture, params) for name, params in found.items()}


def _models(tensors: Params, part: str, architecture: Architecture) -> dict[str, Model]:
    found = models_in(tensors, part, architecture)
    initial = architecture.initial(0)
    for model in found.values():
        refuse_misfit(model, initial)
        if model.tensors().keys() != initial.tensors().keys():
            raise ValueError("its tensors are not those of the model")
    return found


def refuse_misfit(model: Model, initial: Model) -> None:
    """Raise if a model that was read is none of an architecture, some tensors left out.

    Raises:
        ValueError: Its tensors have other names or shapes, or hold no floating-point numbers.
    """
    wanted, found = initial.tensors(), model.tensors()
    if not found.keys() <= wanted.keys():
        raise ValueError("its tensors are not those of the model")
    for name, value in found.items():
        if value.shape != wanted[name].shape or not value.is_floating_point():
            raise ValueError("its tensors are not those of the model, in shape or type")


class _File(NamedTuple):
    path: Path
    tensors: Params
    notes: dict[str, str]


def _write_all(files: Iterable[_File]) -> None:
    """Writes files while others are packed, a few at a time: some are flushed, one is filled."""
    with ThreadPoolExecutor(max_workers=_WRITERS) as writers:
        writing = deque[Future[None]]()
        for file in files:
            if len(writing) == _WRITERS:
                writing.popleft().result()
            writing.append(writers.submit(write_tensors, file.tensors, file.path, file.notes))
        for last in writing:
            last.result()


def _packed(round: Round, client: ClientId, base: int) -> tuple[Params, dict[str, str]]:
    """A client's update as it is kept, and what must be known of it."""
    exposed = round.exposed[client]
    if exposed.update is None or exposed.local is None:
        raise NotVisible(
            f"client {client}'s update is hidden in this view, so it cannot be kept; keep "
            '"signals" or "snapshots"'
        )
    peak = max(_peak(value) for value in exposed.update.values())
    divisor = peak or 1.0
    tensors = {f"update/{n}": (v / divisor).half() for n, v in exposed.update.items()}
    tensors |= {f"buffers/{n}": v for n, v in exposed.local.buffers.items()}
    notes = {"peak": repr(divisor), "weight": repr(round.weights[client]), "base": str(base)}
    if exposed.gradient_scale is not None:
        notes["gradient_scale"] = repr(exposed.gradient_scale)
    return tensors, notes


def _peak(value: Tensor) -> float:
    """The largest magnitude, without a copy of all of them."""
    low, high = value.aminmax()
    return max(-float(low), float(high))


def read_rounds(folder: Path, architecture: Architecture) -> Iterator[Round]:
    """The kept rounds of a run in which every update was kept, ascending.

    Raises:
        BadInput: The updates of a round were not kept.
        Damaged: A file is missing or not one that fedaudit wrote.
    """
    for index, place in numbered(folder / "rounds", ""):
        path = place / "server.safetensors"
        if not path.is_file():
            raise Damaged(f"{path} is missing; restore it from a copy, or delete {place}")
        server, _ = read_tensors(path)
        try:
            kept = _Kept(
                _models(server, "base", architecture),
                _models(server, "after", architecture),
                numbers_of(server["asked"]),
                numbers_of(server["answered"]),
                server["stands_for"],
            )
            if not set(kept.answered) <= set(kept.asked):
                raise ValueError("clients answered that were not asked")
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{path} is not a kept round ({error}); restore it") from error
        yield _read_round(index, place, kept)


class _Kept(NamedTuple):
    """Content of a round's server file."""

    bases: dict[str, Model]
    after: dict[str, Model]
    asked: tuple[ClientId, ...]
    answered: tuple[ClientId, ...]
    groups: Tensor


def _read_round(index: int, place: Path, kept: _Kept) -> Round:
    exposed: dict[ClientId, Exposed] = {}
    weights: dict[ClientId, float] = {}
    for path in sorted(place.glob("client-*.safetensors")):
        client = _client_of(own_place(place, path.name))
        exposed[client], weights[client] = _read_client(path, kept.bases)
    if not exposed:
        raise BadInput(
            f"{place} holds models but no updates, so that no client can be attacked in it; keep "
            '"full" rounds for that'
        )
    try:
        stands_for = groups_of(kept.groups, exposed)
    except ValueError as error:
        raise Damaged(f"{place} is not a kept round ({error}); restore it") from error
    return Round(
        index=index,
        exposed=exposed,
        sent={},
        uploads={},
        weights=weights,
        asked=kept.asked,
        answered=kept.answered,
        after=kept.after,
        stands_for=stands_for,
    )


def _client_of(path: Path) -> ClientId:
    try:
        return int(path.stem.removeprefix("client-"))
    except ValueError as error:
        raise Damaged(f"{path} is named after no client; rename or delete it") from error


def _read_client(path: Path, bases: Mapping[str, Model]) -> tuple[Exposed, float]:
    tensors, notes = read_tensors(path)
    try:
        base = bases[notes["base"]]
        peak, weight = float(notes["peak"]), float(notes["weight"])
        scale = float(notes["gradient_scale"]) if "gradient_scale" in notes else None
        packed = under(tensors, "update/")
        if {n: v.shape for n, v in packed.items()} != {n: v.shape for n, v in base.params.items()}:
            raise ValueError("its tensors are not those of the model")
        if not (
            0 < peak < math.inf
            and 0 <= weight < math.inf
            and 0 < (1 if scale is None else scale) < math.inf
        ):
            raise ValueError(f"peak {peak}, weight {weight} or scale {scale} cannot be")
        update = scaled({name: packed[name].float() for name in base.params}, peak)
        if not all(bool(value.isfinite().all()) for value in update.values()):
            raise ValueError("its update is not finite")
        local = Model(base.architecture, plus(base.params, update), under(tensors, "buffers/"))
        refuse_misfit(local, base)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Damaged(f"{path} is not a kept update ({error}); restore it from a copy") from error
    return Exposed(base, local, update, scale), weight


def under(tensors: Params, prefix: str) -> Params:
    """The tensors whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
