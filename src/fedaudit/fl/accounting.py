"""Privacy accounting of repeated noisy releases."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from fedaudit.core.errors import BadInput

_log = logging.getLogger("fedaudit")

FORMAL_DELTA = 1e-5
"""At which proven and claimed budgets are stated."""


def gaussian_epsilon(
    noise_multiplier: float, releases: int, *, delta: float, rate: float = 1.0
) -> float:
    """The epsilon of so many sums, each of terms no longer than a clip, with normal noise.

    Adjacency: one term is there or not.

    Args:
        noise_multiplier: Standard deviation of each sum's noise, in clips.
        releases: How many sums are given out.
        delta: Failure probability, in (0, 1).
        rate: Probability with which the term takes part in a sum, drawn for each sum
            independently of all others (Poisson sampling); 1 where it always does.

    Returns:
        Epsilon in nats by Renyi accounting; infinite without noise.

    Raises:
        BadInput: The accountant is not installed, or delta or rate is out of range.

    Source: Mironov 2017; for rates below 1, Mironov, Talwar and Zhang 2019.
    Differs: Where the accountant says 0 for a rate below 1, as it does for divergences that
        rounding made negative, the epsilon for rate 1 is given: sampling only ever lowers it.
    """
    if not 0 < delta < 1:
        raise BadInput(f"delta is a probability in (0, 1), got {delta}")
    if not 0 < rate <= 1:
        raise BadInput(f"the sampling rate is a probability in (0, 1], got {rate}")
    if noise_multiplier == 0:
        return float("inf")
    try:
        from dp_accounting import (
            GaussianDpEvent,
            PoissonSampledDpEvent,
            SelfComposedDpEvent,
        )
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise BadInput(
            "the accountant is not installed; install it with: pip install 'fedaudit[dp]'"
        ) from error
    gaussian = GaussianDpEvent(noise_multiplier)
    accountant = RdpAccountant()
    event = gaussian if rate == 1 else PoissonSampledDpEvent(rate, gaussian)
    with _excluded_orders_in_the_debug_log():
        accountant.compose(SelfComposedDpEvent(event, releases))
        epsilon = float(accountant.get_epsilon(delta))
    if rate < 1 and not epsilon > 0:
        return gaussian_epsilon(noise_multiplier, releases, delta=delta)
    return epsilon


@contextmanager
def _excluded_orders_in_the_debug_log() -> Iterator[None]:
    """Inside, the accountant says on our debug log which orders it leaves out.

    Each order gives a bound on epsilon, and the least bound is returned. A series that did not
    converge therefore costs tightness at most. By default each would print a line.
    """

    def elsewhere(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        left_out = "Excluding this order" in message
        if left_out:
            _log.debug("accounting: %s", message)
        return not left_out

    logger = logging.getLogger("absl")
    logger.addFilter(elsewhere)
    try:
        yield
    finally:
        logger.removeFilter(elsewhere)
