"""Canary clients, which send random directions without training, and their statistics."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.errors import BadInput, format_setting
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Batch, ClientId, Params, Samples, add_scaled, flat, norm, scaled
from fedaudit.fl.hooks import Defense, TrainingContext
from fedaudit.observe.round import Round, Update, Upload, select_clients
from fedaudit.observe.tensors import write_tensors


def canary_direction(template: Params, seed: int, number: int) -> Params:
    """Draw the random unit vector that a canary client sends in every round.

    Args:
        template: Parameters with the shapes of the vector.
        seed: Seed of the directions.
        number: Number of the canary.
    """
    rng = seeded(seed, "canary", number)
    direction = {
        name: torch.randn(value.shape, dtype=value.dtype, generator=rng)
        for name, value in template.items()
    }
    return scaled(direction, 1 / norm(direction))


@dataclass(frozen=True)
class CanaryUpload(Defense):
    """Canary client that uploads a random direction instead of a trained update.

    It is a defense, because the hooks of a defense can change the batches and the upload of one
    client. It protects no client.

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
    get_direction: Callable[[Params, int], Params],
    start: Params,
    *,
    last: int,
    folder: Path,
    run: str,
) -> Iterator[Round]:
    """Yield the rounds without canary clients, and write the canaries' statistics to a file.

    Args:
        rounds: Rounds of a federation with one global model, with the uploads of all clients.
        clients: The canary clients.
        get_direction: Function of a model's parameters and a canary's number that returns the
            canary's direction, a unit vector.
        start: Parameters of the model before the first round.
        last: Round after which the statistics are computed.
        folder: Folder of the run.
        run: Identity of the run, which is stored in the file.

    Raises:
        BadInput: The model has not changed.
    """
    for round in rounds:
        if round.index == last:
            (after,) = round.after.values()
            movement = add_scaled(after.params, start, scale=-1.0)
            z = canary_statistics(movement, len(clients), get_direction)
            write_tensors({"z": z}, folder / CANARIES_FILE, {"run": run})
        yield _remove_canaries(round, frozenset(clients))


def canary_statistics(
    movement: Params, count: int, get_direction: Callable[[Params, int], Params]
) -> Float[Tensor, " canaries"]:
    """Compute how strongly each canary's direction is contained in the trained model.

    Args:
        movement: Change of the d parameters during training.
        count: Number of canaries.
        get_direction: Function as in :func:`record_canaries`.

    Returns:
        For each canary, sqrt(d) times the cosine between its direction and the movement. Without
        the canary, it is approximately standard normal.

    Raises:
        BadInput: The movement is zero or not finite.

    Source: Andrew et al. 2024, One-shot empirical privacy estimation for federated learning,
        Algorithm 1.
    """
    flat_movement = flat(movement).double()
    length = float(flat_movement.norm())
    if not 0 < length < math.inf:
        raise BadInput(
            "the last model equals the first or is not finite, so canary clients measure nothing; "
            f"change {format_setting('training.lr')}"
        )
    # Only one direction is in memory at a time, because each is as large as the model.
    projections = [
        float(flat(get_direction(movement, number)).double() @ flat_movement)
        for number in range(count)
    ]
    return torch.tensor(projections, dtype=torch.float64) * math.sqrt(len(flat_movement)) / length


def _remove_canaries(round: Round, canaries: frozenset[ClientId]) -> Round:
    """Return a round without the canaries, with weights that sum to 1 over the other clients."""
    weights = _without_canaries(round.weights, canaries)
    total = sum(weights.values())
    return replace(
        round,
        observed=_without_canaries(round.observed, canaries),
        sent=_without_canaries(round.sent, canaries),
        uploads=_without_canaries(round.uploads, canaries),
        weights={client: weight / total for client, weight in weights.items()},
        selected=tuple(client for client in round.selected if client not in canaries),
        answered=tuple(client for client in round.answered if client not in canaries),
        client_notes=_without_canaries(round.client_notes, canaries),
        private_models=_without_canaries(round.private_models, canaries),
        seconds=_without_canaries(round.seconds, canaries),
    )


def _without_canaries(
    values: Mapping[ClientId, Value], canaries: frozenset[ClientId]
) -> Mapping[ClientId, Value]:
    return select_clients(values, [client for client in values if client not in canaries])
