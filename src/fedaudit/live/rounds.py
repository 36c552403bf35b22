"""Rounds of a recorded loop, built from the uploads that pass all checks."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.values import (
    ClientId,
    Model,
    Params,
    Samples,
    common,
    plus,
    scaled,
    weighted_sum,
)
from fedaudit.live.clients import ByClient, number_of
from fedaudit.live.recording import RoundEntry
from fedaudit.live.weights import NOT_FINITE, Shape, Weights, is_array
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.round import Exposed, Round
from fedaudit.observe.tensors import digest_of
from fedaudit.signals.measure import NotFinite

_MAX_AVERAGED = 1e30
"""Largest absolute value whose mean over clients is certainly finite."""
_MAX_WEIGHT = 1e15
"""Largest weight of a client in an average, so that the sum over all clients stays finite."""


Sent = Weights | ByClient[Weights]
"""One model that all clients were sent, or a model for each client."""
Kind = Literal["models", "updates", "gradients"]
"""Kind of uploads."""


class RoundData(NamedTuple):
    """Data of one round; see :meth:`fedaudit.live.recorder.Recorder.round`."""

    sent: Sent
    uploads: Mapping[ClientId, Weights]
    weights: Mapping[ClientId, float]
    after: Weights | None
    kept_out: Collection[ClientId] = ()


class CheckedRound(NamedTuple):
    """Round whose uploads were checked.

    Attributes:
        round: The round without the clients in ``faulty``; None if no upload can be measured.
        faulty: Clients whose upload cannot be measured, with the reason.
        weights: Weights of the uploads in the average.
        sent: Digest of the models that were sent.
        uploads: Digest of the uploads in the round.
        after_is_finite: True if the loop passed a model after the round, with finite values only.
    """

    round: Round | None
    faulty: dict[ClientId, str]
    weights: dict[ClientId, float]
    sent: str
    uploads: str
    after_is_finite: bool = False


class _ClientModels(NamedTuple):
    """Models of one client: received, after training, and the difference of both."""

    base: Model
    local: Model
    update: Params


def round_of_uploads(
    entry: RoundEntry, answers: RoundData, shape: Shape, kind: Kind, sizes: Mapping[ClientId, int]
) -> CheckedRound:
    """Build a round from the uploads that can be measured."""
    bases, faulty = bases_of(answers.sent, sorted(answers.uploads), shape)
    sent = digest_of_models(bases)
    usable, names = dict[ClientId, _ClientModels](), dict[ClientId, tuple[str, ...]]()
    for client, base in bases.items():
        try:
            if answers.weights:
                _refuse_impossible_weight(answers.weights.get(client))
            models = _client_models(base, answers.uploads[client], shape, kind)
            _refuse_not_finite(models)
            names[client] = shape.trainable_names(answers.uploads[client], whose="its upload")
            usable[client] = models
        # Catch any error, since a client may send anything.
        except Exception as error:
            faulty[client] = str(error) or type(error).__name__
    common_names, differing = _most_common_names(names, len(shape.model.params))
    faulty |= differing
    usable = {c: models for c, models in usable.items() if c not in faulty}
    if not usable:
        return CheckedRound(None, faulty, {}, sent, "")
    usable, has_statistics = _with_trained_statistics(usable, shape, kind)
    restricted = {c: _restricted(models, common_names) for c, models in usable.items()}
    uploads = digest_of_models({c: models.local for c, models in restricted.items()})
    weights = answers.weights or _default_weights([*usable], sizes)
    used = {c: 0.0 if c in answers.kept_out else float(weights[c]) for c in usable}
    fractions = _normalised(used)
    after, after_is_finite = next(iter(bases.values())), False
    # If the server rejected all uploads, its model stays the same.
    if any(used.values()):
        after = _mean({c: models.local for c, models in usable.items()}, fractions)
    if answers.after is not None:
        model_after = shape.model_of(answers.after, whose="the model afterwards")
        after_is_finite = is_finite(model_after.params)
        if after_is_finite:
            after = _base_statistics(model_after, shape, has_statistics=has_statistics)
        elif not _can_spoil_mean(usable, faulty):
            raise BadInput(f"the model afterwards has {NOT_FINITE}, and no upload explains it")
    exposed = {c: Exposed(*models) for c, models in restricted.items()}
    round = _round(entry, exposed, fractions, after)
    return CheckedRound(round, faulty, used, sent, uploads, after_is_finite)


def _can_spoil_mean(
    usable: Mapping[ClientId, _ClientModels], faulty: Mapping[ClientId, str]
) -> bool:
    """Return True if an upload can make the mean non-finite."""
    return any(NOT_FINITE in reason for reason in faulty.values()) or any(
        bool((value.abs() > _MAX_AVERAGED).any())
        for models in usable.values()
        for value in models.local.params.values()
    )


def _with_trained_statistics(
    usable: Mapping[ClientId, _ClientModels], shape: Shape, kind: Kind
) -> tuple[dict[ClientId, _ClientModels], bool]:
    """Remove untrained running statistics; also return whether most uploads have trained ones."""
    unsent = shape.unsent
    if not unsent.statistics:
        return dict(usable), True
    locals_ = {client: models.local for client, models in usable.items()}
    for client, local in locals_.items():
        if unsent.are_untrained(local.buffers):
            locals_[client] = unsent.without_statistics(local)
    n_trained = sum(map(unsent.has_statistics, locals_.values()))
    has_statistics = kind == "models" and 2 * n_trained >= len(locals_)
    # Keep one object per distinct model, since clients are compared if they share the object.
    bases = {
        id(models.base): _base_statistics(models.base, shape, has_statistics=has_statistics)
        for models in usable.values()
    }
    trained = {}
    for client, models in usable.items():
        base, local = bases[id(models.base)], locals_[client]
        if kind != "models":
            local = replace(local, buffers=base.buffers)
        trained[client] = models._replace(base=base, local=local)
    return trained, has_statistics


def _base_statistics(model: Model, shape: Shape, *, has_statistics: bool) -> Model:
    """Return the model without running statistics that no client contributed to."""
    unsent, initial = shape.unsent, shape.model.buffers
    if has_statistics or not unsent.has_statistics(model):
        return model
    is_initial = all(torch.equal(model.buffers[name], initial[name]) for name in unsent.statistics)
    if is_initial or unsent.are_untrained(model.buffers):
        return unsent.without_statistics(model)
    return model


def without(
    round: Round, clients: Collection[ClientId], weights: Mapping[ClientId, float]
) -> Round:
    """Return a round as if some clients, but not all, had not answered.

    ``weights`` has the weights of all clients if the model after the round is the mean of uploads.
    Otherwise it is empty.
    """
    exposed = {c: client_exposed for c, client_exposed in round.exposed.items() if c not in clients}
    remaining = {c: weight for c, weight in (weights or round.weights).items() if c in exposed}
    fractions, after = _normalised(remaining), round.after
    if weights and any(remaining.values()):
        locals_ = {c: each.local for c, each in exposed.items() if each.local is not None}
        after = {"global": _mean(locals_, fractions)}
    return replace(round, exposed=exposed, weights=fractions, after=after)


def is_finite(params: Mapping[str, Tensor]) -> bool:
    """Return True if all values are finite."""
    return all(bool(value.isfinite().all()) for value in params.values())


def _refuse_not_finite(models: _ClientModels) -> None:
    """Raise if an upload, or its difference from the model that was sent, is not finite.

    A buffer that equals the sent one may be non-finite: some masks contain minus infinity.
    """
    local, sent_buffers = models.local, models.base.buffers
    for name, value in (*local.params.items(), *models.update.items(), *local.buffers.items()):
        if not bool(value.isfinite().all()):
            is_shared_buffer = name in local.buffers and name in sent_buffers
            if not is_shared_buffer or not torch.equal(value, sent_buffers[name]):
                raise BadInput(f"its upload has {name!r} with {NOT_FINITE}")


def digest_of_models(models: Mapping[ClientId, Model]) -> str:
    """Return the SHA-256 of the clients' models, or of their model if all have the same."""
    digests = {id(model): digest_of(model.tensors(), {}) for model in models.values()}
    if len(digests) == 1:
        return next(iter(digests.values()))
    listed = [(client, digests[id(model)]) for client, model in sorted(models.items())]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _most_common_names(
    names_of: Mapping[ClientId, tuple[str, ...]], n_trained: int
) -> tuple[tuple[str, ...], dict[ClientId, str]]:
    """Return the names of parameters that most uploads have, and the faults of other uploads."""
    if not names_of:
        return (), {}
    counts = Counter(names_of.values())
    # Break ties by size and names, so that the order of clients does not matter.
    most_common = max(counts, key=lambda names: (counts[names], len(names), names))
    return most_common, {
        client: (
            f"its upload holds another part of the model ({len(names)} of its {n_trained} trained "
            f"parameters) than most uploads ({len(most_common)}), so they cannot be averaged; have "
            "all clients send the same names"
        )
        for client, names in names_of.items()
        if names != most_common
    }


