"""Unlearning once a run is trained: the model that it begins with, and ascent by the owner."""

from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.modules import loaded
from fedaudit.core.params import difference, norm, plus
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import Architecture, Model, Params, Samples, chunks
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.kept_files import under
from fedaudit.observe.measurements import Stored
from fedaudit.observe.tensors import read_tensors
from fedaudit.study.setup.parts import Setup
from fedaudit.study.setup.unlearning import TRAINS_ON


class UnlearnedRounds(NamedTuple):
    """The last round of each federation of unlearning, as it was measured on the run's samples.

    Attributes:
        after: Of the model after unlearning; the run's own where nothing was done.
        retrained: Of the federation that never had the forgotten samples.
    """

    after: Stored
    retrained: Stored


def begun(run: Setup, folder: Path) -> Setup:
    """What unlearning trains, with the model that it begins with.

    Args:
        run: The audited run, which is trained.
        folder: Its own.

    Raises:
        BadInput: The released model is not there any more.
        Damaged: It cannot be read.
    """
    after, given = run.unlearned, run.study.unlearning
    assert after is not None
    assert given is not None
    if given.method not in TRAINS_ON:
        return after
    assert isinstance(after.algorithm, FedAvg)
    model = _released(run, folder)
    if given.method == "ascent":
        model = _climbed(run, model)
    architecture = _beginning_with(after.algorithm.architecture, model)
    return replace(after, algorithm=replace(after.algorithm, architecture=architecture))


def _released(run: Setup, folder: Path) -> Model:
    """The run's final model, as its checkpoint has it."""
    path = folder / "checkpoint.safetensors"
    if not path.is_file():
        raise BadInput(
            f"{path} is not there, and unlearning goes on from the model in it; restore it, or run "
            "the study in another folder"
        )
    tensors, notes = read_tensors(path)
    architecture, state = run.algorithm.architecture, under(tensors, "server/")
    wanted = {name: value.shape for name, value in architecture.initial(0).tensors().items()}
    if (
        notes.get("round") != str(run.study.training.rounds)
        or {name: value.shape for name, value in state.items()} != wanted
    ):
        raise Damaged(f"{path} does not hold the run's final model; restore it from a copy")
    return Model.from_tensors(architecture, state)


def _beginning_with(architecture: Architecture, model: Model) -> Architecture:
    """The architecture with a model in the place of what is drawn."""
    digest = sha256()
    for name, value in sorted(model.tensors().items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return replace(
        architecture,
        build=_Filled(architecture, digest.hexdigest(), model.tensors()),
        settings=(*architecture.settings, ("begins_with", digest.hexdigest())),
    )


@dataclass(frozen=True)
class _Filled:
    # A class, since a partial is compared by its arguments, and tensors have no truth.
    architecture: Architecture
    digest: str
    tensors: Params = field(compare=False, repr=False)

    def __call__(self) -> nn.Module:
        """A module with the values in place."""
        model = Model.from_tensors(self.architecture, self.tensors)
        return model.load_into(self.architecture.build())


def _climbed(run: Setup, released: Model) -> Model:
    """The released model after each owner, in turn, has climbed the loss of its forgotten samples.

    Source: Halimi et al. 2022, Federated Unlearning: How to Erase a Client in FL?
        (projected gradient ascent).
    Differs: The ball lies around the released model, not around the mean of the others' models;
        its radius is a share of the way from a freshly initialised model to it, and all passes are
        made.
    """
    given, audit = run.study.unlearning, run.deal.audit
    assert given is not None
    fresh = released.architecture.initial(seed_for(run.seed, "ascent"))
    radius = given.radius * norm(difference(released.params, fresh.params))
    how = LocalTraining(given.epochs, run.study.training.batch_size, given.lr)
    model = released
    for target in run.study.audit.targets:
        own = audit.samples.take(torch.from_numpy(np.asarray(audit.owner == target)))
        rng = seeded(run.seed, "ascent", target)
        model = _ascent(model, own, how, rng, around=released, radius=radius)
    return model


def _ascent(
    model: Model,
    samples: Samples,
    how: LocalTraining,
    rng: torch.Generator,
    *,
    around: Model,
    radius: float,
) -> Model:
    """Steps up the mean loss, each brought back into a ball of parameters around a model."""
    module = loaded(model, "ascent").train()
    named = {name: value for name, value in module.named_parameters() if value.requires_grad}
    task = model.architecture.task
    for _ in range(how.epochs):
        order = torch.randperm(len(samples), generator=rng)
        for part in chunks(len(samples), how.batch_size):
            batch = samples.take(order[part])
            outputs = task.outputs(module, batch.features)
            loss = task.losses(outputs, batch.targets).mean()
            slopes = torch.autograd.grad(loss, list(named.values()))
            with torch.no_grad():
                for value, slope in zip(named.values(), slopes, strict=True):
                    value.add_(slope, alpha=how.lr)
                change = difference(named, around.params)
                scale = min(1.0, radius / max(norm(change), 1e-30))
                for name, moved in plus(around.params, change, scale).items():
                    named[name].copy_(moved)
    climbed = Model.of(model.architecture, module)
    # Running statistics stay the released model's: samples to be forgotten have no say in them.
    return replace(climbed, buffers=model.buffers)
