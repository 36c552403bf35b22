"""Search of a folder for checkpoint files, with the round and client in each file name."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fedaudit.core.errors import BadInput, format_assignment
from fedaudit.live.checkpoints.files import SUFFIXES
from fedaudit.observe.tensors import MAX_ROUND

FINAL = -1
"""Round number of clients' models that have no round in their name."""

_MAX_FILES = 1_000_000
_MAX_LISTED = 5


class CheckpointLayout(NamedTuple):
    """File names that a federated-learning framework gives to checkpoints.

    Attributes:
        framework: Name of the framework, which messages show.
        globals: Pattern of each round's global model. Without the field ``{round}`` it names the
            final model.
        clients: Pattern of the clients' models; empty if they are not saved.
    """

    framework: str
    globals: str
    clients: str = ""


LAYOUTS = (
    CheckpointLayout("fedaudit", "round-{round}/global", "round-{round}/client-{client}"),
    CheckpointLayout("Flower", "round-{round}-weights"),
    CheckpointLayout("Flower", "model_{round}"),
    CheckpointLayout("Flower", "model_round_{round}"),
    CheckpointLayout("Flower", "model_at_round_{round}"),
    CheckpointLayout("Flower", "global_model_round_{round}"),
    CheckpointLayout("Flower", "model_state_acc_*_round_{round}"),
    CheckpointLayout("Flower", "final_model"),
    CheckpointLayout("NVFlare", "FL_global_model.pt"),
    CheckpointLayout("PFLlib", "*_server.pt"),
)
"""Recognised layouts. In all of them, file n is the global model after round n."""


@dataclass(frozen=True)
class CheckpointFiles:
    """Checkpoint files of a folder by round and client.

    Attributes:
        globals: Global models by round.
        clients: Clients' models by round, and by the client's name in the file name.
        final: Global model that has no round in its name.
        framework: Framework of the recognised layout; empty if the user passed patterns.
    """

    globals: Mapping[int, Path]
    clients: Mapping[int, Mapping[str, Path]]
    final: Path | None
    framework: str

    @property
    def client_names(self) -> set[str]:
        """Names of all clients with a file, as in the file names."""
        return {name for files in self.clients.values() for name in files}


