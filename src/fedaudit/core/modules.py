"""Cached torch modules of models, and checks that a model can be audited.

A module is built once and then filled with the parameters of each model, since building a module
takes longer than a small training step.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fedaudit.core.devices import CPU, by_kind, computing_on
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.tasks import CLASSIFICATION, Task
from fedaudit.core.values import Architecture, Model, Samples, chunks

SUPPORTED = (
    "fedaudit audits models that take one tensor with one row per sample; a classifier returns one "
    "row of logits per sample"
)

_SUPPORTED_BY_OTHER_TASKS = (
    "fedaudit audits models that take one tensor, or several by name, with one row per sample, and "
    "return one row of outputs per sample; tokens are below the number of rows of an embedding"
)

_cache = threading.local()
CHUNK = 128
"""Number of samples that a CPU evaluates at a time."""
_CHUNK_ON_GPU = 512
_N_PROBES = 3
"""Number of samples on which a model is tried before training."""


_Key: TypeAlias = tuple[Architecture, str, torch.device]


class _CachedModule(NamedTuple):
    """Cached module, the function that built it, and the names of all buffers that were filled."""

    build: Callable[[], nn.Module]
    module: nn.Module
    filled_buffers: set[str]


def load_module(model: Model, use: str, device: torch.device = CPU) -> nn.Module:
    """Return a cached module of the model's architecture, filled with the model's parameters.

    The module is valid until the next call with the same architecture, ``use`` and device in this
    thread. The caller sets its training mode.

    Args:
        model: Model to run.
        use: Name of the purpose, such as "training". Each purpose has a separate module.
        device: Device of the module.
    """
    modules: dict[_Key, _CachedModule] = _cache.__dict__.setdefault("modules", {})
    key, build = (model.architecture, use, device), model.architecture.build
    cached = modules.get(key)
    # If this model lacks a buffer that an earlier model filled, its old value would remain.
    if (
        cached is None
        or not _same_build(cached.build, build)
        or cached.filled_buffers - model.buffers.keys()
    ):
        built = model.architecture.build_module().to(device)
        # The memory layout is chosen for CPUs.
        module = in_fastest_layout(built) if device.type == "cpu" else built
        cached = modules[key] = _CachedModule(build, module, set())
    cached.filled_buffers.update(model.buffers)
    module = model.load_into(cached.module)
    for name, buffer in module.named_buffers():
        if name.endswith("num_batches_tracked"):
            # Batch normalisation without momentum averages over this many batches. With the count
            # of an earlier client, results would depend on the order of clients.
            buffer.zero_()
    return module


def _same_build(a: Callable[[], nn.Module], b: Callable[[], nn.Module]) -> bool:
    """Return whether two functions build the same module.

    Equal names do not suffice, since a network may be redefined in a notebook under the same name.
    Identity cannot be required, since another process receives a copy each time.
    """
    if isinstance(a, partial) and isinstance(b, partial):
        return (a.func, a.args, a.keywords) == (b.func, b.args, b.keywords)
    return a == b


def outputs_of(model: Model, features: Tensor, device: torch.device = CPU) -> Tensor:
    """Return a model's outputs on samples, in evaluation mode and without gradients.

    Args:
        model: Model to run.
        features: Features, one row per sample.
        device: Device that computes the outputs; they are moved to the device of the features.
    """
    size = by_kind(device, cpu=CHUNK, gpu=_CHUNK_ON_GPU)
    with computing_on(device), torch.no_grad():
        module = load_module(model, "evaluation", device).eval()
        # The inputs are copied, since a model may overwrite them, and the samples are used again.
        inputs = in_model_dtype(features, model)
        rows = [inputs[part].to(device, copy=True) for part in chunks(len(features), size)]
        outputs_on = model.architecture.task.outputs
        return torch.cat([outputs_on(module, part) for part in rows]).to(features.device)


def frozen_digest(architectures: Iterable[Architecture]) -> str:
    """Return a digest of all frozen parameters; empty if all parameters are trained.

    It distinguishes pretrained files with the same name and settings.
    """
    digest, has_frozen = hashlib.blake2b(digest_size=16), False
    for architecture in dict.fromkeys(architectures):
        module = architecture.build_module()
        frozen = {n: value for n, value in module.named_parameters() if not value.requires_grad}
        # Buffers of frozen layers, such as running means, were trained with them.
        tensors = {**frozen, **dict(module.named_buffers())} if frozen else {}
        for name, value in tensors.items():
            digest.update(repr((name, tuple(value.shape), str(value.dtype))).encode())
            digest.update(value.detach().reshape(-1).view(torch.uint8).numpy().data)
        has_frozen = has_frozen or bool(frozen)
    return digest.hexdigest() if has_frozen else ""


def in_model_dtype(features: Tensor, model: Model) -> Tensor:
    """Convert features to the model's floating-point type; whole numbers stay as they are."""
    dtypes = {value.dtype for value in model.params.values()}
    return (
        features.to(dtypes.pop()) if features.is_floating_point() and len(dtypes) == 1 else features
    )


