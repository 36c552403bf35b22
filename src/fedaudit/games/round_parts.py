"""What games in real rounds are made of, and what comes out of them."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.attacks.ami.plant import Planted
from fedaudit.core import Model


class PlayedInRounds(NamedTuple):
    """What happened in each game, and what is known of each target.

    Attributes:
        was_in: Whether the target was in the batch.
        said_in: The verdict: the score is above the server's threshold.
        by_signs: The verdict of the neuron's sign on all records that met a planted model.
        by_target: Whether the neuron fires for the target, where it was in.
        by_others: For how many other records that met a planted model it fires.
        shares: How much of each target's gradient lies in the planted rows.
        distances: How far the target moves the mean score, in standard deviations of its noise,
            where the neuron is silent for all others; NaN where that is not known.
    """

    was_in: Bool[Tensor, " games"]
    said_in: Bool[Tensor, " games"]
    by_signs: Bool[Tensor, " games"]
    by_target: Bool[Tensor, " games"]
    by_others: Int[Tensor, " games"]
    shares: Float[Tensor, " targets"]
    distances: Float[Tensor, " targets"]


class Models(NamedTuple):
    """What clients are sent, in every round.

    Attributes:
        asked: The model with the neurons, for the client that is asked about.
        others: For the other clients of a sum.
    """

    asked: Planted
    others: Model


class Labels(NamedTuple):
    """Classes of records.

    Attributes:
        clients: Of the clients' records.
        servers: Of the server's.
        classes: How many there are.
    """

    clients: Int[Tensor, " clients"]
    servers: Int[Tensor, " servers"]
    classes: int


class Batches(NamedTuple):
    """What the clients of some games hold.

    Attributes:
        features: Of each client's records; the first client may have the target, as its first.
        labels: Of the same.
    """

    features: Float[Tensor, "games clients records features"]
    labels: Int[Tensor, "games clients records"]
