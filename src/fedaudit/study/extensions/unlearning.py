"""The table [unlearning]: what is trained once samples are forgotten, and what is left of them."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn

from fedaudit.core.errors import BadInput, Damaged, FedauditError, Unsupported
from fedaudit.core.modules import loaded
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import (
    NOBODY,
    Architecture,
    ClientId,
    Model,
    Params,
    Samples,
    chunks,
    difference,
    norm,
    plus,
)
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Deal
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.algorithms.fedavg import FedAvg, FedProx
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.kept_files import under
from fedaudit.observe.measurements import Stored
from fedaudit.observe.tensors import read_tensors
from fedaudit.study.extensions.examples import own_seed
from fedaudit.study.settings.optional import OPTIONAL, UnlearningSection
from fedaudit.study.settings.sections import ServerSection, Study
from fedaudit.study.setup.parts import Conclusion, Extension, Means, MeasuredRun, Scores, Setup

if TYPE_CHECKING:
    from fedaudit.study.figures.unlearning import UnlearningRun

_RETRAINED = "retrained"
_TRAINS_ON = ("continue", "ascent")
"""Methods that go on from the released model."""


@dataclass(frozen=True)
class Unlearning(Extension):
    """The federations of unlearning beside a run.

    All are without the audited samples that the audited clients trained on, which are forgotten; a
    client that has no others is not in them.

    Attributes:
        retrained: The federation that never had the forgotten samples.
        unlearned: What is trained after the run; None where nothing is done.
        measured_retrained: Its last round, measured on the run's audited samples.
        measured_after: Likewise of the model after unlearning; the run's own where nothing is done.
    """

    retrained: Setup
    unlearned: Setup | None
    measured_retrained: Stored | None = None
    measured_after: Stored | None = None

    table: ClassVar[str] = "unlearning"

    @classmethod
    def added(cls, run: Setup, dataset: Dataset) -> Setup:
        """The run with the federations that its unlearning trains.

        Raises:
            BadInput: Another view than of the final model, samples that no fair draw chose, or
                nobody left to train.
            Unsupported: An algorithm whose server has more than a model to go on from.
        """
        given = run.study.unlearning
        if given is None:
            return run
        _refuse_unfit(run.study, given, run.algorithm)
        deal = without_members(run.deal, run.study.audit.targets)
        if not deal.clients:
            raise BadInput("without the forgotten samples no client has any; audit fewer clients")
        retrained = _beside(run, deal, _RETRAINED, run.study.training.rounds, "retrained")
        if given.method == "nothing":
            return run.extended(cls(retrained, None))
        rounds = given.rounds if given.method in _TRAINS_ON else run.study.training.rounds
        what, kind = _name_of(run.study, given), "unlearning"
        return run.extended(cls(retrained, _beside(run, deal, what, rounds, kind)))

    @property
    def federations(self) -> tuple[Setup, ...]:
        """The federation that is trained after the run, and the retrained one."""
        return (*([self.unlearned] if self.unlearned else []), self.retrained)

    def fitted(self, run: Setup, means: Means) -> Setup:
        """The run, with the models of unlearning measured."""
        what = "a federation without the forgotten samples"
        found = replace(self, measured_retrained=means.measured(self.retrained, what, None)[-1])
        if self.unlearned is not None:
            begun = partial(_begun, run, self.unlearned, means.folder)
            after = means.measured(self.unlearned, "unlearning", begun)[-1]
            found = replace(found, measured_after=after)
        return run.extended(found)

    @classmethod
    def concluded(cls, found: Sequence[MeasuredRun], scores: Scores) -> Conclusion:
        """Figures of the models before, after and retrained, and the controls of these."""
        from fedaudit.study.figures.unlearning import retrained_control, unlearning_figures

        runs = [one.extension(Unlearning)._measured(one.run, one.rounds[-1]) for one in found]
        figures = unlearning_figures(runs, scores)
        return Conclusion(figures, retrained_control(runs, figures))

    def _measured(self, run: Setup, released: Stored) -> "UnlearningRun":
        from fedaudit.study.figures.unlearning import UnlearningRun

        assert self.measured_retrained is not None
        after = self.measured_after or released
        setups = self.unlearned or run, self.retrained
        return UnlearningRun(run, released, after, self.measured_retrained, *setups)

    def untested(self) -> str:
        """A sentence on what was not tested because of the view that unlearning is judged in."""
        return "Unlearning as somebody sees it who is shown the rounds between."


def without_members(deal: Deal, targets: Collection[ClientId]) -> Deal:
    """The same deal without the audited samples that some clients train on; nobody has these.

    Args:
        deal: Who trains on what.
        targets: The clients that give them up; one that is left without samples is no more in it.
    """
    gone = np.isin(deal.audit.owner, list(targets))
    ids = deal.audit.samples.ids[torch.from_numpy(gone)]
    clients = {
        client: data.take(~torch.isin(data.ids, ids)) if client in targets else data
        for client, data in deal.clients.items()
    }
    owner = np.where(gone, NOBODY, deal.audit.owner)
    left = {client: data for client, data in clients.items() if len(data)}
    return Deal(left, replace(deal.audit, owner=owner))


def _name_of(study: Study, given: UnlearningSection) -> str:
    """Names what is trained after a run, by all settings that its own study does not hold."""
    if given.method not in _TRAINS_ON:
        return f"unlearning by {given.method}"
    of_method = given.model_dump(mode="json", exclude={"margin"})
    return f"unlearning after {study.training.rounds} rounds: {json.dumps(of_method)}"


def _beside(run: Setup, deal: Deal, what: str, rounds: int, kind: str) -> Setup:
    """Return a federation with the run's settings on what is left of its data."""
    seed = own_seed(run.seed, what)
    study = run.study.model_copy(
        update={
            **dict.fromkeys(OPTIONAL),
            "seeds": (seed,),
            "training": run.study.training.model_copy(update={"rounds": rounds}),
            "audit": run.study.audit.model_copy(update={"keep": "signals", "every": 0}),
        }
    )
    return replace(
        run,
        study=study,
        seed=seed,
        deal=deal,
        defenses={client: one for client, one in run.defenses.items() if client in deal.clients},
        measured_rounds=(rounds,),
        extensions=(),
        is_shadow=True,
        refused={},
        title=f"the {kind} federation of seed {run.seed}",
    )


