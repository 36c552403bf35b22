"""Sample-level differential privacy (DP-SGD): clipped per-sample gradients with noise on their sum.

The sum of the clipped gradients is computed in three steps, without storing per-sample gradients:

1. A backward pass computes the gradient of each sample's loss at the output of every layer.
2. The kernels of :mod:`fedaudit.signals.kernels` compute the norm of each sample's weight gradient
   from the inputs and output gradients of the layers.
3. The output gradients are multiplied by the samples' clipping factors. A second backward pass from
   them gives the sum of the clipped weight gradients.
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
from fedaudit.defenses.clip import raise_if_noise_without_clip
from fedaudit.fl.accounting import gaussian_mechanism_epsilon, sampling_rate, steps_per_epoch
from fedaudit.fl.hooks import (
    ConfiguredDefense,
    DataUse,
    Guarantee,
    Objective,
    Plan,
    TrainingContext,
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
    """DP-SGD: clipped per-sample gradients with Gaussian noise on their sum.

    In every step, each sample is drawn with the same probability, independently of the others
    (Poisson sampling), so a batch may be empty. Each sample's gradient is clipped. Gaussian noise
    is added to the sum of the gradients, which is then divided by the expected batch size.
    Momentum, weight decay and Adam are applied to the result.

    With an infinite clip, no noise and a multiplicity of 1, the defense is off, and batches are
    shuffled.

    Attributes:
        clip: Largest Euclidean norm of one sample's gradient, above 0; infinity turns clipping off.
        noise_multiplier: Standard deviation of the noise on the sum, divided by ``clip``, at least
            0; with 0, there is no noise and no guarantee. Published: 0.05, 0.1 and 0.2 (CoFedMID,
            which does not specify the clip).
        multiplicity: Number of augmented copies of each image. Their gradients are averaged before
            clipping. With 1, clients train on the image itself.
        padding: Number of mirrored pixels that are added at each edge of an image before a random
            crop; 0 for none.
        horizontal_flip: Probability that a copy is flipped horizontally, in [0, 1].

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.DPSGD(clip=1.0, noise_multiplier=0.1, clients=[0]).multiplicity
        1

    Source: Abadi et al. 2016, Algorithm 1; De et al. 2022, section 3.2 (multiplicity); Bai et al.
        2026 (CoFedMID), appendix E (multipliers 0.05, 0.1 and 0.2).
    Differs: CoFedMID calls this client-level DP, although it clips per-sample gradients during
        local training and not the update. The sum is divided by the expected batch size, since
        the actual size would reveal information without noise.
    """

    clip: AboveZeroOrInfinite
    noise_multiplier: AtLeastZero
    multiplicity: Positive = 1
    padding: Count = 4
    horizontal_flip: Fraction = 0.5
    # Expected batch size. Do not rename it: fingerprints of checkpoints depend on field names.
    _expected: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        raise_if_noise_without_clip(self.clip, self.noise_multiplier)

    def acts_in(self, hook: str) -> bool:
        return super().acts_in(hook) and not self._neutral

    @property
    def _neutral(self) -> bool:
        return self.clip == float("inf") and self.noise_multiplier == 0 and self.multiplicity == 1

    def raise_if_misfit(self, plan: Plan) -> None:
        if self._neutral:
            return
        with torch.random.fork_rng(devices=[]):
            raise_if_sample_mixing(plan.architecture.build().train())
        if self.multiplicity > 1:
            _raise_if_other_than_images(plan.shape, self.padding)

    def batches(self, data: Samples, batch_size: int, context: TrainingContext) -> Iterator[Batch]:
        """Yield Poisson-sampled batches: as many, and on average as large, as with shuffling."""
        if self._neutral:
            yield from super().batches(data, batch_size, context)
            return
        # Another defense, such as the class-guided partition, may have removed all samples.
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
        _raise_if_other_than_images(tuple(batch.x.shape[1:]), self.padding)
        copies = batch.x.repeat_interleave(self.multiplicity, 0)
        crops = random_crops(
            copies,
            context.rng("augmented copies"),
            padding=self.padding,
            horizontal_flip=self.horizontal_flip,
        )
        y = batch.y.repeat_interleave(self.multiplicity, 0)
        return Batch(crops, y, batch.ids.repeat_interleave(self.multiplicity, 0))

    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        """Return the noisy sum of clipped gradients divided by the expected batch size."""
        if self._neutral:
            return super().gradient(objective, batch, context)
        if not self._expected:
            raise Unsupported(
                "dp-sgd divides by its expected batch size, so it must draw the batches itself; "
                "call its batches() before its gradient()"
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

    @property
    def gradient_limit(self) -> float:
        """Largest norm that one sample contributes to the mean gradient of the last batches."""
        return self.clip / self._expected

    def guarantee(self, data_use: DataUse, *, delta: float) -> Guarantee:
        """Return the guarantee for each sample against an observer of every step.

        Neighbouring data sets differ by adding or removing one sample. The guarantee is valid only
        if every step draws each sample independently, and not for shuffled batches.
        """
        rate = sampling_rate(data_use.batch_size, data_use.samples)
        steps = (
            data_use.rounds
            * data_use.epochs
            * steps_per_epoch(data_use.batch_size, data_use.samples)
        )
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

    Each result depends only on one image, as DP-SGD requires. This is not true for
    :class:`fedaudit.defenses.augment.Augmentation`, where black is the smallest value in all
    images.
    """
    count, channels, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4, mode="reflect") if padding else images
    top, left = torch.randint(2 * padding + 1, (2, count, 1), generator=rng)
    is_flipped = torch.rand(count, 1, generator=rng) < horizontal_flip
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    columns = torch.where(is_flipped, columns.flip(1), columns)
    # The index arrays broadcast to samples x channels x height x width.
    index = (
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    )
    return padded[tuple(indices.to(images.device) for indices in index)]


