"""Rounds and measurements on disk: safetensors only, each file written whole or not at all.

A run's folder holds::

    measured/round-000010.safetensors    all signals of a round
    rounds/round-000010/server.safetensors        base and next global model ("snapshots")
    rounds/round-000010/client-000003.safetensors a client's update in 16 bits ("full")
"""

import math
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from fedaudit.core import Architecture, ClientId, Model, Params
from fedaudit.errors import BadInput, Damaged, NotVisible
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.round import EVERYBODY, Exposed, Round
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.observe.transforms import grouped
from fedaudit.params import plus, scaled

Keep = Literal["signals", "snapshots", "full"]
_AGAIN = "restore it from a copy, or delete its run's folder and run the study again"
MAX_ROUND = 999_999
"""The last round that file names, of six digits, can tell."""
_MOST = 1e100
"""Beyond any signal, be it of a run that diverged; squares of larger ones are not finite."""
_WRITERS = 4
_ROUND = re.compile(r"round-(\d{6})(\.safetensors)?")


class Stored(NamedTuple):
    """A measured round as it was stored, with its notes."""

    measured: MeasuredRound
    notes: dict[str, str]


def estimated_bytes(
    *, keep: Keep, rounds: int, clients: int, samples: int, signals: int, parameters: int
) -> int:
    """About how much disk a run will take.

    Args:
        keep: What is kept.
        rounds: Number of measured rounds.
        clients: Clients a round.
        samples: Audited samples.
        signals: Number of signals.
        parameters: Of one model.
    """
    total = rounds * clients * samples * signals * 8
    if keep != "signals":
        total += rounds * 2 * parameters * 4
    if keep == "full":
        total += rounds * clients * parameters * 2
    # The checkpoint, and room for its successor while both are there.
    return total + 2 * parameters * 4


def write_measured(folder: Path, measured: MeasuredRound, notes: Mapping[str, str]) -> None:
    """Adds one measured round to a run's folder."""
    (folder / "measured").mkdir(parents=True, exist_ok=True)
    tensors: Params = {f"signal/{name}": values for name, values in measured.signals.items()}
    tensors["clients"] = torch.tensor(measured.clients, dtype=torch.int64)
    tensors["bases"] = measured.bases
    tensors["stands_for"] = _pairs(measured.stands_for)
    path = folder / "measured" / f"round-{measured.index:06d}.safetensors"
    write_tensors(tensors, path, notes)


def read_measured(folder: Path) -> list[Stored]:
    """All measured rounds of a run, ascending.

    Raises:
        Damaged: A file is not one that fedaudit wrote, or rounds do not fit together.
    """
    found = [
        _measured(path, index) for index, path in _numbered(folder / "measured", ".safetensors")
    ]
    shapes = {
        (tuple(sorted(s.measured.signals)), next(iter(s.measured.signals.values())).shape[1])
        for s in found
    }
    if len(shapes) > 1:
        raise Damaged(
            f"the measured rounds in {folder} have different signals or samples; they are of "
            "different runs: restore the folder or delete it"
        )
    return found


def _pairs(stands_for: Mapping[ClientId, ClientId]) -> Int[Tensor, "merged two"]:
    return torch.tensor(sorted(stands_for.items()), dtype=torch.int64).reshape(-1, 2)


def _measured(path: Path, index: int) -> Stored:
    tensors, notes = read_tensors(path)
    try:
        clients = _clients(tensors.pop("clients"))
        bases = tensors.pop("bases")
        stands_for = _groups(tensors.pop("stands_for"), clients)
        signals = {name.removeprefix("signal/"): value for name, value in tensors.items()}
        if not (signals and all(_fits(value, len(clients)) for value in signals.values())):
            raise ValueError("it has signals of odd shapes or values")
        if bases.dtype != torch.int64 or bases.shape != (len(clients),):
            raise ValueError("it has not one base for each client")
        if not bool(((bases >= 0) & (bases < len(clients))).all()):
            raise ValueError("it has bases that no client can have")
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path} is not a measured round ({error}); {_AGAIN}") from error
    return Stored(MeasuredRound(index, clients, bases, signals, stands_for), notes)


def _clients(tensor: Tensor) -> tuple[ClientId, ...]:
    """Numbers of clients, each once."""
    numbers = tuple(int(client) for client in tensor.tolist())
    if tensor.dtype != torch.int64 or len(set(numbers)) < len(numbers) or not numbers:
        raise ValueError("its clients are not numbered each once")
    return numbers


def _groups(pairs: Tensor, clients: Collection[ClientId]) -> dict[ClientId, ClientId]:
    """For each merged client the one that its group is named after, which alone is still there."""
    if pairs.dtype != torch.int64 or pairs.shape[1:] != (2,):
        raise ValueError("it has groups of odd shape")
    groups = {int(member): int(name) for member, name in pairs.tolist()}
    named = all(groups.get(name) == name and name in clients for name in groups.values())
    gone = all(member == name or member not in clients for member, name in groups.items())
    if len(groups) < len(pairs) or not (named and gone):
        raise ValueError("it has groups of clients that cannot be")
    return groups


