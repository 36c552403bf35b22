"""Checks of the noise alone, and of what can be told where it cannot be frozen."""

from collections.abc import Iterator

import numpy as np
from scipy.special import stdtr

from fedaudit.filters.bench import Bench
from fedaudit.filters.claim import Check, Claim, Result, in_words
from fedaudit.filters.noise import (
    ERROR,
    EXACT,
    Draws,
    Finding,
    call_tests,
    entry_tests,
    is_rounded,
    repeats,
    scale_tests,
    shape_tests,
    spread_of,
)
from fedaudit.filters.probes import Probes

_FEW = 16
"""Calls that tell whether values repeat."""


def is_hidden(bench: Bench, probes: Probes) -> bool:
    """True if the noise cannot be seen in the output, which is rounded or thinned out after it."""
    quiet = _noisy(bench.drawn(probes.small, _FEW, draw=11))
    return bool(bench.claim.sigma and quiet) and repeats(quiet)


def noise_checks(
    bench: Bench, probes: Probes, calls: int, *, frozen: bool, hidden: bool
) -> Iterator[Check]:
    """Whether noise has the declared scale and shape and is drawn anew for every entry and call.

    What fails is tried again with other draws, and blamed only if something fails there too.

    Args:
        bench: With the filter.
        probes: Of which no contribution and a large one are sent again and again.
        calls: How often, a multiple of 4.
        frozen: Whether the noise could be frozen; else the sensitivity is tested here.
        hidden: Whether its values cannot be seen, so that only calls are held against each other.
    """
    for draw in (13, 17):
        checks = [*_once(bench, probes, calls, draw, frozen=frozen, hidden=hidden)]
        if all(check.result is not Result.FAILED for check in checks):
            break
    yield from checks


def _once(
    bench: Bench, probes: Probes, calls: int, draw: int, *, frozen: bool, hidden: bool
) -> Iterator[Check]:
    claim = bench.claim
    small = bench.drawn(probes.small, calls, draw=draw)
    large = bench.drawn(probes.large, calls, draw=draw + 2)
    tests = [] if frozen else [_far(small, large, claim)]
    quiet, loud = _noisy(small), _noisy(large)
    if not claim.sigma:
        if quiet:
            std = spread_of(quiet, claim.noise, ERROR).value
            yield _noted("noise", f"{std:.3g}", "noise was found, and none is declared")
        if not frozen:
            yield from _unfrozen(tests[0], claim, ERROR)
        return
    if not quiet:
        yield _scale("0", claim, failed=True, where="the output is the same in every call")
        return
    rounded = hidden or is_rounded(quiet)
    if not hidden:
        tests += scale_tests(quiet, claim.std, claim.noise, told="")
        tests += scale_tests(loud, claim.std, claim.noise, told=", large update") if loud else []
        tests += entry_tests(quiet)
        tests += [] if rounded else shape_tests(quiet, claim.noise)
    tests += call_tests(quiet)
    error = ERROR / len(tests)
    worst = {
        check: min((one for one in tests if one.check == check), key=lambda one: one.p)
        for check in {one.check for one in tests}
    }
    if not frozen:
        yield from _unfrozen(worst["sensitivity"], claim, error)
    if not hidden:
        spread = spread_of(quiet, claim.noise, error)
        measured = f"{spread.value:.4g} ({spread.low:.4g} to {spread.high:.4g})"
        failed = worst["scale"].p < error
        yield _scale(measured, claim, failed=failed, where=worst["scale"].where)
        if not failed and spread.low > claim.std * (1 + EXACT):
            yield _noted("more noise", f"{spread.value:.4g}", "there is more noise than declared")
    yield from _rest(worst, error, claim, hidden=hidden, rounded=rounded)


