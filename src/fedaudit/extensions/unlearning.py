"""The table [unlearning]: what is trained to forget samples, and what is left of them."""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import nn

from fedaudit.core.errors import BadInput, Damaged, Unsupported, custom_code, setting, table
from fedaudit.core.metric_names import AUC, Origin
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
from fedaudit.evaluation.accuracy import utility
from fedaudit.evaluation.analysis import analyse
from fedaudit.evaluation.truth import Findings, run_coordinates, target_truth, view_coordinates
from fedaudit.extensions.examples import own_setup, own_study
from fedaudit.fl.algorithms.fedavg import FedAvg, FedProx
from fedaudit.fl.training.local import LocalTraining
from fedaudit.metrics import above_chance, holm
from fedaudit.metrics.delong import SEPARATE, AucInterval
from fedaudit.metrics.unlearning import unlearned, unlearning_verdict, verdict_words
from fedaudit.observe.kept_files import under
from fedaudit.observe.measurements import Stored, stacked
from fedaudit.observe.tensors import read_tensors
from fedaudit.plan.optional import UnlearningSection
from fedaudit.plan.parts import Conclusion, Extension, Means, MeasuredRun, Scores, Setup
from fedaudit.plan.sections import ServerSection, Study
from fedaudit.results.aggregate import average_each, correct_tests
from fedaudit.results.estimate import TEST_ACCURACY, TRAIN_ACCURACY, Estimate, Test
from fedaudit.results.record import ControlResult
from fedaudit.results.unlearning import AFTER, BEFORE, BOTH, RETRAINED, UNLEARNING, estimate_at

_TRAINS_ON = ("continue", "ascent")
"""Methods that start from the released model."""

_RETRAINED_ERROR = 0.01
"""How often a sound retrained federation may fail its control."""


@dataclass(frozen=True)
class Unlearning(Extension):
    """The federations of unlearning next to a run.

    All are without the audited samples that the audited clients trained on, which are forgotten; a
    client that has no others is not in them.

    Attributes:
        retrained: The federation that never had the forgotten samples.
        unlearned: What is trained after the run; None where nothing is done.
        measured_retrained: Its last round, measured on the run's audited samples.
        measured_after: The same of the model after unlearning; None where nothing is done.
    """

    retrained: Setup
    unlearned: Setup | None
    measured_retrained: Stored | None = None
    measured_after: Stored | None = None

    table: ClassVar[str] = "unlearning"

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run with the federations that its unlearning trains."""
        given = run.study.unlearning
        assert given is not None
        _refuse_unfit(run, given)
        deal = without_members(run.deal, run.study.audit.targets)
        if not deal.clients:
            raise BadInput("without the forgotten samples no client has any; audit fewer clients")
        all_rounds = run.study.training.rounds
        retrained = _beside(run, deal, "retrained", all_rounds, "retrained")
        if given.method == "nothing":
            return run.with_extension(cls(retrained, None))
        rounds = given.rounds if given.method in _TRAINS_ON else all_rounds
        what = _name_of(run.study, given)
        return run.with_extension(cls(retrained, _beside(run, deal, what, rounds, "unlearning")))

    @property
    def federations(self) -> tuple[Setup, ...]:
        """The federation that is trained after the run, and the retrained one."""
        return (*([self.unlearned] if self.unlearned else []), self.retrained)

    def refuse_untrainable(self, run: Setup) -> None:
        """Try one step of ascent on the smallest and the largest batch of forgotten samples."""
        given = run.study.unlearning
        assert given is not None
        if given.method == "ascent":
            _try_ascent(run, given)

    def fit(self, run: Setup, means: Means) -> Setup:
        """Measure the models of unlearning."""
        what = "a federation without the forgotten samples"
        found = replace(self, measured_retrained=means.measured(self.retrained, what, None)[-1])
        if self.unlearned is not None:
            begun = partial(_begun, run, self.unlearned, means.folder)
            after = means.measured(self.unlearned, "unlearning", begun)[-1]
            found = replace(found, measured_after=after)
        return run.with_extension(found)

    @classmethod
    def conclude(cls, found: Sequence[MeasuredRun], scores: Scores) -> Conclusion:
        """Return figures of the models before, after and retrained, and their controls."""
        study = found[0].run.study
        assert study.unlearning is not None
        single = [figure for one in found for figure in _figures_of_run(one, scores)]
        alpha = study.figures.alpha
        judge = partial(_judged, margin=study.unlearning.margin)
        figures = judge(correct_tests(single, alpha))
        figures += judge(correct_tests(average_each(single), alpha))
        checks = [check for one in found for check in unlearning_controls(one.run, figures)]
        return Conclusion(figures, checks)

    def untested(self) -> str:
        """Return a sentence on what an adversary with other views was not tested for."""
        return "Unlearning as somebody sees it who is shown the rounds between."


def without_members(deal: Deal, targets: Collection[ClientId]) -> Deal:
    """Return the deal without the audited samples that some clients train on.

    Args:
        deal: Who trains on what.
        targets: The clients that give them up. One that has no other samples is left out.
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
    """Return a name with all settings that the study of what is trained does not hold."""
    if given.method not in _TRAINS_ON:
        return f"unlearning by {given.method}"
    of_method = given.model_dump(mode="json", exclude={"margin"})
    return f"unlearning after {study.training.rounds} rounds: {json.dumps(of_method)}"


