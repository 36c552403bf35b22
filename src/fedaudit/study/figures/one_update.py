"""Figures on one client's update by canary clients, and the check of what is claimed."""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from fedaudit.core.metric_names import (
    CLAIMED_CLIENT_EPSILON,
    CLAIMED_CLIENT_EPSILON_ALONE,
    CLIENT_EPSILON,
    CLIENT_EPSILON_IF_GAUSSIAN,
)
from fedaudit.defenses.accounting import FORMAL_DELTA
from fedaudit.metrics.canaries import CanaryBounds, canary_bounds
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import ControlResult
from fedaudit.study.setup.canaries import Canaries
from fedaudit.study.setup.parts import Setup


class CanaryRun(NamedTuple):
    """A run's canary clients, as they were measured.

    Attributes:
        run: The run.
        canaries: Its own.
        z: The statistic of each; see :func:`fedaudit.observe.canaries.canary_statistics`.
    """

    run: Setup
    canaries: Canaries
    z: Float[ndarray, " canaries"]


def one_update_figures(found: Sequence[CanaryRun]) -> list[Estimate]:
    """Bounds on the epsilon of one client's update by canary clients, and what is claimed.

    Of each run, and of all canaries of several runs together: each is a coin of its own, and of
    five bounds at 95 % one in four times one is wrong.

    Args:
        found: The runs of one study that have canary clients.
    """
    figures = [figure for one in found for figure in _one_update([one], one.run.seed)]
    return figures + (_one_update(found, None) if len(found) > 1 else [])


def _together(found: Sequence[CanaryRun], alpha: float) -> CanaryBounds:
    return canary_bounds(
        np.concatenate([one.z for one in found]),
        np.concatenate([one.canaries.sends for one in found]),
        delta=FORMAL_DELTA,
        alpha=alpha,
        every_round=found[0].run.study.training.participation == 1,
    )


_ONE_UPDATE = (
    "unit: one client's whole contribution (its updates or zeros, weight and noise as they are), "
    "to whoever has the first and the last global model"
)


def _one_update(found: Sequence[CanaryRun], seed: int | None) -> list[Estimate]:
    first, bounds = found[0].run, _together(found, 0.05)
    canaries = [one.canaries for one in found]
    inside = sum(int(one.sends.sum()) for one in canaries)
    figure = partial(
        Estimate,
        defense=first.study.defense.label,
        view=first.view.name,
        contrast="unseen",
        seed=seed,
        n_members=inside,
        n_nonmembers=sum(len(one.clients) for one in canaries) - inside,
    )
    measured = [
        figure(
            metric=name, value=one.value, ceiling=one.ceiling, method=one.method, note=_ONE_UPDATE
        )
        for name, one in (
            (CLIENT_EPSILON, bounds.one_run),
            (CLIENT_EPSILON_IF_GAUSSIAN, bounds.mean_only),
        )
        if one is not None
    ]
    claims = {
        CLAIMED_CLIENT_EPSILON: [one.claimed for one in canaries],
        CLAIMED_CLIENT_EPSILON_ALONE: [one.claimed_without for one in canaries],
    }
    for metric, values in claims.items():
        whole = [value for value in values if value is not None]
        if not whole and not canaries[0].unclaimed:
            continue
        finite = bool(whole) and math.isfinite(max(whole))
        nothing = canaries[0].unclaimed or "without noise there is no guarantee"
        measured.append(
            figure(
                metric=metric,
                value=max(whole) if finite else None,
                method=f"Renyi accountant, delta {FORMAL_DELTA:g}",
                note=f"{_ONE_UPDATE}; the noise of all clients in the average, no amplification by "
                "sampling"
                if finite
                else nothing,
            )
        )
    return measured


_CLAIM_ERROR = 0.01
"""How often a sound claim may be called refuted."""


def claim_checked(found: Sequence[CanaryRun]) -> list[ControlResult]:
    """The control that all canaries together do not refute the claim; none without a claim.

    Args:
        found: The runs of one study that have canary clients.
    """
    claims = [one.canaries.claimed for one in found]
    known = [claim for claim in claims if claim is not None and math.isfinite(claim)]
    if not known:
        return []
    bounds, claimed = _together(found, _CLAIM_ERROR), max(known)
    best = max(
        (one for one in (bounds.one_run, bounds.mean_only) if one is not None),
        key=lambda one: one.value,
    )
    return [
        ControlResult(
            control="claimed epsilon",
            defense=found[0].run.study.defense.label,
            expected="canary clients do not refute what the defense claims for one client's update",
            value=None,
            passed=best.value <= claimed,
            note=f"epsilon at least {best.value:.3f} ({best.method}), claimed {claimed:.3f}",
        )
    ]
