"""Audit of a filter: first its outputs for neighbours with equal random draws, then its noise.

The noise is tested on differences of two calls, in which the rest of the output cancels. The error
of each test is exact or conservative, and all tests share one error.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np
import scipy as sp
from jaxtyping import Float

from fedaudit.core.errors import BadInput, FedauditError, option
from fedaudit.core.importing import look_up
from fedaudit.core.limits import Limited
from fedaudit.filters.claim import (
    CHANGE_CHECK,
    TOLERANCE,
    Arrays,
    Claim,
    FilterAudit,
    FilterCheck,
    Result,
    format_length,
)
from fedaudit.filters.neighbours import (
    Probes,
    batches,
    failure_type,
    is_replayable,
    neighbour_checks,
    same_noise_check,
    scalar_check,
    special_input_checks,
    state_check,
    updates,
)
from fedaudit.filters.replay import KINDS, Replay, Snapshot, form_for, kind_of, required_arguments

ERROR = 0.01
"""Probability that any test of one set of draws fails although the noise is as declared. A check
fails only if two sets of draws fail."""
_REPETITION_CALLS = 16
"""Number of calls in which repeated values are counted."""
_MIN_DISTINCT = 0.5
"""Mean fraction of distinct values per entry below which the noise counts as hidden."""
_MAX_FREQUENCY = 0.02
"""Frequency of one value above which an array counts as rounded."""
_MAX_ARRAY_PAIRS = 300
"""Number of pairs of arrays that are tested for common noise."""


class Finding(NamedTuple):
    """P-value of one test, with the check that it belongs to and the entries that it tested."""

    check: str
    where: str
    p: float


def is_noise_hidden(replay: Replay, probes: Probes) -> bool:
    """Return True if most values repeat, as after rounding or sparsification of the noise."""
    noisy = _noisy_entries(replay.draws(probes.small, _REPETITION_CALLS, draw=11))
    if not (replay.claim.sigma and noisy):
        return False
    arrays = [_matrix(value) for value in noisy.values()]
    entries = _matrix(*(array[:, :: max(1, array.shape[1] // 200)] for array in arrays))
    distinct = [len(np.unique(entry)) / len(entry) for entry in entries.T]
    return bool(np.mean(distinct) < _MIN_DISTINCT)


def noise_checks(
    replay: Replay, probes: Probes, calls: int, *, frozen: bool, hidden: bool
) -> list[FilterCheck]:
    """Check that noise has the declared scale and distribution, and is new in every entry and call.

    A failure counts only if a second set of draws fails too.

    Args:
        replay: The filter.
        probes: The inputs.
        calls: Number of calls in each set of draws, a multiple of four.
        frozen: Whether draws can be repeated. If not, the sensitivity is tested here.
        hidden: Whether later steps hide the noise. If so, only calls are compared.
    """
    for draw in (13, 17):
        small = replay.draws(probes.small, calls, draw=draw)
        large = replay.draws(probes.large, calls, draw=draw + 2)
        checks = [*_test_draws(small, large, replay.claim, frozen=frozen, hidden=hidden)]
        if all(check.result is not Result.FAILED for check in checks):
            break
    return checks


def _test_draws(
    small: Arrays, large: Arrays, claim: Claim, *, frozen: bool, hidden: bool
) -> Iterator[FilterCheck]:
    tests = [] if frozen else [_mean_change_test(small, large, claim)]
    noise, noise_on_large = _noisy_entries(small), _noisy_entries(large)
    rounded = hidden or _is_rounded(noise)
    if claim.sigma and noise:
        if not hidden:
            tests += scale_tests(noise, claim.std, claim.noise)
            tests += scale_tests(noise_on_large, claim.std, claim.noise, label=", large update")
            tests += entry_tests(noise)
            tests += [] if rounded else shape_tests(noise, claim.noise)
        tests += call_tests(noise)
    error = ERROR / max(1, len(tests))
    worst: dict[str, Finding] = {}
    for test in sorted(tests, key=lambda finding: finding.p):
        worst.setdefault(test.check, test)
    if not frozen:
        yield _unfrozen_change_check(
            worst["sensitivity"], claim.sensitivity, failed=tests[0].p < error
        )
    std = estimate_std(noise, claim.noise, error) if noise else Limited(0.0, 0.0, 0.0)
    if not claim.sigma:
        if noise:
            why = "the output has noise, and none is declared"
            yield FilterCheck("noise", Result.NOTED, f"{std.value:.3g}", why=why)
        return
    if not hidden:
        failed, where = True, "the output is the same in every call"
        if noise:
            failed, where = worst["scale"].p < error, worst["scale"].where
        yield FilterCheck(
            "standard deviation of noise",
            Result.judged(failed=failed),
            f"{std.value:.4g} ({std.low:.4g} to {std.high:.4g})" if noise else "0",
            f"{claim.std:.4g}",
            f"there is less noise than declared ({where})",
            "Look for entries without noise, and for a factor that is missing or applied twice.",
        )
        if not failed and std.low > claim.std * (1 + TOLERANCE):
            why = "there is more noise than declared"
            yield FilterCheck("more noise", Result.NOTED, f"{std.value:.4g}", why=why)
    for check, name, why, advice in _NOISE_TESTS:
        if check in worst:
            where, p = worst[check][1:]
            declared = claim.noise if check == "shape" else "independent"
            measured = f"not {declared}" if p < error else f"not rejected (p {p:.2g})"
            result = Result.judged(failed=p < error)
            yield FilterCheck(name, result, measured, declared, f"{why} ({where})", advice)
            if check == "entries" and result is Result.FAILED:
                return  # The other tests assume independent entries.
        elif check == "shape" and rounded:
            yield FilterCheck(
                "noise alone" if hidden else name,
                Result.UNTESTED,
                "values repeat",
                why="the output is rounded or made sparse after the noise, which hides it",
                advice="Check the filter up to and including its noise: later steps cannot weaken "
                "privacy.",
            )


_NOISE_TESTS = (
    (
        "entries",
        "noise between entries",
        "entries share their noise",
        "Draw a number for every entry of every array, from one generator that is not reset.",
    ),
    (
        "shape",
        "shape of noise",
        "noise has another distribution than declared",
        "Draw from the accountant's distribution, and change nothing afterwards.",
    ),
    (
        "calls",
        "noise between calls",
        "calls share their noise",
        "Seed no generator in a call: repeated noise can be subtracted.",
    ),
)
"""Key of each test, and its check: the name, and ``why`` and ``advice`` if it fails."""


def _unfrozen_change_check(change: Finding, sensitivity: float, *, failed: bool) -> FilterCheck:
    return FilterCheck(
        CHANGE_CHECK,
        Result.FAILED if failed else Result.UNTESTED,
        change.where,
        f"at most {sensitivity:.4g}",
        f"a large contribution changes the output by {change.where} on average"
        if failed
        else "draws cannot be frozen, so changes of the output are known only up to their error",
        "Draw from torch, numpy or Python; name a factory if the filter keeps a state.",
    )


def _mean_change_test(small: Arrays, large: Arrays, claim: Claim) -> Finding:
    """Test the mean change by a large contribution against the sensitivity.

    The first half of the calls determines the direction, the second half the change along it.
    """
    changes = _matrix(*(large[name] - small[name] for name in small))
    half = len(changes) // 2
    direction = changes[:half].mean(0)
    length = claim.length({"": direction})
    if not length:
        return Finding("sensitivity", "0", 1.0)
    # The product with these weights is at most the L1 or L2 norm of a change.
    weights = np.sign(direction) if claim.noise == "laplace" else direction / length
    projections = changes[half:] @ weights
    mean, error = float(projections.mean()), float(projections.std(ddof=1)) / half**0.5
    excess = mean - claim.sensitivity * (1 + TOLERANCE)
    p = float(sp.special.stdtr(half - 1, -excess / error)) if error else float(excess <= 0)
    return Finding("sensitivity", f"{format_length(mean)} ± {error:.2g}", p)


def _noisy_entries(draws: Arrays) -> Arrays:
    """Return the entries of each array that differ between calls."""
    noisy = {}
    for name, value in draws.items():
        changing = (value != value[0]).any(0)
        if np.isfinite(value).all() and changing.any():
            noisy[name] = value if changing.all() else value[:, changing]
    return noisy


def _is_rounded(draws: Arrays) -> bool:
    """Return True if a value is too frequent for a continuous distribution."""
    return any(
        np.unique(value, return_counts=True)[1].max() > max(_MAX_FREQUENCY * value.size, 2)
        for value in draws.values()
    )


def scale_tests(draws: Arrays, std: float, noise: str, *, label: str = "") -> Iterator[Finding]:
    """Yield tests for too little noise: in all entries, each array, and the least noisy entry."""
    if not draws:
        return
    unit = std * (1 - TOLERANCE)
    squares = {name: _matrix(_differences(v)) ** 2 / 2 / unit**2 for name, v in draws.items()}
    all_squares = _matrix(*squares.values())
    for where, square in ({"all entries": all_squares} | squares).items():
        p = _p_of_small_sum(float(square.sum()), square.size, noise)
        yield Finding("scale", f"{where}{label}", p)
    sums = all_squares.sum(0)
    arrays = np.repeat([*squares], [square.shape[1] for square in squares.values()])
    p = _p_of_small_sum(float(sums.min()), len(all_squares), noise) * len(sums)
    yield Finding("scale", f"an entry of {arrays[sums.argmin()]}{label}", min(1.0, p))


def shape_tests(draws: Arrays, noise: str) -> Iterator[Finding]:
    """Yield tests of whether each array's noise has the declared distribution, at any scale."""
    for name, value in draws.items():
        difference = _differences(value).ravel()
        # With a scale that is estimated from the draws, the test is conservative.
        if scale := float(np.sqrt((difference**2).mean())):
            p = sp.stats.ks_1samp(difference / scale, _cdf, args=(noise,), method="asymp").pvalue
            yield Finding("shape", name, float(p))


