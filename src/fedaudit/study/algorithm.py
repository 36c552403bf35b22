"""How the federation of a study learns, and what."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedaudit.core import Architecture, Samples
from fedaudit.data.dataset import Dataset
from fedaudit.data.sources import load
from fedaudit.errors import unknown_name
from fedaudit.fl.algorithm import Algorithm
from fedaudit.fl.catalog import ALGORITHMS, Task
from fedaudit.fl.training import LocalTraining
from fedaudit.models import architecture
from fedaudit.study.config import Study
from fedaudit.study.options import check_options


def algorithm_of(study: Study, dataset: Dataset, seed: int, data_dir: Path | None) -> Algorithm:
    """The algorithm that a study names, for its data set.

    Args:
        study: Its settings.
        dataset: What clients learn.
        seed: Of the run.
        data_dir: Where a public set lies, if the algorithm has one.

    Raises:
        BadInput: No such algorithm, model or setting, or they do not fit together.
    """
    check_algorithm(study)
    shape = tuple(dataset.train.features.shape[1:])
    model: Callable[..., Architecture] = partial(architecture, shape=shape, classes=dataset.classes)
    task = Task(
        architecture=model(study.model.name, **study.model.options),
        training=_local_training(study),
        shape=shape,
        first_class=study.data.first_class,
        model=model,
        public=partial(_training_part, seed=seed, data_dir=data_dir),
        seed=seed,
    )
    return ALGORITHMS[study.algorithm.name](task, **study.algorithm.options)


def check_algorithm(study: Study) -> None:
    """Refuses what can be refused without data.

    Raises:
        BadInput: No such algorithm or setting.
    """
    given = study.algorithm
    if given.name not in ALGORITHMS:
        raise unknown_name("algorithm", given.name, ALGORITHMS)
    check_options("algorithm", given.name, ALGORITHMS[given.name], given.options)
    _local_training(study)


def _training_part(name: str, *, seed: int, data_dir: Path | None) -> Samples:
    return load(name, data_dir=data_dir, seed=seed).train


def _local_training(study: Study) -> LocalTraining:
    given = study.training
    return LocalTraining(
        epochs=given.epochs,
        batch_size=given.batch_size,
        lr=given.lr,
        momentum=given.momentum,
        weight_decay=given.weight_decay,
        schedule=given.schedule,
        optimizer=given.optimizer,
    )
