"""Exact copies among samples: rows with the same features and targets, byte by byte."""

from math import prod

import numpy as np
from jaxtyping import Int, Shaped, UInt64
from numpy import ndarray
from torch import Tensor

from fedaudit.core.values import Samples, chunks

_VALUES_AT_ONCE = 2**22


def number_rows(*parts: Samples) -> list[Int[ndarray, " samples"]]:
    """Number the distinct rows of all parts together; copies share a number.

    Rows are grouped by a hash first. Only rows with equal hashes are compared, by all their bytes.
    The result is exact, and 100,000 images take seconds.
    """
    hashes = np.concatenate([_hashes(part) for part in parts])
    _, numbers, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    next_number = int(numbers.max(initial=-1)) + 1
    by_content: dict[bytes, int] = {}
    starts = np.cumsum([0, *map(len, parts)])
    for part, start in zip(parts, starts[:-1], strict=True):
        within = counts[numbers[start : start + len(part)]] > 1
        for row in np.flatnonzero(within):
            content = _content(part.features, int(row)) + b"|" + _content(part.targets, int(row))
            number = next_number + len(by_content)
            numbers[start + row] = by_content.setdefault(content, number)
    return np.split(numbers, starts[1:-1])


def occur_in_several(rows: list[Int[ndarray, " samples"]]) -> Int[ndarray, " shared"]:
    """Return the row numbers that occur in more than one part."""
    distinct = [np.unique(part) for part in rows]
    numbers, counts = np.unique(np.concatenate(distinct), return_counts=True)
    shared: Int[ndarray, " shared"] = numbers[counts > 1]
    return shared


def _hashes(samples: Samples) -> UInt64[ndarray, " samples"]:
    """Return the multilinear hash of each row, modulo 2**64."""
    hashes = np.zeros(len(samples), dtype=np.uint64)
    for place, tensor in enumerate((samples.features, samples.targets)):
        rows = _rows(tensor)
        width = rows.shape[1] * max(1, rows.itemsize // 4)
        # A difference in one 32-bit word changes the hash, since the factors are odd.
        factors = np.random.default_rng(place).integers(2**63, size=width, dtype=np.uint64) * 2 + 1
        for part in chunks(len(rows), max(1, _VALUES_AT_ONCE // max(1, width))):
            words = _words(rows[part]).astype(np.uint64)
            hashes[part] += (words * factors.astype(np.uint64)).sum(axis=1, dtype=np.uint64)
    return hashes


def _rows(tensor: Tensor) -> Shaped[ndarray, "samples values"]:
    # Torch cannot infer the width without rows.
    return tensor.detach().cpu().reshape(len(tensor), prod(tensor.shape[1:])).numpy()


def _words(rows: Shaped[ndarray, "samples values"]) -> Shaped[ndarray, "samples words"]:
    if rows.dtype.itemsize < 4:
        return rows.astype(np.float32 if rows.dtype.kind == "f" else np.int32).view(np.uint32)
    # Minus zero equals zero.
    clean = rows + rows.dtype.type(0) if rows.dtype.kind == "f" else rows
    return np.ascontiguousarray(clean).view(np.uint32)


def _content(tensor: Tensor, row: int) -> bytes:
    return _words(_rows(tensor[row][None])).tobytes()
