"""Audit of a filter: first its outputs for neighbours with frozen noise, then the noise alone.

Noise is tested on differences of two calls, which do not depend on the input. The error of each
test is exact or conservative, and the tests share one error.
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
    EXACT,
    MOVE,
    Arrays,
    Claim,
    FilterAudit,
    FilterCheck,
    Result,
    in_words,
)
from fedaudit.filters.neighbours import (
    Probes,
    batches,
    failure,
    neighbour_checks,
    odd_input_checks,
    replays,
    same_noise_check,
    scalar_check,
    state_check,
    updates,
)
from fedaudit.filters.replay import KINDS, Replay, Snapshot, form_for, kind_of, required_arguments

ERROR = 0.01
"""Probability that any test of one set of draws fails although the noise is as declared. A check
fails only if two sets of draws fail."""
_FEW = 16
"""Calls that show whether values repeat."""
_MOST_PAIRS = 300
_REPEATING = 0.5
_STEP = 0.02


class Finding(NamedTuple):
    """P-value of one test, with the check that it belongs to and the entries that it tested."""

    check: str
    where: str
    p: float


def is_hidden(replay: Replay, probes: Probes) -> bool:
    """Return True if most values repeat, as after rounding or sparsification of the noise."""
    noisy = _noisy(replay.draws(probes.small, _FEW, draw=11))
    if not (replay.claim.sigma and noisy):
        return False
    parts = [_matrix(value) for value in noisy.values()]
    entries = _matrix(*(part[:, :: max(1, part.shape[1] // 200)] for part in parts))
    distinct = [len(np.unique(entry)) / len(entry) for entry in entries.T]
    return bool(np.mean(distinct) < _REPEATING)


def noise_checks(
    replay: Replay, probes: Probes, calls: int, *, frozen: bool, hidden: bool
) -> list[FilterCheck]:
    """Check that noise has the declared scale and shape, and is new in every entry and call.

    A failure counts only if a second set of draws fails too. If draws cannot be frozen, the
    sensitivity is tested here; if noise is hidden, only calls are compared. ``calls`` is a multiple
    of four.
    """
    for draw in (13, 17):
        small = replay.draws(probes.small, calls, draw=draw)
        large = replay.draws(probes.large, calls, draw=draw + 2)
        checks = [*_tested_once(small, large, replay.claim, frozen=frozen, hidden=hidden)]
        if all(check.result is not Result.FAILED for check in checks):
            break
    return checks


def _tested_once(
    small: Arrays, large: Arrays, claim: Claim, *, frozen: bool, hidden: bool
) -> Iterator[FilterCheck]:
    tests = [] if frozen else [_move_test(small, large, claim)]
    noise, on_large = _noisy(small), _noisy(large)
    rounded = hidden or _is_rounded(noise)
    if claim.sigma and noise:
        if not hidden:
            tests += scale_tests(noise, claim.std, claim.noise)
            tests += scale_tests(on_large, claim.std, claim.noise, label=", large update")
            tests += entry_tests(noise)
            tests += [] if rounded else shape_tests(noise, claim.noise)
        tests += call_tests(noise)
    error = ERROR / max(1, len(tests))
    worst: dict[str, Finding] = {}
    for test in sorted(tests, key=lambda finding: finding.p):
        worst.setdefault(test.check, test)
    if not frozen:
        yield _unfrozen(worst["sensitivity"], claim.sensitivity, failed=tests[0].p < error)
    std = spread_of(noise, claim.noise, error) if noise else Limited(0.0, 0.0, 0.0)
    if not claim.sigma:
        if noise:
            why = "noise was found, and none is declared"
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
            "Every entry needs it: look for a factor that is missing, squared, or divided twice.",
        )
        if not failed and std.low > claim.std * (1 + EXACT):
            why = "there is more noise than declared"
            yield FilterCheck("more noise", Result.NOTED, f"{std.value:.4g}", why=why)
    for check, name, why, advice in _TESTED:
        if check in worst:
            where, p = worst[check][1:]
            declared = claim.noise if check == "shape" else "independent"
            measured = f"not {declared}" if p < error else f"nothing against it (p {p:.2g})"
            result = Result.judged(failed=p < error)
            yield FilterCheck(name, result, measured, declared, f"{why} ({where})", advice)
            if check == "entries" and result is Result.FAILED:
                return  # the other tests assume independent entries
        elif check == "shape" and rounded:
            yield FilterCheck(
                "noise alone" if hidden else name,
                Result.UNTESTED,
                "values repeat",
                why="the output is rounded or made sparse after the noise, which hides it",
                advice="Check the filter up to and including its noise: later steps cannot weaken "
                "privacy.",
            )


_TESTED = (
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
"""Tests, their checks, and what to say and do if one fails."""


def _unfrozen(move: Finding, sensitivity: float, *, failed: bool) -> FilterCheck:
    return FilterCheck(
        MOVE,
        Result.FAILED if failed else Result.UNTESTED,
        move.where,
        f"at most {sensitivity:.4g}",
        f"a large contribution moves the output by {move.where} on average"
        if failed
        else "draws cannot be frozen, so that moves are only known up to their error",
        "Draw from torch, numpy or Python; name a factory if the filter keeps a state.",
    )


def _move_test(small: Arrays, large: Arrays, claim: Claim) -> Finding:
    """Test the mean move by a large contribution against the sensitivity.

    The first half of the calls determines the direction, the second half the move along it.
    """
    apart = _matrix(*(large[name] - small[name] for name in small))
    half = len(apart) // 2
    direction = apart[:half].mean(0)
    length = claim.length({"": direction})
    if not length:
        return Finding("sensitivity", "0", 1.0)
    along = np.sign(direction) if claim.noise == "laplace" else direction / length
    moved = apart[half:] @ along
    value, spread = float(moved.mean()), float(moved.std(ddof=1)) / half**0.5
    beyond = value - claim.sensitivity * (1 + EXACT)
    p = float(sp.special.stdtr(half - 1, -beyond / spread)) if spread else float(beyond <= 0)
    return Finding("sensitivity", f"{in_words(value)} ± {spread:.2g}", p)


def _noisy(draws: Arrays) -> Arrays:
    noisy = {}
    for name, value in draws.items():
        changing = (value != value[0]).any(0)
        if np.isfinite(value).all() and changing.any():
            noisy[name] = value if changing.all() else value[:, changing]
    return noisy


def _is_rounded(draws: Arrays) -> bool:
    """Return True if one value is so frequent that its distribution has a step there."""
    return any(
        np.unique(value, return_counts=True)[1].max() > max(_STEP * value.size, 2)
        for value in draws.values()
    )


def scale_tests(draws: Arrays, std: float, noise: str, *, label: str = "") -> Iterator[Finding]:
    """Yield tests for too little noise: over all entries, per array, and in the quietest entry."""
    if not draws:
        return
    unit = std * (1 - EXACT)
    squares = {name: _matrix(_differences(v)) ** 2 / 2 / unit**2 for name, v in draws.items()}
    everything = _matrix(*squares.values())
    for where, square in ({"all entries": everything} | squares).items():
        p = _p_of_less(float(square.sum()), square.size, noise)
        yield Finding("scale", f"{where}{label}", p)
    sums = everything.sum(0)
    arrays = np.repeat([*squares], [square.shape[1] for square in squares.values()])
    p = _p_of_less(float(sums.min()), len(everything), noise) * len(sums)
    yield Finding("scale", f"an entry of {arrays[sums.argmin()]}{label}", min(1.0, p))


def shape_tests(draws: Arrays, noise: str) -> Iterator[Finding]:
    """Yield tests of each array's noise for the declared distribution, whatever its scale."""
    for name, value in draws.items():
        difference = _differences(value).ravel()
        # The scale is the draws' own, with which they agree better than with the true one.
        if spread := float(np.sqrt((difference**2).mean())):
            p = sp.stats.ks_1samp(difference / spread, _cdf, args=(noise,), method="asymp").pvalue
            yield Finding("shape", name, float(p))


