"""From measurements and the truth to figures: one run, one target, one attack at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypedDict

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fedaudit.attacks.base import Attack
from fedaudit.core import ClientId
from fedaudit.errors import Refusal
from fedaudit.metrics import (
    Estimate,
    auc_by_group,
    auc_by_owner,
    evaluate,
    most_exposed,
    one_run_epsilon,
    redraw,
    roc_curve,
    thin,
)
from fedaudit.metrics.evaluate import CONTRASTS
from fedaudit.observe.measurements import Measurements
from fedaudit.origin import Origin
from fedaudit.seeds import seeded_numpy
from fedaudit.study.config import Study
from fedaudit.study.record import Curve, ExposedSample, Figure, GroupFigure, Histogram, Trajectory
from fedaudit.study.setup import Setup

CURVE_POINTS = 120
PICTURE_DIGITS = 5
"""Significant digits of what is only drawn; figures keep all of theirs."""

HISTOGRAM_BINS = 40
GUESSED_SHARE = 0.2
"""Of the fairly drawn samples, how many the one-run epsilon bound guesses about: fixed here,
before anybody has looked at scores."""


@dataclass(frozen=True)
class Audited:
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
        """Who counts as a member."""
        members: Bool[ndarray, " samples"] = self.origin == Origin.MEMBER
        return members


@dataclass
class Findings:
    """What was found so far; grows attack by attack.

    Attributes:
        p_values: For figures tested against guessing, by their place in ``figures``.
        failed: For attacks that could not be carried out, by run and target, the reason.
    """

    figures: list[Figure] = field(default_factory=list)
    p_values: dict[int, float] = field(default_factory=dict)
    curves: list[Curve] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    histograms: list[Histogram] = field(default_factory=list)
    groups: list[GroupFigure] = field(default_factory=list)
    exposed: list[ExposedSample] = field(default_factory=list)
    scores: dict[tuple[int, ClientId, str], Float[ndarray, " samples"]] = field(
        default_factory=dict
    )
    failed: dict[str, dict[str, str]] = field(default_factory=dict)


def audited(setup: Setup, target: ClientId) -> Audited:
    """The audited samples as one target's figures see them.

    Where the study asks what an evaluation finds when nobody is a member, only unseen samples
    are kept, and a random half of them is called members.
    """
    audit = setup.deal.audit
    origin = audit.origin(target)
    kept = np.arange(len(origin))
    fair = audit.fair_for(target)
    if setup.study.figures.nobody_is_a_member:
        kept = np.flatnonzero(origin == Origin.UNSEEN)
        chosen = seeded_numpy(setup.seed, "nobody", target).permutation(len(kept)) < len(kept) // 2
        origin = np.where(chosen, Origin.MEMBER, Origin.UNSEEN)
        fair = np.zeros(len(origin), dtype=bool)
    return Audited(
        target=target,
        origin=origin[kept] if len(origin) != len(kept) else origin,
        kept=kept,
        fair=fair[kept] if len(fair) != len(kept) else fair,
        labels=audit.samples.labels.numpy()[kept],
        owners=audit.owner[kept],
        ids=audit.samples.ids.numpy()[kept],
    )


def analyse(setup: Setup, measured: Mapping[str, Measurements], findings: Findings) -> None:
    """Adds one run's figures for every target and attack.

    Args:
        setup: The run.
        measured: Its measurements by signal.
        findings: Grown in place.
    """
    for target in setup.study.audit.targets:
        truth = audited(setup, target)
        cubes = {name: _as_evaluated(setup, m, truth) for name, m in measured.items()}
        for name, cube in cubes.items():
            findings.trajectories.extend(_trajectories(setup, name, cube, truth))
        for name, attack in setup.attacks.items():
            scores = _scores(setup, name, attack, cubes, truth, findings)
            if scores is not None:
                findings.scores[setup.seed, target, name] = scores
                _add_figures(setup, name, scores, truth, findings)
                _add_pictures(setup, name, scores, truth, findings)


def _as_evaluated(setup: Setup, m: Measurements, truth: Audited) -> Measurements:
    """The kept samples' measurements, redrawn where the study asks for the published way."""
    values = m.values[:, :, torch.from_numpy(truth.kept)]
    if setup.study.figures.evaluation == "redraw":
        rng = seeded_numpy(setup.seed, "redraw", truth.target)
        values = torch.from_numpy(redraw(values.numpy(), truth.is_member, rng=rng))
    return replace(m, values=values)


