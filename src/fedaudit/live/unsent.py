"""Parameters and buffers that uploads lack, and estimates of missing running statistics."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedaudit.core.devices import CPU, computing_on
from fedaudit.core.errors import BadInput
from fedaudit.core.modules import in_model_dtype, load_module
from fedaudit.core.seeds import seed_globally, seeded
from fedaudit.core.values import NO_CLIENT, ClientId, Model, Samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.observe.layout import normalisation_layers, trained_statistics
from fedaudit.observe.round import ObservedModels, Round

ESTIMATED_NOTE = "estimated statistics"
"""Key of the note in a measured round that lists layers with estimated running statistics."""

_N_STEP_SAMPLES = 8
"""Number of samples in the training step that shows which buffers change."""

_BATCH_SIZE = 128
_MAX_SAMPLES, _MIN_SAMPLES = 2048, 8
"""Number of samples on which running statistics are estimated."""


class UnsentTensors(NamedTuple):
    """Names of parameters and buffers that uploads may lack.

    Attributes:
        statistics: Running means and variances of normalisation layers that clients train.
        changing: Other buffers that a training step changes.
        untrainable: Parameters without a gradient, which no client changes.
        declared: Parameters and buffers that the user declared as not uploaded.
    """

    statistics: frozenset[str] = frozenset()
    changing: frozenset[str] = frozenset()
    untrainable: frozenset[str] = frozenset()
    declared: frozenset[str] = frozenset()

    def are_statistics_initial(self, buffers: Mapping[str, Tensor]) -> bool:
        """Return True if there are running statistics, and all have their initial values."""
        statistics = [(name, buffers[name]) for name in self.statistics if name in buffers]
        return bool(statistics) and all(
            bool((value == (1 if name.endswith("var") else 0)).all()) for name, value in statistics
        )

    def without_statistics(self, model: Model) -> Model:
        """Return the model without running statistics, which are estimated later."""
        buffers = {n: value for n, value in model.buffers.items() if n not in self.statistics}
        return replace(model, buffers=buffers)

    def has_statistics(self, model: Model) -> bool:
        """Return True if the model has all running statistics."""
        return self.statistics <= model.buffers.keys()


def find_unsent(model: Model, samples: Samples, declared: Collection[str]) -> UnsentTensors:
    """Find the parameters and buffers that uploads may lack.

    One training step shows which buffers change and which parameters have no gradient.
    """
    names = [*model.params, *model.buffers]
    for pattern in declared:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadInput(
                f"not_uploaded has {pattern[:200]!r}, and the model has no such parameter or "
                f"buffer; it has {', '.join(names[:6])} ..."
            )
    module = model.module()
    layers = normalisation_layers(module)
    changed, without_gradient = _train_one_step(model, module, samples)
    layer_buffers = {id(value) for layer in layers.values() for value in layer.buffers()}
    changing = {
        name
        for name, value in module.named_buffers()
        if name in changed and id(value) not in layer_buffers
    }
    return UnsentTensors(
        trained_statistics(module),
        frozenset(changing),
        frozenset(without_gradient),
        frozenset(n for n in names if any(fnmatchcase(n, pattern) for pattern in declared)),
    )


def _train_one_step(model: Model, module: nn.Module, samples: Samples) -> tuple[set[str], set[str]]:
    """Return the buffers that a training step changes, and the parameters without a gradient."""
    task, batch = model.architecture.task, samples.take(slice(_N_STEP_SAMPLES))
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        seed_globally(0)
        module.train()
        features = in_model_dtype(batch.features, model).clone()
        try:
            outputs = task.extract_outputs(task.call_module(module, features))
            task.losses(outputs, batch.targets.clone()).mean().backward()  # type: ignore[no-untyped-call]
        # A custom model may fail here although it trains in the loop. Report nothing in this case.
        except Exception:
            return set(), set()
    changed = {
        name
        for name, value in module.named_buffers()
        if name in model.buffers and not torch.equal(value, model.buffers[name])
    }
    without_gradient = {
        name
        for name, value in module.named_parameters()
        if value.requires_grad and value.grad is None
    }
    return changed, without_gradient


def layers_without_statistics(round: Round, unsent: UnsentTensors) -> list[str]:
    """Return the normalisation layers without running statistics in at least one model."""
    models = [*round.after.values()]
    for observed in round.observed.values():
        models += [model for model in (observed.base, observed.local) if model is not None]
    missing = {name for model in models for name in unsent.statistics - model.buffers.keys()}
    return sorted({name.rpartition(".")[0] or name for name in missing})


def with_estimated_statistics(
    round: Round, unsent: UnsentTensors, audit: AuditSet, device: torch.device = CPU
) -> Round:
    """Return the round with estimates of running statistics that its models lack.

    Estimates for a client's model use the client's audited samples, members as well as held-out
    samples, so that they do not reveal membership. Estimates for global models use all audited
    samples.
    """
    if not layers_without_statistics(round, unsent):
        return round
    all_samples = _draw_samples(audit.samples)

    def complete(model: Model, samples: Samples) -> Model:
        if unsent.has_statistics(model):
            return model
        return _estimate_statistics(model, unsent, samples, device)

    # Attacks compare clients whose received models are the same object, so keep one object each.
    distinct_bases = {id(e.base): e.base for e in round.observed.values() if e.base is not None}
    bases = {key: complete(base, all_samples) for key, base in distinct_bases.items()}
    merged = {*round.group_of.values()}
    observed = dict[ClientId, ObservedModels]()
    for client, models in round.observed.items():
        base, local = models.base, models.local
        if base is not None:
            base = bases[id(base)]
        if local is not None:
            samples = all_samples if client in merged else _samples_of(audit, client, all_samples)
            local = complete(local, samples)
        observed[client] = replace(models, base=base, local=local)
    after = {name: complete(model, all_samples) for name, model in round.after.items()}
    return replace(round, observed=observed, after=after)


def _samples_of(audit: AuditSet, client: ClientId, all_samples: Samples) -> Samples:
    """Return a client's audited samples, or all samples if the client has too few."""
    is_member, is_audited = audit.owner == client, audit.fair_target == client
    if not is_audited.any() and is_member.any():
        # The audit set was not drawn by coins, so held-out samples belong to no single client.
        is_audited = is_member | (audit.owner == NO_CLIENT)
    if int(np.count_nonzero(is_audited)) < _MIN_SAMPLES:
        return all_samples
    return _draw_samples(audit.samples.take(torch.from_numpy(is_audited)))