def _rest(
    worst: dict[str, Finding], error: float, claim: Claim, *, hidden: bool, rounded: bool
) -> Iterator[Check]:
    if hidden:
        yield _untested("noise by itself")
    elif "entries" in worst:
        shared = _tested(
            "noise between entries",
            "independent",
            worst["entries"],
            error,
            f"entries share their noise ({worst['entries'].where})",
            "Draw a number for every entry of every array, from one generator that goes on.",
        )
        yield shared
        if shared.result is Result.FAILED:
            return  # the other tests take entries for independent
    if rounded and not hidden:
        yield _untested("shape of noise")
    elif not hidden:
        yield _tested(
            "shape of noise",
            claim.noise,
            worst["shape"],
            error,
            f"noise on {worst['shape'].where!r} is not {claim.noise}",
            "Draw from the distribution that the accountant knows, and change nothing afterwards.",
        )
    yield _tested(
        "noise between calls",
        "independent",
        worst["calls"],
        error,
        f"calls share their noise ({worst['calls'].where})",
        "Seed no generator in a call: noise that comes again can be taken off.",
    )


def _tested(name: str, declared: str, worst: Finding, error: float, why: str, advice: str) -> Check:
    failed = worst.p < error
    measured = f"not {declared}" if failed else f"nothing against it (p {worst.p:.2g})"
    return Check(name, measured, declared, Result.FAILED if failed else Result.PASSED, why, advice)


def _scale(measured: str, claim: Claim, *, failed: bool, where: str) -> Check:
    return Check(
        "standard deviation of noise",
        measured,
        f"{claim.std:.4g}",
        Result.FAILED if failed else Result.PASSED,
        f"there is less noise than declared ({where})",
        f"The noise of every entry has standard deviation {claim.std:.4g}, which is sigma times "
        "sensitivity: check for one that is left out, squared, or divided twice.",
    )


def _untested(name: str) -> Check:
    return Check(
        name,
        "values repeat",
        "",
        Result.UNTESTED,
        "the output is rounded or thinned out after the noise, which hides it from a check",
        "Check the filter up to and including its noise: later steps cannot take privacy away.",
    )


def _noted(name: str, measured: str, why: str) -> Check:
    return Check(name, measured, "", Result.NOTED, why)


def _noisy(draws: Draws) -> Draws:
    """Entries that change from call to call; arrays with others among them as a plain list."""
    found = {}
    for name, value in draws.items():
        changing = (value != value[0]).any(0)
        if not np.isfinite(value).all() or not changing.any():
            continue
        found[name] = value if changing.all() else value[:, changing]
    return found


def _far(small: Draws, large: Draws, claim: Claim) -> Finding:
    """Whether a large contribution moves the mean output farther than declared.

    Along a direction that the first half of the calls gives and the second has not seen.
    """
    apart = np.concatenate(
        [(large[name] - small[name]).reshape(len(small[name]), -1) for name in small], axis=1
    )
    half = len(apart) // 2
    direction = apart[:half].mean(0)
    length = claim.length(direction)
    if not length:
        return Finding("sensitivity", "0", 1.0)
    along = np.sign(direction) if claim.noise == "laplace" else direction / length
    moved = apart[half:] @ along
    value, spread = float(moved.mean()), float(moved.std(ddof=1)) / half**0.5
    beyond = value - claim.sensitivity * (1 + EXACT)
    p = float(stdtr(half - 1, -beyond / spread)) if spread else float(beyond <= 0)
    return Finding("sensitivity", f"{in_words(value)} ± {spread:.2g}", p)


def _unfrozen(far: Finding, claim: Claim, error: float) -> Iterator[Check]:
    failed = far.p < error
    yield Check(
        "largest move of the output",
        far.where,
        f"at most {claim.sensitivity:.4g}",
        Result.FAILED if failed else Result.UNTESTED,
        f"a large contribution moves the output by {far.where} on average"
        if failed
        else "two calls with the same draws differ: what it draws cannot be frozen, and moves are "
        "known within their error only",
        "Draw from a generator of torch, numpy or Python; if the filter keeps something between "
        "calls, name a class or function that makes it, so that each call has a new one.",
    )
