"""Signals from a model's outputs: what anybody who can query the model could measure."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.tasks import Reading
from fedaudit.core.values import Model, Sees
from fedaudit.signals.base import Seen

Outputs = Float[Tensor, "samples ..."]
Targets = Shaped[Tensor, "samples ..."]
Classes = Int[Tensor, " samples"]
Values = Float[Tensor, " samples"]

LOG_FLOOR = 1e-30
"""Logarithms are taken of nothing smaller (Song & Mittal's code)."""


_LARGEST_LOGIT = 1e6
"""A model that leaves the other classes no chance, or has one class, is as sure as that."""


@dataclass(frozen=True)
class OutputSignal:
    """A signal that needs a model's outputs and the label alone, sample by sample.

    Attributes:
        snapshot: Whose model after training is looked at: "local" for each client's own,
            "global" for the one that the server makes of them, the same for all clients.
    """

    snapshot: str = "local"

    kind: ClassVar[str]
    reads: ClassVar[Reading] = Reading.POSTERIOR

    def __post_init__(self) -> None:
        if self.snapshot not in ("local", "global"):
            raise BadInput(
                "snapshot is 'local' (each client's model) or 'global' (the server's), got "
                f"{self.snapshot!r}"
            )

    @property
    def needs(self) -> Sees:
        """Outputs of the clients' models, or the one model that the server makes of them."""
        return Sees.NEXT_MODEL if self.snapshot == "global" else Sees.PREDICTIONS

    @property
    def name(self) -> str:
        """Under which measurements are kept; those of clients' own models have the plain name."""
        return self.kind if self.snapshot == "local" else f"global_{self.kind}"

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        """See :class:`fedaudit.signals.base.Signal`."""
        targets = seen.samples.targets
        if self.snapshot == "global":
            values = self.of(seen.global_model, seen.global_outputs, targets)
            return values.expand(len(seen.clients), -1).clone()
        return torch.stack(
            [
                self.of(model, outputs, targets)
                for model, outputs in zip(seen.local_models, seen.outputs, strict=True)
            ]
        )

    @abstractmethod
    def of(self, model: Model, outputs: Outputs, targets: Targets) -> Values:
        """The signal of one model, in 64 bits."""


@dataclass(frozen=True)
class Loss(OutputSignal):
    """Minus the loss of the client's model after training.

    Attributes:
        snapshot: "local" for each client's own model, "global" for the server's.

    Source: Yeom et al. 2018 (threshold on the loss); FedMIA section 3.2 takes it as one of its
        two measurements.
    """

    kind = "loss"
    reads = Reading.NOTHING

    def of(self, model: Model, outputs: Outputs, targets: Targets) -> Values:
        """See :class:`OutputSignal`."""
        return -model.architecture.loss(outputs, targets).double()


@dataclass(frozen=True)
class Confidence(OutputSignal):
    """Probability that the client's model after training gives to the true class.

    Attributes:
        snapshot: "local" for each client's own model, "global" for the server's.

    Source: CoFedMID section 5.1 (FTA-C follows it over rounds).
    """

    kind = "confidence"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        """See :class:`OutputSignal`."""
        return outputs.double().softmax(1).gather(1, targets[:, None]).squeeze(1)


@dataclass(frozen=True)
class ScaledLogit(OutputSignal):
    """log(p / (1 - p)) of the probability p that the model gives to the true class.

    Over models that were trained alike it is nearly normal, as the loss is not.

    Attributes:
        snapshot: "local" for each client's own model, "global" for the server's.

    Source: Carlini et al. 2022 (LiRA), section V-B; from logits, as in section VI-A.
    """

    kind = "scaled_logit"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        """See :class:`OutputSignal`."""
        logits = outputs.double()
        true = logits.gather(1, targets[:, None])
        others = logits.scatter(1, targets[:, None], -torch.inf)
        return (true.squeeze(1) - others.logsumexp(1)).clamp(-_LARGEST_LOGIT, _LARGEST_LOGIT)


@dataclass(frozen=True)
class MaxPosterior(OutputSignal):
    """Largest probability that the client's model after training gives to any class.

    Attributes:
        snapshot: "local" for each client's own model, "global" for the server's.

    Source: SeqMIA, second of the five metrics (Salem et al. 2019).
    """

    kind = "max_posterior"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        """See :class:`OutputSignal`."""
        return outputs.double().softmax(1).amax(1)


@dataclass(frozen=True)
class PosteriorSpread(OutputSignal):
    """Standard deviation over the classes of the probabilities that the client's model gives.

    Attributes:
        snapshot: "local" for each client's own model, "global" for the server's.

    Source: SeqMIA, third of the five metrics (population standard deviation).
    """

    kind = "posterior_std"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        """See :class:`OutputSignal`."""
        return outputs.double().softmax(1).std(1, correction=0)


@dataclass(frozen=True)
class Entropy(OutputSignal):
    """Minus the entropy, in nats, of the probabilities that the client's model gives.

    Attributes:
        snapshot: "local" for each client's own model, "global" for the server's.

    Source: SeqMIA, fourth of the five metrics.
    Differs: Sign turned, so that it is larger for members.
    """

    kind = "minus_entropy"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        """See :class:`OutputSignal`."""
        log_p = outputs.double().log_softmax(1)
        return (log_p.exp() * log_p).sum(1)


@dataclass(frozen=True)
class ModifiedEntropy(OutputSignal):
    """Minus the modified entropy: an entropy that knows which class is the true one.

    With p the probability of the true class it sums -(1 - p) log p and, for every other class,
    -p log(1 - p): nothing for a model that is sure and right, much for one that is sure and
    wrong.

    Attributes:
        snapshot: "local" for each client's own model, "global" for the server's.

    Source: Song & Mittal 2021, section 3.2; SeqMIA, last of the five metrics.
    Differs: Sign turned, so that it is larger for members.
    """

    kind = "minus_modified_entropy"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        """See :class:`OutputSignal`."""
        p = outputs.double().softmax(1)
        true = p.gather(1, targets[:, None]).squeeze(1)
        # What is left to the other classes, summed: 1 - p would round to 0 for a sure model.
        others = p.scatter(1, targets[:, None], 0.0)
        right = others.sum(1) * true.clamp_min(LOG_FLOOR).log()
        wrong = others * (1 - others).clamp_min(LOG_FLOOR).log()
        return right + wrong.sum(1)
