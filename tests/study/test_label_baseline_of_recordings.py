"""The label-distribution baseline of recordings, whose clients' data are not known."""

from types import SimpleNamespace
from typing import cast

import numpy as np

from fedaudit.core.seeds import seeded_numpy
from fedaudit.evaluation.source import SourceQueries, infer_from_labels
from fedaudit.metrics.source import infer_by_label_distribution
from fedaudit.plan.parts import Setup


def test_the_label_baseline_of_recordings_excludes_the_sample() -> None:
    run = cast(Setup, SimpleNamespace(recording_info=object(), seed=1))
    rng, successes = seeded_numpy(1, "alike"), []
    for _ in range(50):
        # Five clients with one label distribution: nothing can be known from labels.
        owner, labels = np.repeat(np.arange(5), 12), rng.integers(10, size=60)
        class_counts = np.zeros((5, 10), dtype=np.int64)
        np.add.at(class_counts, (owner, labels), 1)
        queries = SourceQueries(np.arange(60), owner, labels, tuple(range(5)))
        posteriors_by_method = (
            infer_from_labels(run, class_counts, queries),
            infer_by_label_distribution(class_counts, labels),
        )
        successes.append([(posteriors == owner).mean() for posteriors in posteriors_by_method])
    without_sample, with_sample = np.mean(successes, axis=0)
    assert abs(without_sample - 0.2) < 0.03
    assert with_sample > 0.35


def test_in_simulations_the_baseline_knows_all_data_of_each_client() -> None:
    run = cast(Setup, SimpleNamespace(recording_info=None, seed=1))
    class_counts = np.array([[9, 1], [1, 9]])
    owner, labels = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 0])
    queries = SourceQueries(np.arange(4), owner, labels, (0, 1))
    assert infer_from_labels(run, class_counts, queries).tolist() == [0, 1, 1, 0]
