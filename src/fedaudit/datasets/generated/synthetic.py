"""SIA's synthetic classes."""

from dataclasses import KW_ONLY
from typing import Annotated

import numpy as np
import torch

from fedaudit.core.arguments import Count, Fraction, Positive, ProperShare, Range, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import Scaled, assembled, split
from fedaudit.datasets.dataset import Dataset, with_subjects
from fedaudit.datasets.source import DataSource


@dataclass(frozen=True)
class synthetic(DataSource):
    """Normal features labelled by a random linear classifier.

    Feature j has variance ``j ** -1.2``; the label is the largest entry of ``W x + b`` with
    entries of W and b normal with spread 2. Classes are unequal, and a small draw may leave one
    out.

    With ``people``, each sample is of one of them, drawn alike. The features of a person and the
    rule of their labels have a part in common: a share ``alike`` of the variance of each feature,
    and of each entry of W and b, is the same for all samples of a person.

    Attributes:
        samples: Number of samples in both parts together, at least 2.
        dimensions: Number of features, at least 1.
        classes: Number of classes, from 2 to 1,000,000.
        test_share: Share of each class in the test part, in (0, 1).
        people: Number of people that the samples are of; 0 for none.
        alike: Share of the variance that the samples of a person have in common, in [0, 1].

    Examples:
        >>> len(synthetic(samples=2_000, classes=4).read(seed=0))
        2000

    Source: SIA, section 4.1 (Synthetic); generator of its published code.
    Differs: The test share is taken within each class, not over the whole set.
    """

    _: KW_ONLY
    samples: Annotated[int, Range(ge=2, le=10**9)] = 100_000
    dimensions: Positive = 60
    classes: Annotated[int, Range(ge=2, le=10**6)] = 10
    test_share: ProperShare = 0.2
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
                f"people is {people} and samples {samples}, so that some people would have none; "
                "give at least as many samples"
            )
        rng = seeded_numpy(seed, "synthetic")
        spread = np.arange(1, dimensions + 1) ** -0.6
        features = (rng.standard_normal((samples, dimensions)) * spread).astype(np.float32)
        weight = rng.normal(0, 2, (dimensions, classes))
        offset = rng.normal(0, 2, classes)
        if people:
            subject = rng.integers(people, size=samples)
            style = rng.standard_normal((people, dimensions)) * spread
            own = np.sqrt(alike) * style[subject] + np.sqrt(1 - alike) * features
            features = own.astype(np.float32)
            habit = rng.normal(0, 2, (people, classes, dimensions + 1))
            named = np.einsum("pcd,pd->pc", habit[:, :, :-1], style) + habit[:, :, -1]
            shared = np.sqrt(1 - alike) * (features @ weight + offset)
            labels = np.argmax(shared + np.sqrt(alike) * named[subject], axis=1)
        else:
            labels = np.argmax(features @ weight + offset, axis=1)
        parts = split(labels, self.test_share, rng=seeded_numpy(seed, "synthetic split"))
        train, test = (torch.from_numpy(features[part]) for part in parts)
        y_train, y_test = (torch.from_numpy(labels[part]) for part in parts)
        scaled = Scaled(train, test, "as generated")
        found = assembled("synthetic", scaled, y_train, y_test, classes=classes)
        return with_subjects(found, subject[np.concatenate(parts)]) if people else found
