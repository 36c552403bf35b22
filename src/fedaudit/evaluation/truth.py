"""Ground truth about audited samples for each target, and a container for a study's estimates."""

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
from fedaudit.datasets.draws.fair import PUBLISHED_DRAWS
from fedaudit.metrics import label_matched_mask, labels_alone_auc
from fedaudit.metrics.catalogue import CONTRASTS
from fedaudit.metrics.intervals import LimitsAt
from fedaudit.plan.parts import Setup
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Curve, ExposedSample, Histogram, Trajectory


class RunFields(TypedDict):
    """Fields that all estimates and controls of a run share."""

    defense: str
    seed: int


class RunAndViewFields(RunFields):
    """Fields that all estimates of attacks in a run share."""

    view: str


def fields_of_run(run: Setup) -> RunFields:
    """Return the defense and the seed of a run."""
    return {"defense": run.study.defense.label, "seed": run.seed}


def fields_of_run_and_view(run: Setup) -> RunAndViewFields:
    """Return the defense, the seed and the view of a run."""
    return {**fields_of_run(run), "view": run.view.name}


class Comparison(NamedTuple):
    """Members and non-members that are compared in one contrast.

    Attributes:
        mask: Whether each unit is compared.
        fair: Whether a fair draw decided which of these units are members.
        within: "class" if members and non-members are matched by class; "client" if units are only
            compared with units from the draw of the same client; otherwise empty.
        labels_alone: AUC of the best score that depends only on labels; None if unknown.
    """

    mask: Bool[ndarray, " units"]
    fair: bool = True
    within: Literal["", "class", "client"] = ""
    labels_alone: float | None = None


