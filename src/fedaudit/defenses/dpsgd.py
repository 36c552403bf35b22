"""Record-level differential privacy (DP-SGD): clipped per-sample gradients with noise on their sum.

Per-sample gradients are never stored. A backward pass first computes the gradients at each layer's
output, and from these the gradients of its weights. After the first part, the kernels of
:mod:`fedaudit.signals.kernels` compute the norm of every sample's gradient. The second part is then
run with weighted samples, which gives the sum of the clipped gradients.
"""

import logging
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import field
from functools import cache
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
from fedaudit.fl.accounting import gaussian_mechanism_epsilon, sampling_rate, steps_per_epoch
from fedaudit.fl.hooks import (
    ConfiguredDefense,
    Guarantee,
    Objective,
    Plan,
    TrainingContext,
    Workload,
)
from fedaudit.fl.training.manual_backprop import clip_factors, dense_clipped_sum, dense_layers
from fedaudit.signals.kernels import LayerKernel
from fedaudit.signals.kernels.capture import (
    Activation,
    CapturedCall,
    Owner,
    Uncapturable,
    activations_of,
    capture_calls,
    owners,
)
from fedaudit.signals.kernels.plan import kernel_for, norms_over_copies


@dataclass(frozen=True)
class DPSGD(ConfiguredDefense):
    """DP-SGD: clipped per-sample gradients with normal noise on their sum.

    Every step draws each sample independently of the others (a batch may be empty), clips each
    sample's gradient, adds normal noise to their sum and divides by the expected batch size.
    Momentum, weight decay and Adam are applied to the result.

    With an infinite clip, no noise and a multiplicity of 1, clients train as if undefended, in
    shuffled batches.

    Attributes:
        clip: Largest Euclidean norm of one sample's gradient, above 0; infinity clips nothing.
        noise_multiplier: Standard deviation of the noise on the sum in units of ``clip``, at least
            0; with 0, there is no noise and no guarantee. Published: 0.05, 0.1 and 0.2 (CoFedMID,
            which does not specify the clip).
        multiplicity: Number of augmented copies of an image whose gradients are averaged before
            clipping, at least 1; 1 trains on the image itself.
        padding: Number of mirrored pixels that are added at each edge of an image, of which copies
            are random crops; 0 for none.
        horizontal_flip: Probability that a copy is flipped horizontally, in [0, 1].

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.DPSGD(clip=1.0, noise_multiplier=0.1, members=[0]).multiplicity
        1

    Source: Abadi et al. 2016, Algorithm 1; De et al. 2022, section 3.2 (multiplicity);
        CoFedMID, appendix E (multipliers 0.05, 0.1 and 0.2).
    Differs: CoFedMID calls this client-level DP, but clips local gradients. The sum is divided by
        the expected batch size. Division by the actual one would reveal it without noise.
    """

    clip: AboveZeroOrInfinite
    noise_multiplier: AtLeastZero
    multiplicity: Positive = 1
    padding: Count = 4
    horizontal_flip: Fraction = 0.5
    # Expected batch size. The fingerprints of checkpoints depend on the names of all fields.
    _expected: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        refuse_noise_without_clip(self.clip, self.noise_multiplier)

    def acts_in(self, hook: str) -> bool:
        return super().acts_in(hook) and not self._neutral

    @property
    def _neutral(self) -> bool:
        return self.clip == float("inf") and self.noise_multiplier == 0 and self.multiplicity == 1

    def refuse_misfit(self, plan: Plan) -> None:
        if self._neutral:
            return
        with torch.random.fork_rng(devices=[]):
            refuse_sample_mixing(plan.architecture.build().train())
        if self.multiplicity > 1:
            _refuse_other_than_images(plan.shape, self.padding)

    def batches(self, data: Samples, batch_size: int, context: TrainingContext) -> Iterator[Batch]:
        """Yield Poisson-sampled batches. Their number and mean size are those of shuffled ones."""
        if self._neutral:
            yield from super().batches(data, batch_size, context)
            return
        # Another defense, such as class-guided, may have removed all samples.
        if len(data) == 0:
            return
        rate = sampling_rate(batch_size, len(data))
        object.__setattr__(self, "_expected", rate * len(data))
        rng = context.rng("poisson batches")
        for _ in range(steps_per_epoch(batch_size, len(data))):
            is_drawn = torch.rand(len(data), generator=rng, dtype=torch.float64) < rate
            samples = data.take(is_drawn.to(data.ids.device))
            yield Batch(samples.features, samples.targets, samples.ids)

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        if self.multiplicity == 1:
            return batch
        _refuse_other_than_images(tuple(batch.x.shape[1:]), self.padding)
        x, y, ids = (
            tensor.repeat_interleave(self.multiplicity, 0)
            for tensor in (batch.x, batch.y, batch.ids)
        )
        rng = context.rng("augmented copies")
        return Batch(
            random_crops(x, rng, padding=self.padding, horizontal_flip=self.horizontal_flip), y, ids
        )

    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        """Return the noisy sum of clipped gradients divided by the expected batch size."""
        if self._neutral:
            return super().gradient(objective, batch, context)
        if not self._expected:
            raise Unsupported(
                "dp-sgd divides by its expected batch size, so that it must draw the batches "
                "itself; call its batches() before its gradient()"
            )
        total = clipped_sum(objective, batch, clip=self.clip, copies=self.multiplicity)
        rng = context.rng("per-sample noise")
        with torch.no_grad():
            return {name: self._noisy_mean(value, rng) for name, value in total.items()}

    def _noisy_mean(self, total: Tensor, rng: torch.Generator) -> Tensor:
        if not self.noise_multiplier:
            return total / self._expected
        noise = torch.randn(total.shape, dtype=total.dtype, generator=rng).to(total.device)
        noise.mul_(self.noise_multiplier * self.clip / self._expected)
        return noise.add_(total, alpha=1 / self._expected)

    def guarantee(self, work: Workload, *, delta: float) -> Guarantee:
        """Return the guarantee for each sample against an observer of every step.

        Neighbouring data sets differ by adding or removing the sample. The guarantee is valid for
        steps that draw each sample independently, and not for shuffled batches.
        """
        rate = sampling_rate(work.batch_size, work.samples)
        steps = work.rounds * work.epochs * steps_per_epoch(work.batch_size, work.samples)
        return Guarantee(
            gaussian_mechanism_epsilon(self.noise_multiplier, steps, delta=delta, rate=rate),
            f"one sample, in {steps} steps that each draw it with probability {rate:.3g}",
        )


