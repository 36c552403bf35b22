"""Pretraining: the training of a study's frozen network beforehand, on public data."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from math import cos, pi
from pathlib import Path

import torch
from torch import Tensor, nn

from fedaudit.core.devices import CPU, computing_on, forked
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import Lock, parsed_json
from fedaudit.core.modules import refuse_unfit
from fedaudit.core.pretrained import pretrained_file
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.seeds import seed_for, seed_globally, seeded
from fedaudit.core.tasks import Task
from fedaudit.core.values import Architecture, Params, Samples
from fedaudit.datasets.catalog import load
from fedaudit.engines.local import one_thread
from fedaudit.models import architecture
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.plan.parts import Parts
from fedaudit.plan.sections import PretrainingSection, Study
from fedaudit.study.build import dataset_of

_WARM_UP = 100
"""Steps in which the learning rate rises."""
_KEPT_EVERY = 200
"""Steps from one of those at which a stopped training goes on to the next."""
_SETTINGS = "settings"


def pretrained_for(
    parts: Parts,
    data_dir: Path | None = None,
    *,
    device: torch.device = CPU,
    progress: Progress = quiet,
    log: Callable[[str], None] = lambda text: None,
) -> None:
    """Sees to it that the values are there which a study's frozen network begins with.

    They are trained once for all studies with the same settings, and a training that is stopped
    goes on where it was.

    Args:
        parts: Of the study; without a ``[pretraining]`` table nothing is done.
        data_dir: Folder with data sets; by default what ``FEDAUDIT_DATA`` says.
        device: Where to train.
        progress: Called with (phase, done, total) as training goes on.
        log: Takes lines of text for the user.

    Raises:
        FedauditError: The data are not there, or the folder cannot be written.
    """
    study, given = parts.study, parts.study.pretraining
    if given is None:
        return
    file = pretrained_file(study.pretrained_name)
    if file.exists() and not file.is_file():
        raise BadInput(f"{file} is no file, and is to be the pretrained network's; remove it")
    if file.is_file():
        _refuse_other(file, study)
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
        if not lock.taken():
            log(f"another process pretrains {file}; waiting for it")
            lock.taken(wait=True)
        if file.is_file():
            return
        log(f"pretraining once, for {file}; a stopped one goes on where it was")
        net, samples = _public(study, parts.task, given, data_dir)
        part = folder / "training.safetensors"
        trained = _trained(net, samples, given, part, device, progress)
        if not all(bool(value.isfinite().all()) for value in trained.values()):
            part.unlink(missing_ok=True)
            raise BadInput(
                "the pretraining ended in values that are infinite or not a number; lower "
                "pretraining.lr"
            )
        write_tensors(trained, file, {_SETTINGS: json.dumps(study.pretrained_settings)})
        part.unlink(missing_ok=True)


def _refuse_other(file: Path, study: Study) -> None:
    """Refuses a file that was not made by this study's pretraining, whatever it is called."""
    notes = read_tensors(file)[1]
    try:
        made_by = parsed_json(notes.get(_SETTINGS, "null"))
    except (ValueError, RecursionError):
        made_by = None
    if made_by != json.loads(json.dumps(study.pretrained_settings)):
        raise BadInput(
            f"{file} was not made by the [pretraining] of {study.name!r}; delete it, to have it "
            "made anew, or name it in model.options.weights, without a [pretraining]"
        )


def _public(
    study: Study, task: Task, given: PretrainingSection, data_dir: Path | None
) -> tuple[Architecture, Samples]:
    """The network and the data that it is trained on."""
    data = given.data
    public = load(data.name, task, data.classes, data_dir=data_dir, seed=given.seed, **data.options)
    train = public.train
    own = dataset_of(study, task, study.seeds[0], data_dir).train
    if own.features.shape[1:] != train.features.shape[1:] or own.inputs != train.inputs:
        raise BadInput(
            f"a sample of {data.name!r}, on which the network is pretrained, has another shape "
            f"than one of {study.data.name!r}; give public data of the same shape"
        )
    net = architecture(
        study.model.name,
        replace(task, inputs=train.inputs),
        shape=train.inputs.shape if train.inputs else tuple(train.features.shape[1:]),
        classes=task.width(train.features, train.targets) or public.classes,
        weights="",
        **study.model.options,
    )
    refuse_unfit(net.initial(given.seed), train)
    return net, train


def _trained(
    net: Architecture,
    samples: Samples,
    how: PretrainingSection,
    part: Path,
    device: torch.device,
    progress: Progress,
) -> Params:
    """All parameters of a network after training, whichever are frozen later on."""
    module = net.built(how.seed).to(device).train().requires_grad_(True)
    optimizer = torch.optim.Adam(module.parameters(), lr=how.lr)
    size = min(how.batch_size, len(samples))
    steps = len(samples) // size
    total = how.epochs * steps
    done = _resumed(part, module, optimizer) if part.is_file() else 0
    order, epoch = torch.empty(0), -1
    with one_thread(), computing_on(device), forked(device):
        for step in range(done, total):
            progress("pretraining", step, total)
            if step // steps != epoch:
                epoch = step // steps
                order = torch.randperm(len(samples), generator=seeded(how.seed, "epoch", epoch))
            first = step % steps * size
            batch = samples.take(order[first : first + size])
            seed_globally(seed_for(how.seed, "step", step))
            x = batch.features
            x = x.float() if x.is_floating_point() else x
            outputs = net.task.outputs(module, x.to(device))
            loss = net.loss(outputs, batch.targets.to(device)).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            warm = min(1.0, (step + 1) / _WARM_UP)
            optimizer.param_groups[0]["lr"] = how.lr * warm * 0.5 * (1 + cos(pi * step / total))
            optimizer.step()
            if (step + 1) % _KEPT_EVERY == 0:
                _keep(part, module, optimizer, step + 1, float(loss.detach()))
        progress("pretraining", total, total)
    return {name: value.cpu() for name, value in module.state_dict().items()}


def _keep(
    part: Path, module: nn.Module, optimizer: torch.optim.Adam, step: int, loss: float
) -> None:
    moments = {
        f"{kind}/{index}": value
        for index, state in optimizer.state_dict()["state"].items()
        for kind, value in state.items()
    }
    params = {f"params/{name}": value for name, value in module.state_dict().items()}
    write_tensors(params | moments, part, {"step": str(step), "loss": f"{loss:.4f}"})


def _resumed(part: Path, module: nn.Module, optimizer: torch.optim.Adam) -> int:
    """Takes up a training that was stopped; says after how many steps."""
    try:
        values, notes = read_tensors(part)
        params: Params = {}
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in values.items():
            kind, _, rest = name.partition("/")
            if kind == "params":
                params[rest] = value
            else:
                state.setdefault(int(rest), {})[kind] = value
        module.load_state_dict(params)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        return int(notes["step"])
    except (Damaged, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Damaged(
            f"{part} is not the half of this pretraining that was done; delete it, to begin anew"
        ) from error