def _fits(values: Tensor, clients: int) -> bool:
    """Whether a signal has a row for each client, of numbers that can be."""
    return (
        values.ndim == 2
        and len(values) == clients
        and values.dtype in (torch.float32, torch.float64)
        and bool((values.abs() <= _MOST).all())
    )


def fault_in(measured: MeasuredRound, clients: Collection[ClientId], samples: int) -> str:
    """Why a measured round cannot be of a run with these clients and so many samples.

    Args:
        measured: As it was read.
        clients: All of the run.
        samples: That are measured.

    Returns:
        Empty if it can be.
    """
    if not {*measured.clients, *measured.stands_for} <= {*clients, EVERYBODY}:
        return "it has clients that the run has not"
    sizes = {values.shape[1] for values in measured.signals.values()}
    return "" if sizes == {samples} else f"it has {max(sizes)} samples instead of {samples}"


def write_round(folder: Path, round: Round, keep: Keep) -> None:
    """Keeps a round's models: nothing for "signals", global models, or updates as well.

    Updates are divided by their largest entry before they become 16-bit numbers: plain 16 bits
    lose 1.5e-2 of a cosine on small updates.
    """
    if keep == "signals":
        return
    place = folder / "rounds" / f"round-{round.index:06d}"
    place.mkdir(parents=True, exist_ok=True)
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
        "stands_for": _pairs(round.stands_for),
    }
    server |= _numbered_models("base", dict(enumerate(distinct)))
    server |= _numbered_models("after", round.after)
    # The largest first: it is written while updates are packed.
    _write_all(chain([_File(place / "server.safetensors", server, {})], updates))


def _numbered_models(part: str, models: Mapping[int, Model] | Mapping[str, Model]) -> Params:
    return {
        f"{part}/{name}/{key}": value
        for name, model in models.items()
        for key, value in model.tensors().items()
    }


def _models(tensors: Params, part: str, architecture: Architecture) -> dict[str, Model]:
    found: dict[str, Params] = {}
    for key, value in _under(tensors, f"{part}/").items():
        name, _, rest = key.partition("/")
        found.setdefault(name, {})[rest] = value
    wanted = {name: value.shape for name, value in architecture.initial(0).tensors().items()}
    if any({n: v.shape for n, v in params.items()} != wanted for params in found.values()):
        raise ValueError("its tensors are not those of the model")
    return {name: Model.from_tensors(architecture, params) for name, params in found.items()}


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

    Args:
        folder: The run's folder.
        architecture: What the clients train.

    Raises:
        BadInput: The updates of a round were not kept.
        Damaged: A file is missing or not one that fedaudit wrote.
    """
    for index, place in _numbered(folder / "rounds", ""):
        path = place / "server.safetensors"
        if not path.is_file():
            raise Damaged(f"{path} is missing; restore it from a copy, or delete {place}")
        server, _ = read_tensors(path)
        try:
            kept = _Kept(
                _models(server, "base", architecture),
                _models(server, "after", architecture),
                _clients(server["asked"]),
                _clients(server["answered"]),
                server["stands_for"],
            )
            if not set(kept.answered) <= set(kept.asked):
                raise ValueError("clients answered that were not asked")
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{path} is not a kept round ({error}); restore it") from error
        yield _read_round(index, place, kept)


class _Kept(NamedTuple):
    """What a round's server file says."""

    bases: dict[str, Model]
    after: dict[str, Model]
    asked: tuple[ClientId, ...]
    answered: tuple[ClientId, ...]
    groups: Tensor


def _read_round(index: int, place: Path, kept: _Kept) -> Round:
    exposed: dict[ClientId, Exposed] = {}
    weights: dict[ClientId, float] = {}
    for path in sorted(place.glob("client-*.safetensors")):
        client = _client_of(path)
        exposed[client], weights[client] = _read_client(path, kept.bases)
    if not exposed:
        raise BadInput(
            f"{place} holds models but no updates, so that no client can be attacked in it; keep "
            '"full" rounds for that'
        )
    try:
        stands_for = _groups(kept.groups, exposed)
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
        packed = _under(tensors, "update/")
        if {n: v.shape for n, v in packed.items()} != {n: v.shape for n, v in base.params.items()}:
            raise ValueError("its tensors are not those of the model")
        if not (
            0 < peak < math.inf
            and 0 <= weight < math.inf
            and 0 < (1 if scale is None else scale) < math.inf
        ):
            raise ValueError(f"peak {peak}, weight {weight} or scale {scale} cannot be")
        update = scaled({name: packed[name].float() for name in base.params}, peak)
        local = Model(base.architecture, plus(base.params, update), _under(tensors, "buffers/"))
    except (KeyError, ValueError, RuntimeError) as error:
        raise Damaged(f"{path} is not a kept update ({error}); restore it from a copy") from error
    return Exposed(base, local, update, scale), weight


def _under(tensors: Params, prefix: str) -> Params:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _numbered(folder: Path, ending: str) -> list[tuple[int, Path]]:
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _ROUND.fullmatch(path.name)
        if match and (match[2] or "") == ending:
            found.append((int(match[1]), path))
    return found
