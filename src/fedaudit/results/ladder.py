"""The leak ladder: how strong attacks are to be expected, from what a federation knows of itself.

Rule and rungs are data (``ladder.json``), made from records by ``docs/ladder.py``.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist, fmean
from typing import NamedTuple

from fedaudit.core.limits import Limited
from fedaudit.core.metric_names import AUC
from fedaudit.results.estimate import Estimate
from fedaudit.results.metrics import GENERALISATION_GAP
from fedaudit.results.record import Record, Trajectory

UPLOAD_ATTACKS = ("loss-series", "avg-cosine", "fedmia-1", "fedmia-2")
"""The strongest of these is what the rule expects; it takes one of each signal, at least."""
FINAL_ATTACK = "blackbox-loss"
_LOSS = ("loss-series", "fedmia-1")
_COSINE = ("avg-cosine", "fedmia-2")
_MIDDLE = 2 * NormalDist().inv_cdf(0.9)
"""The middle 80 % of normal values, in standard deviations."""
_DATA = Path(__file__).parent / "ladder.json"


@dataclass(frozen=True)
class Auc(Limited[float]):
    """An attack's AUC, with its limits; of several clients under audit the means."""

    attack: str


class ProbitLine(NamedTuple):
    """The expected leak: a normal distribution function of a line.

    Attributes:
        intercept: At a gap of 0.
        slope: For a gap of 1.
        spread: Nine of ten rungs of a data set that a rule is not made from are nearer to it.
        least: The smallest gap that the line was fitted on.
        most: The largest.
    """

    intercept: float
    slope: float
    spread: float
    least: float
    most: float

    def covers(self, gap: float) -> bool:
        """Return True if the line was fitted on gaps as small and as large."""
        return self.least <= gap <= self.most

    def at(self, gap: float) -> float:
        """The AUC to be expected."""
        return NormalDist().cdf(self.intercept + self.slope * gap)

    def from_gap(self, auc: float) -> float:
        """The gap from which on that much is to be expected."""
        return (NormalDist().inv_cdf(auc) - self.intercept) / self.slope


@dataclass(frozen=True)
class Rung(Limited[float]):
    """The AUC in one federation on the ladder: data, what was changed, its gap."""

    data: str
    changed: str
    gap: float


class Change(NamedTuple):
    """Two federations that differ in one setting: what it was and became, and both of each.

    Attributes:
        kind: What was done: "epochs", "samples", "clipping", ...
        data: Data set.
        before: The setting.
        after: The setting.
        auc: Of the strongest attack on uploads, before and after.
        accuracy: Of the last global model on its test part, before and after.
    """

    kind: str
    data: str
    before: str
    after: str
    auc: tuple[float, float]
    accuracy: tuple[float, float]


class Ladder(NamedTuple):
    """Both rules, with what they were made from.

    Attributes:
        uploads: By the gap in loss of what clients send, in standard deviations.
        final: By the generalisation gap of the last global model.
        rungs: For uploads.
        changes: What one setting made of a rung.
    """

    uploads: ProbitLine
    final: ProbitLine
    rungs: tuple[Rung, ...]
    changes: tuple[Change, ...]


@cache
def ladder() -> Ladder:
    """The ladder as it was measured."""
    given = json.loads(_DATA.read_text(encoding="utf-8"))
    return Ladder(
        ProbitLine(**given["uploads"]),
        ProbitLine(**given["final"]),
        tuple(
            Rung(value, low, high, data, changed, gap)
            for data, changed, gap, value, low, high in given["rungs"]
        ),
        tuple(
            Change(kind, data, before, after, (*auc,), (*accuracy,))
            for kind, data, before, after, auc, accuracy in given["changes"]
        ),
    )


def loss_gap(record: Record) -> float | None:
    """Mean loss on samples of nobody less that on a client's own, of the model that it sent.

    In standard deviations of the loss on samples of nobody, taken from the range of their middle
    80 %; the mean over measured rounds, clients under audit and seeds. A client can tell by itself,
    from its own samples and some fresh ones. None where the record does not say it.
    """
    parts = [one for one in record.trajectories if one.signal == "loss"]
    gaps = [
        gap
        for one in parts
        if one.origin == "member"
        for fresh in parts
        if (fresh.origin, fresh.target, fresh.seed) == ("unseen", one.target, one.seed)
        for gap in _by_round(one, fresh)
    ]
    return fmean(gaps) if gaps else None


def _by_round(own: Trajectory, fresh: Trajectory) -> list[float]:
    # Signals are larger for members: minus the loss.
    gaps = []
    for values in zip(own.mean, fresh.mean, fresh.low, fresh.high, strict=True):
        known = [value for value in values if value is not None]
        if len(known) == len(values) and known[3] > known[2]:
            gaps.append((known[0] - known[1]) * _MIDDLE / (known[3] - known[2]))
    return gaps


def samples_of(record: Record) -> float | None:
    """Samples of a client under audit, the mean; None where the record does not say."""
    targets = {one.target for one in record.findings if one.target is not None}
    held = [one.samples for one in record.clients if one.client in targets]
    return fmean(held) if held and min(held) > 0 else None


def generalisation_gap(record: Record) -> float | None:
    """Of the last global model, the mean over seeds."""
    found = record.where(topic="utility", metric=GENERALISATION_GAP)
    gaps = [one.value for one in found if one.value is not None]
    return fmean(gaps) if gaps else None


def strongest(record: Record) -> Auc | None:
    """Which attack on uploads finds most, against mixed non-members; None if some were not run."""
    found = aucs(record, UPLOAD_ATTACKS, "mixed")
    names = {one.attack for one in found}
    if names.isdisjoint(_LOSS) or names.isdisjoint(_COSINE):
        return None
    return max(found, key=lambda one: one.value)


def aucs(record: Record, attacks: Sequence[str], contrast: str) -> list[Auc]:
    """The AUC of each of these attacks that was run, over seeds and clients under audit."""
    found = []
    for attack in attacks:
        figures = over_seeds(record, attack, AUC, contrast)
        limits = [
            (one.value, one.low, one.high)
            for one in figures
            if one.value is not None and one.low is not None and one.high is not None
        ]
        if limits and len(limits) == len(figures):
            value, low, high = (fmean(part) for part in zip(*limits, strict=True))
            found.append(Auc(value, low, high, attack))
    return found


def over_seeds(record: Record, attack: str, metric: str, contrast: str) -> list[Estimate]:
    """A figure of every client under audit: that over the seeds where there are several."""
    several = len(record.seeds) > 1
    return [
        one
        for one in record.findings
        if (one.attack, one.metric, one.contrast) == (attack, metric, contrast)
        and one.target is not None
        and (one.seed is None) == several
    ]
