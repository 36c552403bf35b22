"""Measuring of a round in which the upload of one client cannot be measured."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId, Samples
from fedaudit.live.rounds import without
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.round import Round
from fedaudit.signals.measure import NotFinite

SENT = "sent"
"""Name of the note with the digest of the model that was sent."""

_PROBED = 2
"""Samples on which single clients are tried, once all together could not be measured."""

Measure: TypeAlias = Callable[[Round, Samples], MeasuredRound]


class Sound(NamedTuple):
    """A measured round.

    Attributes:
        measured: Its measurements.
        round: The round that was measured.
        faulty: Clients that were left out, with the reason.
    """

    measured: MeasuredRound
    round: Round
    faulty: dict[ClientId, str]


def measure_sound(
    round: Round, weights: Mapping[ClientId, float], measure: Measure, samples: Samples
) -> Sound:
    """Measure a round without those clients whose upload cannot be measured.

    The others are measured once more, since what goes through a kernel together may share bits:
    their figures are those of a round in which the faulty ones did not answer.

    Args:
        round: As the adversary sees it.
        weights: See :func:`fedaudit.live.rounds.without`.
        measure: Measures a round on samples.
        samples: The audited samples.

    Raises:
        Exception: What ``measure`` raises if no client is at fault, or every one.
    """
    faulty = dict[ClientId, str]()
    while True:
        try:
            return Sound(measure(round, samples), round, faulty)
        except Exception as error:
            clients = round.exposed.keys()
            found = error.clients if isinstance(error, NotFinite) else {}
            if not found and len(clients) > 1:
                found = _faulty_alone(round, weights, measure, samples)
            if not found or found.keys() >= clients:
                raise
            faulty |= found
            round = without(round, found.keys(), weights)


def _faulty_alone(
    round: Round, weights: Mapping[ClientId, float], measure: Measure, samples: Samples
) -> dict[ClientId, str]:
    """Clients that cannot be measured each by itself, with the reason."""
    found = dict[ClientId, str]()
    for client in round.exposed:
        others: Collection[ClientId] = round.exposed.keys() - {client}
        try:
            measure(without(round, others, weights), samples.take(slice(_PROBED)))
        except NotFinite as error:
            found |= error.clients
        except Exception as error:
            found[client] = str(error) or type(error).__name__
    return found


def refuse_all(faulty: Mapping[ClientId, str], names: Mapping[ClientId, str]) -> None:
    """Raise if clients answered and no upload can be measured.

    Raises:
        BadInput: For the reason of the first of them.
    """
    client, reason = next(iter(sorted(faulty.items())))
    called = names.get(client, str(client))
    raise BadInput(f"no upload can be measured; of client {called}: {reason}")
