"""Networks that clients of a recorded federation train, as models of fedaudit."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.modules import SUPPORTED, in_model_dtype, refuse_unfit, try_module
from fedaudit.core.tasks import (
    CLASSIFICATION,
    PerSampleLoss,
    Task,
    classification_by,
    cross_entropy,
)
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.weights import Shape, unsent_in

Given: TypeAlias = nn.Module | Callable[[], nn.Module]
_Hook: TypeAlias = Callable[[nn.Module, tuple[object, ...], object], Tensor]

_REMEDY = (
    "give a torch.nn.Module, or a function that returns one; for a linear model of "
    "scikit-learn that is torch.nn.Linear(features, classes), whose parameters are [coef_, "
    "intercept_]"
)
_N_TRIED = 3


class Network(NamedTuple):
    """Network that is trained elsewhere."""

    architecture: Architecture
    shape: Shape
    classes: int


def network_of(
    model: Given, samples: AuditSet, task: Task, not_uploaded: Collection[str] = ()
) -> Network:
    """Describe a network; a given module is not changed.

    ``logits`` of a returned object or dictionary are its outputs. One logit z of a binary
    classifier is read as the two logits 0 and z, which have the same loss. Half precision is
    measured in single precision, and torch's wrappers are removed.
    """
    with torch.random.fork_rng(devices=[]):
        module, build = _made(model)
        name = type(module).__name__
        plain = Model.of(Architecture(name, build), module)
        hooks: tuple[_Hook, ...] = ()
        inputs = samples.samples.inputs
        if task == CLASSIFICATION and inputs is None:
            hooks, loss = _as_logits(plain, samples.samples, task.losses)
            task = classification_by(loss)
        task = replace(task, inputs=inputs)
        architecture = Architecture(
            name, partial(_hooked, build, hooks) if hooks else build, task=task
        )
        known_model = Model(architecture, plain.params, plain.buffers)
        outputs = refuse_unfit(known_model, samples.samples)
        refuse_probabilities(known_model, samples.samples)
        unsent = unsent_in(known_model, samples.samples, not_uploaded)
    return Network(architecture, Shape(known_model, module, unsent), outputs)


def _made(model: Given) -> tuple[nn.Module, Callable[[], nn.Module]]:
    """Return a module and a function that builds untrained ones."""
    if isinstance(model, nn.Module):
        try:
            module = _plain(copy.deepcopy(model))
        except RuntimeError as error:
            raise BadInput(
                f"the {type(model).__name__} that is given as model cannot be copied ({error}); "
                "give the class or function that creates it"
            ) from error
        return module, partial(_drawn_anew, module)
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
    return _plain(result), partial(_made_plain, model)


def _made_plain(make: Callable[[], nn.Module]) -> nn.Module:
    return _plain(make())


def _drawn_anew(like: nn.Module) -> nn.Module:
    """Return an untrained copy: layers are reset, and unchanged parameters drawn again."""
    module = copy.deepcopy(like)
    for part in module.modules():
        parameters = [*part.parameters(recurse=False)]
        if parameters and not any(value.requires_grad for value in parameters):
            continue
        # torch's attention and transformers have a private method instead.
        for name in ("reset_parameters", "_reset_parameters"):
            reset = getattr(part, name, None)
            if callable(reset):
                reset()
                break
    with torch.no_grad():
        for new, old in zip(module.parameters(), like.parameters(), strict=True):
            if not old.requires_grad:
                # Frozen parameters were trained before and keep their values.
                new.copy_(old)
            elif torch.equal(new, old) and _varies(old):
                # Keep mean and standard deviation, so that outputs keep their scale.
                new.normal_(float(old.mean()), float(old.std()))
    return module


def _varies(value: Tensor) -> bool:
    """Return True if entries differ; a reset does not change constants."""
    return value.numel() > 1 and bool((value != value.reshape(-1)[0]).any())


def _plain(module: nn.Module) -> nn.Module:
    """Return the network without torch's wrappers, on the CPU, in single precision or more."""
    # Compare names, since importing the compiler takes seconds.
    while (kind := type(module).__name__) in _WRAPPERS:
        module = module.get_submodule(_WRAPPERS[kind])
    values = [*module.parameters(), *module.buffers()]
    half = any(value.dtype in (torch.float16, torch.bfloat16) for value in values)
    return module.cpu().float() if half else module.cpu()


