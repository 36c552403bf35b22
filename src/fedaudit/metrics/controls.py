"""Controls: a blind classifier on inputs, permuted membership, and redrawn non-members."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp
from jaxtyping import Bool, Float, Int, Shaped

from fedaudit.core.errors import BadInput
from fedaudit.metrics.delong import auc_interval, interval_of_ranks
from fedaudit.metrics.intervals import Limits, format_percent, require_confidence
from fedaudit.metrics.roc import SplitScores, as_membership, auc_of_ranks, rank_scores, split_scores

_CONFIDENCE = 0.95
"""Confidence of the intervals that the permutation control checks."""
_CONTROL_ERROR = 1e-6
"""Significance level of the control. It is small because a study has hundreds of these controls. At
this level, up to 27 of 200 intervals may exclude 0.5. With intervals that are too narrow by a
third, 38 of 200 do."""


@dataclass(frozen=True, kw_only=True)
class PermutationNull(Limits[float]):
    """Distribution of an attack's AUC when membership is shuffled, with its central range.

    Attributes:
        auc: The AUC with the true membership.
        mean: Mean AUC over permutations.
        p_value: One-sided p-value: the fraction of permutations that reach the true AUC. The true
            order counts as one permutation, so the p-value is never 0.
        permutations: Number of permutations.
        alarms: Number of permutations whose 95 % interval excluded 0.5; 5 % are expected.

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
        """True unless significantly more than 5 % of the intervals excluded 0.5."""
        error = 1 - _CONFIDENCE
        test = sp.stats.binomtest(self.alarms, self.permutations, error, alternative="greater")
        return bool(test.pvalue > _CONTROL_ERROR)