def raise_if_unusable_model(model: Model, samples: Samples) -> int:
    """Run a model on a few samples, and raise if it cannot be audited.

    Args:
        model: Any network. All models of the catalogue pass.
        samples: Samples on which the model is trained or audited.

    Returns:
        The number of outputs per sample, or per position of a sequence.

    Raises:
        BadInput: The model cannot be run on the samples in evaluation mode, its task cannot use
            its outputs, or it has no trainable parameters. Or the outputs are random, or depend on
            the other samples of a batch. Or the loss is not finite, has no gradient, or depends on
            the other samples of a batch.
    """
    name, task = model.architecture.name, model.architecture.task
    if not model.params:
        raise BadInput(f"model {name!r} has no trainable parameters; give one that clients train")
    positions = _probe_positions(samples)
    probes = in_model_dtype(samples.features[positions], model)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        module = model.module()
        outputs = _outputs(module, name, task, probes)
        repeated = _outputs(module, name, task, probes)
        one_by_one = torch.cat(
            [_outputs(module, name, task, row) for row in torch.split(probes, 1)]
        )
    largest = int(samples.labels.max())
    if task.classes and outputs.shape[1] < max(2, largest + 1):
        raise BadInput(
            f"model {name!r} gives {outputs.shape[1]} logits per sample, but labels go up to "
            f"{largest}; {SUPPORTED}, with one logit per class and at least two"
        )
    if not outputs.requires_grad:
        raise BadInput(
            f"the outputs of model {name!r} have no gradient with respect to its parameters; give "
            "the model that clients train, and compute its outputs without no_grad or detach"
        )
    # Rounding errors depend on the number of rows.
    tolerance = 3 * torch.finfo(outputs.dtype).eps ** 0.5 * outputs.abs().max()
    if bool(((repeated - outputs).abs() > tolerance).any()):
        raise BadInput(
            f"model {name!r} gives different outputs for the same samples in a second run; remove "
            "randomness and counters from its evaluation mode"
        )
    if bool(((one_by_one - outputs).abs() > tolerance).any()):
        raise BadInput(
            f"model {name!r} gives a sample different outputs in different batches, so "
            "per-sample gradients are undefined; remove batch statistics, and views that mix rows, "
            "from its evaluation mode"
        )
    _raise_if_loss_invalid(model, outputs.detach(), samples.targets[positions])
    return outputs.shape[-1] if outputs.ndim > 1 else 1


def _probe_positions(samples: Samples) -> Tensor:
    """Return positions of the first samples, and of those with the smallest and largest tokens.

    An embedding may lack a row for these tokens, which would stop a run in the middle of training.
    """
    features, inputs = samples.features, samples.inputs
    values = list(inputs.unpack(features).values()) if inputs else [features]
    rows = [value.reshape(len(value), -1) for value in values if not value.is_floating_point()]
    extremes = [
        int(position)
        for columns in rows
        for position in (columns.amin(1).argmin(), columns.amax(1).argmax())
    ]
    return torch.tensor(list(dict.fromkeys([*range(min(_N_PROBES, len(features))), *extremes])))


def try_module(
    module: nn.Module, name: str, features: Tensor, task: Task = CLASSIFICATION
) -> object:
    """Return what a module returns for a few samples in evaluation mode.

    Raises:
        BadInput: The module raises an error.
    """
    try:
        output = task.call_module(module.eval(), features.clone())
    except FedauditError as error:
        raise BadInput(f"model {name!r}: {error}") from error
    # Custom code may raise anything.
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        raise BadInput(
            f"model {name!r} cannot be run on {len(features)} samples of shape "
            f"{_shapes(task, features)} ({type(error).__name__}: {message}); "
            f"{_supported_signature(task)}, for any number of rows"
        ) from error
    return output


