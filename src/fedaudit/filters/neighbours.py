"""Neighbouring inputs, and checks of how their outputs differ for the same random draws."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.seeds import seeded_numpy
from fedaudit.filters.claim import (
    EXACT,
    MOVE,
    UNNOISED,
    Arrays,
    Claim,
    FilterCheck,
    Result,
    flat,
    in_words,
    listed,
)
from fedaudit.filters.replay import PLAIN, Form, Release, Replay, form_for

_LADDER = (0.5, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0, 100.0, 1e4, 1e6, 1e30)
"""Norms of updates as multiples of the sensitivity, from below any clipping to far above it."""
_LARGE, _TINY = 1e4, 1e-9
_ROOM = 10.0
"""Factor by which norms stay below the largest number of a precision."""
_DRAWS = 3
"""Number of draws that show whether an entry has noise: without noise, it is equal in all."""
_NOT_FINITE = "NaN"


class _Pair(NamedTuple):
    """Pair of neighbouring inputs.

    Attributes:
        label: Description of the pair.
        left: The first input.
        right: The second input; None for no contribution.
        alone: The only array in which ``left`` is large; empty if it is not a single one.
    """

    label: str
    left: Arrays
    right: Arrays | None = None
    alone: str = ""


class Probes(NamedTuple):
    """Inputs of an audit: neighbours, contributions of several sizes, and special cases.

    Pairs are generated lazily, since those of a large network take much memory.
    """

    pairs: Iterator[_Pair]
    none: Arrays
    small: Arrays
    large: Arrays
    odd: dict[str, Arrays]


def updates(form: Form, claim: Claim, *, seed: int) -> Probes:
    """Generate pairs of updates that differ by a client's whole contribution."""
    rng = seeded_numpy(seed, "directions")
    zeros = {path: np.zeros_like(value) for path, value in form.values.items()}
    fractions = [path for path in zeros if path not in form.whole and zeros[path].size]
    if not fractions:
        raise BadInput("the example of an update has no floating-point entries; give another")

    def directed(length: float, direction: Arrays) -> Arrays:
        factor = length * claim.sensitivity / float(np.linalg.norm(flat(direction)))
        return zeros | {path: np.asarray(value * factor) for path, value in direction.items()}

    def random(length: float, paths: list[str]) -> Arrays:
        return directed(length, {p: np.asarray(rng.normal(size=form.shapes[p])) for p in paths})

    def unopposed() -> Iterator[_Pair]:
        for factor in _LADDER:
            if factor * claim.sensitivity < form.largest / _ROOM:
                yield _Pair(f"{factor:g} sensitivities long", random(factor, fractions))
        equal = {path: np.ones(form.shapes[path]) for path in fractions}
        yield _Pair("of equal entries", directed(_LARGE, equal))
        for path, shape in form.shapes.items():
            alone = f"that is large in {path!r} alone"
            if path in fractions:
                yield _Pair(alone, random(_LARGE, [path]), alone=path)
                last_entry = np.zeros(shape)
                last_entry.flat[-1] = 1
                yield _Pair(
                    f"that is large in one entry of {path!r}", directed(_LARGE, {path: last_entry})
                )
            elif zeros[path].size:
                yield _Pair(alone, zeros | {path: np.full(shape, 100)}, alone=path)

    def pairs() -> Iterator[_Pair]:
        for pair in unopposed():
            yield pair
            if claim.adjacency == "replace":
                opposite = {path: -value for path, value in pair.left.items()}
                yield _Pair(f"{pair.label}, and its opposite", pair.left, opposite)

    tiny = random(_TINY, fractions)
    odd = {}
    for name, value in (("NaN", np.nan), ("infinity", np.inf)):
        entry = tiny[fractions[0]].copy()
        entry.flat[0] = value
        odd[name] = tiny | {fractions[0]: entry}
    return Probes(pairs(), zeros, tiny, random(_LARGE, fractions), odd)


