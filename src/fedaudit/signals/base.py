"""Interface of signals, and results that several signals of a round share."""

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
"""Function with the parameters of :func:`gradient_products` from ``base`` to ``device``."""


_MAX_CLIENTS_PER_PASS = 256
"""Largest number of clients whose updates are processed in one pass over the samples."""

_CLIENTS_PER_SPLIT_PASS = 64
"""Clients of each pass if there are more than that. The size of a pass may change the last bits of
results. Therefore, it depends only on the number of clients."""


class _ClientSummary(NamedTuple):
    """What is visible of a client in a round, without the client's own large tensors.

    Attributes:
        base: The model that the client received; None if hidden. Clients may share it.
        shows_update: True if the client's update is visible.
        gradient_scale: As in :class:`~fedaudit.observe.round.Exposed`.
    """

    base: Model | None
    shows_update: bool
    gradient_scale: float | None


class AgainstUpdates(NamedTuple):
    """Products of updates and per-sample gradients; gradients are at the received models.

    Attributes:
        dots: Inner product of each update (local minus received model) and each gradient.
        gradient_norms: Euclidean norm of each gradient.
        update_norms: Euclidean norm of each update.
    """

    dots: Float[Tensor, "clients samples"]
    gradient_norms: Float[Tensor, "clients samples"]
    update_norms: Float[Tensor, " clients"]


@dataclass(frozen=True)
class Seen:
    """Visible part of a round, with the samples to measure.

    Results that several signals use are computed once, on first use. Methods and properties raise
    NotVisible if the view hides what they need.

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
        models = [exposed.local for exposed in self._iterate_exposed() if exposed.local is not None]
        return _require_all(models, self.clients, "the clients' models after training")

    @cached_property
    def bases(self) -> Int[Tensor, " clients"]:
        """Number of the model that each client received; equal for clients with the same model."""
        bases = [summary.base for summary in self._summaries if summary.base is not None]
        # If received models are hidden, all clients form one group.
        is_visible = len(bases) == len(self.clients)
        numbers = group_models(bases).numbers if is_visible else [0] * len(self.clients)
        return torch.tensor(numbers, dtype=torch.int64)

    @property
    def against_updates(self) -> AgainstUpdates:
        """Products of gradients and updates, from one pass over the samples per received model."""
        self._refuse_hidden_updates()
        return self._products

    def against_updates_by(self, products: Products) -> AgainstUpdates:
        """Return products like :attr:`against_updates` that another function computes."""
        self._refuse_hidden_updates()
        return self._compute_products(products)

    @property
    def gradient_norms(self) -> Float[Tensor, "clients samples"]:
        """Norm of every sample's gradient at the model that each client received."""
        return self._products.gradient_norms

    @cached_property
    def _products(self) -> AgainstUpdates:
        """Products of gradients and updates; inner products are 0 if the view hides updates."""
        # Imported here, as signals from outputs do not need it.
        from fedaudit.signals.gradients import gradient_products

        kept = self.received.gradients if self.received is not None else None
        return self._compute_products(partial(gradient_products, kept=kept))

    def _refuse_hidden_updates(self) -> None:
        visible = [summary for summary in self._summaries if summary.shows_update]
        _require_all(visible, self.clients, "the clients' updates")

    def _compute_products(self, compute: Products) -> AgainstUpdates:
        bases = [summary.base for summary in self._summaries if summary.base is not None]
        _require_all(bases, self.clients, "the models the clients were sent")
        shape = (len(self.clients), len(self.samples))
        dots = torch.zeros(shape, dtype=torch.float64)
        gradient_norms = torch.empty(shape, dtype=torch.float64)
        update_norms = torch.zeros(len(self.clients), dtype=torch.float64)
        for group in self._client_groups():
            updates = [self.round.exposed[self.clients[i]].update for i in group.tolist()]
            visible: list[Params] = [update for update in updates if update is not None]
            products = compute(
                bases[int(group[0])],
                visible,
                self.samples.features,
                self.samples.targets,
                workers=self.workers,
                device=self.device,
            )
            gradient_norms[group] = products.squared_norms.double().sqrt()
            if len(visible) == len(updates):
                dots[group] = products.dots.double()
                update_norms[group] = products.update_norms.double()
        return AgainstUpdates(dots, gradient_norms, update_norms)

    def _client_groups(self) -> Iterator[Int[Tensor, " group"]]:
        """Yield positions of clients that one pass measures: clients with the same base model."""
        for number in range(int(self.bases.max()) + 1):
            group = (self.bases == number).nonzero().flatten()
            size = (
                _MAX_CLIENTS_PER_PASS
                if len(group) <= _MAX_CLIENTS_PER_PASS
                else _CLIENTS_PER_SPLIT_PASS
            )
            yield from torch.split(group, size)

    @property
    def gradient_scales(self) -> list[float | None]:
        """Factors that turn negated updates into sums of gradients; None if unknown."""
        return [summary.gradient_scale for summary in self._summaries]

    @cached_property
    def _summaries(self) -> list[_ClientSummary]:
        """Summaries of all clients, since each access to a client of a large round is expensive."""
        return [
            _ClientSummary(exposed.base, exposed.update is not None, exposed.gradient_scale)
            for exposed in self._iterate_exposed()
        ]

    def _iterate_exposed(self) -> Iterator[Exposed]:
        return (self.round.exposed[client] for client in self.clients)


@runtime_checkable
class Signal(Protocol):
    """Function that measures a value for every client and sample; larger values indicate members.

    Attributes:
        name: Name of the stored measurements; it differs for different settings.
        needs: What the adversary must see.
    """

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> Sees: ...

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        """Measure the signal; raise NotVisible if the view hides what it needs."""
        ...


@runtime_checkable
class ReadsLayers(Protocol):
    """Signal that needs layers of a certain type, which not every network has."""

    def refuse_misfit(self, model: Model) -> None:
        """Raise, before any training, if the signal cannot be measured on a model."""
        ...


def _require_all(visible: list[Part], clients: Sequence[ClientId], hidden: str) -> list[Part]:
    """Return one value per client, or raise if some are hidden."""
    if len(visible) < len(clients):
        raise NotVisible(f"this view hides {hidden}, so this signal cannot be measured")
    return visible