def entry_tests(draws: Arrays) -> Iterator[Finding]:
    """Yield tests for common noise of neighbouring entries along every axis, and of two arrays."""
    differences = {name: _differences(value) for name, value in draws.items()}
    for name, value in differences.items():
        for axis in range(1, value.ndim):
            left, right = (np.moveaxis(value, axis, 0)[start::2] for start in (0, 1))
            if len(right):
                p = _dependence_p(left[: len(right)], right)
                yield Finding("entries", f"{name}, along axis {axis - 1}", p)
    for first, second in islice(combinations(differences, 2), _MAX_ARRAY_PAIRS):
        left, right = _matrix(differences[first]), _matrix(differences[second])
        size = min(left.shape[1], right.shape[1])
        yield Finding(
            "entries", f"{first} and {second}", _dependence_p(left[:, :size], right[:, :size])
        )


def call_tests(draws: Arrays) -> Iterator[Finding]:
    """Yield tests for noise that repeats in the next call or in any other call."""
    noise = _matrix(*draws.values())
    first, second, third, fourth = (noise[start::4] for start in range(4))
    yield Finding("calls", "one call and the next", _dependence_p(first - third, second - fourth))
    p_values = [
        _dependence_p(first, second) for first, second in combinations(_differences(noise), 2)
    ]
    yield Finding("calls", "two of the calls", min(1.0, min(p_values) * len(p_values)))


