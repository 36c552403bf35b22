"""Unlearning of samples, and tests of the unlearned model. The table [unlearning] configures it.

Attacks score the audited samples on three models: the released model, the unlearned model, and a
model that is retrained without the forgotten samples.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
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
    NO_CLIENT,
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
from fedaudit.datasets.draws.audit_set import Assignment
from fedaudit.evaluation.accuracy import utility
from fedaudit.evaluation.analysis import analyse
from fedaudit.evaluation.truth import Findings, run_coordinates, target_truth, view_coordinates
from fedaudit.extensions.examples import additional_setup, additional_study
from fedaudit.fl.algorithms.fedavg import FedAvg, FedProx
from fedaudit.fl.training.local import LocalTraining
from fedaudit.metrics import above_chance, holm
from fedaudit.metrics.delong import SEPARATE, AucInterval
from fedaudit.metrics.unlearning import unlearned, unlearning_verdict, verdict_words
from fedaudit.observe.kept_files import with_prefix
from fedaudit.observe.measurements import Stored, stacked
from fedaudit.observe.tensors import read_tensors
from fedaudit.plan.optional import UnlearningSection
from fedaudit.plan.parts import Conclusion, Extension, FitContext, MeasuredRun, Scores, Setup
from fedaudit.plan.sections import ServerSection, Study
from fedaudit.results.aggregate import average_each, correct_tests
from fedaudit.results.estimate import TEST_ACCURACY, TRAIN_ACCURACY, Estimate, Test
from fedaudit.results.record import ControlResult
from fedaudit.results.unlearning import AFTER, BEFORE, BOTH, RETRAINED, UNLEARNING, estimate_at

_CONTINUING = ("continue", "ascent")
"""Methods that continue from the released model."""

_CONTROL_ALPHA = 0.01
"""False-alarm rate of the control "retrained federation"."""


@dataclass(frozen=True)
class Unlearning(Extension):
    """The two additional federations of a study of unlearning.

    Audited clients forget the audited samples on which they trained. The additional federations do
    not train on these samples. Clients without other samples are left out.

    Attributes:
        section: Settings of the table.
        retrained: Federation that is trained from the start without the forgotten samples.
        unlearned: Federation whose model is the result of unlearning; None if the method is
            "nothing".
        measured_retrained: Last round of the retrained federation, measured on the run's audited
            samples; None before it is trained.
        measured_after: Last round of the unlearning federation, measured on the same samples; None
            before it is trained, or if the method is "nothing".
    """

    section: UnlearningSection
    retrained: Setup
    unlearned: Setup | None
    measured_retrained: Stored | None = None
    measured_after: Stored | None = None

    table: ClassVar[str] = "unlearning"

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        section = run.study.unlearning
        assert section is not None
        _refuse_unsupported(run, section)
        assignment = without_members(run.assignment, run.study.audit.targets)
        if not assignment.clients:
            raise BadInput(
                "no client has samples other than the forgotten ones; audit fewer clients, or give "
                f"clients more samples ({setting('partition.samples_per_client')})"
            )
        all_rounds = run.study.training.rounds
        retrained = _federation(run, assignment, "retrained", all_rounds, "retrained")
        if section.method == "nothing":
            return run.with_extension(cls(section, retrained, None))
        rounds = section.rounds if section.method in _CONTINUING else all_rounds
        unlearned = _federation(run, assignment, _name_of(run.study, section), rounds, "unlearning")
        return run.with_extension(cls(section, retrained, unlearned))

    @property
    def federations(self) -> tuple[Setup, ...]:
        return (*([self.unlearned] if self.unlearned else []), self.retrained)

    def refuse_untrainable(self, run: Setup) -> None:
        """Raise if a step of gradient ascent fails on the smallest or the largest batch."""
        if self.section.method == "ascent":
            _try_ascent(run, self.section)

    def fit(self, run: Setup, context: FitContext) -> Setup:
        """Train (if needed) and measure the unlearned and the retrained model."""
        description = "a federation without the forgotten samples"
        rounds = context.measure(self.retrained, description, None)
        extension = replace(self, measured_retrained=rounds[-1])
        if self.unlearned is not None:
            start = partial(_start_unlearning, run, self.unlearned, self.section)
            after = context.measure(self.unlearned, "unlearning", start)[-1]
            extension = replace(extension, measured_after=after)
        return run.with_extension(extension)

    @classmethod
    def conclude(cls, runs: Sequence[MeasuredRun], scores: Scores) -> Conclusion:
        """Return estimates and control results of the three models."""
        first = runs[0]
        single = [estimate for measured in runs for estimate in _run_estimates(measured, scores)]
        alpha = first.run.study.figures.alpha
        add_verdicts = partial(_with_verdicts, margin=first.extension(Unlearning).section.margin)
        estimates = add_verdicts(correct_tests(single, alpha))
        estimates += add_verdicts(correct_tests(average_each(single), alpha))
        controls = [c for measured in runs for c in unlearning_controls(measured.run, estimates)]
        return Conclusion(estimates, controls)

    def untested(self) -> str:
        """Describe what this extension does not test."""
        return "Unlearning against an adversary that sees the rounds in between."


def without_members(assignment: Assignment, targets: Collection[ClientId]) -> Assignment:
    """Return an assignment in which the targets do not train on audited samples.

    Clients without other samples are left out.
    """
    is_forgotten = np.isin(assignment.audit.owner, list(targets))
    ids = assignment.audit.samples.ids[torch.from_numpy(is_forgotten)]
    clients = {
        client: data.take(~torch.isin(data.ids, ids)) if client in targets else data
        for client, data in assignment.clients.items()
    }
    owner = np.where(is_forgotten, NO_CLIENT, assignment.audit.owner)
    remaining = {client: data for client, data in clients.items() if len(data)}
    return Assignment(remaining, replace(assignment.audit, owner=owner))


def _name_of(study: Study, section: UnlearningSection) -> str:
    """Return a name that contains all settings that change the unlearned model.

    Measurements are stored under the federation's settings, including its name. These do not
    contain the settings of unlearning.
    """
    if section.method not in _CONTINUING:
        return f"unlearning by {section.method}"
    settings = section.model_dump(mode="json", exclude={"margin"})
    return f"unlearning after {study.training.rounds} rounds: {json.dumps(settings)}"


def _federation(run: Setup, assignment: Assignment, name: str, rounds: int, kind: str) -> Setup:
    """Return a federation with the run's settings and an assignment without forgotten samples."""
    training = run.study.training.model_copy(update={"rounds": rounds})
    return replace(
        additional_setup(run, additional_study(run, name, {"every": 0}, training=training), kind),
        assignment=assignment,
        defenses={c: defense for c, defense in run.defenses.items() if c in assignment.clients},
        measured_rounds=(rounds,),
    )


