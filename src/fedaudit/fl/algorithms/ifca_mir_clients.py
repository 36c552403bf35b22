"""IFCA-MIR without trust in the server: clients find out themselves what models give away."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.core import Model, Params, Samples
from fedaudit.defenses.base import Defense, Visit
from fedaudit.defenses.cofedmid.validation import held_out
from fedaudit.errors import BadInput
from fedaudit.fl.algorithms.base import Local
from fedaudit.fl.algorithms.fedavg import received_update
from fedaudit.fl.algorithms.ifca import Ifca, losses, remembered
from fedaudit.fl.algorithms.ifca_mir import GUESS
from fedaudit.fl.algorithms.preference import Preference
from fedaudit.observe.round import Sent
from fedaudit.params import plus

LINE = "line"
"""What a client remembers: the loss up to which it takes samples for members."""


@runtime_checkable
class OwnRisk(Protocol):
    """How a client finds out by its losses what a model gives away."""

    def line(
        self, trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"]
    ) -> float:
        """The loss that best parts samples that the client's model was trained on from others."""
        ...

    def risk(
        self,
        trained: Float[Tensor, " trained"],
        held_out: Float[Tensor, " held_out"],
        line: float,
    ) -> float:
        """Balanced accuracy of that line in a model that the client was sent."""
        ...


class _Sides(NamedTuple):
    """A client's samples."""

    trained: Samples
    held_out: Samples


@dataclass(frozen=True)
class IfcaMirOfClients(Ifca):
    """IFCA-MIR whose clients attack the models that they are sent, each on its own data.

    A client keeps some samples out of training. From its own model of the last round it learns
    which losses tell them from the others, and what is told by that of a model it is sent is that
    model's risk. In its first round it knows of no risk.

    Attributes:
        own_risk: How a client attacks.
        share: About how many of their samples clients hold out, in (0, 1).
        preference: How clients weigh loss and risk.

    Source: IFCA-MIR, section 5.7 (clients' own evaluation, without shadow models).
    Differs: The paper gives the idea only; holding samples out is ours, because without samples
        that were not trained on there is nothing to tell members from.
    """

    own_risk: OwnRisk = field(kw_only=True)
    share: float = 0.1
    preference: Preference = field(default_factory=Preference)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share < 1:
            raise BadInput(f"the share that clients hold out is in (0, 1), got {self.share}")

    def held_out(self, ids: Int[Tensor, " samples"], *, seed: int) -> Bool[Tensor, " samples"]:
        """Which samples no client ever trains on."""
        return held_out(ids, self.share, seed=seed)

    def trained_on(self, data: Samples, visit: Visit) -> Samples:
        """What of its data a client trains on: what it does not hold out."""
        return self._sides(data, visit).trained

    def choose(self, sent: Sent, data: Samples, memory: Params, visit: Visit) -> int:
        """By the client's own weights of loss and of what its own attack finds."""
        sides = self._sides(data, visit)
        known = remembered(memory, LINE, torch.float64, visit.client)
        risks = [
            GUESS if known is None else self._risk(visit, model, sides, float(known))
            for model in sent.models
        ]
        threshold = self.preference.threshold(visit.seed, visit.client)
        loss, risk = losses(sent, sides.trained, visit), torch.tensor(risks, dtype=torch.float64)
        return self.preference.choose(loss, risk, threshold, torch.zeros_like(risk))

    def local(
        self, sent: Sent, data: Samples, memory: Params, defense: Defense, visit: Visit
    ) -> Local:
        """As in IFCA; then the client learns from its own model what gives samples away."""
        local = super().local(sent, data, memory, defense, visit)
        update = received_update(local.upload)
        start = sent.models[update.choice]
        own = Model(start.architecture, plus(start.params, update.values), update.buffers)
        line = self.own_risk.line(*self._losses(visit, own, self._sides(data, visit)))
        return Local(update, {**local.memory, LINE: torch.tensor(line, dtype=torch.float64)})

    def _sides(self, data: Samples, visit: Visit) -> _Sides:
        apart = self.held_out(data.ids, seed=visit.seed)
        sides = _Sides(data.take(~apart), data.take(apart))
        if not (len(sides.trained) and len(sides.held_out)):
            raise BadInput(
                f"client {visit.client} has {len(data)} samples and holds out "
                f"{len(sides.held_out)}, so that it cannot find out what models give away; give "
                "clients more samples, or another share to hold out"
            )
        return sides

    def _risk(self, visit: Visit, model: Model, sides: _Sides, line: float) -> float:
        return self.own_risk.risk(*self._losses(visit, model, sides), line)

    def _losses(self, visit: Visit, model: Model, sides: _Sides) -> tuple[Tensor, Tensor]:
        of_model = visit.at(model).evaluate
        return of_model(sides.trained), of_model(sides.held_out)
