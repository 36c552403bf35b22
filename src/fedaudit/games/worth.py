"""From signs of many models to what each sign is worth."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from fedaudit.defenses.planted.catalog import SIGNS
from fedaudit.metrics.over_runs import auc_over_runs, judged_on_others
from fedaudit.metrics.roc import auc
from fedaudit.results.detector import Caught, SignWorth
from fedaudit.seeds import seeded_numpy

HONEST = ""
"""In the place of a server's name: nothing was planted."""

FPR = 0.05
"""Share of honest models that a threshold may be exceeded by where it is chosen."""


class Looked(NamedTuple):
    """Models as a client sees them, one a row.

    Attributes:
        server: How a neuron was planted; ``HONEST`` for none.
        run: Federation that the model is from.
        own: Whether the target is one of the client's own records; false for honest models.
        values: Of each sign, in the order of ``SIGNS``.
    """

    server: Sequence[str]
    run: Int[np.ndarray, " models"]
    own: Bool[np.ndarray, " models"]
    values: Float[np.ndarray, "models signs"]


def worths(looked: Looked, *, seed: int) -> list[SignWorth]:
    """A row for each kind of server and sign.

    The first half of the runs chooses thresholds; of each other run one honest and one planted
    model are judged, so that what is counted is independent.

    Args:
        looked: Honest models and planted ones of every run, with targets of both kinds.
        seed: Of the bootstrap, and of which model of a run is judged.

    Raises:
        BadInput: Fewer than ten runs, or one without models of both kinds.
    """
    kinds = np.asarray(looked.server)
    honest, runs = kinds == HONEST, np.unique(looked.run)
    early, late = np.split(runs, [len(runs) // 2])
    choosing = honest & np.isin(looked.run, early)
    found = []
    for server in dict.fromkeys(name for name in looked.server if name != HONEST):
        planted = kinds == server
        both = planted | honest
        judged = [_one_a_run(looked, side, late, seed=seed) for side in (planted, honest)]
        for name, values in zip(SIGNS, looked.values.T, strict=True):
            draws = seeded_numpy(seed, "resamples", server, name)
            whole = auc_over_runs(values[both], planted[both], looked.run[both], rng=draws)
            rates = judged_on_others(values[choosing], *(values[one] for one in judged), fpr=FPR)
            of_own, of_others = (
                auc(values[side | honest], side[side | honest])
                for side in (planted & looked.own, planted & ~looked.own)
            )
            tpr, fpr = (Caught(hits=s.hits, total=s.total, low=s.low, high=s.high) for s in rates)
            found.append(
                SignWorth(
                    sign=name,
                    server=server,
                    auc=whole.value,
                    low=whole.low,
                    high=whole.high,
                    method=whole.method,
                    own=of_own,
                    others=of_others,
                    tpr=tpr,
                    fpr=fpr,
                )
            )
    return found


def _one_a_run(
    looked: Looked, side: Bool[np.ndarray, " models"], runs: Int[np.ndarray, " runs"], *, seed: int
) -> Int[np.ndarray, " runs"]:
    """A model of one side from each run; the honest ones are the same for every server."""
    rng = seeded_numpy(seed, "judged")
    return np.array([rng.choice(np.flatnonzero(side & (looked.run == run))) for run in runs])