def random_crops(
    images: Float[Tensor, "samples channels height width"],
    rng: torch.Generator,
    *,
    padding: int,
    horizontal_flip: float,
) -> Float[Tensor, "samples channels height width"]:
    """Crop and flip each image at random, after adding mirrored pixels at each edge.

    Copies of a sample do not depend on other samples. In
    :class:`fedaudit.defenses.augment.Augmentation`, they do, as black is the smallest value of all
    images.
    """
    count, channels, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4, mode="reflect") if padding else images
    top, left = torch.randint(2 * padding + 1, (2, count, 1), generator=rng)
    is_flipped = torch.rand(count, 1, generator=rng) < horizontal_flip
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    columns = torch.where(is_flipped, columns.flip(1), columns)
    sample, channel = (
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[:, None, None],
    )
    index = (sample, channel, rows[:, None, :, None], columns[:, None, None, :])
    return padded[tuple(indices.to(images.device) for indices in index)]


def _refuse_other_than_images(shape: tuple[int, ...], padding: int) -> None:
    if len(shape) != 3 or min(shape[1:]) <= padding:
        raise BadInput(
            "dp-sgd with multiplicity works on images of shape channels x height x width that "
            f"are larger than padding = {padding}, got samples of shape {'x'.join(map(str, shape))}"
            "; set multiplicity = 1 or a smaller padding"
        )


_log = logging.getLogger("fedaudit")

# The layer-by-layer method is compared with autograd on two samples, up to a relative error. The
# clip norm is so small that all gradients are clipped.
_COMPARED_SAMPLES, _SMALL_CLIP, _TOLERANCE = 2, 1e-6, 1e-3


def clipped_sum(objective: Objective, batch: Batch, *, clip: float, copies: int = 1) -> Params:
    """Compute the sum of the samples' gradients, each clipped to norm ``clip``.

    A sample's gradient is that of the objective for a batch that contains only this sample. If the
    layers of a network cannot be captured, samples are processed one by one, which is logged.

    Args:
        objective: The objective, with the network in training mode.
        batch: A batch, which may be empty.
        clip: Largest Euclidean norm of one sample's gradient; infinity clips nothing.
        copies: Number of consecutive rows with copies of one sample; the sample's gradient is the
            mean over its copies.

    Raises:
        Unsupported: The network mixes samples (batch normalisation).
    """
    params = objective.params
    if len(batch) == 0:
        return {name: torch.zeros_like(param) for name, param in params.items()}
    plan = _plan_for(objective.module)
    _refuse_mixing(plan.norm_layers)
    is_cross_entropy = objective.per_sample is cross_entropy and not batch.y.is_floating_point()
    is_cross_entropy &= objective.task.reads_plainly
    if plan.dense and is_cross_entropy and copies == 1:
        total = dense_clipped_sum(list(params.values()), batch.x, batch.y, clip=clip)
        return dict(zip(params, total, strict=True))
    if plan.layers is not None:
        try:
            plan.verify(objective, batch, copies)
            return _clip_by_layers(objective, batch, plan.layers, clip=clip, copies=copies)
        except Uncapturable as error:
            plan.use_autograd(objective.module, str(error))
    return _clip_one_by_one(objective, batch, clip=clip, copies=copies)


