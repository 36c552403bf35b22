"""The smallest leak that a study of its size finds, in sentences, before anything is trained."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedaudit.core.metric_names import Origin
from fedaudit.core.seeds import seeded_numpy
from fedaudit.metrics.evaluate import CONTRASTS
from fedaudit.metrics.larger import smallest_auc
from fedaudit.metrics.rate_limits import inconclusive
from fedaudit.study.figures.truth import UnitTruth, pooled, repeats, target_truth
from fedaudit.study.setup.parts import Setup

POWER = 0.8


class _Compared(NamedTuple):
    """Members and non-members that figures of each attack compare.

    Attributes:
        who: The client, or all of them.
        contrast: The non-members.
        strata: Members and non-members of each client.
    """

    who: str
    contrast: str
    strata: tuple[tuple[int, int], ...]


def smallest_leaks(run: Setup) -> list[str]:
    """Return sentences on the smallest leak that is found four times in five.

    Args:
        run: The study's first run; further ones are as large, nearly.
    """
    if not run.on_membership:
        return []
    study = run.study
    audited = [target_truth(run, target).units for target in study.audit.targets]
    compared = [*_alone(run, audited), *_together(run, audited)]
    tests = len(run.on_membership) * sum(_tests(one, study.figures.fprs) for one in compared)
    found = dict[str, tuple[float, _Compared]]()
    for one in compared:
        least = smallest_auc(
            one.strata,
            tests=tests,
            rng=seeded_numpy(study.seeds[0], "smallest leak"),
            runs=len(study.seeds),
            alpha=study.figures.alpha,
            power=POWER,
        )
        if least is not None and least < found.get(one.who, (2.0, one))[0]:
            found[one.who] = least, one
    seeds = "1 seed" if len(study.seeds) == 1 else f"{len(study.seeds)} seeds"
    size = (
        f"{len(run.on_membership)} attacks on {seeds}, {tests} tests that share an error of "
        f"{study.figures.alpha:.0%} (Holm)"
    )
    if not found:
        return [
            f"no leak is large enough to be found by a study of this size ({size}); audit more "
            "samples (audit.fair) or seeds"
        ]
    ranked = sorted(found.values(), key=lambda one: one[0])
    lost = len({one.who for one in compared}) - len(found)
    ends = dict.fromkeys(f"{least:.3f} ({_sizes(one)})" for least, one in (ranked[0], ranked[-1]))
    return [
        f"smallest leak that is found four times in five: an AUC of {' to '.join(ends)}; {size}"
        + (f"; none is found at {lost} of the audited clients" if lost else "")
    ]


def _alone(run: Setup, audited: Sequence[UnitTruth]) -> Iterator[_Compared]:
    for truth in audited:
        for contrast, comparison in truth.comparisons.items():
            is_member = truth.is_member[comparison.chosen]
            sides = int(is_member.sum()), int((~is_member).sum())
            if all(sides) and not repeats(contrast, truth):
                yield _Compared(run.called(truth.target), contrast, (sides,))


def _together(run: Setup, audited: Sequence[UnitTruth]) -> Iterator[_Compared]:
    parts = [one.origin[one.fair] for one in pooled(run, audited)]
    present = set(np.concatenate(parts).tolist()) if len(parts) > 1 else set()
    for contrast, against in CONTRASTS.items():
        if present and present.issuperset(against):
            strata = tuple(
                (int((one == Origin.MEMBER).sum()), int(np.isin(one, against).sum()))
                for one in parts
            )
            yield _Compared("all audited clients together", contrast, strata)


def _tests(one: _Compared, fprs: Sequence[float]) -> int:
    """Tests of one attack: of its AUC, and of each rate that so many non-members show."""
    others = sum(others for _, others in one.strata)
    return 1 + sum(not inconclusive(fpr, others) for fpr in fprs)


def _sizes(one: _Compared) -> str:
    members, others = (sum(side) for side in zip(*one.strata, strict=True))
    kinds = {"other_client": "other clients'", "unseen": "unseen", "mixed": "other"}
    return f"{one.who}, {members} members against {others} {kinds[one.contrast]} samples"
