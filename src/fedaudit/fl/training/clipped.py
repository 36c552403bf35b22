"""The sum of clipped per-sample gradients, for one backward pass and the gradients' lengths.

The gradients themselves are never stored. A backward pass has two halves: what reaches each
layer, and what each layer makes of it for its weights. After the first, the kernels of
:mod:`fedaudit.signals.kernels` tell every sample's length; the second is then taken with every
sample's rows weighted, so that it gives the sum of the clipped gradients at once.
"""

import logging
from collections.abc import Iterable
from copy import deepcopy
from functools import cache
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedaudit.core.errors import Unsupported, type_of
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import Batch, Params, chunks
from fedaudit.fl.hooks import Objective
from fedaudit.fl.training.dense import dense_clipped_sum, dense_layers, shortening
from fedaudit.signals.kernels.base import LayerKernel
from fedaudit.signals.kernels.capture import (
    CapturedCall,
    Owner,
    Passage,
    Uncapturable,
    owners,
    passages_of,
    watching,
)
from fedaudit.signals.kernels.plan import kernel_for, norms_over_copies

_log = logging.getLogger("fedaudit")

# Of the samples on which watching is tried: gradients are longer than this, and all are clipped.
_PROBED, _SHORT, _SLACK = 2, 1e-6, 1e-3


def clipped_sum(objective: Objective, batch: Batch, *, clip: float, copies: int = 1) -> Params:
    """The sum over samples of each one's gradient, shortened to at most ``clip``.

    A sample's gradient is that of the objective for a batch of this sample alone. Networks that
    cannot be watched layer by layer go one sample at a time, and are named once in the log.

    Args:
        objective: What is minimised, with the network in training mode.
        batch: May be empty.
        clip: Largest Euclidean length of one sample's gradient; infinity clips nothing.
        copies: Rows of the batch that show the same sample, one after the other; the mean of
            their gradients is the sample's.

    Raises:
        Unsupported: The network mixes samples (batch normalisation).
    """
    params = objective.params
    if len(batch) == 0:
        return {name: torch.zeros_like(param) for name, param in params.items()}
    plan = _plan_of(objective.module)
    _refuse_mixing(plan.statistics)
    plain = objective.per_sample is cross_entropy and not batch.y.is_floating_point()
    plain &= objective.task.reads_plainly
    if plan.dense and plain and copies == 1:
        found = dense_clipped_sum(list(params.values()), batch.x, batch.y, clip=clip)
        return dict(zip(params, found, strict=True))
    if plan.watched is not None:
        try:
            plan.confirm(objective, batch, copies)
            return _by_layers(objective, batch, plan.watched, clip=clip, copies=copies)
        except Uncapturable as error:
            plan.give_up(objective.module, str(error))
    return _one_by_one(objective, batch, clip=clip, copies=copies)


class _Plan:
    """The way through one network, decided once.

    Attributes:
        dense: Whether it is a plain stack of linear layers.
        watched: Its layers one by one; None where it cannot be watched.
        statistics: Its layers that may mix samples, depending on the mode they are in.
    """

    _confirmed = False

    def __init__(self, module: nn.Module) -> None:
        self.dense = dense_layers(module) is not None
        self.watched: _Watched | None = None
        self.statistics = _statistics(module)
        trained = [name for name, param in module.named_parameters() if param.requires_grad]
        try:
            self.watched = _Watched(owners(module, trained))
        except Uncapturable as error:
            self.give_up(module, str(error))

    def confirm(self, given: Objective, batch: Batch, copies: int) -> None:
        """Holds what watching finds against ordinary differentiation, once.

        A weight that is also used outside its layer, for instance, would be clipped too little.

        Raises:
            Uncapturable: They differ, or watching fails.
        """
        if self._confirmed:
            return
        # On the CPU, whose one generator tells whether anything is drawn.
        rows = _rows(batch, slice(0, _PROBED * copies))
        rows = Batch(rows.x.cpu(), rows.y.cpu(), rows.ids.cpu())
        try:
            there = deepcopy(given.module).cpu()
            objective = Objective(there, _mean_of_squares, per_sample=_squares, task=given.task)
            with torch.random.fork_rng(devices=[]):
                before = torch.get_rng_state()
                exact = _one_by_one(objective, rows, clip=_SHORT, copies=copies)
                if not torch.equal(before, torch.get_rng_state()):
                    # Samples that go one by one draw otherwise than together; the first one alike.
                    rows = _rows(rows, slice(0, copies))
                    torch.set_rng_state(before)
                    exact = _one_by_one(objective, rows, clip=_SHORT, copies=copies)
                torch.set_rng_state(before)
                watched = _Watched(owners(there, objective.params))
                found = _by_layers(objective, rows, watched, clip=_SHORT, copies=copies)
        # Whatever a layer does that no kernel follows.
        except Exception as error:
            raise Uncapturable(str(error).split("\n")[0]) from error
        for name, value in found.items():
            if bool(((value - exact[name]).abs() > _SLACK * _SHORT).any()):
                raise Uncapturable("two samples differ from ordinary autograd")
        self._confirmed = True

    def give_up(self, module: nn.Module, reason: str) -> None:
        """Watching has failed: no second attempt."""
        self.watched = None
        _announce(type(module).__name__, reason)