_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}


def _hooked(build: Callable[[], nn.Module], hooks: tuple[_Hook, ...]) -> nn.Module:
    module = build()
    for hook in hooks:
        module.register_forward_hook(hook)
    return module


def _as_logits(
    model: Model, samples: Samples, loss: PerSampleLoss
) -> tuple[tuple[_Hook, ...], PerSampleLoss]:
    """Return hooks that turn outputs into logits, and the loss of these logits."""
    name, module = model.architecture.name, model.module()
    few = in_model_dtype(samples.features[:_N_TRIED], model)
    with torch.no_grad():
        outputs = try_module(module, name, few)
        hooks: tuple[_Hook, ...] = ()
        if not isinstance(outputs, Tensor) and isinstance(_named(outputs), Tensor):
            outputs, hooks = _named(outputs), (_logits_of,)
        if not isinstance(outputs, Tensor) or len(outputs) != len(few):
            return hooks, loss
        if outputs.numel() == len(few) and outputs.ndim in (1, 2) and int(samples.labels.max()) < 2:
            flat = outputs.ndim == 1
            logit_loss = loss if loss is cross_entropy else partial(_of_one, loss, flat)
            return (*hooks, _two_logits), logit_loss
    return hooks, loss


def _named(outputs: object) -> object:
    if isinstance(outputs, Mapping):
        return outputs.get("logits")
    return getattr(outputs, "logits", None)


def _logits_of(module: nn.Module, args: tuple[object, ...], outputs: object) -> Tensor:
    logits = _named(outputs)
    if not isinstance(logits, Tensor):
        raise BadInput(f"{type_of(module)} returned no logits, unlike before")
    return logits


def _two_logits(module: nn.Module, args: tuple[object, ...], outputs: object) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise BadInput(f"{type_of(module)} returned no logit, unlike before")
    logit = outputs.reshape(-1)
    return torch.stack([torch.zeros_like(logit), logit], dim=1)


def _of_one(loss: PerSampleLoss, flat: bool, outputs: Tensor, labels: Tensor) -> Tensor:
    return loss(outputs[:, 1] if flat else outputs[:, 1:], labels)


_OF_LOGITS = ("classification", "binary", "multi-label", "next-token")
_TRIED = 8
_SCALES = (0.1, 1.0, 10.0)
"""Standard deviations of the noise that is added to all parameters, one after the other."""

_SLACK = 1e-4


def refuse_probabilities(model: Model, samples: Samples) -> None:
    """Raise if a network ends in a sigmoid or a softmax, and its task takes logits.

    Logits leave [0, 1] for some parameters but probabilities never do, so the network is run with
    several parameters. Constant outputs are no evidence.
    """
    task = model.architecture.task
    if task.name not in _OF_LOGITS:
        return
    if task.name == "classification" and model.architecture.loss is not cross_entropy:
        return
    seen = list[Tensor]()
    for outputs in _tried(model, samples):
        finite = outputs[~outputs.isnan()]
        if bool(((finite < -_SLACK) | (finite > 1 + _SLACK)).any()):
            return
        seen.append(outputs)
    # The logits 0 and z of one logit z have a column that never changes.
    columns = torch.cat([outputs.reshape(-1, outputs.shape[-1]) for outputs in seen]).nan_to_num()
    if bool((columns == columns[0]).all()):
        return
    sums = columns.sum(-1)
    last = "softmax" if bool(((sums - 1).abs() < _SLACK).all()) else "sigmoid"
    raise BadInput(
        f"model {model.architecture.name!r} returns probabilities; {SUPPORTED}: give a subclass "
        f"whose forward omits the {last}"
    )


def _tried(model: Model, samples: Samples) -> Iterator[Tensor]:
    """Yield outputs on a few samples, with the network's parameters and with perturbed ones."""
    task, module = model.architecture.task, model.module()
    rows = in_model_dtype(samples.features[:_TRIED], model)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        yield task.outputs(module, rows.clone())
        for scale in _SCALES:
            for value in (each for each in module.parameters() if each.is_floating_point()):
                value.add_(scale * torch.randn(value.shape, generator=rng, dtype=value.dtype))
            yield task.outputs(module, rows.clone())
