"""Text by passage: a data set of one's own that says of which author, patient or text a sample is.

fedaudit run examples/people/study.toml --data-dir FOLDER
"""

from pathlib import Path

import numpy as np

from fedaudit.datasets import samples
from fedaudit.datasets.dataset import Dataset


def passages(
    *, seed: int, data_dir: Path, name: str = "kjv", verses: int = 25, longest: int = 96
) -> Dataset:
    """Verses of the Bible, each of one passage of so many that follow each other in a book."""
    with np.load(data_dir / f"{name}.npz") as stored:
        text, book = stored["x"][:, :longest], stored["book"]
    place = np.arange(len(book)) - np.searchsorted(book, book)
    passage = np.char.add(np.char.add(book.astype(str), ":"), (place // verses).astype(str))
    # Of a verse that is there twice nobody can say whether it was trained on.
    once = np.sort(np.unique(text, axis=0, return_index=True)[1])
    made = samples(text[once], book[once].astype(np.int64), name=name, subject=passage[once])
    return made(seed=seed)
