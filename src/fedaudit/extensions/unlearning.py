"""Unlearning of samples, and tests of the unlearned model.

Attacks score the audited samples on three models: the released model, the unlearned model, and a
model that is retrained without the forgotten samples. The table [unlearning] of a study configures
this.
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

from fedaudit.core.errors import BadInput, Unsupported, custom_code, format_setting, format_table
from fedaudit.core.metric_names import AUC, Origin
from fedaudit.core.modules import load_module
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import (
    NO_CLIENT,
    Architecture,
    ClientId,
    Model,
    Params,
    Samples,
    add_scaled,
    chunks,
    difference,
    norm,
)
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Assignment
from fedaudit.evaluation.accuracy import utility_estimates
from fedaudit.evaluation.analysis import evaluate_attacks
from fedaudit.evaluation.final_models import models_in_checkpoint
from fedaudit.evaluation.truth import (
    EvaluationResults,
    fields_of_run,
    fields_of_run_and_view,
    target_truth,
)
from fedaudit.extensions.examples import additional_setup, additional_study
from fedaudit.fl.algorithms.fedavg import FedAvg, FedProx
from fedaudit.fl.training.local import LocalTraining
from fedaudit.metrics import auc_p_value, holm
from fedaudit.metrics.delong import SEPARATE, AucInterval
from fedaudit.metrics.unlearning import describe_verdict, evaluate_unlearning, unlearning_verdict
from fedaudit.observe.measurements import StoredRound, stacked
from fedaudit.plan.optional import UnlearningSection
from fedaudit.plan.parts import Extension, ExtensionResults, FitContext, MeasuredRun, Scores, Setup
from fedaudit.plan.sections import ServerSection, Study
from fedaudit.results.aggregate import average_each, correct_tests
from fedaudit.results.estimate import TEST_ACCURACY, TRAIN_ACCURACY, Estimate, Test
from fedaudit.results.record import ControlResult
from fedaudit.results.unlearning import AFTER, BEFORE, BOTH, RETRAINED, UNLEARNING, estimate_at

_CONTINUING = ("continue", "ascent")
"""Methods that continue from the released model."""

_CONTROL_ALPHA = 0.01
"""Probability that the control "retrained federation" fails although nothing is wrong."""


@dataclass(frozen=True)
class Unlearning(Extension):
    """The two auxiliary federations that test unlearning.

    The audited samples on which audited clients trained are the forgotten samples. The additional
    federations do not train on them. Clients without other samples are left out.

    Attributes:
        section: Settings of the table.
        retrained_run: Federation that is trained from the start without the forgotten samples.
        unlearned_run: Federation whose model is the result of unlearning; None if the method is
            "nothing".
        retrained_round: Last round of ``retrained_run``, measured on the run's audited samples;
            None before training.
        unlearned_round: Last round of ``unlearned_run``, measured on the same samples; None before
            training, or if the method is "nothing".
    """

    section: UnlearningSection
    retrained_run: Setup
    unlearned_run: Setup | None
    retrained_round: StoredRound | None = None
    unlearned_round: StoredRound | None = None

    table: ClassVar[str] = "unlearning"

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        section = run.study.unlearning
        assert section is not None
        _raise_if_unsupported(run, section)
        assignment = without_members(run.assignment, run.study.audit.targets)
        if not assignment.clients:
            raise BadInput(
                "clients have only samples that they must forget, so no model can be retrained; "
                f"raise {format_setting('partition.samples_per_client')}, or audit fewer clients"
            )
        training_rounds = run.study.training.rounds
        retrained_run = _federation(run, assignment, "retrained", training_rounds, "retrained")
        if section.method == "nothing":
            return run.with_extension(cls(section, retrained_run, None))
        rounds = section.rounds if section.method in _CONTINUING else training_rounds
        name = _federation_name(run.study, section)
        unlearned_run = _federation(run, assignment, name, rounds, "unlearning")
        return run.with_extension(cls(section, retrained_run, unlearned_run))

    @property
    def federations(self) -> tuple[Setup, ...]:
        return (*([self.unlearned_run] if self.unlearned_run else []), self.retrained_run)

    def raise_if_untrainable(self, run: Setup) -> None:
        """Raise if gradient ascent on a batch of forgotten samples fails."""
        if self.section.method == "ascent":
            _try_ascent(run, self.section)

    def fit(self, run: Setup, context: FitContext) -> Setup:
        """Train (if needed) and measure the unlearned and the retrained model."""
        description = "a federation without the forgotten samples"
        rounds = context.measure(self.retrained_run, description, None)
        extension = replace(self, retrained_round=rounds[-1])
        if self.unlearned_run is not None:
            initialise = partial(_with_initial_model, run, self.unlearned_run, self.section)
            rounds = context.measure(self.unlearned_run, "unlearning", initialise)
            extension = replace(extension, unlearned_round=rounds[-1])
        return run.with_extension(extension)

    @classmethod
    def evaluate(cls, runs: Sequence[MeasuredRun], scores: Scores) -> ExtensionResults:
        """Return estimates and control results of the three models."""
        by_run = [estimate for measured in runs for estimate in _run_estimates(measured, scores)]
        estimates = []
        # Correct the tests of single runs and those of means over runs as two separate families.
        for family in (by_run, average_each(by_run)):
            corrected = correct_tests(family, runs[0].run.study.figures.alpha)
            estimates += _with_verdicts(corrected, runs[0].extension(Unlearning).section.margin)
        controls = [c for measured in runs for c in unlearning_controls(measured.run, estimates)]
        return ExtensionResults(estimates, controls)

    def untested(self) -> str:
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


def _federation_name(study: Study, section: UnlearningSection) -> str:
    """Return a name that contains all settings that change the unlearned model.

    The name determines the key of stored measurements, together with the federation's other
    settings, which do not contain the settings of unlearning.
    """
    if section.method not in _CONTINUING:
        return f"unlearning by {section.method}"
    settings = section.model_dump(mode="json", exclude={"margin"})
    return f"unlearning after {study.training.rounds} rounds: {json.dumps(settings)}"


def _federation(run: Setup, assignment: Assignment, name: str, rounds: int, kind: str) -> Setup:
    """Return a federation with the run's settings and an assignment without forgotten samples."""
    training = run.study.training.model_copy(update={"rounds": rounds})
    study = additional_study(run, name, {"every": 0}, training=training)
    return replace(
        additional_setup(run, study, kind),
        assignment=assignment,
        defenses={c: defense for c, defense in run.defenses.items() if c in assignment.clients},
        measured_rounds=(rounds,),
    )


