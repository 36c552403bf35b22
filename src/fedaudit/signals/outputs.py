"""Signals from a model's outputs, for which query access to the model is enough."""

import zlib
from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import PositiveFraction
from fedaudit.core.errors import NotVisible
from fedaudit.core.tasks import NextTokens, OutputKind
from fedaudit.core.values import Capability, Model
from fedaudit.signals.base import VisibleRound

Outputs = Float[Tensor, "samples ..."]
Targets = Shaped[Tensor, "samples ..."]
Classes = Int[Tensor, " samples"]
Values = Float[Tensor, " samples"]

LOG_FLOOR = 1e-30
"""Lower limit of the arguments of logarithms, as in Song & Mittal's code."""

LARGEST_LOGIT = 1e6
"""Largest absolute value of a scaled logit, which is infinite for a probability of 0 or 1."""


@arguments.dataclass(frozen=True)
class OutputSignal:
    """Signal that depends on a sample's label and on a model's outputs for the sample.

    Attributes:
        snapshot: "local" for each client's model after training, "global" for the global model
            after the round, "received" for the model that the client received in the round.
    """

    snapshot: Literal["local", "global", "received"] = "local"

    kind: ClassVar[str]
    needed_outputs: ClassVar[OutputKind] = OutputKind.POSTERIOR

    @property
    def needs(self) -> Capability:
        """What the adversary must see: outputs of the clients' models, or the global model."""
        return {
            "local": Capability.PREDICTIONS,
            "global": Capability.NEXT_MODEL,
            "received": Capability.GLOBAL_MODEL,
        }[self.snapshot]

    @property
    def name(self) -> str:
        """Name of the stored measurements, with a prefix for other models than the client's."""
        return self.kind if self.snapshot == "local" else f"{self.snapshot}_{self.kind}"

    def __call__(self, visible: VisibleRound) -> Float[Tensor, "clients samples"]:
        targets = visible.samples.targets
        if self.snapshot == "global":
            values = self.of(visible.global_model, visible.global_outputs, targets)
            return values.expand(len(visible.clients), -1).clone()
        if self.snapshot == "received":
            values_by_model = [
                self.of(model, outputs, targets)
                for model, outputs in zip(
                    visible.received_models, visible.received_outputs, strict=True
                )
            ]
            return torch.stack(values_by_model)[visible.bases]
        return torch.stack(
            [
                self.of(model, outputs, targets)
                for model, outputs in zip(visible.local_models, visible.outputs, strict=True)
            ]
        )

    @abstractmethod
    def of(self, model: Model, outputs: Outputs, targets: Targets) -> Values:
        """Return the signal of one model, in double precision."""


@arguments.dataclass(frozen=True)
class Loss(OutputSignal):
    """Loss of the client's model after training, with its sign reversed: larger for members.

    Source: Yeom et al. 2018 (threshold on the loss); Zhu et al. 2024 (FedMIA), section 3.2, one of
        two measurements.
    """

    kind = "loss"
    needed_outputs = OutputKind.NOTHING

    def of(self, model: Model, outputs: Outputs, targets: Targets) -> Values:
        return -model.architecture.loss(outputs, targets).double()


@arguments.dataclass(frozen=True)
class Confidence(OutputSignal):
    """Probability of the true class under the client's model after training.

    Source: Bai et al. 2026 (CoFedMID), section 5.1 (FTA-C follows it over rounds).
    """

    kind = "confidence"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        return outputs.double().softmax(1).gather(1, targets[:, None]).squeeze(1)


@arguments.dataclass(frozen=True)
class ScaledLogit(OutputSignal):
    """Logarithm of p / (1 - p), where p is the model's probability of the true class.

    Unlike the loss, it is approximately normally distributed over similarly trained models.

    Source: Carlini et al. 2022 (LiRA), section V-B; from logits, as in section VI-A.
    """

    kind = "scaled_logit"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        logits = outputs.double()
        true_class = logits.gather(1, targets[:, None]).squeeze(1)
        other_classes = logits.scatter(1, targets[:, None], -torch.inf).logsumexp(1)
        return (true_class - other_classes).clamp(-LARGEST_LOGIT, LARGEST_LOGIT)


@arguments.dataclass(frozen=True)
class MaxPosterior(OutputSignal):
    """Largest class probability under the client's model after training.

    Source: Li et al. 2024 (SeqMIA), second of the five metrics (Salem et al. 2019).
    """

    kind = "max_posterior"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        return outputs.double().softmax(1).amax(1)


@arguments.dataclass(frozen=True)
class PosteriorSpread(OutputSignal):
    """Standard deviation of the client's model's probabilities over the classes.

    Source: Li et al. 2024 (SeqMIA), third of the five metrics (population standard deviation).
    """

    kind = "posterior_std"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        return outputs.double().softmax(1).std(1, correction=0)


@arguments.dataclass(frozen=True)
class Entropy(OutputSignal):
    """Negative entropy, in nats, of the client's model's class probabilities.

    Source: Li et al. 2024 (SeqMIA), fourth of the five metrics.
    Differs: The sign is reversed, so that the signal is larger for members.
    """

    kind = "minus_entropy"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        log_p = outputs.double().log_softmax(1)
        return (log_p.exp() * log_p).sum(1)


