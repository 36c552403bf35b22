"""Neighbouring inputs, and checks of how outputs for them differ with the same random draws."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.seeds import seeded_numpy
from fedaudit.filters.claim import (
    CHANGE_CHECK,
    NOISELESS_CHECK,
    TOLERANCE,
    Arrays,
    Claim,
    FilterCheck,
    Result,
    flatten,
    format_length,
    quote_names,
)
from fedaudit.filters.replay import DEFAULT_EXAMPLE, Form, Release, Replay, form_for

_NORMS = (0.5, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0, 100.0, 1e4, 1e6, 1e30)
"""Norms of updates as multiples of the sensitivity, from less to far more than a clipping norm."""
_LARGE, _TINY = 1e4, 1e-9
"""Norms of a large and a tiny contribution as multiples of the sensitivity."""
_HEADROOM = 10.0
"""Factor by which norms stay below the largest number of a precision."""
_NOISE_DRAWS = 3
"""Number of draws in which an entry without noise has equal values."""
_NOT_FINITE = "NaN"


class _Pair(NamedTuple):
    """Pair of neighbouring inputs.

    Attributes:
        label: Description of the pair.
        left: The first input.
        right: The second input; None for no contribution.
        only_array: Name of the array if ``left`` is large in only one array; otherwise empty.
    """

    label: str
    left: Arrays
    right: Arrays | None = None
    only_array: str = ""


class Probes(NamedTuple):
    """Inputs of an audit.

    Attributes:
        pairs: Pairs of neighbours, one at a time, since all pairs would take much memory.
        none: The input without a contribution.
        small: An input with a tiny contribution.
        large: An input with a large contribution.
        special: Inputs that are not finite or have no samples.
    """

    pairs: Iterator[_Pair]
    none: Arrays
    small: Arrays
    large: Arrays
    special: dict[str, Arrays]


def updates(form: Form, claim: Claim, *, seed: int) -> Probes:
    """Generate pairs of updates that differ by a client's whole contribution."""
    rng = seeded_numpy(seed, "directions")
    zeros = {path: np.zeros_like(value) for path, value in form.values.items()}
    fractions = [path for path in zeros if path not in form.integer_paths and zeros[path].size]
    if not fractions:
        raise BadInput("the example of an update has no floating-point entries; give another")

    def update_along(length: float, direction: Arrays) -> Arrays:
        factor = length * claim.sensitivity / float(np.linalg.norm(flatten(direction)))
        return zeros | {path: np.asarray(value * factor) for path, value in direction.items()}

    def random_update(length: float, paths: list[str]) -> Arrays:
        return update_along(length, {p: np.asarray(rng.normal(size=form.shapes[p])) for p in paths})

    def first_updates() -> Iterator[_Pair]:
        for factor in _NORMS:
            if factor * claim.sensitivity < form.max_value / _HEADROOM:
                yield _Pair(f"{factor:g} sensitivities long", random_update(factor, fractions))
        equal = {path: np.ones(form.shapes[path]) for path in fractions}
        yield _Pair("of equal entries", update_along(_LARGE, equal))
        for path, shape in form.shapes.items():
            label = f"that is large only in {path!r}"
            if path in fractions:
                yield _Pair(label, random_update(_LARGE, [path]), only_array=path)
                last_entry = np.zeros(shape)
                last_entry.flat[-1] = 1
                yield _Pair(
                    f"that is large in one entry of {path!r}",
                    update_along(_LARGE, {path: last_entry}),
                )
            elif zeros[path].size:
                yield _Pair(label, zeros | {path: np.full(shape, 100)}, only_array=path)

    def pairs() -> Iterator[_Pair]:
        for pair in first_updates():
            yield pair
            if claim.adjacency == "replace":
                opposite = {path: -value for path, value in pair.left.items()}
                yield _Pair(f"{pair.label}, and its opposite", pair.left, opposite)

    tiny = random_update(_TINY, fractions)
    special = {}
    for name, value in (("NaN", np.nan), ("infinity", np.inf)):
        entry = tiny[fractions[0]].copy()
        entry.flat[0] = value
        special[name] = tiny | {fractions[0]: entry}
    return Probes(pairs(), zeros, tiny, random_update(_LARGE, fractions), special)


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
    inputs = next((path for path in batch if path not in form.integer_paths), None)
    if inputs is None:
        raise BadInput("the batch has no floating-point array to scale; give one with features")

    def scaled(row: int, factor: float) -> Arrays:
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
                label, left = f"with sample {row} {factor:g} times as large", scaled(row, factor)
                if claim.adjacency == "remove":
                    yield _Pair(label, left, without(row))
                else:
                    yield _Pair(f"{label}, and its opposite", left, scaled(row, -factor))
        if claim.adjacency == "remove":
            yield _Pair("of two samples and of one", first(2), first(1))

    special = {"NaN": scaled(0, np.nan), "infinity": scaled(0, np.inf), "no samples": first(0)}
    return Probes(pairs(), without(0), without(0), scaled(0, _LARGE), special)


