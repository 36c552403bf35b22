"""Parameters and buffers that clients train and do not upload.

Nobody but the client knows their values. Running statistics of normalisation layers are estimated
for each measured model; everything else is refused unless the user declares it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedaudit.core.devices import CPU, computing_on
from fedaudit.core.errors import BadInput
from fedaudit.core.modules import as_taken, loaded
from fedaudit.core.seeds import seed_globally, seeded
from fedaudit.core.values import NOBODY, ClientId, Model, Samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.observe.round import Exposed, Round

ESTIMATED = "estimated statistics"
"""Note of a measured round: layers whose statistics were estimated."""

_TRIED = 8
"""Samples of the training step that shows which values training changes."""

_AT_ONCE = 128
_MOST_SAMPLES = 2048
_FEWEST_SAMPLES = 8
_MOST_NAMED = 5


class Unsent(NamedTuple):
    """Names of values that need care where uploads lack them.

    Attributes:
        statistics: Running means and variances of normalisation layers that clients train.
        changing: Other buffers that a training step changes.
        untrainable: Parameters without a gradient: no client changes them.
        declared: Values that the user says clients do not upload.
    """

    statistics: frozenset[str] = frozenset()
    changing: frozenset[str] = frozenset()
    untrainable: frozenset[str] = frozenset()
    declared: frozenset[str] = frozenset()

    def are_untrained(self, buffers: Mapping[str, Tensor]) -> bool:
        """Return True if no batch has gone through the normalisation layers in training."""
        values = {name: buffers[name] for name in self.statistics if name in buffers}
        return bool(values) and all(
            bool((value == (1 if name.endswith("var") else 0)).all())
            for name, value in values.items()
        )

    def without_statistics(self, model: Model) -> Model:
        """Return the model without running statistics, which are then estimated."""
        kept = {n: value for n, value in model.buffers.items() if n not in self.statistics}
        return replace(model, buffers=kept)

    def has_statistics(self, model: Model) -> bool:
        """Return True if the model has all running statistics."""
        return self.statistics <= model.buffers.keys()


def unsent_in(model: Model, samples: Samples, declared: Collection[str]) -> Unsent:
    """Find the values of a network that training changes, by one training step.

    Args:
        model: As it was given to the recorder.
        samples: Some that it takes.
        declared: Names, or patterns such as ``"head.*"``, of values that clients do not upload.

    Raises:
        BadInput: A declared name that the network does not have.
    """
    names = [*model.params, *model.buffers]
    for pattern in declared:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadInput(
                f"not_uploaded has {pattern[:200]!r}, and the model has no such parameter or "
                f"buffer; it has {', '.join(names[:6])} ..."
            )
    stays = {name for name in names if any(fnmatchcase(name, one) for one in declared)}
    module = model.module()
    normalising = dict(_normalising(module))
    statistics = {
        f"{path}.{name}".lstrip(".")
        for path, part in normalising.items()
        if not _is_frozen(part)
        for name in ("running_mean", "running_var")
    }
    changed, untrainable = _training_step(model, module, samples)
    of_layers = {id(value) for part in normalising.values() for value in part.buffers()}
    changing = {
        n for n, value in module.named_buffers() if n in changed and id(value) not in of_layers
    }
    return Unsent(
        frozenset(statistics), frozenset(changing), frozenset(untrainable), frozenset(stays)
    )


def _normalising(module: nn.Module) -> list[tuple[str, _NormBase]]:
    return [
        (path, part)
        for path, part in module.named_modules()
        if isinstance(part, _NormBase) and part.running_mean is not None and part.momentum != 0
    ]


def _is_frozen(part: nn.Module) -> bool:
    own = [*part.parameters(recurse=False)]
    return bool(own) and not any(value.requires_grad for value in own)


def _training_step(model: Model, module: nn.Module, samples: Samples) -> tuple[set[str], set[str]]:
    """Return the buffers that a step changes, and the parameters that have no gradient."""
    task, few = model.architecture.task, samples.take(slice(_TRIED))
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        seed_globally(0)
        module.train()
        try:
            outputs = task.read(task.called(module, as_taken(few.features, model).clone()))
            task.losses(outputs, few.targets.clone()).mean().backward()  # type: ignore[no-untyped-call]
        # Code of somebody else, which may train in another way: nothing is known of its buffers.
        except Exception:
            return set(), set()
    buffers = {n: value for n, value in module.named_buffers() if n in model.buffers}
    changed = {n for n, value in buffers.items() if not torch.equal(value, model.buffers[n])}
    return changed, {
        name
        for name, value in module.named_parameters()
        if value.requires_grad and value.grad is None
    }


def named_few(names: Collection[str]) -> str:
    """Return the first of some names, and how many more there are."""
    first = sorted(names)[:_MOST_NAMED]
    more = len(names) - len(first)
    return ", ".join(name[:100] for name in first) + (f" and {more} more" if more else "")


def estimated_layers(round: Round, unsent: Unsent) -> list[str]:
    """Return names of normalisation layers whose statistics a round of models lacks."""
    shown = [m for e in round.exposed.values() for m in (e.base, e.local) if m is not None]
    lacking = {
        name
        for model in (*shown, *round.after.values())
        for name in unsent.statistics - model.buffers.keys()
    }
    return sorted({name.rpartition(".")[0] or name for name in lacking})


def with_estimates(
    round: Round, unsent: Unsent, audit: AuditSet, device: torch.device = CPU
) -> Round:
    """Return the round with estimates of running statistics where its models have none.

    A client's model takes its own audited samples, members and held-out samples alike, so that
    the estimate says nothing about membership. Global models take all audited samples.

    Args:
        round: As the adversary sees it.
        unsent: What its models may lack.
        audit: The audited samples.
        device: Where models are run.
    """
    if not estimated_layers(round, unsent):
        return round
    everything = _some(audit.samples)
    bases = dict[int, Model]()
    merged = {*round.stands_for.values()}

    def filled(model: Model, samples: Samples) -> Model:
        return model if unsent.has_statistics(model) else _estimated(model, unsent, samples, device)

    exposed = dict[ClientId, Exposed]()
    for client, one in round.exposed.items():
        base, local = one.base, one.local
        if base is not None:
            # One object a model that was sent: clients with the same one are comparable.
            if id(base) not in bases:
                bases[id(base)] = filled(base, everything)
            base = bases[id(base)]
        if local is not None:
            own = everything if client in merged else _own(audit, client, everything)
            local = filled(local, own)
        exposed[client] = replace(one, base=base, local=local)
    after = {name: filled(model, everything) for name, model in round.after.items()}
    return replace(round, exposed=exposed, after=after)


def _own(audit: AuditSet, client: ClientId, everything: Samples) -> Samples:
    """A client's audited samples; all of them where it has too few."""
    chosen = audit.panel == client
    if not chosen.any():
        chosen = (audit.owner == client) | (audit.owner == NOBODY)
        chosen &= bool((audit.owner == client).any())
    if int(np.count_nonzero(chosen)) < _FEWEST_SAMPLES:
        return everything
    return _some(audit.samples.take(torch.from_numpy(chosen)))