def _restricted(models: _ClientModels, names: tuple[str, ...]) -> _ClientModels:
    """Restrict models and update to some parameters; all other parameters become buffers."""
    if len(names) == len(models.update):
        return models

    def restrict(model: Model) -> Model:
        params = {name: model.params[name] for name in names}
        others = {name: value for name, value in model.params.items() if name not in params}
        return Model(model.architecture, params, {**model.buffers, **others})

    update = {name: models.update[name] for name in names}
    return _ClientModels(restrict(models.base), restrict(models.local), update)


def round_of_globals(
    entry: RoundEntry, base: Model, after: Model, client: ClientId, shape: Shape
) -> Round:
    """Build a round from the global models before and after it; ``client`` represents all."""
    if shape.unsent.are_untrained(after.buffers):
        after = shape.unsent.without_statistics(after)
    if not shape.unsent.has_statistics(after):
        base = shape.unsent.without_statistics(base)
    change = plus(after.params, base.params, -1.0)
    return _round(entry, {client: Exposed(base, after, change)}, {client: 1.0}, after)


def _round(
    entry: RoundEntry,
    exposed: Mapping[ClientId, Exposed],
    fractions: Mapping[ClientId, float],
    after: Model,
) -> Round:
    return Round(
        index=entry.round,
        exposed=exposed,
        sent={},
        uploads={},
        weights=fractions,
        asked=entry.asked,
        answered=entry.answered,
        after={"global": after},
    )


