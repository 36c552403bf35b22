"""Scikit-learn's diabetes patients."""

from dataclasses import KW_ONLY
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float

from fedaudit.core.arguments import ProperFraction, Range, dataclass
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import build_dataset, scale_columns, stratified_split
from fedaudit.datasets.dataset import Dataset, DataSource
from fedaudit.datasets.generated.digits import bundled_file


@dataclass(frozen=True)
class diabetes(DataSource):
    """442 diabetes patients, with the progression of their disease in a year as the class.

    The ten features are age, sex, body mass index, blood pressure and six blood serum measurements,
    standardised. A quantitative measure of progression is divided into classes of equal size.
    Bundled with scikit-learn.

    Attributes:
        progression_classes: Number of classes, from 2 to 10.
        test_share: Fraction of each class in the test part, in (0, 1).
        standardise: Whether measurements are scaled to mean 0 and standard deviation 1.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.diabetes(progression_classes=3).read(seed=0).classes
        3

    Source: Efron, Hastie, Johnstone and Tibshirani, "Least Angle Regression", Annals of Statistics
    32 (2004), section 1.
    """

    _: KW_ONLY
    progression_classes: Annotated[int, Range(ge=2, le=10)] = 4
    test_share: ProperFraction = 0.2
    standardise: bool = True

    def read(self, seed: int) -> Dataset:
        """Return the data set; the seed selects the patients of the test part."""
        features, progression = _bundled_patients()
        levels = np.arange(1, self.progression_classes) / self.progression_classes
        labels = np.searchsorted(np.quantile(progression, levels), progression).astype(np.int64)
        parts = stratified_split(labels, self.test_share, rng=seeded_numpy(seed, "diabetes split"))
        scaled = scale_columns(*(features[part] for part in parts), standardise=self.standardise)
        y_train, y_test = (torch.from_numpy(labels[part]) for part in parts)
        return build_dataset("diabetes", scaled, y_train, y_test, classes=self.progression_classes)


def _bundled_patients() -> tuple[Float[np.ndarray, "patients 10"], Float[np.ndarray, " patients"]]:
    """Return baseline measurements and the progression one year later."""
    files = [bundled_file(f"diabetes_{part}.csv.gz") for part in ("data_raw", "target")]
    if None in files:
        from sklearn.datasets import load_diabetes

        bunch = load_diabetes(scaled=False)
        return bunch.data, bunch.target
    features, progression = (np.loadtxt(file) for file in files if file is not None)
    return features, progression
