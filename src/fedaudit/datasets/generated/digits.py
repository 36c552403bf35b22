"""Scikit-learn's handwritten digits."""

from dataclasses import KW_ONLY
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int

from fedaudit.core.arguments import ProperFraction, dataclass
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import ScaledFeatures, build_dataset, stratified_split
from fedaudit.datasets.dataset import Dataset, DataSource


@dataclass(frozen=True)
class digits(DataSource):
    """1,797 handwritten digits of 8 x 8 pixels, bundled with scikit-learn.

    Attributes:
        test_share: Fraction of each class in the test part, in (0, 1).
        standardise: Whether pixels are scaled to mean 0 and standard deviation 1.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.digits(test_share=0.3).read(seed=0).classes
        10
    """

    _: KW_ONLY
    test_share: ProperFraction = 0.2
    standardise: bool = True

    def read(self, seed: int) -> Dataset:
        """Return the data set; the seed selects the digits of the test part."""
        pixels, labels = _bundled_digits()
        parts = stratified_split(labels, self.test_share, rng=seeded_numpy(seed, "digits split"))
        # Pixels count the dark points of a 4 x 4 block, so they are at most 16.
        images = torch.from_numpy(pixels / 16)[:, None].to(torch.float32)
        train, test = images[parts.train], images[parts.test]
        y_train, y_test = (torch.from_numpy(labels[part]) for part in parts)
        if not self.standardise:
            scaled = ScaledFeatures(train, test, "pixels / 16")
            return build_dataset("digits", scaled, y_train, y_test, classes=10)
        mean, std = float(train.double().mean()), float(train.double().std(correction=0))
        description = (
            f"pixels / 16, minus the mean {mean:.4f}, divided by the standard deviation {std:.4f} "
            "(of the training images)"
        )
        scaled = ScaledFeatures((train - mean) / std, (test - mean) / std, description)
        return build_dataset("digits", scaled, y_train, y_test, classes=10)


def _bundled_digits() -> tuple[Float[np.ndarray, "digits 8 8"], Int[np.ndarray, " digits"]]:
    """Return pixels from 0 to 16, and classes."""
    file = bundled_file("digits.csv.gz")
    if file is None:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        return bunch.images, bunch.target.astype(np.int64)
    table = _read_table(file)
    return table[:, :-1].reshape(-1, 8, 8).astype(np.float64), table[:, -1]


# Cached, since each run of a study reads the data set again. Callers copy what they return.
@cache
def _read_table(file: Path) -> Int[np.ndarray, "digits columns"]:
    return np.loadtxt(file, delimiter=",", dtype=np.int64)


def bundled_file(name: str) -> Path | None:
    """Return the path of a data file in scikit-learn, or None if this version has no such file.

    scikit-learn is not imported, because the import takes half of the time until the first round
    of a small study.
    """
    package = find_spec("sklearn")
    path = Path(package.origin if package and package.origin else "").parent
    file = path / "datasets" / "data" / name
    return file if file.is_file() else None
