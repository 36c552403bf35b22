"""Repeated calls of a filter from the same state with the same random draws.

The generators of torch, NumPy and Python are seeded. The operating system's random bytes, which
seed other generators, come from a seeded stream. Generators in a filter's attributes are copied
with the filter, and so are values in globals, closures and defaults of its functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from fedaudit.core.errors import BadInput, FedauditError, type_of
from fedaudit.core.importing import location_of
from fedaudit.filters.claim import Arrays, Claim, flatten
from fedaudit.filters.kinds import as_function
from fedaudit.filters.layout import UpdateLayout, is_array, leaves_of, to_numpy
from fedaudit.filters.state import Snapshot, seeding_draws

_SEED_STEP = 1_000_003
"""Difference between the seeds of successive draws.

It is large, so that audits with neighbouring values of ``seed`` share no draws.
"""
_MAX_KEPT_ENTRIES = 4096


class FilterOutput(NamedTuple):
    """Output of one call.

    Attributes:
        arrays: The arrays by name, in double precision.
        extras: Other outputs by name, as text.
    """

    arrays: Arrays
    extras: dict[str, str]

    def is_finite(self) -> bool:
        """Return True if every entry is finite."""
        return all(bool(np.isfinite(value).all()) for value in self.arrays.values())

    def minus(self, other: "FilterOutput") -> Arrays:
        """Return the difference of each array; a missing array counts as zeros."""
        pairs = _stack([self.arrays, other.arrays])
        return {name: np.asarray(left - right) for name, (left, right) in pairs.items()}


@dataclass(frozen=True)
class Replay:
    """A filter that can be called from its initial state with chosen random draws."""

    name: str
    kind: str
    layout: UpdateLayout
    snapshot: Snapshot
    claim: Claim
    seed: int

    def call(
        self, values: Arrays, *, seed_index: int = 1, earlier: Sequence[Arrays] = ()
    ) -> FilterOutput:
        """Return the output of a new filter for one input.

        Args:
            values: The input.
            seed_index: Number that selects the seed of the random draws.
            earlier: Inputs of calls that precede this call.
        """
        filter = as_function(self.snapshot.new_filter(), self.kind, self.claim)
        with seeding_draws(self.seed + _SEED_STEP * seed_index):
            for earlier_values in earlier:
                self._call(filter, earlier_values)
        with seeding_draws(self.seed + _SEED_STEP * (seed_index + 1)):
            return self._call(filter, values)

    def call_repeatedly(self, values: Arrays, calls: int, *, seed_index: int) -> Arrays:
        """Return the outputs of a new filter that is called repeatedly with one input.

        The first axis of each array is the call. Large arrays are truncated; see
        :func:`leading_entries`.
        """
        filter = as_function(self.snapshot.new_filter(), self.kind, self.claim)
        outputs: list[Arrays] = []
        with seeding_draws(self.seed + _SEED_STEP * seed_index):
            for _ in range(calls):
                arrays = self._call(filter, values).arrays
                # A copy, since a view would keep the whole array in memory.
                outputs.append({n: leading_entries(value).copy() for n, value in arrays.items()})
        return _stack(outputs)

    def rounding(self, *outputs: FilterOutput) -> float:
        """Return the largest difference between these outputs that rounding may cause."""
        norms = (float(np.linalg.norm(flatten(output.arrays))) for output in outputs)
        return 4 * self.layout.rounding * sum(norms)

    def _call(self, filter: object, values: Arrays) -> FilterOutput:
        update = self.layout.with_values(values)
        # A step takes the arrays of a batch as separate arguments.
        is_batch = self.kind == "step" and isinstance(update, Sequence)
        arguments = cast(Sequence[object], update) if is_batch else (update,)
        try:
            result = cast(Callable[..., object], filter)(*arguments)
        except FedauditError:
            raise
        # Also catch an exit of the filter, whose exit code would look like a verdict.
        except (Exception, SystemExit) as error:
            raise BadInput(
                f"the filter {self.name!r} fails: {type(error).__name__}: {error} "
                f"({location_of(error)})"
            ) from error
        if result is None and self.kind != "step":
            # A filter that returns None is assumed to change its argument in place.
            result = update
        return self._convert(result)

    def _convert(self, result: object) -> FilterOutput:
        """Separate the arrays that a filter returned from other outputs."""
        extras: dict[str, object] = {}
        if isinstance(result, tuple) and len(result) > 1 and not is_array(result[0]):
            extras = leaves_of(result[1] if len(result) == 2 else result[1:])
            result = result[0]
        leaves = leaves_of(result)
        arrays = {
            path: to_numpy(value).astype(np.float64)
            for path, value in leaves.items()
            if is_array(value) and (path in self.layout.shapes or self.kind == "step")
        }
        if not arrays:
            raise BadInput(
                f"the filter {self.name!r} returned {type_of(result)} with none of its input "
                f"arrays ({', '.join(self.layout.shapes)[:100]}); return an update from it"
            )
        extras |= {path: value for path, value in leaves.items() if path not in arrays}
        texts = {
            path: repr(to_numpy(value).tolist() if is_array(value) else value)
            for path, value in extras.items()
        }
        return FilterOutput(arrays, texts)


def leading_entries(value: np.ndarray) -> np.ndarray:
    """Return the first entries along each axis, at most 4,096 in total."""
    shape = list(value.shape)
    while np.prod(shape) > _MAX_KEPT_ENTRIES:
        longest_axis = int(np.argmax(shape))
        shape[longest_axis] = (shape[longest_axis] + 1) // 2
    return np.asarray(value[tuple(slice(length) for length in shape)])


def _stack(outputs: Sequence[Arrays]) -> Arrays:
    """Stack the arrays of several calls; missing arrays are zeros."""
    stacked: Arrays = {}
    for name in dict.fromkeys(name for arrays in outputs for name in arrays):
        shapes = {arrays[name].shape for arrays in outputs if name in arrays}
        if len(shapes) > 1:
            raise BadInput(
                f"the filter returns an array of one name with different shapes {shapes}, which "
                "cannot be compared; check the part of the filter that keeps the shape"
            )
        zeros = np.zeros(shapes.pop())
        stacked[name] = np.stack([arrays.get(name, zeros) for arrays in outputs])
    return stacked
