"""The audit of a filter: its outputs for neighbours with the noise frozen, then the noise alone."""

from collections.abc import Callable, Iterator, Sequence

from fedaudit.core.errors import BadInput, FedauditError, option
from fedaudit.core.importing import named
from fedaudit.filters.adapters import KINDS, form_for, kind_of, required_arguments
from fedaudit.filters.claim import Claim, FilterAudit, FilterCheck, Result
from fedaudit.filters.neighbours import (
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
from fedaudit.filters.noise import ERROR, is_hidden, noise_checks
from fedaudit.filters.replay import Replay, Snapshot

_FEWEST_CALLS = 16  # below, nothing sets the quietest entry apart from the others


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
    """Audits a privacy filter against what is declared of it.

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
        sigma: Noise multiplier: the noise's standard deviation on every entry, in units of the
            sensitivity; 0 says that it is added elsewhere, as by a server.
        adjacency: "remove": a contribution is there or not, so that an update is compared with
            zeros; "replace": it is any other, which is twice as far.
        noise: The distribution of the noise, "gaussian" or "laplace".
        kind: What the filter is, one of "function", "step", "defense", "flower-mod" and
            "nvflare-filter"; found from its class or arguments if left out.
        shape_from: An example of an update (a network, or tensors or arrays by name or in a list),
            or of a step's batch; or a function that gives one; or its name. By default the update
            of a small network.
        stateful: Earlier rounds may change a release, as in adaptive clipping.
        elsewhere: Names of what is sent beside the arrays and made private elsewhere.
        calls: Draws of noise, at least 16.
        seed: Of all that the check draws.

    Raises:
        BadInput: The filter cannot be called or copied, or a declaration makes no sense.
        Unsupported: The filter's framework is not installed.

    Examples:
        >>> def clip(update):
        ...     length = sum(value.square().sum() for value in update.values()).sqrt()
        ...     return {name: value / length.clamp(min=1.0) for name, value in update.items()}
        >>> found = check_dp(clip, sensitivity=1.0, sigma=0.0)

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
        raise BadInput(f"{option('kind')} is one of {', '.join(KINDS)}, got {kind!r}")
    calls -= calls % 4
    name, given = _named(filter, "filter")
    snapshot = Snapshot(given, made=isinstance(given, type) or required_arguments(given) == 0)
    try:
        first = _made(snapshot.fresh, f"{name!r} makes no filter")
        taken = kind or kind_of(first)
        example = _example(shape_from)
        replay = Replay(name, taken, form_for(taken, example), snapshot, claim, seed)
        checks = [*_checks(replay, calls)]
        broken = any(check.result is Result.FAILED for check in checks)
        if example is None and taken != "step" and not broken:
            checks += scalar_check(replay)
    finally:
        snapshot.close()
    order = (Result.FAILED, Result.UNTESTED, Result.PASSED, Result.NOTED)
    checks.sort(key=lambda check: order.index(check.result))
    values = replay.form.values.values()
    # Whoever is blamed has failed in two sets of draws.
    effort = (
        f"{'a batch of ' if taken == 'step' else ''}{len(values)} arrays "
        f"({sum(value.size for value in values)} entries), {2 * calls} draws of noise; "
        f"noise that is as declared is blamed with probability {ERROR**2:.2%} at most"
    )
    return FilterAudit(name, KINDS[taken], claim, tuple(checks), effort)


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


def _named(given: object, kind: str) -> tuple[str, object]:
    """An object with its name, imported if the name is given."""
    if isinstance(given, str):
        return given, named(kind, given, {}, wanted="any object", fits=lambda _: True)
    return str(getattr(given, "__qualname__", type(given).__qualname__)), given


def _example(given: object) -> object:
    _, found = _named(given, "example")
    if not callable(found) or required_arguments(found) != 0:
        return found
    return _made(found, f"what {option('shape-from')} names gives no example")


def _made(make: Callable[[], object], otherwise: str) -> object:
    try:
        return make()
    except FedauditError:
        raise
    # What ends the program must not end it with the code of a verdict.
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"{otherwise}: {type(error).__name__}: {error}; name an object, or a class or function "
            "that needs no arguments and makes one"
        ) from error