def _draw_samples(samples: Samples) -> Samples:
    """Draw at most ``_MAX_SAMPLES`` samples in an order independent of membership."""
    order = torch.randperm(len(samples), generator=seeded(0, "running statistics"))
    return samples.take(order[:_MAX_SAMPLES])


def _estimate_statistics(
    model: Model, unsent: UnsentTensors, samples: Samples, device: torch.device
) -> Model:
    """Fill missing running statistics with means of batch statistics."""
    missing = sorted(unsent.statistics - model.buffers.keys())
    paths = {name.rpartition(".")[0] for name in missing}
    task = model.architecture.task
    with computing_on(device), torch.no_grad():
        module = load_module(model, "running statistics", device).eval()
        for path, layer in normalisation_layers(module).items():
            if path in paths:
                layer.reset_running_stats()
                # With momentum None, torch computes an unweighted mean over batches.
                layer.momentum = None
                layer.train()
        for batch in _batches(in_model_dtype(samples.features, model)):
            task.call_module(module, batch.to(device, copy=True))
        current = dict(module.named_buffers())
        values = {name: current[name].detach().cpu().clone() for name in missing}
    buffers = model.buffers | values
    # Buffers have the order of a complete model, followed by frozen parameters.
    order = dict.fromkeys([*(name for name in current if name in buffers), *buffers])
    return replace(model, buffers={name: buffers[name] for name in order})


def _batches(features: Tensor) -> Sequence[Tensor]:
    """Return batches whose sizes differ by at most 1, since the mean over batches is unweighted."""
    return features.tensor_split(-(-len(features) // _BATCH_SIZE))
