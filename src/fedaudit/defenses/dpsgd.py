"""Record-level differential privacy: every sample's gradient clipped, noise on their sum.

The gradients themselves are never stored. A backward pass has two halves: what reaches each
layer, and what each layer makes of it for its weights. After the first, the kernels of
:mod:`fedaudit.signals.kernels` tell every sample's length; the second is then taken with every
sample's rows weighted, so that it gives the sum of the clipped gradients at once.
"""

import logging
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import field
from functools import cache
from math import ceil
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedaudit.core.arguments import (
    AboveZeroOrInfinite,
    AtLeastZero,
    Count,
    Fraction,
    Positive,
    dataclass,
)
from fedaudit.core.errors import BadInput, Unsupported, type_of
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import Batch, Params, Samples, chunks
from fedaudit.defenses.clip import refuse_noise_without_clip
from fedaudit.fl.accounting import gaussian_epsilon
from fedaudit.fl.hooks import ConfiguredDefense, Guarantee, Objective, Plan, Turn, Workload
from fedaudit.fl.training.manual_backprop import dense_clipped_sum, dense_layers, shortening
from fedaudit.signals.kernels import LayerKernel
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


@dataclass(frozen=True)
class DPSGD(ConfiguredDefense):
    """Trains so that no single sample can move the model by more than a clip, hidden in noise.

    Every step draws each sample independently of the others (a batch may be empty), shortens
    each one's gradient to at most the clip, adds normal noise to their sum and divides by the
    number of samples that a step draws on average. Momentum, weight decay and Adam come after.

    Infinite clip, no noise and one copy train as if undefended, in shuffled batches.

    Attributes:
        clip: Largest Euclidean length of one sample's gradient, above 0; infinity clips nothing.
        noise_multiplier: Standard deviation of the noise on the sum in units of ``clip``, at least
            0; 0 adds none, and then nothing is proven. Published: 0.05, 0.1 and 0.2 (CoFedMID,
            which states no clip).
        multiplicity: How many augmented copies of an image have their gradients averaged
            before clipping, at least 1; 1 trains on the image itself.
        padding: Copies are windows of an image continued by so many mirrored pixels; 0 for none.
        horizontal_flip: Probability with which a copy is a mirror image, in [0, 1].

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.DPSGD(clip=1.0, noise_multiplier=0.1, members=[0]).multiplicity
        1

    Source: Abadi et al. 2016, Algorithm 1; De et al. 2022, section 3.2 (multiplicity);
        CoFedMID, appendix E (multipliers 0.05, 0.1 and 0.2).
    Differs: CoFedMID calls it client-level but clips local gradients. Divided by the expected
        instead of the drawn batch size, whose noise-free value would give itself away.
    """

    clip: AboveZeroOrInfinite
    noise_multiplier: AtLeastZero
    multiplicity: Positive = 1
    padding: Count = 4
    horizontal_flip: Fraction = 0.5
    _expected: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        refuse_noise_without_clip(self.clip, self.noise_multiplier)

    def acts_in(self, hook: str) -> bool:
        """True if the named hook does more than the neutral one."""
        return super().acts_in(hook) and not self._neutral

    @property
    def _neutral(self) -> bool:
        return self.clip == float("inf") and self.noise_multiplier == 0 and self.multiplicity == 1

    def refuse_misfit(self, plan: Plan) -> None:
        """Before anything is trained: networks that mix samples, copies of what is no image.

        Raises:
            Unsupported: A layer's statistics mix the samples of a batch.
            BadInput: Copies are asked for, and samples are no images larger than the padding.
        """
        if self._neutral:
            return
        with torch.random.fork_rng(devices=[]):
            refuse_mixing(plan.architecture.build().train())
        if self.multiplicity > 1:
            _refuse_other_than_images(plan.shape, self.padding)

    def batches(self, data: Samples, batch_size: int, turn: Turn) -> Iterator[Batch]:
        """Each epoch: as many draws as shuffled batches would be, of that size on average."""
        if self._neutral:
            yield from super().batches(data, batch_size, turn)
            return
        if len(data) == 0:  # none left by another defense, such as one that deals classes out
            return
        rate = sampling_rate(batch_size, len(data))
        object.__setattr__(self, "_expected", rate * len(data))
        rng = turn.rng("poisson batches")
        for _ in range(ceil(len(data) / batch_size)):
            drawn = torch.rand(len(data), generator=rng, dtype=torch.float64) < rate
            some = data.take(drawn.to(data.ids.device))
            yield Batch(some.features, some.targets, some.ids)

    def batch(self, batch: Batch, turn: Turn) -> Batch:
        """Each step: the copies of each sample, one after the other."""
        if self.multiplicity == 1:
            return batch
        _refuse_other_than_images(tuple(batch.x.shape[1:]), self.padding)
        x, y, ids = (
            each.repeat_interleave(self.multiplicity, 0) for each in (batch.x, batch.y, batch.ids)
        )
        rng = turn.rng("augmented copies")
        return Batch(
            windows(x, rng, padding=self.padding, horizontal_flip=self.horizontal_flip), y, ids
        )

    def gradient(self, objective: Objective, batch: Batch, turn: Turn) -> Params:
        """Each step: the noisy sum of clipped gradients, over the expected number of samples."""
        if self._neutral:
            return super().gradient(objective, batch, turn)
        if not self._expected:
            raise Unsupported(
                "dp-sgd divides by the number of samples that it draws on average, so that it "
                "must draw the batches itself; ask its batches() before its gradient()"
            )
        total = clipped_sum(objective, batch, clip=self.clip, copies=self.multiplicity)
        rng = turn.rng("per-sample noise")
        with torch.no_grad():
            return {name: self._noisy_mean(value, rng) for name, value in total.items()}

    def _noisy_mean(self, total: Tensor, rng: torch.Generator) -> Tensor:
        if not self.noise_multiplier:
            return total / self._expected
        drawn = torch.randn(total.shape, dtype=total.dtype, generator=rng).to(total.device)
        noise = drawn.mul_(self.noise_multiplier * self.clip / self._expected)
        return noise.add_(total, alpha=1 / self._expected)

    def guarantee(self, work: Workload, *, delta: float) -> Guarantee:
        """Proven guarantee for each of the client's samples, after all rounds."""
        rate = sampling_rate(work.batch_size, work.samples)
        steps = work.rounds * work.epochs * ceil(work.samples / work.batch_size)
        return Guarantee(
            sample_epsilon(self.noise_multiplier, rate, steps, delta=delta),
            f"one sample, in {steps} steps that each draw it with probability {rate:.3g}",
        )


