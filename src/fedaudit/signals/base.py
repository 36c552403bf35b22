"""Interface of signals, and results of a round that several signals use.

Some of these results depend only on the received model, and can be computed while clients train.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core.devices import CPU
from fedaudit.core.errors import NotVisible
from fedaudit.core.modules import outputs_of
from fedaudit.core.values import Capability, ClientId, Model, Params, Samples
from fedaudit.observe.round import ObservedModels, Round, group_models, map_clients

if TYPE_CHECKING:
    from fedaudit.signals.gradients import GradientProducts
    from fedaudit.signals.kernels.cache import ChunkCache
MAX_BYTES = 1 << 30
"""Memory for cached results. Results that do not fit are computed when the update is known."""


class ReceivedModelCache:
    """Cache of what several signals compute from the received model and the audited samples.

    Results are computed with the same operations and batches as in a measurement after the round,
    so signals are bitwise equal.

    Attributes:
        model: The received model.
        samples: The samples to measure.
    """

    def __init__(self, model: Model, samples: Samples, max_bytes: int = MAX_BYTES) -> None:
        self.model, self.samples = model, samples
        self._free_bytes = max_bytes
        self._gradient_cache: ChunkCache | None = None
        self._inputs: dict[str, list[Tensor]] = {}

    @property
    def gradient_cache(self) -> "ChunkCache | None":
        """Cached parts of gradient signals; None if they are not cached."""
        return self._gradient_cache

    def inputs(self, layer: str, base: Model) -> list[Tensor] | None:
        """Return the cached inputs of a layer.

        Returns:
            None if the inputs are not cached, or if ``base`` is not the model of this cache.
        """
        return self._inputs.get(layer) if self.model is base else None

    def cache_gradients(self) -> Iterator[None]:
        """Compute and cache gradient results, one batch per iteration, until the memory is full."""
        # Imported here, as signals from outputs do not need it.
        from fedaudit.signals.gradients import cache_chunks

        if self._gradient_cache is None:
            features, targets = self.samples.features, self.samples.targets
            for cache in cache_chunks(self.model, features, targets, self._free_bytes):
                self._gradient_cache = cache
                yield
            if self._gradient_cache is not None:
                self._free_bytes -= self._gradient_cache.bytes

    def cache_inputs(self, layer: str, compute: Callable[[], list[Tensor]]) -> Iterator[None]:
        """Compute a layer's inputs in one iteration, and cache them if there is enough memory."""
        if layer not in self._inputs:
            inputs = compute()
            size = sum(batch.nbytes for batch in inputs)
            if size <= self._free_bytes:
                self._inputs[layer] = inputs
                self._free_bytes -= size
            yield


@runtime_checkable
class PreparableSignal(Protocol):
    """Signal of which a part can be computed before the clients' updates are known."""

    def prepare(self, received: ReceivedModelCache) -> Iterator[None]:
        """Compute and cache this part; the caller may stop after any iteration."""
        ...


Value = TypeVar("Value")
ComputeProducts: TypeAlias = Callable[..., "GradientProducts"]
"""Function that computes products of updates and samples' gradients.

It has the parameters ``base``, ``updates``, ``features`` and ``labels``, and the keywords
``workers`` and ``device``, with the meaning that they have for :func:`gradient_products`.
"""

_MAX_CLIENTS_PER_PASS = 256
"""Largest number of clients whose updates are processed in one pass over the samples."""

_CLIENTS_PER_SPLIT_PASS = 64
"""Number of clients per pass if there are more than ``_MAX_CLIENTS_PER_PASS``. The size of a pass
may change the last bits of results. It therefore depends only on the number of clients."""


class _ClientSummary(NamedTuple):
    """Information about a client in a round, without the client's large tensors.

    Attributes:
        base: The model that the client received; None if hidden. Clients may share it.
        shows_update: True if the client's update is visible.
        gradient_scale: Factor that turns the negative update into a sum of gradients; None if
            unknown.
    """

    base: Model | None
    shows_update: bool
    gradient_scale: float | None


class UpdateProducts(NamedTuple):
    """Products of updates and of samples' gradients at the received models.

    Attributes:
        dots: Inner product of each update (local minus received model) and each gradient.
        gradient_norms: Euclidean norm of each gradient.
        update_norms: Euclidean norm of each update.
    """

    dots: Float[Tensor, "clients samples"]
    gradient_norms: Float[Tensor, "clients samples"]
    update_norms: Float[Tensor, " clients"]