def estimate_std(draws: Arrays, noise: str, error: float) -> Limited[float]:
    """Estimate the standard deviation of the noise, with confidence limits."""
    differences = _differences(_matrix(*draws.values()))
    variance, freedom = (
        float((differences**2).mean()) / 2,
        differences.size * _degrees_of_freedom(noise),
    )
    low, high = (
        variance * freedom / sp.special.chdtri(freedom, p) for p in (error / 2, 1 - error / 2)
    )
    return Limited(*(float(value) ** 0.5 for value in (variance, low, high)))


def _differences(draws: np.ndarray) -> np.ndarray:
    """Return the difference of calls 0 and 1, of calls 2 and 3, and so on."""
    return np.asarray(draws[:-1:2] - draws[1::2])


def _matrix(*draws: np.ndarray) -> np.ndarray:
    """Return one row per call, with the entries of all arrays."""
    return np.concatenate([value.reshape(len(value), -1) for value in draws], axis=1)


def _p_of_small_sum(square: float, count: int, noise: str) -> float:
    """Return the probability that a sum of squares, each with mean 1, is at most this small."""
    freedom = _degrees_of_freedom(noise)
    return float(sp.special.chdtr(count * freedom, square * freedom))


def _degrees_of_freedom(noise: str) -> float:
    """Return the degrees of freedom of one squared difference.

    The square of a normal variable has variance 2. The square of a difference of two Laplace
    variables, whose kurtosis is 4.5, has variance 3.5.
    """
    return 1.0 if noise == "gaussian" else 2 / 3.5


