"""Signals from a model's outputs, for which query access to the model is enough."""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import Share
from fedaudit.core.errors import NotVisible
from fedaudit.core.tasks import NextTokens, Reading
from fedaudit.core.values import Model, Sees
from fedaudit.signals.base import Seen

Outputs = Float[Tensor, "samples ..."]
Targets = Shaped[Tensor, "samples ..."]
Classes = Int[Tensor, " samples"]
Values = Float[Tensor, " samples"]

LOG_FLOOR = 1e-30
"""Lower limit of the arguments of logarithms (Song & Mittal's code)."""


LARGEST_LOGIT = 1e6
"""Limit of a scaled logit, for a model that gives the other classes no probability."""


@arguments.dataclass(frozen=True)
class OutputSignal:
    """Signal of a sample's label and of a model's outputs on it after training.

    Attributes:
        snapshot: "local" for each client's model, "global" for the server's.
    """

    snapshot: Literal["local", "global"] = "local"

    kind: ClassVar[str]
    reads: ClassVar[Reading] = Reading.POSTERIOR

    @property
    def needs(self) -> Sees:
        """Outputs of the clients' models, or the global model."""
        return Sees.NEXT_MODEL if self.snapshot == "global" else Sees.PREDICTIONS

    @property
    def name(self) -> str:
        """Name of the stored measurements; signals of clients' models have the plain name."""
        return self.kind if self.snapshot == "local" else f"global_{self.kind}"

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
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
        """Return the signal of one model, in double precision."""


@arguments.dataclass(frozen=True)
class Loss(OutputSignal):
    """Negative loss of the client's model after training.

    Source: Yeom et al. 2018 (threshold on the loss); FedMIA section 3.2 takes it as one of its two
    measurements.
    """

    kind = "loss"
    reads = Reading.NOTHING

    def of(self, model: Model, outputs: Outputs, targets: Targets) -> Values:
        return -model.architecture.loss(outputs, targets).double()


@arguments.dataclass(frozen=True)
class Confidence(OutputSignal):
    """Probability of the true class under the client's model after training.

    Source: CoFedMID section 5.1 (FTA-C follows it over rounds).
    """

    kind = "confidence"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        return outputs.double().softmax(1).gather(1, targets[:, None]).squeeze(1)


@arguments.dataclass(frozen=True)
class ScaledLogit(OutputSignal):
    """log(p / (1 - p)) of the model's probability p of the true class.

    Over similarly trained models it is approximately normal, unlike the loss.

    Source: Carlini et al. 2022 (LiRA), section V-B; from logits, as in section VI-A.
    """

    kind = "scaled_logit"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        logits = outputs.double()
        true = logits.gather(1, targets[:, None])
        others = logits.scatter(1, targets[:, None], -torch.inf)
        return (true.squeeze(1) - others.logsumexp(1)).clamp(-LARGEST_LOGIT, LARGEST_LOGIT)


@arguments.dataclass(frozen=True)
class MaxPosterior(OutputSignal):
    """Largest class probability under the client's model after training.

    Source: SeqMIA, second of the five metrics (Salem et al. 2019).
    """

    kind = "max_posterior"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        return outputs.double().softmax(1).amax(1)


@arguments.dataclass(frozen=True)
class PosteriorSpread(OutputSignal):
    """Standard deviation of the client's model's probabilities over the classes.

    Source: SeqMIA, third of the five metrics (population standard deviation).
    """

    kind = "posterior_std"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        return outputs.double().softmax(1).std(1, correction=0)


@arguments.dataclass(frozen=True)
class Entropy(OutputSignal):
    """Negative entropy, in nats, of the client's model's class probabilities.

    Source: SeqMIA, fourth of the five metrics.
    Differs: The sign is reversed, so that the signal is larger for members.
    """

    kind = "minus_entropy"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        log_p = outputs.double().log_softmax(1)
        return (log_p.exp() * log_p).sum(1)


@arguments.dataclass(frozen=True)
class ModifiedEntropy(OutputSignal):
    """Negative modified entropy, an entropy that takes the true class into account.

    With p the probability of the true class, it sums -(1 - p) log p and, for every other class, -p
    log(1 - p). It is zero for a confident correct model, and large for a confident wrong one.

    Source: Song & Mittal 2021, section 3.2; SeqMIA, last of the five metrics.
    Differs: The sign is reversed, so that the signal is larger for members.
    """

    kind = "minus_modified_entropy"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        p = outputs.double().softmax(1)
        true = p.gather(1, targets[:, None]).squeeze(1)
        # Summed over the other classes, since 1 - p would round to 0 for a confident model.
        others = p.scatter(1, targets[:, None], 0.0)
        right = others.sum(1) * true.clamp_min(LOG_FLOOR).log()
        wrong = others * (1 - others).clamp_min(LOG_FLOOR).log()
        return right + wrong.sum(1)


@arguments.dataclass(frozen=True)
class _LeastLikely(OutputSignal):
    """Mean of a token score over the tokens of a sequence with the lowest scores.

    Attributes:
        share: Share of a sequence's tokens, in (0, 1]; at least one token is used.
    """

    share: Share = 0.2
    reads: ClassVar[Reading] = Reading.TOKENS

    @property
    def name(self) -> str:
        return f"{super().name}_{self.share:g}"

    def of(self, model: Model, outputs: Outputs, targets: Tensor) -> Values:
        task = model.architecture.task
        if task.tokens is None:
            raise NotVisible(f"the task {task.name!r} has no tokens, which {self.name!r} needs")
        read = task.tokens(outputs, targets)
        scores = self.scores(read).masked_fill(~read.counted, float("inf")).sort(1).values
        count = (self.share * read.counted.sum(1)).long().clamp_min(1)
        return scores.cumsum(1).gather(1, count[:, None] - 1)[:, 0] / count

    @abstractmethod
    def scores(self, read: NextTokens) -> Float[Tensor, "samples positions"]:
        """Return a score for every token, in double precision."""


@arguments.dataclass(frozen=True)
class MinK(_LeastLikely):
    """Mean log-probability of the least likely tokens: Min-K%.

    Source: Shi et al. 2024, Eq. (1) (k = 20 %).
    """

    kind = "min_k"

    def scores(self, read: NextTokens) -> Float[Tensor, "samples positions"]:
        logs = read.logits.double().log_softmax(2)
        return logs.gather(2, read.tokens[..., None])[..., 0]


@arguments.dataclass(frozen=True)
class MinKPlusPlus(_LeastLikely):
    """Mean standardised log-probability of the least likely tokens: Min-K%++.

    A token's log-probability is standardised by the mean and the standard deviation of the
    log-probability of a token drawn from the model at its position.

    Source: Zhang et al. 2025, Eqs. (3) and (4).
    Differs: The variance is at least 1e-12, where the model is certain.
    """

    kind = "min_k_plus_plus"

    def scores(self, read: NextTokens) -> Float[Tensor, "samples positions"]:
        logs = read.logits.double().log_softmax(2)
        chances = logs.exp()
        mean = (chances * logs).sum(2)
        spread = ((chances * logs.square()).sum(2) - mean.square()).clamp_min(1e-12).sqrt()
        return (logs.gather(2, read.tokens[..., None])[..., 0] - mean) / spread
