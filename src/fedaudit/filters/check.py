"""The check of a filter: what it does to neighbours with its noise frozen, then the noise alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from fedaudit.core.errors import BadInput, Refusal, option
from fedaudit.core.importing import named
from fedaudit.filters.bench import Bench
from fedaudit.filters.calling import KINDS, Call, Kind, form_for, kind_of, needed
from fedaudit.filters.claim import Check, Claim, FilterAudit, Result
from fedaudit.filters.freezing import Copies
from fedaudit.filters.frozen import (
    compared,
    oddity_checks,
    replays,
    same_noise_check,
    sensitivity_check,
    state_check,
    unnoised_check,
    without_dimensions_check,
    zeros_failure,
)
from fedaudit.filters.noise import ERROR
from fedaudit.filters.noisy import is_hidden, noise_checks
from fedaudit.filters.probes import batches, updates

FEWEST_CALLS = 16
"""Below, the quietest entry is told from the others by nothing."""


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
    """Holds what a privacy filter does against what is declared of it.

    The filter is called some hundreds of times in this process: it is code that is trusted. First
    its noise is frozen, so that two calls draw the same, and what is left between the outputs for
    two neighbours is what one contribution does. Then the noise is looked at alone.

    Args:
        filter: A function from update to update, a step (from a batch to an update), a defense of
            uploads, a mod of Flower or a filter of NVFlare; or ``"module:object"``; or a class or
            function without arguments that makes one, which is called for every copy needed.
        sensitivity: The farthest that one contribution moves the output without its noise, in
            Euclidean length (for Laplace noise in the sum of absolute values). Of a filter that
            clips to a length it is that length, and with "replace" its double.
        sigma: Standard deviation of the noise on every entry, in units of the sensitivity; 0 says
            that it is added elsewhere.
        adjacency: "remove": a contribution is there or not; "replace": it is any other.
        noise: The distribution of the noise, "gaussian" or "laplace".
        kind: What the filter is, one of "function", "step", "defense", "flower-mod" and
            "nvflare-filter"; told by its class or arguments if left out.
        shape_from: An example of an update (a network, or tensors or arrays by name or in a list),
            or of a step's batch; or a function that gives one; or its name. By default the update
            of a small network.
        stateful: Earlier rounds may change a release, as in adaptive clipping.
        elsewhere: Names of what is sent beside the arrays and made private elsewhere.
        calls: How many draws of noise are looked at, at least 16.
        seed: Of all that the check draws.

    Raises:
        BadInput: The filter cannot be called or copied, or a declaration makes no sense.
        Unsupported: The filter's framework is not installed.

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
    if calls < FEWEST_CALLS or seed < 0:
        raise BadInput(
            f"{option('calls')} is at least {FEWEST_CALLS} and {option('seed')} at least 0, got "
            f"{calls} and {seed}"
        )
    name = filter if isinstance(filter, str) else _name_of(filter)
    found = _named(filter, "filter") if isinstance(filter, str) else filter
    copies = Copies(found, made=isinstance(found, type) or needed(found) == 0)
    try:
        taken = _kind(kind, _made(copies, name))
        example = _example(shape_from)
        call = Call(taken, form_for(taken, example), name)
        bench = Bench(call, copies, claim, seed=seed)
        checks = [*_checks(bench, calls - calls % 4)]
        broken = any(check.result is Result.FAILED for check in checks)
        if example is None and taken != "step" and not broken:
            checks += without_dimensions_check(call, copies, claim, seed)
    finally:
        copies.close()
    checks.sort(key=lambda check: _ORDER.index(check.result))
    what = f"{len(call.form.shapes)} arrays ({call.form.entries} entries)"
    # Whoever is blamed has failed in two sets of draws.
    effort = (
        f"{'a batch of ' if taken == 'step' else ''}{what}, {2 * (calls - calls % 4)} draws of "
        f"noise; noise that is as declared is blamed with probability {ERROR**2:.2%} at most"
    )
    return FilterAudit(name, KINDS[taken], claim, tuple(checks), effort)


_ORDER = (Result.FAILED, Result.UNTESTED, Result.PASSED, Result.NOTED)


def _checks(bench: Bench, calls: int) -> Iterator[Check]:
    form, claim, zeros = bench.call.form, bench.claim, ""
    if bench.call.kind == "step":
        probes = batches(form, claim)
    else:
        zeros = zeros_failure(bench)
        probes = updates(form, claim, seed=bench.seed, nothing=not zeros)
    frozen, hidden = replays(bench, probes), is_hidden(bench, probes)
    if frozen and not hidden:
        found = compared(bench, probes)
        yield from sensitivity_check(found, bench)
        yield from unnoised_check(found, bench, probes)
        yield from same_noise_check(bench, probes)
    if frozen:
        yield from state_check(bench, probes)
    yield from noise_checks(bench, probes, calls, frozen=frozen, hidden=hidden)
    yield from oddity_checks(bench, probes, zeros=zeros)


def _named(name: str, kind: str) -> object:
    return named(kind, name, {}, wanted="any object", fits=lambda _: True)


def _name_of(filter: object) -> str:
    return str(getattr(filter, "__qualname__", type(filter).__qualname__))


def _kind(given: str, filter: object) -> Kind:
    if given and given not in KINDS:
        raise BadInput(f"{option('kind')} is one of {', '.join(KINDS)}, got {given!r}")
    return cast(Kind, given) if given else kind_of(filter)


def _example(given: object) -> object:
    found = _named(given, "example") if isinstance(given, str) else given
    if not callable(found) or needed(found) != 0:
        return found
    return _without_end(found, f"what {option('shape-from')} names gives no example")


def _made(copies: Copies, name: str) -> object:
    return _without_end(copies.fresh, f"{name!r} makes no filter")


def _without_end(make: Callable[[], object], otherwise: str) -> object:
    try:
        return make()
    except Refusal:
        raise
    # What ends the program must not end it with the code of a verdict.
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"{otherwise}: {type(error).__name__}: {error}; name an object, or a class or function "
            "that needs no arguments and makes one"
        ) from error