class _Watched:
    """The layers of a network that is watched, and their kernels for every shape so far.

    Attributes:
        parts: The modules that own parameters, by path.
    """

    def __init__(self, parts: dict[str, Owner]) -> None:
        self.parts = parts
        self._kernels: dict[tuple[object, ...], dict[str, LayerKernel]] = {}

    def kernels(self, passages: dict[str, Passage], copies: int) -> dict[str, LayerKernel]:
        """The kernel of each owner by its path, for samples of these shapes."""
        key = (copies, *(passage.inputs.shape[1:] for passage in passages.values()))
        if key not in self._kernels:
            self._kernels[key] = {
                path: kernel_for(self.parts[path], passage, [])[0]
                if copies == 1
                else norms_over_copies(self.parts[path], passage, copies)
                for path, passage in passages.items()
            }
        return self._kernels[key]


def refuse_mixing(module: nn.Module) -> None:
    """Refuses a network in which one sample changes what another one's gradient is.

    Args:
        module: In the mode in which it is trained.

    Raises:
        Unsupported: It has such a layer.
    """
    _refuse_mixing(_statistics(module))


def _statistics(module: nn.Module) -> list[_NormBase]:
    return [part for part in module.modules() if isinstance(part, _NormBase)]


def _refuse_mixing(statistics: Iterable[_NormBase]) -> None:
    for part in statistics:
        if _mixes(part):
            raise Unsupported(
                f"the network has {type_of(part)}, whose statistics mix the samples "
                "of a batch, so that no sample has a gradient of its own to clip; use a "
                "network with group normalisation (resnet18 with norm = 'group') or without "
                "normalisation"
            )


def _mixes(part: _NormBase) -> bool:
    kept = part.running_mean is not None
    if isinstance(part, _BatchNorm):
        return part.training or not kept
    # Instance normalisation mixes nothing, but averages that it keeps would leave unclipped.
    return part.training and kept


# By network: a client trains many batches on one, and the next client on the same.
_plans: WeakKeyDictionary[nn.Module, _Plan] = WeakKeyDictionary()


def _plan_of(module: nn.Module) -> _Plan:
    plan = _plans.get(module)
    if plan is None:
        plan = _plans[module] = _Plan(module)
    return plan


@cache
def _announce(network: str, reason: str) -> None:
    _log.warning(
        "per-sample gradients of a %s are taken one backward pass a sample, which is slow: %s",
        network,
        reason,
    )


def _by_layers(
    objective: Objective, batch: Batch, watched: _Watched, *, clip: float, copies: int
) -> Params:
    parts = watched.parts
    with watching(parts) as seen:
        # A copy: where watching fails, what the network has overwritten is needed again.
        outputs = objective.task.outputs(objective.module, batch.x.clone())
    losses = _losses(objective, outputs, batch, copies)
    passages = passages_of(seen, parts, losses, rows=len(batch), retain_graph=True)
    kernels = watched.kernels(passages, copies)
    squared = torch.zeros(len(losses), dtype=torch.float64, device=losses.device)
    with torch.no_grad():
        for path, (inputs, grads, _) in passages.items():
            if grads is not None:
                squared += kernels[path](parts[path].module, inputs, grads).squared_norms
        factors = shortening(squared, clip).repeat_interleave(copies)
    total: Params = {}
    for path, part in parts.items():
        found = _weighted(part, seen[path], passages[path].grads, factors)
        total |= dict(zip(part.names.values(), found, strict=True))
    return {name: total[name] for name in objective.params}


def _squares(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    """A loss of any outputs, whatever the labels."""
    return outputs.flatten(1).square().sum(1)


def _mean_of_squares(outputs: Tensor, batch: Batch) -> Tensor:
    return _squares(outputs, batch.y).mean()


def _losses(
    objective: Objective, outputs: Tensor, batch: Batch, copies: int
) -> Float[Tensor, " samples"]:
    """Each sample's own loss: the mean over its copies."""
    if objective.per_sample is not None:
        return objective.per_sample(outputs, batch.y).view(-1, copies).mean(1)
    each = [objective.loss(outputs[r], _rows(batch, r)) for r in chunks(len(batch), copies)]
    return torch.stack(each)


def _weighted(
    part: Owner, seen: CapturedCall, grads: Tensor | None, factors: Float[Tensor, " rows"]
) -> tuple[Tensor, ...]:
    """The other half of one layer's backward pass, with every row of what arrived weighted."""
    params = [getattr(part.module, local) for local in part.names]
    if grads is None:
        return tuple(torch.zeros_like(param) for param in params)
    arrived = grads * factors.to(grads.dtype).view(-1, *[1] * (grads.dim() - 1))
    wanted = list(params)
    # torch 2.13 crashes in group norm's backward pass on images with channels last where the
    # gradient of the input is not asked for too. It costs most where it is known to be safe.
    if seen.entry is not None and type(part.module) not in (nn.Linear, nn.Conv2d):
        wanted.append(seen.entry)
    found = torch.autograd.grad(
        [seen.edge], wanted, [arrived], retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return found[: len(params)]


def _one_by_one(objective: Objective, batch: Batch, *, clip: float, copies: int) -> Params:
    params = objective.params
    total = {name: torch.zeros_like(param) for name, param in params.items()}
    for rows in chunks(len(batch), copies):
        found = torch.autograd.grad(
            objective(_rows(batch, rows, copied=True)),
            list(params.values()),
            allow_unused=True,
            materialize_grads=True,
        )
        squared = torch.stack([part.double().square().sum() for part in found]).sum()
        factor = float(shortening(squared[None], clip))
        for value, part in zip(total.values(), found, strict=True):
            value.add_(part, alpha=factor)
    return total


def _rows(batch: Batch, rows: slice, *, copied: bool = False) -> Batch:
    """Some rows; in memory of their own where a network might overwrite them."""
    x = batch.x[rows].clone() if copied else batch.x[rows]
    return Batch(x, batch.y[rows], batch.ids[rows])
