"""Stored scores reproduce the estimates of a record."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import SCORES_FILE
from fedaudit.core.metric_names import Origin
from fedaudit.evaluation.sample_scores import SampleScores, paired_auc, read_scores
from fedaudit.metrics import auc_interval
from fedaudit.observe.tensors import write_tensors
from tests.study.studies import Carried


def test_every_auc_of_the_record_follows_from_the_scores(small: Carried) -> None:
    scores = read_scores(small.folder / SCORES_FILE)
    figures = [f for f in small.record.findings if f.metric == "auc" and f.contrast == "unseen"]
    of_runs = [f for f in figures if f.seed is not None and f.value is not None]
    assert len(of_runs) > 5
    for figure in of_runs:
        assert figure.seed is not None
        assert figure.target is not None
        scores_of_run = scores[figure.seed, figure.target]
        is_compared = np.isin(scores_of_run.origin, [Origin.MEMBER, Origin.UNSEEN])
        interval = auc_interval(
            scores_of_run.by_attack[figure.attack][is_compared],
            scores_of_run.origin[is_compared] == Origin.MEMBER,
        )
        assert interval.value == pytest.approx(figure.value, abs=1e-12)


def test_the_difference_of_two_attacks_is_antisymmetric(small: Carried) -> None:
    sample_scores = next(iter(read_scores(small.folder / SCORES_FILE).values()))
    first, second, *_ = sample_scores.by_attack
    gap = paired_auc(sample_scores, first, sample_scores, second, "mixed")
    turned = paired_auc(sample_scores, second, sample_scores, first, "mixed")
    assert gap.value == pytest.approx(-turned.value)
    assert paired_auc(sample_scores, first, sample_scores, first, "mixed").value == 0


def test_runs_with_different_samples_are_not_compared(small: Carried) -> None:
    sample_scores = next(iter(read_scores(small.folder / SCORES_FILE).values()))
    first = next(iter(sample_scores.by_attack))
    with pytest.raises(BadInput, match="different audited samples"):
        paired_auc(
            sample_scores, first, sample_scores._replace(ids=sample_scores.ids + 1), first, "mixed"
        )
    moved = np.where(
        np.arange(len(sample_scores.ids)) % 5 == 0, Origin.UNSEEN.value, sample_scores.origin
    )
    with pytest.raises(BadInput, match="have the same origin"):
        paired_auc(sample_scores, first, sample_scores._replace(origin=moved), first, "mixed")
    with pytest.raises(BadInput, match="no scores of 'nobody'"):
        paired_auc(sample_scores, first, sample_scores, "nobody", "mixed")


def test_samples_that_one_run_holds_out_are_left_out_of_both(small: Carried) -> None:
    sample_scores = next(iter(read_scores(small.folder / SCORES_FILE).values()))
    first, second, *_ = sample_scores.by_attack
    member = int(np.flatnonzero(sample_scores.origin == Origin.MEMBER)[0])
    origin = sample_scores.origin.copy()
    origin[member] = Origin.UNSEEN
    gap = paired_auc(sample_scores, first, sample_scores._replace(origin=origin), second, "mixed")
    is_other = np.arange(len(sample_scores.ids)) != member
    without = SampleScores(
        sample_scores.ids[is_other],
        sample_scores.origin[is_other],
        {n: s[is_other] for n, s in sample_scores.by_attack.items()},
    )
    assert gap == paired_auc(without, first, without, second, "mixed")


def test_paired_intervals_are_narrower_for_similar_attacks() -> None:
    rng = np.random.default_rng(5)
    origin = np.repeat([Origin.MEMBER.value, Origin.UNSEEN.value], 300)
    common = rng.normal(size=600) + (origin == Origin.MEMBER)
    scores = {name: common + 0.1 * rng.normal(size=600) for name in ("one", "other")}
    paired_scores = SampleScores(np.arange(600), origin, scores)
    gap = paired_auc(paired_scores, "one", paired_scores, "other", "unseen")
    alone = auc_interval(scores["one"], origin == Origin.MEMBER)
    assert gap.high - gap.low < (alone.high - alone.low) / 3


@pytest.mark.parametrize(
    "tensors",
    [
        {"a/b": torch.zeros(2)},
        {"1/0/ids": torch.zeros(2)},
        {"1/0/scores/loss": torch.zeros(2)},
        {"1/0/ids": torch.zeros(2, 2), "1/0/origin": torch.zeros(2, 2)},
        {"1/0/ids": torch.zeros(2), "1/0/origin": torch.zeros(3)},
        {"1/0/ids": torch.arange(2), "1/0/origin": torch.tensor([0, 7])},
    ],
)
def test_a_file_of_something_else_is_refused(
    tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    write_tensors(tensors, tmp_path / SCORES_FILE)
    with pytest.raises(Damaged, match=r"scores|where the samples|unknown origins"):
        read_scores(tmp_path / SCORES_FILE)
