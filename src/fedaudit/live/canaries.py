"""Canary clients for a federation that is somebody's own: what they send, and what they tell."""

import secrets
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Bool
from numpy import ndarray
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import Params
from fedaudit.fl.accounting import FORMAL_DELTA
from fedaudit.fl.canary import canary_direction, canary_statistics
from fedaudit.live.weights import tensor_of
from fedaudit.metrics.canaries import FEWEST_CANARIES, CanaryBounds, canary_bounds
from fedaudit.study.settings.optional import LONGEST_CANARY

Array: TypeAlias = Tensor | ndarray
Weights: TypeAlias = nn.Module | Mapping[str, Array] | Sequence[Array]


_NEXT_TO_NOTHING = 1e-6


class CanaryClients:
    """Clients that show how well one client's update is hidden in what a federation releases.

    Each sends, in every round in which it is asked, the model that it was sent, and half of them,
    by a fair coin each, move it by a random direction of the length to which clients' updates are
    clipped. All must be treated as any other client: clipped, weighted, and hidden in noise.

    Attributes:
        sends: Whether each moves the model. Whoever attacks must not know it, nor the seed.
        seed: Of directions and coins.

    Examples:
        >>> canaries = CanaryClients(nn.Linear(2, 2), count=40, length=1.0, seed=1)
        >>> len(canaries.sends)
        40
    """

    sends: Bool[ndarray, " canaries"]

    def __init__(
        self, model: nn.Module, *, count: int = 100, length: float, seed: int | None = None
    ) -> None:
        """Tosses the coins.

        Args:
            model: The network, for names and shapes.
            count: Canary clients, at least 20; about half of them move the model.
            length: By how much, such as the clipping norm; at most a million.
            seed: Of directions and coins, a secret of whoever audits; drawn if left out. Keep it to
                make the same canaries again.

        Raises:
            BadInput: Too few canaries, a length that is none, or a model that nothing trains.
        """
        if not isinstance(model, nn.Module):
            raise BadInput(f"model is {type_of(model)}; give the network, a torch.nn.Module")
        sound = isinstance(count, int) and isinstance(length, int | float)
        if not sound or count < FEWEST_CANARIES or not 0 < length <= LONGEST_CANARY:
            raise BadInput(
                f"canary clients are at least {FEWEST_CANARIES}, each of a length above 0 and at "
                f"most {LONGEST_CANARY:g}; got {count!r} of length {length!r}"
            )
        self._like: Params = {
            name: value.detach().cpu()
            for name, value in model.named_parameters()
            if value.requires_grad
        }
        if not self._like:
            raise BadInput("no parameter of the model is trained, so that clients send nothing")
        self.seed = secrets.randbits(62) if seed is None else seed
        self._order, self._length = tuple(model.state_dict()), length
        self.sends = seeded_numpy(self.seed, "canary coins").random(count) < 0.5

    def upload(self, number: int, sent: Weights) -> dict[str, Tensor] | list[ndarray]:
        """A canary's answer: the model that it was sent, moved if its coin says so.

        Without a move one number differs by a millionth of the length, or its last bits.

        Args:
            number: Of the canary, from 0.
            sent: The model, a state dict, or arrays in its order (or of trainable parameters).

        Returns:
            A state dict; arrays where arrays were sent.

        Raises:
            BadInput: There is no such canary, or the model is another.
        """
        if number not in range(len(self.sends)):
            raise BadInput(f"canaries are numbered 0 to {len(self.sends) - 1}, got {number!r}")
        named = self._named(sent, "the model that was sent")
        moved = {
            name: value.clone() if name in self._like else value for name, value in named.items()
        }
        if self.sends[number]:
            direction = self._direction(self._like, number)
            for name, values in direction.items():
                step = self._length * values
                moved[name] = (moved[name] + step).to(named[name].dtype)
        else:
            # Next to nothing, and not nothing: what clips an update may divide by its length, as
            # Flower's fixed clipping does.
            one = moved[next(iter(self._like))].view(-1)[:1]
            least = 2 * torch.finfo(one.dtype).eps * one.abs()
            one += least.clamp_min(_NEXT_TO_NOTHING * self._length)
        if isinstance(sent, nn.Module | Mapping):
            return moved
        return [value.numpy() for value in moved.values()]

    def _direction(self, like: Params, number: int) -> Params:
        return canary_direction(like, self.seed, number)

    def bounds(
        self,
        first: Weights,
        last: Weights,
        *,
        delta: float = FORMAL_DELTA,
        alpha: float = 0.05,
        every_round: bool = True,
    ) -> CanaryBounds:
        """Lower bounds on the epsilon of one client's update in the released models.

        Args:
            first: The global model before the first round in which canaries were asked.
            last: That after the last.
            delta: At which epsilon is stated.
            alpha: Probability that a bound is wrong, each for itself.
            every_round: Whether all canaries were asked in every round in between; where rounds
                draw their clients, there is the bound from coins alone.

        Raises:
            BadInput: The models are others, or nothing moved.
        """
        before, after = (
            self._named(given, whose)
            for given, whose in ((first, "the first model"), (last, "the last model"))
        )
        movement = {name: after[name] - before[name] for name in self._like}
        z = canary_statistics(movement, len(self.sends), self._direction).numpy()
        return canary_bounds(z, self.sends, delta=delta, alpha=alpha, every_round=every_round)

    def _named(self, given: Weights, whose: str) -> Params:
        """Tensors by name, in the order in which they came."""
        if isinstance(given, nn.Module):
            given = given.state_dict()
        if isinstance(given, Mapping):
            pairs = list(given.items())
        elif isinstance(given, Sequence):
            order = self._order if len(given) == len(self._order) else tuple(self._like)
            if len(given) != len(order):
                raise BadInput(
                    f"{whose} has {len(given)} arrays, and the network {len(self._order)}, of "
                    f"which {len(self._like)} are trained"
                )
            pairs = list(zip(order, given, strict=True))
        else:
            raise BadInput(f"{whose} is {type_of(given)}; give a module, a state dict or arrays")
        found = {name: tensor_of(value, f"{name} of {whose}") for name, value in pairs}
        for name, like in self._like.items():
            if name not in found or found[name].shape != like.shape:
                has = f"has shape {tuple(found[name].shape)}" if name in found else "is not there"
                raise BadInput(f"{name} of {whose} {has}, and the network's is {tuple(like.shape)}")
        return found
