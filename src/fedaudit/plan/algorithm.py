"""The federated algorithm of a study, and the measurement of its models' membership risk."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedaudit.algorithms import FederatedTask
from fedaudit.core.errors import BadInput, format_setting, type_of
from fedaudit.core.importing import call_reporting_errors
from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import OutputKind, missing_outputs_message
from fedaudit.core.values import Architecture, Samples, Setting
from fedaudit.datasets.catalog import load
from fedaudit.datasets.draws.audit_set import Assignment
from fedaudit.fl.algorithms.base import Algorithm, ChoosesModels, OwnRisk
from fedaudit.models import architecture
from fedaudit.observe.round import Logits
from fedaudit.plan.assignment import GroupedData
from fedaudit.plan.parts import Parts, Setup
from fedaudit.plan.sections import Study

if TYPE_CHECKING:
    from fedaudit.risk.server import ServerRisk

_EPOCHS = 5
"""Default number of epochs of a continued shadow model."""

MIN_SERVER_SAMPLES = 100
"""Minimum number of samples from which a server can estimate a risk."""


def algorithm_of(parts: Parts, data: GroupedData, seed: int, data_dir: Path | None) -> Algorithm:
    """Construct a study's algorithm for its data set.

    Raises:
        BadInput: A model or option does not exist, or the algorithm does not support the model or
            task.
    """
    study, dataset = parts.study, data.dataset
    train = dataset.train
    task = replace(parts.task, inputs=train.inputs)
    shape = train.inputs.first_shape if train.inputs else tuple(train.features.shape[1:])
    width = task.output_width(train.features, train.targets) or dataset.classes

    def model(name: str, /, **settings: Setting) -> Architecture:
        return architecture(name, task, shape=shape, classes=width, **settings)

    weights = {"weights": study.pretrained_name} if study.pretraining else {}
    sections = study.models or (study.model,)
    nets = tuple(model(section.name, **section.options, **weights) for section in sections)
    federated = FederatedTask(
        architecture=nets[0],
        nets=nets if study.models else (),
        training=study.training.local(),
        shape=shape,
        first_class=study.data.first_class,
        model=model,
        public=lambda name: load(name, data_dir=data_dir, seed=seed).train,
        seed=seed,
        risk=partial(server_risk, study, data, seed),
        own_risk=_risk_by_loss,
        accepted=(study.risk.low, study.risk.high),
    )
    name = study.algorithm.name
    options = study.algorithm.options
    algorithm = call_reporting_errors(
        "algorithm", name, parts.make_algorithm, task=federated, **options
    )
    if not isinstance(algorithm, Algorithm):
        raise BadInput(
            f"the algorithm {name!r} returned {type_of(algorithm)}, which is not a "
            "fedaudit.fl.algorithms.base.Algorithm; return an object with all methods of that "
            "protocol, such as an instance of a subclass of fedaudit.fl.algorithms.fedavg.FedAvg"
        )
    needs_posterior = algorithm.upload_kind is Logits or isinstance(algorithm, ChoosesModels)
    if needs_posterior and OutputKind.POSTERIOR not in task.output_kinds:
        fault = missing_outputs_message(f"the algorithm {name!r}", OutputKind.POSTERIOR, task)
        raise BadInput(f"{fault}; use an algorithm that averages parameters, such as fedavg")
    if study.models and tuple(algorithm.nets) != nets:
        raise BadInput(
            f"the algorithm {name!r} averages the parameters of one network, but models lists "
            f"{len(nets)} networks; give one network in model, or use an algorithm whose clients "
            "share outputs instead of parameters, such as fedmd"
        )
    return algorithm


def _risk_by_loss() -> OwnRisk:
    # Imported here, since only studies of clustered federated learning need this large module.
    from fedaudit.risk.catalog import LossThreshold

    return LossThreshold()


def server_risk(
    study: Study, data: GroupedData, seed: int, *, other_assignment: Assignment | None = None
) -> "ServerRisk":
    """Return the object with which a server measures the models' risk, with shadow models.

    Args:
        study: Settings.
        data: Data set and assignment. The server's samples are neither training samples of clients
            nor audited.
        seed: Seed of the run.
        other_assignment: Assignment of another run, whose samples the server must not have either.
            In this case, the server may have fewer samples than the study sets.

    Raises:
        BadInput: The measure does not exist, or too few samples remain for the server.
    """
    # Imported here, since few studies train shadow models.
    from fedaudit.risk.catalog import resolve_measure
    from fedaudit.risk.server import ServerRisk, ShadowTraining

    risk = study.risk
    return ServerRisk(
        samples=_server_samples(data, risk.samples, seed, other_assignment),
        shadows=ShadowTraining(
            study.training.local(),
            count=risk.shadows,
            way=risk.training,
            epochs=risk.epochs or _EPOCHS,
            sizes=risk.sizes,
            rounds=study.training.rounds,
        ),
        measure=resolve_measure(risk.measure),
    )


def shadow_cost(run: Setup) -> str:
    """Describe the cost of measuring the models' risk; empty without shadow models."""
    algorithm, trained = run.algorithm, sum(run.assignment.sizes.values())
    if not isinstance(algorithm, ChoosesModels):
        return ""
    from fedaudit.fl.algorithms.ifca import Ifca
    from fedaudit.fl.algorithms.ifca_mir import IfcaMir

    if not isinstance(algorithm, Ifca):
        return ""
    risk, training = run.study.risk, run.study.training
    rounds = list(run.measured_rounds)
    if isinstance(algorithm, IfcaMir):
        rounds += range(algorithm.every, training.rounds + 1, algorithm.every)
    epochs = training.epochs * training.participation
    if risk.training == "repeated":
        passes = epochs * sum(rounds)
    else:
        passes = float((risk.epochs or _EPOCHS) * len(rounds))
    # A shadow model trains on at most half of the server's samples.
    max_samples = risk.samples // 2 if risk.samples else trained
    samples = risk.shadows * min(trained, algorithm.count * max_samples)
    factor = samples * passes / (trained * training.rounds * epochs)
    text = f"{factor:.1f}" if factor < 10 else f"{factor:.0f}"
    return (
        f"shadow models: {risk.shadows} for each model, {risk.training}, at {len(rounds)} "
        f"measurements; up to {text} times the training of the federation"
    )