def batches(form: Form, claim: Claim) -> Probes:
    """Generate pairs of batches that differ by one sample with an arbitrarily large gradient."""
    batch = form.values
    counts = {len(value) if value.ndim else 0 for value in batch.values()}
    rows = max(counts)
    if len(counts) > 1 or rows < 3:
        raise BadInput(
            f"the arrays of the batch have {counts} rows; give one row for each sample in every "
            "array, and at least 3 samples"
        )
    inputs = next((path for path in batch if path not in form.whole), None)
    if inputs is None:
        raise BadInput("the batch has no floating-point array to scale; give one with features")

    def larger(row: int, factor: float) -> Arrays:
        changed = batch[inputs].copy()
        changed[row] *= factor
        return batch | {inputs: changed}

    def without(row: int) -> Arrays:
        return {path: np.delete(value, row, axis=0) for path, value in batch.items()}

    def first(samples: int) -> Arrays:
        return {path: value[:samples] for path, value in batch.items()}

    def pairs() -> Iterator[_Pair]:
        for row in (0, rows // 2, rows - 1):
            for factor in (1.0, 10.0, 1e3, 1e5):
                label, left = f"with sample {row} {factor:g} times as large", larger(row, factor)
                if claim.adjacency == "remove":
                    yield _Pair(label, left, without(row))
                else:
                    yield _Pair(f"{label}, and its opposite", left, larger(row, -factor))
        if claim.adjacency == "remove":
            yield _Pair("of two samples and of one", first(2), first(1))

    odd = {"NaN": larger(0, np.nan), "infinity": larger(0, np.inf), "no samples": first(0)}
    return Probes(pairs(), without(0), without(0), larger(0, _LARGE), odd)


def replays(replay: Replay, probes: Probes) -> bool:
    """Return True if two calls with the same draws send the same, to the last bit."""
    first, second = (replay.release(probes.large) for _ in range(2))
    return not any(change.any() for change in first.minus(second).values())


class _Move(NamedTuple):
    """Distance between two outputs, how much may be rounding, and the array that moves most."""

    pair: _Pair
    length: float
    rounding: float
    where: str


def neighbour_checks(replay: Replay, probes: Probes) -> Iterator[FilterCheck]:
    """Check how outputs for neighbouring inputs differ for the same random draws."""
    moves: list[_Move] = []
    moved: Arrays = {}
    extras: dict[str, set[str]] = {}
    not_finite: list[str] = []
    of_none = replay.release(probes.none)
    for pair in probes.pairs:
        left = replay.release(pair.left)
        right = of_none if pair.right is None else replay.release(pair.right)
        for release in (left, right):
            for name, value in (
                release.extras | {"the names of arrays": repr(sorted(release.arrays))}
            ).items():
                extras.setdefault(name, set()).add(value)
        if not (left.is_finite() and right.is_finite()):
            not_finite.append(pair.label)
            continue
        changes = left.minus(right)
        for name, change in changes.items():
            moved[name] = np.asarray((change != 0) | moved.get(name, np.False_))
        where = max(changes, key=lambda name: float(np.abs(changes[name]).max(initial=0)))
        length = replay.claim.length(changes)
        moves.append(_Move(pair, length, replay.rounding(left, right), where))
    subject = "a batch" if replay.kind == "step" else "an update"
    if moves:
        yield _sensitivity_check(moves, replay.claim.sensitivity, subject)
    if not_finite:
        yield FilterCheck(
            "ordinary updates",
            Result.NOTED if moves else Result.UNTESTED,
            f"{len(not_finite)} not finite",
            why=f"{subject} {not_finite[0]} gives an output that is not finite",
            advice="Compute norms in a precision that can represent their squares.",
        )
    differing = [name for name, values in extras.items() if len(values) > 1]
    yield from _unnoised_check(replay, probes, moved, differing)


def _sensitivity_check(moves: list[_Move], sensitivity: float, subject: str) -> FilterCheck:
    longer = [move for move in moves if move.length - move.rounding > sensitivity * (1 + EXACT)]
    worst = longer[0] if longer else max(moves, key=lambda move: move.length)
    label, where = worst.pair.label, f"; the array that changes most is {worst.where!r}"
    alone = [move for move in longer if move.pair.alone]
    if alone and len(alone) < sum(bool(move.pair.alone) for move in moves):
        # Some arrays are clipped and others are not, which is more specific than a length.
        worst = max(alone, key=lambda move: move.length)
        label = f"that is large in {listed([move.pair.alone for move in alone], ' or ')} alone"
    length = in_words(worst.length)
    return FilterCheck(
        MOVE,
        Result.judged(failed=bool(longer)),
        length,
        f"at most {sensitivity:.4g}",
        f"{subject} {label} changes the output by {length}, but {sensitivity:.4g} is declared"
        + ("" if worst.pair.alone else where),
        "Clip the norm over all entries of all arrays as the last step before the noise. Declare "
        "the largest change by one contribution after all later scaling.",
    )


def _unnoised_check(
    replay: Replay, probes: Probes, moved: Arrays, extras: list[str]
) -> Iterator[FilterCheck]:
    """Check for outputs that depend on the input and have no noise."""
    elsewhere = {*replay.claim.elsewhere}
    extras = [name for name in extras if not {name, name.split(".")[-1]} & elsewhere]
    if not replay.claim.sigma:
        # No output has noise, and the sensitivity is that of the arrays.
        if extras:
            yield FilterCheck(
                "sent with the arrays",
                Result.NOTED,
                listed(extras),
                why=f"the output {listed(extras)} depends on the update, and the declared "
                "sensitivity is that of the arrays alone",
                advice="Account for it, and declare it with --elsewhere.",
            )
        return
    first, *others = (_moved_on(replay, probes, probes.small, draw) for draw in range(_DRAWS))
    unnoised = {}
    for name, value in first.arrays.items():
        equal = np.all([value == other.arrays.get(name, np.nan) for other in others], axis=0)
        unnoised[name] = int(np.sum(equal & moved.get(name, np.False_)))
    arrays = [name for name, entries in unnoised.items() if entries]
    share = sum(unnoised.values()) / max(1, sum(value.size for value in first.arrays.values()))
    measured = [f"{share:.2%} of entries"] * bool(arrays) + [listed(extras)] * bool(extras)
    yield FilterCheck(
        UNNOISED,
        Result.judged(failed=bool(measured)),
        ", ".join(measured) or "none",
        "none",
        f"the output {listed([*arrays, *extras])} depends on the data and has no noise",
        "Add noise to every output, buffers too, or name it with --elsewhere.",
    )


def same_noise_check(replay: Replay, probes: Probes) -> Iterator[FilterCheck]:
    """Check that the noise does not depend on the input."""
    if not replay.claim.sigma:
        return
    large, other, small, another = releases = [
        _moved_on(replay, probes, values, draw)
        for values in (probes.large, probes.small)
        for draw in range(2)
    ]
    noises = large.minus(other), small.minus(another)
    names = sorted(noises[0].keys() & noises[1].keys())
    if not names or not all(map(Release.is_finite, releases)):
        return
    large_noise, small_noise = (flat({name: noise[name] for name in names}) for noise in noises)
    difference, length = (
        float(np.linalg.norm(large_noise - small_noise)),
        float(np.linalg.norm(small_noise)),
    )
    differs = difference > EXACT * length + replay.rounding(*releases)
    yield FilterCheck(
        "noise on a large update",
        Result.judged(failed=differs),
        f"differs by {difference / length:.2g} of it" if differs and length else "the same",
        "the same",
        "for the same draws, the noise on a large contribution differs from that without one",
        "Add noise last, after clipping, with one scale for all batches and updates.",
    )


def state_check(replay: Replay, probes: Probes) -> FilterCheck:
    """Check that a release does not depend on the inputs of earlier rounds."""
    claim, largest, differs = replay.claim, 0.0, False
    for values in (probes.small, probes.large):
        first, second = (
            replay.release(values, before=[p, p]) for p in (probes.large, probes.small)
        )
        if first.is_finite() and second.is_finite():
            length = claim.length(first.minus(second))
            slack = EXACT * claim.sensitivity + replay.rounding(first, second)
            largest, differs = max(largest, length), differs or length > slack
    return FilterCheck(
        "influence of earlier rounds",
        Result.NOTED if differs and claim.stateful else Result.judged(failed=differs),
        f"difference of {in_words(largest)}" if differs else "none",
        "allowed" if claim.stateful else "none",
        f"large contributions in two earlier rounds change a release by {in_words(largest)}",
        "Store no update between rounds, or declare --stateful if the accountant covers it.",
    )


def odd_input_checks(replay: Replay, probes: Probes, zeros: str) -> Iterator[FilterCheck]:
    """Note non-finite and empty inputs that the filter passes on or fails on."""
    failures = {name: failure(replay, values) for name, values in probes.odd.items()}
    passed = [name for name, error in failures.items() if error == _NOT_FINITE]
    if passed:
        yield FilterCheck(
            "non-finite entries",
            Result.NOTED,
            f"{' and '.join(passed)} pass on",
            why=f"updates with {' or '.join(passed)} pass the filter, and noise cannot hide them",
            advice="Refuse or replace entries that are not finite before clipping.",
        )
    if "no samples" in failures and "no samples" not in passed:
        zeros = failures["no samples"]
    if zeros:
        what = "a batch without samples" if replay.kind == "step" else "an update of zeros"
        yield FilterCheck(
            "no contribution",
            Result.NOTED,
            zeros,
            why=f"{what} ends in {zeros}, which reveals it",
            advice="Add a small number to the divisor.",
        )


def scalar_check(replay: Replay) -> Iterator[FilterCheck]:
    """Note a filter that handles arrays without dimensions, or empty ones, differently."""
    example = PLAIN | {"temperature": torch.zeros(()), "empty": torch.zeros(0)}
    replay = replace(replay, form=form_for(replay.kind, example))
    probes = updates(replay.form, replay.claim, seed=replay.seed)
    large = probes.small | {"temperature": np.array(_LARGE * replay.claim.sensitivity)}
    probes = probes._replace(pairs=iter([_Pair("", large)]), none=probes.small)
    faults = {MOVE: "is not clipped", UNNOISED: "has no noise"}
    try:
        failed = [c.name for c in neighbour_checks(replay, probes) if c.result is Result.FAILED]
        measured = " and ".join(faults[name] for name in failed)
    except FedauditError as error:
        measured = f"ends in {type(error.__cause__ or error).__name__}"
    if measured:
        yield FilterCheck(
            "array without dimensions",
            Result.NOTED,
            measured,
            why=f"an array of shape () {measured}; the check was on arrays with dimensions",
            advice="If your model has one (a temperature, a counter), give it as --shape-from.",
        )


def failure(replay: Replay, values: Arrays) -> str:
    """Return the error type for an input, "NaN" for a non-finite output, or ""."""
    try:
        return "" if replay.release(values).is_finite() else _NOT_FINITE
    except FedauditError as error:
        return type(error.__cause__ or error).__name__


def _moved_on(replay: Replay, probes: Probes, values: Arrays, draw: int) -> Release:
    """Return a release with other draws; earlier calls advance generators that a filter keeps."""
    return replay.release(values, draw=1 + 2 * draw, before=[probes.small] * draw)
