"""Privacy accounting of repeated noisy releases."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

from fedaudit.core.errors import BadInput

_log = logging.getLogger("fedaudit")

FORMAL_DELTA = 1e-5
"""The delta at which proven and claimed epsilons are stated."""


def gaussian_mechanism_epsilon(
    noise_multiplier: float, releases: int, *, delta: float, rate: float = 1.0
) -> float:
    """Compute the epsilon of releasing sums of clipped gradients or updates with Gaussian noise.

    Adjacency: one unit (sample or client), which contributes one term to each sum, is added or
    removed.

    Args:
        noise_multiplier: Standard deviation of each sum's noise, in units of the clip norm.
        releases: Number of released sums.
        delta: Failure probability, in (0, 1).
        rate: Probability that a term is in a sum, independently for each sum (Poisson sampling); 1
            if it is in every sum.

    Returns:
        Epsilon by Renyi accounting; infinite without noise.

    Raises:
        BadInput: The accountant is not installed, or delta or rate is out of range.

    Source: Mironov 2017; for rates below 1, Mironov, Talwar and Zhang 2019.
    Differs: For a rate below 1, the accountant may return 0, because rounding makes divergences
        negative. The epsilon of rate 1, which is an upper bound, is then returned.
    """
    if not 0 < delta < 1:
        raise BadInput(f"delta is a probability in (0, 1), got {delta}")
    if not 0 < rate <= 1:
        raise BadInput(f"the sampling rate is a probability in (0, 1], got {rate}")
    if noise_multiplier == 0:
        return float("inf")
    try:
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise BadInput(
            "the accountant is not installed; install it with: pip install 'fedaudit[dp]'"
        ) from error
    gaussian = GaussianDpEvent(noise_multiplier)
    accountant = RdpAccountant()
    event = gaussian if rate == 1 else PoissonSampledDpEvent(rate, gaussian)
    with _excluded_orders_in_debug_log():
        accountant.compose(SelfComposedDpEvent(event, releases))
        epsilon = float(accountant.get_epsilon(delta))
    if rate < 1 and not epsilon > 0:
        return gaussian_mechanism_epsilon(noise_multiplier, releases, delta=delta)
    return epsilon


def sampling_rate(batch_size: int, samples: int) -> float:
    """Return the probability that a given sample is in the batch of a DP-SGD step."""
    return min(1.0, batch_size / samples)


def steps_per_epoch(batch_size: int, samples: int) -> int:
    """Return the number of steps of an epoch of DP-SGD."""
    return ceil(samples / batch_size)


@contextmanager
def _excluded_orders_in_debug_log() -> Iterator[None]:
    """Move the accountant's warnings about excluded Renyi orders to the debug log.

    Each order gives a valid bound on epsilon, and the smallest is returned. Excluding an order
    whose series did not converge can therefore only make the bound less tight.
    """

    def to_debug_log(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_excluded = "Excluding this order" in message
        if is_excluded:
            _log.debug("accounting: %s", message)
        return not is_excluded

    logger = logging.getLogger("absl")
    logger.addFilter(to_debug_log)
    try:
        yield
    finally:
        logger.removeFilter(to_debug_log)
