"""The interface of signals, and the work that several signals of a round share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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

if TYPE_CHECKING:
    from fedaudit.signals.gradients import GradientProducts

Part = TypeVar("Part")
Products: TypeAlias = Callable[..., "GradientProducts"]
"""What takes the arguments of :func:`gradient_products` that a round has, ``device`` the last."""


_TOGETHER = 256
"""Clients whose updates are laid out together for a pass over the samples."""

_APART = 64
"""Clients of a pass where there are more than so many: another number may change last bits, so
that both depend on the number of clients alone."""


class _Outline(NamedTuple):
    """A client's part of a round without what is large: a base model is shared by many.

    Attributes:
        base: The model the client was sent; None if hidden.
        shows_update: Whether its update is to be seen.
        gradient_scale: As in :class:`~fedaudit.observe.round.Exposed`.
    """

    base: Model | None
    shows_update: bool
    gradient_scale: float | None


class AgainstUpdates(NamedTuple):
    """Every sample's gradient at the model a client was sent, against that client's update.

    Attributes:
        dots: Inner product of update (local minus base) and gradient.
        gradient_norms: Length of the gradient.
        update_norms: Length of the update.
    """

    dots: Float[Tensor, "clients samples"]
    gradient_norms: Float[Tensor, "clients samples"]
    update_norms: Float[Tensor, " clients"]


@dataclass(frozen=True)
class Seen:
    """A round in front of the samples to be measured; shared work is done once, when asked for.

    Attributes:
        round: As the adversary's view shows it.
        samples: What to measure.
        workers: Threads to use; changes no result.
        device: Where models are run.
    """

    round: Round
    samples: Samples
    workers: int = 1
    device: torch.device = CPU

    @cached_property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients of the round, ascending: the first axis of every signal."""
        return tuple(sorted(self.round.exposed))

    @cached_property
    def outputs(self) -> list[Tensor]:
        """Each client's model's outputs on all samples, in evaluation mode.

        Raises:
            NotVisible: The view hides the clients' models.
        """
        features = self.samples.features
        return [outputs_of(model, features, self.device) for model in self.local_models]

    @property
    def global_model(self) -> Model:
        """The one model that the server makes of the round.

        Raises:
            NotVisible: It is hidden, or there are several.
        """
        if not self.round.after:
            raise NotVisible(
                "the global models after the rounds are hidden in this view, so that the snapshot "
                "'global' cannot be measured; use the snapshot 'local'"
            )
        if len(self.round.after) != 1:
            raise NotVisible(
                f"the snapshot 'global' follows one global model, but {len(self.round.after)} "
                "are to be seen after this round; use the snapshot 'local'"
            )
        (model,) = self.round.after.values()
        return model

    @cached_property
    def global_outputs(self) -> Tensor:
        """The global model's outputs on all samples, in evaluation mode.

        Raises:
            NotVisible: It is hidden, or there are several.
        """
        return outputs_of(self.global_model, self.samples.features, self.device)

    @cached_property
    def local_models(self) -> list[Model]:
        """Each client's model after training.

        Raises:
            NotVisible: The view hides them.
        """
        models = [one.local for one in self._each_exposed() if one.local is not None]
        return _all_there(models, self.clients, "the clients' models after training")

    @cached_property
    def bases(self) -> Int[Tensor, " clients"]:
        """For each client the number of its base model; equal for clients sent the same one."""
        bases = [one.base for one in self._outlines if one.base is not None]
        # Hidden bases cannot tell clients apart: all that is left is one group.
        numbers = (
            group_models(bases).numbers
            if len(bases) == len(self.clients)
            else [0] * len(self.clients)
        )
        return torch.tensor(numbers, dtype=torch.int64)

    @property
    def against_updates(self) -> AgainstUpdates:
        """Gradients against updates, one pass over the samples for each distinct base model.

        Raises:
            NotVisible: The view hides the base models or the updates.
        """
        self._refuse_hidden_updates()
        return self._gradients

    def against_updates_by(self, products: Products) -> AgainstUpdates:
        """As :attr:`against_updates`, by other products of gradients and updates.

        Raises:
            NotVisible: The view hides the base models or the updates.
        """
        self._refuse_hidden_updates()
        return self._by(products)

    @property
    def gradient_norms(self) -> Float[Tensor, "clients samples"]:
        """Length of every sample's gradient at the model each client was sent.

        Raises:
            NotVisible: The view hides the base models.
        """
        return self._gradients.gradient_norms

    @cached_property
    def _gradients(self) -> AgainstUpdates:
        """The pass behind both; inner products are 0 where a view hides the updates."""
        # Not at the top: signals of outputs need no gradients.
        from fedaudit.signals.gradients import gradient_products

        return self._by(gradient_products)

    def _refuse_hidden_updates(self) -> None:
        shown = [one for one in self._outlines if one.shows_update]
        _all_there(shown, self.clients, "the clients' updates")

    def _by(self, products_of: Products) -> AgainstUpdates:
        bases = [one.base for one in self._outlines if one.base is not None]
        _all_there(bases, self.clients, "the models the clients were sent")
        shape = (len(self.clients), len(self.samples))
        dots = torch.zeros(shape, dtype=torch.float64)
        norms = torch.empty(shape, dtype=torch.float64)
        lengths = torch.zeros(len(self.clients), dtype=torch.float64)
        for group in self._groups():
            updates = [self.round.exposed[self.clients[i]].update for i in group.tolist()]
            shown: list[Params] = [update for update in updates if update is not None]
            products = products_of(
                bases[int(group[0])],
                shown,
                self.samples.features,
                self.samples.targets,
                workers=self.workers,
                device=self.device,
            )
            norms[group] = products.squared_norms.double().sqrt()
            if len(shown) == len(updates):
                dots[group] = products.dots.double()
                lengths[group] = products.update_norms.double()
        return AgainstUpdates(dots, norms, lengths)

    def _groups(self) -> Iterator[Int[Tensor, " group"]]:
        """Places of clients that were sent the same model, as many as are measured together."""
        for number in range(int(self.bases.max()) + 1):
            group = (self.bases == number).nonzero().flatten()
            yield from torch.split(group, _TOGETHER if len(group) <= _TOGETHER else _APART)

    @property
    def gradient_scales(self) -> list[float | None]:
        """Factor from minus each update to a sum of gradients; None where unknown."""
        return [one.gradient_scale for one in self._outlines]

    @cached_property
    def _outlines(self) -> list[_Outline]:
        """Outline of each client's part; a round of many clients is gone through once for it."""
        return [
            _Outline(one.base, one.update is not None, one.gradient_scale)
            for one in self._each_exposed()
        ]

    def _each_exposed(self) -> Iterator[Exposed]:
        """Each client's part of the round, one at a time: a large round makes each anew."""
        return (self.round.exposed[client] for client in self.clients)


@runtime_checkable
class Signal(Protocol):
    """A number for every client and sample of a round; larger means likelier a member.

    Attributes:
        name: Under which measurements are kept; differs for different settings.
        needs: What the adversary must see.
    """

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> Sees: ...

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        """Measures; refuses when a part that it needs is hidden."""
        ...


@runtime_checkable
class ReadsLayers(Protocol):
    """A signal of a network's layers, which not every network has."""

    def refuse_misfit(self, model: Model) -> None:
        """Refuses a model of which it cannot be measured, before anything is trained."""
        ...


def _all_there(parts: list[Part], clients: Sequence[ClientId], what: str) -> list[Part]:
    if len(parts) < len(clients):
        raise NotVisible(f"{what} are hidden in this view, so this signal cannot be measured")
    return parts
