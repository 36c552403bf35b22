import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from fedaudit.metrics.roc import SplitScores, midranks, rank_scores, ranks_within_group

SCORES = st.lists(st.sampled_from([-math.inf, -1.5, 0.0, 0.1, 2.0, math.inf]), min_size=1)


@given(SCORES)
@settings(deadline=None)
def test_midranks_match_scipy(scores: list[float]) -> None:
    assert midranks(np.array(scores)).tolist() == rankdata(scores).tolist()


@given(SCORES, SCORES)
@settings(deadline=None)
def test_ranks_within_a_side_follow_from_pooled_ranks(
    members: list[float], nonmembers: list[float]
) -> None:
    split = SplitScores(np.array(members), np.array(nonmembers))
    for ranks, scores in zip(rank_scores(split), split, strict=True):
        assert ranks_within_group(ranks).tolist() == rankdata(scores).tolist()
