"""Assignment of saved models to rounds, and the rounds that can be measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from fedaudit.core.errors import BadInput, format_assignment, format_option
from fedaudit.live.checkpoints.files import StoredWeights, read_checkpoint
from fedaudit.live.checkpoints.layouts import FINAL, CheckpointFiles
from fedaudit.live.recording import UPLOAD_VIEWS
from fedaudit.live.weights import Weights
from fedaudit.observe.views import view_named

Saved = Literal["after", "sent"]
"""Time at which the global model with a round's number was saved."""
Gaps = Literal["missing", "join"]
"""Treatment of rounds if the global model before them is not saved."""


class CheckpointModels:
    """Saved models by round, counted from 1.

    Attributes:
        folder: Folder with the checkpoints.
        last: Number of the last round.
        sent: File or weights of the model that clients were sent.
        after: File or weights of the global model after the round.
        clients: Files of the clients' models, by the client's name in the file name.
    """

    def __init__(self, folder: Path, last: int) -> None:
        self.folder, self.last = folder, last
        self.sent = dict[int, Path | Weights]()
        self.after = dict[int, Path | Weights]()
        self.clients = dict[int, Mapping[str, Path]]()
        self._cache = dict[Path, StoredWeights]()

    def weights(self, source: Path | Weights) -> Weights:
        """Return weights, which are read if ``source`` is a file; two files are cached."""
        if not isinstance(source, Path):
            return source
        if source not in self._cache:
            for path in list(self._cache)[:-1]:
                del self._cache[path]
            self._cache[source] = read_checkpoint(source, within=self.folder)
        return self._cache[source]

    def uploads(self, index: int) -> dict[str, StoredWeights]:
        """Return the clients' models of a round, by the client's name in the file name."""
        files = self.clients.get(index, {})
        return {name: read_checkpoint(path, within=self.folder) for name, path in files.items()}


def models_of(
    files: CheckpointFiles,
    folder: Path,
    *,
    saved: Saved,
    first: int,
    rounds: int,
    initial: Path | str | Weights | None,
) -> CheckpointModels:
    """Assign the files of a folder to rounds.

    For the arguments, see :func:`fedaudit.from_checkpoints`.
    """
    if first not in (0, 1):
        raise BadInput(f"first is {first!r}; give 0 or 1, the number of the first round in names")
    global_files = {index + 1 - first: path for index, path in files.globals.items()}
    clients = {index + 1 - first: paths for index, paths in files.clients.items() if index != FINAL}
    if 0 in clients:
        raise BadInput(
            f"round 0 has clients' models; pass {format_assignment('first', '0')} if rounds are "
            "counted from 0"
        )
    last = max([*global_files, *clients, rounds], default=0)
    if not rounds and (files.final is not None or FINAL in files.clients):
        name = "the clients' model" if files.final is None else files.final.name
        raise BadInput(
            f"{name} has no round in its name; pass {format_option('rounds')}, the number of "
            "rounds that were trained"
        )
    if rounds and last > rounds:
        raise BadInput(
            f"rounds is {rounds}, but there are models of round {last}; pass the larger number"
        )
    models = CheckpointModels(folder, last)
    models.clients.update(clients)
    if FINAL in files.clients:
        models.clients[rounds] = files.clients[FINAL]
    # The model after a round is the one that clients are sent in the next round.
    offset = 1 if saved == "sent" else 0
    for index, path in global_files.items():
        if index > offset:
            models.after[index - offset] = path
        if 0 < index + 1 - offset <= last:
            models.sent[index + 1 - offset] = path
    if isinstance(initial, str | Path):
        path = Path(initial)
        initial = read_checkpoint(path if path.exists() else folder / path)
    if initial is not None:
        models.sent.setdefault(1, initial)
    if files.final is not None:
        models.after[rounds] = files.final
    return models


def default_view(models: CheckpointModels, gaps: Gaps) -> str:
    """Return the view that uses most of the saved models."""
    if models.clients:
        return "uploads"
    has_update = models.sent.keys() & models.after.keys()
    return "globals" if has_update or (gaps == "join" and len(models.after) > 1) else "final"


class PlannedRound(NamedTuple):
    """One round to record.

    Attributes:
        number: Number of the round.
        sent: Model that clients were sent; None if it is not saved.
        missing: Reason why the round cannot be measured; empty if it can.
    """

    number: int
    sent: Path | Weights | None
    missing: str = ""


def plan_rounds(models: CheckpointModels, view: str, gaps: Gaps) -> list[PlannedRound]:
    """Return the rounds to record; raise if no round can be measured."""
    view_named(view)
    if view in UPLOAD_VIEWS and not models.clients:
        raise BadInput(
            f"the view {view!r} needs clients' models, and the folder has none; pass "
            f"{format_option('client-files')} or the view 'globals' or 'final'"
        )
    if gaps == "join" and view in UPLOAD_VIEWS:
        raise BadInput(
            f"{format_assignment('gaps', repr('join'))} is for the view 'globals'; clients train "
            "from their round's model"
        )
    if view == "final":
        if models.last not in models.after:
            raise BadInput(
                "the view 'final' needs the model after the last round, which is not saved"
            )
        final = models.after[models.last]
        return [PlannedRound(models.last, models.sent.get(models.last, final))]
    # Without any sent model, outputs of the clients' models can still be measured.
    lacks_sent_models = not models.sent.keys() & {*models.clients, *models.after}
    planned, previous = list[PlannedRound](), models.sent.get(1)
    for index in range(1, models.last + 1):
        sent, missing = models.sent.get(index), ""
        if view not in UPLOAD_VIEWS:
            sent = previous if gaps == "join" and sent is None else sent
            previous = models.after.get(index, previous)
            if sent is None or index not in models.after:
                where = "before" if index in models.after else "after"
                missing = f"the global model {where} it is not saved"
        elif not models.clients.get(index):
            missing = "no client's model of it is saved"
        elif sent is None and not (lacks_sent_models and index in models.after):
            missing = "the global model that clients were sent is not saved"
        planned.append(PlannedRound(index, None if missing else sent, missing))
    if all(planned_round.missing for planned_round in planned):
        raise BadInput(
            f"no round can be measured: {planned[-1].missing}; pass {format_option('initial')} for "
            f"the model before the first round, {format_assignment('gaps', repr('join'))} to "
            "measure the change across missing rounds, or "
            f"{format_assignment('view', repr('final'))}"
        )
    return planned
