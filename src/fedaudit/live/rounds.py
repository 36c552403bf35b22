"""Rounds of somebody's federation, made of what its loop has in hand."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Literal, NamedTuple, cast

from fedaudit.core.errors import BadInput
from fedaudit.core.params import plus, scaled, weighted_sum
from fedaudit.core.values import ClientId, Model
from fedaudit.live.recording import ByClient, RoundEntry, number_of
from fedaudit.live.weights import Shape, Weights, is_array
from fedaudit.observe.round import Exposed, Round

Sent = Weights | ByClient[Weights]
Kind = Literal["models", "updates", "gradients"]


class Answers(NamedTuple):
    """A loop's data of one round.

    Attributes:
        sent: The global model that clients were sent; by client where they differ.
        uploads: What came back of each client.
        weights: Shares of clients in the average; empty for the usual ones.
        after: The global model afterwards; None for the mean of the uploads.
    """

    sent: Sent
    uploads: Mapping[ClientId, Weights]
    weights: Mapping[ClientId, float]
    after: Weights | None


def round_of_uploads(
    entry: RoundEntry, given: Answers, shape: Shape, kind: Kind, sizes: Mapping[ClientId, int]
) -> Round:
    """A round of which the uploads are known.

    Args:
        told: Its number, and who was asked and answered.
        given: What the loop has of it.
        shape: What parameters are like.
        kind: Of uploads.
        sizes: Training samples of clients, for their shares.

    Raises:
        BadInput: Something does not fit the model, or weights are none.
    """
    clients = sorted(given.uploads)
    bases = _bases(given.sent, clients, shape)
    exposed = {c: _exposed(bases[c], given.uploads[c], shape, kind, c) for c in clients}
    shares = _shares(clients, given.weights or _usual(clients, sizes))
    if given.after is None:
        after = _mean(exposed, shares)
    else:
        after = shape.model_of(given.after, whose="after")
    return _round(entry, exposed, shares, after)


def round_of_globals(entry: RoundEntry, base: Model, after: Model, client: ClientId) -> Round:
    """A round of which the global models before and after it are known, and no uploads.

    Args:
        told: Its number.
        base: The model that was sent.
        after: The one that followed.
        client: That stands for all; views without uploads forget it.
    """
    change = plus(after.params, base.params, -1.0)
    return _round(entry, {client: Exposed(base, after, change)}, {client: 1.0}, after)


def _round(
    entry: RoundEntry,
    exposed: Mapping[ClientId, Exposed],
    shares: Mapping[ClientId, float],
    after: Model,
) -> Round:
    return Round(
        index=entry.round,
        exposed=exposed,
        sent={},
        uploads={},
        weights=shares,
        asked=entry.asked,
        answered=entry.answered,
        after={"global": after},
    )


def _bases(sent: Sent, clients: Sequence[ClientId], shape: Shape) -> dict[ClientId, Model]:
    # Names of parameters have arrays; clients, which may have names too, have whole models.
    if isinstance(sent, Mapping) and sent and not any(map(is_array, sent.values())):
        by_client = cast("ByClient[Weights]", sent)
        single = {number_of(client): weights for client, weights in by_client.items()}
        missing = sorted(set(clients) - set(single))
        if missing:
            raise BadInput(f"sent names no model for client {missing[0]}, which answered")
        return {
            c: shape.model_of(single[c], whose=f"the model sent to client {c}") for c in clients
        }
    return dict.fromkeys(clients, shape.model_of(cast("Weights", sent), whose="the model sent"))


def _exposed(base: Model, upload: Weights, shape: Shape, kind: Kind, client: ClientId) -> Exposed:
    whose = f"client {client}'s upload"
    if kind == "models":
        local = shape.model_of(upload, whose=whose)
        return Exposed(base, local, plus(local.params, base.params, -1.0))
    change = shape.change_of(upload, whose=whose)
    if kind == "gradients":
        # One step of size one; attacks on gradients do not depend on its size.
        change = scaled(change, -1.0)
    return Exposed(base, Model(base.architecture, plus(base.params, change), base.buffers), change)


def _usual(clients: Sequence[ClientId], sizes: Mapping[ClientId, int]) -> Mapping[ClientId, float]:
    """In proportion to sizes where all are known, and equal else."""
    if all(client in sizes for client in clients):
        return {client: float(sizes[client]) for client in clients}
    return dict.fromkeys(clients, 1.0)


def _shares(
    clients: Sequence[ClientId], weights: Mapping[ClientId, float]
) -> dict[ClientId, float]:
    known = [float(weights.get(client, -1)) for client in clients]
    if not (0 < sum(known) < inf and min(known) >= 0):
        raise BadInput(
            f"weights are to be a finite number of at least 0 for each client that answered, not "
            f"all 0; got {dict(weights)}"
        )
    return {client: weight / sum(known) for client, weight in zip(clients, known, strict=True)}


def _mean(exposed: Mapping[ClientId, Exposed], shares: Mapping[ClientId, float]) -> Model:
    """The weighted mean of the clients' models, as federated averaging takes it."""
    locals_ = {client: one.local for client, one in exposed.items() if one.local is not None}
    first = next(iter(locals_.values()))
    weights = [shares[client] for client in locals_]
    params = weighted_sum([one.params for one in locals_.values()], weights)
    buffers = weighted_sum([one.buffers for one in locals_.values()], weights)
    return Model(first.architecture, params, buffers)
