"""The catalogue of federated algorithms: how a study's settings become one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature

import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.importing import named
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Samples
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.algorithms.fedavg import FedAdam, FedAvg, FedProx
from fedaudit.fl.algorithms.fedembedding import FedEmbedding
from fedaudit.fl.algorithms.fedmd import Distillation, FedMD
from fedaudit.fl.algorithms.fedsgd import FedSGD
from fedaudit.fl.algorithms.ifca import Ifca
from fedaudit.fl.algorithms.ifca_mir import IfcaMir, IfcaMirOfClients, OwnRisk, Preference, Risk
from fedaudit.fl.training.local import LocalTraining


@dataclass(frozen=True)
class FederatedTask:
    """The settings of a study apart from the algorithm.

    Attributes:
        architecture: The model that it names; the first where clients have their own.
        training: Local training, as its section says.
        shape: Of one sample.
        first_class: Number of the first class that clients have samples of.
        model: Another model of the catalogue for the same samples, by name and settings.
        public: Training samples of another data set, by name.
        seed: Decides which of these are taken.
        risk: How a server finds out what its models give away.
        own_risk: How a client finds out what a model gives away.
        accepted: The lowest and the highest membership risk that clients accept.
        nets: Networks of the clients' own, dealt in turn; none where all have that model.
    """

    architecture: Architecture
    training: LocalTraining
    shape: tuple[int, ...]
    first_class: int
    model: Callable[..., Architecture]
    public: Callable[[str], Samples]
    seed: int
    risk: Callable[[], Risk]
    own_risk: OwnRisk
    accepted: tuple[float, float] = (0.5, 0.8)
    nets: tuple[Architecture, ...] = ()


def fedavg(task: FederatedTask) -> FedAvg:
    """Clients train the global model, the server averages their changes by data size.

    Source: McMahan et al. 2017, Algorithm 1.
    """
    return FedAvg(task.architecture, task.training)


def fedsgd(task: FederatedTask, *, together: str = "mean") -> FedSGD:
    """Clients send the gradient of all their data, the server takes the step.

    Args:
        task: Whose training gives learning rate and weight decay.
        together: "mean" by data size, or "sum" as SIA's Algorithm 1 prints it.

    Source: McMahan et al. 2017, section 2; SIA, Algorithm 1.
    Differs: The mean is the default, as in SIA's text; its Algorithm 1 prints the sum.
    """
    return FedSGD(task.architecture, task.training, together)


def legacy_fedsgd(task: FederatedTask) -> FedAvg:
    """FedSGD as SIA's published code runs it: one local epoch in mini-batches, averaged.

    Raises:
        BadInput: More than one local epoch is asked for.

    Source: SIA, published code.
    Differs: From FedSGD, on purpose; it is FedAvg with one epoch.
    """
    if task.training.epochs != 1:
        raise BadInput(
            "legacy-fedsgd is one local epoch in mini-batches, got training.epochs = "
            f"{task.training.epochs}; set it to 1, or use fedavg"
        )
    return FedAvg(task.architecture, task.training)


def fedprox(task: FederatedTask, *, mu: float = 0.01) -> FedProx:
    """FedAvg whose clients are held near the model that they were sent.

    Args:
        task: See :func:`fedavg`.
        mu: How hard, at least 0.

    Source: Li et al. 2020, Algorithm 2.
    """
    return FedProx(task.architecture, task.training, mu)


def fedadam(
    task: FederatedTask,
    *,
    server_lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    adaptivity: float = 1e-3,
) -> FedAdam:
    """FedAvg whose server takes an Adam step along the mean change.

    Args:
        task: See :func:`fedavg`.
        server_lr: The server's learning rate, above 0.
        beta1: Share of the last mean change that is kept, in [0, 1).
        beta2: Share of the last mean square that is kept, in [0, 1).
        adaptivity: Added to the root of the mean square, above 0.

    Source: Reddi et al. 2021, Algorithm 2.
    """
    return FedAdam(task.architecture, task.training, server_lr, beta1, beta2, adaptivity)


def fed_embedding(task: FederatedTask) -> FedEmbedding:
    """Clients train embeddings of concepts for a frozen model, averaged concept by concept.

    Source: FedMIA, section 3.1 and table 3.
    """
    return FedEmbedding(task.architecture, task.training)


def fedmd(
    task: FederatedTask,
    *,
    public: str,
    public_samples: int = 5_000,
    nets: str = "",
    public_epochs: int = 20,
    private_epochs: int = 25,
    digest_epochs: int = 1,
    digest_batch: int = 256,
    student: str = "cnn",
    student_epochs: int = 30,
) -> FedMD:
    """Clients keep nets of their own and share what these say of a public set.

    Args:
        task: Its training is the revisit of each round.
        public: Data set whose training part is public, with images like the clients'. Its classes
            come first: number the clients' own after them (``data.first_class``).
        public_samples: How many of its samples, at random.
        nets: The clients' networks, dealt in turn: channels of CNNs with 3x3 windows, such as
            "16,32; 16,16,32". Empty: the study's models, or its one model for all.
        public_epochs: Epochs on the public samples in the first round.
        private_epochs: Epochs on the client's own after that.
        digest_epochs: Epochs towards the mean outputs in each later round.
        digest_batch: Samples a step of those.
        student: An adversary's students: a model of the catalogue with its own defaults, SIA's
            CNN unless another is named; empty for the study's model.
        student_epochs: Their epochs.

    Raises:
        BadInput: The public set does not fit the clients' own, or nets are given twice.

    Source: Li & Wang 2019; SIA, Algorithm 3 and its published code.
    Differs: The published code's client networks normalise over batches, have dropout (0.2) after
        every convolution, pool by means and end in a ReLU, so that no output is below 0; these are
        the catalogue's CNNs, which do none of it. See :class:`FedMD` for the public samples.
    """
    if nets and task.nets:
        raise BadInput(
            "algorithm.options.nets and the study's models are both the clients' networks; leave "
            "out one of them"
        )
    how = task.training
    shown = _public(task, public, public_samples)
    return FedMD(
        nets=_nets(task, nets) or task.nets or (task.architecture,),
        public=shown,
        first_public=replace(how, epochs=public_epochs),
        first_private=replace(how, epochs=private_epochs),
        digest=replace(how, epochs=digest_epochs, batch_size=digest_batch),
        revisit=how,
        student=task.model(student) if student else task.architecture,
        distillation=Distillation(epochs=student_epochs),
    )


def ifca(task: FederatedTask, *, models: int = 2, explore: int = 0) -> Ifca:
    """Clients train the one of several global models that has the least loss on their data.

    Args:
        task: See :func:`fedavg`.
        models: How many, at least 1.
        explore: First rounds in which clients choose at random, so that no model is left behind.

    Source: Ghosh et al. 2020, Algorithm 1.
    """
    return Ifca(task.architecture, task.training, models, explore=explore)


def ifca_mir(
    task: FederatedTask,
    *,
    models: int = 2,
    every: int = 5,
    preference: str = "threshold",
    alpha: float = 0.5,
    bonus: float = 0.0,
    explore: int = 0,
) -> IfcaMir:
    """IFCA whose clients weigh a model's loss against its membership risk.

    Args:
        task: How risk is measured, and what clients accept, is said in the study's risk section.
        models: How many, at least 1.
        every: Rounds between two measurements of their risk.
        preference: "threshold" weighs by the risk that a client accepts, "fixed" by alpha for
            everybody, "hard" takes only models whose risk is accepted.
        alpha: Weight of the loss where it is fixed; 1 is IFCA.
        bonus: Offered for training a model that nobody trains, in units of the cost.
        explore: See :func:`ifca`.

    Source: IFCA-MIR, Algorithm 1.
    """
    low, high = task.accepted
    return IfcaMir(
        task.architecture,
        task.training,
        models,
        risk=task.risk(),
        every=every,
        preference=Preference(preference, alpha, low, high),
        bonus=bonus,
        explore=explore,
    )


def ifca_mir_clients(
    task: FederatedTask,
    *,
    models: int = 2,
    held_out: float = 0.1,
    preference: str = "threshold",
    alpha: float = 0.5,
    explore: int = 0,
) -> IfcaMirOfClients:
    """IFCA-MIR whose clients attack the models themselves, each on samples that it holds out.

    Args:
        task: What clients accept is said in the study's risk section.
        models: How many, at least 1.
        held_out: About how many of their samples clients keep out of training, in (0, 1).
        preference: See :func:`ifca_mir`.
        alpha: See there.
        explore: See :func:`ifca`.

    Source: IFCA-MIR, section 5.7.
    """
    low, high = task.accepted
    return IfcaMirOfClients(
        task.architecture,
        task.training,
        models,
        own_risk=task.own_risk,
        share=held_out,
        preference=Preference(preference, alpha, low, high),
        explore=explore,
    )


ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "fedsgd": fedsgd,
    "legacy-fedsgd": legacy_fedsgd,
    "fedprox": fedprox,
    "fedadam": fedadam,
    "fed-embedding": fed_embedding,
    "fedmd": fedmd,
    "ifca": ifca,
    "ifca-mir": ifca_mir,
    "ifca-mir-clients": ifca_mir_clients,
}


def algorithm_named(name: str) -> Callable[..., Algorithm]:
    """The maker of an algorithm: of the catalogue, or the user's own ``module:function``.

    Raises:
        BadInput: There is none; the nearest is named.
    """
    return named(
        "algorithm",
        name,
        ALGORITHMS,
        wanted="a function from a fedaudit.fl.algorithms.catalog.FederatedTask, its parameter "
        "'task', to an algorithm",
        fits=lambda found: callable(found) and "task" in signature(found).parameters,
    )


def _nets(task: FederatedTask, channels: str) -> tuple[Architecture, ...]:
    named = [part.strip() for part in channels.split(";") if part.strip()]
    return tuple(task.model("cnn", channels=part, kernel=3, padding=1) for part in named)


def _public(task: FederatedTask, name: str, count: int) -> Samples:
    found = task.public(name)
    shape, classes = tuple(found.features.shape[1:]), int(found.labels.max()) + 1
    if shape != task.shape:
        raise BadInput(
            f"the public set {name!r} has samples of shape {shape} and the clients' have "
            f"{task.shape}; take one of the same shape"
        )
    if task.first_class < classes:
        raise BadInput(
            f"the public set {name!r} has the classes 0 to {classes - 1}, and the clients' own "
            f"begin at {task.first_class}; set data.first_class to {classes}"
        )
    if not 1 <= count <= len(found):
        raise BadInput(
            f"public_samples lies between 1 and the {len(found)} training samples of {name!r}, "
            f"got {count}"
        )
    chosen = torch.randperm(len(found), generator=seeded(task.seed, "public"))[:count]
    some = found.take(chosen.sort().values)
    return Samples(some.features, some.labels, torch.arange(count))
