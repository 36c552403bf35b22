"""Leak ladder: prediction of an attack's AUC from a gap that a federation can measure itself.

A *rung* is a federation whose gap and AUC were measured. A *rule* is a probit line that is fitted
to the rungs and predicts the AUC from the gap. Rungs and rules are in ``ladder.json``, which
``docs/ladder.py`` computes from records.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist, fmean
from typing import NamedTuple

from fedaudit.core.limits import EstimateWithLimits
from fedaudit.core.metric_names import AUC
from fedaudit.results.estimate import GENERALISATION_GAP, Estimate
from fedaudit.results.record import Record, Trajectory

UPLOAD_ATTACKS = ("loss-series", "avg-cosine", "fedmia-1", "fedmia-2")
"""Attacks on uploads. The rule for uploads predicts the largest of their AUCs."""
FINAL_ATTACK = "blackbox-loss"
_LOSS = ("loss-series", "fedmia-1")
_COSINE = ("avg-cosine", "fedmia-2")
_MIDDLE = 2 * NormalDist().inv_cdf(0.9)
"""Width of the middle 80 % of a normal distribution, in standard deviations."""
_DATA = Path(__file__).parent / "ladder.json"


@dataclass(frozen=True)
class Auc(EstimateWithLimits[float]):
    """AUC of an attack with its confidence limits, averaged over audited clients."""

    attack: str


class ProbitLine(NamedTuple):
    """Predicted AUC: the standard normal CDF of a linear function of the gap (probit model).

    Attributes:
        intercept: Value of the linear function at a gap of 0.
        slope: Slope of the linear function.
        spread: 90th percentile of the absolute error of the predicted AUC. Each rung is predicted
            by a line that was fitted without the rungs on its data set.
        smallest_gap: Smallest gap of the rungs to which the line was fitted.
        largest_gap: Largest gap of these rungs.
    """

    intercept: float
    slope: float
    spread: float
    smallest_gap: float
    largest_gap: float

    def covers(self, gap: float) -> bool:
        """Return True if a gap is within the range of gaps to which the line was fitted."""
        return self.smallest_gap <= gap <= self.largest_gap

    def at(self, gap: float) -> float:
        """Return the predicted AUC at a gap."""
        return NormalDist().cdf(self.intercept + self.slope * gap)

    def range_at(self, gap: float) -> tuple[float, float]:
        """Return the range around the predicted AUC, from chance level to 1 at most."""
        expected = self.at(gap)
        return max(expected - self.spread, 0.5), min(expected + self.spread, 1.0)

    def gap_for(self, auc: float) -> float:
        """Return the gap at which this AUC is predicted."""
        return (NormalDist().inv_cdf(auc) - self.intercept) / self.slope


@dataclass(frozen=True)
class Rung(EstimateWithLimits[float]):
    """AUC of the strongest attack on uploads in one federation, with its confidence limits.

    Attributes:
        data: Data set.
        changed: Setting that was changed in this federation, such as "rounds-10".
        gap: Gap in loss of the uploads (:func:`loss_gap`).
    """

    data: str
    changed: str
    gap: float


class Change(NamedTuple):
    """Comparison of two federations that differ in one setting.

    Attributes:
        kind: The setting: "epochs", "samples", "clipping", ...
        data: Data set.
        before: Value of the setting in the first federation.
        after: Value of the setting in the second federation.
        auc: AUC of the strongest attack on uploads in both federations.
        accuracy: Test accuracy of the last global model in both federations.
    """

    kind: str
    data: str
    before: str
    after: str
    auc: tuple[float, float]
    accuracy: tuple[float, float]


class Ladder(NamedTuple):
    """Both rules, with measured federations.

    Attributes:
        uploads: Rule for attacks on uploads, by the gap in loss (:func:`loss_gap`).
        final: Rule for attacks on the last global model, by its generalisation gap.
        rungs: Federations with their AUCs of attacks on uploads.
        changes: Effects of single settings.
    """

    uploads: ProbitLine
    final: ProbitLine
    rungs: tuple[Rung, ...]
    changes: tuple[Change, ...]


@cache
def read_ladder() -> Ladder:
    """Read the ladder from its file."""
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
    """Return the gap between the losses of uploads on held-out samples and on training samples.

    The gap is in standard deviations of the loss on held-out samples, which are estimated from the
    range of the middle 80 % of these losses. It is the mean over measured rounds, audited clients
    and seeds. A client can measure it without an attack, from its own and some held-out samples.

    Returns:
        None if the record has no trajectories of the loss.
    """
    gaps = loss_gaps(record.trajectories)
    return fmean(gaps) if gaps else None


def loss_gaps(trajectories: Sequence[Trajectory]) -> list[float]:
    """Return the gap of :func:`loss_gap` for each measured round, audited client and seed."""
    losses = [trajectory for trajectory in trajectories if trajectory.signal == "loss"]
    return [
        gap
        for members in losses
        if members.origin == "member"
        for held_out in losses
        if held_out.origin == "unseen"
        if (held_out.target, held_out.seed) == (members.target, members.seed)
        for gap in _gaps_by_round(members, held_out)
    ]


def _gaps_by_round(members: Trajectory, held_out: Trajectory) -> list[float]:
    # The signal is minus the loss, so that it is larger for members.
    gaps = []
    for values in zip(members.mean, held_out.mean, held_out.low, held_out.high, strict=True):
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            member_mean, held_out_mean, low, high = known
            if high > low:
                gaps.append((member_mean - held_out_mean) * _MIDDLE / (high - low))
    return gaps


def mean_client_samples(record: Record) -> float | None:
    """Return the mean number of samples of an audited client; None if a number is missing."""
    targets = {finding.target for finding in record.findings if finding.target is not None}
    sizes = [row.samples for row in record.clients if row.client in targets]
    return fmean(sizes) if sizes and min(sizes) > 0 else None


def generalisation_gap(record: Record) -> float | None:
    """Return the generalisation gap of the last global model, mean over seeds."""
    estimates = record.where(topic="utility", metric=GENERALISATION_GAP)
    gaps = [estimate.value for estimate in estimates if estimate.value is not None]
    return fmean(gaps) if gaps else None


def strongest_upload_attack(record: Record) -> Auc | None:
    """Return the attack on uploads with the largest AUC.

    Members are compared with both kinds of non-members: samples of other clients, and samples that
    no client trained on.

    Returns:
        None if no attack on losses, or no attack on cosines, was run.
    """
    candidates = mean_aucs(record, UPLOAD_ATTACKS, "mixed")
    names = {auc.attack for auc in candidates}
    if names.isdisjoint(_LOSS) or names.isdisjoint(_COSINE):
        return None
    return max(candidates, key=lambda auc: auc.value)


def mean_aucs(record: Record, attacks: Sequence[str], contrast: str) -> list[Auc]:
    """Return the AUC of each attack, averaged over seeds and audited clients.

    Attacks that were not run, or that lack an AUC or interval for a client, are left out.
    ``contrast`` names the non-members with which members are compared.
    """
    means = []
    for attack in attacks:
        estimates = over_seeds(record, attack, AUC, contrast)
        complete = [
            (estimate.value, estimate.low, estimate.high)
            for estimate in estimates
            if estimate.value is not None and estimate.low is not None and estimate.high is not None
        ]
        if complete and len(complete) == len(estimates):
            value, low, high = (fmean(part) for part in zip(*complete, strict=True))
            means.append(Auc(value, low, high, attack))
    return means


def over_seeds(record: Record, attack: str, metric: str, contrast: str) -> list[Estimate]:
    """Return the estimate of a metric for each audited client.

    Each is the mean over seeds, or the estimate of the only seed.
    """
    has_several_seeds = len(record.seeds) > 1
    return [
        estimate
        for estimate in record.findings
        if (estimate.attack, estimate.metric, estimate.contrast) == (attack, metric, contrast)
        and estimate.target is not None
        and (estimate.seed is None) == has_several_seeds
    ]
