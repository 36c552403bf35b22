"""Federated algorithms with their training, for :class:`fedaudit.Federation`.

>>> import fedaudit as fa
>>> algorithm = fa.algorithms.FedAvg(rounds=50, epochs=2, lr=0.05)

Each class is one algorithm of ``fedaudit list algorithms``. It has the common settings of training
and settings of the algorithm. :func:`custom` wraps a custom algorithm.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from inspect import signature
from typing import ClassVar, Literal

from fedaudit.core.arguments import (
    AboveZero,
    AtLeastZero,
    Count,
    Decay,
    Fraction,
    LearningRate,
    Positive,
    PositiveFraction,
    ProperFraction,
    Rounds,
    WeightDecay,
    check_arguments,
    dataclass,
    documented_by,
    parameters,
)
from fedaudit.core.errors import BadInput, format_setting
from fedaudit.core.importing import look_up
from fedaudit.core.naming import AlgorithmPart, changed_fields
from fedaudit.core.values import Architecture, Samples
from fedaudit.fl.algorithms import fedavg
from fedaudit.fl.algorithms.base import Algorithm, OwnRisk, PreferenceName, Risk
from fedaudit.fl.training.local import LocalTraining, OptimizerName, ScheduleName

__all__ = [
    "IFCA",
    "IFCAMIR",
    "SCAFFOLD",
    "Ditto",
    "FedAdam",
    "FedAvg",
    "FedDyn",
    "FedEmbedding",
    "FedMD",
    "FedNova",
    "FedProx",
    "FedSGD",
    "FederatedAlgorithm",
    "FederatedTask",
    "IFCAMIRClients",
    "LegacyFedSGD",
    "custom",
]


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True)
class FederatedTask:
    """Model, training and data that an algorithm is built for.

    Attributes:
        architecture: The study's model, or the first of its models.
        training: Local training of a client.
        shape: Shape of a sample.
        first_class: Smallest class index in the clients' data; smaller ones are of public data.
        model: Function that returns another model of the catalogue, from its name and settings.
        public: Function that returns the training samples of a data set, from its name.
        seed: Seed for the choice of public samples.
        risk: Function that returns the server's risk estimator. The risk of a model is the
            balanced accuracy of membership inference.
        own_risk: Function that returns a client's risk estimator.
        accepted: The lowest and the highest membership risk that clients accept.
        nets: Networks of the clients, which are assigned cyclically; empty if all clients have the
            same model.
    """

    architecture: Architecture
    training: LocalTraining
    shape: tuple[int, ...]
    first_class: int
    model: Callable[..., Architecture]
    public: Callable[[str], Samples]
    seed: int
    risk: Callable[[], Risk]
    own_risk: Callable[[], OwnRisk]
    accepted: tuple[float, float] = (0.5, 0.8)
    nets: tuple[Architecture, ...] = ()


@documented_by(LocalTraining)
@dataclass(frozen=True, kw_only=True)
class FederatedAlgorithm:
    """Base class of algorithms, with the settings of rounds and of local training.

    Attributes:
        rounds: Number of rounds, from 1 to 999,999.
        participation: Fraction of the clients that train in each round, in (0, 1].
    """

    catalogue_name: ClassVar[str] = ""

    rounds: Rounds = 30
    participation: PositiveFraction = 1.0
    epochs: Positive = 1
    batch_size: Positive = 32
    lr: LearningRate = 0.1
    momentum: Decay = 0.0
    weight_decay: WeightDecay = 0.0
    schedule: ScheduleName = "constant"
    optimizer: OptimizerName = "sgd"

    def named_part(self) -> AlgorithmPart:
        """Return the name and the settings as in a study file, without settings at their defaults.

        Raises:
            BadInput: The object is an instance of the base class.
        """
        if not self.catalogue_name:
            raise BadInput(
                f"{type(self).__name__} is a base class; construct an algorithm, such as "
                "fedaudit.algorithms.FedAvg()"
            )
        settings = changed_fields(self)
        training = {name: settings.pop(name) for name in TRAINING if name in settings}
        return AlgorithmPart(self.catalogue_name, settings, training)

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        raise NotImplementedError


TRAINING = tuple(field.name for field in fields(FederatedAlgorithm))
"""Names of the settings that all algorithms have."""


@dataclass(frozen=True, kw_only=True)
class FedAvg(FederatedAlgorithm):
    """Federated averaging: clients train the global model, the server averages by data size.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.FedAvg(rounds=50, epochs=2, lr=0.05).rounds
        50

    Source: McMahan et al. 2017, Algorithm 1.
    """

    catalogue_name: ClassVar[str] = "fedavg"

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        return fedavg.FedAvg(task.architecture, task.training)


@dataclass(frozen=True, kw_only=True)
class FedSGD(FederatedAlgorithm):
    """Clients send the gradient of all their data, and the server takes a step.

    Attributes:
        together: How the server combines gradients: "mean" by data size, or "sum" as printed in
            SIA's Algorithm 1.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.FedSGD(rounds=100, lr=0.1, together="sum").together
        'sum'

    Source: McMahan et al. 2017, section 2; Hu et al. 2024 (SIA), Algorithm 1.
    Differs: The mean is the default, as in SIA's text; its Algorithm 1 prints the sum.
    """

    catalogue_name: ClassVar[str] = "fedsgd"
    together: Literal["mean", "sum"] = "mean"

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        from fedaudit.fl.algorithms import fedsgd

        return fedsgd.FedSGD(task.architecture, task.training, self.together)


@dataclass(frozen=True, kw_only=True)
class LegacyFedSGD(FederatedAlgorithm):
    """FedSGD as SIA's published code runs it: one local epoch in mini-batches, averaged.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.LegacyFedSGD(rounds=20).epochs
        1

    Source: Hu et al. 2024 (SIA), published code.
    Differs: It is FedAvg with one epoch, on purpose, and not FedSGD.
    """

    catalogue_name: ClassVar[str] = "legacy-fedsgd"

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation.

        Raises:
            BadInput: The number of local epochs is not 1.
        """
        if task.training.epochs != 1:
            raise BadInput(
                "legacy-fedsgd is one local epoch in mini-batches, got "
                f"{format_setting('training.epochs')} = {task.training.epochs}; set it to 1, or "
                "use fedavg"
            )
        return fedavg.FedAvg(task.architecture, task.training)


