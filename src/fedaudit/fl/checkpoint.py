"""Checkpoints: a run's state after a whole round, in one file, replaced in one step."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import torch

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.objects import stated
from fedaudit.core.values import ClientId, Params, Samples
from fedaudit.fl.hooks import UNDEFENDED, Defense
from fedaudit.observe.tensors import read_tensors, write_tensors


@dataclass(frozen=True)
class Standing:
    """All that a run carries from one round to the next.

    Attributes:
        round: The last whole round.
        server: The algorithm's state.
        memories: What each client keeps to itself.
        defenses: Each client's defense state.
    """

    round: int
    server: Params
    memories: Mapping[ClientId, Params] = field(default_factory=dict)
    defenses: Mapping[ClientId, Params] = field(default_factory=dict)


def fingerprint_of(
    settings: tuple[object, ...],
    clients: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
) -> str:
    """Tells one run from another, so that a checkpoint is never taken up by a stranger.

    Args:
        settings: Of the run, in a fixed order.
        clients: Each client's data.
        defenses: By client, as they are before they prepare anything.
    """
    digest = sha256(stated(settings).encode())
    for client in sorted(clients):
        defense = defenses.get(client, UNDEFENDED)
        # Members of a coalition go by the name that they have in checkpoints of earlier versions,
        # which know no members of other defenses.
        settings_of_defense = {
            "coalition" if name == "members" else name: value
            for name, value in vars(defense).items()
            if not (name == "members" and value is None)
        }
        digest.update(stated((client, type(defense).__name__, settings_of_defense)).encode())
        for part in clients[client].parts:
            digest.update(part.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save(standing: Standing, path: Path, fingerprint: str) -> None:
    """Writes the standing to a temporary name and renames it over the old one."""
    tensors = {f"server/{name}": value for name, value in standing.server.items()}
    for part, by_client in (("memory", standing.memories), ("defense", standing.defenses)):
        for client, params in by_client.items():
            tensors |= {f"{part}/{client}/{name}": value for name, value in params.items()}
    write_tensors(tensors, path, {"round": str(standing.round), "fingerprint": fingerprint})


def resume(
    path: Path,
    fingerprint: str,
    rounds: int,
    beginning: Standing,
    clients: Collection[ClientId],
) -> Standing | None:
    """The standing saved at a path, or None where there is none.

    Args:
        path: Of the file.
        fingerprint: Of the run that asks for it.
        rounds: Of the run in all.
        beginning: Where the run stands before its first round. Later, the server's state has the
            same names and shapes; so have the defenses' states, but what is empty at first may
            grow in length.
        clients: Of the run.

    Raises:
        BadInput: It belongs to a run with other settings, or on another kind of device.
        Damaged: It cannot be read, or is no standing that this run can have.
    """
    if not path.exists():
        return None
    tensors, notes = read_tensors(path)
    if notes.get("fingerprint") != fingerprint:
        raise BadInput(
            f"the checkpoint {path} belongs to a run with other settings, or on "
            "another kind of device; choose another folder, or delete it to start afresh"
        )
    server: Params = {}
    parts: dict[str, dict[ClientId, Params]] = {"memory": {}, "defense": {}}
    try:
        for key, value in tensors.items():
            part, _, name = key.partition("/")
            if part == "server":
                server[name] = value
            else:
                client, _, name = name.partition("/")
                parts[part].setdefault(int(client), {})[name] = value
        standing = Standing(int(notes["round"]), server, parts["memory"], parts["defense"])
    except (KeyError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    fault = _fault(standing, rounds, beginning, clients)
    if fault:
        raise _damaged(path, fault)
    return standing


def _fault(
    standing: Standing, rounds: int, beginning: Standing, clients: Collection[ClientId]
) -> str:
    """Reason why this run cannot stand there; empty if it can."""
    if not 1 <= standing.round <= rounds:
        return f"it is of round {str(standing.round)[:20]}, and the run has {rounds}"
    strangers = sorted({*standing.memories, *standing.defenses} - set(clients))
    if strangers:
        return f"it has client {str(strangers[0])[:20]}, and the run has none such"
    fault = _misfit(standing.server, beginning.server, "the model's")
    for client in clients:
        found, own = (one.defenses.get(client, {}) for one in (standing, beginning))
        fault = fault or _misfit(found, own, f"those of client {client}'s defense", growing=True)
    return fault


def _misfit(found: Params, own: Params, whose: str, *, growing: bool = False) -> str:
    """Differences of tensors from the first ones in name, type or shape; empty if they fit."""
    names = sorted(found.keys() ^ own.keys())
    if names:
        return f"tensors are missing or too many, such as {names[0][:80]!r}"
    for name, value in own.items():
        there = found[name]
        same = (there.shape, there.dtype) == (value.shape, value.dtype)
        grown = growing and value.numel() == 0 and there.shape[1:] == value.shape[1:]
        if not (same or grown):
            return f"the tensor {name!r} is of another shape or type than {whose}"
    return ""


def _damaged(path: Path, why: str) -> Damaged:
    return Damaged(
        f"the checkpoint {path} is not one that this run wrote ({why}); delete it to start afresh"
    )
