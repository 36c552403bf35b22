"""Data sampling: training on a random part of a client's data."""

from collections.abc import Iterator
from typing import Literal

import torch

from fedaudit.core.arguments import PositiveFraction, dataclass
from fedaudit.core.values import Batch, Samples
from fedaudit.fl.hooks import ConfiguredDefense, TrainingContext


@dataclass(frozen=True)
class DataSampling(ConfiguredDefense):
    """Training on a new random subset of the client's data in every epoch or round.

    Attributes:
        share: Fraction of the client's samples, in (0, 1]; at least one sample is used. With 1, the
            defense is off. Published: 0.1 to 1 (FedMIA).
        every: "epoch" draws a subset for each epoch; "round" draws one for all epochs of a round.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.DataSampling(share=0.5).share
        0.5

    Source: Zhu et al. 2024 (FedMIA), appendix A.2 (data sampling); Li et al. 2022.
    Differs: FedMIA's code stops an epoch after a fraction of its batches, and uses all data if the
        fraction is less than one batch. Here, ``share`` is a fraction of the samples, and the last
        batch is truncated.
    """

    share: PositiveFraction
    every: Literal["epoch", "round"] = "epoch"

    def acts_in(self, hook: str) -> bool:
        used_hook = {"epoch": "batches", "round": "select"}[self.every]
        return hook == used_hook and self.share < 1

    def select(self, data: Samples, context: TrainingContext) -> Samples:
        if not self.acts_in("select"):
            return data
        order = torch.randperm(len(data), generator=context.rng("data sampling"))
        return data.take(order[: self._count(data)])

    def batches(self, data: Samples, batch_size: int, context: TrainingContext) -> Iterator[Batch]:
        remaining = self._count(data) if self.acts_in("batches") else len(data)
        for batch in super().batches(data, batch_size, context):
            yield Batch(batch.x[:remaining], batch.y[:remaining], batch.ids[:remaining])
            remaining -= len(batch)
            if remaining <= 0:
                return

    def _count(self, data: Samples) -> int:
        return max(1, round(self.share * len(data)))
