"""Models of a folder of checkpoints by round, and which rounds can be measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from fedaudit.core.errors import BadInput, option
from fedaudit.live.checkpoints.files import StoredWeights, read_checkpoint
from fedaudit.live.checkpoints.layouts import FINAL, CheckpointFiles
from fedaudit.live.recording import UPLOAD_VIEWS
from fedaudit.live.weights import Weights
from fedaudit.observe.views import view_named

Saved = Literal["after", "sent"]
Gaps = Literal["missing", "join"]


class CheckpointModels:
    """Files of the models before and after each round, and of the clients' models."""

    def __init__(self, folder: Path, last: int) -> None:
        self.folder, self.last = folder, last
        self.sent = dict[int, Path | Weights]()
        self.after = dict[int, Path | Weights]()
        self.clients = dict[int, Mapping[str, Path]]()
        self._read = dict[Path, StoredWeights]()

    def weights(self, source: Path | Weights) -> Weights:
        """Return the weights of a file, and cache the weights of the last two files."""
        if not isinstance(source, Path):
            return source
        if source not in self._read:
            for path in list(self._read)[:-1]:
                del self._read[path]
            self._read[source] = read_checkpoint(source, within=self.folder)
        return self._read[source]

    def uploads(self, index: int) -> dict[str, StoredWeights]:
        """Return the clients' models of a round by the names of their files."""
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
    """Return the models before and after each round, with rounds counted from 1."""
    if first not in (0, 1):
        raise BadInput(f"first is {first!r}; give 0 or 1, the number of the first round in names")
    shift = 1 - first
    by_round = {index + shift: path for index, path in files.globals.items()}
    clients = {index + shift: c for index, c in files.clients.items() if index != FINAL}
    if 0 in clients:
        raise BadInput("round 0 has clients' models; pass first=0 if rounds are counted from 0")
    last = max([*by_round, *clients, rounds], default=0)
    has_final = files.final is not None or FINAL in files.clients
    if has_final and not rounds:
        name = files.final.name if files.final is not None else "the final clients' models"
        raise BadInput(
            f"{name} has no round in its name; pass {option('rounds')}, the number of rounds that "
            "were trained"
        )
    if rounds and last > rounds:
        raise BadInput(f"rounds is {rounds}, but there are models of round {last}; pass the larger")
    models = CheckpointModels(folder, last)
    models.clients.update(clients)
    if FINAL in files.clients:
        models.clients[rounds] = files.clients[FINAL]
    before = _initial(initial, folder)
    if saved == "sent":
        models.sent.update({index: path for index, path in by_round.items() if index > 0})
        models.after.update({index - 1: path for index, path in by_round.items() if index > 1})
    else:
        models.after.update({index: path for index, path in by_round.items() if index > 0})
        models.sent.update({index + 1: path for index, path in by_round.items() if index < last})
    if before is not None:
        models.sent.setdefault(1, before)
    if files.final is not None:
        models.after[rounds] = files.final
    return models


def _initial(initial: Path | str | Weights | None, folder: Path) -> Weights | None:
    if isinstance(initial, str | Path):
        path = Path(initial)
        return read_checkpoint(path if path.exists() else folder / path)
    return initial


def usual_view(models: CheckpointModels, gaps: Gaps) -> str:
    """Return the view that uses most of the saved models."""
    if models.clients:
        return "uploads"
    has_change = models.sent.keys() & models.after.keys()
    return "globals" if has_change or (gaps == "join" and len(models.after) > 1) else "final"


class Step(NamedTuple):
    """One round to record.

    Attributes:
        number: Number of the round.
        sent: Model before it; None if it is not saved.
        missing: Reason why the round cannot be measured; empty if it can.
    """

    number: int
    sent: Path | Weights | None
    missing: str = ""


def plan_rounds(models: CheckpointModels, view: str, gaps: Gaps) -> list[Step]:
    """Return the step of each round, with the reason if the round cannot be measured."""
    view_named(view)
    if view in UPLOAD_VIEWS and not models.clients:
        raise BadInput(
            f"the view {view!r} needs clients' models, and the folder has none; pass "
            f"{option('client-files')} or the view 'globals' or 'final'"
        )
    if gaps == "join" and view in UPLOAD_VIEWS:
        raise BadInput(
            "gaps='join' is for the view 'globals'; clients train from their round's model"
        )
    if view == "final":
        if models.last not in models.after:
            raise BadInput(
                "the view 'final' needs the model after the last round, which is not saved"
            )
        final = models.after[models.last]
        return [Step(models.last, models.sent.get(models.last, final))]
    knows_no_model = not models.sent.keys() & {*models.clients, *models.after}
    steps, previous = list[Step](), models.sent.get(1)
    for index in range(1, models.last + 1):
        sent = models.sent.get(index)
        if view not in UPLOAD_VIEWS:
            sent = previous if gaps == "join" and sent is None else sent
            previous = models.after.get(index, previous)
            if sent is None or index not in models.after:
                where = "before" if index in models.after else "after"
                steps.append(Step(index, None, f"the global model {where} it is not saved"))
            else:
                steps.append(Step(index, sent))
        elif not models.clients.get(index):
            steps.append(Step(index, None, "no client's model of it is saved"))
        elif sent is None and not (knows_no_model and index in models.after):
            steps.append(Step(index, None, "the global model that clients were sent is not saved"))
        else:
            steps.append(Step(index, sent))
    if all(step.missing for step in steps):
        raise BadInput(
            f"no round can be measured: {steps[-1].missing}; pass {option('initial')} for the "
            "model before the first round, gaps='join' for distant global models, or view='final'"
        )
    return steps