def _supported_signature(task: Task) -> str:
    return task.forward_help or (SUPPORTED if task.classes else _SUPPORTED_BY_OTHER_TASKS)


def _shapes(task: Task, features: Tensor) -> str:
    if task.inputs is None:
        return f"{tuple(features.shape[1:])}"
    return ", ".join(f"{field.name} {field.shape}" for field in task.inputs.fields)


def _outputs(module: nn.Module, name: str, task: Task, features: Tensor) -> Tensor:
    returned = try_module(module, name, features, task)
    try:
        outputs = task.extract_outputs(returned)
    except BadInput as error:
        raise BadInput(f"model {name!r}: {error}") from error
    has_rows = outputs.ndim == 2 if task.classes else outputs.ndim > 0
    if not has_rows or len(outputs) != len(features) or not outputs.is_floating_point():
        raise BadInput(
            f"model {name!r} returns {outputs.dtype} of shape {tuple(outputs.shape)} for "
            f"{len(features)} samples; {_supported_signature(task)}"
        )
    return outputs


def _raise_if_loss_invalid(model: Model, outputs: Tensor, targets: Tensor) -> None:
    name = model.architecture.name
    leaf = outputs.requires_grad_()
    try:
        with torch.enable_grad():
            # The inputs are copied, since a loss may overwrite them.
            losses: object = model.architecture.loss(leaf.clone(), targets.clone())
    except FedauditError:
        raise
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        raise BadInput(
            f"the loss cannot be computed from outputs of shape {tuple(outputs.shape)} of model "
            f"{name!r} and targets of shape {tuple(targets.shape)} ({type(error).__name__}: "
            f"{message}); give a loss that accepts them"
        ) from error
    if not isinstance(losses, Tensor) or losses.shape != targets.shape[:1]:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise BadInput(
            f"the loss returns {shape} for {len(targets)} samples of model {name!r}; give one that "
            "returns one number per sample (reduction='none')"
        )
    if not bool(losses.isfinite().all()):
        raise BadInput(
            f"the loss of model {name!r} is infinite or not a number for "
            f"{int((~losses.isfinite()).sum())} of {len(losses)} samples before "
            "training; check the loss and the targets"
        )
    gradient = None
    if losses.requires_grad:
        (gradient,) = torch.autograd.grad(losses[0], leaf, allow_unused=True)
    if gradient is None:
        raise BadInput(
            f"the loss of model {name!r} has no gradient with respect to the outputs; compute it "
            "with torch, without no_grad, detach or item"
        )
    # The loss of the first sample must not change with the outputs of the others.
    if bool(gradient[1:].nan_to_num().any()):
        raise BadInput(
            f"the loss of a sample of model {name!r} depends on the other samples of its batch, so "
            "that per-sample gradients are undefined; remove means over samples from the loss"
        )


def layout(module: nn.Module) -> torch.memory_format:
    """Return the memory layout in which a module trains fastest on a CPU.

    The layout is derived from the architecture and not from a measured time, so that it is the
    same in all runs: another layout changes the last bits of a result.

    Returns:
        Channels last for networks with 2-d convolutions, which is 1.2 to 1.7 times as fast with
        3x3 and 5x5 kernels, except in two cases. With a stride above 2, feature maps have few
        pixels, and channels last takes 15 % longer (AlexNet). Custom code may rely on the default
        layout, as ``x.view(-1, 400)`` after a convolution does.
    """
    strides = [max(part.stride) for part in module.modules() if isinstance(part, nn.Conv2d)]
    if not strides or max(strides) > 2 or runs_custom_code(module):
        return torch.contiguous_format
    return torch.channels_last


def runs_custom_code(module: nn.Module) -> bool:
    """Return whether any submodule has hooks, or is from neither torch nor fedaudit.

    Such code may rely on a memory layout, or draw random numbers.
    """
    return not all(
        type(part).__module__.startswith(("torch.nn.modules.", "fedaudit.models."))
        and not part._forward_hooks
        and not part._forward_pre_hooks
        for part in module.modules()
    )


def in_fastest_layout(module: nn.Module) -> nn.Module:
    """Convert a module's convolutions to the layout of :func:`layout`, in place, and return it.

    Names, shapes and values stay the same, and convolutions convert their inputs. Copy parameters
    with ``clone(memory_format=torch.contiguous_format)`` for other uses.
    """
    if layout(module) is torch.channels_last:
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                part.weight.data = part.weight.data.to(memory_format=torch.channels_last)
    return module