def is_replayable(replay: Replay, probes: Probes) -> bool:
    """Return True if two calls with the same random draws have outputs equal to the last bit."""
    first, second = (replay.release(probes.large) for _ in range(2))
    return not any(change.any() for change in first.minus(second).values())


class _Change(NamedTuple):
    """Difference between two outputs.

    Attributes:
        pair: The inputs.
        length: Norm of the difference.
        rounding: The part of the norm that rounding may cause.
        where: Name of the array that differs most.
    """

    pair: _Pair
    length: float
    rounding: float
    where: str


def neighbour_checks(replay: Replay, probes: Probes) -> Iterator[FilterCheck]:
    """Check how outputs for neighbouring inputs differ with the same random draws."""
    changes: list[_Change] = []
    changed_entries: Arrays = {}
    extras: dict[str, set[str]] = {}
    not_finite: list[str] = []
    without_contribution = replay.release(probes.none)
    for pair in probes.pairs:
        left = replay.release(pair.left)
        right = without_contribution if pair.right is None else replay.release(pair.right)
        for release in (left, right):
            for name, value in (
                release.extras | {"the names of arrays": repr(sorted(release.arrays))}
            ).items():
                extras.setdefault(name, set()).add(value)
        if not (left.is_finite() and right.is_finite()):
            not_finite.append(pair.label)
            continue
        difference = left.minus(right)
        for name, change in difference.items():
            changed_entries[name] = np.asarray((change != 0) | changed_entries.get(name, np.False_))
        where = max(difference, key=lambda name: float(np.abs(difference[name]).max(initial=0)))
        length = replay.claim.length(difference)
        changes.append(_Change(pair, length, replay.rounding(left, right), where))
    subject = "a batch" if replay.kind == "step" else "an update"
    if changes:
        yield _sensitivity_check(changes, replay.claim.sensitivity, subject)
    if not_finite:
        yield FilterCheck(
            "ordinary updates",
            Result.NOTED if changes else Result.UNTESTED,
            f"{len(not_finite)} not finite",
            why=f"{subject} {not_finite[0]} gives an output that is not finite",
            advice="Compute norms in a precision that can represent their squares.",
        )
    differing = [name for name, values in extras.items() if len(values) > 1]
    yield from _noiseless_checks(replay, probes, changed_entries, differing)


def _sensitivity_check(changes: list[_Change], sensitivity: float, subject: str) -> FilterCheck:
    limit = sensitivity * (1 + TOLERANCE)
    too_large = [change for change in changes if change.length - change.rounding > limit]
    worst = too_large[0] if too_large else max(changes, key=lambda change: change.length)
    label, where = worst.pair.label, f"; the array that changes most is {worst.where!r}"
    in_one_array = [change for change in too_large if change.pair.only_array]
    n_tested = sum(bool(change.pair.only_array) for change in changes)
    if 0 < len(in_one_array) < n_tested:
        # Only some arrays are not clipped, and their names say more than a norm.
        worst = max(in_one_array, key=lambda change: change.length)
        names = quote_names([change.pair.only_array for change in in_one_array], " or ")
        label = f"that is large only in {names}"
    length = format_length(worst.length)
    return FilterCheck(
        CHANGE_CHECK,
        Result.judged(failed=bool(too_large)),
        length,
        f"at most {sensitivity:.4g}",
        f"{subject} {label} changes the output by {length}, but {sensitivity:.4g} is declared"
        + ("" if worst.pair.only_array else where),
        "Clip the norm over all entries of all arrays as the last step before the noise. Declare "
        "the largest change by one contribution after all later scaling.",
    )


def _noiseless_checks(
    replay: Replay, probes: Probes, changed_entries: Arrays, extras: list[str]
) -> Iterator[FilterCheck]:
    """Check for outputs that depend on the input and have no noise."""
    elsewhere = {*replay.claim.elsewhere}
    extras = [name for name in extras if not {name, name.split(".")[-1]} & elsewhere]
    if not replay.claim.sigma:
        # No output needs noise here, but the declared sensitivity covers only the arrays.
        if extras:
            yield FilterCheck(
                "sent with the arrays",
                Result.NOTED,
                quote_names(extras),
                why=f"the output {quote_names(extras)} depends on the update, and the declared "
                "sensitivity covers only the arrays",
                advice="Include it in the privacy accounting, and name it with --elsewhere.",
            )
        return
    first, *others = (
        _release_with_noise(replay, probes, probes.small, draw) for draw in range(_NOISE_DRAWS)
    )
    noiseless = {}
    for name, value in first.arrays.items():
        equal = np.all([value == other.arrays.get(name, np.nan) for other in others], axis=0)
        noiseless[name] = int(np.sum(equal & changed_entries.get(name, np.False_)))
    arrays = [name for name, entries in noiseless.items() if entries]
    fraction = sum(noiseless.values()) / max(1, sum(value.size for value in first.arrays.values()))
    measured = [f"{fraction:.2%} of entries"] * bool(arrays) + [quote_names(extras)] * bool(extras)
    yield FilterCheck(
        NOISELESS_CHECK,
        Result.judged(failed=bool(measured)),
        ", ".join(measured) or "none",
        "none",
        f"the output {quote_names([*arrays, *extras])} depends on the data and has no noise",
        "Add noise to every output, buffers included, or name it with --elsewhere.",
    )


