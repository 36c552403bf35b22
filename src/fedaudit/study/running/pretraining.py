"""Pretraining of a study's network, or of its frozen part, on public data."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from math import cos, pi
from pathlib import Path

import torch
from torch import Tensor, nn

from fedaudit.core.devices import CPU, computing_on, fork_generators
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import Lock, parse_json
from fedaudit.core.modules import raise_if_unusable_model
from fedaudit.core.pretrained import pretrained_file
from fedaudit.core.progress import Progress, ignore_progress
from fedaudit.core.seeds import seed_for, seed_globally, seeded
from fedaudit.core.tasks import Task
from fedaudit.core.values import Architecture, Params, Samples
from fedaudit.engines.local import one_thread
from fedaudit.models import architecture
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.plan.parts import Parts
from fedaudit.plan.sections import PretrainingSection, Study
from fedaudit.study.build import dataset_of

_WARM_UP = 100
"""Number of steps in which the learning rate rises."""
_CHECKPOINT_EVERY = 200
"""Number of steps between checkpoints, from which a stopped pretraining resumes."""
_SETTINGS = "settings"


def pretrain(
    parts: Parts,
    data_dir: Path | None = None,
    *,
    device: torch.device = CPU,
    progress: Progress = ignore_progress,
    log: Callable[[str], None] = lambda text: None,
) -> None:
    """Pretrain the network of a study, unless it is stored from an earlier study.

    A stopped pretraining resumes from its last checkpoint.

    Args:
        parts: Parts of the study. Without a table ``[pretraining]``, nothing is done.
        data_dir: Folder of data sets; by default, the folder in the environment variable
            ``FEDAUDIT_DATA``.
        device: Device that trains the network.
        progress: Called with (phase, done, total) during training.
        log: Called with lines of text for the user.

    Raises:
        FedauditError: The data cannot be loaded, or the folder cannot be written.
    """
    study, section = parts.study, parts.study.pretraining
    if section is None:
        return
    file = pretrained_file(study.pretrained_name)
    if file.exists() and not file.is_file():
        raise BadInput(
            f"{file} is not a regular file; remove it, because the pretrained network is stored "
            "at this path later"
        )
    if file.is_file():
        _raise_if_other_pretraining(file, study)
        log(f"pretrained network: {file}")
        return
    folder = file.with_suffix("")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"{file.parent} cannot be written ({error}); set FEDAUDIT_PRETRAINED to a folder for "
            "pretrained networks"
        ) from error
    with closing(Lock(folder)) as lock:
        if not lock.acquire():
            log(f"another process pretrains {file}; waiting for it")
            lock.acquire(wait=True)
        if file.is_file():
            return
        log(f"pretraining {file}; this is done once, and can be stopped and resumed")
        net, samples = _network_and_data(study, parts.task, section, data_dir)
        checkpoint = folder / "training.safetensors"
        params = _train(net, samples, section, checkpoint, device, progress)
        if not all(bool(value.isfinite().all()) for value in params.values()):
            checkpoint.unlink(missing_ok=True)
            raise BadInput(
                "parameters are infinite or not a number after the pretraining; lower "
                "pretraining.lr"
            )
        write_tensors(params, file, {_SETTINGS: json.dumps(study.pretrained_settings)})
        checkpoint.unlink(missing_ok=True)


def _raise_if_other_pretraining(file: Path, study: Study) -> None:
    """Raise if a file is not the result of this study's pretraining."""
    notes = read_tensors(file)[1]
    try:
        settings = parse_json(notes.get(_SETTINGS, "null"))
    except (ValueError, RecursionError):
        settings = None
    if settings != json.loads(json.dumps(study.pretrained_settings)):
        raise BadInput(
            f"{file} was not written by the [pretraining] of {study.name!r}; delete it to pretrain "
            "again, or leave out [pretraining] and name the file in model.options.weights"
        )


