"""Canary clients: they train on nothing and send random directions, which show in the model."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Batch, ClientId, Params, Samples, flat, norm, plus, scaled
from fedaudit.fl.hooks import Defense, Turn
from fedaudit.observe.round import Round, Update, Upload, select_clients
from fedaudit.observe.tensors import write_tensors


def canary_direction(like: Params, seed: int, number: int) -> Params:
    """The direction of length 1 that a canary client sends, the same in every round.

    Args:
        like: Parameters of the model; they give names and shapes.
        seed: Of the audit; whoever has it knows all directions.
        number: Of the canary.
    """
    rng = seeded(seed, "canary", number)
    drawn = {
        name: torch.randn(value.shape, dtype=value.dtype, generator=rng)
        for name, value in like.items()
    }
    return scaled(drawn, 1 / norm(drawn))


@dataclass(frozen=True)
class CanaryUpload(Defense):
    """Client that uploads a random direction instead of a trained update.

    Attributes:
        seed: Of the directions.
        number: Of this canary.
        length: Of its upload.

    Source: Andrew et al. 2024, One-shot empirical privacy estimation for federated learning,
        Algorithm 1.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update,)

    seed: int
    number: int
    length: float

    def batches(self, data: Samples, batch_size: int, turn: Turn) -> Iterator[Batch]:
        """Each epoch: nothing is trained on."""
        return iter(())

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round: the direction, at its length."""
        if not self.length:
            return replace(upload, values=scaled(upload.values, 0.0))
        direction = canary_direction(upload.values, self.seed, self.number)
        return replace(upload, values=scaled(direction, self.length))


CANARIES_FILE = "canaries.safetensors"
Value = TypeVar("Value")


def keeping_canaries(
    rounds: Iterable[Round],
    clients: Sequence[ClientId],
    direction: Callable[[Params, int], Params],
    start: Params,
    *,
    last: int,
    folder: Path,
    run: str,
) -> Iterator[Round]:
    """The rounds without the canary clients, whose statistics go into a file of the run's folder.

    Args:
        rounds: As they were, before any view; of one model.
        clients: The canaries.
        direction: Of length 1, by the shapes of a model's parameters and a canary's number.
        start: Parameters of the model before the first round.
        last: The round after which the statistics are taken.
        folder: The run's.
        run: Names the run.

    Raises:
        BadInput: The model has not moved.
    """
    for round in rounds:
        if round.index == last:
            (after,) = round.after.values()
            movement = plus(after.params, start, -1.0)
            z = canary_statistics(movement, len(clients), direction)
            write_tensors({"z": z}, folder / CANARIES_FILE, {"run": run})
        yield _without(round, frozenset(clients))


def canary_statistics(
    movement: Params, count: int, direction: Callable[[Params, int], Params]
) -> Float[Tensor, " canaries"]:
    """For each canary sqrt(d) times the cosine of its direction and a movement in d dimensions.

    Args:
        movement: Of the released model, by the names of its trained parameters.
        count: Of the canaries.
        direction: Of length 1, by the shapes of a model's parameters and a canary's number.

    Raises:
        BadInput: Nothing has moved, or not by finite numbers.

    Source: Andrew et al. 2024, One-shot empirical privacy estimation for federated learning,
        Algorithm 1.
    """
    moved = flat(movement).double()
    length = float(moved.norm())
    if not 0 < length < math.inf:
        raise BadInput(
            "the last model is the first, or not finite: no round has moved it, so that canary "
            "clients tell nothing; raise the learning rate, or the canaries' length"
        )
    # One direction at a time: each is as large as the model.
    along = [float(flat(direction(movement, n)).double() @ moved) for n in range(count)]
    return torch.tensor(along, dtype=torch.float64) * math.sqrt(len(moved)) / length


def _without(round: Round, canaries: frozenset[ClientId]) -> Round:
    """Return a round without the canaries; shares are those among the other clients."""
    weights = _others(round.weights, canaries)
    total = sum(weights.values())
    return replace(
        round,
        exposed=_others(round.exposed, canaries),
        sent=_others(round.sent, canaries),
        uploads=_others(round.uploads, canaries),
        weights={client: share / total for client, share in weights.items()},
        asked=tuple(client for client in round.asked if client not in canaries),
        answered=tuple(client for client in round.answered if client not in canaries),
        facts=_others(round.facts, canaries),
        kept=_others(round.kept, canaries),
        seconds=_others(round.seconds, canaries),
    )


def _others(
    given: Mapping[ClientId, Value], canaries: frozenset[ClientId]
) -> Mapping[ClientId, Value]:
    return select_clients(given, [client for client in given if client not in canaries])