def bases_of(
    sent: Sent, clients: Sequence[ClientId], shape: Shape
) -> tuple[dict[ClientId, Model], dict[ClientId, str]]:
    """Return the model that each client was sent, and the faults of clients without a model."""
    # A state dict maps names to arrays; a dictionary of clients maps names to whole models.
    if not (isinstance(sent, Mapping) and sent and not any(map(is_array, sent.values()))):
        return dict.fromkeys(
            clients, finite_model(cast("Weights", sent), shape, "the model sent")
        ), {}
    models, faulty = dict[int, Model](), dict[ClientId, str]()
    bases = dict[ClientId, Model]()
    by_name = {str(client): model for client, model in cast("ByClient[Weights]", sent).items()}
    n_names = Counter(_number_or_none(name) for name in by_name)
    by_number = {_number_or_none(name): model for name, model in by_name.items()}
    for client in clients:
        if n_names[client] != 1:
            number = "two models" if n_names[client] else "no model"
            faulty[client] = f"sent has {number} for it"
            continue
        weights = by_number[client]
        try:
            if id(weights) not in models:
                models[id(weights)] = finite_model(weights, shape, "the model sent to it")
            bases[client] = models[id(weights)]
        except Exception as error:
            faulty[client] = str(error)
    return bases, faulty


def _number_or_none(client: str) -> ClientId | None:
    try:
        return number_of(client)
    except BadInput:
        return None


def finite_model(weights: Weights, shape: Shape, whose: str) -> Model:
    """Return a global model; raise if it is not of the shape, or has non-finite values."""
    model = shape.model_of(weights, whose=whose)
    if not is_finite(model.params):
        raise BadInput(f"{whose} has {NOT_FINITE}")
    return model