def windows(
    images: Float[Tensor, "samples channels height width"],
    rng: torch.Generator,
    *,
    padding: int,
    horizontal_flip: float,
) -> Float[Tensor, "samples channels height width"]:
    """A window of each image at a random place, mirrored at random.

    Unlike :class:`fedaudit.defenses.augment.Augmentation`, what is seen of one sample depends on
    no other one: no common black level.

    Args:
        images: Larger than the padding.
        rng: Draws places and flips.
        padding: Mirrored pixels beyond each edge that a window may reach into.
        horizontal_flip: Probability of a mirror image, in [0, 1].
    """
    count, channels, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4, mode="reflect") if padding else images
    down, across = torch.randint(2 * padding + 1, (2, count, 1), generator=rng)
    flipped = torch.rand(count, 1, generator=rng) < horizontal_flip
    rows, columns = down + torch.arange(height), across + torch.arange(width)
    columns = torch.where(flipped, columns.flip(1), columns)
    at = (torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None])
    index = (*at, rows[:, None, :, None], columns[:, None, None, :])
    return padded[tuple(part.to(images.device) for part in index)]


def _refuse_other_than_images(shape: tuple[int, ...], padding: int) -> None:
    if len(shape) != 3 or min(shape[1:]) <= padding:
        spelled = "x".join(map(str, shape))
        raise BadInput(
            "dp-sgd with multiplicity works on images of shape channels x height x width that "
            f"are larger than padding = {padding}, got samples of shape {spelled}; set "
            "multiplicity = 1 or a smaller padding"
        )


def sampling_rate(batch_size: int, samples: int) -> float:
    """The probability with which a step draws each sample."""
    return min(1.0, batch_size / samples)


def sample_epsilon(noise_multiplier: float, rate: float, steps: int, *, delta: float) -> float:
    """The epsilon that an observer of every step is held to, about one sample.

    Adjacency: the sample is among the client's data or not. Holds for steps that draw each
    sample independently; for shuffled batches nothing of the kind is proven.

    Args:
        noise_multiplier: Noise in clips, as in :class:`DPSGD`.
        rate: Probability with which a step draws the sample, in (0, 1].
        steps: Of all rounds and epochs together.
        delta: Failure probability, in (0, 1).

    Returns:
        Epsilon in nats by Renyi accounting; infinite without noise.

    Raises:
        BadInput: The accountant is not installed, or delta or rate is out of range.
    """
    return gaussian_epsilon(noise_multiplier, steps, delta=delta, rate=rate)


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
    """Refuses a network in which one sample changes another one's gradient, in its present mode.

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