def _beside(run: Setup, deal: Deal, what: str, rounds: int, kind: str) -> Setup:
    """Return a federation with the run's settings on the rest of its data."""
    training = run.study.training.model_copy(update={"rounds": rounds})
    return replace(
        own_setup(run, own_study(run, what, {"every": 0}, training=training), kind),
        deal=deal,
        defenses={client: one for client, one in run.defenses.items() if client in deal.clients},
        measured_rounds=(rounds,),
    )


def _refuse_unfit(run: Setup, given: UnlearningSection) -> None:
    study, algorithm = run.study, run.algorithm
    if study.audit.view != "final":
        raise BadInput(
            f"unlearning is judged by the models before and after it, and audit.view is "
            f'{study.audit.view!r}, which shows more; set audit.view = "final"'
        )
    others = {
        "audit.draw": study.audit.draw != "fair",
        "audit.merge": bool(study.audit.merge),
        table("shift"): study.shift is not None,
        table("canaries"): study.canaries is not None,
        "server": study.server != ServerSection(),
        "figures.evaluation": study.figures.evaluation != "aligned",
        "figures.nobody_is_a_member": study.figures.nobody_is_a_member,
    }
    for name, asked in others.items():
        if asked:
            raise BadInput(
                "unlearning compares samples that a fair draw assigned to a client with unseen "
                f"samples; leave {name} at its default, or leave out {table('unlearning')}"
            )
    if given.method in _TRAINS_ON and type(algorithm) not in (FedAvg, FedProx):
        raise Unsupported(
            f"unlearning by {given.method!r} goes on from the released model, and the server of "
            f"{type(algorithm).__name__} keeps more than that; use fedavg or fedprox, or another "
            "unlearning.method"
        )


def _begun(run: Setup, after: Setup, folder: Path) -> Setup:
    """Return the federation that unlearning trains, with the model that it begins with."""
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
    """Return the run's final model from its checkpoint."""
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
    """Return the architecture with a model in place of random initial values."""
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
        """Build a module with the values in place."""
        model = Model.from_tensors(self.architecture, self.tensors)
        return model.load_into(self.architecture.build())


