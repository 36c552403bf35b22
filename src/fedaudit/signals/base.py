"""Interface of signals, and computations that several signals of a round share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core.devices import CPU
from fedaudit.core.errors import NotVisible
from fedaudit.core.modules import outputs_of
from fedaudit.core.values import ClientId, Model, Params, Samples, Sees
from fedaudit.observe.round import Exposed, Round
from fedaudit.observe.views import group_models
from fedaudit.signals.received import Received

if TYPE_CHECKING:
    from fedaudit.signals.gradients import GradientProducts

Part = TypeVar("Part")
Products: TypeAlias = Callable[..., "GradientProducts"]
"""Function with the arguments of :func:`gradient_products` that a round provides, up to
``device``."""


_CLIENTS_AT_ONCE = 256
"""Largest number of clients whose updates go through one pass over the samples."""

_CLIENTS_PER_PART = 64
"""Clients of each pass if there are more. The size of a pass may change the last bits of
results, so that it depends on the number of clients alone."""


class _Outline(NamedTuple):
    """A client's part of a round without its large tensors; many clients share a base model.

    Attributes:
        base: The model the client was sent; None if hidden.
        shows_update: True if its update is visible.
        gradient_scale: As in :class:`~fedaudit.observe.round.Exposed`.
    """

    base: Model | None
    shows_update: bool
    gradient_scale: float | None


class AgainstUpdates(NamedTuple):
    """Every sample's gradient at the model a client was sent, compared with the client's update.

    Attributes:
        dots: Inner product of update (local minus base) and gradient.
        gradient_norms: Euclidean norm of the gradient.
        update_norms: Euclidean norm of the update.
    """

    dots: Float[Tensor, "clients samples"]
    gradient_norms: Float[Tensor, "clients samples"]
    update_norms: Float[Tensor, " clients"]


@dataclass(frozen=True)
class Seen:
    """Visible part of a round, together with the samples to measure.

    Results that several signals use are computed once, on first use. Methods and properties raise
    NotVisible if the view hides a part that they need.

    Attributes:
        round: The round as the adversary's view shows it.
        samples: The samples to measure.
        workers: Threads to use; they do not change results.
        device: Device on which models run.
        received: Results for a model that clients received, which do not change signals; None if
            nothing was computed before.
    """

    round: Round
    samples: Samples
    workers: int = 1
    device: torch.device = CPU
    received: Received | None = None

    @cached_property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients of the round, ascending: the first axis of every signal."""
        return tuple(sorted(self.round.exposed))

    @cached_property
    def outputs(self) -> list[Tensor]:
        """Outputs of each client's model on all samples, in evaluation mode."""
        features = self.samples.features
        return [outputs_of(model, features, self.device) for model in self.local_models]

    @property
    def global_model(self) -> Model:
        """The single global model after the round."""
        if not self.round.after:
            raise NotVisible(
                "this view hides the global models after the rounds, which the snapshot 'global' "
                "needs; use the snapshot 'local'"
            )
        if len(self.round.after) != 1:
            raise NotVisible(
                f"the snapshot 'global' needs a single global model, but this round has "
                f"{len(self.round.after)}; use the snapshot 'local'"
            )
        (model,) = self.round.after.values()
        return model

    @cached_property
    def global_outputs(self) -> Tensor:
        """Outputs of the global model on all samples, in evaluation mode."""
        return outputs_of(self.global_model, self.samples.features, self.device)

    @cached_property
    def local_models(self) -> list[Model]:
        """Each client's model after training."""
        models = [exposed.local for exposed in self._each_exposed() if exposed.local is not None]
        return _require_all(models, self.clients, "the clients' models after training")

    @cached_property
    def bases(self) -> Int[Tensor, " clients"]:
        """Number of each client's base model; equal for clients that were sent the same model."""
        bases = [outline.base for outline in self._outlines if outline.base is not None]
        # With hidden base models all clients form one group.
        is_visible = len(bases) == len(self.clients)
        numbers = group_models(bases).numbers if is_visible else [0] * len(self.clients)
        return torch.tensor(numbers, dtype=torch.int64)

    @property
    def against_updates(self) -> AgainstUpdates:
        """Gradients compared with updates, in one pass over the samples for each base model."""
        self._refuse_hidden_updates()
        return self._gradients

    def against_updates_by(self, products: Products) -> AgainstUpdates:
        """Return :attr:`against_updates` with another function for the products."""
        self._refuse_hidden_updates()
        return self._by(products)

    @property
    def gradient_norms(self) -> Float[Tensor, "clients samples"]:
        """Norm of every sample's gradient at the model each client was sent."""
        return self._gradients.gradient_norms

    @cached_property
    def _gradients(self) -> AgainstUpdates:
        """The pass that both properties share; inner products are 0 if the view hides updates."""
        # A late import, since signals of outputs need no gradients.
        from fedaudit.signals.gradients import gradient_products

        kept = self.received.gradients if self.received is not None else None
        return self._by(partial(gradient_products, kept=kept))

    def _refuse_hidden_updates(self) -> None:
        visible = [outline for outline in self._outlines if outline.shows_update]
        _require_all(visible, self.clients, "the clients' updates")

    def _by(self, products_of: Products) -> AgainstUpdates:
        bases = [outline.base for outline in self._outlines if outline.base is not None]
        _require_all(bases, self.clients, "the models the clients were sent")
        shape = (len(self.clients), len(self.samples))
        dots = torch.zeros(shape, dtype=torch.float64)
        norms = torch.empty(shape, dtype=torch.float64)
        lengths = torch.zeros(len(self.clients), dtype=torch.float64)
        for group in self._groups():
            updates = [self.round.exposed[self.clients[i]].update for i in group.tolist()]
            visible: list[Params] = [update for update in updates if update is not None]
            products = products_of(
                bases[int(group[0])],
                visible,
                self.samples.features,
                self.samples.targets,
                workers=self.workers,
                device=self.device,
            )
            norms[group] = products.squared_norms.double().sqrt()
            if len(visible) == len(updates):
                dots[group] = products.dots.double()
                lengths[group] = products.update_norms.double()
        return AgainstUpdates(dots, norms, lengths)

    def _groups(self) -> Iterator[Int[Tensor, " group"]]:
        """Yield positions of clients with the same base model, in parts that one pass measures."""
        for number in range(int(self.bases.max()) + 1):
            group = (self.bases == number).nonzero().flatten()
            size = _CLIENTS_AT_ONCE if len(group) <= _CLIENTS_AT_ONCE else _CLIENTS_PER_PART
            yield from torch.split(group, size)

    @property
    def gradient_scales(self) -> list[float | None]:
        """Factor from each client's negative update to a sum of gradients; None if unknown."""
        return [outline.gradient_scale for outline in self._outlines]

    @cached_property
    def _outlines(self) -> list[_Outline]:
        """Outlines of all clients, since iterating over a large round's clients is expensive."""
        return [
            _Outline(exposed.base, exposed.update is not None, exposed.gradient_scale)
            for exposed in self._each_exposed()
        ]

    def _each_exposed(self) -> Iterator[Exposed]:
        """Yield each client's part of the round; a large round recomputes it on each access."""
        return (self.round.exposed[client] for client in self.clients)


@runtime_checkable
class Signal(Protocol):
    """Number for every client and sample of a round; larger values indicate members.

    Attributes:
        name: Name of the stored measurements; it differs for different settings.
        needs: What the adversary must see.
    """

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> Sees: ...

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        """Measure the signal; raise if the view hides a part that it needs."""
        ...


@runtime_checkable
class ReadsLayers(Protocol):
    """Signal of a network's layers, which not every network has."""

    def refuse_misfit(self, model: Model) -> None:
        """Raise, before any training, if the signal cannot be measured on a model."""
        ...


def _require_all(parts: list[Part], clients: Sequence[ClientId], what: str) -> list[Part]:
    if len(parts) < len(clients):
        raise NotVisible(f"this view hides {what}, so this signal cannot be measured")
    return parts