def _refuse_unfit(study: Study, given: UnlearningSection, algorithm: Algorithm) -> None:
    if study.audit.view != "final":
        raise BadInput(
            f"unlearning is judged by the models before and after it, and audit.view is "
            f'{study.audit.view!r}, which shows more; set audit.view = "final"'
        )
    others = {
        "audit.draw": study.audit.draw != "fair",
        "audit.merge": bool(study.audit.merge),
        "[shift]": study.shift is not None,
        "[canaries]": study.canaries is not None,
        "server": study.server != ServerSection(),
        "figures.evaluation": study.figures.evaluation != "aligned",
        "figures.nobody_is_a_member": study.figures.nobody_is_a_member,
    }
    for setting, asked in others.items():
        if asked:
            raise BadInput(
                f"unlearning holds samples that a fair draw gave to a client against unseen ones; "
                f"leave {setting} as it is by default, or leave [unlearning] out"
            )
    if given.method in _TRAINS_ON and type(algorithm) not in (FedAvg, FedProx):
        raise Unsupported(
            f"unlearning by {given.method!r} goes on from the released model, and the server of "
            f"{type(algorithm).__name__} keeps more than that; use fedavg or fedprox, or another "
            "unlearning.method"
        )


def _begun(run: Setup, after: Setup, folder: Path) -> Setup:
    """The federation that unlearning trains, with the model that it begins with.

    Raises:
        BadInput: The released model is not there any more.
        Damaged: It cannot be read.
    """
    given = run.study.unlearning
    assert given is not None
    if given.method not in _TRAINS_ON:
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


def try_ascent(run: Setup) -> None:
    """Take one step of ascent on the smallest and the largest batch of forgotten samples.

    A new model stands for the released one, and nothing of the run is changed.

    Args:
        run: Whose audited samples are to be forgotten; nothing is tried unless by ascent.

    Raises:
        BadInput: The model cannot take a step on a batch of forgotten samples.
    """
    given, audit, most = run.study.unlearning, run.deal.audit, run.study.training.batch_size
    if given is None or given.method != "ascent":
        return
    model, tried = run.algorithm.nets[0].initial(0), set[int]()
    for target in run.study.audit.targets:
        own = audit.samples.take(torch.from_numpy(np.asarray(audit.owner == target)))
        for size in sorted({min(most, len(own)), len(own) % most or most} - {0} - tried):
            tried.add(size)
            part, how = own.take(slice(0, size)), LocalTraining(1, size, given.lr)
            rng = seeded(run.seed, "ascent", target)
            try:
                _ascent(model, part, how, rng, around=model, radius=1.0)
            # The network may be anybody's code, which raises what it likes.
            except Exception as error:
                if isinstance(error, FedauditError | MemoryError) or "memory" in str(error):
                    raise
                said = " ".join(str(error).split())[:200]
                raise BadInput(
                    f"{run.named_for_people}, {run.called(target)}: of {len(own):,} samples to be "
                    f"forgotten in batches of {most}, one batch has {size}, and the model "
                    f"{model.architecture.name!r} cannot take a step of ascent on it "
                    f"({type(error).__name__}: {said}); set another training.batch_size or "
                    "unlearning.method, or take another model (batch normalisation needs several "
                    "samples)"
                ) from error


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