def _climbed(run: Setup, released: Model) -> Model:
    """Return the released model after each owner, in turn, has climbed its forgotten samples' loss.

    Source: Halimi et al. 2022, Federated Unlearning: How to Erase a Client in FL?
        (projected gradient ascent).
    Differs: The ball lies around the released model, not around the mean of the others' models;
        its radius is a share of the way from a freshly initialised model to it, and all passes are
        made.
    """
    given = run.study.unlearning
    assert given is not None
    fresh = released.architecture.initial(seed_for(run.seed, "ascent"))
    radius = given.radius * norm(difference(released.params, fresh.params))
    how = LocalTraining(given.epochs, run.study.training.batch_size, given.lr)
    model = released
    for target in run.study.audit.targets:
        rng = seeded(run.seed, "ascent", target)
        model = _ascent(model, _forgotten(run, target), how, rng, around=released, radius=radius)
    return model


def _try_ascent(run: Setup, given: UnlearningSection) -> None:
    """Raise if a freshly initialised model cannot take a step on a batch of forgotten samples."""
    most = run.study.training.batch_size
    model, tried = run.algorithm.nets[0].initial(0), set[int]()
    for target in run.study.audit.targets:
        own = _forgotten(run, target)
        for size in sorted({min(most, len(own)), len(own) % most or most} - {0} - tried):
            tried.add(size)
            part, how = own.take(slice(0, size)), LocalTraining(1, size, given.lr)
            rng = seeded(run.seed, "ascent", target)
            with custom_code(partial(_no_ascent, run, target, len(own), size)):
                _ascent(model, part, how, rng, around=model, radius=1.0)


def _no_ascent(
    run: Setup, target: ClientId, samples: int, size: int, error: Exception, described: str
) -> BadInput:
    return BadInput(
        f"{run.display_name}, {run.client_name(target)}: of {samples:,} samples to be forgotten in "
        f"batches of {run.study.training.batch_size}, one batch has {size}, and the model "
        f"{run.algorithm.nets[0].name!r} cannot take a step of ascent on it ({described}); set "
        f"another {setting('training.batch_size')} or unlearning.method, or take another model "
        "(batch normalisation needs several samples)"
    )


def _forgotten(run: Setup, target: ClientId) -> Samples:
    audit = run.deal.audit
    return audit.samples.take(torch.from_numpy(np.asarray(audit.owner == target)))


def _ascent(
    model: Model,
    samples: Samples,
    how: LocalTraining,
    rng: torch.Generator,
    *,
    around: Model,
    radius: float,
) -> Model:
    """Take steps up the mean loss, each projected onto a ball of parameters around a model."""
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


def _figures_of_run(one: MeasuredRun, scores: Scores) -> Iterator[Estimate]:
    """Yield the figures of a run: attacks on three models, and what the models are good for."""
    run, released, own = one.run, one.rounds[-1], one.extension(Unlearning)
    assert own.measured_retrained is not None
    after = own.measured_after or released
    three = (scores, _scores(run, after, released), _scores(run, own.measured_retrained, released))
    for target in run.study.audit.targets:
        truth = target_truth(run, target).units
        chosen = truth.origin != Origin.OTHER_CLIENT
        for name in run.on_membership:
            key = (run.seed, target, name)
            if all(key in known for known in three):
                of_models = [known[key][chosen] for known in three]
                yield from _auc_figures(run, target, name, of_models, truth.is_member[chosen])
    models = {
        BEFORE: (run, released),
        AFTER: (own.unlearned or run, after),
        RETRAINED: (own.retrained, own.measured_retrained),
    }
    shown = {TEST_ACCURACY, TRAIN_ACCURACY}
    for point, (setup, stored) in models.items():
        for figure in utility(setup, [stored]):
            if figure.metric in shown or figure.metric.startswith("test "):
                where = {"topic": UNLEARNING, "point": point, "seed": run.seed}
                yield figure.model_copy(update=where)


def _scores(run: Setup, stored: Stored, released: Stored) -> Scores:
    """Return the scores of the run's attacks on another model, measured on its audited samples."""
    # Reference models are of the round in which the run's own model was released.
    moved = replace(stored.measured, index=released.measured.index)
    findings = Findings()
    analyse(run, stacked([moved]), findings)
    return findings.scores


