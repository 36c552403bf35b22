"""Controls: a blind classifier on inputs, permuted membership, and redrawn non-members."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp
from jaxtyping import Bool, Float, Int, Shaped

from fedaudit.core.errors import BadInput
from fedaudit.metrics.delong import auc_interval, interval_of_ranks
from fedaudit.metrics.intervals import Limits, percent, require_confidence
from fedaudit.metrics.roc import SplitScores, as_truth, auc_of_ranks, ranked, sides

_INTERVAL = 0.95
# The error is this small because a study has hundreds of these controls. Of 200 permutations, 27
# may exclude 0.5; with intervals a third too narrow, 38 do.
_FALSE_ALARM = 1e-6


@dataclass(frozen=True, kw_only=True)
class PermutationNull(Limits[float]):
    """Distribution of an attack's AUC under shuffled membership, with its central range.

    Attributes:
        auc: The AUC with the true membership.
        mean: Mean AUC over permutations.
        p_value: One-sided p-value: the share of permutations that reach the true AUC, above 0.
        permutations: Number of permutations.
        alarms: Permutations whose 95 % interval excluded 0.5; 5 % are expected.

    Examples:
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(40) < 20
        >>> from fedaudit.metrics import permuted_membership
        >>> permuted_membership(rng.normal(size=40), is_member, rng=rng, permutations=100).passed
        True
    """

    auc: float
    mean: float
    p_value: float
    permutations: int
    alarms: int

    @property
    def passed(self) -> bool:
        """True if the intervals have no more false alarms than their error allows."""
        error = 1 - _INTERVAL
        test = sp.stats.binomtest(self.alarms, self.permutations, error, alternative="greater")
        return bool(test.pvalue > _FALSE_ALARM)


def permuted_membership(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    permutations: int = 1_000,
    confidence: float = 0.95,
) -> PermutationNull:
    """Compute the distribution of the AUC when membership is shuffled among the same scores.

    Shuffled membership has an expected AUC of 0.5 by construction, but the interval can fail. On
    scores with many ties, or with few members, it may exclude 0.5 more often than its error allows,
    and would then report noise as a leak.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        rng: Draws the permutations.
        permutations: Number of permutations, at least 20.
        confidence: Share of permutations within the range, in (0, 1).

    Raises:
        BadInput: Too few permutations, or bad scores.

    Examples:
        >>> from fedaudit.metrics import permuted_membership
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(40) < 20
        >>> null = permuted_membership(is_member * 1.0, is_member, rng=rng, permutations=99)
        >>> null.auc, null.p_value
        (1.0, 0.01)
    """
    require_confidence(confidence)
    if permutations < 20:
        raise BadInput(f"a null distribution needs at least 20 permutations, got {permutations}")
    split = ranked(sides(scores, is_member))
    true = auc_of_ranks(split)
    ranks, n = np.concatenate(split), len(split.members)
    shuffled = [SplitScores(*np.split(rng.permutation(ranks), [n])) for _ in range(permutations)]
    null = np.array([auc_of_ranks(each) for each in shuffled])
    intervals = [interval_of_ranks(each, _INTERVAL) for each in shuffled]
    low, high = np.quantile(null, [(1 - confidence) / 2, 1 - (1 - confidence) / 2])
    # Sums of the same ranks in another order differ by rounding errors.
    reached = int((null >= true - 1e-12).sum())
    return PermutationNull(
        auc=true,
        mean=float(null.mean()),
        low=float(low),
        high=float(high),
        p_value=(1 + reached) / (1 + permutations),
        permutations=permutations,
        alarms=sum(not interval.low <= 0.5 <= interval.high for interval in intervals),
        method=f"{permutations} permutations, central {percent(confidence)}",
    )


FEWEST = 4
"""Fewest members and fewest non-members, since the samples are split for training and scoring."""


@dataclass(frozen=True)
class BlindClassifier:
    """Settings of the classifiers that see a sample's input and no model.

    Attributes:
        components: Number of principal components of the standardised inputs.
        trained_on: Share of each side that the classifiers are trained on; the rest is scored.
        most_samples: Largest number of samples; of more, each side is subsampled at random.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.BlindClassifier(components=10)
        BlindClassifier(components=10, trained_on=0.5, most_samples=4000)
    """

    components: int = 50
    trained_on: float = 0.5
    most_samples: int = 4_000


class _Scored(NamedTuple):
    """Membership and scores, by classifier, of the samples that were not trained on."""

    truth: Bool[np.ndarray, " scored"]
    scores: dict[str, Float[np.ndarray, " scored"]]


@dataclass(frozen=True, kw_only=True)
class BlindResult(Limits[float]):
    """Result of membership inference from inputs alone, without a model.

    Its limits are corrected for having two classifiers.

    Attributes:
        classifier: "linear" or "trees": the classifier with the higher lower limit.
        auc: Its AUC on samples that it was not trained on.
        shifted: Whether the lower limit is above 0.5. Members and non-members then differ before
            any training, so that no attack on them measures membership alone.
        n_members: Number of members scored.
        n_nonmembers: Number of non-members scored.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> is_member = np.arange(80) < 40
        >>> features = np.column_stack([is_member, np.arange(80) % 7])
        >>> fa.metrics.blind_classifier(features, is_member, rng=np.random.default_rng(0)).shifted
        True
    """

    classifier: str
    auc: float
    shifted: bool
    n_members: int
    n_nonmembers: int


def blind_classifier(
    features: Shaped[np.ndarray, "samples ..."],
    is_member: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    labels: Int[np.ndarray, " samples"] | None = None,
    settings: BlindClassifier = BlindClassifier(),
    confidence: float = 0.95,
) -> BlindResult:
    """Train two classifiers to separate members from non-members by their inputs alone.

    If members and non-members have one distribution, the AUC is about 0.5. A linear classifier and
    a forest of shallow trees are trained on one part of the samples and score the other.
    Cross-validation would use every sample twice, but the scores of its folds are not independent.
    On 40 exchangeable draws of MNIST its DeLong z-scores had a standard deviation of 1.1 to 1.5
    instead of 1, which causes false alarms.

    Args:
        features: The inputs, one row per sample.
        is_member: Whether each sample is a member.
        rng: Draws the sample, the two parts and the classifiers' seeds.
        labels: Class indices. A difference between the label distributions of the two sides is a
            distribution shift as well.
        settings: Sizes of the sample, the training part and the reduction.
        confidence: Confidence of the interval, in (0, 1).

    Raises:
        BadInput: Inputs that are not finite, or fewer than four samples on a side.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> is_member = np.arange(80) < 40
        >>> features = np.column_stack([is_member, np.arange(80) % 7])
        >>> blind = fa.metrics.blind_classifier(features, is_member, rng=np.random.default_rng(0))
        >>> blind.auc, blind.shifted
        (1.0, True)

    Source: Das, Zhang and Tramèr 2024, Blind baselines beat membership inference attacks.
    """
    # Imported here and below, because scikit-learn would add a second to every start-up.
    from threadpoolctl import threadpool_limits

    require_confidence(confidence)
    truth = as_truth(is_member, len(features))
    chosen = _subsample(truth, settings, rng)
    # Threads of BLAS change the last bits of results, and are slow on shared cores.
    with threadpool_limits(1, user_api="blas"):
        inputs = _inputs(features, labels, chosen, settings, rng)
        scored = _held_out(inputs, truth[chosen], settings, rng)
    return _better(scored, confidence)


def _subsample(
    truth: Bool[np.ndarray, " samples"], settings: BlindClassifier, rng: np.random.Generator
) -> Int[np.ndarray, " chosen"]:
    each_side = (np.flatnonzero(truth), np.flatnonzero(~truth))
    if min(map(len, each_side)) < FEWEST:
        raise BadInput(
            f"the blind classifier needs at least {FEWEST} members and non-members, to train on "
            f"some and score others, got {len(each_side[0])} and {len(each_side[1])}"
        )
    limit = max(FEWEST, settings.most_samples // 2)
    return np.sort(np.concatenate([rng.permutation(side)[:limit] for side in each_side]))


def _inputs(
    features: Shaped[np.ndarray, "samples ..."],
    labels: Int[np.ndarray, " samples"] | None,
    chosen: Int[np.ndarray, " chosen"],
    settings: BlindClassifier,
    rng: np.random.Generator,
) -> Float[np.ndarray, "chosen columns"]:
    """Return the reduced inputs with an indicator column for each class."""
    inputs = _reduced(features[chosen], settings, rng)
    if labels is None:
        return inputs
    # Added after the reduction: among thousands of pixels, a class would have no weight.
    return np.concatenate([inputs, labels[chosen, None] == np.unique(labels)], axis=1)


def _reduced(
    features: Shaped[np.ndarray, "samples ..."], settings: BlindClassifier, rng: np.random.Generator
) -> Float[np.ndarray, "samples columns"]:
    from sklearn.decomposition import PCA

    flat = features.reshape(len(features), -1).astype(np.float32)
    if not np.isfinite(flat).all():
        raise BadInput("the blind classifier needs finite inputs; repair or drop the others")
    varying = flat[:, np.ptp(flat, axis=0) > 0]
    if not varying.shape[1]:
        return np.zeros((len(flat), 1))
    # Scaling and components do not use membership, so that they may be fitted on all samples.
    scaled = (varying - varying.mean(axis=0)) / varying.std(axis=0)
    size = min(settings.components, *scaled.shape)
    components = PCA(size, svd_solver="randomized", random_state=_seed(rng)).fit_transform(scaled)
    return np.asarray(components / components.std(axis=0).max(), dtype=np.float64)


def _held_out(
    inputs: Float[np.ndarray, "samples columns"],
    truth: Bool[np.ndarray, " samples"],
    settings: BlindClassifier,
    rng: np.random.Generator,
) -> _Scored:
    """Train the classifiers on some samples and score the others."""
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    seen, scored = train_test_split(
        np.arange(len(truth)),
        train_size=settings.trained_on,
        stratify=truth,
        random_state=_seed(rng),
    )
    classifiers = {
        "linear": LogisticRegression(max_iter=1_000),
        # Boosting was rejected: its threads spin for a minute if other processes use the cores.
        "trees": ExtraTreesClassifier(100, max_depth=8, random_state=_seed(rng)),
    }
    scores = {
        name: model.fit(inputs[seen], truth[seen]).predict_proba(inputs[scored])[:, 1]
        for name, model in classifiers.items()
    }
    return _Scored(truth[scored], scores)


def _better(scored: _Scored, confidence: float) -> BlindResult:
    """Return the classifier that separates better; each interval has half of the error."""
    each = 1 - (1 - confidence) / 2
    intervals = {
        name: auc_interval(values, scored.truth, confidence=each)
        for name, values in scored.scores.items()
    }
    best = max(intervals, key=lambda name: intervals[name].low)
    better = intervals[best]
    members = int(scored.truth.sum())
    return BlindResult(
        classifier=best,
        auc=better.value,
        low=better.low,
        high=better.high,
        method=f"{better.method}, better of 2 classifiers",
        shifted=better.low > 0.5,
        n_members=members,
        n_nonmembers=len(scored.truth) - members,
    )


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def redraw(
    values: Float[np.ndarray, "rounds clients samples"],
    is_member: Bool[np.ndarray, " flagged"],
    *,
    rng: np.random.Generator,
) -> Float[np.ndarray, "rounds clients samples"]:
    """Redraw the non-members of each round and client, to reproduce a published flaw.

    Members keep their positions. The values of non-members are permuted among the non-members in
    each round and for each client, so a position holds a different sample each time. This is
    wrong in two ways. An attack that compares clients then compares values of *different samples*.
    A mean over rounds averages *different samples*, so the scores of non-members shrink
    towards their common mean, while those of members keep their spread. Members are then
    distinguishable even if no client was trained on them. Use this function only to reproduce
    published tables, never for a finding.

    Args:
        values: Measurements of a signal.
        is_member: Which samples the target trained on.
        rng: Draws the permutations.

    Raises:
        BadInput: The mask has another length than the samples axis.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> values = np.arange(6.0).reshape(1, 1, 6)
        >>> is_member = np.array([True, True, False, False, False, False])
        >>> dealt = fa.metrics.redraw(values, is_member, rng=np.random.default_rng(0))
        >>> dealt[0, 0, :2].tolist(), sorted(dealt[0, 0, 2:].tolist())
        ([0.0, 1.0], [2.0, 3.0, 4.0, 5.0])

    Source: FedMIA's published code, where the non-member indices are drawn inside the loop
        over rounds and clients. The paper does not mention it.
    """
    if len(is_member) != values.shape[2]:
        raise BadInput(
            f"every sample needs a membership, got {len(is_member)} for {values.shape[2]} samples"
        )
    dealt = values.copy()
    dealt[:, :, ~is_member] = rng.permuted(values[:, :, ~is_member], axis=2)
    return dealt
