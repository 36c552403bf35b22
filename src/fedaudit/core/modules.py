"""Modules that are kept and refilled, because building one costs more than a small step."""

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
    "fedaudit audits models that take one tensor with a row a sample; a classifier returns one row "
    "of logits a sample"
)

_OTHERS = (
    "fedaudit audits models that take one tensor with a row a sample, or several by name, and give "
    "a row of outputs a sample; tokens are below the number of rows of an embedding"
)

_kept = threading.local()
CHUNK = 128
_TRIED = 3
_CHUNK_ON_GPU = 512


_Key: TypeAlias = tuple[Architecture, str, torch.device]


class _Kept(NamedTuple):
    build: Callable[[], nn.Module]
    module: nn.Module
    filled: set[str]


def loaded(model: Model, use: str, device: torch.device = CPU) -> nn.Module:
    """A kept module of the model's architecture, refilled with the model's parameters.

    It is valid until the next call with the same architecture, ``use`` and device in this
    thread, so that callers who need two at once name two uses. Its training mode is the
    caller's to set.

    Args:
        model: What to run.
        use: Names the purpose, such as "training" or "evaluation".
        device: Where the module is.
    """
    modules: dict[_Key, _Kept] = _kept.__dict__.setdefault("modules", {})
    key, build = (model.architecture, use, device), model.architecture.build
    kept = modules.get(key)
    # What another model has filled and this one does not would otherwise be that model's.
    if kept is None or not _same(kept.build, build) or kept.filled - model.buffers.keys():
        built = model.architecture.built().to(device)
        # The order in memory is chosen for CPUs.
        module = laid_out(built) if device.type == "cpu" else built
        kept = modules[key] = _Kept(build, module, set())
    kept.filled.update(model.buffers)
    module = model.load_into(kept.module)
    for name, buffer in module.named_buffers():
        if name.endswith("num_batches_tracked"):
            # Batch normalisation that averages over all batches weighs them by this count:
            # left from an earlier client, it would make results depend on the engine.
            buffer.zero_()
    return module


