"""Checks with the same random draws: how outputs for neighbouring inputs differ."""

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
from fedaudit.filters.layout import DEFAULT_EXAMPLE, UpdateLayout, layout_for
from fedaudit.filters.replay import FilterOutput, Replay

_NORMS = (0.5, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0, 100.0, 1e4, 1e6, 1e30)
"""Norms of tested updates as multiples of the sensitivity: below and far above a clipping norm."""
_LARGE, _TINY = 1e4, 1e-9
"""Norms of a large and a tiny contribution as multiples of the sensitivity."""
_HEADROOM = 10.0
"""Factor by which norms stay below the largest number that the arrays can hold."""
_NOISE_DRAWS = 3
"""Number of noise draws after which an entry that never changed counts as without noise."""
_NOT_FINITE = "NaN"
"""Stands for the type of an error if an output is not finite."""


class _Pair(NamedTuple):
    """Pair of neighbouring inputs.

    Attributes:
        label: Description of the pair, which follows "an update" or "a batch" in messages.
        left: The first input.
        right: The second input; None for no contribution.
        only_array: Name of the array if ``left`` is large in only one array; otherwise empty.
    """

    label: str
    left: Arrays
    right: Arrays | None = None
    only_array: str = ""


class AuditInputs(NamedTuple):
    """Inputs of an audit.

    Attributes:
        pairs: Pairs of neighbours, generated one at a time to save memory.
        no_contribution: The input without a contribution.
        small: An input with a tiny contribution.
        large: An input with a large contribution.
        special: Inputs by name that are not finite or have no samples.
    """

    pairs: Iterator[_Pair]
    no_contribution: Arrays
    small: Arrays
    large: Arrays
    special: dict[str, Arrays]


def update_inputs(layout: UpdateLayout, claim: Claim, *, seed: int) -> AuditInputs:
    """Return pairs of updates that differ by a client's whole contribution."""
    rng = seeded_numpy(seed, "directions")
    zeros = {path: np.zeros_like(value) for path, value in layout.values.items()}
    float_paths = [p for p in zeros if p not in layout.integer_paths and zeros[p].size]
    if not float_paths:
        raise BadInput("the example of an update has no floating-point entries; give another")

    def update_along(length: float, direction: Arrays) -> Arrays:
        factor = length * claim.sensitivity / float(np.linalg.norm(flatten(direction)))
        return zeros | {path: np.asarray(value * factor) for path, value in direction.items()}

    def random_update(length: float, paths: list[str]) -> Arrays:
        direction = {path: np.asarray(rng.normal(size=layout.shapes[path])) for path in paths}
        return update_along(length, direction)

    def pairs_with_zeros() -> Iterator[_Pair]:
        for factor in _NORMS:
            if factor * claim.sensitivity < layout.max_value / _HEADROOM:
                yield _Pair(
                    f"with a norm of {factor:g} times the sensitivity",
                    random_update(factor, float_paths),
                )
        equal = {path: np.ones(layout.shapes[path]) for path in float_paths}
        yield _Pair("with equal entries", update_along(_LARGE, equal))
        for path, shape in layout.shapes.items():
            label = f"that is large only in {path!r}"
            if path in float_paths:
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
        for pair in pairs_with_zeros():
            yield pair
            if claim.adjacency == "replace":
                opposite = {path: -value for path, value in pair.left.items()}
                yield _Pair(f"{pair.label}, replaced by its negative,", pair.left, opposite)

    tiny = random_update(_TINY, float_paths)
    special = {}
    for name, value in (("NaN", np.nan), ("infinity", np.inf)):
        entry = tiny[float_paths[0]].copy()
        entry.flat[0] = value
        special[name] = tiny | {float_paths[0]: entry}
    return AuditInputs(pairs(), zeros, tiny, random_update(_LARGE, float_paths), special)