class _ClippingPlan:
    """Method by which the clipped sum of a network is computed, which is chosen once.

    Attributes:
        dense: Whether the network is a plain stack of linear layers.
        layers: The captured layers; None if they cannot be captured.
        norm_layers: Normalisation layers, which mix samples in some modes.
    """

    _verified = False

    def __init__(self, module: nn.Module) -> None:
        self.dense = dense_layers(module) is not None
        self.layers: _CapturedLayers | None = None
        self.norm_layers = _norm_layers(module)
        trained = [name for name, param in module.named_parameters() if param.requires_grad]
        try:
            self.layers = _CapturedLayers(owners(module, trained))
        except Uncapturable as error:
            self.use_autograd(module, str(error))

    def verify(self, original: Objective, batch: Batch, copies: int) -> None:
        """Compare the layer-by-layer method with autograd on two samples, at the first call.

        The method would clip too little if, for instance, a weight is also used outside its layer.

        Raises:
            Uncapturable: The results differ, or capturing fails.
        """
        if self._verified:
            return
        # On the CPU, all random numbers are from one generator, whose state shows if it was used.
        rows = _rows(batch, slice(0, _COMPARED_SAMPLES * copies))
        rows = Batch(rows.x.cpu(), rows.y.cpu(), rows.ids.cpu())
        try:
            module = deepcopy(original.module).cpu()
            objective = Objective(
                module,
                lambda outputs, batch: _squares(outputs, batch.y).mean(),
                per_sample=_squares,
                task=original.task,
            )
            with torch.random.fork_rng(devices=[]):
                before = torch.get_rng_state()
                expected = _clip_one_by_one(objective, rows, clip=_SMALL_CLIP, copies=copies)
                if not torch.equal(before, torch.get_rng_state()):
                    # With dropout, for instance, only the first sample gets the same random numbers
                    # in a batch as in a batch of its own.
                    rows = _rows(rows, slice(0, copies))
                    torch.set_rng_state(before)
                    expected = _clip_one_by_one(objective, rows, clip=_SMALL_CLIP, copies=copies)
                torch.set_rng_state(before)
                layers = _CapturedLayers(owners(module, objective.params))
                total = _clip_by_layers(objective, rows, layers, clip=_SMALL_CLIP, copies=copies)
        # Custom layers may raise any exception.
        except Exception as error:
            raise Uncapturable(str(error).split("\n")[0]) from error
        for name, value in total.items():
            if bool(((value - expected[name]).abs() > _TOLERANCE * _SMALL_CLIP).any()):
                raise Uncapturable("two samples differ from ordinary autograd")
        self._verified = True

    def use_autograd(self, module: nn.Module, reason: str) -> None:
        """Process samples of this network one by one from now on."""
        self.layers = None
        _log_slow_network(type(module).__name__, reason)


class _CapturedLayers:
    """Layers of a network that are captured, with their kernels for the shapes that occurred.

    Attributes:
        parts: The modules that directly contain parameters, by path.
    """

    def __init__(self, parts: dict[str, Owner]) -> None:
        self.parts = parts
        self._kernels: dict[tuple[object, ...], dict[str, LayerKernel]] = {}

    def kernels(self, activations: dict[str, Activation], copies: int) -> dict[str, LayerKernel]:
        """Return the kernel of each owner by its path, for samples of these shapes."""
        key = (copies, *(activation.inputs.shape[1:] for activation in activations.values()))
        if key not in self._kernels:
            self._kernels[key] = {
                path: kernel_for(self.parts[path], activation, [])[0]
                if copies == 1
                else norms_over_copies(self.parts[path], activation, copies)
                for path, activation in activations.items()
            }
        return self._kernels[key]


def refuse_sample_mixing(module: nn.Module) -> None:
    """Raise if samples affect each other's gradients in the network's current mode."""
    _refuse_mixing(_norm_layers(module))


def _norm_layers(module: nn.Module) -> list[_NormBase]:
    return [part for part in module.modules() if isinstance(part, _NormBase)]


def _refuse_mixing(norm_layers: Iterable[_NormBase]) -> None:
    for part in norm_layers:
        if _mixes(part):
            raise Unsupported(
                f"the network has {type_of(part)}, whose statistics mix the samples "
                "of a batch, so that there are no per-sample gradients to clip; use a "
                "network with group normalisation (resnet18 with norm = 'group') or without "
                "normalisation"
            )


