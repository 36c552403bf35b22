"""The federated algorithm of a study, and how the membership risk of its models is measured."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedaudit.algorithms import FederatedTask
from fedaudit.core.errors import BadInput, setting, type_of
from fedaudit.core.importing import called
from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import Reading, lacking
from fedaudit.core.values import Architecture, Samples, Setting
from fedaudit.datasets.catalog import load
from fedaudit.datasets.draws.audit_set import Deal
from fedaudit.fl.algorithms.base import Algorithm, ChoosesModels
from fedaudit.fl.algorithms.ifca import Ifca
from fedaudit.fl.algorithms.ifca_mir import IfcaMir, Preference
from fedaudit.models import architecture
from fedaudit.observe.round import Logits
from fedaudit.plan.dealing import GroupedData
from fedaudit.plan.parts import Parts
from fedaudit.plan.sections import Study
from fedaudit.risk.catalog import ByLoss

if TYPE_CHECKING:
    from fedaudit.risk.server import ServerRisk

_EPOCHS = 5
"""Of a continued shadow model, if the study does not say."""

FEWEST = 100
"""With fewer samples of its own a server says nothing of any use."""


def algorithm_of(parts: Parts, world: GroupedData, seed: int, data_dir: Path | None) -> Algorithm:
    """Construct the algorithm that a study names, for its data set.

    Args:
        parts: Of the study.
        world: What clients learn, and who has what.
        seed: Of the run.
        data_dir: Where a public set lies, if the algorithm has one.

    Raises:
        BadInput: No such model or setting, or they do not fit together.
    """
    study, dataset = parts.study, world.dataset
    train = dataset.train
    task = replace(parts.task, inputs=train.inputs)
    shape = train.inputs.shape if train.inputs else tuple(train.features.shape[1:])
    width = task.width(train.features, train.targets) or dataset.classes

    def model(name: str, /, **settings: Setting) -> Architecture:
        return architecture(name, task, shape=shape, classes=width, **settings)

    weights = {"weights": study.pretrained_name} if study.pretraining else {}
    named = study.models or (study.model,)
    nets = tuple(model(one.name, **one.options, **weights) for one in named)
    given = FederatedTask(
        architecture=nets[0],
        nets=nets if study.models else (),
        training=study.training.local(),
        shape=shape,
        first_class=study.data.first_class,
        model=model,
        public=partial(_training_part, seed=seed, data_dir=data_dir),
        seed=seed,
        risk=partial(server_risk, study, world, seed),
        own_risk=ByLoss(),
        accepted=(study.risk.low, study.risk.high),
    )
    name = study.algorithm.name
    options = study.algorithm.options
    made = called("algorithm", name, parts.make_algorithm, task=given, **options)
    if not isinstance(made, Algorithm):
        raise BadInput(
            f"the algorithm {name!r} made {type_of(made)}, which is no "
            "fedaudit.fl.algorithms.base.Algorithm; give it all of that protocol's methods, as by "
            "deriving it from fedaudit.fl.algorithms.fedavg.FedAvg"
        )
    answers = made.upload_kind is Logits or isinstance(made, ChoosesModels)
    if answers and Reading.POSTERIOR not in task.readings:
        said = lacking(f"the algorithm {name!r}", Reading.POSTERIOR, task)
        raise BadInput(f"{said}; take one that averages parameters, such as fedavg")
    if study.models and tuple(made.nets) != nets:
        raise BadInput(
            f"the algorithm {name!r} has one network for all clients, and models names "
            f"{len(nets)}: parameters of different networks cannot be averaged; give the one in "
            "model, or take an algorithm whose clients share outputs, such as fedmd"
        )
    return made


def _training_part(name: str, *, seed: int, data_dir: Path | None) -> Samples:
    return load(name, data_dir=data_dir, seed=seed).train


def server_risk(
    study: Study, world: GroupedData, seed: int, *, besides: Deal | None = None
) -> "ServerRisk":
    """The server's shadow models, and what it makes of them.

    Args:
        study: Its settings.
        world: Who trains on what, and what is audited: nothing of this is the server's.
        seed: Of the run.
        besides: Of another run, whose samples are not the server's either; with it fewer samples
            than asked for will do.

    Raises:
        BadInput: No such measure, or too few samples are left for the server.
    """
    # Not at the top: few studies train shadow models.
    from fedaudit.risk.catalog import measure_named
    from fedaudit.risk.server import ServerRisk, ShadowTraining

    given = study.risk
    return ServerRisk(
        samples=_samples(world, given.samples, seed, besides),
        shadows=ShadowTraining(
            study.training.local(),
            count=given.shadows,
            way=given.training,
            epochs=given.epochs or _EPOCHS,
            sizes=given.sizes,
            rounds=study.training.rounds,
        ),
        measure=measure_named(given.measure),
    )


def shadow_cost(study: Study, algorithm: Algorithm, trained: int, measured: Sequence[int]) -> str:
    """Cost of measuring the models' risk, beside the federation's own training; or nothing.

    Args:
        study: Its settings.
        algorithm: Of the run; only one whose clients choose among models has shadow models.
        trained: Samples of all clients.
        measured: Rounds in which the run is measured.
    """
    if not isinstance(algorithm, Ifca):
        return ""
    given, how = study.risk, study.training
    rounds = list(measured)
    if isinstance(algorithm, IfcaMir):
        rounds += range(algorithm.every, how.rounds + 1, algorithm.every)
    if given.training == "repeated":
        passes = how.epochs * how.participation * sum(rounds)
    else:
        passes = float((given.epochs or _EPOCHS) * len(rounds))
    half = given.samples // 2 if given.samples else trained
    samples = given.shadows * min(trained, algorithm.count * half)
    times = samples * passes / (trained * how.rounds * how.epochs * how.participation)
    about = f"{times:.1f}" if times < 10 else f"{times:.0f}"
    return (
        f"shadow models: {given.shadows} for each model, {given.training}, at {len(rounds)} "
        f"measurements; up to {about} times the federation's own training"
    )


def accepted(study: Study) -> Preference:
    """The risk that clients accept, whatever they do about it.

    Raises:
        BadInput: The limits cannot be.
    """
    return Preference(accepted=(study.risk.low, study.risk.high))


def refuse_unmeasured(study: Study, world: GroupedData, seed: int, algorithm: Algorithm) -> None:
    """Refuses what keeps models' risk from being measured, whether or not clients get to know it.

    Args:
        study: Its settings.
        world: Who trains on what, and what is audited.
        seed: Of the run.
        algorithm: Nothing is refused where its clients do not choose among models.

    Raises:
        BadInput: As :func:`server_risk` and :func:`accepted`; or clients would never know it.
    """
    rounds = study.training.rounds
    if isinstance(algorithm, IfcaMir) and algorithm.every >= rounds:
        raise BadInput(
            f"risks are measured every {algorithm.every} rounds, and of {rounds} none is left in "
            f"which clients would be told; lower {setting('algorithm.options.every')}, or raise "
            f"{setting('training.rounds')}"
        )
    if isinstance(algorithm, ChoosesModels):
        accepted(study)
        server_risk(study, world, seed)


def _samples(world: GroupedData, count: int, seed: int, besides: Deal | None) -> Samples:
    """Training samples that are neither trained on nor audited."""
    from fedaudit.datasets.draws.audit_set import untouched

    left = untouched(world.dataset, world.deal)
    if besides is not None:
        left = left[torch.isin(left, untouched(world.dataset, besides))]
        count = min(count, len(left))
    wanted = count or len(left)
    if not FEWEST <= wanted <= len(left):
        raise BadInput(
            f"the server is to measure membership risk on {wanted} samples of its own; it takes at "
            f"least {FEWEST}, and there are {len(left)} that nobody trains on or audits; set "
            "risk.samples to a number between these, or give clients less "
            f"({setting('partition.samples_per_client')})"
        )
    order = torch.randperm(len(left), generator=seeded(seed, "server samples"))
    return world.dataset.samples(left[order[:wanted].sort().values])