def _auc_figures(
    run: Setup,
    target: ClientId,
    name: str,
    scores: Sequence[Float[ndarray, " samples"]],
    forgotten: ndarray,
) -> list[Estimate]:
    before, after, retrained = scores
    found = unlearned(before, after, retrained, is_forgotten=forgotten)
    assert found.retrained is not None
    figure = partial(
        Estimate,
        **view_coordinates(run),
        topic=UNLEARNING,
        metric=AUC,
        attack=name,
        unit=run.study.audit.unit,
        contrast="unseen",
        target=target,
        n_members=int(forgotten.sum()),
        n_nonmembers=int((~forgotten).sum()),
    )

    def auc(point: str, given: AucInterval, tests: Sequence[Test] = ()) -> Estimate:
        return figure(point=point, **asdict(given), tests=list(tests))

    excess = asdict(found.excess)
    of_excess = Test(
        null=RETRAINED, level=found.retrained.value, p_value=excess.pop("p_value"), two_sided=True
    )
    never_seen = Test(level=0.5, p_value=above_chance(retrained, forgotten))
    return [
        auc(BEFORE, found.before),
        auc(AFTER, found.after),
        auc(RETRAINED, found.retrained, [never_seen]),
        figure(point=AFTER, against=RETRAINED, **excess, tests=[of_excess]),
        auc(BOTH, found.both),
    ]


def _judged(figures: Sequence[Estimate], margin: float) -> list[Estimate]:
    """Note the verdict of each attack with what is left after unlearning."""
    found = []
    for figure in figures:
        if not figure.against or figure.low is None or figure.high is None:
            found.append(figure)
            continue
        before = estimate_at(figures, figure, BEFORE)
        told = before is not None and before.low is not None and before.low > 0.5
        # The limits of two separate AUCs have no p-value, and are wider than any that has one.
        separate = SEPARATE in figure.method and figure.low > 0
        above = (bool(figure.significant) and figure.number > 0) or separate
        verdict = unlearning_verdict(
            figure.low, figure.high, margin=margin, told_before=told, above=above
        )
        note = "; ".join(part for part in (verdict_words(verdict, margin), figure.note) if part)
        found.append(figure.model_copy(update={"note": note}))
    return found


def unlearning_controls(run: Setup, figures: Sequence[Estimate]) -> list[ControlResult]:
    """Return the controls of unlearning in one run.

    Attacks distinguish the released model, from which nothing was deleted, from the retrained
    federation; and they find nothing in the federation that never had the forgotten samples.

    Args:
        run: The run.
        figures: Of unlearning, in this run and others.
    """
    of_run = [one for one in figures if one.seed == run.seed]
    own = [one for one in of_run if one.attack and not one.against]
    told = [one for one in own if one.point == BEFORE and (one.low or 0.0) > 0.5]
    retrained = [(one, estimate_at(own, one, RETRAINED)) for one in told]
    above = sum(
        other is not None and other.high is not None and (one.low or 0.0) > other.high
        for one, other in retrained
    )
    p_values = [t.p_value for one in of_run if one.point == RETRAINED for t in one.tests]
    least = min((p for p in holm(p_values).adjusted if p is not None), default=None)
    return [
        ControlResult(
            **run_coordinates(run),
            control="nothing deleted",
            expected="where an attack tells the samples of the model before deletion, one tells "
            "that model from the retrained federation",
            value=None,
            passed=bool(above) if told else None,
            note=f"{above} of {len(told)} attacks that tell them"
            if told
            else "no attack tells the samples before deletion, so that nothing follows",
        ),
        ControlResult(
            **run_coordinates(run),
            control="retrained federation",
            expected="no attack tells the forgotten samples from unseen ones in a federation that "
            "never had them",
            value=least,
            passed=None if least is None else least > _RETRAINED_ERROR,
            note="smallest p-value of all attacks and targets, corrected (Holm)",
        ),
    ]
