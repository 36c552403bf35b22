"""Data sets from arrays in memory."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedaudit.core.arguments import ProperShare, checked
from fedaudit.core.errors import BadInput
from fedaudit.core.inputs import Inputs
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import Samples, short_repr
from fedaudit.datasets.arrays import (
    AnyArray,
    Arrays,
    count_classes,
    from_arrays,
    split,
    split_arrays,
    strata,
)
from fedaudit.datasets.dataset import Dataset, with_subjects


@short_repr
@dataclass(frozen=True, eq=False)
class InMemory:
    """Factory of a data set from arrays; see :func:`samples`.

    Attributes:
        name: Name of the data set.
        x: Features, one row for each sample.
        y: Class of each sample.
        x_test: Features of the test part; None if it is drawn from ``x``.
        y_test: Classes of the test part.
        test_share: Share of each class that is drawn for testing.
        standardise: Whether features are scaled to mean 0 and standard deviation 1 on the training
            part.
        inputs: Layout of the features of a model with several named inputs.
        labels: Group of each sample, by which samples are dealt and drawn if their targets are no
            classes; only without ``x_test``.
        subject: Person of each sample, with those of ``x_test`` last.
    """

    name: str
    x: AnyArray
    y: AnyArray
    x_test: AnyArray | None
    y_test: AnyArray | None
    test_share: float
    standardise: bool
    inputs: Inputs | None = None
    labels: AnyArray | None = None
    subject: AnyArray | None = None

    def __call__(self, *, seed: int) -> Dataset:
        """Return the data set; the seed selects the test samples unless they are given."""
        rng = seeded_numpy(seed, "split", self.name)
        subject = self.subject
        if self.x_test is not None and self.y_test is not None:
            parts = Arrays(self.x, self.y, self.x_test, self.y_test)
        elif self.labels is None:
            parts, positions = split_arrays(self.x, self.y, test_share=self.test_share, rng=rng)
            subject = None if subject is None else subject[np.concatenate(positions)]
        else:
            return self._grouped(self.labels, rng)
        dataset = self._with_inputs(from_arrays(self.name, parts, standardise=self.standardise))
        return dataset if subject is None else with_subjects(dataset, subject)

    def _grouped(self, labels: AnyArray, rng: np.random.Generator) -> Dataset:
        """Return the data set with every group in both parts, and group numbers as labels."""
        positions = split(strata(labels), self.test_share, rng=rng)
        parts = Arrays(
            self.x[positions.train],
            self.y[positions.train],
            self.x[positions.test],
            self.y[positions.test],
        )
        dataset = self._with_inputs(from_arrays(self.name, parts, standardise=self.standardise))
        train = dataset.train.replace(labels=torch.from_numpy(labels[positions.train]))
        test = dataset.test.replace(labels=torch.from_numpy(labels[positions.test]))
        groups = count_classes(labels[positions.train], labels[positions.test])
        return replace(dataset, train=train, test=test, classes=groups)

    def _with_inputs(self, dataset: Dataset) -> Dataset:
        if self.inputs is None:
            return dataset
        train, test = (replace(part, inputs=self.inputs) for part in (dataset.train, dataset.test))
        return replace(dataset, train=train, test=test)


@checked
def samples(
    x: object,
    y: object,
    x_test: object = None,
    y_test: object = None,
    *,
    name: str = "samples",
    test_share: ProperShare = 0.2,
    standardise: bool = False,
    subject: object = None,
) -> InMemory:
    """Return a data set of arrays, tensors, tables or lists.

    Args:
        x: Features, one row for each sample: numbers, or images as bytes, channels last; or a
            dictionary of a model's named inputs.
        y: Class of each sample, counted from 0; for other tasks the target.
        x_test: Features of the test part; without it, a part of ``x`` is drawn for each seed.
        y_test: Classes of the test part.
        name: Name of the data set, for the report.
        test_share: Share of each class that is drawn for testing, in (0, 1).
        standardise: Whether features are scaled to mean 0 and standard deviation 1 on the training
            part.
        subject: Name or number of the person that each sample is from, for ``unit="person"``; those
            of ``x_test`` after those of ``x``.

    Raises:
        BadInput: The number of labels or persons is not that of samples, or a test part has only
            features or only labels.

    Examples:
        >>> samples([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], name="toy").name
        'toy'
    """
    train = Samples(x, y)
    if (x_test is None) != (y_test is None):
        raise BadInput("a test part has features and labels; give x_test and y_test, or neither")
    test = None if x_test is None else Samples(x_test, y_test)
    people = None if subject is None else _array_of(subject)
    count = len(train) + (0 if test is None else len(test))
    if people is not None and people.shape != (count,):
        raise BadInput(
            f"there are {count} samples and people of shape {people.shape}; give subject one name "
            "or number for each sample, those of x_test after those of x"
        )
    return InMemory(
        name,
        _array_of(train.features),
        _array_of(train.targets),
        None if test is None else _array_of(test.features),
        None if test is None else _array_of(test.targets),
        test_share,
        standardise,
        train.inputs,
        subject=people,
    )


def _array_of(values: object) -> AnyArray:
    """Return an array of a list or tensor, also of a tensor on a GPU or with gradients."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    array: AnyArray = np.asarray(values)
    return array


def of_samples(source: Samples) -> InMemory:
    """Return the data set of samples, a part of which is drawn for testing; see :func:`samples`."""
    dataset = samples(_array_of(source.features), _array_of(source.targets))
    has_groups = source.labels is not source.targets and bool(source.labels.any())
    labels = np.asarray(source.labels) if has_groups else None
    return replace(dataset, inputs=source.inputs, labels=labels)
