"""Layout of a run's folder, and the common form of its files.

It holds::

    measured/round-000010.safetensors    all signals of a round
    rounds/round-000010/server.safetensors        base and next global model ("snapshots")
    rounds/round-000010/client-000003.safetensors a client's update in 16 bits ("full")
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from fedaudit.core.files import own_place
from fedaudit.core.values import ClientId

Keep = Literal["signals", "snapshots", "full"]
MAX_ROUND = 999_999
"""The last round that file names, of six digits, can tell."""
_ROUND = re.compile(r"round-(\d{6})(\.safetensors)?")


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
    values = clients * samples * signals
    total = rounds * round_bytes(keep=keep, clients=clients, values=values, parameters=parameters)
    # The checkpoint, and room for its successor while both are there.
    return total + 2 * parameters * 4


def round_bytes(*, keep: Keep, clients: int, values: int, parameters: int) -> int:
    """About how much disk one measured round takes.

    Args:
        keep: What is kept.
        clients: In the round.
        values: Of all signals, clients and samples.
        parameters: Of one model.
    """
    total = values * 8
    if keep != "signals":
        total += 2 * parameters * 4
    if keep == "full":
        total += clients * parameters * 2
    return total


def numbered(folder: Path, ending: str) -> list[tuple[int, Path]]:
    """The files or folders of rounds with an ending, and each one's round, ascending.

    Raises:
        BadInput: The folder, or one of these, is a link.
    """
    own_place(folder.parent, folder.name)
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _ROUND.fullmatch(path.name)
        if match and (match[2] or "") == ending:
            found.append((int(match[1]), own_place(folder, path.name)))
    return found


def pairs(stands_for: Mapping[ClientId, ClientId]) -> Int[Tensor, "merged two"]:
    """Merged clients, each with the one that its group is named after, as files have them."""
    return torch.tensor(sorted(stands_for.items()), dtype=torch.int64).reshape(-1, 2)


def numbers_of(tensor: Tensor) -> tuple[ClientId, ...]:
    """Numbers of clients, each once.

    Raises:
        ValueError: They are not.
    """
    numbers = tuple(int(client) for client in tensor.tolist())
    if tensor.dtype != torch.int64 or len(set(numbers)) < len(numbers) or not numbers:
        raise ValueError("its clients are not numbered each once")
    return numbers


def groups_of(pairs: Tensor, clients: Collection[ClientId]) -> dict[ClientId, ClientId]:
    """For each merged client the one that its group is named after, which alone is still there.

    Args:
        pairs: Of :func:`pairs`, as they were read.
        clients: All that are still there.

    Raises:
        ValueError: No clients can be grouped so.
    """
    if pairs.dtype != torch.int64 or pairs.shape[1:] != (2,):
        raise ValueError("it has groups of odd shape")
    groups = {int(member): int(name) for member, name in pairs.tolist()}
    named = all(groups.get(name) == name and name in clients for name in groups.values())
    gone = all(member == name or member not in clients for member, name in groups.items())
    if len(groups) < len(pairs) or not (named and gone):
        raise ValueError("it has groups of clients that cannot be")
    return groups
