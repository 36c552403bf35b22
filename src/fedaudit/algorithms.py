"""Federated algorithms with their training, for :class:`fedaudit.Federation`.

``FedAvg(rounds=50, epochs=2, lr=0.05)``: what :class:`fedaudit.Training` takes is training, all
else is the algorithm's own. There are all of ``fedaudit list algorithms``; :func:`own` takes a
function from a :class:`fedaudit.fl.algorithms.catalog.Task` to an algorithm.
"""

from collections.abc import Callable
from inspect import signature

from fedaudit.core.errors import unknown_name
from fedaudit.core.naming import AlgorithmPart

NAMES = {
    "FedAvg": "fedavg",
    "FedSGD": "fedsgd",
    "LegacyFedSGD": "legacy-fedsgd",
    "FedProx": "fedprox",
    "FedAdam": "fedadam",
    "FedEmbedding": "fed-embedding",
    "FedMD": "fedmd",
    "IFCA": "ifca",
    "IFCAMIR": "ifca-mir",
    "IFCAMIRClients": "ifca-mir-clients",
}
"""Every algorithm of the catalogue by its name here."""

TRAINING = (
    "rounds",
    "participation",
    "epochs",
    "batch_size",
    "lr",
    "momentum",
    "weight_decay",
    "schedule",
    "optimizer",
)
"""Settings that all algorithms share: those of :class:`fedaudit.Training`."""

__all__ = [*NAMES, "own"]


def own(what: object, /, **settings: object) -> AlgorithmPart:
    """An algorithm of one's own: a function from a task to an algorithm, or its name.

    Args:
        what: The function, with a parameter ``task``; or ``module:function``, or a name that an
            installed package gives.
        settings: Of training, and the function's own.
    """
    training = {name: value for name, value in settings.items() if name in TRAINING}
    options = {name: value for name, value in settings.items() if name not in TRAINING}
    return AlgorithmPart(what, options, training)


def __getattr__(name: str) -> Callable[..., AlgorithmPart]:
    if name not in NAMES:
        raise AttributeError(f"module 'fedaudit.algorithms' has no attribute {name!r}")

    def make(**settings: object) -> AlgorithmPart:
        from fedaudit.fl.algorithms.catalog import ALGORITHMS

        known = [*TRAINING, *(one for one in signature(ALGORITHMS[NAMES[name]]).parameters)]
        known.remove("task")
        for one in settings:
            if one not in known:
                raise unknown_name(f"setting of fedaudit.algorithms.{name}", one, known)
        return own(NAMES[name], **settings)

    make.__name__ = make.__qualname__ = name
    return make


def __dir__() -> list[str]:
    return __all__
