"""Neighbours that a filter is held to: updates, or batches, that differ by one contribution."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.filters.calling import Form
from fedaudit.filters.claim import Arrays, Claim

_LADDER = (0.5, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0, 100.0, 1e4, 1e6, 1e30)
"""Lengths of an update, in sensitivities: from what a filter leaves alone to far above."""
_LARGE = 1e4
_AS_GOOD_AS_NOTHING = 1e-9
_ROOM = 10.0
"""How far below the largest number of a precision lengths stay."""


class Pair(NamedTuple):
    """Two neighbours.

    Attributes:
        told: What the first is like.
        left: The one.
        right: The other.
        alone: The one array in which they differ, where that is what they are for.
    """

    told: str
    left: Arrays
    right: Arrays
    alone: str = ""


class Probes(NamedTuple):
    """What a filter is tried on.

    Attributes:
        pairs: Neighbours, made as they are asked for: a large network has large ones.
        none: No contribution, which most of them are held against.
        small: As good as no contribution, for the noise alone.
        large: A neighbour of it with a contribution that is far too large.
        odd: What a filter may have forgotten, by what it is.
    """

    pairs: Iterator[Pair]
    none: Arrays
    small: Arrays
    large: Arrays
    odd: dict[str, Arrays]


def updates(form: Form, claim: Claim, *, seed: int, nothing: bool = True) -> Probes:
    """Updates that differ by a client's whole contribution.

    Args:
        form: Of an update.
        claim: Its sensitivity sets the scale; its adjacency what an update is held against.
        seed: Of the directions.
        nothing: Whether the filter takes an update of zeros; else a tiny one stands for it.
    """
    rng = seeded_numpy(seed, "directions")
    zeros = {path: np.zeros_like(value) for path, value in form.values.items()}
    fractions = [path for path in zeros if path not in form.whole and zeros[path].size]
    if not fractions:
        raise BadInput("the example of an update has no entries that are fractions; give another")

    def long(length: float, paths: list[str], *, equal: bool = False) -> Arrays:
        """A random direction, or that of equal entries, over some of the arrays."""
        drawn = {
            path: np.ones(form.shapes[path]) if equal else rng.normal(size=form.shapes[path])
            for path in paths
        }
        size = sum(float((value**2).sum()) for value in drawn.values()) ** 0.5
        factor = length * claim.sensitivity / size
        return zeros | {path: np.asarray(value * factor) for path, value in drawn.items()}

    def tried() -> Iterator[tuple[str, Arrays, str]]:
        for factor in _LADDER:
            if factor * claim.sensitivity < form.largest / _ROOM:
                yield f"{factor:g} sensitivities long", long(factor, fractions), ""
        yield "of equal entries", long(_LARGE, fractions, equal=True), ""
        for path in zeros:
            if path in fractions:
                yield f"that is large in {path!r} alone", long(_LARGE, [path]), path
                one = np.zeros(form.shapes[path])
                one.flat[-1] = _LARGE * claim.sensitivity
                yield f"that is large in one entry of {path!r}", zeros | {path: one}, ""
            elif zeros[path].size:
                count = np.full(form.shapes[path], 100)
                yield f"that is large in {path!r} alone", zeros | {path: count}, path

    def pairs() -> Iterator[Pair]:
        for told, update, alone in tried():
            yield Pair(told, update, none, alone)
            if claim.adjacency == "replace":
                opposite = {path: -value for path, value in update.items()}
                yield Pair(f"{told}, and its opposite", update, opposite)

    tiny = long(_AS_GOOD_AS_NOTHING, fractions)
    none = zeros if nothing else tiny
    odd = {}
    for name, value in (("NaN", np.nan), ("infinity", np.inf)):
        entry = tiny[fractions[0]].copy()
        entry.flat[0] = value
        odd[name] = tiny | {fractions[0]: entry}
    return Probes(pairs(), none, tiny, long(_LARGE, fractions), odd)


def batches(form: Form, claim: Claim) -> Probes:
    """Batches that differ by one sample, whose gradient may be as large as it likes.

    Args:
        form: Of a batch, samples in rows.
        claim: Its adjacency says whether the sample is left out or another one.
    """
    batch = form.values
    counts = {len(value) if value.ndim else 0 for value in batch.values()}
    rows = max(counts)
    if len(counts) > 1 or rows < 3:
        raise BadInput(
            f"a batch has as many rows in each array, one a sample and at least 3, got {counts}"
        )
    inputs = [path for path in batch if path not in form.whole][:1]
    if not inputs:
        raise BadInput("the batch has no array of fractions whose samples could be made larger")

    def larger(row: int, factor: float) -> Arrays:
        changed = {path: value.copy() for path, value in batch.items()}
        for path in inputs:
            changed[path][row] *= factor
        return changed

    def without(row: int) -> Arrays:
        return {path: np.delete(value, row, axis=0) for path, value in batch.items()}

    pairs = []
    for row in (0, rows // 2, rows - 1):
        for factor in (1.0, 10.0, 1e3, 1e5):
            told = f"with sample {row} {factor:g} times as large"
            changed = larger(row, factor)
            pairs.append(Pair(told, changed, without(row)))
            if claim.adjacency == "replace":
                pairs[-1] = Pair(f"{told}, and its opposite", changed, larger(row, -factor))
    two = {path: value[:2] for path, value in batch.items()}
    one = {path: value[:1] for path, value in batch.items()}
    if claim.adjacency == "remove":
        pairs.append(Pair("of two samples and of one", two, one))
    odd = {"NaN": larger(0, np.nan), "infinity": larger(0, np.inf)}
    odd["no samples"] = {path: value[:0] for path, value in batch.items()}
    return Probes(iter(pairs), without(0), without(0), larger(0, _LARGE), odd)
