"""Custom data set that names the "person" of each sample: here, the passage of a verse.

fedaudit run examples/people/study.toml --data-dir FOLDER
"""

from pathlib import Path

import numpy as np

from fedaudit.datasets import samples
from fedaudit.datasets.dataset import Dataset


def passages(
    *, seed: int, data_dir: Path, name: str = "kjv", verses: int = 25, longest: int = 96
) -> Dataset:
    """Return verses of the Bible; consecutive verses of a book form a passage."""
    with np.load(data_dir / f"{name}.npz") as stored:
        text, book = stored["x"][:, :longest], stored["book"]
    verse = np.arange(len(book)) - np.searchsorted(book, book)
    passage = np.char.add(np.char.add(book.astype(str), ":"), (verse // verses).astype(str))
    # Drop copies: a verse that occurs twice could be a member and held out at the same time.
    first = np.sort(np.unique(text, axis=0, return_index=True)[1])
    data = samples(text[first], book[first].astype(np.int64), name=name, subject=passage[first])
    return data(seed=seed)
