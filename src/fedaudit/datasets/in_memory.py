"""Data sets of arrays that are in memory already."""

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
    """Makes a data set of arrays; see :func:`samples`.

    Attributes:
        name: Of the data set.
        x: Features, one row a sample.
        y: Class of each sample.
        x_test: Features of the test part; None where it is drawn from ``x``.
        y_test: Its classes.
        test_share: Share of each class that is drawn, where it is.
        standardise: Whether features get mean 0 and spread 1 over the training part.
        inputs: How the inputs of a model that takes several by name lie in the features.
        labels: Group of each sample, by which samples are dealt and drawn where their targets are
            no classes; without a test part of its own.
        subject: Of which person each sample is, those of a test part of its own after the others.
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
        """The data set; the seed decides which samples are tested on, if that is open."""
        rng = seeded_numpy(seed, "split", self.name)
        subject = self.subject
        if self.x_test is not None and self.y_test is not None:
            parts = Arrays(self.x, self.y, self.x_test, self.y_test)
        elif self.labels is None:
            parts, at = split_arrays(self.x, self.y, test_share=self.test_share, rng=rng)
            subject = None if subject is None else subject[np.concatenate(at)]
        else:
            return self._grouped(self.labels, rng)
        found = self._with_inputs(from_arrays(self.name, parts, standardise=self.standardise))
        return found if subject is None else with_subjects(found, subject)

    def _grouped(self, labels: AnyArray, rng: np.random.Generator) -> Dataset:
        """Every group in both parts, and labels that are its numbers."""
        at = split(strata(labels), self.test_share, rng=rng)
        parts = Arrays(self.x[at.train], self.y[at.train], self.x[at.test], self.y[at.test])
        found = self._with_inputs(from_arrays(self.name, parts, standardise=self.standardise))
        train = found.train.replace(labels=torch.from_numpy(labels[at.train]))
        test = found.test.replace(labels=torch.from_numpy(labels[at.test]))
        groups = count_classes(labels[at.train], labels[at.test])
        return replace(found, train=train, test=test, classes=groups)

    def _with_inputs(self, found: Dataset) -> Dataset:
        if self.inputs is None:
            return found
        train, test = (replace(part, inputs=self.inputs) for part in (found.train, found.test))
        return replace(found, train=train, test=test)


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
            dictionary of what a model takes by name.
        y: Class of each sample, counted from 0; for other tasks the target.
        x_test: Features of the test part; without it, a part of ``x`` is drawn for each seed.
        y_test: Classes of the test part.
        name: Of the data set, for the report.
        test_share: Share of each class that is drawn for testing, in (0, 1).
        standardise: Whether features get mean 0 and standard deviation 1 over the training part.
        subject: Name or number of the person that each sample is from, for ``unit="person"``; those
            of ``x_test`` after those of ``x``.

    Raises:
        BadInput: Not one label for each sample, half of a test part, or persons of other samples.

    Examples:
        >>> samples([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], name="toy").name
        'toy'
    """
    given = Samples(x, y)
    if (x_test is None) != (y_test is None):
        raise BadInput("a test part has features and labels; give x_test and y_test, or neither")
    tested = None if x_test is None else Samples(x_test, y_test)
    people = None if subject is None else _array_of(subject)
    count = len(given) + (0 if tested is None else len(tested))
    if people is not None and people.shape != (count,):
        raise BadInput(
            f"there are {count} samples and people of shape {people.shape}; give subject one name "
            "or number for each sample, those of x_test after those of x"
        )
    return InMemory(
        name,
        _array_of(given.features),
        _array_of(given.targets),
        None if tested is None else _array_of(tested.features),
        None if tested is None else _array_of(tested.targets),
        test_share,
        standardise,
        given.inputs,
        subject=people,
    )


def _array_of(values: object) -> AnyArray:
    """Return an array of a tensor, also of one on a GPU or that requires gradients, or a list."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    array: AnyArray = np.asarray(values)
    return array


def of_samples(given: Samples) -> InMemory:
    """The data set of samples, a part of which is drawn for testing; see :func:`samples`."""
    found = samples(_array_of(given.features), _array_of(given.targets))
    named = given.labels is not given.targets and bool(given.labels.any())
    labels = np.asarray(given.labels) if named else None
    return replace(found, inputs=given.inputs, labels=labels)
