"""Canary clients, which send random directions without training, and their statistics."""

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
from fedaudit.fl.hooks import Defense, TrainingContext
from fedaudit.observe.round import Round, Update, Upload, select_clients
from fedaudit.observe.tensors import write_tensors


def canary_direction(like: Params, seed: int, number: int) -> Params:
    """Draw the unit vector that a canary client sends in every round."""
    rng = seeded(seed, "canary", number)
    drawn = {
        name: torch.randn(value.shape, dtype=value.dtype, generator=rng)
        for name, value in like.items()
    }
    return scaled(drawn, 1 / norm(drawn))


@dataclass(frozen=True)
class CanaryUpload(Defense):
    """Canary client that uploads a random direction instead of a trained update.

    Attributes:
        seed: Seed of the directions.
        number: Number of this canary.
        length: Norm of the upload; 0 uploads zeros.

    Source: Andrew et al. 2024, One-shot empirical privacy estimation for federated learning,
        Algorithm 1.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update,)

    seed: int
    number: int
    length: float

    def batches(self, data: Samples, batch_size: int, context: TrainingContext) -> Iterator[Batch]:
        """Draw no batches, so that nothing is trained."""
        return iter(())

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        """Replace the upload by the scaled direction."""
        if not self.length:
            return replace(upload, values=scaled(upload.values, 0.0))
        direction = canary_direction(upload.values, self.seed, self.number)
        return replace(upload, values=scaled(direction, self.length))


CANARIES_FILE = "canaries.safetensors"
Value = TypeVar("Value")


def record_canaries(
    rounds: Iterable[Round],
    clients: Sequence[ClientId],
    direction: Callable[[Params, int], Params],
    start: Params,
    *,
    last: int,
    folder: Path,
    run: str,
) -> Iterator[Round]:
    """Remove canary clients from the rounds and write their statistics to the run's folder.

    Args:
        rounds: Rounds of one global model, before any view.
        clients: The canary clients.
        direction: Function of a model's parameters and a canary's number that returns its unit
            vector.
        start: Parameters of the model before the first round.
        last: Round after which the statistics are computed.
        folder: Folder of the run.
        run: Identity of the run.

    Raises:
        BadInput: The model has not changed.
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
    """Compute, for each canary, sqrt(d) times the cosine between its direction and the movement.

    Raises:
        BadInput: The movement is zero or not finite.

    Source: Andrew et al. 2024, One-shot empirical privacy estimation for federated learning,
        Algorithm 1.
    """
    moved = flat(movement).double()
    length = float(moved.norm())
    if not 0 < length < math.inf:
        raise BadInput(
            "the last model equals the first or is not finite, so that canary clients reveal "
            "nothing; raise the learning rate, or the canaries' length"
        )
    # One direction at a time, since each is as large as the model.
    projections = [float(flat(direction(movement, n)).double() @ moved) for n in range(count)]
    return torch.tensor(projections, dtype=torch.float64) * math.sqrt(len(moved)) / length


def _without(round: Round, canaries: frozenset[ClientId]) -> Round:
    """Return a round without the canaries, with weights that sum to 1 over the other clients."""
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
    values: Mapping[ClientId, Value], canaries: frozenset[ClientId]
) -> Mapping[ClientId, Value]:
    return select_clients(values, [client for client in values if client not in canaries])
