"""One target's audited samples with the truth about them, and what was found so far."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fedaudit.core.origin import Origin
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import ClientId
from fedaudit.metrics.intervals import LimitsAt
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Curve, ExposedSample, Histogram, Trajectory
from fedaudit.study.setup.attacker import malicious_client
from fedaudit.study.setup.parts import Setup


@dataclass(frozen=True)
class TargetTruth:
    """Everything about one target's audited samples that scores are held against.

    Attributes:
        target: The client under audit.
        origin: Provenance of each sample kept.
        kept: Positions of these samples in the audit set.
        fair: Which of them a fair draw made member or unseen.
        labels: Their classes.
        owners: Who trained on them.
        ids: Their ids in the data set.
    """

    target: ClientId
    origin: Int[ndarray, " samples"]
    kept: Int[ndarray, " samples"]
    fair: Bool[ndarray, " samples"]
    labels: Int[ndarray, " samples"]
    owners: Int[ndarray, " samples"]
    ids: Int[ndarray, " samples"]

    @property
    def is_member(self) -> Bool[ndarray, " samples"]:
        """True for samples that count as members."""
        members: Bool[ndarray, " samples"] = self.origin == Origin.MEMBER
        return members


@dataclass
class Findings:
    """The results so far; grows attack by attack.

    Attributes:
        p_values: For figures tested against guessing, by their place in ``figures``.
        limits: For rates at a false-positive rate, by the same place, their limits at any
            confidence: a mean over runs cannot be bounded from those of one confidence.
        failed: For attacks that could not be carried out, by run and target, the reason.
    """

    figures: list[Estimate] = field(default_factory=list)
    p_values: dict[int, float] = field(default_factory=dict)
    limits: dict[int, LimitsAt] = field(default_factory=dict)
    curves: list[Curve] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    histograms: list[Histogram] = field(default_factory=list)
    groups: list[Estimate] = field(default_factory=list)
    exposed: list[ExposedSample] = field(default_factory=list)
    scores: dict[tuple[int, ClientId, str], Float[ndarray, " samples"]] = field(
        default_factory=dict
    )
    failed: dict[str, dict[str, str]] = field(default_factory=dict)


def target_truth(setup: Setup, target: ClientId) -> TargetTruth:
    """The audited samples as one target's figures see them.

    Where a shift makes clients differ, other clients' samples are left out: the shift
    alone distinguishes them from the target's. So are a malicious client's own, which it knows and
    does not train on in every round. Where the study asks what an evaluation finds when nobody is
    a member, only unseen samples are kept, and a random half is called members.
    """
    audit = setup.deal.audit
    origin = origin_of(setup, target)
    # Which of the target's partners hold a sample was no fair draw between two sides.
    fair = audit.fair_for(target) & ~np.isin(audit.owner, _partners(setup, target))
    kept = np.arange(len(origin))
    if setup.study.shift is not None:
        kept = np.flatnonzero(origin != Origin.OTHER_CLIENT)
    if setup.study.attacker is not None:
        kept = kept[audit.owner[kept] != malicious_client(setup.study)]
    if setup.study.figures.nobody_is_a_member:
        kept = np.flatnonzero(origin == Origin.UNSEEN)
    origin, fair = origin[kept], fair[kept]
    if setup.study.figures.nobody_is_a_member:
        chosen = seeded_numpy(setup.seed, "nobody", target).permutation(len(kept)) < len(kept) // 2
        origin = np.where(chosen, Origin.MEMBER, Origin.UNSEEN)
        fair = np.zeros_like(fair)
    return TargetTruth(
        target=target,
        origin=origin,
        kept=kept,
        fair=fair,
        labels=audit.samples.labels.numpy()[kept],
        owners=audit.owner[kept],
        ids=audit.samples.ids.numpy()[kept],
    )


def origin_of(setup: Setup, target: ClientId) -> Int[ndarray, " samples"]:
    """Provenance of each audited sample: members are the data of all who are attacked as one."""
    origin = setup.deal.audit.origin(target)
    theirs = np.isin(setup.deal.audit.owner, _partners(setup, target))
    return np.where(theirs, Origin.MEMBER, origin).astype(np.int64)


def _partners(setup: Setup, target: ClientId) -> list[ClientId]:
    """Whom the adversary cannot tell from the target, because it attacks them together."""
    merged = setup.study.audit.merge
    return [client for client in merged if client != target] if target in merged else []
