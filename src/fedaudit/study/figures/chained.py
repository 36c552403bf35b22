"""Membership first, and whose a sample is only where it is called a member."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Bool
from numpy import ndarray

from fedaudit.attacks.base import Attack
from fedaudit.core.values import NOBODY
from fedaudit.observe.measurements import Measurements
from fedaudit.results.sources import Chained
from fedaudit.study.figures.source_queries import SourceQueries
from fedaudit.study.setup.parts import Setup

CHAINED_FPRS = (0.01, 0.1)
"""How many samples of nobody may be called members before owners are asked for."""


def chained(
    run: Setup,
    attack: Attack,
    measured: Mapping[str, Measurements],
    right: Bool[ndarray, " samples"],
    samples: SourceQueries,
) -> list[Chained]:
    """Samples called members where some audited ones are no client's, and each one's client.

    A sample counts for a member where the attack's signal is high at some client: the largest
    over the clients of its mean over the rounds.
    """
    nobodys = np.flatnonzero(run.deal.audit.owner == NOBODY)
    if not len(nobodys):
        return []
    values = measured[attack.signals[0].name].values.double()
    score = values.nanmean(0).nan_to_num(-torch.inf).amax(0).numpy()
    found = []
    for fpr in CHAINED_FPRS:
        allowed = int(fpr * len(nobodys))
        threshold = np.sort(score[nobodys])[::-1][allowed] if allowed < len(nobodys) else -np.inf
        called = score[samples.kept] > threshold
        found.append(
            Chained(
                fpr=fpr,
                realised_fpr=float((score[nobodys] > threshold).mean()),
                called=int(called.sum()),
                right=int((called & right).sum()),
            )
        )
    return found
