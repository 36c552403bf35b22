"""Tables in files for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.dataset import Dataset

WARDS = ("surgery", "maternity", "oncology")


def patients(rows: int = 60, *, hospitals: int = 3, seed: int = 0) -> dict[str, list[str]]:
    """Columns of patients: numbers and texts with gaps, a hospital and a label."""
    rng = seeded_numpy(seed, "patients")
    age = [str(value) for value in rng.integers(18, 90, rows)]
    pressure = [f"{value:.1f}" for value in rng.normal(80, 10, rows)]
    ward = [WARDS[index] for index in rng.integers(0, len(WARDS), rows)]
    for row in range(0, rows, 7):
        pressure[row] = ""
    for row in range(3, rows, 11):
        ward[row] = ""
    return {
        "age": age,
        "pressure": pressure,
        "ward": ward,
        "hospital": [f"hospital-{row % hospitals}" for row in range(rows)],
        "readmitted": [("no", "yes")[index] for index in rng.integers(0, 2, rows)],
    }


def text_of(columns: Mapping[str, Sequence[str]], separator: str = ",") -> str:
    """The text of a table."""
    lines = [separator.join(columns), *map(separator.join, zip(*columns.values(), strict=True))]
    return "\n".join(lines) + "\n"


def written(folder: Path, columns: Mapping[str, Sequence[str]], name: str = "patients.csv") -> Path:
    """A file with the table."""
    path = folder / name
    path.write_text(text_of(columns), encoding="utf-8")
    return path


def features_of(dataset: Dataset, client: int | None = None) -> Tensor:
    """Features of both parts, or of one client in both parts."""
    features = torch.cat([dataset.train.features, dataset.test.features])
    return features if client is None else features[dataset.client == client]


def column_of(values: Sequence[float]) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float32))