def entry_tests(draws: Arrays) -> Iterator[Finding]:
    """Yield tests for shared draws: of neighbouring entries along every axis, and of arrays."""
    differences = {name: _differences(value) for name, value in draws.items()}
    for name, value in differences.items():
        for axis in range(1, value.ndim):
            left, right = (np.moveaxis(value, axis, 0)[start::2] for start in (0, 1))
            if len(right):
                related = _dependence(left[: len(right)], right)
                yield Finding("entries", f"{name}, along axis {axis - 1}", related)
    for first, second in islice(combinations(differences, 2), _MOST_PAIRS):
        left, right = _matrix(differences[first]), _matrix(differences[second])
        size = min(left.shape[1], right.shape[1])
        yield Finding(
            "entries", f"{first} and {second}", _dependence(left[:, :size], right[:, :size])
        )


def call_tests(draws: Arrays) -> Iterator[Finding]:
    """Yield tests for noise that repeats: in the next call, and in any other."""
    noise = _matrix(*draws.values())
    first, second, third, fourth = (noise[start::4] for start in range(4))
    yield Finding("calls", "one call and the next", _dependence(first - third, second - fourth))
    pairs = [_dependence(first, second) for first, second in combinations(_differences(noise), 2)]
    yield Finding("calls", "two of the calls", min(1.0, min(pairs) * len(pairs)))


