"""Conversion of the network that clients train to a model of fedaudit."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.modules import SUPPORTED, in_model_dtype, raise_if_unusable_model, try_module
from fedaudit.core.tasks import (
    CLASSIFICATION,
    PerSampleLoss,
    Task,
    classification_with_loss,
    cross_entropy,
)
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.unsent import find_unsent
from fedaudit.live.weights import ModelLayout
from fedaudit.observe.layout import is_frozen

NetworkSource: TypeAlias = nn.Module | Callable[[], nn.Module]
"""A module, or a function that builds one."""
_Hook: TypeAlias = Callable[[nn.Module, tuple[object, ...], object], Tensor]

_REMEDY = (
    "give a torch.nn.Module, or a function that returns one; for a linear model of "
    "scikit-learn that is torch.nn.Linear(features, classes), whose parameters are [coef_, "
    "intercept_]"
)
_N_LOGIT_SAMPLES = 3
"""Number of samples that show whether outputs are logits."""


class Network(NamedTuple):
    """Network that clients train.

    Attributes:
        architecture: The network, with hooks that convert its outputs to logits.
        layout: Names and shapes of the parameters and buffers in uploads.
        classes: Number of outputs.
    """

    architecture: Architecture
    layout: ModelLayout
    classes: int


def network_of(
    model: NetworkSource, samples: AuditSet, task: Task, not_uploaded: Collection[str] = ()
) -> Network:
    """Convert a module to a network; the module is not changed.

    If the module returns an object or a dictionary, its entry ``logits`` is the output. A single
    logit z of a binary classifier becomes the two logits 0 and z, which have the same loss. Half
    precision is measured in single precision, and torch's wrappers are removed.
    """
    with torch.random.fork_rng(devices=[]):
        module, build = _module_and_builder(model)
        name = type(module).__name__
        without_hooks = Model.of(Architecture(name, build), module)
        hooks: tuple[_Hook, ...] = ()
        inputs = samples.samples.inputs
        if task == CLASSIFICATION and inputs is None:
            hooks, loss = _logit_hooks(without_hooks, samples.samples, task.losses)
            task = classification_with_loss(loss)
        task = replace(task, inputs=inputs)
        build_hooked = partial(_build_with_hooks, build, hooks) if hooks else build
        architecture = Architecture(name, build_hooked, task=task)
        converted = Model(architecture, without_hooks.params, without_hooks.buffers)
        n_outputs = raise_if_unusable_model(converted, samples.samples)
        raise_if_probabilities(converted, samples.samples)
        unsent = find_unsent(converted, samples.samples, not_uploaded)
    return Network(architecture, ModelLayout(converted, module, unsent), n_outputs)


def _module_and_builder(model: NetworkSource) -> tuple[nn.Module, Callable[[], nn.Module]]:
    """Return a module, and a function that builds untrained modules of the same kind."""
    if isinstance(model, nn.Module):
        try:
            module = _unwrapped(copy.deepcopy(model))
        except RuntimeError as error:
            raise BadInput(
                f"model is a {type(model).__name__} that cannot be copied ({error}); give the "
                "class or function that creates it"
            ) from error
        return module, partial(_reinitialised, module)
    name = getattr(model, "__name__", type(model).__name__)
    try:
        result: object = model()
    # The class needs arguments, or the object cannot be called.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(
            f"model is {name}, which returns no network ({reason}); {_REMEDY}"
        ) from error
    if not isinstance(result, nn.Module):
        raise BadInput(f"model returns {type_of(result)}; {_REMEDY}")
    return _unwrapped(result), partial(_build_unwrapped, model)


def _build_unwrapped(build: Callable[[], nn.Module]) -> nn.Module:
    return _unwrapped(build())


def _reinitialised(trained: nn.Module) -> nn.Module:
    """Return an untrained copy of a module.

    Layers are reset by their own method. Trainable parameters that this does not change are drawn
    at random.
    """
    module = copy.deepcopy(trained)
    for layer in module.modules():
        if is_frozen(layer):
            continue
        # The attention and transformer layers of torch have only a private method.
        for name in ("reset_parameters", "_reset_parameters"):
            reset = getattr(layer, name, None)
            if callable(reset):
                reset()
                break
    with torch.no_grad():
        for new, old in zip(module.parameters(), trained.parameters(), strict=True):
            if not old.requires_grad:
                # Frozen parameters were trained before the federation and keep their values.
                new.copy_(old)
            elif torch.equal(new, old) and _varies(old):
                # Keep mean and standard deviation, so that outputs keep their scale.
                new.normal_(float(old.mean()), float(old.std()))
    return module


def _varies(value: Tensor) -> bool:
    """Return True if entries differ; a constant, such as a bias of 0, is not drawn at random."""
    return value.numel() > 1 and bool((value != value.reshape(-1)[0]).any())


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the network without torch's wrappers, on the CPU, in single precision or more."""
    # Compare the names of classes, since importing the compiler takes seconds.
    while (kind := type(module).__name__) in _ATTRIBUTE_OF_WRAPPER:
        module = module.get_submodule(_ATTRIBUTE_OF_WRAPPER[kind])
    values = [*module.parameters(), *module.buffers()]
    is_half = any(value.dtype in (torch.float16, torch.bfloat16) for value in values)
    return module.cpu().float() if is_half else module.cpu()


