"""A malicious client: in some rounds it sends a poison on probed samples, not its training."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedaudit.core.devices import samples_on
from fedaudit.core.values import Batch, Samples, scaled
from fedaudit.fl.hooks import Defense, Turn
from fedaudit.observe.round import Update, Upload


@dataclass(frozen=True)
class PoisonedUpload(Defense):
    """Trains on probed samples in poisoned rounds, to raise the loss on them; honest in others.

    Attributes:
        probes: The probed samples, with the labels that the client trains them on.
        rounds: The poisoned ones.
        ascends_to: The loss up to which the client climbs on each sample; 0 for descent, on labels
            that are wrong.
        strength: Factor of what is sent in these rounds.

    Source: Nasr et al. 2019, active attacks by gradient ascent; Mo et al. 2025 (FedPoisonMIA), for
        wrong labels.
    Differs: The ascent is the client's local training with its steps turned round, not one step at
        a rate of its own, and leaves out samples whose loss is high already, as it would not stay
        finite. FedPoisonMIA's choice of an update that passes for an honest one among others'
        is left out: no aggregation here tells outliers.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update,)

    probes: Samples
    rounds: frozenset[int]
    ascends_to: float = 0.0
    strength: float = 1.0

    def acts_in(self, hook: str) -> bool:
        """False of the loss where there is no ascent."""
        return super().acts_in(hook) and (hook != "loss" or self.ascends_to > 0)

    def select(self, data: Samples, turn: Turn) -> Samples:
        """Each round: the probes in poisoned ones, the client's own samples in others."""
        return samples_on(self.probes, turn.device) if turn.round in self.rounds else data

    def loss(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor:
        """Each step: minus the loss, up to where the ascent ends."""
        if not self.ascends_to or turn.round not in self.rounds:
            return super().loss(outputs, batch, turn)
        losses = turn.received.architecture.loss(outputs, batch.y)
        return -losses.clamp(max=self.ascends_to).mean()

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round: lengthened in poisoned ones."""
        if turn.round not in self.rounds:
            return upload
        return replace(upload, values=scaled(upload.values, self.strength))
