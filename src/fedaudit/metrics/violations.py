"""Clients whose model is riskier than they accept."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import SeedMean, over_further_runs


class Violations(NamedTuple):
    """Clients whose model's membership risk is above their threshold.

    Attributes:
        above: Those whose model's measured risk is above it.
        sure: Those of them for whom even the lower limit of that risk is.
        clients: All of them.
    """

    above: int
    sure: int
    clients: int


def violations(
    risks: Float[ndarray, " clients"],
    thresholds: Float[ndarray, " thresholds"],
    *,
    lows: Float[ndarray, " lows"] | None = None,
) -> Violations:
    """Number of clients that use a model that is riskier than they accept.

    A risk that equals the threshold is accepted.

    Args:
        risks: Membership risk of each client's model, in [0, 1]; not a number where it was not
            measured, which is no violation.
        thresholds: The highest risk that each client accepts, in [0, 1].
        lows: Lower limits of the risks; without them no violation is sure.

    Raises:
        BadInput: Lengths differ, or there is no client.

    Source: IFCA-MIR, section 5.2.2.
    """
    lengths = {len(risks), len(thresholds), len(risks if lows is None else lows)}
    if len(lengths) > 1 or not len(risks):
        raise BadInput(
            f"every client needs a risk and a threshold, got {len(risks)} risks and "
            f"{len(thresholds)} thresholds"
            + ("" if lows is None else f" and {len(lows)} lower limits")
        )
    above = risks > thresholds
    sure = 0 if lows is None else int((above & (lows > thresholds)).sum())
    return Violations(int(above.sum()), sure, len(risks))


class ModelRisk(NamedTuple):
    """A model whose risk was measured, and what the clients that use it accept.

    Attributes:
        members: Of its training data that were asked about, at least 1.
        others: Samples of nobody that were, at least 1.
        thresholds: The highest risk that each of its clients accepts.
    """

    members: int
    others: int
    thresholds: Sequence[float]


def violations_by_chance(
    models: Sequence[ModelRisk], *, rng: np.random.Generator, draws: int = 10_000
) -> float:
    """The noise floor of violations: how many are expected where every true risk is one half.

    A measured risk is a balanced accuracy of so many samples, and scatters about the true one;
    clients that accept little more than one half are then in violation by noise alone. Drawn for
    an attack that takes half of all samples for members, which scatters most.

    Args:
        models: In the federation.
        rng: Decides the draws.
        draws: Of every model's measured risk.

    Raises:
        BadInput: A model without samples on one side.
    """
    total = 0.0
    for members, others, thresholds in models:
        if members < 1 or others < 1:
            raise BadInput(
                "the noise floor of violations needs models measured on members and others, got "
                f"{members} and {others}; leave out models whose risk was not measured"
            )
        caught = rng.binomial(members, 0.5, draws) / members
        cleared = rng.binomial(others, 0.5, draws) / others
        risks = np.sort((caught + cleared) / 2)
        below = np.searchsorted(risks, np.asarray(thresholds, dtype=np.float64), side="right")
        total += float((draws - below).sum()) / draws
    return total


def violations_over_seeds(
    counts: Sequence[int], *, clients: int, confidence: float = 0.95
) -> SeedMean:
    """Number of violations that further runs would have, with the runs as units (Student's t).

    Within a run all clients share a few models, so that they are no independent trials and a
    binomial interval over clients would be far too narrow.

    Args:
        counts: Of each run; at least five.
        clients: In the federation: the most that there can be.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: Fewer than five runs, or more violations than clients.
    """
    if not all(0 <= count <= clients for count in counts):
        raise BadInput(
            f"violations are between 0 and the {clients} clients, got {list(counts)}; count each "
            "client once"
        )
    numbers = [float(count) for count in np.asarray(counts)]
    return over_further_runs(numbers, confidence=confidence, within=(0.0, float(clients)))