_ATTRIBUTE_OF_WRAPPER = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}


def _build_with_hooks(build: Callable[[], nn.Module], hooks: tuple[_Hook, ...]) -> nn.Module:
    module = build()
    for hook in hooks:
        module.register_forward_hook(hook)
    return module


def _logit_hooks(
    model: Model, samples: Samples, loss: PerSampleLoss
) -> tuple[tuple[_Hook, ...], PerSampleLoss]:
    """Return hooks that convert outputs to logits, and the loss of these logits."""
    features = in_model_dtype(samples.features[:_N_LOGIT_SAMPLES], model)
    with torch.no_grad():
        outputs = try_module(model.module(), model.architecture.name, features)
    hooks: tuple[_Hook, ...] = ()
    if not isinstance(outputs, Tensor) and isinstance(_logits_of(outputs), Tensor):
        outputs, hooks = _logits_of(outputs), (_extract_logits,)
    if not isinstance(outputs, Tensor) or outputs.ndim not in (1, 2):
        return hooks, loss
    if len(outputs) == outputs.numel() == len(features) and int(samples.labels.max()) < 2:
        # Cross-entropy gives the same loss for the logit z and the two logits 0 and z.
        is_flat = outputs.ndim == 1
        loss = loss if loss is cross_entropy else partial(_loss_of_one_logit, loss, is_flat)
        hooks = (*hooks, _two_logits)
    return hooks, loss


def _logits_of(outputs: object) -> object:
    """Return the entry or attribute ``logits``, or None."""
    if isinstance(outputs, Mapping):
        return outputs.get("logits")
    return getattr(outputs, "logits", None)


def _extract_logits(module: nn.Module, args: tuple[object, ...], outputs: object) -> Tensor:
    logits = _logits_of(outputs)
    if not isinstance(logits, Tensor):
        raise BadInput(f"{type_of(module)} returned no logits, unlike before")
    return logits


def _two_logits(module: nn.Module, args: tuple[object, ...], outputs: object) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise BadInput(f"{type_of(module)} returned no logit, unlike before")
    logit = outputs.reshape(-1)
    return torch.stack([torch.zeros_like(logit), logit], dim=1)


def _loss_of_one_logit(
    loss: PerSampleLoss, is_flat: bool, outputs: Tensor, labels: Tensor
) -> Tensor:
    """Pass the single logit to the user's loss, in the form in which the module returned it."""
    return loss(outputs[:, 1] if is_flat else outputs[:, 1:], labels)


_TASKS_WITH_LOGITS = ("classification", "binary", "multi-label", "next-token")
_N_PROBABILITY_SAMPLES = 8
"""Number of samples that show whether outputs are probabilities."""
_NOISE_SCALES = (0.1, 1.0, 10.0)
"""Standard deviations of the noise that is added to all parameters, one after the other."""
_TOLERANCE = 1e-4
"""Rounding error of probabilities and of their sum."""


def raise_if_probabilities(model: Model, samples: Samples) -> None:
    """Raise if a network ends in a sigmoid or a softmax, and its task takes logits.

    With other parameters, logits leave [0, 1] but probabilities never do, so the network is run
    with noise on its parameters. Constant outputs prove nothing.
    """
    task = model.architecture.task
    if task.name not in _TASKS_WITH_LOGITS:
        return
    if task.name == "classification" and model.architecture.loss is not cross_entropy:
        return
    rows = list[Tensor]()
    for outputs in _perturbed_outputs(model, samples):
        numbers = outputs[~outputs.isnan()]
        if bool(((numbers < -_TOLERANCE) | (numbers > 1 + _TOLERANCE)).any()):
            return
        rows.append(outputs.reshape(-1, outputs.shape[-1]))
    all_rows = torch.cat(rows).nan_to_num()
    if bool((all_rows == all_rows[0]).all()):
        return
    sums = all_rows.sum(-1)
    last = "softmax" if bool(((sums - 1).abs() < _TOLERANCE).all()) else "sigmoid"
    raise BadInput(
        f"model {model.architecture.name!r} returns probabilities; {SUPPORTED}: give a subclass "
        f"whose forward omits the {last}"
    )


def _perturbed_outputs(model: Model, samples: Samples) -> Iterator[Tensor]:
    """Yield outputs with the network's parameters, and with noise added to all parameters."""
    task, module = model.architecture.task, model.module()
    features = in_model_dtype(samples.features[:_N_PROBABILITY_SAMPLES], model)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        yield task.outputs(module, features.clone())
        for scale in _NOISE_SCALES:
            for value in module.parameters():
                if value.is_floating_point():
                    value.add_(scale * torch.randn(value.shape, generator=rng, dtype=value.dtype))
            yield task.outputs(module, features.clone())
