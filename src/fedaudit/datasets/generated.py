"""Data sets that need no file: scikit-learn's digits and SIA's synthetic classes."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import Scaled, assembled, split
from fedaudit.datasets.dataset import Dataset

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
        table = np.loadtxt(file, delimiter=",")
        return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
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
) -> Dataset:
    """Normal features labelled by a random linear classifier.

    Feature j has variance ``j ** -1.2``; the label is the largest entry of ``W x + b`` with
    entries of W and b normal with spread 2. Classes are unequal, and a small draw may leave one
    out.

    Args:
        seed: Decides features, classifier and split.
        samples: Number of samples over both parts.
        dimensions: Number of features.
        classes: Number of classes.
        test_share: Share of each class in the test part, in (0, 1).

    Raises:
        BadInput: Too few samples, dimensions or classes.

    Source: SIA, section 4.1 (Synthetic); generator of its published code.
    Differs: The test share is taken within each class, not over the whole set.
    """
    if samples < 2 or dimensions < 1 or classes < 2:
        raise BadInput(
            f"synthetic data needs at least 2 samples, 1 dimension and 2 classes, got "
            f"{samples}, {dimensions} and {classes}; raise them"
        )
    rng = seeded_numpy(seed, "synthetic")
    spread = np.arange(1, dimensions + 1) ** -0.6
    features = (rng.standard_normal((samples, dimensions)) * spread).astype(np.float32)
    weight = rng.normal(0, 2, (dimensions, classes))
    labels = np.argmax(features @ weight + rng.normal(0, 2, classes), axis=1)
    parts = split(labels, test_share, rng=seeded_numpy(seed, "synthetic split"))
    scaled = Scaled(
        torch.from_numpy(features[parts.train]),
        torch.from_numpy(features[parts.test]),
        "as generated",
    )
    return assembled(
        "synthetic",
        scaled,
        torch.from_numpy(labels[parts.train]),
        torch.from_numpy(labels[parts.test]),
        classes=classes,
    )