def _network_and_data(
    study: Study, task: Task, section: PretrainingSection, data_dir: Path | None
) -> tuple[Architecture, Samples]:
    """Return the network and the public training samples."""
    public = dataset_of(section.data, task, section.seed, data_dir)
    train = public.train
    private = dataset_of(study.data, task, study.seeds[0], data_dir).train
    if private.features.shape[1:] != train.features.shape[1:] or private.inputs != train.inputs:
        raise BadInput(
            f"samples of {section.data.name!r}, on which the network is pretrained, have another "
            f"shape than samples of {study.data.name!r}; give public data of the same shape"
        )
    net = architecture(
        study.model.name,
        replace(task, inputs=train.inputs),
        shape=train.inputs.first_shape if train.inputs else tuple(train.features.shape[1:]),
        classes=task.output_width(train.features, train.targets) or public.classes,
        weights="",
        **study.model.options,
    )
    raise_if_unusable_model(net.initial(section.seed), train)
    return net, train


def _train(
    net: Architecture,
    samples: Samples,
    section: PretrainingSection,
    checkpoint: Path,
    device: torch.device,
    progress: Progress,
) -> Params:
    """Train a network and return all of its parameters."""
    module = net.build_module(section.seed).to(device).train().requires_grad_(True)
    optimizer = torch.optim.Adam(module.parameters(), lr=section.lr)
    batch_size = min(section.batch_size, len(samples))
    steps_per_epoch = len(samples) // batch_size
    total = section.epochs * steps_per_epoch
    done = _resume(checkpoint, module, optimizer) if checkpoint.is_file() else 0
    order, epoch = torch.empty(0), -1
    with one_thread(), computing_on(device), fork_generators(device):
        for step in range(done, total):
            progress("pretraining", step, total)
            if step // steps_per_epoch != epoch:
                epoch = step // steps_per_epoch
                order = torch.randperm(len(samples), generator=seeded(section.seed, "epoch", epoch))
            first = step % steps_per_epoch * batch_size
            batch = samples.take(order[first : first + batch_size])
            # Seeded in every step, so that a resumed pretraining gives the same network.
            seed_globally(seed_for(section.seed, "step", step))
            x = batch.features
            x = x.float() if x.is_floating_point() else x
            outputs = net.task.outputs(module, x.to(device))
            loss = net.loss(outputs, batch.targets.to(device)).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            warm_up = min(1.0, (step + 1) / _WARM_UP)
            decay = 0.5 * (1 + cos(pi * step / total))
            optimizer.param_groups[0]["lr"] = section.lr * warm_up * decay
            optimizer.step()
            if (step + 1) % _CHECKPOINT_EVERY == 0:
                loss_value = float(loss.detach())
                _write_checkpoint(checkpoint, module, optimizer, step + 1, loss_value)
        progress("pretraining", total, total)
    return {name: value.cpu() for name, value in module.state_dict().items()}


def _write_checkpoint(
    checkpoint: Path, module: nn.Module, optimizer: torch.optim.Adam, step: int, loss: float
) -> None:
    moments = {
        f"{kind}/{index}": value
        for index, state in optimizer.state_dict()["state"].items()
        for kind, value in state.items()
    }
    params = {f"params/{name}": value for name, value in module.state_dict().items()}
    write_tensors(params | moments, checkpoint, {"step": str(step), "loss": f"{loss:.4f}"})


def _resume(checkpoint: Path, module: nn.Module, optimizer: torch.optim.Adam) -> int:
    """Load a checkpoint and return its number of steps."""
    try:
        values, notes = read_tensors(checkpoint)
        params: Params = {}
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in values.items():
            kind, _, key = name.partition("/")
            if kind == "params":
                params[key] = value
            else:
                state.setdefault(int(key), {})[kind] = value
        module.load_state_dict(params)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        return int(notes["step"])
    except (Damaged, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Damaged(
            f"{checkpoint} is not a checkpoint of this pretraining; delete it to start again"
        ) from error