def raise_if_risk_unmeasured(
    study: Study, data: GroupedData, seed: int, algorithm: Algorithm
) -> None:
    """Raise if clients choose among models by their risk, and the risk cannot be measured.

    Raises:
        BadInput: The measure does not exist, the server has too few samples, or the first
            measurement comes too late for any client to use it.
    """
    if not isinstance(algorithm, ChoosesModels):
        return
    from fedaudit.fl.algorithms.ifca_mir import IfcaMir

    rounds = study.training.rounds
    if isinstance(algorithm, IfcaMir) and algorithm.every >= rounds:
        raise BadInput(
            f"risks are measured every {algorithm.every} rounds, but training has only {rounds} "
            "rounds, so clients never use a measured risk; lower "
            f"{format_setting('algorithm.options.every')}, or raise "
            f"{format_setting('training.rounds')}"
        )
    server_risk(study, data, seed)


def _server_samples(
    data: GroupedData, count: int, seed: int, other_assignment: Assignment | None
) -> Samples:
    """Return training samples that no client trains on and that are not audited."""
    from fedaudit.datasets.draws.audit_set import unused_ids

    ids = unused_ids(data.dataset, data.assignment)
    if other_assignment is not None:
        ids = ids[torch.isin(ids, unused_ids(data.dataset, other_assignment))]
        count = min(count, len(ids))
    size = count or len(ids)
    if not MIN_SERVER_SAMPLES <= size <= len(ids):
        raise BadInput(
            f"the server would measure membership risk on {size} samples, but the number must be "
            f"from {MIN_SERVER_SAMPLES} to {len(ids)}, the number of samples on which no client "
            "trains and that are not audited; change risk.samples, or give clients fewer samples "
            f"({format_setting('partition.samples_per_client')})"
        )
    order = torch.randperm(len(ids), generator=seeded(seed, "server samples"))
    return data.dataset.samples(ids[order[:size].sort().values])