@dataclass(frozen=True, kw_only=True)
class FedProx(FederatedAlgorithm):
    """FedAvg with a penalty on each client's distance from the global model.

    Attributes:
        mu: Weight of the penalty, at least 0; 0 is FedAvg.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.FedProx(mu=0.1).mu
        0.1

    Source: Li et al. 2020, Algorithm 2.
    """

    catalogue_name: ClassVar[str] = "fedprox"
    mu: AtLeastZero = 0.01

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        return fedavg.FedProx(task.architecture, task.training, self.mu)


@dataclass(frozen=True, kw_only=True)
class FedAdam(FederatedAlgorithm):
    """FedAvg whose server takes an Adam step along the mean update.

    Attributes:
        server_lr: The server's learning rate, above 0.
        beta1: Decay rate of the first moment of the updates over rounds, in [0, 1).
        beta2: Decay rate of the second moment, in [0, 1).
        adaptivity: Number that is added to the root of the second moment, above 0.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.FedAdam(server_lr=0.1).beta1
        0.9

    Source: Reddi et al. 2021, Algorithm 2.
    """

    catalogue_name: ClassVar[str] = "fedadam"
    server_lr: AboveZero = 0.01
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    adaptivity: AboveZero = 1e-3

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        return fedavg.FedAdam(
            task.architecture,
            task.training,
            self.server_lr,
            self.beta1,
            self.beta2,
            self.adaptivity,
        )


