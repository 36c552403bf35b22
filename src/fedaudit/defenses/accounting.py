"""What repeated noisy releases add up to."""

from fedaudit.errors import BadInput


def gaussian_epsilon(
    noise_multiplier: float, releases: int, *, delta: float, rate: float = 1.0
) -> float:
    """The epsilon of so many sums, each of terms no longer than a clip, with normal noise.

    Adjacency: one term is there or not.

    Args:
        noise_multiplier: Standard deviation of each sum's noise, in clips.
        releases: How many sums are given out.
        delta: Failure probability, in (0, 1).
        rate: Probability with which the term takes part in a sum, drawn for each anew and
            independently of all others (Poisson sampling); 1 where it always does.

    Returns:
        Epsilon in nats by Renyi accounting; infinite without noise.

    Raises:
        BadInput: The accountant is not installed, or delta or rate is out of range.

    Source: Mironov 2017; for rates below 1, Mironov, Talwar and Zhang 2019.
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
    one = GaussianDpEvent(noise_multiplier)
    accountant = RdpAccountant()
    event = one if rate == 1 else PoissonSampledDpEvent(rate, one)
    accountant.compose(SelfComposedDpEvent(event, releases))
    return float(accountant.get_epsilon(delta))
