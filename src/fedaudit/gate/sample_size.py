"""Evidence that would settle a figure whose interval lies on both sides of its ceiling."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from fedaudit.gate.outcome import Outcome, against
from fedaudit.results.fields import Part, Whole

Limits = Callable[[int], "tuple[float, float] | None"]

MOST_SAMPLES = 10**7
"""More samples than that settle nothing that an audit could have."""
MOST_SEEDS = 1000
MOST_SEARCHES = 1000
"""Figures of one verdict that it is searched for; a search takes up to a twentieth of a second."""

_left: ContextVar[Iterator[int] | None] = ContextVar("left", default=None)


@contextmanager
def searching() -> Iterator[None]:
    """Inside, what would settle a figure is searched for so often and no more."""
    token = _left.set(iter(range(MOST_SEARCHES)))
    try:
        yield
    finally:
        _left.reset(token)


class RequiredSamples(Part):
    """The evidence that would settle a figure if the figure itself stayed the same.

    Attributes:
        what: Of what there are too few: "members", "non-members", "audited samples", "seeds".
        count: How many more; 0 where no number would do.
        then: What the gate would say then; None where no number would do, or where the figure
            is still to be seen.
        text: The same in words.
    """

    what: str
    count: Whole
    then: Outcome | None
    text: str


class Settled(NamedTuple):
    """The smallest sample that settles a figure, and how."""

    size: int
    then: Outcome


def smallest(limits: Limits, start: int, ceiling: float, *, most: int) -> Settled | None:
    """The smallest size from ``start`` on at which limits decide; None where none up to ``most``.

    Args:
        limits: Lower and upper limit by size; None where they cannot be told.
        start: The size that there is.
        ceiling: The most that is allowed.
        most: The largest size that is tried.
    """

    def at(size: int) -> Outcome:
        found = limits(size)
        return Outcome.INCONCLUSIVE if found is None else against(*found, ceiling)

    low, high = start, max(2 * start, start + 1)
    while at(high) is Outcome.INCONCLUSIVE:
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    # Limits draw together as the sample grows, so that what decides once decides from there on.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) is Outcome.INCONCLUSIVE else (low, middle)
    return Settled(high, at(high))


def more_of(count: int, what: str) -> str:
    """A number of further things, named in the plural: "1 more seed", "20 more games"."""
    first, *rest = what.split(" ")
    return " ".join([f"{count:,} more", first.removesuffix("s") if count == 1 else first, *rest])


def required_sample_size(
    limits: Limits,
    start: int,
    ceiling: float,
    *,
    what: str,
    each: int = 1,
    most: int = MOST_SAMPLES,
) -> RequiredSamples:
    """The evidence that would settle a figure, in words.

    Args:
        limits: Lower and upper limit by size; None where they cannot be told.
        start: The size that there is.
        ceiling: The most that is allowed.
        what: What is counted: "members", "seeds".
        each: How many of that the limits' size 1 stands for.
        most: The largest size that is tried.
    """
    left = _left.get()
    if left is not None and next(left, None) is None:
        return RequiredSamples(
            what=what,
            count=0,
            then=None,
            text=f"what would settle it is searched for {MOST_SEARCHES:,} figures of a verdict and "
            "was not for this one",
        )
    if limits(start) is None:
        return RequiredSamples(
            what=what,
            count=0,
            then=None,
            text="how many more samples would settle it does not follow from the record",
        )
    found = smallest(limits, start, ceiling, most=most)
    if found is None:
        return RequiredSamples(
            what=what,
            count=0,
            then=None,
            text=f"the figure lies so near the ceiling that up to {most:,} {what} would not "
            "settle it",
        )
    missing = each * (found.size - start)
    return RequiredSamples(
        what=what,
        count=missing,
        then=found.then,
        text=f"{more_of(missing, what)} would settle it ({found.then}) if the figure stays as it "
        "is",
    )