def _raise_if_other_than_images(shape: tuple[int, ...], padding: int) -> None:
    if len(shape) != 3 or min(shape[1:]) <= padding:
        raise BadInput(
            "dp-sgd with a multiplicity above 1 needs images of shape channels x height x width "
            f"that are larger than padding = {padding}, got samples of shape "
            f"{'x'.join(map(str, shape))}; set multiplicity = 1 or a smaller padding"
        )


_log = logging.getLogger("fedaudit")

_COMPARED_SAMPLES = 2
"""Number of samples for which the layerwise computation is compared with autograd."""
_SMALL_CLIP = 1e-6
"""Clip norm of the comparison, so small that all gradients are clipped."""
_TOLERANCE = 1e-3
"""Largest allowed difference in the comparison, relative to the clip norm."""


def clipped_sum(objective: Objective, batch: Batch, *, clip: float, copies: int = 1) -> Params:
    """Compute the sum of the samples' gradients, each clipped to norm ``clip``.

    A sample's gradient is the gradient of the objective for a batch of only this sample. If the
    inputs and output gradients of a network's layers cannot be captured, samples are processed one
    by one, and a warning is logged.

    Args:
        objective: The objective, with the network in training mode.
        batch: A batch, which may be empty.
        clip: Largest Euclidean norm of one sample's gradient; infinity turns clipping off.
        copies: Number of consecutive rows that are copies of the same sample; the sample's gradient
            is the mean over its copies.

    Raises:
        Unsupported: The network mixes samples (batch normalisation).
    """
    params = objective.params
    if len(batch) == 0:
        return {name: torch.zeros_like(param) for name, param in params.items()}
    network = _network_of(objective.module)
    _raise_if_mixing_layers(network.norm_layers)
    is_cross_entropy = (
        objective.per_sample is cross_entropy
        and not batch.y.is_floating_point()
        and objective.task.needs_no_conversion
    )
    if network.is_dense and is_cross_entropy and copies == 1:
        total = dense_clipped_sum(list(params.values()), batch.x, batch.y, clip=clip)
        return dict(zip(params, total, strict=True))
    if network.layers is not None:
        try:
            network.verify(objective, batch, copies)
            return _clip_by_layers(objective, batch, network.layers, clip=clip, copies=copies)
        except Uncapturable as error:
            network.use_autograd(objective.module, str(error))
    return _clip_one_by_one(objective, batch, clip=clip, copies=copies)


class _Network:
    """Properties of a network that determine how its clipped sums are computed.

    Attributes:
        is_dense: Whether the network is a stack of linear layers with ReLU.
        layers: The captured layers; None if they cannot be captured.
        norm_layers: Normalisation layers, which mix samples in some modes.
    """

    _verified = False

    def __init__(self, module: nn.Module) -> None:
        self.is_dense = dense_layers(module) is not None
        self.layers: _CapturedLayers | None = None
        self.norm_layers = _norm_layers(module)
        trained = [name for name, param in module.named_parameters() if param.requires_grad]
        try:
            self.layers = _CapturedLayers(owners(module, trained))
        except Uncapturable as error:
            self.use_autograd(module, str(error))

    def verify(self, original: Objective, batch: Batch, copies: int) -> None:
        """Compare the layerwise computation with autograd on two samples, at the first call.

        The two differ, for instance, if a weight is also used outside its layer. The layerwise
        computation would then clip too little.

        Raises:
            Uncapturable: The results differ, or capturing fails.
        """
        if self._verified:
            return
        rows = _rows(batch, slice(0, _COMPARED_SAMPLES * copies))
        # On the CPU, there is a single random generator, so its state shows whether the network
        # draws random numbers.
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
                    # With dropout, for instance, the second sample gets other random numbers in a
                    # batch than alone, so compare only the first sample.
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
                raise Uncapturable("the layerwise gradients of two samples differ from autograd")
        self._verified = True

    def use_autograd(self, module: nn.Module, reason: str) -> None:
        """Process the samples of all further batches one by one."""
        self.layers = None
        _log_slow_network(type(module).__name__, reason)