def _refuse_unsupported(run: Setup, section: UnlearningSection) -> None:
    study, algorithm = run.study, run.algorithm
    if study.audit.view != "final":
        raise BadInput(
            f'unlearning needs audit.view = "final", got {study.audit.view!r}; its tests only '
            "compare final models"
        )
    is_changed = {
        "audit.draw": study.audit.draw != "fair",
        "audit.merge": bool(study.audit.merge),
        table("shift"): study.shift is not None,
        table("canaries"): study.canaries is not None,
        "server": study.server != ServerSection(),
        "figures.evaluation": study.figures.evaluation != "aligned",
        "figures.nobody_is_a_member": study.figures.nobody_is_a_member,
    }
    for name, differs in is_changed.items():
        if differs:
            raise BadInput(
                "unlearning compares fairly drawn samples of a client with unseen samples, for "
                f"which {name} must have its default; leave out {name} or {table('unlearning')}"
            )
    if section.method in _CONTINUING and type(algorithm) not in (FedAvg, FedProx):
        raise Unsupported(
            f"unlearning by {section.method!r} continues only from the released model, but the "
            f"server of {type(algorithm).__name__} has further state; use fedavg or fedprox, or "
            "another unlearning.method"
        )


def _start_unlearning(run: Setup, unlearning_setup: Setup, section: UnlearningSection) -> Setup:
    """Return the federation of unlearning with its initial model."""
    if section.method not in _CONTINUING:
        return unlearning_setup
    assert isinstance(unlearning_setup.algorithm, FedAvg)
    model = _released(run)
    if section.method == "ascent":
        model = _after_ascent(run, model, section)
    algorithm = unlearning_setup.algorithm
    architecture = _initialised_with(algorithm.architecture, model)
    return replace(unlearning_setup, algorithm=replace(algorithm, architecture=architecture))


