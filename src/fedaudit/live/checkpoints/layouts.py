"""Layouts of folders of checkpoints: the round and client of each file."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fedaudit.core.errors import BadInput, assignment
from fedaudit.live.checkpoints.files import SUFFIXES
from fedaudit.observe.tensors import MAX_ROUND

FINAL = -1
"""Round of clients' models whose names have no round."""

_MOST_FILES = 1_000_000
_MOST_NAMED = 5


class Layout(NamedTuple):
    """Layout of the files of one program.

    Attributes:
        program: The program, for messages.
        globals: Pattern of each round's global model; it may also match a final model, without
            a round.
        clients: Pattern of the clients' models; empty if they are not saved.
    """

    program: str
    globals: str
    clients: str = ""


LAYOUTS = (
    Layout("fedaudit", "round-{round}/global", "round-{round}/client-{client}"),
    Layout("Flower", "round-{round}-weights"),
    Layout("Flower", "model_{round}"),
    Layout("Flower", "model_round_{round}"),
    Layout("Flower", "model_at_round_{round}"),
    Layout("Flower", "global_model_round_{round}"),
    Layout("Flower", "model_state_acc_*_round_{round}"),
    Layout("Flower", "final_model"),
    Layout("NVFlare", "FL_global_model.pt"),
    Layout("PFLlib", "*_server.pt"),
)
"""Recognised layouts. All of them save the global model after the round in the name."""


@dataclass(frozen=True)
class CheckpointFiles:
    """Files of a folder by round and client.

    Attributes:
        globals: Global models by round.
        clients: Clients' models by round and name.
        final: Global model whose name has no round.
        program: Program with this layout; empty for given patterns.
    """

    globals: Mapping[int, Path]
    clients: Mapping[int, Mapping[str, Path]] = field(default_factory=dict)
    final: Path | None = None
    program: str = ""

    @property
    def names(self) -> set[str]:
        """Names of all clients with a file."""
        return {name for files in self.clients.values() for name in files}


def files_in(folder: Path, global_files: str, client_files: str) -> CheckpointFiles:
    """Return the checkpoints of a folder, by patterns or, if both are empty, a recognised layout.

    Raises:
        BadInput: No file matches, a pattern lacks a field, or two files have the same model.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder; give the folder with the checkpoints")
    if global_files or client_files:
        return _files(folder, Layout("", global_files, client_files))
    matches = [_files(folder, layout) for layout in LAYOUTS]
    matches = [files for files in matches if files.globals or files.clients or files.final]
    # Ignore layouts of a final model alone if another layout has the models of rounds.
    matches = [files for files in matches if files.globals or files.clients] or matches
    if len(matches) == 1:
        return matches[0]
    few = ", ".join(sorted(path.name for path in islice(folder.iterdir(), 1000))[:_MOST_NAMED])
    what = "no file of a recognised layout" if not matches else "files of several layouts"
    raise BadInput(
        f"{folder} has {what} ({few or 'it is empty'}); give patterns such as "
        f"{assignment('global-files', repr('round-{round}/global.pt'))} and "
        f"{assignment('client-files', repr('round-{round}/client-{client}.pt'))}"
    )


def _files(folder: Path, layout: Layout) -> CheckpointFiles:
    rounds, clients = dict[int, Path](), dict[int, dict[str, Path]]()
    final: Path | None = None
    for path, fields in _matching(folder, layout.globals, {"round"}):
        if "round" not in fields:
            final = _only(final, path, "the final model")
        else:
            number = _round_of(fields["round"], path)
            rounds[number] = _only(rounds.get(number), path, f"round {number}")
    for path, fields in _matching(folder, layout.clients, {"round", "client"}):
        if "client" not in fields:
            raise BadInput(
                f"client_files is {layout.clients!r}; mark the name of the client by {{client}}"
            )
        number = _round_of(fields["round"], path) if "round" in fields else FINAL
        round_files, name = clients.setdefault(number, {}), fields["client"]
        round_files[name] = _only(round_files.get(name), path, f"client {name} in round {number}")
    if not layout.program and not (rounds or clients or final):
        patterns = " or ".join(repr(part) for part in (layout.globals, layout.clients) if part)
        raise BadInput(f"no file in {folder} matches {patterns}; check the pattern")
    return CheckpointFiles(
        dict(sorted(rounds.items())), dict(sorted(clients.items())), final, layout.program
    )


def _only(other: Path | None, path: Path, whose: str) -> Path:
    if other is not None:
        raise BadInput(
            f"{other.name} and {path.name} are both of {whose}; remove one of them, or give "
            "patterns that match one"
        )
    return path


def _round_of(text: str, path: Path) -> int:
    if len(text) > len(str(MAX_ROUND)):
        raise BadInput(f"{path.name} is of round {text[:40]}; at most {MAX_ROUND:,} is read")
    return int(text)


def _matching(
    folder: Path, pattern: str, allowed: Collection[str]
) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield each file that matches a pattern, and the values of its fields."""
    if not pattern:
        return
    parts = pattern.split("/")
    if ".." in parts or not all(parts):
        raise BadInput(f"the pattern {pattern!r} leaves the folder; name files in it")
    matches: list[tuple[Path, dict[str, str]]] = [(folder, {})]
    for depth, part in enumerate(parts):
        is_last = depth == len(parts) - 1
        expression = re.compile(_expression(pattern, part, allowed, is_last=is_last))
        matches = [
            (path, {**fields, **match.groupdict()})
            for parent, fields in matches
            for path in _entries(parent)
            if (match := expression.fullmatch(path.name))
            # A field that occurs in several parts of the pattern has one value.
            if all(fields.get(name, value) == value for name, value in match.groupdict().items())
            if is_last or path.is_dir()
        ]
    yield from ((path, fields) for path, fields in matches if not path.is_dir())


def _entries(folder: Path) -> list[Path]:
    entries = list(islice(folder.iterdir(), _MOST_FILES + 1))
    if len(entries) > _MOST_FILES:
        raise BadInput(f"{folder} has over {_MOST_FILES:,} files; give a folder of checkpoints")
    return sorted(entries)


_FIELD = re.compile(r"\{([^{}]*)\}|(\*)")
_VALUES = {"round": r"[0-9]+", "client": r".+?"}


def _expression(pattern: str, part: str, allowed: Collection[str], *, is_last: bool) -> str:
    """Return the regular expression of one folder or file of a pattern."""
    pieces, end, used = list[str](), 0, set[str]()
    for match in _FIELD.finditer(part):
        pieces.append(re.escape(part[end : match.start()]))
        end, name = match.end(), match[1]
        if name is not None and name not in allowed:
            known = " and ".join(f"{{{field}}}" for field in sorted(allowed, reverse=True))
            raise BadInput(f"the pattern {pattern!r} has the field {{{name}}}; known are {known}")
        if name is None:
            pieces.append(".*?")
        else:
            pieces.append(f"(?P={name})" if name in used else f"(?P<{name}>{_VALUES[name]})")
            used.add(name)
    pieces.append(re.escape(part[end:]))
    has_suffix = any(suffix and part.endswith(suffix) for suffix in SUFFIXES)
    if is_last and not has_suffix:
        pieces.append("(" + "|".join(re.escape(suffix) for suffix in SUFFIXES) + ")")
    return "".join(pieces)