def _mixes(part: _NormBase) -> bool:
    has_running_statistics = part.running_mean is not None
    if isinstance(part, _BatchNorm):
        return part.training or not has_running_statistics
    # Instance normalisation does not mix samples. However, its running statistics would be uploaded
    # without clipping.
    return part.training and has_running_statistics


# Plans are cached by network, as clients train many batches on the same module.
_plans: WeakKeyDictionary[nn.Module, _ClippingPlan] = WeakKeyDictionary()


def _plan_for(module: nn.Module) -> _ClippingPlan:
    plan = _plans.get(module)
    if plan is None:
        plan = _plans[module] = _ClippingPlan(module)
    return plan


@cache
def _log_slow_network(network: str, reason: str) -> None:
    _log.warning(
        "per-sample gradients of a %s take one backward pass per sample, which is slow: %s",
        network,
        reason,
    )


def _clip_by_layers(
    objective: Objective, batch: Batch, layers: _CapturedLayers, *, clip: float, copies: int
) -> Params:
    parts = layers.parts
    with capture_calls(parts) as calls:
        # The features are copied, as the network may overwrite them, and the batch is needed again
        # if capturing fails.
        outputs = objective.task.outputs(objective.module, batch.x.clone())
    losses = _losses(objective, outputs, batch, copies)
    activations = activations_of(calls, parts, losses, rows=len(batch), retain_graph=True)
    kernels = layers.kernels(activations, copies)
    squared = torch.zeros(len(losses), dtype=torch.float64, device=losses.device)
    with torch.no_grad():
        for path, (inputs, grads, _) in activations.items():
            if grads is not None:
                squared += kernels[path](parts[path].module, inputs, grads).squared_norms
        factors = clip_factors(squared, clip).repeat_interleave(copies)
    total: Params = {}
    for path, part in parts.items():
        gradients = _weighted_gradients(part, calls[path], activations[path].grads, factors)
        total |= dict(zip(part.names.values(), gradients, strict=True))
    return {name: total[name] for name in objective.params}


def _squares(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    """Compute a loss that is defined for any outputs and labels."""
    return outputs.flatten(1).square().sum(1)


def _losses(
    objective: Objective, outputs: Tensor, batch: Batch, copies: int
) -> Float[Tensor, " samples"]:
    """Compute the loss of each sample: the mean over its copies."""
    if objective.per_sample is not None:
        return objective.per_sample(outputs, batch.y).view(-1, copies).mean(1)
    losses = [
        objective.loss(outputs[rows], _rows(batch, rows)) for rows in chunks(len(batch), copies)
    ]
    return torch.stack(losses)


def _weighted_gradients(
    part: Owner, call: CapturedCall, grads: Tensor | None, factors: Float[Tensor, " rows"]
) -> tuple[Tensor, ...]:
    """Return the gradients of a layer's parameters from weighted gradients at its output."""
    params = [getattr(part.module, local) for local in part.names]
    if grads is None:
        return tuple(torch.zeros_like(param) for param in params)
    weighted = grads * factors.to(grads.dtype).view(-1, *[1] * (grads.dim() - 1))
    inputs = list(params)
    # The backward pass of group norm on channels-last images crashes in torch 2.13, unless the
    # gradient of the input is computed, too. This is not necessary for linear layers and
    # convolutions, for which that gradient is expensive.
    if call.entry is not None and type(part.module) not in (nn.Linear, nn.Conv2d):
        inputs.append(call.entry)
    gradients = torch.autograd.grad(
        [call.edge],
        inputs,
        [weighted],
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return gradients[: len(params)]


def _clip_one_by_one(objective: Objective, batch: Batch, *, clip: float, copies: int) -> Params:
    params = objective.params
    total = {name: torch.zeros_like(param) for name, param in params.items()}
    for rows in chunks(len(batch), copies):
        gradients = torch.autograd.grad(
            objective(_rows(batch, rows, copied=True)),
            list(params.values()),
            allow_unused=True,
            materialize_grads=True,
        )
        squares = [gradient.double().square().sum() for gradient in gradients]
        factor = float(clip_factors(torch.stack(squares).sum()[None], clip))
        for value, gradient in zip(total.values(), gradients, strict=True):
            value.add_(gradient, alpha=factor)
    return total


def _rows(batch: Batch, rows: slice, *, copied: bool = False) -> Batch:
    """Return some rows of a batch; features must be copied if a network may overwrite them."""
    x = batch.x[rows].clone() if copied else batch.x[rows]
    return Batch(x, batch.y[rows], batch.ids[rows])