@dataclass(frozen=True)
class UnitTruth:
    """Ground truth of one target's audited units.

    Attributes:
        target: The audited client.
        unit: Unit of membership: "sample" or "person".
        origin: Origin of each unit. A person with samples at several clients is a member if the
            target is one of these clients.
        fair: Whether a fair draw decided if the unit is a member or held out.
        ids: Ids of the units in the data set, or numbers of people.
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
        return {name: Comparison(self._mask_of(name)) for name in CONTRASTS}

    @property
    def control_comparison(self) -> Comparison:
        """Comparison for controls: only held-out samples if other non-members are not fair."""
        # With unfair non-members, controls would detect differences between clients.
        mixed, unseen = self.comparisons["mixed"], self.comparisons["unseen"]
        has_both = 0 < self.is_member[unseen.mask].sum() < unseen.mask.sum()
        return unseen if unseen.fair and has_both and not mixed.fair else mixed

    def _mask_of(self, contrast: str) -> Bool[ndarray, " units"]:
        mask: Bool[ndarray, " units"] = np.isin(self.origin, [Origin.MEMBER, *CONTRASTS[contrast]])
        return mask


@dataclass(frozen=True)
class TargetTruth(UnitTruth):
    """Ground truth of one target's audited samples.

    Attributes:
        positions: Positions of the samples in the audit set.
        labels: Class of each sample.
        owners: Client that trained on each sample.
        person: Person of each sample, if people are the units of the audit.
        unfair: Origins of non-members that do not come from the fair draw of this target.
        match_classes: Whether members and unfair non-members are matched by class.
        has_classes: Whether labels are classes.
        seed: Root seed of random choices in comparisons.
    """

    positions: Int[ndarray, " units"]
    labels: Int[ndarray, " units"]
    owners: Int[ndarray, " units"]
    person: Int[ndarray, " units"] | None = None
    unfair: frozenset[Origin] = frozenset()
    match_classes: bool = False
    has_classes: bool = False
    seed: int = 0

    @cached_property
    def comparisons(self) -> Mapping[str, Comparison]:
        """Members and non-members of each contrast, matched by class if necessary."""
        return {name: self._comparison(name) for name in CONTRASTS}

    def _comparison(self, contrast: str) -> Comparison:
        mask, is_member = self._mask_of(contrast), self.is_member
        origins = {Origin(int(code)) for code in np.unique(self.origin[mask & ~is_member])}
        fair = not origins & self.unfair
        within: Literal["", "class"] = ""
        if not fair and self.match_classes and origins:
            rng = seeded_numpy(self.seed, "matched in class", self.target, contrast)
            positions = np.flatnonzero(mask)
            is_matched = label_matched_mask(self.labels[positions], is_member[positions], rng=rng)
            mask = np.isin(np.arange(len(mask)), positions[is_matched])
            within = "class"
        labels_alone = None
        if self.has_classes:
            rng = seeded_numpy(self.seed, "labels alone", self.target, contrast)
            labels_alone = labels_alone_auc(self.labels[mask], is_member[mask], rng=rng)
        return Comparison(mask, fair, within, labels_alone)

    @property
    def units(self) -> UnitTruth:
        """Ground truth of the units of the audit (samples or people)."""
        if self.person is None:
            return self
        people, person = np.unique(self.person, return_inverse=True)
        origin = np.full(len(people), Origin.UNSEEN, dtype=np.int64)
        # Assign members last, since a person with one sample at the target is a member.
        for code in (Origin.OTHER_CLIENT, Origin.MEMBER):
            origin[person[self.origin == code]] = code
        # A person is not fairly drawn if a client that is attacked together with the target has one
        # of the person's samples.
        fair = np.ones(len(people), dtype=bool)
        fair[person[~self.fair]] = False
        return UnitTruth(self.target, "person", origin, fair, people)

    def unit_scores(self, scores: Float[ndarray, " samples"]) -> Float[ndarray, " units"]:
        """Return the score of each unit; a person's score is the mean over their samples.

        Infinite scores are replaced by the largest or smallest finite score, since a single
        infinite score would otherwise determine the mean.

        Source: Kandpal et al. 2023, User inference attacks on large language models, where the
            score is a log-likelihood ratio to reference models.
        """
        if self.person is None:
            return scores
        finite = scores[np.isfinite(scores)]
        limits = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
        return mean_by(self.person, np.clip(scores, *limits))


def mean_by(
    person: Int[ndarray, " samples"], values: Float[ndarray, "samples *columns"]
) -> Float[ndarray, "people *columns"]:
    """Return the mean over the samples of each person, for people in ascending order."""
    row, counts = np.unique(person, return_inverse=True, return_counts=True)[1:]
    total = np.zeros((len(counts), *values.shape[1:]))
    np.add.at(total, row, values)
    means: Float[ndarray, people * columns] = (total.T / counts).T
    return means


@dataclass
class EvaluationResults:
    """Estimates, curves and scores of a study, to which each attack adds its results.

    Attributes:
        limits: Limits of rates at any confidence level, by index in ``estimates``. They are needed
            to bound means over runs.
        failed: Errors of failed attacks, by attack, and by run and target.
        too_few_rounds: The same for targets that participated in too few rounds for an attack.
        too_few_peers: The same for targets that participated with too few other clients.
    """

    estimates: list[Estimate] = field(default_factory=list)
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
    too_few_rounds: dict[str, dict[str, str]] = field(default_factory=dict)
    too_few_peers: dict[str, dict[str, str]] = field(default_factory=dict)


def target_truth(setup: Setup, target: ClientId) -> TargetTruth:
    """Return the ground truth of the audited samples on which one target is evaluated.

    Some samples are left out:

    - If people are units: people from other targets' draws, because their membership at this target
      was not drawn at random.
    - If label distributions differ between clients: samples from other targets' draws. Each draw
      follows the label distribution of its target, and an attack could mistake this difference for
      membership.
    - If each client measured only its own samples: all samples of other clients.
    - If a shift makes clients differ: other clients' samples, because their features distinguish
      them from the target's samples.
    - A malicious client's samples, which it knows and does not train on in every round.
    - In the control with null members: all samples except held-out samples. A random half of the
      held-out samples then count as members, although no client trained on them.
    """
    audit, study = setup.assignment.audit, setup.study
    origin = origin_of(setup, target)
    # Several clients that are attacked as one share their members, but the fair draw decided only
    # about the target's.
    fair = audit.fair_for(target) & ~np.isin(audit.owner, _partners(setup, target))
    is_used = np.ones(len(origin), dtype=bool)
    if audit.person is not None:
        is_used &= audit.fair_for(target)
    drawn_for_target, equal_clients = audit.drawn_with(target), has_iid_clients(setup)
    drawn_origins = set(np.unique(origin[drawn_for_target & audit.fair_for(target)]).tolist())
    has_draw = {Origin.MEMBER, Origin.UNSEEN} <= drawn_origins
    if has_draw and not equal_clients:
        is_used &= drawn_for_target | ~np.isin(origin, sorted(drawn_origins))
    if setup.recording_info is not None and setup.recording_info.is_separate:
        is_used &= drawn_for_target
    if study.shift is not None:
        is_used &= origin != Origin.OTHER_CLIENT
    if study.attacker is not None:
        is_known = audit.owner == study.malicious_client
        if audit.person is not None:
            is_known = np.isin(audit.person, audit.person[is_known])
        is_used &= ~is_known
    null_members = study.figures.null_members
    if null_members:
        is_used &= origin == Origin.UNSEEN
    positions = np.flatnonzero(is_used)
    origin, fair = origin[positions], fair[positions]
    person = None if audit.person is None else audit.person[positions]
    if null_members:
        unit = np.arange(len(positions))
        if person is not None:
            unit = np.unique(person, return_inverse=True)[1]
        count = int(unit.max(initial=-1)) + 1
        is_null_member = seeded_numpy(setup.seed, "nobody", target).permutation(count) < count // 2
        origin = np.where(is_null_member[unit], Origin.MEMBER, Origin.UNSEEN)
        fair = np.zeros_like(fair)
    unfair = {Origin.OTHER_CLIENT, Origin.UNSEEN} - (drawn_origins if has_draw else set())
    classes = bool(setup.algorithm.architecture.task.classes)
    return TargetTruth(
        target=target,
        unit="sample",
        unfair=frozenset() if equal_clients or null_members else frozenset(unfair),
        match_classes=classes and study.audit.draw not in PUBLISHED_DRAWS,
        has_classes=classes,
        seed=setup.seed,
        origin=origin,
        positions=positions,
        fair=fair,
        labels=audit.samples.labels.numpy()[positions],
        owners=audit.owner[positions],
        ids=audit.samples.ids.numpy()[positions],
        person=person,
    )


def repeats_other_contrast(contrast: str, truth: UnitTruth) -> bool:
    """Return True if the contrast "mixed" has the same units as another contrast.

    This is true if all non-members are held out, or all belong to other clients.
    """
    has_one_origin = not all((truth.origin == origin).any() for origin in Origin)
    return contrast == "mixed" and has_one_origin


def pooled_targets(setup: Setup, truths: Sequence[UnitTruth]) -> list[UnitTruth]:
    """Return the audited clients whose fair draws are pooled in estimates over all clients.

    The list is empty if all clients have the same distribution, or if only some are defended. It is
    also empty if the evaluation redraws non-members in every round, as published code does.
    """
    is_mixed = len({truth.target in setup.defenses for truth in truths}) > 1
    if is_mixed or has_iid_clients(setup) or setup.study.figures.evaluation == "redraw":
        return []
    return [
        truth
        for truth in truths
        if {Origin.MEMBER, Origin.UNSEEN} <= set(truth.origin[truth.fair].tolist())
    ]


def has_iid_clients(setup: Setup) -> bool:
    """Return True if all clients are known to have the same distribution of labels and features."""
    return setup.recording_info is None and setup.study.has_iid_clients


def origin_of(setup: Setup, target: ClientId) -> Int[ndarray, " samples"]:
    """Return the origin of each sample; if clients are attacked as one, all their samples count."""
    origin = setup.assignment.audit.origin(target)
    of_partners = np.isin(setup.assignment.audit.owner, _partners(setup, target))
    return np.where(of_partners, Origin.MEMBER, origin).astype(np.int64)


def _partners(setup: Setup, target: ClientId) -> list[ClientId]:
    merged = setup.study.audit.merge
    return [client for client in merged if client != target] if target in merged else []