def permuted_membership(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    permutations: int = 1_000,
    confidence: float = 0.95,
) -> PermutationNull:
    """Compute the distribution of the AUC when membership is shuffled among the same scores.

    If membership is shuffled, the expected AUC is 0.5 by construction. The control tests whether
    the AUC's interval excludes 0.5 more often than its confidence level allows. If it does, for
    example because of many ties, an audit would report noise as a leak.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        rng: Draws the permutations.
        permutations: Number of permutations, at least 20.
        confidence: Fraction of permutations within the range, in (0, 1).

    Raises:
        BadInput: There are too few permutations, or scores are invalid.

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
    split = rank_scores(split_scores(scores, is_member))
    true_auc = auc_of_ranks(split)
    ranks, n_members = np.concatenate(split), len(split.members)
    shuffled = [
        SplitScores(*np.split(rng.permutation(ranks), [n_members])) for _ in range(permutations)
    ]
    aucs = np.array([auc_of_ranks(permuted) for permuted in shuffled])
    intervals = [interval_of_ranks(permuted, _CONFIDENCE) for permuted in shuffled]
    low, high = np.quantile(aucs, [(1 - confidence) / 2, 1 - (1 - confidence) / 2])
    # Sums of the same ranks in another order differ by rounding errors.
    n_reached = int((aucs >= true_auc - 1e-12).sum())
    return PermutationNull(
        auc=true_auc,
        mean=float(aucs.mean()),
        low=float(low),
        high=float(high),
        p_value=(1 + n_reached) / (1 + permutations),
        permutations=permutations,
        alarms=sum(not interval.low <= 0.5 <= interval.high for interval in intervals),
        method=f"{permutations} permutations, central {format_percent(confidence)}",
    )


_FEWEST = 4
"""Fewest members, and fewest non-members. Both are split into samples for training and scoring."""


@dataclass(frozen=True)
class BlindClassifier:
    """Settings of the classifiers that see a sample's input but no model.

    Attributes:
        components: Number of principal components of the standardised inputs.
        trained_on: Fraction of members and of non-members that the classifiers are trained on. The
            other samples are scored.
        most_samples: Largest number of samples. If there are more, members and non-members are each
            subsampled at random.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.BlindClassifier(components=10)
        BlindClassifier(components=10, trained_on=0.5, most_samples=4000)
    """

    components: int = 50
    trained_on: float = 0.5
    most_samples: int = 4_000


class _Scored(NamedTuple):
    """Membership and scores of the samples that the classifiers were not trained on.

    Attributes:
        scores: Scores by the name of the classifier.
    """

    truth: Bool[np.ndarray, " scored"]
    scores: dict[str, Float[np.ndarray, " scored"]]


@dataclass(frozen=True, kw_only=True)
class BlindResult(Limits[float]):
    """Result of membership inference from inputs alone, without the audited model.

    The limits are corrected for the choice between two classifiers.

    Attributes:
        classifier: "linear" or "trees": the classifier whose AUC has the larger lower limit.
        auc: AUC of this classifier on samples that it was not trained on.
        shifted: Whether the lower limit is above 0.5. If so, members and non-members differ before
            any training, so attacks on them do not only measure membership.
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
    """Train two classifiers to separate members from non-members using only their inputs.

    If members and non-members are identically distributed, the AUC is about 0.5. A linear
    classifier and a forest of shallow trees are trained on some of the samples and score the
    others. Cross-validation would score every sample, but the scores of its folds are not
    independent. This causes false alarms: on 40 exchangeable draws of MNIST, its DeLong z-scores
    had a standard deviation of 1.1 to 1.5 instead of 1.

    Args:
        features: The inputs, one row per sample.
        is_member: Whether each sample is a member.
        rng: Draws the subsample, the train/test split and the classifiers' seeds.
        labels: Class index of each sample, used as an additional input. Different label
            distributions of members and non-members are a distribution shift as well.
        settings: Number of samples, fraction for training, and number of components.
        confidence: Confidence of the interval, in (0, 1).

    Raises:
        BadInput: An input is not finite, or there are fewer than four members or non-members.

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
    # Imported here because scikit-learn adds a second to the import of the package.
    from threadpoolctl import threadpool_limits

    require_confidence(confidence)
    truth = as_membership(is_member, len(features))
    positions = _subsample(truth, settings, rng)
    # Several BLAS threads change the last bits of results, and are slow on shared cores.
    with threadpool_limits(1, user_api="blas"):
        inputs = _inputs(features, labels, positions, settings, rng)
        scored = _score_held_out(inputs, truth[positions], settings, rng)
    return _better(scored, confidence)


def _subsample(
    truth: Bool[np.ndarray, " samples"], settings: BlindClassifier, rng: np.random.Generator
) -> Int[np.ndarray, " chosen"]:
    members, nonmembers = np.flatnonzero(truth), np.flatnonzero(~truth)
    if min(len(members), len(nonmembers)) < _FEWEST:
        raise BadInput(
            f"the blind classifier needs at least {_FEWEST} members and {_FEWEST} non-members, to "
            f"train on some and score the others, got {len(members)} and {len(nonmembers)}"
        )
    limit = max(_FEWEST, settings.most_samples // 2)
    positions = [rng.permutation(group)[:limit] for group in (members, nonmembers)]
    return np.sort(np.concatenate(positions))


def _inputs(
    features: Shaped[np.ndarray, "samples ..."],
    labels: Int[np.ndarray, " samples"] | None,
    chosen: Int[np.ndarray, " chosen"],
    settings: BlindClassifier,
    rng: np.random.Generator,
) -> Float[np.ndarray, "chosen columns"]:
    """Return the principal components of the inputs, with an indicator column for each class."""
    inputs = _components(features[chosen], settings, rng)
    if labels is None:
        return inputs
    # Added after the reduction: among thousands of pixels, a class indicator would have no weight.
    return np.concatenate([inputs, labels[chosen, None] == np.unique(labels)], axis=1)


def _components(
    features: Shaped[np.ndarray, "samples ..."], settings: BlindClassifier, rng: np.random.Generator
) -> Float[np.ndarray, "samples columns"]:
    from sklearn.decomposition import PCA

    flat = features.reshape(len(features), -1).astype(np.float32)
    if not np.isfinite(flat).all():
        raise BadInput(
            "the blind classifier needs finite inputs; repair or remove samples with infinite or "
            "missing values"
        )
    varying = flat[:, np.ptp(flat, axis=0) > 0]
    if not varying.shape[1]:
        return np.zeros((len(flat), 1))
    # Scaling and components do not use membership, so they may be fitted on all samples.
    scaled = (varying - varying.mean(axis=0)) / varying.std(axis=0)
    size = min(settings.components, *scaled.shape)
    components = PCA(size, svd_solver="randomized", random_state=_seed(rng)).fit_transform(scaled)
    return np.asarray(components / components.std(axis=0).max(), dtype=np.float64)


def _score_held_out(
    inputs: Float[np.ndarray, "samples columns"],
    truth: Bool[np.ndarray, " samples"],
    settings: BlindClassifier,
    rng: np.random.Generator,
) -> _Scored:
    """Train the classifiers on some samples and score the others."""
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    trained_on, scored = train_test_split(
        np.arange(len(truth)),
        train_size=settings.trained_on,
        stratify=truth,
        random_state=_seed(rng),
    )
    classifiers = {
        "linear": LogisticRegression(max_iter=1_000),
        # Boosting was rejected: its threads can take a minute if other processes use the cores.
        "trees": ExtraTreesClassifier(100, max_depth=8, random_state=_seed(rng)),
    }
    scores = {
        name: model.fit(inputs[trained_on], truth[trained_on]).predict_proba(inputs[scored])[:, 1]
        for name, model in classifiers.items()
    }
    return _Scored(truth[scored], scores)


def _better(scored: _Scored, confidence: float) -> BlindResult:
    """Return the result of the classifier with the larger lower limit.

    Each of the two intervals has half of the error probability.
    """
    each_confidence = 1 - (1 - confidence) / 2
    intervals = {
        name: auc_interval(values, scored.truth, confidence=each_confidence)
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


def permute_nonmembers_per_round(
    values: Float[np.ndarray, "rounds clients samples"],
    is_member: Bool[np.ndarray, " flagged"],
    *,
    rng: np.random.Generator,
) -> Float[np.ndarray, "rounds clients samples"]:
    """Permute the values of non-members in each round and client, to reproduce a published flaw.

    The values of members are unchanged. In each round and for each client, the values of
    non-members are permuted among the non-members. A position then holds a different sample in each
    round and client. This is wrong in two ways. An attack that compares clients compares values of
    *different samples*. A mean over rounds averages *different samples*, so the scores of
    non-members concentrate around their common mean. The variance of members' scores does not
    change. Members are then distinguishable even if no client was trained on them. Use this
    function only to reproduce published tables, never as evidence of a leak.

    Args:
        values: Measurements of a signal.
        is_member: Which samples the target client trained on.
        rng: Draws the permutations.

    Raises:
        BadInput: The length of the mask differs from the length of the samples axis.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> values = np.arange(6.0).reshape(1, 1, 6)
        >>> is_member = np.array([True, True, False, False, False, False])
        >>> rng = np.random.default_rng(0)
        >>> permuted = fa.metrics.permute_nonmembers_per_round(values, is_member, rng=rng)
        >>> permuted[0, 0, :2].tolist(), sorted(permuted[0, 0, 2:].tolist())
        ([0.0, 1.0], [2.0, 3.0, 4.0, 5.0])

    Source: Zhu et al. 2024 (FedMIA), published code, where the non-member indices are drawn inside
        the loop over rounds and clients. The paper does not mention it.
    """
    if len(is_member) != values.shape[2]:
        raise BadInput(
            f"every sample needs a membership, got {len(is_member)} for {values.shape[2]} samples"
        )
    redrawn = values.copy()
    redrawn[:, :, ~is_member] = rng.permuted(values[:, :, ~is_member], axis=2)
    return redrawn
