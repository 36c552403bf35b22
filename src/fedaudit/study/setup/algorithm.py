"""The federated algorithm of a study, made from its settings."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedaudit.core.errors import BadInput
from fedaudit.core.importing import called
from fedaudit.core.values import Architecture, Samples
from fedaudit.datasets.catalog import load
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.algorithms.catalog import Task, algorithm_named
from fedaudit.models import architecture
from fedaudit.risk.client import ByLoss
from fedaudit.study.settings.options import check_options
from fedaudit.study.settings.sections import Study
from fedaudit.study.setup.dealing import Grouped
from fedaudit.study.setup.risk import server_risk


def algorithm_of(study: Study, world: Grouped, seed: int, data_dir: Path | None) -> Algorithm:
    """The algorithm that a study names, for its data set.

    Args:
        study: Its settings.
        world: What clients learn, and who has what.
        seed: Of the run.
        data_dir: Where a public set lies, if the algorithm has one.

    Raises:
        BadInput: No such algorithm, model or setting, or they do not fit together.
    """
    check_algorithm(study)
    dataset = world.dataset
    shape = tuple(dataset.train.features.shape[1:])
    model: Callable[..., Architecture] = partial(architecture, shape=shape, classes=dataset.classes)
    nets = tuple(model(one.name, **one.options) for one in study.models or (study.model,))
    task = Task(
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
    made = called("algorithm", name, algorithm_named(name), task=task, **options)
    if not isinstance(made, Algorithm):
        raise BadInput(
            f"the algorithm {name!r} made a {type(made).__name__}, which is no "
            "fedaudit.fl.algorithms.base.Algorithm; give it all of that protocol's methods, as by "
            "deriving it from fedaudit.fl.algorithms.fedavg.FedAvg"
        )
    if study.models and tuple(made.nets) != nets:
        raise BadInput(
            f"the algorithm {name!r} has one network for all clients, and models names "
            f"{len(nets)}: parameters of different networks cannot be averaged; give the one in "
            "model, or take an algorithm whose clients share outputs, such as fedmd"
        )
    return made


def check_algorithm(study: Study) -> None:
    """Refuses what can be refused without data.

    Raises:
        BadInput: No such algorithm or setting.
    """
    given = study.algorithm
    check_options("algorithm", given.name, algorithm_named(given.name), given.options)
    study.training.local()


def _training_part(name: str, *, seed: int, data_dir: Path | None) -> Samples:
    return load(name, data_dir=data_dir, seed=seed).train
