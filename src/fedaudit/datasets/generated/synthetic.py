"""Synthetic classes of the SIA paper."""

from dataclasses import KW_ONLY
from typing import Annotated

import numpy as np
import torch

from fedaudit.core.arguments import Count, Fraction, Positive, ProperFraction, Range, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import ScaledFeatures, build_dataset, stratified_split
from fedaudit.datasets.dataset import Dataset, DataSource, with_people


@dataclass(frozen=True)
class synthetic(DataSource):
    """Normal features labelled by a random linear classifier.

    Feature j has variance ``j ** -1.2``; the label is the largest entry of ``W x + b``, where
    entries of W and b are normal with standard deviation 2. Classes differ in size, and a small
    draw may omit a class.

    If ``people`` is above 0, each sample belongs to a person, drawn uniformly. A fraction ``alike``
    of the variance of each feature, and of each entry of W and b, is common to all samples of a
    person.

    Attributes:
        samples: Number of samples in both parts together, at least 2.
        dimensions: Number of features, at least 1.
        classes: Number of classes, from 2 to 1,000,000.
        test_share: Fraction of each class in the test part, in (0, 1).
        people: Number of people that the samples belong to; 0 for none.
        alike: Fraction of the variance that is common to a person's samples, in [0, 1].

    Examples:
        >>> import fedaudit as fa
        >>> len(fa.datasets.synthetic(samples=2_000, classes=4).read(seed=0))
        2000

    Source: Hu et al. 2024 (SIA), section 4.1 (Synthetic); generator of its published code.
    Differs: The test fraction is taken within each class, not over the whole set.
    """

    _: KW_ONLY
    samples: Annotated[int, Range(ge=2, le=10**9)] = 100_000
    dimensions: Positive = 60
    classes: Annotated[int, Range(ge=2, le=10**6)] = 10
    test_share: ProperFraction = 0.2
    people: Count = 0
    alike: Fraction = 0.5

    def read(self, seed: int) -> Dataset:
        """Return the data set.

        Raises:
            BadInput: There are more people than samples.
        """
        samples, dimensions, classes = self.samples, self.dimensions, self.classes
        people, alike = self.people, self.alike
        if people > samples:
            raise BadInput(
                f"people is {people} but samples is {samples}, so some people would have none; "
                "give at least as many samples as people"
            )
        rng = seeded_numpy(seed, "synthetic")
        std = np.arange(1, dimensions + 1) ** -0.6
        features = (rng.standard_normal((samples, dimensions)) * std).astype(np.float32)
        weight = rng.normal(0, 2, (dimensions, classes))
        offset = rng.normal(0, 2, classes)
        if people:
            person = rng.integers(people, size=samples)
            person_features = rng.standard_normal((people, dimensions)) * std
            mixed = np.sqrt(alike) * person_features[person] + np.sqrt(1 - alike) * features
            features = mixed.astype(np.float32)
            person_weights = rng.normal(0, 2, (people, classes, dimensions + 1))
            person_logits = np.einsum("pcd,pd->pc", person_weights[:, :, :-1], person_features)
            person_logits += person_weights[:, :, -1]
            logits = np.sqrt(1 - alike) * (features @ weight + offset)
            labels = np.argmax(logits + np.sqrt(alike) * person_logits[person], axis=1)
        else:
            labels = np.argmax(features @ weight + offset, axis=1)
        parts = stratified_split(labels, self.test_share, rng=seeded_numpy(seed, "synthetic split"))
        train, test = (torch.from_numpy(features[part]) for part in parts)
        y_train, y_test = (torch.from_numpy(labels[part]) for part in parts)
        scaled = ScaledFeatures(train, test, "as generated")
        dataset = build_dataset("synthetic", scaled, y_train, y_test, classes=classes)
        return with_people(dataset, person[np.concatenate(parts)]) if people else dataset