def _raise_if_unsupported(run: Setup, section: UnlearningSection) -> None:
    study, algorithm = run.study, run.algorithm
    if study.audit.view != "final":
        raise BadInput(
            f'unlearning needs audit.view = "final", got {study.audit.view!r}; its tests only '
            "compare final models"
        )
    has_other_value = {
        "audit.draw": study.audit.draw != "fair",
        "audit.merge": bool(study.audit.merge),
        format_table("shift"): study.shift is not None,
        format_table("canaries"): study.canaries is not None,
        "server": study.server != ServerSection(),
        "figures.evaluation": study.figures.evaluation != "aligned",
        "figures.null_members": study.figures.null_members,
    }
    for name, differs in has_other_value.items():
        if differs:
            raise BadInput(
                f"{format_table('unlearning')} is only possible with the default of {name}; leave "
                f"out {name} or {format_table('unlearning')}"
            )
    if section.method in _CONTINUING and type(algorithm) not in (FedAvg, FedProx):
        raise Unsupported(
            f"unlearning.method {section.method!r} continues training from the released model, but "
            f"the server of {type(algorithm).__name__} has further state that it would need; use "
            "fedavg or fedprox, or another method"
        )


def _with_initial_model(run: Setup, unlearned_run: Setup, section: UnlearningSection) -> Setup:
    """Return the federation of unlearning with its initial model."""
    if section.method not in _CONTINUING:
        return unlearned_run
    algorithm = unlearned_run.algorithm
    assert isinstance(algorithm, FedAvg)
    (model,) = models_in_checkpoint(run).values()
    if section.method == "ascent":
        model = _after_ascent(run, model, section)
    architecture = _initialised_with(algorithm.architecture, model)
    return replace(unlearned_run, algorithm=replace(algorithm, architecture=architecture))


def _initialised_with(architecture: Architecture, model: Model) -> Architecture:
    """Return the architecture with a model's parameters as initial parameters."""
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
    """Function that builds a module with given parameters.

    Architectures with equal initial parameters must be equal, so these objects are compared by a
    digest of the parameters. A functools.partial would be compared by identity.
    """

    architecture: Architecture
    digest: str
    tensors: Params = field(compare=False, repr=False)

    def __call__(self) -> nn.Module:
        model = Model.from_tensors(self.architecture, self.tensors)
        return model.load_into(self.architecture.build())


