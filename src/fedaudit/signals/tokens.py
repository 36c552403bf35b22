"""Signals from the probabilities that a language model gives to the tokens of a sequence."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.core.tasks import NextTokens, Reading
from fedaudit.core.values import Model
from fedaudit.signals.outputs import Outputs, OutputSignal, Values


@dataclass(frozen=True)
class _LeastLikely(OutputSignal):
    """The mean of a score over the tokens of a sequence that it is lowest for.

    Attributes:
        share: Of a sequence's tokens, in (0, 1]; at least one token is taken.
    """

    share: float = 0.2
    reads: ClassVar[Reading] = Reading.TOKENS

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise BadInput(f"share is of a sequence's tokens, in (0, 1], got {self.share}")

    @property
    def name(self) -> str:
        """Differs by share."""
        return f"{super().name}_{self.share:g}"

    def of(self, model: Model, outputs: Outputs, targets: Tensor) -> Values:
        """See :class:`fedaudit.signals.outputs.OutputSignal`."""
        task = model.architecture.task
        if task.tokens is None:
            raise NotVisible(f"the task {task.name!r} has no tokens, which {self.name!r} needs")
        read = task.tokens(outputs, targets)
        scores = self.scores(read).masked_fill(~read.counted, float("inf")).sort(1).values
        taken = (self.share * read.counted.sum(1)).long().clamp_min(1)
        return scores.cumsum(1).gather(1, taken[:, None] - 1)[:, 0] / taken

    @abstractmethod
    def scores(self, read: NextTokens) -> Float[Tensor, "samples positions"]:
        """A score for every token, in 64 bits."""


@dataclass(frozen=True)
class MinK(_LeastLikely):
    """Mean log-probability of the least likely tokens: Min-K%.

    Attributes:
        snapshot: "local" for each client's own model, "global" for the server's.
        share: Of a sequence's tokens, in (0, 1]; at least one token is taken.

    Source: Shi et al. 2024, Eq. (1) (k = 20 %).
    """

    kind = "min_k"

    def scores(self, read: NextTokens) -> Float[Tensor, "samples positions"]:
        """Log-probabilities of the tokens that came."""
        logs = read.logits.double().log_softmax(2)
        return logs.gather(2, read.tokens[..., None])[..., 0]


@dataclass(frozen=True)
class MinKPlusPlus(_LeastLikely):
    """Mean standardised log-probability of the least likely tokens: Min-K%++.

    A token's log-probability is taken less the mean, and over the spread, of the log-probability
    of a token that the model itself draws there.

    Attributes:
        snapshot: "local" for each client's own model, "global" for the server's.
        share: Of a sequence's tokens, in (0, 1]; at least one token is taken.

    Source: Zhang et al. 2025, Eqs. (3) and (4).
    Differs: A spread of 0, where the model is certain, counts as the smallest number.
    """

    kind = "min_k_plus_plus"

    def scores(self, read: NextTokens) -> Float[Tensor, "samples positions"]:
        """Standardised log-probabilities of the tokens that came."""
        logs = read.logits.double().log_softmax(2)
        chances = logs.exp()
        mean = (chances * logs).sum(2)
        spread = ((chances * logs.square()).sum(2) - mean.square()).clamp_min(1e-12).sqrt()
        return (logs.gather(2, read.tokens[..., None])[..., 0] - mean) / spread