def _released(run: Setup) -> Model:
    """Return the run's final model from its checkpoint."""
    path = run.folder / "checkpoint.safetensors"
    if not path.is_file():
        raise BadInput(
            f"{path} does not exist, but unlearning continues from the model in this file; restore "
            "the file, or run the study in another folder"
        )
    tensors, notes = read_tensors(path)
    architecture, state = run.algorithm.architecture, with_prefix(tensors, "server/")
    shapes = {name: value.shape for name, value in architecture.initial(0).tensors().items()}
    if (
        notes.get("round") != str(run.study.training.rounds)
        or {name: value.shape for name, value in state.items()} != shapes
    ):
        raise Damaged(f"{path} does not contain the run's final model; restore it from a copy")
    return Model.from_tensors(architecture, state)


def _initialised_with(architecture: Architecture, model: Model) -> Architecture:
    """Return the architecture with a model's parameters instead of random initial parameters."""
    digest = sha256()
    for name, value in sorted(model.tensors().items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return replace(
        architecture,
        build=_BuildWithValues(architecture, digest.hexdigest(), model.tensors()),
        settings=(*architecture.settings, ("begins_with", digest.hexdigest())),
    )


@dataclass(frozen=True)
class _BuildWithValues:
    # Not a functools.partial: partials are compared by identity, but two architectures with the
    # same initial values must be equal. Objects of this class are compared by a digest of tensors.
    architecture: Architecture
    digest: str
    tensors: Params = field(compare=False, repr=False)

    def __call__(self) -> nn.Module:
        """Return a module with these parameters."""
        model = Model.from_tensors(self.architecture, self.tensors)
        return model.load_into(self.architecture.build())


def _after_ascent(run: Setup, released: Model, section: UnlearningSection) -> Model:
    """Return the released model after audited clients maximised the loss on forgotten samples.

    Source: Halimi et al. 2022, Federated Unlearning: How to Erase a Client in FL?
        (projected gradient ascent).
    Differs: The centre of the ball is the released model instead of the mean of the others' models.
        Its radius is a fraction of the distance from a freshly initialised model. There is no early
        stopping.
    """
    fresh = released.architecture.initial(seed_for(run.seed, "ascent"))
    radius = section.radius * norm(difference(released.params, fresh.params))
    training = LocalTraining(section.epochs, run.study.training.batch_size, section.lr)
    model = released
    for target in run.study.audit.targets:
        samples, rng = _forgotten(run, target), seeded(run.seed, "ascent", target)
        model = _ascend(model, samples, training, rng, center=released, radius=radius)
    return model


def _try_ascent(run: Setup, section: UnlearningSection) -> None:
    """Raise if a freshly initialised model cannot take a step on a batch of forgotten samples."""
    batch_size = run.study.training.batch_size
    model, tested_sizes = run.algorithm.nets[0].initial(0), set[int]()
    for target in run.study.audit.targets:
        samples = _forgotten(run, target)
        count = len(samples)
        sizes = {min(batch_size, count), count % batch_size or batch_size}
        for size in sorted(sizes - {0} - tested_sizes):
            tested_sizes.add(size)
            batch, training = samples.take(slice(0, size)), LocalTraining(1, size, section.lr)
            rng = seeded(run.seed, "ascent", target)
            with custom_code(partial(_ascent_error, run, target, count, size)):
                _ascend(model, batch, training, rng, center=model, radius=1.0)


def _ascent_error(
    run: Setup, target: ClientId, samples: int, size: int, error: Exception, described: str
) -> BadInput:
    return BadInput(
        f"{run.display_name}, {run.client_name(target)}: in batches of "
        f"{run.study.training.batch_size}, one of the batches of {samples:,} forgotten samples has "
        f"{size}, on which the model {run.algorithm.nets[0].name!r} cannot take a step of gradient "
        f"ascent ({described}); set another {setting('training.batch_size')} or unlearning.method, "
        "or use another model (batch normalisation needs several samples)"
    )


def _forgotten(run: Setup, target: ClientId) -> Samples:
    audit = run.assignment.audit
    return audit.samples.take(torch.from_numpy(np.asarray(audit.owner == target)))


def _ascend(
    model: Model,
    samples: Samples,
    training: LocalTraining,
    rng: torch.Generator,
    *,
    center: Model,
    radius: float,
) -> Model:
    """Return the model after gradient ascent, with parameters projected onto a ball."""
    module = loaded(model, "ascent").train()
    params = {name: value for name, value in module.named_parameters() if value.requires_grad}
    task = model.architecture.task
    for _ in range(training.epochs):
        order = torch.randperm(len(samples), generator=rng)
        for part in chunks(len(samples), training.batch_size):
            batch = samples.take(order[part])
            outputs = task.outputs(module, batch.features)
            loss = task.losses(outputs, batch.targets).mean()
            grads = torch.autograd.grad(loss, list(params.values()))
            with torch.no_grad():
                for value, grad in zip(params.values(), grads, strict=True):
                    value.add_(grad, alpha=training.lr)
                change = difference(params, center.params)
                scale = min(1.0, radius / max(norm(change), 1e-30))
                for name, projected in plus(center.params, change, scale).items():
                    params[name].copy_(projected)
    # Running statistics must not depend on the forgotten samples.
    return replace(Model.of(model.architecture, module), buffers=model.buffers)


def _run_estimates(measured: MeasuredRun, scores: Scores) -> Iterator[Estimate]:
    """Yield the AUCs of attacks on the three models of a run, and the utility of each model."""
    run, released, extension = measured.run, measured.rounds[-1], measured.extension(Unlearning)
    retrained = extension.measured_retrained
    assert retrained is not None
    after = extension.measured_after or released
    by_model = (scores, _scores(run, after, released), _scores(run, retrained, released))
    for target in run.study.audit.targets:
        truth = target_truth(run, target).units
        is_compared = truth.origin != Origin.OTHER_CLIENT
        for name in run.on_membership:
            key = (run.seed, target, name)
            if all(key in model_scores for model_scores in by_model):
                attack_scores = [model_scores[key][is_compared] for model_scores in by_model]
                is_forgotten = truth.is_member[is_compared]
                yield from _auc_estimates(run, target, name, attack_scores, is_forgotten)
    models = {
        BEFORE: (run, released),
        AFTER: (extension.unlearned or run, after),
        RETRAINED: (extension.retrained, retrained),
    }
    for point, (setup, stored) in models.items():
        for estimate in utility(setup, [stored]):
            metric = estimate.metric
            if metric in (TEST_ACCURACY, TRAIN_ACCURACY) or metric.startswith("test "):
                fields = {"topic": UNLEARNING, "point": point, "seed": run.seed}
                yield estimate.model_copy(update=fields)


def _scores(run: Setup, stored: Stored, released: Stored) -> Scores:
    """Return the scores of the run's attacks on another model."""
    # The released model's round index is used, because attacks look up reference models by it.
    measured = replace(stored.measured, index=released.measured.index)
    findings = Findings()
    analyse(run, stacked([measured]), findings)
    return findings.scores


def _auc_estimates(
    run: Setup,
    target: ClientId,
    name: str,
    scores: Sequence[Float[ndarray, " samples"]],
    is_forgotten: ndarray,
) -> list[Estimate]:
    """Return the AUCs of one attack on the three models, and their differences."""
    before, after, retrained = scores
    result = unlearned(before, after, retrained, is_forgotten=is_forgotten)
    assert result.retrained is not None
    estimate = partial(
        Estimate,
        **view_coordinates(run),
        topic=UNLEARNING,
        metric=AUC,
        attack=name,
        unit=run.study.audit.unit,
        contrast="unseen",
        target=target,
        n_members=int(is_forgotten.sum()),
        n_nonmembers=int((~is_forgotten).sum()),
    )

    def auc(point: str, interval: AucInterval, tests: Sequence[Test] = ()) -> Estimate:
        return estimate(point=point, **asdict(interval), tests=list(tests))

    excess = asdict(result.excess)
    excess_test = Test(
        null=RETRAINED, level=result.retrained.value, p_value=excess.pop("p_value"), two_sided=True
    )
    retrained_test = Test(level=0.5, p_value=above_chance(retrained, is_forgotten))
    return [
        auc(BEFORE, result.before),
        auc(AFTER, result.after),
        auc(RETRAINED, result.retrained, [retrained_test]),
        estimate(point=AFTER, against=RETRAINED, **excess, tests=[excess_test]),
        auc(BOTH, result.both),
    ]


def _with_verdicts(estimates: Sequence[Estimate], margin: float) -> list[Estimate]:
    """Return the estimates, with the verdict on each attack in the note of its excess AUC."""
    results = []
    for estimate in estimates:
        if not estimate.against or estimate.low is None or estimate.high is None:
            results.append(estimate)
            continue
        before = estimate_at(estimates, estimate, BEFORE)
        leaked_before = before is not None and before.low is not None and before.low > 0.5
        # An interval from two separate AUCs has no p-value. Since it is conservative, a positive
        # lower limit counts as significant.
        is_conservatively_above = SEPARATE in estimate.method and estimate.low > 0
        is_above = (bool(estimate.significant) and estimate.number > 0) or is_conservatively_above
        verdict = unlearning_verdict(
            estimate.low,
            estimate.high,
            margin=margin,
            leaked_before=leaked_before,
            above=is_above,
        )
        note = "; ".join(part for part in (verdict_words(verdict, margin), estimate.note) if part)
        results.append(estimate.model_copy(update={"note": note}))
    return results


def unlearning_controls(run: Setup, estimates: Sequence[Estimate]) -> list[ControlResult]:
    """Return the controls of unlearning in one run.

    Attacks must be more successful on the released model, which has forgotten nothing, than on the
    retrained model. On the retrained model, they must be at chance level.
    """
    run_estimates = [estimate for estimate in estimates if estimate.seed == run.seed]
    aucs = [estimate for estimate in run_estimates if estimate.attack and not estimate.against]
    leaks = [auc for auc in aucs if auc.point == BEFORE and (auc.low or 0.0) > 0.5]
    pairs = [(leak, estimate_at(aucs, leak, RETRAINED)) for leak in leaks]
    n_above = sum(
        retrained is not None and retrained.high is not None and (leak.low or 0.0) > retrained.high
        for leak, retrained in pairs
    )
    retrained_aucs = [estimate for estimate in run_estimates if estimate.point == RETRAINED]
    p_values = [test.p_value for auc in retrained_aucs for test in auc.tests]
    least = min((p for p in holm(p_values).adjusted if p is not None), default=None)
    return [
        ControlResult(
            **run_coordinates(run),
            control="nothing deleted",
            expected="an attack that finds members before unlearning has a higher AUC there than "
            "on the retrained federation",
            value=None,
            passed=bool(n_above) if leaks else None,
            note=f"{n_above} of {len(leaks)} attacks that find members before unlearning"
            if leaks
            else "no attack finds members before unlearning, so the control is inconclusive",
        ),
        ControlResult(
            **run_coordinates(run),
            control="retrained federation",
            expected="no attack distinguishes forgotten from unseen samples in the retrained "
            "federation",
            value=least,
            passed=None if least is None else least > _CONTROL_ALPHA,
            note="smallest p-value of all attacks and targets, corrected (Holm)",
        ),
    ]