@dataclass(frozen=True)
class VisibleRound:
    """Visible part of a round, with the samples to measure.

    Results that several signals use are computed once, on first use. Methods and properties raise
    NotVisible if the view hides data that they need.

    Attributes:
        round: The round as the adversary's view shows it.
        samples: The samples to measure.
        workers: Number of threads. It does not change results.
        device: Device on which models run.
        received: Results that were computed from a received model before the round ended; None if
            there are none. They do not change signals.
    """

    round: Round
    samples: Samples
    workers: int = 1
    device: torch.device = CPU
    received: ReceivedModelCache | None = None

    @cached_property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients of the round in ascending order, which is the first axis of every signal."""
        return tuple(sorted(self.round.observed))

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
                "snapshot = 'global' measures the global model after each round, which this view "
                "hides; set snapshot = 'local' to measure the clients' models"
            )
        if len(self.round.after) != 1:
            raise NotVisible(
                "snapshot = 'global' measures a single global model, but this round has "
                f"{len(self.round.after)}; set snapshot = 'local' to measure the clients' models"
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
        models = [
            observed.local for observed in self._iterate_observed() if observed.local is not None
        ]
        return _raise_if_hidden(models, self.clients, "the clients' models after training")

    @cached_property
    def bases(self) -> Int[Tensor, " clients"]:
        """Position of the model that each client received in `received_models`.

        If the view hides received models, it is 0 for all clients.
        """
        bases = [summary.base for summary in self._summaries if summary.base is not None]
        if len(bases) < len(self.clients):
            # If received models are hidden, all clients form one group.
            return torch.zeros(len(self.clients), dtype=torch.int64)
        return torch.tensor(group_models(bases).numbers, dtype=torch.int64)

    @cached_property
    def received_models(self) -> list[Model]:
        """The distinct models that clients received. `bases` gives each client's position here."""
        bases = [summary.base for summary in self._summaries if summary.base is not None]
        _raise_if_hidden(bases, self.clients, "the models the clients were sent")
        return group_models(bases).distinct

    @cached_property
    def received_outputs(self) -> list[Tensor]:
        """Outputs of each distinct received model on all samples, in evaluation mode."""
        features = self.samples.features
        return [outputs_of(model, features, self.device) for model in self.received_models]

    @property
    def update_products(self) -> UpdateProducts:
        """Products of gradients and updates, from one pass over the samples per received model."""
        self._raise_if_updates_hidden()
        return self._products

    def compute_update_products(self, compute: ComputeProducts) -> UpdateProducts:
        """Compute products like :attr:`update_products` with another function."""
        self._raise_if_updates_hidden()
        return self._compute_products(compute)

    def with_control_variates_as_updates(self) -> "VisibleRound":
        """Return the round with the clients' control variates in place of their updates."""
        visible = [m.control_variate for m in self._iterate_observed() if m.control_variate]
        _raise_if_hidden(visible, self.clients, "the clients' control variates")
        observed = map_clients(
            self.round.observed,
            lambda client, models: replace(models, update=models.control_variate),
        )
        return replace(self, round=replace(self.round, observed=observed))

    @property
    def gradient_norms(self) -> Float[Tensor, "clients samples"]:
        """Norm of every sample's gradient at the model that each client received."""
        return self._products.gradient_norms

    @cached_property
    def _products(self) -> UpdateProducts:
        """Products of gradients and updates; inner products are 0 if the view hides updates."""
        # Imported here, as signals from outputs do not need it.
        from fedaudit.signals.gradients import gradient_products

        cache = self.received.gradient_cache if self.received is not None else None
        return self._compute_products(partial(gradient_products, cache=cache))

    def _raise_if_updates_hidden(self) -> None:
        visible = [summary for summary in self._summaries if summary.shows_update]
        _raise_if_hidden(visible, self.clients, "the clients' updates")

    def _compute_products(self, compute: ComputeProducts) -> UpdateProducts:
        bases = [summary.base for summary in self._summaries if summary.base is not None]
        _raise_if_hidden(bases, self.clients, "the models the clients were sent")
        shape = (len(self.clients), len(self.samples))
        dots = torch.zeros(shape, dtype=torch.float64)
        gradient_norms = torch.empty(shape, dtype=torch.float64)
        update_norms = torch.zeros(len(self.clients), dtype=torch.float64)
        for group in self._client_groups():
            updates = [self.round.observed[self.clients[i]].update for i in group.tolist()]
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
        return UpdateProducts(dots, gradient_norms, update_norms)

    def _client_groups(self) -> Iterator[Int[Tensor, " group"]]:
        """Yield positions of the clients of each pass, which have the same base model."""
        for number in range(int(self.bases.max()) + 1):
            group = (self.bases == number).nonzero().flatten()
            is_split = len(group) > _MAX_CLIENTS_PER_PASS
            yield from torch.split(group, _CLIENTS_PER_SPLIT_PASS if is_split else len(group))

    @property
    def gradient_scales(self) -> list[float | None]:
        """Factors that turn negated updates into sums of gradients; None if unknown."""
        return [summary.gradient_scale for summary in self._summaries]

    @cached_property
    def _summaries(self) -> list[_ClientSummary]:
        """Summaries of all clients. Each access to a client of a large round is expensive."""
        return [
            _ClientSummary(observed.base, observed.update is not None, observed.gradient_scale)
            for observed in self._iterate_observed()
        ]

    def _iterate_observed(self) -> Iterator[ObservedModels]:
        return (self.round.observed[client] for client in self.clients)


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
    def needs(self) -> Capability: ...

    def __call__(self, visible: VisibleRound) -> Float[Tensor, "clients samples"]:
        """Measure the signal; raise NotVisible if the view hides data that it needs."""
        ...


@runtime_checkable
class LayerSignal(Protocol):
    """Signal that needs layers of a certain type, which not every network has."""

    def raise_if_misfit(self, model: Model) -> None:
        """Raise, before any training, if the signal cannot be measured on a model."""
        ...


def _raise_if_hidden(visible: list[Value], clients: Sequence[ClientId], data: str) -> list[Value]:
    """Return the visible values; raise if the value of a client is missing."""
    if len(visible) < len(clients):
        raise NotVisible(f"this view hides {data}, so this signal cannot be measured")
    return visible