def spread_of(draws: Arrays, noise: str, error: float) -> Limited[float]:
    """Estimate the standard deviation of the noise, with limits of the given error."""
    differences = _differences(_matrix(*draws.values()))
    variance, freedom = float((differences**2).mean()) / 2, differences.size * _freedom(noise)
    low, high = (
        variance * freedom / sp.special.chdtri(freedom, p) for p in (error / 2, 1 - error / 2)
    )
    return Limited(*(float(value) ** 0.5 for value in (variance, low, high)))


def _differences(draws: np.ndarray) -> np.ndarray:
    return np.asarray(draws[:-1:2] - draws[1::2])


def _matrix(*draws: np.ndarray) -> np.ndarray:
    return np.concatenate([value.reshape(len(value), -1) for value in draws], axis=1)


def _p_of_less(square: float, count: int, noise: str) -> float:
    """Return the probability of so small a sum of squares with mean 1 each."""
    freedom = _freedom(noise)
    return float(sp.special.chdtr(count * freedom, square * freedom))


def _freedom(noise: str) -> float:
    """Return the degrees of freedom of one squared difference.

    The square of a normal variable has variance 2. The square of a difference of two Laplace
    variables, whose kurtosis is 4.5, has variance 3.5.
    """
    return 1.0 if noise == "gaussian" else 2 / 3.5


def _cdf(value: Float[np.ndarray, " draws"], noise: str) -> Float[np.ndarray, " draws"]:
    """Evaluate the distribution of a difference of two draws, scaled to variance 1."""
    if noise == "gaussian":
        return np.asarray(sp.special.ndtr(value))
    # Each draw has variance 1/2, and therefore scale 1/2.
    far = 2 * np.abs(value)
    tail = np.exp(-far) * (0.5 + far / 4)
    return np.asarray(np.where(value < 0, tail, 1 - tail))


def _dependence(first: np.ndarray, second: np.ndarray) -> float:
    """Return the p-value of a sum of products, if the sign of each product is a fair coin.

    Differences of draws are symmetric about zero, so that signs are fair coins if draws are
    independent, whatever their distribution. The bound is Hoeffding's inequality for the signs,
    given the products' sizes.
    """
    products = first * second
    size = float((products**2).sum())
    if not size:
        return 1.0
    return min(1.0, 2 * float(np.exp(-(float(products.sum()) ** 2) / size / 2)))