class _CapturedLayers:
    """Layers of a network whose inputs are captured, and a cache of their kernels by input shape.

    Attributes:
        by_path: The modules that directly contain parameters, by path.
    """

    def __init__(self, by_path: dict[str, Owner]) -> None:
        self.by_path = by_path
        self._kernels: dict[tuple[object, ...], dict[str, LayerKernel]] = {}

    def kernels(self, activations: dict[str, Activation], copies: int) -> dict[str, LayerKernel]:
        """Return the kernel of each layer by its path, for activations of these shapes."""
        key = (copies, *(activation.inputs.shape[1:] for activation in activations.values()))
        if key not in self._kernels:
            kernels: dict[str, LayerKernel] = {}
            for path, activation in activations.items():
                layer = self.by_path[path]
                if copies == 1:
                    kernels[path] = kernel_for(layer, activation, [])[0]
                else:
                    kernels[path] = norms_over_copies(layer, activation, copies)
            self._kernels[key] = kernels
        return self._kernels[key]


def raise_if_sample_mixing(module: nn.Module) -> None:
    """Raise if samples affect each other's gradients in the network's current mode."""
    _raise_if_mixing_layers(_norm_layers(module))


def _norm_layers(module: nn.Module) -> list[_NormBase]:
    return [layer for layer in module.modules() if isinstance(layer, _NormBase)]


def _raise_if_mixing_layers(norm_layers: Iterable[_NormBase]) -> None:
    for layer in norm_layers:
        if _mixes_samples(layer):
            raise Unsupported(
                f"the network has {type_of(layer)}, whose statistics mix the samples of a batch, "
                "so there are no per-sample gradients to clip; use a network with group "
                "normalisation (such as resnet18 with norm = 'group') or without normalisation"
            )


def _mixes_samples(layer: _NormBase) -> bool:
    has_running_statistics = layer.running_mean is not None
    if isinstance(layer, _BatchNorm):
        return layer.training or not has_running_statistics
    # Instance normalisation does not mix samples, but its running statistics would be uploaded
    # without clipping.
    return layer.training and has_running_statistics


# Clients train many batches on the same module, so its properties are cached.
_networks: WeakKeyDictionary[nn.Module, _Network] = WeakKeyDictionary()


def _network_of(module: nn.Module) -> _Network:
    network = _networks.get(module)
    if network is None:
        network = _networks[module] = _Network(module)
    return network


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
    """Compute the clipped sum in three steps; see the module's docstring."""
    by_path = layers.by_path
    with capture_calls(by_path) as calls:
        # Copy the features, since the network may overwrite them, and the batch is needed again if
        # capturing fails.
        outputs = objective.task.outputs(objective.module, batch.x.clone())
    losses = _losses(objective, outputs, batch, copies)
    activations = activations_of(calls, by_path, losses, rows=len(batch), retain_graph=True)
    kernels = layers.kernels(activations, copies)
    squared = torch.zeros(len(losses), dtype=torch.float64, device=losses.device)
    with torch.no_grad():
        for path, (inputs, grads, _) in activations.items():
            if grads is not None:
                squared += kernels[path](by_path[path].module, inputs, grads).squared_norms
        factors = clip_factors(squared, clip).repeat_interleave(copies)
    total: Params = {}
    for path, layer in by_path.items():
        gradients = _weighted_gradients(layer, calls[path], activations[path].grads, factors)
        total.update(zip(layer.names.values(), gradients, strict=True))
    return {name: total[name] for name in objective.params}


def _squares(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    """Compute a loss that is defined for outputs and labels of any task."""
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
    layer: Owner, call: CapturedCall, grads: Tensor | None, factors: Float[Tensor, " rows"]
) -> tuple[Tensor, ...]:
    """Return a layer's parameter gradients, with each row's output gradient times its factor."""
    params = [getattr(layer.module, name) for name in layer.names]
    if grads is None:
        return tuple(torch.zeros_like(param) for param in params)
    weighted = grads * factors.to(grads.dtype).view(-1, *[1] * (grads.dim() - 1))
    inputs = list(params)
    # In torch 2.13, the backward pass of group norm on channels-last images crashes unless the
    # gradient of the input is also computed. Linear layers and convolutions do not crash, and for
    # them this gradient is expensive, so it is not computed.
    if call.entry is not None and type(layer.module) not in (nn.Linear, nn.Conv2d):
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
    """Return some rows of a batch; set ``copied`` if the network may overwrite the features."""
    x = batch.x[rows].clone() if copied else batch.x[rows]
    return Batch(x, batch.y[rows], batch.ids[rows])