def _same(one: Callable[[], nn.Module], other: Callable[[], nn.Module]) -> bool:
    """True if two functions build the same module.

    Names are not enough: in a notebook, a network is changed and keeps its name. Nor is
    identity: what arrives in another process is a copy each time.
    """
    if isinstance(one, partial) and isinstance(other, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return one == other


def outputs_of(model: Model, features: Tensor, device: torch.device = CPU) -> Tensor:
    """A model's outputs on samples, in evaluation mode and without gradients.

    Args:
        model: What to run.
        features: One row a sample.
        device: Where to run it; the outputs come back to where the features are.
    """
    size = by_kind(device, cpu=CHUNK, gpu=_CHUNK_ON_GPU)
    with computing_on(device), torch.no_grad():
        module = loaded(model, "evaluation", device).eval()
        # Copies: a model may overwrite what it is given, and the samples are needed again.
        whole = as_taken(features, model)
        rows = [whole[part].to(device, copy=True) for part in chunks(len(features), size)]
        outputs_on = model.architecture.task.outputs
        return torch.cat([outputs_on(module, part) for part in rows]).to(features.device)


def frozen_digest(architectures: Iterable[Architecture]) -> str:
    """A digest of all values that nobody trains; empty where there are none.

    Names and settings do not tell one pretrained file from another.
    """
    digest, found = hashlib.blake2b(digest_size=16), False
    for one in dict.fromkeys(architectures):
        module = one.built()
        frozen = {n: value for n, value in module.named_parameters() if not value.requires_grad}
        # What stands between frozen layers, such as running means, was trained with them.
        held = {**frozen, **dict(module.named_buffers())} if frozen else {}
        for name, value in held.items():
            digest.update(repr((name, tuple(value.shape), str(value.dtype))).encode())
            digest.update(value.detach().reshape(-1).view(torch.uint8).numpy().data)
        found = found or bool(frozen)
    return digest.hexdigest() if found else ""


def as_taken(features: Tensor, model: Model) -> Tensor:
    """The features in the model's floating-point type; whole numbers stay as they are."""
    kinds = {value.dtype for value in model.params.values()}
    return (
        features.to(kinds.pop()) if features.is_floating_point() and len(kinds) == 1 else features
    )


def refuse_unfit(model: Model, samples: Samples) -> int:
    """Tries a model on a few samples, so that what cannot be audited is refused before training.

    Args:
        model: Any network; none of the catalogue is refused.
        samples: Of the kind that it is trained and audited on, with their labels.

    Returns:
        The number of outputs, a position where samples are sequences: of logits in classification.

    Raises:
        BadInput: It cannot be run on them in evaluation mode, does not give what its task takes,
            such as a row of logits a sample with one for each class, has nothing to train, or
            makes something else of a sample when it is run again or has other samples beside it;
            or its loss is not finite, has no gradient, or mixes samples.
    """
    name, task = model.architecture.name, model.architecture.task
    if not model.params:
        raise BadInput(f"model {name!r} has no trainable parameters; give one that clients train")
    at = _telling(samples)
    few = as_taken(samples.features[at], model)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        module = model.module()
        outputs = _outputs(module, name, task, few)
        again = _outputs(module, name, task, few)
        alone = torch.cat([_outputs(module, name, task, row) for row in torch.split(few, 1)])
    largest = int(samples.labels.max())
    if task.classes and outputs.shape[1] < max(2, largest + 1):
        raise BadInput(
            f"model {name!r} gives {outputs.shape[1]} logits a sample, and labels go up to "
            f"{largest}; {SUPPORTED}, one for each class and at least two"
        )
    if not outputs.requires_grad:
        raise BadInput(
            f"the outputs of model {name!r} have no gradient by its parameters; give it as clients "
            "train it, without no_grad or detach"
        )
    # Rounding differs with the number of rows.
    slack = 3 * torch.finfo(outputs.dtype).eps ** 0.5 * outputs.abs().max()
    if bool(((again - outputs).abs() > slack).any()):
        raise BadInput(
            f"model {name!r} gives the same samples other outputs when it is run again; remove "
            "what is random or counts from its evaluation mode"
        )
    if bool(((alone - outputs).abs() > slack).any()):
        raise BadInput(
            f"model {name!r} gives a sample other outputs with other samples beside it, so that "
            "none has a gradient of its own; leave statistics of the batch, and views that mix "
            "rows, out of its evaluation mode"
        )
    _refuse_loss(model, outputs.detach(), samples.targets[at])
    return outputs.shape[-1] if outputs.ndim > 1 else 1


def _telling(samples: Samples) -> Tensor:
    """Positions of a few samples: the first, and those with the least and the largest whole number.

    An embedding may have no row for it, which otherwise shows in the middle of training.
    """
    features, inputs = samples.features, samples.inputs
    values = list(inputs.unpacked(features).values()) if inputs else [features]
    rows = [value.reshape(len(value), -1) for value in values if not value.is_floating_point()]
    ends = [int(end) for one in rows for end in (one.amin(1).argmin(), one.amax(1).argmax())]
    return torch.tensor(list(dict.fromkeys([*range(min(_TRIED, len(features))), *ends])))


def outputs_tried(
    module: nn.Module, name: str, features: Tensor, task: Task = CLASSIFICATION
) -> object:
    """Whatever a module makes of a few samples in evaluation mode.

    Raises:
        BadInput: It cannot be run on them.
    """
    try:
        found = task.called(module.eval(), features.clone())
    except FedauditError as error:
        raise BadInput(f"model {name!r}: {error}") from error
    # Other people's code raises what it likes.
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise BadInput(
            f"model {name!r} cannot be run on {len(features)} samples of shape "
            f"{_shapes(task, features)} ({type(error).__name__}: {said}); "
            f"{_taken(task)}, for any number of rows"
        ) from error
    return found


def _taken(task: Task) -> str:
    return task.takes or (SUPPORTED if task.classes else _OTHERS)


def _shapes(task: Task, features: Tensor) -> str:
    if task.inputs is None:
        return f"{tuple(features.shape[1:])}"
    return ", ".join(f"{one.name} {one.shape}" for one in task.inputs.fields)


def _outputs(module: nn.Module, name: str, task: Task, features: Tensor) -> Tensor:
    made = outputs_tried(module, name, features, task)
    try:
        found = task.read(made)
    except BadInput as error:
        raise BadInput(f"model {name!r}: {error}") from error
    rows = found.ndim == 2 if task.classes else found.ndim > 0
    if not rows or len(found) != len(features) or not found.is_floating_point():
        raise BadInput(
            f"model {name!r} makes {found.dtype} of shape {tuple(found.shape)} of "
            f"{len(features)} samples; {_taken(task)}"
        )
    return found


def _refuse_loss(model: Model, outputs: Tensor, targets: Tensor) -> None:
    name = model.architecture.name
    given = outputs.requires_grad_()
    try:
        with torch.enable_grad():
            # A copy: a loss may change what it is given.
            losses: object = model.architecture.loss(given.clone(), targets.clone())
    except FedauditError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise BadInput(
            f"the loss cannot be taken of outputs of shape {tuple(outputs.shape)} of model "
            f"{name!r} and targets of shape {tuple(targets.shape)} ({type(error).__name__}: "
            f"{said}); give one that takes them"
        ) from error
    if not isinstance(losses, Tensor) or losses.shape != targets.shape[:1]:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise BadInput(
            f"the loss gives {shape} for {len(targets)} samples of model {name!r}; give one that "
            "has a number for each (reduction='none')"
        )
    if not bool(losses.isfinite().all()):
        raise BadInput(
            f"the loss of model {name!r} is infinite or not a number for "
            f"{int((~losses.isfinite()).sum())} of {len(losses)} samples before anything is "
            "trained; check the loss and the targets"
        )
    slope = None
    if losses.requires_grad:
        (slope,) = torch.autograd.grad(losses[0], given, allow_unused=True)
    if slope is None:
        raise BadInput(
            f"the loss of model {name!r} has no gradient by the outputs; calculate it with torch, "
            "without no_grad, detach or item"
        )
    if bool(slope[1:].nan_to_num().any()):
        raise BadInput(
            f"the loss of a sample of model {name!r} depends on the other samples beside it, so "
            "that none has a gradient of its own; leave means over samples out of it"
        )


def layout(module: nn.Module) -> torch.memory_format:
    """The memory order in which a module trains fastest on a CPU.

    A rule about the architecture, not a timing, so that it never differs between two runs:
    another order changes the last bits of a result.

    Returns:
        Channels last for convolutional networks: 1.2 to 1.7 times as fast with 3x3 and 5x5
        windows. The usual order without 2-d convolutions, and where one of them has a stride
        above 2: most of the work is then on maps of a few pixels, where channels last costs
        15 % (AlexNet). The usual order too where code of somebody else's is run, which may take
        it for granted, as ``x.view(-1, 400)`` does behind a convolution.
    """
    strides = [max(part.stride) for part in module.modules() if isinstance(part, nn.Conv2d)]
    if not strides or max(strides) > 2 or runs_foreign_code(module):
        return torch.contiguous_format
    return torch.channels_last


def runs_foreign_code(module: nn.Module) -> bool:
    """True if a part of a module is written by somebody else than torch and fedaudit, or watched.

    Nothing is known of such code: it may take an order in memory for granted, or draw numbers.
    """
    return not all(
        type(part).__module__.startswith(("torch.nn.modules.", "fedaudit.models."))
        and not part._forward_hooks
        and not part._forward_pre_hooks
        for part in module.modules()
    )


def laid_out(module: nn.Module) -> nn.Module:
    """The module with its convolutions in the order of :func:`layout`, changed in place.

    A module that is to lie in the usual order is left as it is. Inputs need no change: the
    convolutions convert them. Names, shapes and values stay; a copy for others should be made
    with ``clone(memory_format=torch.contiguous_format)``.
    """
    if layout(module) is torch.channels_last:
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                part.weight.data = part.weight.data.to(memory_format=torch.channels_last)
    return module