def _client_models(base: Model, upload: Weights, shape: Shape, kind: Kind) -> _ClientModels:
    whose = "its upload"
    if kind == "models":
        local = shape.model_of(upload, whose=whose, sent=base)
        return _ClientModels(base, local, plus(local.params, base.params, -1.0))
    update = shape.change_of(upload, whose=whose)
    if kind == "gradients":
        # One step of size 1, since attacks on gradients do not depend on the step size.
        update = scaled(update, -1.0)
    local = Model(base.architecture, plus(base.params, update), base.buffers)
    return _ClientModels(base, local, update)


def _default_weights(
    clients: Sequence[ClientId], sizes: Mapping[ClientId, int]
) -> Mapping[ClientId, float]:
    """Return weights by sizes if all are known, else equal weights."""
    if all(client in sizes for client in clients):
        return {client: float(sizes[client]) for client in clients}
    return dict.fromkeys(clients, 1.0)


def _refuse_impossible_weight(weight: float | None) -> None:
    if weight is None or not 0 <= float(weight) <= _MAX_WEIGHT:
        raise BadInput(
            f"its weight in the average is {weight!r}; pass a finite number of at least 0 for each "
            "client"
        )


def _normalised(weights: Mapping[ClientId, float]) -> dict[ClientId, float]:
    """Return weights that sum to 1; equal weights if all are 0."""
    total = sum(weights.values())
    if not total:
        return dict.fromkeys(weights, 1 / len(weights))
    return {client: weight / total for client, weight in weights.items()}


def _mean(models: Mapping[ClientId, Model], fractions: Mapping[ClientId, float]) -> Model:
    first = next(iter(models.values()))
    weights = [fractions[client] for client in models]
    params = weighted_sum([model.params for model in models.values()], weights)
    buffers = weighted_sum(common([model.buffers for model in models.values()]), weights)
    return Model(first.architecture, params, buffers)


SENT = "sent"
"""Name of the note with the digest of the model that was sent."""

_N_TRIAL_SAMPLES = 2
"""Number of samples on which each client is measured separately after a joint failure."""

MeasureRound: TypeAlias = Callable[[Round, Samples], MeasuredRound]


class MeasuredWithoutFaulty(NamedTuple):
    """Measured round, the round without clients that were left out, and these clients' faults."""

    measured: MeasuredRound
    round: Round
    faulty: dict[ClientId, str]


def measure_without_faulty(
    round: Round, weights: Mapping[ClientId, float], measure: MeasureRound, samples: Samples
) -> MeasuredWithoutFaulty:
    """Measure a round without the clients whose upload cannot be measured.

    After a failure all remaining clients are measured again, since rounding may depend on the
    clients that are measured together. The error is raised if no client, or every client, is at
    fault.
    """
    faulty = dict[ClientId, str]()
    while True:
        try:
            return MeasuredWithoutFaulty(measure(round, samples), round, faulty)
        except Exception as error:
            clients = round.exposed.keys()
            at_fault = error.clients if isinstance(error, NotFinite) else {}
            if not at_fault and len(clients) > 1:
                at_fault = _faults_of_single_clients(round, weights, measure, samples)
            if not at_fault or at_fault.keys() >= clients:
                raise
            faulty |= at_fault
            round = without(round, at_fault.keys(), weights)


def _faults_of_single_clients(
    round: Round, weights: Mapping[ClientId, float], measure: MeasureRound, samples: Samples
) -> dict[ClientId, str]:
    """Measure each client separately, and return the reason for each client that fails."""
    at_fault = dict[ClientId, str]()
    for client in round.exposed:
        others: Collection[ClientId] = round.exposed.keys() - {client}
        try:
            measure(without(round, others, weights), samples.take(slice(_N_TRIAL_SAMPLES)))
        except NotFinite as error:
            at_fault |= error.clients
        except Exception as error:
            at_fault[client] = str(error) or type(error).__name__
    return at_fault