def _cdf(value: Float[np.ndarray, " draws"], noise: str) -> Float[np.ndarray, " draws"]:
    """Return the cumulative distribution of a difference of two draws, scaled to variance 1."""
    if noise == "gaussian":
        return np.asarray(sp.special.ndtr(value))
    # Each draw has variance 1/2, and therefore scale 1/2.
    scaled = 2 * np.abs(value)
    tail = np.exp(-scaled) * (0.5 + scaled / 4)
    return np.asarray(np.where(value < 0, tail, 1 - tail))


def _dependence_p(first: np.ndarray, second: np.ndarray) -> float:
    """Return a p-value for the hypothesis that two arrays of differences are independent.

    Differences of draws are symmetric about zero. If they are independent, the sign of each product
    is therefore a fair coin, whatever the distribution. The p-value follows from Hoeffding's
    inequality for the signs, given the absolute values of the products.
    """
    products = first * second
    square_sum = float((products**2).sum())
    if not square_sum:
        return 1.0
    return min(1.0, 2 * float(np.exp(-(float(products.sum()) ** 2) / square_sum / 2)))


_MIN_CALLS = 16
"""With fewer calls, an entry with too little noise cannot be detected."""


def check_dp(
    filter: object,
    *,
    sensitivity: float,
    sigma: float,
    adjacency: str = "remove",
    noise: str = "gaussian",
    kind: str = "",
    shape_from: object = None,
    stateful: bool = False,
    elsewhere: Sequence[str] = (),
    calls: int = 64,
    seed: int = 0,
) -> FilterAudit:
    """Audit a privacy filter against its declared guarantee.

    The filter is trusted code, and is called hundreds of times in this process. First, random draws
    are repeated, so that outputs for two neighbouring inputs differ only by one contribution. Then
    the noise is tested.

    Args:
        filter: A function from update to update, a step (from a batch to an update), a defense of
            uploads, a mod of Flower or a filter of NVFlare; or ``"module:object"``; or a class or
            function without arguments that creates one, which is called for every copy needed.
        sensitivity: Largest change of the output without noise by one contribution, in the L2 norm
            (for Laplace noise the L1 norm). For a filter that clips, it is the clipping norm, or
            twice that with "replace".
        sigma: Noise multiplier: standard deviation of the noise on every entry, in units of the
            sensitivity; 0 if noise is added elsewhere, for example by a server.
        adjacency: "remove": a contribution is present or not, so an update is compared with
            zeros; "replace": it is replaced by any other, which doubles the largest change.
        noise: Distribution of the noise, "gaussian" or "laplace".
        kind: Kind of filter: "function", "step", "defense", "flower-mod" or "nvflare-filter"; by
            default inferred from its class or arguments.
        shape_from: An example of an update (a network, or tensors or arrays by name or in a list),
            or of a step's batch; a function that returns one; or its name. By default the update
            of a small network.
        stateful: Whether earlier rounds may change the output, as in adaptive clipping.
        elsewhere: Names of further outputs that other code makes private.
        calls: Number of draws of noise, at least 16.
        seed: Seed of all draws of the check.

    Raises:
        BadInput: The filter cannot be called or copied, or a declaration is invalid.
        Unsupported: The filter's framework is not installed.

    Examples:
        >>> import fedaudit as fa
        >>> def clip(update):
        ...     length = sum(value.square().sum() for value in update.values()).sqrt()
        ...     return {name: value / length.clamp(min=1.0) for name, value in update.items()}
        >>> audit = fa.check_dp(clip, sensitivity=1.0, sigma=0.0)

    Source: arXiv 2602.17454 freezes the noise of mechanisms and compares their outputs.
    """
    claim = Claim(
        sensitivity=sensitivity,
        sigma=sigma,
        adjacency=adjacency,
        noise=noise,
        stateful=stateful,
        elsewhere=tuple(elsewhere),
    )
    if calls < _MIN_CALLS or seed < 0:
        raise BadInput(
            f"{option('calls')} is at least {_MIN_CALLS} and {option('seed')} at least 0, got "
            f"{calls} and {seed}"
        )
    if kind and kind not in KINDS:
        raise BadInput(f"{option('kind')} is {kind!r}; give one of {', '.join(KINDS)}")
    calls -= calls % 4
    name, value = _look_up(filter, "filter")
    snapshot = Snapshot(value, is_factory=isinstance(value, type) or required_arguments(value) == 0)
    try:
        first = _call_or_refuse(snapshot.new_filter, f"{name!r} returns no filter")
        filter_kind = kind or kind_of(first)
        example = _load_example(shape_from)
        replay = Replay(name, filter_kind, form_for(filter_kind, example), snapshot, claim, seed)
        checks = [*_checks(replay, calls)]
        broken = any(check.result is Result.FAILED for check in checks)
        if example is None and filter_kind != "step" and not broken:
            checks += scalar_check(replay)
    finally:
        snapshot.close()
    order = (Result.FAILED, Result.UNTESTED, Result.PASSED, Result.NOTED)
    checks.sort(key=lambda check: order.index(check.result))
    values = replay.form.values.values()
    # A check fails only if two sets of draws fail.
    effort = (
        f"{'a batch of ' if filter_kind == 'step' else ''}{len(values)} arrays "
        f"({sum(value.size for value in values)} entries), {2 * calls} draws of noise; "
        f"correct noise fails with probability {ERROR**2:.2%} at most"
    )
    return FilterAudit(name, KINDS[filter_kind], claim, tuple(checks), effort)