@dataclass(frozen=True, kw_only=True)
class FedNova(FederatedAlgorithm):
    """FedAvg of updates that the server divides by each client's amount of local training.

    Clients with more samples take more steps per epoch, and do not have more influence for this.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.FedNova(momentum=0.9).momentum
        0.9

    Source: Wang et al. 2020 (FedNova).
    Differs: Clients send the update and the number of steps, and the server divides.
    """

    catalogue_name: ClassVar[str] = "fednova"

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        from fedaudit.fl.algorithms import fednova

        return fednova.FedNova(task.architecture, task.training)


@dataclass(frozen=True, kw_only=True)
class SCAFFOLD(FederatedAlgorithm):
    """FedAvg whose clients correct each step by control variates, of which they send the changes.

    Attributes:
        option: New control variate of a client. "II": mean gradient of its local steps. "I":
            gradient over all its samples at the received model; defenses do not change this
            gradient.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.SCAFFOLD(lr=0.05).option
        'II'

    Source: Karimireddy et al. 2020, Algorithm 1.
    Differs: Clients are weighted by data size, and the server's learning rate is 1.
    """

    catalogue_name: ClassVar[str] = "scaffold"
    option: Literal["I", "II"] = "II"

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        from fedaudit.fl.algorithms import scaffold

        return scaffold.Scaffold(task.architecture, task.training, self.option)


@dataclass(frozen=True, kw_only=True)
class FedDyn(FederatedAlgorithm):
    """FedAvg with a regulariser that each client updates after its rounds.

    Attributes:
        alpha: Weight of the regulariser, at least 0; 0 is FedAvg.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.FedDyn(alpha=0.1).alpha
        0.1

    Source: Acar et al. 2021, Algorithm 1.
    Differs: Clients take a fixed number of steps, and are weighted by data size.
    """

    catalogue_name: ClassVar[str] = "feddyn"
    alpha: AtLeastZero = 0.01

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        from fedaudit.fl.algorithms import feddyn

        return feddyn.FedDyn(task.architecture, task.training, self.alpha)


@dataclass(frozen=True, kw_only=True)
class Ditto(FederatedAlgorithm):
    """FedAvg, with a personal model of each client near the global model.

    Attacks see the global model and the updates, as in FedAvg. Personal models never leave the
    clients; the utility of a study is theirs.

    Attributes:
        lam: Weight of the penalty on the distance from the global model (lambda), at least 0; 0
            trains personal models only on the client's samples.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.Ditto(lam=1.0).lam
        1.0

    Source: Li et al. 2021, Algorithm 1.
    Differs: Personal models are trained with the settings of the global model's local training.
    """

    catalogue_name: ClassVar[str] = "ditto"
    lam: AtLeastZero = 0.1

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        from fedaudit.fl.algorithms import ditto

        return ditto.Ditto(task.architecture, task.training, self.lam)


@dataclass(frozen=True, kw_only=True)
class FedEmbedding(FederatedAlgorithm):
    """Clients train concept embeddings (textual inversion or soft prompts) for a frozen model.

    The embedding of a concept is averaged over the clients with samples of the concept.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.FedEmbedding(lr=0.01, optimizer="adam").optimizer
        'adam'

    Source: Zhu et al. 2024 (FedMIA), section 3.1 and table 3.
    """

    catalogue_name: ClassVar[str] = "fed-embedding"

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        return fedavg.FedEmbedding(task.architecture, task.training)


