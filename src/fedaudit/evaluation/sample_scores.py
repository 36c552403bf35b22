"""Scores of audited samples, for paired comparisons of attacks.

They are stored in the file ``scores.safetensors`` in a study's folder, with ids and origins of the
samples of each run and target. Records contain no scores, so they can be shared.
"""

from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import SCORES_FILE
from fedaudit.core.metric_names import AUC, Origin
from fedaudit.core.values import ClientId
from fedaudit.evaluation.truth import EvaluationResults, target_truth
from fedaudit.metrics import CONTRASTS, auc, compare_auc
from fedaudit.metrics.delong import AucDifference
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.plan.parts import Setup
from fedaudit.results.record import Record

_MAX_DIGITS = 20
_ROUNDING_ERROR = 1e-9
_MIN_COMMON = 0.9
"""Fraction of samples that must have the same origin in two runs for a paired comparison."""


class SampleScores(NamedTuple):
    """The audited samples of one run and target, with the scores of all attacks.

    Attributes:
        ids: Ids in the data set.
        origin: ``Origin`` of each sample.
        by_attack: Scores by name of the attack; a larger score suggests a member.
    """

    ids: Int[ndarray, " samples"]
    origin: Int[ndarray, " samples"]
    by_attack: Mapping[str, Float[ndarray, " samples"]]


Scores = Mapping[tuple[int, ClientId], SampleScores]
"""Scores by seed of the run and target."""


def write_scores(runs: Sequence[Setup], results: EvaluationResults, path: Path) -> None:
    """Write the scores of a study's attacks.

    Raises:
        BadInput: The file cannot be written.
    """
    tensors: dict[str, torch.Tensor] = {}
    for run in runs:
        for target in run.study.audit.targets:
            prefix = f"{run.seed}/{target}"
            by_attack = {
                f"{prefix}/scores/{name}": torch.from_numpy(np.ascontiguousarray(scores))
                for (seed, client, name), scores in results.scores.items()
                if (seed, client) == (run.seed, target)
            }
            if by_attack:
                truth = target_truth(run, target).units
                tensors[f"{prefix}/ids"] = torch.from_numpy(truth.ids)
                tensors[f"{prefix}/origin"] = torch.from_numpy(truth.origin)
                tensors |= by_attack
    if tensors:
        write_tensors(tensors, path, owner_only=True)


def read_scores(path: Path) -> Scores:
    """Return the scores in the file of a study.

    Raises:
        BadInput: The file does not exist.
        Damaged: The file cannot be read or contains something other than scores.
    """
    tensors, _ = read_tensors(path)
    scores: dict[tuple[int, ClientId], SampleScores] = {}
    for name, values in tensors.items():
        seed, target, key = (*name.split("/", 2), "", "")[:3]
        # Limit the length, since converting a string of digits takes quadratic time.
        are_numbers = all(t.isdecimal() and len(t) <= _MAX_DIGITS for t in (seed, target))
        if not are_numbers or values.ndim != 1:
            raise Damaged(
                f"{path} contains {name[:80]!r}, which are not scores of a study; restore the file "
                "from a copy, or write it again with `fedaudit attack`"
            )
        run = (int(seed), int(target))
        if key == "ids":
            origin = tensors.get(f"{seed}/{target}/origin")
            are_integers = origin is not None and {origin.dtype, values.dtype} == {torch.int64}
            if origin is None or origin.shape != values.shape or not are_integers:
                raise Damaged(f"{path} has no origins of the samples of {seed}/{target}")
            if not set(origin.tolist()) <= {*Origin}:
                raise Damaged(f"{path} has unknown origins of the samples of {seed}/{target}")
            scores[run] = SampleScores(values.numpy(), origin.numpy(), {})
        elif key.startswith("scores/"):
            samples = scores.get(run)
            has_ids = samples is not None and samples.ids.shape == tuple(values.shape)
            if samples is None or not has_ids or not _are_scores(values):
                raise Damaged(f"{path} has scores of {name[:80]!r} without the ids of the samples")
            by_attack = {**samples.by_attack, key.removeprefix("scores/"): values.numpy()}
            scores[run] = samples._replace(by_attack=by_attack)
    return scores


def _are_scores(values: torch.Tensor) -> bool:
    return values.is_floating_point() and not bool(values.isnan().any())


def raise_if_scores_of_another_record(record: Record, stored: Scores) -> None:
    """Raise if an AUC of a record differs from the AUC of the scores in its folder.

    Raises:
        Damaged: The scores of an attack have another AUC.
    """
    for estimate in record.findings:
        # Estimates with `within` use a subset of the units that the file does not contain.
        if estimate.metric != AUC or estimate.value is None or estimate.within:
            continue
        if estimate.seed is None or estimate.target is None:
            continue
        samples = stored.get((estimate.seed, estimate.target))
        scores = None if samples is None else samples.by_attack.get(estimate.attack)
        if samples is None or scores is None:
            continue
        is_compared = np.isin(samples.origin, [Origin.MEMBER, *CONTRASTS[estimate.contrast]])
        is_member = samples.origin[is_compared] == Origin.MEMBER
        if is_member.all() or not is_member.any():
            continue
        if not isclose(
            auc(scores[is_compared], is_member), estimate.value, abs_tol=_ROUNDING_ERROR
        ):
            raise Damaged(
                f"the scores of {estimate.attack} in {SCORES_FILE} do not give the AUC of the "
                "record, so one of the files was altered or belongs to another result; write both "
                "files again with `fedaudit attack`"
            )


def paired_auc(
    first: SampleScores, attack: str, second: SampleScores, second_attack: str, contrast: str
) -> AucDifference:
    """Return the difference in AUC between two attacks, or between two runs of an attack.

    Samples with different origins in the two runs are left out. For example, samples that a defense
    holds out for validation are not members.

    Args:
        first: Scores of a run and target.
        attack: Name of the attack in ``first``.
        second: Scores of the same run, or of another run with the same audited samples.
        second_attack: Name of the attack in ``second``; its AUC is subtracted.
        contrast: Non-members: "other_client", "unseen" or "mixed".

    Raises:
        BadInput: The audited samples differ, more than one in ten has another origin, or an attack
            has no scores.

    Source: DeLong, DeLong and Clarke-Pearson 1988, by :func:`fedaudit.metrics.compare_auc`.
    """
    for scores, name in ((first, attack), (second, second_attack)):
        if name not in scores.by_attack:
            raise BadInput(
                f"there are no scores of {name!r}; choose one of {', '.join(scores.by_attack)}"
            )
    if not np.array_equal(first.ids, second.ids):
        raise BadInput(
            "the two runs have different audited samples; take runs with the same data and draw"
        )
    common = first.origin == second.origin
    if common.mean() < _MIN_COMMON:
        raise BadInput(
            f"only {common.mean():.0%} of the audited samples have the same origin in both runs, "
            f"but a paired comparison needs {_MIN_COMMON:.0%}; take runs with the same draw"
        )
    compared = common & np.isin(first.origin, [Origin.MEMBER, *CONTRASTS[contrast]])
    return compare_auc(
        first.by_attack[attack][compared],
        second.by_attack[second_attack][compared],
        is_member=first.origin[compared] == Origin.MEMBER,
    )
