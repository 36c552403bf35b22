"""Scores of audited samples, kept next to the record for paired differences.

A record has no scores, so that it can be shared. ``scores.safetensors`` in the folder of
a study holds them: for each run and target the samples' ids and origins, and each attack's scores.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.metric_names import Origin
from fedaudit.core.values import ClientId
from fedaudit.evaluation.truth import Findings, target_truth
from fedaudit.metrics import CONTRASTS, compare_auc
from fedaudit.metrics.delong import AucDifference
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.plan.parts import Setup

_LONGEST_NUMBER = 20
LEAST_COMMON = 0.9
"""Share of the samples that must come from the same clients in two runs that make pairs."""


class SampleScores(NamedTuple):
    """The audited samples of one run and target, with every attack's scores.

    Attributes:
        ids: In the data set.
        origin: ``Origin`` values: where each sample comes from.
        by_attack: By catalogue name; larger for likelier members.
    """

    ids: Int[ndarray, " samples"]
    origin: Int[ndarray, " samples"]
    by_attack: Mapping[str, Float[ndarray, " samples"]]


Scores = Mapping[tuple[int, ClientId], SampleScores]
"""By root seed of the run and target client."""


def write_scores(runs: Sequence[Setup], findings: Findings, path: Path) -> None:
    """Write the scores of a study's attacks.

    Raises:
        BadInput: The file cannot be written.
    """
    tensors: dict[str, torch.Tensor] = {}
    for run in runs:
        for target in run.study.audit.targets:
            whose = f"{run.seed}/{target}"
            scored = {
                f"{whose}/scores/{name}": torch.from_numpy(np.ascontiguousarray(scores))
                for (seed, client, name), scores in findings.scores.items()
                if (seed, client) == (run.seed, target)
            }
            if scored:
                truth = target_truth(run, target).units
                tensors[f"{whose}/ids"] = torch.from_numpy(truth.ids)
                tensors[f"{whose}/origin"] = torch.from_numpy(truth.origin)
                tensors |= scored
    if tensors:
        write_tensors(tensors, path, private=True)


def read_scores(path: Path) -> Scores:
    """Return the attacks' scores that a study kept.

    Raises:
        BadInput: There is no such file.
        Damaged: It cannot be read, or is of something else.
    """
    tensors, _ = read_tensors(path)
    found: dict[tuple[int, ClientId], SampleScores] = {}
    for name, values in tensors.items():
        seed, target, what = (*name.split("/", 2), "", "")[:3]
        # To read thousands of digits takes long.
        numbers = all(one.isdecimal() and len(one) <= _LONGEST_NUMBER for one in (seed, target))
        if not numbers or values.ndim != 1:
            raise Damaged(f"{path} holds {name[:80]!r}, which is no scores of a study")
        key = (int(seed), int(target))
        if what == "ids":
            origin = tensors.get(f"{seed}/{target}/origin")
            whole = origin is not None and {origin.dtype, values.dtype} == {torch.int64}
            if origin is None or origin.shape != values.shape or not whole:
                raise Damaged(f"{path} does not say where the samples of {seed}/{target} are from")
            found[key] = SampleScores(values.numpy(), origin.numpy(), {})
        elif what.startswith("scores/"):
            at = found.get(key)
            fits = at is not None and at.ids.shape == tuple(values.shape)
            if at is None or not fits or not _are_scores(values):
                raise Damaged(
                    f"{path} has scores of {name[:80]!r} for samples that it does not name"
                )
            by_attack = {**at.by_attack, what.removeprefix("scores/"): values.numpy()}
            found[key] = at._replace(by_attack=by_attack)
    return found


def _are_scores(values: torch.Tensor) -> bool:
    return values.is_floating_point() and not bool(values.isnan().any())


def paired_auc(
    one: SampleScores, attack: str, other: SampleScores, other_attack: str, contrast: str
) -> AucDifference:
    """Return one attack's AUC less another's, or less that of the same attack on another run.

    Samples that come from elsewhere in the other run are left out on both sides: a defense may
    keep some of its client's samples to validate by, which it then does not train on.

    Args:
        one: A run and target.
        attack: Whose AUC there is taken.
        other: The same run, or another with the same audited samples.
        other_attack: Whose AUC there is subtracted.
        contrast: Members against "other_client", "unseen" or "mixed" non-members.

    Raises:
        BadInput: The two were not asked about the same samples, or one in ten or more come from
            elsewhere in the other run, or an attack has no scores.

    Source: DeLong, DeLong and Clarke-Pearson 1988, by :func:`fedaudit.metrics.compare_auc`.
    """
    for side, name in ((one, attack), (other, other_attack)):
        if name not in side.by_attack:
            raise BadInput(
                f"there are no scores of {name!r}; there are {', '.join(side.by_attack)}"
            )
    if not np.array_equal(one.ids, other.ids):
        raise BadInput("the two runs audited other samples: no pairs")
    common = one.origin == other.origin
    if common.mean() < LEAST_COMMON:
        raise BadInput(
            f"only {common.mean():.0%} of the audited samples come from the same clients in both "
            "runs: no pairs"
        )
    kept = common & np.isin(one.origin, [Origin.MEMBER, *CONTRASTS[contrast]])
    return compare_auc(
        one.by_attack[attack][kept],
        other.by_attack[other_attack][kept],
        is_member=one.origin[kept] == Origin.MEMBER,
    )