@dataclass(frozen=True, kw_only=True)
class FedMD(FederatedAlgorithm):
    """Distillation: clients keep their models and share the models' outputs on a public set.

    Attributes:
        public: Data set whose training samples are public, with samples of the same shape as the
            clients' samples. Its classes come first, so the clients' classes must be numbered after
            them (``first_class`` of the federation).
        public_samples: Number of public samples that are used, drawn at random, at least 1.
        nets: The clients' networks, which are assigned cyclically: channels of CNNs with 3x3
            kernels, such as "16,32; 16,16,32". Empty for the federation's models.
        public_epochs: Epochs on the public samples in the first round, at least 1.
        private_epochs: Epochs on a client's samples after the public epochs, at least 1.
        digest_epochs: Epochs of training towards the mean outputs in each later round, at least 1.
        digest_batch: Batch size of the ``digest_epochs``, at least 1.
        student: Name of the adversary's student model in the catalogue; empty for the federation's
            model.
        student_epochs: Epochs of the student's training, at least 1.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.FedMD(public="digits", student="").public_samples
        5000

    Source: Li and Wang 2019; Hu et al. 2024 (SIA), Algorithm 3 and its published code.
    Differs: The published code's client networks use batch normalisation, dropout (0.2) after
        every convolution and average pooling, and end in a ReLU.
    """

    catalogue_name: ClassVar[str] = "fedmd"
    public: str
    public_samples: Positive = 5_000
    nets: str = ""
    public_epochs: Positive = 20
    private_epochs: Positive = 25
    digest_epochs: Positive = 1
    digest_batch: Positive = 256
    student: str = "cnn"
    student_epochs: Positive = 30

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation.

        Raises:
            BadInput: The public samples do not match the clients' data, or networks are set twice.
        """
        from fedaudit.fl.algorithms import fedmd

        if self.nets and task.nets:
            raise BadInput(
                f"{format_setting('algorithm.options.nets')} and the study's models both set the "
                "clients' networks; leave out one of them"
            )
        how = task.training
        return fedmd.FedMD(
            nets=fedmd.cnns(self.nets, task.model) or task.nets or (task.architecture,),
            public=fedmd.public_samples(
                task.public(self.public),
                self.public_samples,
                name=self.public,
                shape=task.shape,
                first_class=task.first_class,
                seed=task.seed,
            ),
            first_public=replace(how, epochs=self.public_epochs),
            first_private=replace(how, epochs=self.private_epochs),
            digest=replace(how, epochs=self.digest_epochs, batch_size=self.digest_batch),
            revisit=how,
            student=task.model(self.student) if self.student else task.architecture,
            distillation=fedmd.Distillation(epochs=self.student_epochs),
        )


@dataclass(frozen=True, kw_only=True)
class IFCA(FederatedAlgorithm):
    """Clustered learning: each client trains the global model with the lowest loss on its data.

    Attributes:
        models: Number of global models, at least 1.
        explore: Number of rounds at the beginning in which clients choose a model at random.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.IFCA(models=3).models
        3

    Source: Ghosh et al. 2020, Algorithm 1.
    """

    catalogue_name: ClassVar[str] = "ifca"
    models: Positive = 2
    explore: Count = 0

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        from fedaudit.fl.algorithms import ifca

        return ifca.Ifca(task.architecture, task.training, self.models, explore=self.explore)


@dataclass(frozen=True, kw_only=True)
class IFCAMIR(FederatedAlgorithm):
    """IFCA whose clients weigh a model's loss against its membership risk.

    Attributes:
        models: Number of global models, at least 1.
        every: Number of rounds between two measurements of the models' risk, at least 1.
        preference: How clients weigh loss against risk. "threshold": by the risk that a client
            accepts. "fixed": by ``alpha`` for all clients. "hard": clients only choose models whose
            risk they accept.
        alpha: Weight of the loss if ``preference`` is "fixed", in [0, 1]; 1 is IFCA.
        bonus: Amount that is subtracted from the cost (alpha x loss + (1 - alpha) x risk) of a
            model that no client trains, at least 0; 0 for none.
        explore: Number of rounds at the beginning in which clients choose a model at random.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.IFCAMIR(models=2, preference="hard").every
        5

    Source: Jung et al. 2025 (IFCA-MIR), Algorithm 1.
    """

    catalogue_name: ClassVar[str] = "ifca-mir"
    models: Positive = 2
    every: Positive = 5
    preference: PreferenceName = "threshold"
    alpha: Fraction = 0.5
    bonus: AtLeastZero = 0.0
    explore: Count = 0

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        from fedaudit.fl.algorithms import ifca_mir

        return ifca_mir.IfcaMir(
            task.architecture,
            task.training,
            self.models,
            risk=task.risk(),
            every=self.every,
            preference=ifca_mir.Preference(self.preference, self.alpha, task.accepted),
            bonus=self.bonus,
            explore=self.explore,
        )


@dataclass(frozen=True, kw_only=True)
class IFCAMIRClients(FederatedAlgorithm):
    """IFCA-MIR in which clients attack the models themselves, with held-out samples.

    Attributes:
        models: Number of global models, at least 1.
        held_out: Fraction of a client's samples that it does not train on, in (0, 1).
        preference: "threshold", "fixed" or "hard"; see :class:`IFCAMIR`.
        alpha: Weight of the loss if ``preference`` is "fixed", in [0, 1]; 1 is IFCA.
        explore: Number of rounds at the beginning in which clients choose a model at random.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.IFCAMIRClients(held_out=0.2).models
        2

    Source: Jung et al. 2025 (IFCA-MIR), section 5.7.
    """

    catalogue_name: ClassVar[str] = "ifca-mir-clients"
    models: Positive = 2
    held_out: ProperFraction = 0.1
    preference: PreferenceName = "threshold"
    alpha: Fraction = 0.5
    explore: Count = 0

    def build(self, task: FederatedTask) -> Algorithm:
        """Return the algorithm for a federation."""
        from fedaudit.fl.algorithms import ifca_mir

        return ifca_mir.IfcaMirOfClients(
            task.architecture,
            task.training,
            self.models,
            own_risk=task.own_risk(),
            share=self.held_out,
            preference=ifca_mir.Preference(self.preference, self.alpha, task.accepted),
            explore=self.explore,
        )


@check_arguments
def custom(
    make: Callable[..., object] | str, /, **settings: bool | int | float | str
) -> AlgorithmPart:
    """Return a custom algorithm for a federation.

    Args:
        make: Function with a parameter ``task`` that returns an algorithm, or its name:
            ``module:function``, or a name that an installed package registers.
        settings: Settings of training, and settings of the function.

    Examples:
        >>> import fedaudit as fa
        >>> fa.algorithms.custom("my_package:fed_something", rounds=50, share=0.5).training
        {'rounds': 50}
    """
    training = {name: value for name, value in settings.items() if name in TRAINING}
    options = {name: value for name, value in settings.items() if name not in TRAINING}
    return AlgorithmPart(make, options, training)


def _catalogued(kind: type[FederatedAlgorithm]) -> Callable[..., Algorithm]:
    """Return a function that builds an algorithm from a task and settings, for study files."""

    def make(task: FederatedTask, **settings: bool | int | float | str) -> Algorithm:
        return kind(**settings).build(task)  # type: ignore[arg-type]

    task_parameter = inspect.Parameter("task", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    options = [
        parameter for parameter in parameters(kind).values() if parameter.name not in TRAINING
    ]
    make.__signature__ = inspect.Signature([task_parameter, *options])  # type: ignore[attr-defined]
    make.__doc__ = kind.__doc__
    return make


ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    kind.catalogue_name: _catalogued(kind) for kind in FederatedAlgorithm.__subclasses__()
}
"""Functions that build an algorithm from a :class:`FederatedTask` and settings, by name."""


def algorithm_named(name: str) -> Callable[..., Algorithm]:
    """Return the function that builds an algorithm, from the catalogue or ``module:function``.

    Raises:
        BadInput: There is no such algorithm; the message has the most similar name.
    """
    return look_up(
        "algorithm",
        name,
        ALGORITHMS,
        expected="a function from a fedaudit.algorithms.FederatedTask, its parameter "
        "'task', to an algorithm",
        is_valid=lambda value: callable(value) and "task" in signature(value).parameters,
    )