def _checks(replay: Replay, calls: int) -> Iterator[FilterCheck]:
    if replay.kind == "step":
        probes, zeros_failure = batches(replay.form, replay.claim), ""
    else:
        probes = updates(replay.form, replay.claim, seed=replay.seed)
        if zeros_failure := failure_type(replay, probes.none):
            probes = probes._replace(none=probes.small)
    frozen, hidden = is_replayable(replay, probes), is_noise_hidden(replay, probes)
    if frozen and not hidden:
        yield from neighbour_checks(replay, probes)
        yield from same_noise_check(replay, probes)
    if frozen:
        yield state_check(replay, probes)
    yield from noise_checks(replay, probes, calls, frozen=frozen, hidden=hidden)
    yield from special_input_checks(replay, probes, zeros_failure)


def _look_up(value: object, kind: str) -> tuple[str, object]:
    if isinstance(value, str):
        return value, look_up(kind, value, {}, expected="any object", is_valid=lambda _: True)
    return str(getattr(value, "__qualname__", type(value).__qualname__)), value


def _load_example(source: object) -> object:
    _, value = _look_up(source, "example")
    if not callable(value) or required_arguments(value) != 0:
        return value
    return _call_or_refuse(value, f"the object of {option('shape-from')} gives no example")


def _call_or_refuse(function: Callable[[], object], problem: str) -> object:
    try:
        return function()
    except FedauditError:
        raise
    # The code may exit, and its exit code must not look like a verdict.
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"{problem}: {type(error).__name__}: {error}; name an object, or a class or function "
            "without arguments that returns one"
        ) from error