@arguments.dataclass(frozen=True)
class ModifiedEntropy(OutputSignal):
    """Negative modified entropy, an entropy that takes the true class into account.

    The modified entropy is the sum of -(1 - p) log p for the true class with probability p, and of
    -q log(1 - q) for every other class with probability q. It is zero for a confident correct
    model, and large for a confident wrong model.

    Source: Song & Mittal 2021, section 3.2; Li et al. 2024 (SeqMIA), last of the five metrics.
    Differs: The sign is reversed, so that the signal is larger for members.
    """

    kind = "minus_modified_entropy"

    def of(self, model: Model, outputs: Outputs, targets: Classes) -> Values:
        probabilities = outputs.double().softmax(1)
        p = probabilities.gather(1, targets[:, None]).squeeze(1)
        q = probabilities.scatter(1, targets[:, None], 0.0)
        # 1 - p is computed as a sum over the other classes. The difference would round to 0 for a
        # confident model.
        true_term = q.sum(1) * p.clamp_min(LOG_FLOOR).log()
        other_terms = q * (1 - q).clamp_min(LOG_FLOOR).log()
        return true_term + other_terms.sum(1)


@arguments.dataclass(frozen=True)
class ZlibRatio(OutputSignal):
    """Negative loss of a sequence, divided by the size in bytes of its tokens after compression.

    Sequences with much repetition have a low loss whether or not a model was trained on them. The
    compressed size corrects for this without a second model.

    Source: Carlini et al. 2021 (extracting training data): ratio of the logarithm of the perplexity
        and the zlib entropy.
    Differs: The paper compresses the text. Here, token ids are compressed, each as one byte if the
        vocabulary has at most 256 tokens and otherwise as four bytes.
    """

    kind = "zlib_ratio"
    needed_outputs = OutputKind.TOKENS

    def of(self, model: Model, outputs: Outputs, targets: Tensor) -> Values:
        tokens = _tokens_of(model, outputs, targets, self.name)
        dtype = torch.uint8 if tokens.logits.shape[2] <= 256 else torch.int32
        sizes = [
            len(zlib.compress(sequence[counted].to(dtype).numpy().tobytes()))
            for sequence, counted in zip(tokens.tokens.cpu(), tokens.counted.cpu(), strict=True)
        ]
        losses = model.architecture.loss(outputs, targets).double()
        return -losses / torch.tensor(sizes, dtype=torch.float64, device=losses.device)


def _tokens_of(model: Model, outputs: Outputs, targets: Tensor, signal: str) -> NextTokens:
    task = model.architecture.task
    if task.tokens is None:
        raise NotVisible(f"the task {task.name!r} has no tokens, which {signal!r} needs")
    return task.tokens(outputs, targets)


@arguments.dataclass(frozen=True)
class _LeastLikelyTokens(OutputSignal):
    """Mean of a token score over the lowest-scoring tokens of a sequence.

    Attributes:
        share: Fraction of a sequence's tokens that is used, in (0, 1]; at least one token is used.
    """

    share: PositiveFraction = 0.2
    needed_outputs: ClassVar[OutputKind] = OutputKind.TOKENS

    @property
    def name(self) -> str:
        return f"{super().name}_{self.share:g}"

    def of(self, model: Model, outputs: Outputs, targets: Tensor) -> Values:
        tokens = _tokens_of(model, outputs, targets, self.name)
        # Positions that do not count, such as padding, are sorted to the end.
        scores = self.scores(tokens).masked_fill(~tokens.counted, float("inf"))
        cumulative = scores.sort(1).values.cumsum(1)
        count = (self.share * tokens.counted.sum(1)).long().clamp_min(1)
        return cumulative.gather(1, count[:, None] - 1)[:, 0] / count

    @abstractmethod
    def scores(self, tokens: NextTokens) -> Float[Tensor, "samples positions"]:
        """Return a score for every token, in double precision."""


@arguments.dataclass(frozen=True)
class MinK(_LeastLikelyTokens):
    """Mean log-probability of the least likely tokens: Min-K%.

    Source: Shi et al. 2024, Eq. (1) (k = 20 %).
    """

    kind = "min_k"

    def scores(self, tokens: NextTokens) -> Float[Tensor, "samples positions"]:
        log_p = tokens.logits.double().log_softmax(2)
        return log_p.gather(2, tokens.tokens[..., None])[..., 0]


@arguments.dataclass(frozen=True)
class MinKPlusPlus(_LeastLikelyTokens):
    """Mean standardised log-probability of the least likely tokens: Min-K%++.

    A token's log-probability is standardised by the mean and the standard deviation of the
    log-probability under the model's distribution of tokens at this position.

    Source: Zhang et al. 2025, Eqs. (3) and (4).
    Differs: The variance is at least 1e-12. Otherwise, it would be 0 where the model is certain.
    """

    kind = "min_k_plus_plus"

    def scores(self, tokens: NextTokens) -> Float[Tensor, "samples positions"]:
        log_p = tokens.logits.double().log_softmax(2)
        p = log_p.exp()
        mean = (p * log_p).sum(2)
        std = ((p * log_p.square()).sum(2) - mean.square()).clamp_min(1e-12).sqrt()
        return (log_p.gather(2, tokens.tokens[..., None])[..., 0] - mean) / std
