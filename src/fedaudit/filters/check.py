"""Audit of a privacy filter: its sensitivity with fixed random draws, and then its noise."""

from collections.abc import Callable, Iterator, Sequence

from fedaudit.core.errors import BadInput, FedauditError, format_option
from fedaudit.core.importing import look_up
from fedaudit.filters.claim import Claim, FilterAudit, FilterCheck, Result
from fedaudit.filters.kinds import FILTER_KINDS, kind_of, required_arguments
from fedaudit.filters.layout import layout_for
from fedaudit.filters.neighbours import (
    batch_inputs,
    failure_type,
    is_replayable,
    neighbour_checks,
    same_noise_check,
    scalar_check,
    special_input_checks,
    state_check,
    update_inputs,
)
from fedaudit.filters.noise import ERROR, is_noise_hidden, noise_checks
from fedaudit.filters.replay import Replay
from fedaudit.filters.state import Snapshot

_MIN_CALLS = 16
"""Minimum number of noise draws. With fewer, a test of one entry cannot detect too little noise."""


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

    The audit first calls the filter with the same random draws for two neighbouring inputs. The
    noise is then equal, and the outputs differ only because of the one contribution in which the
    inputs differ. After this, the audit tests the noise itself.

    The filter runs hundreds of times in this process. Only audit code that you trust.

    Args:
        filter: A function from update to update, a training step (a function from a batch to an
            update), a fedaudit defense that changes uploads, a Flower mod or an NVFlare filter.
            Pass the object, its name as ``"module:object"``, or a class or function without
            arguments that creates one, which is called for every copy that the audit needs.
        sensitivity: Largest change that one contribution can cause in the output without noise, in
            the L2 norm (for Laplace noise, the L1 norm). For a filter that clips, this is the
            clipping norm, or twice the clipping norm with ``adjacency="replace"``.
        sigma: Noise multiplier: standard deviation of the noise on every entry, in units of the
            sensitivity; 0 if noise is added elsewhere, for example by a server.
        adjacency: How neighbouring inputs differ. "remove": one input lacks the contribution, so an
            update is compared with zeros. "replace": the contribution is replaced by any other,
            which doubles the largest change.
        noise: Distribution of the noise, "gaussian" or "laplace".
        kind: Kind of filter: "function", "step", "defense", "flower-mod" or "nvflare-filter"; by
            default inferred from its class or arguments.
        shape_from: An example of the input: an update (a network, or tensors or arrays by name or
            in a list), or the batch of a training step. Also a function that returns an example, or
            the name of either. By default, the update of a small network.
        stateful: Whether earlier rounds may change the output, as in adaptive clipping.
        elsewhere: Names of further outputs to which other code adds noise.
        calls: Number of noise draws, at least 16.
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

    Source: arXiv 2602.17454, which fixes the noise of mechanisms and compares their outputs.
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
            f"{format_option('calls')} is at least {_MIN_CALLS} and {format_option('seed')} at "
            f"least 0, got {calls} and {seed}"
        )
    if kind and kind not in FILTER_KINDS:
        raise BadInput(
            f"{format_option('kind')} is {kind!r}; give one of {', '.join(FILTER_KINDS)}"
        )
    calls -= calls % 4
    name, value = _look_up(filter, "filter")
    snapshot = Snapshot(value, is_factory=isinstance(value, type) or required_arguments(value) == 0)
    try:
        first = _call_or_raise(snapshot.new_filter, f"{name!r} failed to create a filter")
        filter_kind = kind or kind_of(first)
        example = _load_example(shape_from)
        layout = layout_for(filter_kind, example)
        replay = Replay(name, filter_kind, layout, snapshot, claim, seed)
        checks = [*_run_checks(replay, calls)]
        is_broken = any(check.result is Result.FAILED for check in checks)
        if example is None and filter_kind != "step" and not is_broken:
            checks += scalar_check(replay)
    finally:
        snapshot.close()
    order = (Result.FAILED, Result.UNTESTED, Result.PASSED, Result.NOTED)
    checks.sort(key=lambda check: order.index(check.result))
    # A check fails only if two independent sets of draws fail, which squares the probability.
    effort = (
        f"{'a batch of ' if filter_kind == 'step' else ''}{len(layout.values)} arrays "
        f"({sum(value.size for value in layout.values.values())} entries), {2 * calls} draws of "
        f"noise; correct noise fails with probability {ERROR**2:.2%} at most"
    )
    return FilterAudit(name, FILTER_KINDS[filter_kind], claim, tuple(checks), effort)


def _run_checks(replay: Replay, calls: int) -> Iterator[FilterCheck]:
    failure_on_zeros = ""
    if replay.kind == "step":
        inputs = batch_inputs(replay.layout, replay.claim)
    else:
        inputs = update_inputs(replay.layout, replay.claim, seed=replay.seed)
        if failure_on_zeros := failure_type(replay, inputs.no_contribution):
            inputs = inputs._replace(no_contribution=inputs.small)
    replayable, is_hidden = is_replayable(replay, inputs), is_noise_hidden(replay, inputs)
    if replayable and not is_hidden:
        yield from neighbour_checks(replay, inputs)
        yield from same_noise_check(replay, inputs)
    if replayable:
        yield state_check(replay, inputs)
    yield from noise_checks(replay, inputs, calls, is_replayable=replayable, is_hidden=is_hidden)
    yield from special_input_checks(replay, inputs, failure_on_zeros)


def _look_up(value: object, kind: str) -> tuple[str, object]:
    if isinstance(value, str):
        return value, look_up(kind, value, {}, expected="any object", is_valid=lambda _: True)
    return str(getattr(value, "__qualname__", type(value).__qualname__)), value


def _load_example(source: object) -> object:
    _, value = _look_up(source, "example")
    if not callable(value) or required_arguments(value) != 0:
        return value
    return _call_or_raise(value, f"the function given as {format_option('shape-from')} failed")


def _call_or_raise(function: Callable[[], object], problem: str) -> object:
    try:
        return function()
    except FedauditError:
        raise
    # Also catch an exit of the user's code, whose exit code would look like a verdict.
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"{problem} ({type(error).__name__}: {error}); give an object, or a class or function "
            "without arguments that returns one"
        ) from error
