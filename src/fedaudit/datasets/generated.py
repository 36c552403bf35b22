"""Data sets that need no file: scikit-learn's digits and SIA's synthetic classes."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import Scaled, assembled, split
from fedaudit.datasets.dataset import Dataset, with_subjects

_DIGITS = Path("datasets", "data", "digits.csv.gz")
"""Where scikit-learn keeps them."""


def digits(*, seed: int, test_share: float = 0.2) -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels, bundled with scikit-learn.

    Args:
        seed: Decides which digits are tested on.
        test_share: Share of each class in the test part, in (0, 1).
    """
    pixels, labels = _bundled_digits()
    parts = split(labels, test_share, rng=seeded_numpy(seed, "digits split"))
    # Pixels count the dark points of a 4 x 4 block.
    images = torch.from_numpy(pixels / 16)[:, None].to(torch.float32)
    train, test = images[parts.train], images[parts.test]
    mean, spread = float(train.double().mean()), float(train.double().std(correction=0))
    words = (
        f"pixels / 16, then minus {mean:.4f} over {spread:.4f} "
        "(training mean and spread per channel)"
    )
    scaled = Scaled((train - mean) / spread, (test - mean) / spread, words)
    return assembled(
        "digits",
        scaled,
        torch.from_numpy(labels[parts.train]),
        torch.from_numpy(labels[parts.test]),
        classes=10,
    )


def _bundled_digits() -> tuple[Float[np.ndarray, "digits 8 8"], Int[np.ndarray, " digits"]]:
    """Pixels from 0 to 16, and classes."""
    found = find_spec("sklearn")
    file = Path(found.origin if found and found.origin else "").parent / _DIGITS
    if file.is_file():
        # Half of the time to a small study's first round would be that of importing scikit-learn.
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
        return table[:, :-1].reshape(-1, 8, 8).astype(np.float64), table[:, -1]
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images, bunch.target.astype(np.int64)


def synthetic(
    *,
    seed: int,
    samples: int = 100_000,
    dimensions: int = 60,
    classes: int = 10,
    test_share: float = 0.2,
    people: int = 0,
    alike: float = 0.5,
) -> Dataset:
    """Normal features labelled by a random linear classifier.

    Feature j has variance ``j ** -1.2``; the label is the largest entry of ``W x + b`` with
    entries of W and b normal with spread 2. Classes are unequal, and a small draw may leave one
    out.

    With ``people`` each sample is of one of them, drawn alike. A person has features and a rule
    for labels of their own: a share ``alike`` of the variance of each feature, and of each entry
    of W and b, is the same for all samples of a person.

    Args:
        seed: Decides features, classifier and split.
        samples: Number of samples over both parts.
        dimensions: Number of features.
        classes: Number of classes.
        test_share: Share of each class in the test part, in (0, 1).
        people: Number of people that the samples are of; 0 for samples of nobody in particular.
        alike: Share of the variance that is a person's own, from 0 to 1.

    Raises:
        BadInput: Too few samples, dimensions or classes, or a share that is none.

    Source: SIA, section 4.1 (Synthetic); generator of its published code.
    Differs: The test share is taken within each class, not over the whole set.
    """
    if samples < 2 or dimensions < 1 or classes < 2:
        raise BadInput(
            f"synthetic data needs at least 2 samples, 1 dimension and 2 classes, got "
            f"{samples}, {dimensions} and {classes}; raise them"
        )
    if not 0 <= people <= samples or not 0 <= alike <= 1:
        raise BadInput(
            f"synthetic data are of at most {samples} people who are alike to a share from 0 to 1, "
            f"got {people} and {alike}"
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
    parts = split(labels, test_share, rng=seeded_numpy(seed, "synthetic split"))
    scaled = Scaled(
        torch.from_numpy(features[parts.train]),
        torch.from_numpy(features[parts.test]),
        "as generated",
    )
    found = assembled(
        "synthetic",
        scaled,
        torch.from_numpy(labels[parts.train]),
        torch.from_numpy(labels[parts.test]),
        classes=classes,
    )
    return with_subjects(found, subject[np.concatenate(parts)]) if people else found