def _after_ascent(run: Setup, released: Model, section: UnlearningSection) -> Model:
    """Return the released model after audited clients maximised the loss on forgotten samples.

    Source: Halimi et al. 2022, Federated Unlearning: How to Erase a Client in FL?
        (projected gradient ascent).
    Differs: The centre of the ball is the released model instead of the mean of the other clients'
        models. Its radius is a fraction of the distance between the released model and a newly
        initialised model. There is no early stopping.
    """
    initial = released.architecture.initial(seed_for(run.seed, "ascent"))
    radius = section.radius * norm(difference(released.params, initial.params))
    training = LocalTraining(section.epochs, run.study.training.batch_size, section.lr)
    model = released
    for target in run.study.audit.targets:
        samples = _forgotten_samples(run, target)
        rng = seeded(run.seed, "ascent", target)
        model = _ascend(model, samples, training, rng, center=released, radius=radius)
    return model


def _try_ascent(run: Setup, section: UnlearningSection) -> None:
    """Raise if a step of gradient ascent fails on a full batch or on an incomplete last batch."""
    batch_size = run.study.training.batch_size
    model = run.algorithm.nets[0].initial(0)
    tested_sizes = set[int]()
    for target in run.study.audit.targets:
        samples = _forgotten_samples(run, target)
        count = len(samples)
        sizes = {min(batch_size, count), count % batch_size or batch_size}
        for size in sorted(sizes - {0} - tested_sizes):
            tested_sizes.add(size)
            batch = samples.take(slice(0, size))
            training = LocalTraining(1, size, section.lr)
            rng = seeded(run.seed, "ascent", target)
            with custom_code(partial(_ascent_error, run, target, size, count)):
                _ascend(model, batch, training, rng, center=model, radius=1.0)


def _ascent_error(
    run: Setup, target: ClientId, size: int, count: int, error: Exception, described: str
) -> BadInput:
    return BadInput(
        f"{run.display_name}, {run.client_name(target)}: the model "
        f"{run.algorithm.nets[0].name!r} cannot take a step of gradient ascent on a batch of "
        f"{size} of {count:,} forgotten samples ({described}); change "
        f"{format_setting('training.batch_size')}, or use a model without batch normalisation, "
        "since this needs several samples per batch"
    )


def _forgotten_samples(run: Setup, target: ClientId) -> Samples:
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
    """Return the model after gradient ascent on the loss, projected onto a ball at every step."""
    module = load_module(model, "ascent").train()
    params = {name: value for name, value in module.named_parameters() if value.requires_grad}
    task = model.architecture.task
    for _ in range(training.epochs):
        order = torch.randperm(len(samples), generator=rng)
        for chunk in chunks(len(samples), training.batch_size):
            batch = samples.take(order[chunk])
            outputs = task.outputs(module, batch.features)
            loss = task.losses(outputs, batch.targets).mean()
            grads = torch.autograd.grad(loss, list(params.values()))
            with torch.no_grad():
                for value, grad in zip(params.values(), grads, strict=True):
                    value.add_(grad, alpha=training.lr)
                offset = difference(params, center.params)
                scale = min(1.0, radius / max(norm(offset), 1e-30))
                for name, projected in add_scaled(center.params, offset, scale).items():
                    params[name].copy_(projected)
    # Keep the previous running statistics of normalisation layers, since those from the ascent
    # depend on the forgotten samples.
    return replace(Model.of(model.architecture, module), buffers=model.buffers)


def _run_estimates(measured: MeasuredRun, scores: Scores) -> Iterator[Estimate]:
    """Yield the AUCs of attacks on the three models of a run, and the utility of each model."""
    run = measured.run
    extension = measured.extension(Unlearning)
    released = measured.rounds[-1]
    unlearned_round = extension.unlearned_round or released
    retrained_round = extension.retrained_round
    assert retrained_round is not None
    scores_by_model = [
        scores,
        _scores_on(unlearned_round, run, released),
        _scores_on(retrained_round, run, released),
    ]
    for target in run.study.audit.targets:
        truth = target_truth(run, target).units
        is_compared = truth.origin != Origin.OTHER_CLIENT
        is_forgotten = truth.is_member[is_compared]
        for name in run.membership_attacks:
            key = (run.seed, target, name)
            if all(key in model_scores for model_scores in scores_by_model):
                attack_scores = [model_scores[key][is_compared] for model_scores in scores_by_model]
                yield from _auc_estimates(run, target, name, attack_scores, is_forgotten)
    models = {
        BEFORE: (run, released),
        AFTER: (extension.unlearned_run or run, unlearned_round),
        RETRAINED: (extension.retrained_run, retrained_round),
    }
    for point, (setup, stored) in models.items():
        for estimate in utility_estimates(setup, [stored]):
            metric = estimate.metric
            if metric in (TEST_ACCURACY, TRAIN_ACCURACY) or metric.startswith("test "):
                fields = {"topic": UNLEARNING, "point": point, "seed": run.seed}
                yield estimate.model_copy(update=fields)