def _some(samples: Samples) -> Samples:
    """Samples in an order that has nothing to do with membership, at most so many."""
    order = torch.randperm(len(samples), generator=seeded(0, "running statistics"))
    return samples.take(order[:_MOST_SAMPLES])


def _estimated(model: Model, unsent: Unsent, samples: Samples, device: torch.device) -> Model:
    """The model with means of batch statistics in place of running ones that it lacks."""
    missing = sorted(unsent.statistics - model.buffers.keys())
    layers = {name.rpartition(".")[0] for name in missing}
    task = model.architecture.task
    with computing_on(device), torch.no_grad():
        module = loaded(model, "running statistics", device).eval()
        parts = [(path, part) for path, part in _normalising(module) if path in layers]
        for _, part in parts:
            part.reset_running_stats()
            # The plain mean over batches: no batch counts more than another.
            part.momentum = None
            part.train()
        for rows in _batches(as_taken(samples.features, model)):
            task.called(module, rows.to(device, copy=True))
        there = dict(module.named_buffers())
        values = {name: there[name].detach().cpu().clone() for name in missing}
    known = model.buffers | values
    # The order of a model that has them all.
    order = [name for name in there if name in known]
    rest = [name for name in known if name not in there]
    return replace(model, buffers={name: known[name] for name in (*order, *rest)})


def _batches(features: Tensor) -> Sequence[Tensor]:
    """Batches of equal size, but for one sample: each counts alike."""
    count = -(-len(features) // _AT_ONCE)
    return features.tensor_split(count)