def _scores(
    setup: Setup,
    name: str,
    attack: Attack,
    cubes: Mapping[str, Measurements],
    truth: Audited,
    findings: Findings,
) -> Float[ndarray, " samples"] | None:
    try:
        return attack.scores(cubes, truth.target).numpy()
    except Refusal as refusal:
        where = f"seed {setup.seed}, client {truth.target}"
        findings.failed.setdefault(name, {})[where] = f"{where}: {refusal}"
        return None


def _add_figures(
    setup: Setup,
    name: str,
    scores: Float[ndarray, " samples"],
    truth: Audited,
    findings: Findings,
) -> None:
    given = setup.study.figures
    for estimate in evaluate(scores, truth.origin, fprs=given.fprs, seed=setup.seed):
        if estimate.p_value is not None and not _repeats(estimate.contrast, truth):
            findings.p_values[len(findings.figures)] = estimate.p_value
        findings.figures.append(_figure(setup, name, truth.target, estimate))
    epsilon = _epsilon(setup, name, scores, truth)
    if epsilon is not None:
        findings.figures.append(epsilon)


def _repeats(contrast: str, truth: Audited) -> bool:
    """Whether the mixed contrast has one origin only: testing it again would cost the family."""
    missing = not all((truth.origin == origin).any() for origin in Origin)
    return contrast == "mixed" and missing


def _figure(setup: Setup, name: str, target: ClientId, estimate: Estimate) -> Figure:
    return Figure(
        attack=name,
        defense=setup.study.defense.name,
        view=setup.view.name,
        target=target,
        seed=setup.seed,
        contrast=estimate.contrast,
        metric=estimate.metric,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        method=estimate.method,
        n_members=estimate.n_members,
        n_nonmembers=estimate.n_nonmembers,
        realised_fpr=estimate.realised_fpr,
        ceiling=estimate.ceiling,
        note=estimate.note,
    )


def _epsilon(
    setup: Setup, name: str, scores: Float[ndarray, " samples"], truth: Audited
) -> Figure | None:
    """The one-run bound on members against unseen under independent fair inclusion."""
    chosen = truth.fair & (truth.origin != Origin.OTHER_CLIENT)
    guesses = 2 * int(GUESSED_SHARE * chosen.sum() / 2)
    if guesses < 2 or setup.study.figures.evaluation == "redraw":
        return None
    study = setup.study
    family = len(setup.attacks) * len(study.audit.targets) * len(study.seeds)
    bound = one_run_epsilon(
        scores[chosen],
        truth.is_member[chosen],
        guesses=guesses,
        alpha=study.figures.alpha / family,
    )
    return Figure(
        attack=name,
        defense=study.defense.name,
        view=setup.view.name,
        target=truth.target,
        seed=setup.seed,
        contrast="unseen",
        metric="epsilon",
        value=bound.value,
        low=bound.value,
        method=f"{bound.method}; error shared by {family} bounds",
        n_members=int(truth.is_member[chosen].sum()),
        n_nonmembers=int((~truth.is_member[chosen]).sum()),
        ceiling=bound.ceiling,
        note=f"lower bound from {guesses} guesses in one run; it refutes budgets, certifies none",
    )


