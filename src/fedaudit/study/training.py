"""A study's settings of local training, as the federation takes them."""

from fedaudit.fl.training.local import LocalTraining
from fedaudit.study.config import Study


def local_training(study: Study) -> LocalTraining:
    """Local training of each client in its round.

    Raises:
        BadInput: Settings that do not fit together.
    """
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