def batch_inputs(layout: UpdateLayout, claim: Claim) -> AuditInputs:
    """Return pairs of batches that differ by one sample, which can have a very large gradient."""
    batch = layout.values
    sizes = {len(value) if value.ndim else 0 for value in batch.values()}
    n_samples = max(sizes)
    if len(sizes) > 1 or n_samples < 3:
        raise BadInput(
            f"the arrays of the batch have {sizes} rows; give one row for each sample in every "
            "array, and at least 3 samples"
        )
    features = next((path for path in batch if path not in layout.integer_paths), None)
    if features is None:
        raise BadInput("the batch has no floating-point array to scale; give one with features")

    def scaled(row: int, factor: float) -> Arrays:
        changed = batch[features].copy()
        changed[row] *= factor
        return batch | {features: changed}

    def without(row: int) -> Arrays:
        return {path: np.delete(value, row, axis=0) for path, value in batch.items()}

    def first(count: int) -> Arrays:
        return {path: value[:count] for path, value in batch.items()}

    def pairs() -> Iterator[_Pair]:
        for row in (0, n_samples // 2, n_samples - 1):
            for factor in (1.0, 10.0, 1e3, 1e5):
                label, left = f"with sample {row} scaled by {factor:g}", scaled(row, factor)
                if claim.adjacency == "remove":
                    yield _Pair(label, left, without(row))
                else:
                    label = f"{label}, replaced by its negative,"
                    yield _Pair(label, left, scaled(row, -factor))
        if claim.adjacency == "remove":
            yield _Pair("of two samples instead of one", first(2), first(1))

    special = {"NaN": scaled(0, np.nan), "infinity": scaled(0, np.inf), "no samples": first(0)}
    return AuditInputs(pairs(), without(0), without(0), scaled(0, _LARGE), special)


def is_replayable(replay: Replay, inputs: AuditInputs) -> bool:
    """Return True if two calls with the same random draws return bitwise identical outputs."""
    first, second = (replay.call(inputs.large) for _ in range(2))
    return not any(change.any() for change in first.minus(second).values())


class _Change(NamedTuple):
    """Difference between two outputs.

    Attributes:
        pair: The inputs.
        length: Norm of the difference.
        rounding: The part of the norm that rounding may cause.
        array: Name of the array that differs most.
    """

    pair: _Pair
    length: float
    rounding: float
    array: str


def neighbour_checks(replay: Replay, inputs: AuditInputs) -> Iterator[FilterCheck]:
    """Check how outputs for neighbouring inputs differ with the same random draws."""
    changes: list[_Change] = []
    changed_entries: Arrays = {}
    extra_values: dict[str, set[str]] = {}
    not_finite: list[str] = []
    output_for_none = replay.call(inputs.no_contribution)
    for pair in inputs.pairs:
        left = replay.call(pair.left)
        right = output_for_none if pair.right is None else replay.call(pair.right)
        for output in (left, right):
            # The names of the arrays are a part of the output, too.
            extras = output.extras | {"the names of arrays": repr(sorted(output.arrays))}
            for name, text in extras.items():
                extra_values.setdefault(name, set()).add(text)
        if not (left.is_finite() and right.is_finite()):
            not_finite.append(pair.label)
            continue
        difference = left.minus(right)
        for name, change in difference.items():
            changed_entries[name] = np.asarray((change != 0) | changed_entries.get(name, np.False_))
        largest = {
            name: float(np.abs(change).max(initial=0)) for name, change in difference.items()
        }
        array = max(largest, key=largest.__getitem__)
        length = replay.claim.length(difference)
        changes.append(_Change(pair, length, replay.rounding(left, right), array))
    subject = "a batch" if replay.kind == "step" else "an update"
    if changes:
        yield _sensitivity_check(changes, replay.claim.sensitivity, subject)
    if not_finite:
        yield FilterCheck(
            "finite output",
            Result.NOTED if changes else Result.UNTESTED,
            f"{len(not_finite)} not finite",
            why=f"the output for {subject} {not_finite[0]} is not finite",
            advice="Compute norms in a precision that can represent their squares.",
        )
    differing = [name for name, texts in extra_values.items() if len(texts) > 1]
    yield from _noiseless_checks(replay, inputs, changed_entries, differing)


def _sensitivity_check(changes: list[_Change], sensitivity: float, subject: str) -> FilterCheck:
    limit = sensitivity * (1 + TOLERANCE)
    too_large = [change for change in changes if change.length - change.rounding > limit]
    worst = too_large[0] if too_large else max(changes, key=lambda change: change.length)
    label = worst.pair.label
    in_one_array = [change for change in too_large if change.pair.only_array]
    n_tested = sum(bool(change.pair.only_array) for change in changes)
    if 0 < len(in_one_array) < n_tested:
        # If only some arrays are not clipped, their names help more than the norm of an update.
        worst = max(in_one_array, key=lambda change: change.length)
        names = quote_names([change.pair.only_array for change in in_one_array], " or ")
        label = f"that is large only in {names}"
    length = format_length(worst.length)
    return FilterCheck(
        CHANGE_CHECK,
        Result.failed_if(bool(too_large)),
        length,
        f"at most {sensitivity:.4g}",
        f"{subject} {label} changes the output by {length}, but {sensitivity:.4g} is declared"
        + ("" if worst.pair.only_array else f"; the array that changes most is {worst.array!r}"),
        "Clip the norm over all entries of all arrays as the last step before the noise. Declare "
        "the largest change by one contribution after all later scaling.",
    )


def _noiseless_checks(
    replay: Replay, inputs: AuditInputs, changed_entries: Arrays, extras: list[str]
) -> Iterator[FilterCheck]:
    """Check for outputs without noise that depend on the input.

    Args:
        replay: The filter.
        inputs: The inputs.
        changed_entries: For each array, the entries that depend on the input.
        extras: Names of outputs other than arrays that depend on the input.
    """
    elsewhere = {*replay.claim.elsewhere}
    extras = [name for name in extras if not {name, name.split(".")[-1]} & elsewhere]
    if not replay.claim.sigma:
        # No output needs noise here, but the declared sensitivity covers only the arrays.
        if extras:
            yield FilterCheck(
                "outputs that are not arrays",
                Result.NOTED,
                quote_names(extras),
                why=f"the output {quote_names(extras)} depends on the update, and the declared "
                "sensitivity covers only the arrays",
                advice="Include it in the privacy accounting, and name it with --elsewhere.",
            )
        return
    first, *others = (
        _call_with_new_noise(replay, inputs, inputs.small, draw) for draw in range(_NOISE_DRAWS)
    )
    noiseless = {}
    for name, value in first.arrays.items():
        is_constant = np.all([value == o.arrays.get(name, np.nan) for o in others], axis=0)
        noiseless[name] = int(np.sum(is_constant & changed_entries.get(name, np.False_)))
    arrays = [name for name, entries in noiseless.items() if entries]
    fraction = sum(noiseless.values()) / max(1, sum(value.size for value in first.arrays.values()))
    measured = [f"{fraction:.2%} of entries"] if arrays else []
    measured += [quote_names(extras)] if extras else []
    yield FilterCheck(
        NOISELESS_CHECK,
        Result.failed_if(bool(measured)),
        ", ".join(measured) or "none",
        "none",
        f"the output {quote_names([*arrays, *extras])} depends on the data and has no noise",
        "Add noise to every output, buffers included, or name it with --elsewhere.",
    )


def same_noise_check(replay: Replay, inputs: AuditInputs) -> Iterator[FilterCheck]:
    """Check that the noise does not depend on the input."""
    if not replay.claim.sigma:
        return
    large, large_again, small, small_again = outputs = [
        _call_with_new_noise(replay, inputs, values, draw)
        for values in (inputs.large, inputs.small)
        for draw in range(2)
    ]
    # Everything but the noise cancels in the difference of two draws for one input.
    large_noise, small_noise = large.minus(large_again), small.minus(small_again)
    names = sorted(large_noise.keys() & small_noise.keys())
    if not names or not all(output.is_finite() for output in outputs):
        return
    small_entries = flatten({name: small_noise[name] for name in names})
    large_entries = flatten({name: large_noise[name] for name in names})
    difference = float(np.linalg.norm(large_entries - small_entries))
    length = float(np.linalg.norm(small_entries))
    differs = difference > TOLERANCE * length + replay.rounding(*outputs)
    yield FilterCheck(
        "noise on a large update",
        Result.failed_if(differs),
        f"differs by {difference / length:.2g} times it" if differs and length else "the same",
        "the same",
        "with the same random draws, the noise on a large contribution differs from the noise on a "
        "tiny one",
        "Add noise last, after clipping, with the same scale for all batches and updates.",
    )


def state_check(replay: Replay, inputs: AuditInputs) -> FilterCheck:
    """Check that an output does not depend on the inputs of earlier rounds."""
    claim, max_length, differs = replay.claim, 0.0, False
    for values in (inputs.small, inputs.large):
        after_large = replay.call(values, earlier=[inputs.large] * 2)
        after_small = replay.call(values, earlier=[inputs.small] * 2)
        if after_large.is_finite() and after_small.is_finite():
            length = claim.length(after_large.minus(after_small))
            rounding = replay.rounding(after_large, after_small)
            max_length = max(max_length, length)
            differs = differs or length > TOLERANCE * claim.sensitivity + rounding
    return FilterCheck(
        "influence of earlier rounds",
        Result.NOTED if differs and claim.stateful else Result.failed_if(differs),
        f"difference of {format_length(max_length)}" if differs else "none",
        "allowed" if claim.stateful else "none",
        "large contributions in two earlier rounds change the output by "
        f"{format_length(max_length)}",
        "Store no update between rounds, or declare --stateful if the accountant covers it.",
    )


def special_input_checks(
    replay: Replay, inputs: AuditInputs, failure_on_zeros: str
) -> Iterator[FilterCheck]:
    """Report non-finite inputs that pass the filter, and errors for inputs without data.

    Args:
        replay: The filter.
        inputs: The inputs.
        failure_on_zeros: Type of the error for an update of zeros, or "".
    """
    failures = {name: failure_type(replay, values) for name, values in inputs.special.items()}
    passed_on = [name for name, error in failures.items() if error == _NOT_FINITE]
    if passed_on:
        yield FilterCheck(
            "non-finite entries",
            Result.NOTED,
            f"{' and '.join(passed_on)} pass",
            why=f"updates with {' or '.join(passed_on)} pass the filter, and noise does not "
            "hide them",
            advice="Refuse or replace entries that are not finite before clipping.",
        )
    if "no samples" in failures and "no samples" not in passed_on:
        failure_on_zeros = failures["no samples"]
    if failure_on_zeros:
        subject = "a batch without samples" if replay.kind == "step" else "an update of zeros"
        yield FilterCheck(
            "no contribution",
            Result.NOTED,
            failure_on_zeros,
            why=f"{subject} causes {failure_on_zeros}, which reveals that nothing was contributed",
            advice="Add a small constant to the divisor.",
        )


def scalar_check(replay: Replay) -> Iterator[FilterCheck]:
    """Report a filter that does not protect zero-dimensional arrays, or fails for empty arrays."""
    example = DEFAULT_EXAMPLE | {"temperature": torch.zeros(()), "empty": torch.zeros(0)}
    replay = replace(replay, layout=layout_for(replay.kind, example))
    inputs = update_inputs(replay.layout, replay.claim, seed=replay.seed)
    large = inputs.small | {"temperature": np.array(_LARGE * replay.claim.sensitivity)}
    inputs = inputs._replace(pairs=iter([_Pair("", large)]), no_contribution=inputs.small)
    problems = {CHANGE_CHECK: "is not clipped", NOISELESS_CHECK: "has no noise"}
    try:
        checks = [*neighbour_checks(replay, inputs)]
        failed = [check.name for check in checks if check.result is Result.FAILED]
        measured = " and ".join(problems[name] for name in failed)
    except FedauditError as error:
        measured = f"causes {type(error.__cause__ or error).__name__}"
    if measured:
        yield FilterCheck(
            "zero-dimensional array",
            Result.NOTED,
            measured,
            why=f"an array of shape () {measured}; the other checks used no such array",
            advice="If your model has one (a temperature, a counter), pass your model as "
            "--shape-from.",
        )


def failure_type(replay: Replay, values: Arrays) -> str:
    """Return the error type for an input, "NaN" for a non-finite output, or ""."""
    try:
        return "" if replay.call(values).is_finite() else _NOT_FINITE
    except FedauditError as error:
        return type(error.__cause__ or error).__name__


def _call_with_new_noise(
    replay: Replay, inputs: AuditInputs, values: Arrays, draw: int
) -> FilterOutput:
    """Return the output with a different noise for each number of a draw.

    Seeds do not affect a generator that the filter keeps, but earlier calls advance it.
    """
    return replay.call(values, seed_index=1 + 2 * draw, earlier=[inputs.small] * draw)