_FEWEST_CALLS = 16  # with fewer, the entry with the least noise cannot be distinguished


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

    The filter is trusted code, and is called some hundreds of times in this process. First its
    noise is frozen, so that outputs for two neighbours differ by one contribution alone. Then the
    noise is tested.

    Args:
        filter: A function from update to update, a step (from a batch to an update), a defense of
            uploads, a mod of Flower or a filter of NVFlare; or ``"module:object"``; or a class or
            function without arguments that makes one, which is called for every copy needed.
        sensitivity: Largest distance by which one contribution moves the output without noise, in
            L2 (for Laplace noise in L1). For a filter that clips to a length it is that length, or
            its double with "replace".
        sigma: Noise multiplier: standard deviation of the noise on every entry, in units of the
            sensitivity; 0 if noise is added elsewhere, as by a server.
        adjacency: "remove": a contribution is present or not, so that an update is compared with
            zeros; "replace": it is replaced by any other, which doubles the distance.
        noise: Distribution of the noise, "gaussian" or "laplace".
        kind: Kind of filter: "function", "step", "defense", "flower-mod" or "nvflare-filter"; by
            default inferred from its class or arguments.
        shape_from: An example of an update (a network, or tensors or arrays by name or in a list),
            or of a step's batch; a function that returns one; or its name. By default the update
            of a small network.
        stateful: Whether earlier rounds may change a release, as in adaptive clipping.
        elsewhere: Names of further outputs that are made private elsewhere.
        calls: Draws of noise, at least 16.
        seed: Seed of all draws of the check.

    Raises:
        BadInput: The filter cannot be called or copied, or a declaration is invalid.
        Unsupported: The filter's framework is not installed.

    Examples:
        >>> import fedaudit as fa
        >>> def clip(update):
        ...     length = sum(value.square().sum() for value in update.values()).sqrt()
        ...     return {name: value / length.clamp(min=1.0) for name, value in update.items()}
        >>> found = fa.check_dp(clip, sensitivity=1.0, sigma=0.0)

    Source: arXiv 2602.17454 freezes the noise of mechanisms and compares what is left.
    """
    claim = Claim(
        sensitivity=sensitivity,
        sigma=sigma,
        adjacency=adjacency,
        noise=noise,
        stateful=stateful,
        elsewhere=tuple(elsewhere),
    )
    if calls < _FEWEST_CALLS or seed < 0:
        raise BadInput(
            f"{option('calls')} is at least {_FEWEST_CALLS} and {option('seed')} at least 0, got "
            f"{calls} and {seed}"
        )
    if kind and kind not in KINDS:
        raise BadInput(f"{option('kind')} is {kind!r}; give one of {', '.join(KINDS)}")
    calls -= calls % 4
    name, value = _named(filter, "filter")
    snapshot = Snapshot(value, is_factory=isinstance(value, type) or required_arguments(value) == 0)
    try:
        first = _made(snapshot.fresh, f"{name!r} returns no filter")
        filter_kind = kind or kind_of(first)
        example = _example(shape_from)
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
    # A failed check has failed in two sets of draws.
    effort = (
        f"{'a batch of ' if filter_kind == 'step' else ''}{len(values)} arrays "
        f"({sum(value.size for value in values)} entries), {2 * calls} draws of noise; "
        f"correct noise fails with probability {ERROR**2:.2%} at most"
    )
    return FilterAudit(name, KINDS[filter_kind], claim, tuple(checks), effort)


def _checks(replay: Replay, calls: int) -> Iterator[FilterCheck]:
    if replay.kind == "step":
        probes, zeros = batches(replay.form, replay.claim), ""
    else:
        probes = updates(replay.form, replay.claim, seed=replay.seed)
        if zeros := failure(replay, probes.none):
            probes = probes._replace(none=probes.small)
    frozen, hidden = replays(replay, probes), is_hidden(replay, probes)
    if frozen and not hidden:
        yield from neighbour_checks(replay, probes)
        yield from same_noise_check(replay, probes)
    if frozen:
        yield state_check(replay, probes)
    yield from noise_checks(replay, probes, calls, frozen=frozen, hidden=hidden)
    yield from odd_input_checks(replay, probes, zeros)


def _named(value: object, kind: str) -> tuple[str, object]:
    if isinstance(value, str):
        return value, look_up(kind, value, {}, expected="any object", is_valid=lambda _: True)
    return str(getattr(value, "__qualname__", type(value).__qualname__)), value


def _example(source: object) -> object:
    _, value = _named(source, "example")
    if not callable(value) or required_arguments(value) != 0:
        return value
    return _made(value, f"the object of {option('shape-from')} gives no example")


def _made(make: Callable[[], object], otherwise: str) -> object:
    try:
        return make()
    except FedauditError:
        raise
    # Code that ends the program must not do so with the exit code of a verdict.
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"{otherwise}: {type(error).__name__}: {error}; name an object, or a class or function "
            "without arguments that returns one"
        ) from error
