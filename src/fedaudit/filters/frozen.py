"""Checks with the noise frozen: what is left between two outputs is what the filter was given."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedaudit.core.errors import Refusal
from fedaudit.filters.bench import Bench, is_finite, length_between, moves
from fedaudit.filters.calling import Call, Form, Sent, plain_example
from fedaudit.filters.claim import Arrays, Check, Claim, Result, in_words
from fedaudit.filters.freezing import Copies
from fedaudit.filters.noise import EXACT
from fedaudit.filters.probes import Pair, Probes, updates

_DRAWS = 3
"""By which an entry without noise is told: a noisy one is never thrice the same."""


def replays(bench: Bench, probes: Probes) -> bool:
    """True if two calls with the same draws send the same, to the last bit."""
    one, two = (bench.sent(probes.large) for _ in range(2))
    return not any(change.any() for change in moves(one, two).values())


class Moved(NamedTuple):
    """How far two outputs lie apart.

    Attributes:
        pair: For which neighbours.
        length: As declared lengths are measured.
        rounding: How much of it may be rounding.
        where: The array with the largest difference of an entry.
    """

    pair: Pair
    length: float
    rounding: float
    where: str


@dataclass
class Neighbours:
    """What outputs for neighbours differ by.

    Attributes:
        lengths: Of every pair's difference.
        moved: Which entries differ for some neighbours.
        beside: Values of what is sent beside the arrays, by name.
        lost: Neighbours for which an output is not finite.
    """

    lengths: list[Moved] = field(default_factory=list)
    moved: dict[str, np.ndarray] = field(default_factory=dict)
    beside: dict[str, set[str]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def add(self, pair: Pair, left: Sent, right: Sent, bench: Bench) -> None:
        """Takes in what was sent for two neighbours."""
        for sent in (left, right):
            for name, value in {**sent.beside, "the names of arrays": sorted(sent.arrays)}.items():
                self.beside.setdefault(name, set()).add(repr(value))
        if not (is_finite(left) and is_finite(right)):
            self.lost.append(pair.told)
            return
        changes = moves(left, right)
        for name, change in changes.items():
            self.moved[name] = (change != 0) | self.moved.get(name, np.zeros((), bool))
        where = max(changes, key=lambda name: float(np.abs(changes[name]).max(initial=0)))
        length = length_between(bench.claim, left, right)
        self.lengths.append(Moved(pair, length, bench.rounding(left, right), where))

    def farthest(self) -> Moved:
        """The longest difference."""
        return max(self.lengths, key=lambda one: one.length)

    def beyond(self, most: float) -> Moved | None:
        """The difference by which it is best seen that some are longer; None if none is."""
        longer = [one for one in self.lengths if one.length - one.rounding > most]
        alone = [one for one in longer if one.pair.alone]
        if alone and len(alone) < sum(bool(one.pair.alone) for one in self.lengths):
            # Some arrays are shortened and others are not: that says more than any length.
            which = _listed([one.pair.alone for one in alone], " or ")
            longest = max(alone, key=lambda one: one.length)
            told = f"that is large in {which} alone"
            return longest._replace(pair=longest.pair._replace(told=told))
        return longer[0] if longer else None


def compared(bench: Bench, probes: Probes) -> Neighbours:
    """Every pair of neighbours through the filter, with the same draws."""
    found, of_none = Neighbours(), bench.sent(probes.none)
    for pair in probes.pairs:
        right = of_none if pair.right is probes.none else bench.sent(pair.right)
        found.add(pair, bench.sent(pair.left), right, bench)
    return found


def sensitivity_check(found: Neighbours, bench: Bench) -> Iterator[Check]:
    """Whether no contribution moves the output farther than declared."""
    most = bench.claim.sensitivity
    subject = "a batch" if bench.call.kind == "step" else "an update"
    if found.lengths:
        beyond = found.beyond(most * (1 + EXACT))
        shown = beyond or found.farthest()
        yield Check(
            "largest move of the output",
            in_words(shown.length),
            f"at most {most:.4g}",
            Result.FAILED if beyond else Result.PASSED,
            f"{subject} {shown.pair.told} moves the output by {in_words(shown.length)}, and "
            f"{most:.4g} is declared"
            + ("" if shown.pair.alone else f"; the array that moves most is {shown.where!r}"),
            "Clip to one length over all entries of all arrays together, as the last step before "
            "the noise, and declare what one contribution can move after every later scaling.",
        )
    if found.lost:
        every = not found.lengths
        yield Check(
            "ordinary updates",
            f"{len(found.lost)} not finite",
            "",
            Result.UNTESTED if every else Result.NOTED,
            f"{subject} {found.lost[0]} gives an output that is not finite",
            "Calculate lengths in a precision that holds their squares.",
        )


def unnoised_check(found: Neighbours, bench: Bench, probes: Probes) -> Iterator[Check]:
    """Whether something depends on what the filter was given and has no noise."""
    claim = bench.claim
    again = [_drawn(bench, probes, probes.small, draw) for draw in range(_DRAWS)]
    bare: dict[str, int] = {}
    if claim.sigma:
        for name, value in again[0].arrays.items():
            quiet = np.all([value == one.arrays.get(name, np.nan) for one in again[1:]], axis=0)
            bare[name] = int(np.sum(quiet & found.moved.get(name, np.zeros((), bool))))
    arrays = [name for name, count in bare.items() if count]
    share = sum(bare.values()) / max(1, sum(value.size for value in again[0].arrays.values()))
    beside = [
        name
        for name, values in found.beside.items()
        if len(values) > 1 and not {name, name.split(".")[-1]} & {*claim.elsewhere}
    ]
    if beside and not claim.sigma:
        # Nothing has noise here, and the sensitivity is that of the arrays.
        yield Check(
            "sent beside the arrays",
            _listed(beside),
            "",
            Result.NOTED,
            f"what is sent as {_listed(beside)} depends on the update, and the declared "
            "sensitivity is that of the arrays alone",
            "Account for it, and say so with --elsewhere.",
        )
        beside = []
    if not claim.sigma:
        return
    told = [f"{share:.2%} of entries"] if arrays else []
    told += [_listed(beside)] if beside else []
    yield Check(
        "outputs without noise",
        ", ".join(told) or "none",
        "none",
        Result.FAILED if told else Result.PASSED,
        f"what is sent as {_listed([*arrays, *beside])} depends on the data and has no noise",
        "Add noise to every array that leaves, buffers too; leave out what needs none, or name it "
        "with --elsewhere if its noise is added elsewhere.",
    )


def same_noise_check(bench: Bench, probes: Probes) -> Iterator[Check]:
    """Whether the noise is the same whatever it is added to: exactly, with the same draws."""
    if not bench.claim.sigma:
        return
    large, other, small, another = (
        _drawn(bench, probes, values, draw)
        for values in (probes.large, probes.small)
        for draw in range(2)
    )
    if not all(map(is_finite, (large, other, small, another))):
        return
    noise = moves(small, another)
    here = moves(large, other)
    names = noise.keys() & here.keys()
    if not names:
        return
    apart = _length([here[name] - noise[name] for name in names])
    length = _length([noise[name] for name in names])
    differs = apart > EXACT * length + bench.rounding(large, other, small, another)
    yield Check(
        "noise on a large update",
        f"differs by {apart / length:.2g} of it" if differs and length else "the same",
        "the same",
        Result.FAILED if differs else Result.PASSED,
        "with the same draws, the noise on a large contribution is other than that on none",
        "Add noise last, of a fixed scale: not before clipping, and not scaled by the batch that "
        "was drawn or by the update.",
    )


def state_check(bench: Bench, probes: Probes) -> Iterator[Check]:
    """Whether a release depends on what was seen in earlier rounds."""
    apart, differs = 0.0, False
    for values in (probes.small, probes.large):
        after = [bench.sent(values, before=[past, past]) for past in (probes.large, probes.small)]
        if all(map(is_finite, after)):
            length = length_between(bench.claim, *after)
            slack = EXACT * bench.claim.sensitivity + bench.rounding(*after)
            apart, differs = max(apart, length), differs or length > slack
    stateful = bench.claim.stateful
    yield Check(
        "earlier rounds in a release",
        f"{in_words(apart)} apart" if differs else "none",
        "allowed" if stateful else "none",
        (Result.NOTED if stateful else Result.FAILED) if differs else Result.PASSED,
        f"after two rounds with large contributions an update comes out {in_words(apart)} away "
        "from where it does after rounds with none: earlier data are released again",
        "Keep nothing between rounds that was made of updates without noise; declare --stateful if "
        "the accountant knows of it.",
    )


def oddity_checks(bench: Bench, probes: Probes, *, zeros: str) -> Iterator[Check]:
    """What a filter may have forgotten, and what no declaration speaks of."""
    passed: list[str] = []
    for name, values in probes.odd.items():
        try:
            finite = is_finite(bench.sent(values))
        except Refusal as error:
            if name == "no samples":
                zeros = _failure(error)
            continue
        passed += [] if finite else [name]
    if passed:
        yield Check(
            "non-finite entries",
            f"{' and '.join(passed)} pass on",
            "",
            Result.NOTED,
            f"updates with {' or '.join(passed)} pass the filter, and no noise hides that",
            "Refuse or replace entries that are not finite before clipping.",
        )
    if zeros:
        what = "a batch without samples" if bench.call.kind == "step" else "an update of zeros"
        yield Check(
            "no contribution",
            zeros,
            "",
            Result.NOTED,
            f"{what} ends in {zeros}, which tells that there was none",
            "Add a small number to the length that is divided by.",
        )


def without_dimensions_check(
    call: Call, copies: Copies, claim: Claim, seed: int
) -> Iterator[Check]:
    """Whether a parameter without dimensions, and an empty one, fare as the others do."""
    example = plain_example(temperature=(), empty=(0,))
    form = Form(example if call.form.tensors else {n: v.numpy() for n, v in example.items()})
    bench = Bench(Call(call.kind, form, call.name), copies, claim, seed=seed)
    probes = updates(form, claim, seed=seed)
    update: Arrays = probes.small | {"temperature": np.array(1e4 * claim.sensitivity)}
    try:
        one, two = (_drawn(bench, probes, update, draw) for draw in range(2))
        base = bench.sent(probes.small)
    except Refusal as error:
        yield _odd_shape(_failure(error), f"ends in {_failure(error)}")
        return
    faults = []
    if length_between(claim, one, base) > claim.sensitivity * (1 + EXACT) + bench.rounding(one):
        faults.append("is not clipped")
    bare = one.arrays.get("temperature") == two.arrays.get("temperature")
    if claim.sigma and bare and "temperature" in one.arrays:
        faults.append("has no noise")
    if faults:
        yield _odd_shape(" and ".join(faults), " and ".join(faults))


def _drawn(bench: Bench, probes: Probes, values: Arrays, draw: int) -> Sent:
    """What is sent with other draws: a generator that a filter keeps is moved on by calls."""
    return bench.sent(values, draw=1 + 2 * draw, before=[probes.small] * draw)


def _odd_shape(measured: str, what: str) -> Check:
    return Check(
        "array without dimensions",
        measured,
        "",
        Result.NOTED,
        f"an array of shape () {what}; the check was on arrays with dimensions",
        "If your model has one (a temperature, a counter), give the model as --shape-from.",
    )


def zeros_failure(bench: Bench) -> str:
    """What an update of zeros ends in; nothing where it is sent."""
    zeros = {path: np.zeros_like(value) for path, value in bench.call.form.values.items()}
    try:
        return "" if is_finite(bench.sent(zeros)) else "NaN"
    except Refusal as error:
        return _failure(error)


def _failure(error: Refusal) -> str:
    return type(error.__cause__ or error).__name__


def _length(parts: list[np.ndarray]) -> float:
    return math.sqrt(sum(float((part**2).sum()) for part in parts))


def _listed(names: list[str], between: str = ", ") -> str:
    shown = between.join(map(repr, names[:3]))
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