def same_noise_check(replay: Replay, probes: Probes) -> Iterator[FilterCheck]:
    """Check that the noise does not depend on the input."""
    if not replay.claim.sigma:
        return
    large, large_again, small, small_again = releases = [
        _release_with_noise(replay, probes, values, draw)
        for values in (probes.large, probes.small)
        for draw in range(2)
    ]
    # In the difference of two draws for one input, the rest of the output cancels.
    noises = large.minus(large_again), small.minus(small_again)
    names = sorted(noises[0].keys() & noises[1].keys())
    if not names or not all(map(Release.is_finite, releases)):
        return
    large_noise, small_noise = (flatten({name: noise[name] for name in names}) for noise in noises)
    difference, length = (
        float(np.linalg.norm(large_noise - small_noise)),
        float(np.linalg.norm(small_noise)),
    )
    differs = difference > TOLERANCE * length + replay.rounding(*releases)
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
    claim, max_length, differs = replay.claim, 0.0, False
    for values in (probes.small, probes.large):
        first, second = (
            replay.release(values, before=[p, p]) for p in (probes.large, probes.small)
        )
        if first.is_finite() and second.is_finite():
            length = claim.length(first.minus(second))
            tolerance = TOLERANCE * claim.sensitivity + replay.rounding(first, second)
            max_length, differs = max(max_length, length), differs or length > tolerance
    return FilterCheck(
        "influence of earlier rounds",
        Result.NOTED if differs and claim.stateful else Result.judged(failed=differs),
        f"difference of {format_length(max_length)}" if differs else "none",
        "allowed" if claim.stateful else "none",
        "large contributions in two earlier rounds change the output by "
        f"{format_length(max_length)}",
        "Store no update between rounds, or declare --stateful if the accountant covers it.",
    )


def special_input_checks(replay: Replay, probes: Probes, zeros: str) -> Iterator[FilterCheck]:
    """Note special inputs that the filter passes on or for which it raises an error."""
    failures = {name: failure_type(replay, values) for name, values in probes.special.items()}
    passed_on = [name for name, error in failures.items() if error == _NOT_FINITE]
    if passed_on:
        yield FilterCheck(
            "non-finite entries",
            Result.NOTED,
            f"{' and '.join(passed_on)} pass on",
            why=f"updates with {' or '.join(passed_on)} pass the filter, and noise does not "
            "hide them",
            advice="Refuse or replace entries that are not finite before clipping.",
        )
    if "no samples" in failures and "no samples" not in passed_on:
        zeros = failures["no samples"]
    if zeros:
        what = "a batch without samples" if replay.kind == "step" else "an update of zeros"
        yield FilterCheck(
            "no contribution",
            Result.NOTED,
            zeros,
            why=f"{what} ends in {zeros}, which reveals that nothing was contributed",
            advice="Add a small number to the divisor.",
        )


def scalar_check(replay: Replay) -> Iterator[FilterCheck]:
    """Note a filter that handles arrays without dimensions, or empty ones, differently."""
    example = DEFAULT_EXAMPLE | {"temperature": torch.zeros(()), "empty": torch.zeros(0)}
    replay = replace(replay, form=form_for(replay.kind, example))
    probes = updates(replay.form, replay.claim, seed=replay.seed)
    large = probes.small | {"temperature": np.array(_LARGE * replay.claim.sensitivity)}
    probes = probes._replace(pairs=iter([_Pair("", large)]), none=probes.small)
    faults = {CHANGE_CHECK: "is not clipped", NOISELESS_CHECK: "has no noise"}
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


def failure_type(replay: Replay, values: Arrays) -> str:
    """Return the error type for an input, "NaN" for a non-finite output, or ""."""
    try:
        return "" if replay.release(values).is_finite() else _NOT_FINITE
    except FedauditError as error:
        return type(error.__cause__ or error).__name__


def _release_with_noise(replay: Replay, probes: Probes, values: Arrays, draw: int) -> Release:
    """Return the output with new noise, also if the filter keeps a generator.

    Earlier calls advance that generator.
    """
    return replay.release(values, draw=1 + 2 * draw, before=[probes.small] * draw)
