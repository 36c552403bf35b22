"""One target's audited samples with the truth about them, and what was found so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypedDict

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fedaudit.core.metric_names import Origin
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import ClientId
from fedaudit.datasets.draws.fair import AS_PUBLISHED
from fedaudit.metrics import labels_alone_auc, matched_in_class
from fedaudit.metrics.intervals import LimitsAt
from fedaudit.metrics.table import CONTRASTS
from fedaudit.plan.parts import Setup
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Curve, ExposedSample, Histogram, Trajectory


class RunCoordinates(TypedDict):
    """Coordinates that all figures and controls of a run share."""

    defense: str
    seed: int


class ViewCoordinates(RunCoordinates):
    """Coordinates that all figures on what the adversary of a run sees share."""

    view: str


def run_coordinates(run: Setup) -> RunCoordinates:
    """Return the defense and the seed of a run."""
    return {"defense": run.study.defense.label, "seed": run.seed}


def view_coordinates(run: Setup) -> ViewCoordinates:
    """Return the defense, the seed and the view of a run."""
    return {**run_coordinates(run), "view": run.view.name}


class Comparison(NamedTuple):
    """The members and non-members of one contrast.

    Attributes:
        chosen: Which units are compared.
        fair: Whether one draw decided between members and these non-members.
        within: "class" where both sides are matched in their classes, "client" where only units of
            one client's draw are compared.
        labels_alone: AUC of the best score that sees labels only; None where it is not known.
    """

    chosen: Bool[ndarray, " units"]
    fair: bool = True
    within: Literal["", "class", "client"] = ""
    labels_alone: float | None = None


@dataclass(frozen=True)
class UnitTruth:
    """Everything about one target's audited units that their scores are compared with.

    Attributes:
        target: The client under audit.
        unit: Whose membership was asked for: "sample" or "person".
        origin: Provenance of each unit: of a person that gave samples to several clients, the
            target's if it is among them.
        fair: Which of them a fair draw made member or unseen.
        ids: Their ids in the data set, or their numbers as people.
    """

    target: ClientId
    unit: Literal["sample", "person"]
    origin: Int[ndarray, " units"]
    fair: Bool[ndarray, " units"]
    ids: Int[ndarray, " units"]

    @property
    def is_member(self) -> Bool[ndarray, " units"]:
        """True for units that count as members."""
        members: Bool[ndarray, " units"] = self.origin == Origin.MEMBER
        return members

    @cached_property
    def comparisons(self) -> Mapping[str, Comparison]:
        """Members and non-members of each contrast."""
        return {name: Comparison(self._among(name)) for name in CONTRASTS}

    @property
    def for_controls(self) -> Comparison:
        """The widest comparison in which nothing but membership is known to differ, if any is.

        Controls on what clients differ by would fail where no figure rests on it.
        """
        every, unseen = self.comparisons["mixed"], self.comparisons["unseen"]
        has_both = 0 < self.is_member[unseen.chosen].sum() < unseen.chosen.sum()
        return unseen if unseen.fair and has_both and not every.fair else every

    def _among(self, contrast: str) -> Bool[ndarray, " units"]:
        chosen: Bool[ndarray, " units"] = np.isin(
            self.origin, [Origin.MEMBER, *CONTRASTS[contrast]]
        )
        return chosen


@dataclass(frozen=True)
class TargetTruth(UnitTruth):
    """Everything about one target's audited samples.

    Attributes:
        kept: Positions of these samples in the audit set.
        labels: Their classes.
        owners: Who trained on them.
        subject: Of which person each is, where people are the units of the audit.
        unfair: Origins of non-members that no draw for this target decided about.
        matched: Whether members and unfair non-members are matched in their classes.
        has_classes: Whether labels are classes.
        seed: Root seed of the draws behind comparisons.
    """

    kept: Int[ndarray, " units"]
    labels: Int[ndarray, " units"]
    owners: Int[ndarray, " units"]
    subject: Int[ndarray, " units"] | None = None
    unfair: frozenset[Origin] = frozenset()
    matched: bool = False
    has_classes: bool = False
    seed: int = 0

    @cached_property
    def comparisons(self) -> Mapping[str, Comparison]:
        """Members and non-members of each contrast, matched in their classes where need be."""
        return {name: self._comparison(name) for name in CONTRASTS}

    def _comparison(self, contrast: str) -> Comparison:
        chosen, is_member = self._among(contrast), self.is_member
        present = {Origin(int(one)) for one in np.unique(self.origin[chosen & ~is_member])}
        fair = not present & self.unfair
        within: Literal["", "class"] = ""
        if not fair and self.matched and present:
            rng = seeded_numpy(self.seed, "matched in class", self.target, contrast)
            places = np.flatnonzero(chosen)
            kept = matched_in_class(self.labels[places], is_member[places], rng=rng)
            chosen = np.isin(np.arange(len(chosen)), places[kept])
            within = "class"
        alone = None
        if self.has_classes:
            rng = seeded_numpy(self.seed, "labels alone", self.target, contrast)
            alone = labels_alone_auc(self.labels[chosen], is_member[chosen], rng=rng)
        return Comparison(chosen, fair, within, alone)

    @property
    def units(self) -> UnitTruth:
        """The truth about the units of the audit: the samples themselves, or people."""
        if self.subject is None:
            return self
        people, place = np.unique(self.subject, return_inverse=True)
        origin = np.full(len(people), Origin.UNSEEN, dtype=np.int64)
        for one in (Origin.OTHER_CLIENT, Origin.MEMBER):
            origin[place[self.origin == one]] = one
        # A person of whom one sample is another partner's was decided by no coin of two sides.
        fair = np.ones(len(people), dtype=bool)
        fair[place[~self.fair]] = False
        return UnitTruth(self.target, "person", origin, fair, people)

    def of_units(self, scores: Float[ndarray, " samples"]) -> Float[ndarray, " units"]:
        """Return the score of each unit: its own, or of a person the mean over their samples.

        An infinite score counts as the largest finite one, or one that is higher than all others
        would be of no use to a mean.

        Args:
            scores: One a sample, larger for likelier members.

        Source: Kandpal et al. 2023, User inference attacks on large language models, where the
            score is a log-likelihood ratio to reference models.
        """
        if self.subject is None:
            return scores
        finite = scores[np.isfinite(scores)]
        ends = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
        return mean_by(self.subject, np.clip(scores, *ends))


def mean_by(
    subject: Int[ndarray, " samples"], values: Float[ndarray, "samples *columns"]
) -> Float[ndarray, "people *columns"]:
    """Return the mean over the samples of each person, people in ascending order."""
    place, counts = np.unique(subject, return_inverse=True, return_counts=True)[1:]
    total = np.zeros((len(counts), *values.shape[1:]))
    np.add.at(total, place, values)
    found: Float[ndarray, people * columns] = (total.T / counts).T
    return found


@dataclass
class Findings:
    """The results so far; grows attack by attack.

    Attributes:
        limits: For rates at a false-positive rate, by their place in ``figures``, their limits at
            any confidence: a mean over runs cannot be bounded from those of one confidence.
        failed: For attacks that failed, by run and target, the reason.
        uncovered: The same where the target took part in too few rounds.
        alone: The same where it took part with too few others.
    """

    figures: list[Estimate] = field(default_factory=list)
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
    uncovered: dict[str, dict[str, str]] = field(default_factory=dict)
    alone: dict[str, dict[str, str]] = field(default_factory=dict)


def target_truth(setup: Setup, target: ClientId) -> TargetTruth:
    """Return the audited samples as one target's figures see them.

    With people for units, those of other targets' panels are left out: of a person every figure
    is of a coin that was tossed for this target. So are single samples that another target's draw
    decided about, unless all clients have one label distribution: each draw follows the label
    distribution of its target, which would pass for membership.

    Where a shift makes clients differ, other clients' samples are left out: the shift
    alone distinguishes them from the target's. So are a malicious client's own, which it knows and
    does not train on in every round. Where the study asks what an evaluation finds without
    members, only unseen samples are kept, and a random half is called members.
    """
    audit, study = setup.deal.audit, setup.study
    origin = origin_of(setup, target)
    # Which of the target's partners hold a sample was no fair draw between two sides.
    fair = audit.fair_for(target) & ~np.isin(audit.owner, _partners(setup, target))
    wanted = np.ones(len(origin), dtype=bool)
    if audit.subject is not None:
        wanted &= audit.fair_for(target)
    own, alike = audit.drawn_with(target), has_equal_clients(setup)
    decided = set(np.unique(origin[own & audit.fair_for(target)]).tolist())
    drawn = {Origin.MEMBER, Origin.UNSEEN} <= decided
    if drawn and not alike:
        wanted &= own | ~np.isin(origin, [one for one in Origin if one in decided])
    if study.shift is not None:
        wanted &= origin != Origin.OTHER_CLIENT
    if study.attacker is not None:
        known = audit.owner == study.malicious_client
        if audit.subject is not None:
            known = np.isin(audit.subject, audit.subject[known])
        wanted &= ~known
    nobody = study.figures.nobody_is_a_member
    if nobody:
        wanted &= origin == Origin.UNSEEN
    kept = np.flatnonzero(wanted)
    origin, fair = origin[kept], fair[kept]
    subject = None if audit.subject is None else audit.subject[kept]
    if nobody:
        unit = np.arange(len(kept))
        if subject is not None:
            unit = np.unique(subject, return_inverse=True)[1]
        count = int(unit.max(initial=-1)) + 1
        chosen = seeded_numpy(setup.seed, "nobody", target).permutation(count) < count // 2
        origin = np.where(chosen[unit], Origin.MEMBER, Origin.UNSEEN)
        fair = np.zeros_like(fair)
    unfair = {Origin.OTHER_CLIENT, Origin.UNSEEN} - (decided if drawn else set())
    classes = bool(setup.algorithm.architecture.task.classes)
    return TargetTruth(
        target=target,
        unit="sample",
        unfair=frozenset() if alike or nobody else frozenset(unfair),
        matched=classes and study.audit.draw not in AS_PUBLISHED,
        has_classes=classes,
        seed=setup.seed,
        origin=origin,
        kept=kept,
        fair=fair,
        labels=audit.samples.labels.numpy()[kept],
        owners=audit.owner[kept],
        ids=audit.samples.ids.numpy()[kept],
        subject=subject,
    )


def repeats(contrast: str, truth: UnitTruth) -> bool:
    """Return True if the mixed contrast has one origin only, so that it is tested already."""
    missing = not all((truth.origin == origin).any() for origin in Origin)
    return contrast == "mixed" and missing


def pooled(setup: Setup, audited: Sequence[UnitTruth]) -> list[UnitTruth]:
    """Return the audited clients whose fair draws figures over all of them take together.

    There are none where all clients are alike, where some are defended and others are not, or where
    samples are redrawn as published.
    """
    mixed = len({one.target in setup.defenses for one in audited}) > 1
    if mixed or has_equal_clients(setup) or setup.study.figures.evaluation == "redraw":
        return []
    return [
        one
        for one in audited
        if {Origin.MEMBER, Origin.UNSEEN} <= set(one.origin[one.fair].tolist())
    ]


def has_equal_clients(setup: Setup) -> bool:
    """Return True if every client is known to have the same label distribution and features."""
    return setup.recorded is None and setup.study.has_equal_clients


def origin_of(setup: Setup, target: ClientId) -> Int[ndarray, " samples"]:
    """Return the origin of each sample: members are the data of all who are attacked as one."""
    origin = setup.deal.audit.origin(target)
    theirs = np.isin(setup.deal.audit.owner, _partners(setup, target))
    return np.where(theirs, Origin.MEMBER, origin).astype(np.int64)


def _partners(setup: Setup, target: ClientId) -> list[ClientId]:
    """Return the clients that are attacked together with the target."""
    merged = setup.study.audit.merge
    return [client for client in merged if client != target] if target in merged else []
