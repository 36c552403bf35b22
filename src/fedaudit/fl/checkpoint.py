"""Where a run stands after a whole round, on disk: one file, replaced in one step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedaudit.core import ClientId, Params
from fedaudit.errors import BadInput, Damaged
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


def save(standing: Standing, path: Path, fingerprint: str) -> None:
    """Writes the standing to a temporary name and renames it over the old one."""
    tensors = {f"server/{name}": value for name, value in standing.server.items()}
    for part, by_client in (("memory", standing.memories), ("defense", standing.defenses)):
        for client, params in by_client.items():
            tensors |= {f"{part}/{client}/{name}": value for name, value in params.items()}
    write_tensors(tensors, path, {"round": str(standing.round), "fingerprint": fingerprint})


def resume(path: Path, fingerprint: str) -> Standing | None:
    """The standing saved at a path, or None where there is none.

    Raises:
        BadInput: It belongs to a run with other settings, or on another kind of device.
        Damaged: It cannot be read.
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
        return Standing(int(notes["round"]), server, parts["memory"], parts["defense"])
    except (KeyError, ValueError) as error:
        raise Damaged(
            f"the checkpoint {path} is not one that fedaudit wrote ({error}); delete it to start "
            "afresh"
        ) from error
