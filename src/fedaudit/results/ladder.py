"""Leak ladder: expected attack strength from quantities that a federation can measure itself.

Rule and rungs are data (``ladder.json``), computed from records by ``docs/ladder.py``.
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
from fedaudit.results.estimate import GENERALISATION_GAP, Estimate
from fedaudit.results.record import Record, Trajectory

UPLOAD_ATTACKS = ("loss-series", "avg-cosine", "fedmia-1", "fedmia-2")
"""The rule predicts the strongest of these; it needs at least one attack on each signal."""
FINAL_ATTACK = "blackbox-loss"
_LOSS = ("loss-series", "fedmia-1")
_COSINE = ("avg-cosine", "fedmia-2")
_MIDDLE = 2 * NormalDist().inv_cdf(0.9)
"""Width of the middle 80 % of a normal distribution, in standard deviations."""
_DATA = Path(__file__).parent / "ladder.json"


@dataclass(frozen=True)
class Auc(Limited[float]):
    """AUC of an attack with its limits, averaged over audited clients."""

    attack: str


class ProbitLine(NamedTuple):
    """Expected AUC as a normal distribution function of a linear term.

    Attributes:
        intercept: The linear term at a gap of 0.
        slope: Its increase for a gap of 1.
        spread: Distance within which nine of ten rungs lie, on data sets that the rule was not
            fitted on.
        least: The smallest gap that the line was fitted on.
        most: The largest gap.
    """

    intercept: float
    slope: float
    spread: float
    least: float
    most: float

    def covers(self, gap: float) -> bool:
        """Return True if a gap is within the range that the line was fitted on."""
        return self.least <= gap <= self.most

    def at(self, gap: float) -> float:
        """Return the expected AUC at a gap."""
        return NormalDist().cdf(self.intercept + self.slope * gap)

    def from_gap(self, auc: float) -> float:
        """Return the smallest gap with this expected AUC."""
        return (NormalDist().inv_cdf(auc) - self.intercept) / self.slope


@dataclass(frozen=True)
class Rung(Limited[float]):
    """AUC in one federation on the ladder, with its data set, changed setting and gap."""

    data: str
    changed: str
    gap: float


class Change(NamedTuple):
    """Two federations that differ in one setting.

    Attributes:
        kind: What was changed: "epochs", "samples", "clipping", ...
        data: Data set.
        before: The setting before.
        after: The setting after.
        auc: AUC of the strongest attack on uploads, before and after.
        accuracy: Test accuracy of the last global model, before and after.
    """

    kind: str
    data: str
    before: str
    after: str
    auc: tuple[float, float]
    accuracy: tuple[float, float]


class Ladder(NamedTuple):
    """Both rules, with the data that they were fitted on.

    Attributes:
        uploads: Rule by the gap in loss of the clients' uploads, in standard deviations.
        final: Rule by the generalisation gap of the last global model.
        rungs: Rungs for uploads.
        changes: Effects of single settings.
    """

    uploads: ProbitLine
    final: ProbitLine
    rungs: tuple[Rung, ...]
    changes: tuple[Change, ...]


@cache
def ladder() -> Ladder:
    """Return the ladder as it was measured."""
    rules = json.loads(_DATA.read_text(encoding="utf-8"))
    return Ladder(
        ProbitLine(**rules["uploads"]),
        ProbitLine(**rules["final"]),
        tuple(
            Rung(value, low, high, data, changed, gap)
            for data, changed, gap, value, low, high in rules["rungs"]
        ),
        tuple(
            Change(kind, data, before, after, (*auc,), (*accuracy,))
            for kind, data, before, after, auc, accuracy in rules["changes"]
        ),
    )


def loss_gap(record: Record) -> float | None:
    """Return how much larger the loss of clients' uploads is on held-out samples than on their own.

    The gap is in standard deviations of the loss on held-out samples, estimated from the range of
    their middle 80 %. It is the mean over measured rounds, audited clients and seeds. A client can
    measure it without an attack, from its own samples and some held-out ones.

    Returns:
        None if the record does not have the trajectories.
    """
    losses = [trajectory for trajectory in record.trajectories if trajectory.signal == "loss"]
    gaps = [
        gap
        for members in losses
        if members.origin == "member"
        for held_out in losses
        if held_out.origin == "unseen"
        if (held_out.target, held_out.seed) == (members.target, members.seed)
        for gap in _by_round(members, held_out)
    ]
    return fmean(gaps) if gaps else None


def _by_round(members: Trajectory, held_out: Trajectory) -> list[float]:
    # Signals are larger for members: minus the loss.
    gaps = []
    for values in zip(members.mean, held_out.mean, held_out.low, held_out.high, strict=True):
        present = [value for value in values if value is not None]
        if len(present) == len(values) and present[3] > present[2]:
            gaps.append((present[0] - present[1]) * _MIDDLE / (present[3] - present[2]))
    return gaps


def mean_client_samples(record: Record) -> float | None:
    """Return the mean number of samples of an audited client; None if the record omits it."""
    targets = {finding.target for finding in record.findings if finding.target is not None}
    sizes = [row.samples for row in record.clients if row.client in targets]
    return fmean(sizes) if sizes and min(sizes) > 0 else None


def generalisation_gap(record: Record) -> float | None:
    """Return the generalisation gap of the last global model, mean over seeds."""
    figures = record.where(topic="utility", metric=GENERALISATION_GAP)
    gaps = [figure.value for figure in figures if figure.value is not None]
    return fmean(gaps) if gaps else None


def strongest(record: Record) -> Auc | None:
    """Return the attack on uploads with the largest AUC on mixed non-members.

    Returns:
        None if no attack on losses or none on cosines was run.
    """
    candidates = aucs(record, UPLOAD_ATTACKS, "mixed")
    names = {auc.attack for auc in candidates}
    if names.isdisjoint(_LOSS) or names.isdisjoint(_COSINE):
        return None
    return max(candidates, key=lambda auc: auc.value)


def aucs(record: Record, attacks: Sequence[str], contrast: str) -> list[Auc]:
    """Return the AUC of each of these attacks that was run, mean over seeds and audited clients."""
    means = []
    for attack in attacks:
        figures = over_seeds(record, attack, AUC, contrast)
        limits = [
            (figure.value, figure.low, figure.high)
            for figure in figures
            if figure.value is not None and figure.low is not None and figure.high is not None
        ]
        if limits and len(limits) == len(figures):
            value, low, high = (fmean(part) for part in zip(*limits, strict=True))
            means.append(Auc(value, low, high, attack))
    return means


def over_seeds(record: Record, attack: str, metric: str, contrast: str) -> list[Estimate]:
    """Return a figure of every audited client: that over the seeds if there are several."""
    several = len(record.seeds) > 1
    return [
        figure
        for figure in record.findings
        if (figure.attack, figure.metric, figure.contrast) == (attack, metric, contrast)
        and figure.target is not None
        and (figure.seed is None) == several
    ]
