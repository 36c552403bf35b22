"""Rounds of other people's loops: each client's upload is judged, and measured, by itself."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId, Model, Samples, common, plus, scaled, weighted_sum
from fedaudit.live.clients import ByClient, number_of
from fedaudit.live.recording import RoundEntry
from fedaudit.live.weights import NOT_FINITE, Shape, Weights, is_array
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.round import Exposed, Round
from fedaudit.observe.tensors import digest_of
from fedaudit.signals.measure import NotFinite

_LARGEST_AVERAGED = 1e30
_HEAVIEST = 1e15
"""Weight of a client in an average; a sum of the weights of all clients is still finite."""


Sent = Weights | ByClient[Weights]
Kind = Literal["models", "updates", "gradients"]


class Answers(NamedTuple):
    """A loop's data of one round.

    Attributes:
        sent: The global model that clients were sent; by client where they differ.
        uploads: What came back of each client.
        weights: Shares of clients in the average; empty for the usual ones.
        after: The global model afterwards; None for the mean of the uploads.
        kept_out: Clients whose upload the server kept out of the average.
    """

    sent: Sent
    uploads: Mapping[ClientId, Weights]
    weights: Mapping[ClientId, float]
    after: Weights | None
    kept_out: Collection[ClientId] = ()


class Heard(NamedTuple):
    """A round of which the uploads are known.

    Attributes:
        round: Without the clients in ``faulty``; None if no upload can be measured.
        faulty: Clients whose upload cannot be measured, with the reason.
        weights: Of the uploads in the round, in the average.
        sent: Digest of the models that were sent.
        uploads: Digest of the uploads in the round.
        after_is_finite: True if the loop has given a model afterwards that has finite values only.
    """

    round: Round | None
    faulty: dict[ClientId, str]
    weights: dict[ClientId, float]
    sent: str
    uploads: str
    after_is_finite: bool = False


def round_of_uploads(
    entry: RoundEntry, given: Answers, shape: Shape, kind: Kind, sizes: Mapping[ClientId, int]
) -> Heard:
    """Return a round of which the uploads are known; each upload is judged by itself.

    Raises:
        BadInput: The model that was sent, or the one afterwards, does not fit the architecture, or
            has values that are not finite although those of all uploads are.
    """
    bases, faulty = bases_of(given.sent, sorted(given.uploads), shape)
    sent = digest_of_models(bases)
    whole, held = dict[ClientId, Exposed](), dict[ClientId, tuple[str, ...]]()
    for client, base in bases.items():
        try:
            if given.weights:
                _refuse_impossible_weight(given.weights.get(client))
            one = _exposed(base, given.uploads[client], shape, kind)
            _refuse_not_finite(one)
            held[client] = shape.moved(given.uploads[client], whose="its upload")
            whole[client] = one
        # Whatever it is: a client may send what it wants.
        except Exception as error:
            faulty[client] = str(error) or type(error).__name__
    moved, others = _usual_part(held, len(shape.model.params))
    faulty |= others
    whole = {c: one for c, one in whole.items() if c not in faulty}
    if not whole:
        return Heard(None, faulty, {}, sent, "")
    whole, carried = _trained_statistics(whole, shape, kind)
    exposed = {c: _of_part(one, moved) for c, one in whole.items()}
    uploads = digest_of_models({c: one.local for c, one in exposed.items() if one.local})
    weights = given.weights or _usual_weights([*whole], sizes)
    used = {c: 0.0 if c in given.kept_out else float(weights[c]) for c in whole}
    shares = _shares(used)
    # Where the server kept all uploads out, its model stays as it was.
    after = _mean(whole, shares) if any(used.values()) else next(iter(bases.values()))
    is_given = False
    if given.after is not None:
        known = shape.model_of(given.after, whose="the model afterwards")
        is_given = is_finite(known.params)
        if is_given:
            after = _base_statistics(known, shape, carried=carried)
        elif not _spoils_mean(whole, faulty):
            raise BadInput(f"the model afterwards has {NOT_FINITE}, and no upload explains it")
    return Heard(_round(entry, exposed, shares, after), faulty, used, sent, uploads, is_given)


def _spoils_mean(whole: Mapping[ClientId, Exposed], faulty: Mapping[ClientId, str]) -> bool:
    return any(NOT_FINITE in reason for reason in faulty.values()) or any(
        bool((value.abs() > _LARGEST_AVERAGED).any())
        for one in whole.values()
        if one.local is not None
        for value in one.local.params.values()
    )


def _trained_statistics(
    whole: Mapping[ClientId, Exposed], shape: Shape, kind: Kind
) -> tuple[dict[ClientId, Exposed], bool]:
    """Take away running statistics that are nobody's, and say whether uploads carry them.

    What is left out is estimated where the round is measured. Each client is judged by itself.
    """
    unsent = shape.unsent
    if not unsent.statistics:
        return dict(whole), True
    locals_ = {
        client: None
        if one.local is None
        else unsent.without_statistics(one.local)
        if unsent.are_untrained(one.local.buffers)
        else one.local
        for client, one in whole.items()
    }
    with_them = [m is not None and unsent.has_statistics(m) for m in locals_.values()]
    carried = kind == "models" and 2 * sum(with_them) >= len(with_them)
    bases = {
        id(one.base): _base_statistics(one.base, shape, carried=carried)
        for one in whole.values()
        if one.base is not None
    }
    found = {}
    for client, one in whole.items():
        base, local = bases.get(id(one.base)), locals_[client]
        if kind != "models" and base is not None and local is not None:
            local = replace(local, buffers=base.buffers)
        found[client] = replace(one, base=base, local=local)
    return found, carried


def _base_statistics(model: Model, shape: Shape, *, carried: bool) -> Model:
    """The model without running statistics that no client can have had a part in."""
    unsent, own = shape.unsent, shape.model.buffers
    if carried or not unsent.has_statistics(model):
        return model
    untouched = all(torch.equal(model.buffers[name], own[name]) for name in unsent.statistics)
    if untouched or unsent.are_untrained(model.buffers):
        return unsent.without_statistics(model)
    return model


def without(
    round: Round, clients: Collection[ClientId], weights: Mapping[ClientId, float]
) -> Round:
    """Return a round without some clients, as if they had not answered.

    Args:
        round: Of uploads.
        clients: To be left out; not all of its clients.
        weights: Of all clients, where the model afterwards is the mean of the uploads; empty if the
            loop has given that model.
    """
    exposed = {c: one for c, one in round.exposed.items() if c not in clients}
    left = {c: share for c, share in (weights or round.weights).items() if c in exposed}
    shares = _shares(left)
    after = {"global": _mean(exposed, shares)} if any(left.values()) and weights else round.after
    return replace(round, exposed=exposed, weights=shares, after=after)


def is_finite(params: Mapping[str, Tensor]) -> bool:
    """True if all values are finite numbers."""
    return all(bool(value.isfinite().all()) for value in params.values())


def _refuse_not_finite(one: Exposed) -> None:
    """Raise if an upload, or its difference from the model that was sent, is not finite.

    A buffer that is as it was sent may be so: some masks hold minus infinity.
    """
    local, update = one.local, one.update
    assert one.base is not None
    assert local is not None
    known = one.base.buffers
    for name, value in (*local.params.items(), *local.buffers.items(), *(update or {}).items()):
        if bool(value.isfinite().all()):
            continue
        same = name in local.buffers and name in known and torch.equal(value, known[name])
        if not same:
            raise BadInput(f"its upload has {name!r} with {NOT_FINITE}")


def digest_of_models(models: Mapping[ClientId, Model]) -> str:
    """SHA-256 over the models of clients; of one model if all have the same."""
    digests = {id(one): digest_of(one.tensors(), {}) for one in models.values()}
    if len(digests) == 1:
        return next(iter(digests.values()))
    listed = [(client, digests[id(one)]) for client, one in sorted(models.items())]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _usual_part(
    held: Mapping[ClientId, tuple[str, ...]], total: int
) -> tuple[tuple[str, ...], dict[ClientId, str]]:
    """The trainable parameters that most uploads of a round hold, and clients that hold others."""
    if not held:
        return (), {}
    counts = Counter(held.values())
    # Of as many, the larger part: then no order of clients decides.
    usual = max(counts, key=lambda names: (counts[names], len(names), names))
    return usual, {
        client: (
            f"its upload holds another part of the model ({len(names)} of its {total} trained "
            f"parameters) than those of most clients ({len(usual)}), and they cannot be averaged; "
            "have all clients send the same names"
        )
        for client, names in held.items()
        if names != usual
    }


def _of_part(whole: Exposed, moved: tuple[str, ...]) -> Exposed:
    """The exposed part of the parameters that moved; the others stand beside them, as frozen."""
    if whole.update is None or len(moved) == len(whole.update):
        return whole
    base, local = (_part(one, moved) for one in (whole.base, whole.local))
    return Exposed(base, local, {name: whole.update[name] for name in moved})


def _part(model: Model | None, moved: tuple[str, ...]) -> Model | None:
    if model is None:
        return None
    own = {name: model.params[name] for name in moved}
    rest = {name: value for name, value in model.params.items() if name not in own}
    return Model(model.architecture, own, {**model.buffers, **rest})


def round_of_globals(
    entry: RoundEntry, base: Model, after: Model, client: ClientId, shape: Shape
) -> Round:
    """Return a round of which only the global models before and after it are known.

    The client stands for all; views without uploads forget it.
    """
    if shape.unsent.are_untrained(after.buffers):
        after = shape.unsent.without_statistics(after)
    if not shape.unsent.has_statistics(after):
        base = shape.unsent.without_statistics(base)
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


def bases_of(
    sent: Sent, clients: Sequence[ClientId], shape: Shape
) -> tuple[dict[ClientId, Model], dict[ClientId, str]]:
    """Return the model that each client was sent, and clients of whom it is not known, with why."""
    # Names of parameters have arrays; clients, which may have names too, have whole models.
    if not (isinstance(sent, Mapping) and sent and not any(map(is_array, sent.values()))):
        return dict.fromkeys(
            clients, finite_model(cast("Weights", sent), shape, "the model sent")
        ), {}
    models, faulty = dict[int, Model](), dict[ClientId, str]()
    found = dict[ClientId, Model]()
    by_client = {str(client): one for client, one in cast("ByClient[Weights]", sent).items()}
    spellings = Counter(_number_or_none(client) for client in by_client)
    numbered = {_number_or_none(client): one for client, one in by_client.items()}
    for client in clients:
        if spellings[client] > 1:
            faulty[client] = "sent names it in two spellings"
            continue
        if client not in numbered:
            faulty[client] = "sent names no model for it"
            continue
        given = numbered[client]
        try:
            if id(given) not in models:
                models[id(given)] = finite_model(given, shape, "the model sent to it")
            found[client] = models[id(given)]
        except Exception as error:
            faulty[client] = str(error)
    return found, faulty


def _number_or_none(client: str) -> ClientId | None:
    try:
        return number_of(client)
    except BadInput:
        return None


def finite_model(weights: Weights, shape: Shape, whose: str) -> Model:
    """Return a global model; raise if it does not fit, or has values that are not finite."""
    model = shape.model_of(weights, whose=whose)
    if not is_finite(model.params):
        raise BadInput(f"{whose} has {NOT_FINITE}")
    return model


def _exposed(base: Model, upload: Weights, shape: Shape, kind: Kind) -> Exposed:
    whose = "its upload"
    if kind == "models":
        local = shape.model_of(upload, whose=whose, sent=base)
        return Exposed(base, local, plus(local.params, base.params, -1.0))
    change = shape.change_of(upload, whose=whose)
    if kind == "gradients":
        # One step of size one; attacks on gradients do not depend on its size.
        change = scaled(change, -1.0)
    return Exposed(base, Model(base.architecture, plus(base.params, change), base.buffers), change)


def _usual_weights(
    clients: Sequence[ClientId], sizes: Mapping[ClientId, int]
) -> Mapping[ClientId, float]:
    """In proportion to sizes where all are known, and equal else."""
    if all(client in sizes for client in clients):
        return {client: float(sizes[client]) for client in clients}
    return dict.fromkeys(clients, 1.0)


def _refuse_impossible_weight(weight: float | None) -> None:
    if weight is None or not 0 <= float(weight) <= _HEAVIEST:
        raise BadInput(
            f"its weight in the average is {weight!r}; weights are to be a finite number of at "
            "least 0"
        )


def _shares(weights: Mapping[ClientId, float]) -> dict[ClientId, float]:
    """Shares of clients in the average; equal where all have the weight 0."""
    total = sum(weights.values())
    if not total:
        return dict.fromkeys(weights, 1 / len(weights))
    return {client: weight / total for client, weight in weights.items()}


def _mean(exposed: Mapping[ClientId, Exposed], shares: Mapping[ClientId, float]) -> Model:
    locals_ = {client: one.local for client, one in exposed.items() if one.local is not None}
    first = next(iter(locals_.values()))
    weights = [shares[client] for client in locals_]
    params = weighted_sum([one.params for one in locals_.values()], weights)
    buffers = weighted_sum(common([one.buffers for one in locals_.values()]), weights)
    return Model(first.architecture, params, buffers)


SENT = "sent"
"""Name of the note with the digest of the model that was sent."""

_PROBED = 2
"""Samples on which single clients are tried, once all together could not be measured."""

Measure: TypeAlias = Callable[[Round, Samples], MeasuredRound]


class Sound(NamedTuple):
    """A measured round, and clients that were left out of it, with the reason."""

    measured: MeasuredRound
    round: Round
    faulty: dict[ClientId, str]


def measure_sound(
    round: Round, weights: Mapping[ClientId, float], measure: Measure, samples: Samples
) -> Sound:
    """Measure a round without those clients whose upload cannot be measured.

    The others are measured once more, since what goes through a kernel together may share bits:
    their figures are those of a round in which the faulty ones did not answer. What ``measure``
    raises is raised if no client is at fault, or every one.
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
