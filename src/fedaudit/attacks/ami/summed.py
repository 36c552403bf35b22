"""Secure aggregation: a server that sees a sum of uploads, and what it sends the other clients."""

from collections.abc import Sequence

from fedaudit.attacks.ami.plant import Planted, silenced
from fedaudit.core import Model, Params
from fedaudit.errors import BadInput
from fedaudit.observe.round import Gradient
from fedaudit.params import weighted_sum


def summed(uploads: Sequence[Gradient]) -> Params:
    """What the server is given of some clients' gradients: their mean, by numbers of samples.

    Unlike the "sum" of :mod:`fedaudit.observe.views`, which is of clients that were sent one
    model: addition does not know that they were not.

    Args:
        uploads: One a client.

    Raises:
        BadInput: There are none, or a client does not say over how many samples its mean is.
    """
    total = sum(upload.samples for upload in uploads)
    if not uploads or not all(upload.samples for upload in uploads):
        raise BadInput(
            "clients' gradients are added up by their numbers of samples: give at least one, each "
            f"with its number; got {[upload.samples for upload in uploads]}"
        )
    shares = [upload.samples / total for upload in uploads]
    return weighted_sum([upload.values for upload in uploads], shares)


def dead(planted: Planted) -> Model:
    """The planted model with its neurons silent for every record: their rows have no gradient.

    Sent to everybody but one client, it leaves in the planted rows of a sum what that client
    sent, as if nothing had been added up.

    Args:
        planted: What the one client is sent.

    Source: Pasquini, Francati and Ateniese 2022 (model inconsistency).
    """
    return silenced(planted.model, planted.places)