def files_in(folder: Path, global_files: str, client_files: str) -> CheckpointFiles:
    """Return the checkpoints of a folder.

    Args:
        folder: Folder of the checkpoints.
        global_files: Pattern of the global models. If both patterns are empty, the file names
            must have one of the :data:`LAYOUTS`.
        client_files: Pattern of the clients' models.

    Raises:
        BadInput: No file matches, a pattern lacks a field, or two files are the model of the same
            round and client.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder; give the folder with the checkpoints")
    if global_files or client_files:
        return _matching_files(folder, CheckpointLayout("", global_files, client_files))
    matches = [_matching_files(folder, layout) for layout in LAYOUTS]
    matches = [files for files in matches if files.globals or files.clients or files.final]
    # A layout that finds only a final model does not count if another layout finds more.
    matches = [files for files in matches if files.globals or files.clients] or matches
    if len(matches) == 1:
        return matches[0]
    names = sorted(path.name for path in islice(folder.iterdir(), 1000))[:_MAX_LISTED]
    problem = "no file of a recognised layout" if not matches else "files of several layouts"
    raise BadInput(
        f"{folder} has {problem} ({', '.join(names) or 'it is empty'}); give patterns such as "
        f"{format_assignment('global-files', repr('round-{round}/global.pt'))} and "
        f"{format_assignment('client-files', repr('round-{round}/client-{client}.pt'))}"
    )


def _matching_files(folder: Path, layout: CheckpointLayout) -> CheckpointFiles:
    rounds, clients = dict[int, Path](), dict[int, dict[str, Path]]()
    final: Path | None = None
    for path, fields in _paths_and_fields(folder, layout.globals, {"round"}):
        if "round" not in fields:
            final = _raise_if_duplicate(path, final, "the final model")
        else:
            number = _round_of(fields["round"], path)
            model = f"the model of round {number}"
            rounds[number] = _raise_if_duplicate(path, rounds.get(number), model)
    for path, fields in _paths_and_fields(folder, layout.clients, {"round", "client"}):
        if "client" not in fields:
            raise BadInput(
                f"client_files is {layout.clients!r}; mark the name of the client by {{client}}"
            )
        number = _round_of(fields["round"], path) if "round" in fields else FINAL
        paths, name = clients.setdefault(number, {}), fields["client"]
        model = f"the model of client {name} in round {number}"
        paths[name] = _raise_if_duplicate(path, paths.get(name), model)
    if not layout.framework and not (rounds or clients or final):
        patterns = " or ".join(map(repr, filter(None, (layout.globals, layout.clients))))
        raise BadInput(f"no file in {folder} matches {patterns}; check the pattern")
    return CheckpointFiles(
        dict(sorted(rounds.items())), dict(sorted(clients.items())), final, layout.framework
    )


def _raise_if_duplicate(path: Path, earlier: Path | None, model: str) -> Path:
    """Return the path; raise if an earlier file contains the same model."""
    if earlier is not None:
        raise BadInput(
            f"{earlier.name} and {path.name} are both {model}; remove one of them, or give "
            "patterns that match only one"
        )
    return path


def _round_of(text: str, path: Path) -> int:
    if len(text) > len(str(MAX_ROUND)):
        raise BadInput(
            f"{path.name} has round number {text[:40]}, and at most {MAX_ROUND:,} is allowed; "
            "rename it"
        )
    return int(text)


def _paths_and_fields(
    folder: Path, pattern: str, allowed: Collection[str]
) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield each file that matches a pattern, with the values of the pattern's fields.

    The pattern is compared folder by folder, so that only folders that match are listed.
    """
    if not pattern:
        return
    names = pattern.split("/")
    if ".." in names or not all(names):
        raise BadInput(
            f"the pattern {pattern!r} must be a relative path without '..' and without empty "
            "parts; give one such as 'round-{round}/global.pt'"
        )
    matches: list[tuple[Path, dict[str, str]]] = [(folder, {})]
    for depth, name in enumerate(names):
        is_last = depth == len(names) - 1
        expression = re.compile(_expression(pattern, name, allowed, is_last=is_last))
        parents, matches = matches, []
        for parent, fields in parents:
            for path in _entries(parent):
                match = expression.fullmatch(path.name)
                if match is None or path.is_dir() == is_last:
                    continue
                values = match.groupdict()
                # A field must have the same value in all folders and the file name.
                if all(fields.get(field, value) == value for field, value in values.items()):
                    matches.append((path, fields | values))
    yield from matches


def _entries(folder: Path) -> list[Path]:
    entries = list(islice(folder.iterdir(), _MAX_FILES + 1))
    if len(entries) > _MAX_FILES:
        raise BadInput(f"{folder} has over {_MAX_FILES:,} files; give a folder of checkpoints")
    return sorted(entries)


_FIELD_OR_STAR = re.compile(r"\{([^{}]*)\}|(\*)")
_FIELD_VALUES = {"round": r"[0-9]+", "client": r".+?"}
"""Regular expression of the values of each field."""


def _expression(pattern: str, name: str, allowed: Collection[str], *, is_last: bool) -> str:
    """Return the regular expression of one folder or file name in a pattern."""
    pieces, end, used_names = list[str](), 0, set[str]()
    for match in _FIELD_OR_STAR.finditer(name):
        pieces.append(re.escape(name[end : match.start()]))
        end, field = match.end(), match[1]
        if field is not None and field not in allowed:
            allowed_names = " and ".join(f"{{{name}}}" for name in sorted(allowed, reverse=True))
            raise BadInput(
                f"the pattern {pattern!r} has the field {{{field}}}; known are {allowed_names}"
            )
        if field is None:
            pieces.append(".*?")
        elif field in used_names:
            pieces.append(f"(?P={field})")
        else:
            pieces.append(f"(?P<{field}>{_FIELD_VALUES[field]})")
            used_names.add(field)
    pieces.append(re.escape(name[end:]))
    has_suffix = any(suffix and name.endswith(suffix) for suffix in SUFFIXES)
    if is_last and not has_suffix:
        pieces.append("(" + "|".join(re.escape(suffix) for suffix in SUFFIXES) + ")")
    return "".join(pieces)