def _scores_on(stored: StoredRound, run: Setup, released: StoredRound) -> Scores:
    """Return the scores of the run's attacks on another model, measured in ``stored``."""
    # Use the released model's round index, because attacks look up reference models by it.
    measured = replace(stored.measured, index=released.measured.index)
    results = EvaluationResults()
    evaluate_attacks(run, stacked([measured]), results)
    return results.scores


def _auc_estimates(
    run: Setup,
    target: ClientId,
    name: str,
    scores: Sequence[Float[ndarray, " samples"]],
    is_forgotten: ndarray,
) -> list[Estimate]:
    """Return the AUCs of one attack on the three models, and their differences."""
    before, after, retrained = scores
    result = evaluate_unlearning(before, after, retrained, is_deleted=is_forgotten)
    assert result.retrained is not None
    estimate = partial(
        Estimate,
        **fields_of_run_and_view(run),
        topic=UNLEARNING,
        metric=AUC,
        attack=name,
        unit=run.study.audit.unit,
        contrast="unseen",
        target=target,
        n_members=int(is_forgotten.sum()),
        n_nonmembers=int((~is_forgotten).sum()),
    )

    def auc(point: str, interval: AucInterval, *tests: Test) -> Estimate:
        return estimate(point=point, **asdict(interval), tests=list(tests))

    excess = asdict(result.excess)
    excess_test = Test(
        null=RETRAINED, level=result.retrained.value, p_value=excess.pop("p_value"), two_sided=True
    )
    retrained_test = Test(level=0.5, p_value=auc_p_value(retrained, is_forgotten))
    return [
        auc(BEFORE, result.before),
        auc(AFTER, result.after),
        auc(RETRAINED, result.retrained, retrained_test),
        estimate(point=AFTER, against=RETRAINED, **excess, tests=[excess_test]),
        auc(BOTH, result.both),
    ]


def _with_verdicts(estimates: Sequence[Estimate], margin: float) -> list[Estimate]:
    """Add the verdict on each attack to the note of the estimate of its excess AUC."""
    results = []
    for estimate in estimates:
        if not estimate.against or estimate.low is None or estimate.high is None:
            results.append(estimate)
            continue
        before = estimate_at(estimates, estimate, BEFORE)
        leaked_before = before is not None and before.low is not None and before.low > 0.5
        is_significantly_above = bool(estimate.significant) and estimate.number > 0
        # An interval from the limits of two separate AUCs has no p-value. It is conservative, so a
        # positive lower limit counts as significant.
        is_conservatively_above = SEPARATE in estimate.method and estimate.low > 0
        verdict = unlearning_verdict(
            estimate.low,
            estimate.high,
            margin=margin,
            leaked_before=leaked_before,
            above=is_significantly_above or is_conservatively_above,
        )
        sentence = describe_verdict(verdict, margin)
        note = f"{sentence}; {estimate.note}" if estimate.note else sentence
        results.append(estimate.model_copy(update={"note": note}))
    return results


def unlearning_controls(run: Setup, estimates: Sequence[Estimate]) -> list[ControlResult]:
    """Return the controls of unlearning in one run.

    Attacks that succeed on the released model must be less successful on the retrained model. On
    the retrained model, all attacks must be at chance level.
    """
    run_estimates = [estimate for estimate in estimates if estimate.seed == run.seed]
    aucs = [
        estimate for estimate in run_estimates if estimate.is_of_attack and not estimate.against
    ]
    leaks = [auc for auc in aucs if auc.point == BEFORE and (auc.low or 0.0) > 0.5]
    n_above = 0
    for leak in leaks:
        retrained = estimate_at(aucs, leak, RETRAINED)
        if retrained is not None and retrained.high is not None:
            n_above += (leak.low or 0.0) > retrained.high
    retrained_aucs = [estimate for estimate in run_estimates if estimate.point == RETRAINED]
    p_values = [test.p_value for auc in retrained_aucs for test in auc.tests]
    smallest = min((p for p in holm(p_values).adjusted if p is not None), default=None)
    return [
        ControlResult(
            **fields_of_run(run),
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
            **fields_of_run(run),
            control="retrained federation",
            expected="no attack distinguishes forgotten from unseen samples in the retrained "
            "federation",
            value=smallest,
            passed=None if smallest is None else smallest > _CONTROL_ALPHA,
            note="smallest p-value of all attacks and targets, corrected (Holm)",
        ),
    ]
