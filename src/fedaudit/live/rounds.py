"""Rounds of a recorded loop, built from the uploads that pass all checks."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.values import (
    ClientId,
    Model,
    Params,
    Samples,
    add_scaled,
    restrict_to_common_names,
    scaled,
    weighted_sum,
)
from fedaudit.live.clients import ByClient, number_of
from fedaudit.live.digests import digest_of_models, digests_of_globals
from fedaudit.live.recording import GlobalModel, RoundEntry
from fedaudit.live.weights import NOT_FINITE, ModelLayout, Weights, is_array
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.signals.measure import NotFinite

_MAX_AVERAGED = 1e30
"""Largest absolute value for which a mean over clients cannot overflow."""
_MAX_WEIGHT = 1e15
"""Largest weight of a client in an average, so that the sum over all clients stays finite."""

Sent = Weights | ByClient[Weights]
"""One model that all clients were sent, or a model for each client."""
UploadKind = Literal["models", "updates", "gradients"]


class RoundData(NamedTuple):
    """Models and weights of one round; see :meth:`fedaudit.live.recorder.Recorder.round`."""

    sent: Sent
    uploads: Mapping[ClientId, Weights]
    weights: Mapping[ClientId, float]
    after: Weights | None
    rejected: Collection[ClientId] = ()


class CheckedRound(NamedTuple):
    """Round whose uploads were checked.

    Attributes:
        round: The round without the excluded clients; None if no upload can be measured.
        excluded: Clients whose upload cannot be measured, with the reason for each.
        weights: Weights of the uploads in the average.
        sent: Digest of the models that were sent.
        uploads: Digest of the uploads in the round.
        models: Digests of the global models; see
            :func:`fedaudit.live.digests.digests_of_globals`.
        after_is_finite: True if the loop passed a model after the round, with finite values only.
    """

    round: Round | None
    excluded: dict[ClientId, str]
    weights: dict[ClientId, float]
    sent: str
    uploads: str
    models: Mapping[GlobalModel, str] = MappingProxyType({})
    after_is_finite: bool = False


class _ClientModels(NamedTuple):
    """Models of one client: received, after training, and the difference of both."""

    base: Model
    local: Model
    update: Params


def round_of_uploads(
    entry: RoundEntry,
    data: RoundData,
    layout: ModelLayout,
    kind: UploadKind,
    sizes: Mapping[ClientId, int],
) -> CheckedRound:
    """Build a round from the uploads that can be measured."""
    bases, excluded = bases_of(data.sent, sorted(data.uploads), layout)
    sent = digest_of_models(bases)
    valid, names = dict[ClientId, _ClientModels](), dict[ClientId, tuple[str, ...]]()
    for client, base in bases.items():
        upload = data.uploads[client]
        try:
            if data.weights:
                _require_weight(data.weights.get(client))
            models = _client_models(base, upload, layout, kind)
            _raise_if_not_finite(models)
            names[client] = layout.trainable_names(upload, subject="its upload")
            valid[client] = models
        # Catch any error, since a client may send anything.
        except Exception as error:
            excluded[client] = str(error) or type(error).__name__
    common_names, differing = _most_common_names(names, len(layout.model.params))
    excluded |= differing
    valid = {client: models for client, models in valid.items() if client not in excluded}
    if not valid:
        return CheckedRound(None, excluded, {}, sent, "")
    valid, has_statistics = _with_trained_statistics(valid, layout, kind)
    restricted = {client: _restrict(models, common_names) for client, models in valid.items()}
    uploads = digest_of_models({client: models.local for client, models in restricted.items()})
    all_weights = data.weights or _default_weights([*valid], sizes)
    weights = {c: 0.0 if c in data.rejected else float(all_weights[c]) for c in valid}
    fractions = _normalise(weights)
    # If the server rejected all uploads, its model stays the same.
    after = next(iter(bases.values()))
    if any(weights.values()):
        after = _mean({client: models.local for client, models in valid.items()}, fractions)
    finite_after = None
    if data.after is not None:
        model_after = layout.model_of(data.after, subject="the model afterwards")
        if is_finite(model_after.params):
            finite_after = model_after
            after = _base_statistics(model_after, layout, has_statistics=has_statistics)
        elif not _can_spoil_mean(valid, excluded):
            raise BadInput(f"the model afterwards has {NOT_FINITE}, and no upload explains it")
    observed = {client: ObservedModels(*models) for client, models in restricted.items()}
    round = _round(entry, observed, fractions, after)
    digests = digests_of_globals(layout, bases.values(), finite_after)
    return CheckedRound(
        round, excluded, weights, sent, uploads, digests, after_is_finite=finite_after is not None
    )


def _can_spoil_mean(
    valid: Mapping[ClientId, _ClientModels], excluded: Mapping[ClientId, str]
) -> bool:
    """Return True if an upload can make the mean non-finite."""
    if any(NOT_FINITE in reason for reason in excluded.values()):
        return True
    params = (value for models in valid.values() for value in models.local.params.values())
    return any(bool((value.abs() > _MAX_AVERAGED).any()) for value in params)


def _with_trained_statistics(
    clients: Mapping[ClientId, _ClientModels], layout: ModelLayout, kind: UploadKind
) -> tuple[dict[ClientId, _ClientModels], bool]:
    """Remove untrained running statistics, and return whether most uploads have trained ones."""
    unsent = layout.unsent
    if not unsent.statistics:
        return dict(clients), True
    locals_ = {client: models.local for client, models in clients.items()}
    for client, local in locals_.items():
        if unsent.are_statistics_initial(local.buffers):
            locals_[client] = unsent.without_statistics(local)
    n_trained = sum(map(unsent.has_statistics, locals_.values()))
    has_statistics = kind == "models" and 2 * n_trained >= len(locals_)
    # Keep one object per distinct model, since clients are compared if they share the object.
    bases = {
        id(models.base): _base_statistics(models.base, layout, has_statistics=has_statistics)
        for models in clients.values()
    }
    trained = {}
    for client, models in clients.items():
        base, local = bases[id(models.base)], locals_[client]
        if kind != "models":
            local = replace(local, buffers=base.buffers)
        trained[client] = models._replace(base=base, local=local)
    return trained, has_statistics


def _base_statistics(model: Model, layout: ModelLayout, *, has_statistics: bool) -> Model:
    """Return the model without running statistics that no client contributed to."""
    unsent, initial = layout.unsent, layout.model.buffers
    if has_statistics or not unsent.has_statistics(model):
        return model
    are_unchanged = all(torch.equal(model.buffers[n], initial[n]) for n in unsent.statistics)
    if are_unchanged or unsent.are_statistics_initial(model.buffers):
        return unsent.without_statistics(model)
    return model


def without_clients(
    round: Round, clients: Collection[ClientId], weights: Mapping[ClientId, float]
) -> Round:
    """Return a round as if some clients, but not all, had not answered.

    ``weights`` has the weights of all clients if the model after the round is the mean of uploads.
    Otherwise it is empty.
    """
    observed = {
        client: models for client, models in round.observed.items() if client not in clients
    }
    remaining = {c: weight for c, weight in (weights or round.weights).items() if c in observed}
    fractions, after = _normalise(remaining), round.after
    if weights and any(remaining.values()):
        locals_ = {c: models.local for c, models in observed.items() if models.local is not None}
        after = {"global": _mean(locals_, fractions)}
    return replace(round, observed=observed, weights=fractions, after=after)


def is_finite(params: Mapping[str, Tensor]) -> bool:
    """Return True if all values are finite."""
    return all(bool(value.isfinite().all()) for value in params.values())


def _raise_if_not_finite(models: _ClientModels) -> None:
    """Raise if an upload, or its difference from the model that was sent, is not finite.

    A buffer that equals the sent one may be non-finite: some masks contain minus infinity.
    """
    local, sent_buffers = models.local, models.base.buffers
    for name, value in (*local.params.items(), *models.update.items(), *local.buffers.items()):
        if bool(value.isfinite().all()):
            continue
        is_shared_buffer = name in local.buffers and name in sent_buffers
        if not is_shared_buffer or not torch.equal(value, sent_buffers[name]):
            raise BadInput(f"its upload has {name!r} with {NOT_FINITE}")


def _most_common_names(
    names_of: Mapping[ClientId, tuple[str, ...]], n_trained: int
) -> tuple[tuple[str, ...], dict[ClientId, str]]:
    """Return the most common parameter names, and why uploads with other names are excluded."""
    if not names_of:
        return (), {}
    counts = Counter(names_of.values())
    # Break ties by size and names, so that the order of clients does not matter.
    most_common = max(counts, key=lambda names: (counts[names], len(names), names))
    differing = {
        client: (
            f"its upload holds another part of the model ({len(names)} of its {n_trained} trained "
            f"parameters) than most uploads ({len(most_common)}), so they cannot be averaged; have "
            "all clients send the same names"
        )
        for client, names in names_of.items()
        if names != most_common
    }
    return most_common, differing


def _restrict(models: _ClientModels, names: tuple[str, ...]) -> _ClientModels:
    """Restrict models and update to some parameters; the remaining parameters become buffers."""
    if len(names) == len(models.update):
        return models

    def restrict(model: Model) -> Model:
        params = {name: model.params[name] for name in names}
        remaining = {name: value for name, value in model.params.items() if name not in params}
        return Model(model.architecture, params, {**model.buffers, **remaining})

    update = {name: models.update[name] for name in names}
    return _ClientModels(restrict(models.base), restrict(models.local), update)


def round_of_globals(
    entry: RoundEntry, base: Model, after: Model, client: ClientId, layout: ModelLayout
) -> Round:
    """Build a round from the global models before and after it; ``client`` represents all."""
    if layout.unsent.are_statistics_initial(after.buffers):
        after = layout.unsent.without_statistics(after)
    if not layout.unsent.has_statistics(after):
        base = layout.unsent.without_statistics(base)
    change = add_scaled(after.params, base.params, -1.0)
    return _round(entry, {client: ObservedModels(base, after, change)}, {client: 1.0}, after)


def _round(
    entry: RoundEntry,
    observed: Mapping[ClientId, ObservedModels],
    fractions: Mapping[ClientId, float],
    after: Model,
) -> Round:
    return Round(
        index=entry.round,
        observed=observed,
        sent={},
        uploads={},
        weights=fractions,
        selected=entry.selected,
        answered=entry.answered,
        after={"global": after},
    )


def bases_of(
    sent: Sent, clients: Sequence[ClientId], layout: ModelLayout
) -> tuple[dict[ClientId, Model], dict[ClientId, str]]:
    """Return the model that each client was sent, and a reason for each client without a model."""
    # A state dict maps names to arrays; a dictionary of clients maps names to whole models.
    has_clients = isinstance(sent, Mapping) and sent and not any(map(is_array, sent.values()))
    if not has_clients:
        model = finite_model(cast("Weights", sent), layout, "the model sent")
        return dict.fromkeys(clients, model), {}
    weights_of = dict[ClientId | None, list[Weights]]()
    for ref, weights in cast("ByClient[Weights]", sent).items():
        weights_of.setdefault(_number_or_none(str(ref)), []).append(weights)
    models, excluded = dict[int, Model](), dict[ClientId, str]()
    bases = dict[ClientId, Model]()
    for client in clients:
        candidates = weights_of.get(client, [])
        if len(candidates) != 1:
            excluded[client] = (
                f"the argument sent has {'several models' if candidates else 'no model'} for it"
            )
            continue
        weights = candidates[0]
        try:
            # Create one model for each object, since clients with the same model are compared.
            if id(weights) not in models:
                models[id(weights)] = finite_model(weights, layout, "the model sent to it")
            bases[client] = models[id(weights)]
        except Exception as error:
            excluded[client] = str(error)
    return bases, excluded


def _number_or_none(client: str) -> ClientId | None:
    try:
        return number_of(client)
    except BadInput:
        return None


def finite_model(weights: Weights, layout: ModelLayout, subject: str) -> Model:
    """Return a global model; raise if it has another layout, or non-finite values."""
    model = layout.model_of(weights, subject=subject)
    if not is_finite(model.params):
        raise BadInput(f"{subject} has {NOT_FINITE}")
    return model


def _client_models(
    base: Model, upload: Weights, layout: ModelLayout, kind: UploadKind
) -> _ClientModels:
    subject = "its upload"
    if kind == "models":
        local = layout.model_of(upload, subject=subject, sent=base)
        return _ClientModels(base, local, add_scaled(local.params, base.params, -1.0))
    update = layout.change_of(upload, subject=subject)
    if kind == "gradients":
        # One step of size 1, since attacks on gradients do not depend on the step size.
        update = scaled(update, -1.0)
    local = Model(base.architecture, add_scaled(base.params, update), base.buffers)
    return _ClientModels(base, local, update)


def _default_weights(
    clients: Sequence[ClientId], sizes: Mapping[ClientId, int]
) -> Mapping[ClientId, float]:
    """Return sizes as weights if all are known, else equal weights."""
    if all(client in sizes for client in clients):
        return {client: float(sizes[client]) for client in clients}
    return dict.fromkeys(clients, 1.0)


def _require_weight(weight: float | None) -> None:
    if weight is None or not 0 <= float(weight) <= _MAX_WEIGHT:
        raise BadInput(
            f"its weight in the average is {weight!r}; pass a finite number of at least 0 for each "
            "client"
        )


def _normalise(weights: Mapping[ClientId, float]) -> dict[ClientId, float]:
    """Return weights that sum to 1; equal weights if all are 0."""
    total = sum(weights.values())
    if not total:
        return dict.fromkeys(weights, 1 / len(weights))
    return {client: weight / total for client, weight in weights.items()}


def _mean(models: Mapping[ClientId, Model], fractions: Mapping[ClientId, float]) -> Model:
    first = next(iter(models.values()))
    weights = [fractions[client] for client in models]
    params = weighted_sum([model.params for model in models.values()], weights)
    buffers = weighted_sum(
        restrict_to_common_names([model.buffers for model in models.values()]), weights
    )
    return Model(first.architecture, params, buffers)


SENT_NOTE = "sent"
"""Key of the note with the digest of the model that was sent."""

_N_TRIAL_SAMPLES = 2
"""Number of samples on which each client is measured separately after a joint failure."""

MeasureRound: TypeAlias = Callable[[Round, Samples], MeasuredRound]


class ValidMeasurement(NamedTuple):
    """Measurement of the clients whose upload can be measured.

    Attributes:
        measured: The signals.
        round: The round without the excluded clients.
        excluded: Clients whose upload cannot be measured, with the reason for each.
    """

    measured: MeasuredRound
    round: Round
    excluded: dict[ClientId, str]


def measure_valid_clients(
    round: Round, weights: Mapping[ClientId, float], measure: MeasureRound, samples: Samples
) -> ValidMeasurement:
    """Measure a round without the clients whose upload cannot be measured.

    After a failure all remaining clients are measured again, since rounding may depend on the
    clients that are measured together. The error is raised if it has no single client as its cause,
    or if every client fails.
    """
    excluded = dict[ClientId, str]()
    while True:
        try:
            return ValidMeasurement(measure(round, samples), round, excluded)
        except Exception as error:
            clients = round.observed.keys()
            failed = error.clients if isinstance(error, NotFinite) else {}
            if not failed and len(clients) > 1:
                failed = _clients_that_fail(round, weights, measure, samples)
            if not failed or failed.keys() >= clients:
                raise
            excluded |= failed
            round = without_clients(round, failed.keys(), weights)


def _clients_that_fail(
    round: Round, weights: Mapping[ClientId, float], measure: MeasureRound, samples: Samples
) -> dict[ClientId, str]:
    """Measure each client separately, and return the reason for each client that fails."""
    failed = dict[ClientId, str]()
    for client in round.observed:
        other_clients: Collection[ClientId] = round.observed.keys() - {client}
        try:
            measure(
                without_clients(round, other_clients, weights),
                samples.take(slice(_N_TRIAL_SAMPLES)),
            )
        except NotFinite as error:
            failed |= error.clients
        except Exception as error:
            failed[client] = str(error) or type(error).__name__
    return failed
