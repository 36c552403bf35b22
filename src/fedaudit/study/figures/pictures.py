"""Data for plots of one attack: curves, histograms, groups, trajectories, exposed samples."""

from collections.abc import Iterator
from typing import Literal, TypedDict

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from fedaudit.core.metric_names import AUC
from fedaudit.core.origin import Origin
from fedaudit.core.values import ClientId
from fedaudit.metrics import auc_by_group, auc_by_owner, most_exposed, roc_curve, thin
from fedaudit.metrics.evaluate import CONTRASTS
from fedaudit.observe.measurements import Measurements
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Curve, ExposedSample, Histogram, Trajectory
from fedaudit.study.figures.truth import Findings, TargetTruth
from fedaudit.study.settings.sections import Study
from fedaudit.study.setup.parts import Setup

CURVE_POINTS = 120
HISTOGRAM_BINS = 40
PICTURE_DIGITS = 5
"""Significant digits of what is only drawn; figures keep all of theirs."""


def add_pictures(
    setup: Setup,
    name: str,
    scores: Float[ndarray, " samples"],
    truth: TargetTruth,
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
    return {"attack": name, "defense": study.defense.label, "target": target, "seed": seed}


def _histogram(where: _Where, scores: Float[ndarray, " samples"], truth: TargetTruth) -> Histogram:
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
    setup: Setup, name: str, scores: Float[ndarray, " samples"], truth: TargetTruth
) -> Iterator[Estimate]:
    is_member = truth.is_member
    by_class = auc_by_group(scores, is_member, groups=truth.labels)
    by_owner = auc_by_owner(scores, is_member, owners=truth.owners)
    for by, contrast, rows in (
        ("class", "mixed", by_class),
        ("client", "other_client", [row for row in by_owner if row.group >= 0]),
    ):
        for row in rows:
            yield Estimate(
                metric=AUC,
                attack=name,
                defense=setup.study.defense.label,
                contrast=contrast,
                by="class" if by == "class" else "client",
                group=str(row.group),
                target=truth.target,
                seed=setup.seed,
                value=row.value,
                low=row.low,
                high=row.high,
                method="" if row.low is None else "DeLong 95%",
                n_members=row.n_members,
                n_nonmembers=row.n_nonmembers,
            )


def trajectories(
    setup: Setup, name: str, cube: Measurements, truth: TargetTruth
) -> Iterator[Trajectory]:
    """A signal at the target over rounds, by origin: mean and the range of the middle 80%."""
    values = cube.of(truth.target).numpy()
    for origin in Origin:
        mine = values[:, truth.origin == origin]
        if mine.shape[1]:
            yield Trajectory(
                signal=name,
                defense=setup.study.defense.label,
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