def _add_pictures(
    setup: Setup,
    name: str,
    scores: Float[ndarray, " samples"],
    truth: Audited,
    findings: Findings,
) -> None:
    """Curves, histogram, groups and the most exposed members of one attack."""
    where = _where(setup.study, name, truth.target, setup.seed)
    for contrast, against in CONTRASTS.items():
        chosen = np.isin(truth.origin, [Origin.MEMBER, *against])
        if truth.is_member[chosen].all():
            continue
        roc = thin(roc_curve(scores[chosen], truth.is_member[chosen]), CURVE_POINTS)
        findings.curves.append(
            Curve(
                **where,
                view=setup.view.name,
                contrast=contrast,
                fpr=_rounded(roc.fpr),
                tpr=_rounded(roc.tpr),
            )
        )
    findings.histograms.append(_histogram(where, scores, truth))
    findings.groups.extend(_groups(setup, name, scores, truth))
    findings.exposed.extend(
        ExposedSample(
            **where,
            sample=int(truth.ids[one.position]),
            label=int(truth.labels[one.position]),
            above_nonmembers=one.above_nonmembers,
        )
        for one in most_exposed(scores, truth.is_member, top=setup.study.figures.most_exposed)
    )


class _Where(TypedDict):
    attack: str
    defense: str
    target: int
    seed: int


def _where(study: Study, name: str, target: ClientId, seed: int) -> _Where:
    return {"attack": name, "defense": study.defense.name, "target": target, "seed": seed}


def _histogram(where: _Where, scores: Float[ndarray, " samples"], truth: Audited) -> Histogram:
    finite = scores[np.isfinite(scores)]
    # A few extreme scores would squeeze all others into one bin; they go to the end bins.
    low, high = np.quantile(finite, [0.02, 0.98]).tolist() if len(finite) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, HISTOGRAM_BINS + 1)
    counts = {
        origin: np.histogram(np.clip(scores[truth.origin == origin], low, high), edges)[0].tolist()
        for origin in Origin
    }
    return Histogram(
        **where,
        edges=_rounded(edges),
        member=counts[Origin.MEMBER],
        other_client=counts[Origin.OTHER_CLIENT],
        unseen=counts[Origin.UNSEEN],
    )


def _groups(
    setup: Setup, name: str, scores: Float[ndarray, " samples"], truth: Audited
) -> Iterator[GroupFigure]:
    is_member = truth.is_member
    by_class = auc_by_group(scores, is_member, groups=truth.labels)
    by_owner = auc_by_owner(scores, is_member, owners=truth.owners)
    for by, contrast, rows in (
        ("class", "mixed", by_class),
        ("client", "other_client", [row for row in by_owner if row.group >= 0]),
    ):
        for row in rows:
            yield GroupFigure(
                attack=name,
                defense=setup.study.defense.name,
                contrast=contrast,
                by="class" if by == "class" else "client",
                group=str(row.group),
                target=truth.target,
                seed=setup.seed,
                value=row.value,
                low=row.low,
                high=row.high,
                n_members=row.n_members,
                n_nonmembers=row.n_nonmembers,
            )


def _trajectories(
    setup: Setup, name: str, cube: Measurements, truth: Audited
) -> Iterator[Trajectory]:
    """A signal at the target over rounds, by origin: mean and the range of the middle 80%."""
    values = cube.of(truth.target).numpy()
    for origin in Origin:
        mine = values[:, truth.origin == origin]
        if mine.shape[1]:
            yield Trajectory(
                signal=name,
                defense=setup.study.defense.name,
                target=truth.target,
                seed=setup.seed,
                origin=_ORIGIN_NAMES[origin],
                rounds=list(cube.rounds),
                mean=_finite(mine.mean(1)),
                low=_finite(np.quantile(mine, 0.1, axis=1)),
                high=_finite(np.quantile(mine, 0.9, axis=1)),
            )


_ORIGIN_NAMES: dict[Origin, Literal["member", "other_client", "unseen"]] = {
    Origin.MEMBER: "member",
    Origin.OTHER_CLIENT: "other_client",
    Origin.UNSEEN: "unseen",
}


def _rounded(values: Float[ndarray, " points"]) -> list[float]:
    return [float(f"{value:.{PICTURE_DIGITS}g}") for value in values]


def _finite(values: Float[ndarray, " rounds"]) -> list[float | None]:
    return [
        rounded if np.isfinite(value) else None
        for value, rounded in zip(values, _rounded(values), strict=True)
    ]
