"""A federation of objects, and the study that says the same in names.

:func:`plan_of` turns Python objects into what runs: a
:class:`fedaudit.plan.sections.Study`, and the objects that some of its names stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from fedaudit.algorithms import FederatedAlgorithm
from fedaudit.attacks import Attack
from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.importing import GivenObject
from fedaudit.core.naming import AlgorithmPart, Clients, NamedPart
from fedaudit.core.tasks import Task
from fedaudit.core.values import Samples, Setting, short_repr
from fedaudit.datasets.arrays import InMemory
from fedaudit.datasets.dataset import Dataset, DataSource
from fedaudit.engines.base import Counted
from fedaudit.fl.algorithms.base import Algorithm, Server
from fedaudit.fl.hooks import Defense
from fedaudit.metrics.table import Metric
from fedaudit.models import ConfiguredModel
from fedaudit.observe.views import View
from fedaudit.partitions import PartitionScheme
from fedaudit.plan.base import Section
from fedaudit.plan.file import Point
from fedaudit.plan.games import DetectorSection as Detector
from fedaudit.plan.games import GameSection as Game
from fedaudit.plan.games import GameStudy
from fedaudit.plan.games import NeuronSection as Neuron
from fedaudit.plan.games import RoundsSection as Rounds
from fedaudit.plan.optional import OPTIONAL
from fedaudit.plan.optional import AttackerSection as Attacker
from fedaudit.plan.optional import CanariesSection as Canaries
from fedaudit.plan.optional import ReferencesSection as References
from fedaudit.plan.optional import SecureSumSection as SecureSum
from fedaudit.plan.optional import ShadowSection as Shadow
from fedaudit.plan.optional import UnlearningSection as Unlearning
from fedaudit.plan.sections import AuditSection as Audit
from fedaudit.plan.sections import FiguresSection as Figures
from fedaudit.plan.sections import RiskSection as Risk
from fedaudit.plan.sections import ShiftSection as Shift
from fedaudit.plan.sections import Study
from fedaudit.plan.sections import TrainingSection as Training
from fedaudit.plan.values import study_from
from fedaudit.study.front.references import (
    attack_settings,
    data_reference,
    defense_settings,
    listed,
    partition_settings,
    reference,
    registering,
)

DataLike: TypeAlias = (
    str
    | Samples
    | Dataset
    | InMemory
    | DataSource
    | tuple[npt.ArrayLike, npt.ArrayLike]
    | Callable[..., Dataset]
)
"""Name in the catalogue, samples, what :mod:`fedaudit.datasets` returns, or a function of these."""

DefenseLike: TypeAlias = str | Defense | type[Defense] | NamedPart
"""Name in the catalogue, defense, class of defenses, or what :func:`fedaudit.named` returns."""

AttackLike: TypeAlias = str | Attack | type[Attack] | NamedPart
"""Name in the catalogue, attack, class of attacks, or what :func:`fedaudit.named` returns."""

AttacksLike: TypeAlias = (
    AttackLike | Sequence[AttackLike] | Mapping[str, Attack | Mapping[str, Setting]]
)
"""One attack, several, or a dictionary from names to attacks or to settings of catalogued ones."""

MetricLike: TypeAlias = str | Metric | Callable[[np.ndarray, np.ndarray], float]
"""Name in the catalogue, metric, or function of scores and membership."""

ModelLike: TypeAlias = str | ConfiguredModel | NamedPart | nn.Module | Callable[..., nn.Module]
"""Name in the catalogue, model of :mod:`fedaudit.models`, module, or what constructs one."""

TaskLike: TypeAlias = str | Task | NamedPart | Callable[[Tensor, Tensor], Tensor]
"""Name in the catalogue, task of :mod:`fedaudit.tasks`, or loss of outputs and targets."""

AlgorithmLike: TypeAlias = str | FederatedAlgorithm | AlgorithmPart | Callable[..., Algorithm]
"""Name in the catalogue, what :mod:`fedaudit.algorithms` makes, or a function from a task to an
algorithm."""

ClientsLike: TypeAlias = int | Clients | PartitionScheme
"""Number of clients, or what :mod:`fedaudit.partitions` makes."""


@short_repr
@dataclass(frozen=True, eq=False)
class Federation:
    """Clients, their data, model, algorithm and defenses.

    Every part is a name that ``fedaudit list`` shows, an object that a package of fedaudit makes,
    such as ``fedaudit.algorithms.FedAvg(rounds=50)``, or a custom object.

    Attributes:
        data: Samples (``fedaudit.Samples(x, y)``, or the pair ``(x, y)`` of arrays), what
            :mod:`fedaudit.datasets` makes, a ``fedaudit.datasets.Dataset``, a name such as
            "digits", or a function that returns a data set.
        clients: Number of clients, among whom samples are divided at random, or what
            :mod:`fedaudit.partitions` makes.
        model: Name such as "mlp", what :mod:`fedaudit.models` makes, a class or function that
            returns a ``torch.nn.Module`` (it is called with ``shape`` and ``classes`` if it takes
            them), ``fedaudit.named`` with settings of one, or a module, whose values every run
            starts with.
        task: What the model is trained for: a name such as "regression", what
            :mod:`fedaudit.tasks` makes, or a loss: a function of outputs and targets that returns
            one number per sample.
        algorithm: Name such as "fedavg", what :mod:`fedaudit.algorithms` makes, or a function from
            a ``fedaudit.algorithms.FederatedTask`` to an algorithm.
        defenses: One defense or several, as names, objects such as ``CoFedMID(members=[0, 1])`` or
            classes. One without members is used by all clients that have no other; several with
            the same members are applied in order.
        training: Rounds and local training, if ``algorithm`` does not set them:
            ``fedaudit.Training``.
        shift: Groups of clients with other features: ``fedaudit.Shift``; none by default.
        risk: How algorithms that weigh membership risk measure it: ``fedaudit.Risk``.
        models: Networks of the clients, in place of ``model``: a list of what that may be, given
            to clients in turn. Only for algorithms that average no parameters, such as FedMD.
        classes: Only samples of these classes are kept, and numbered in this order; all if empty.
        first_class: Number of the first class. Classes before it are a public data set's.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation(
        ...     "digits",
        ...     clients=fa.partitions.Dirichlet(5, beta=0.5),
        ...     model="cnn",
        ...     algorithm=fa.algorithms.FedAvg(rounds=10, epochs=2),
        ...     defenses=[fa.defenses.DPSGD(clip=1.0, noise_multiplier=0.1, members=[0])],
        ... )
        >>> federation.clients.clients
        5
    """

    data: DataLike
    clients: ClientsLike = 10
    model: ModelLike = "mlp"
    task: TaskLike = "classification"
    algorithm: AlgorithmLike = "fedavg"
    defenses: DefenseLike | Sequence[DefenseLike] = ()
    training: Training | None = None
    shift: Shift | None = None
    risk: Risk | None = None
    models: Sequence[ModelLike] = ()
    classes: Sequence[int] = ()
    first_class: int = 0


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Less common settings of :func:`audit`; by default none of them changes anything.

    Attributes:
        shadow: Source of the examples that learning attacks train on: ``fedaudit.Shadow``.
        references: Reference models that the adversary trains: ``fedaudit.References``.
        canaries: Canary clients that measure how well one client's update is hidden:
            ``fedaudit.Canaries``.
        unlearning: Unlearning of audited samples after training: ``fedaudit.Unlearning``.
        secure_sum: Measurement of how well one round's sum hides one upload:
            ``fedaudit.SecureSum``.
        attacker: A client that sends poisoned updates: ``fedaudit.Attacker``.
        metrics: Further metrics of scores: one or several names, functions of scores and
            membership, or :class:`fedaudit.metrics.Metric` objects.
        server: Server that alters the models that it sends to clients, as an object or
            ``module:Class``.
        view: Custom view of the adversary. Set a catalogued one by ``fedaudit.Audit(view=...)``.
        engine: Where clients train: "local", "ray" or an engine.
        pool: Folder of runs that several audits share.
        data_dir: Folder of data sets; by default that of the federation's file, or of the variable
            ``FEDAUDIT_DATA``.
        about: Sentence for the reader of the report.

    Examples:
        >>> AuditOptions(metrics=["average_precision"], about="A first look.").engine
        'local'
    """

    shadow: Shadow | None = None
    references: References | None = None
    canaries: Canaries | None = None
    unlearning: Unlearning | None = None
    secure_sum: SecureSum | None = None
    attacker: Attacker | None = None
    metrics: MetricLike | Sequence[MetricLike] = ()
    server: str | Server | None = None
    view: str | View | None = None
    engine: Counted | str = "local"
    pool: Path | str | None = None
    data_dir: Path | str | None = None
    about: str = ""


PlanKind = TypeVar("PlanKind", Study, GameStudy)


@dataclass(frozen=True)
class AuditPlan(Generic[PlanKind]):
    """What runs.

    Attributes:
        study: All settings, in names.
        objects: What those names stand for that no catalogue has.
        data_dir: Folder of the data set's file; None if the default is meant.
        points: Of games: the study, and after it each variant.
    """

    study: PlanKind
    objects: dict[str, GivenObject]
    data_dir: Path | None
    points: Sequence[Point[GameStudy]] = ()


def plan_of(
    federation: Federation,
    *,
    attacks: AttacksLike = (),
    targets: int | Sequence[int] | None = None,
    seeds: int | Sequence[int] = (1,),
    audit: Audit | None = None,
    figures: Figures | None = None,
    options: AuditOptions | None = None,
    name: str,
) -> AuditPlan[Study]:
    """Return the study that says the same as objects do; see :func:`fedaudit.audit`.

    Raises:
        BadInput: An object that is no part, or a setting that does not exist.
    """
    if not isinstance(federation, Federation):
        raise BadInput(
            f"audited is a fedaudit.Federation or fedaudit.Games, got {type_of(federation)}"
        )
    if isinstance(attacks, list | dict) and not attacks:
        raise BadInput("attacks names none; leave it out for the default set, or name at least one")
    options = AuditOptions() if options is None else options
    objects: dict[str, GivenObject] = {}
    register = registering(objects)
    data, folder = data_reference(federation.data)
    set_by_algorithm = _training_of(federation.algorithm)
    values = sections(
        audit=audit,
        figures=figures,
        risk=federation.risk,
        shift=federation.shift,
        training=federation.training,
        **{table: getattr(options, table) for table in OPTIONAL},
    )
    training = values.setdefault("training", {})
    twice = sorted(training.keys() & set_by_algorithm.keys())
    if twice:
        raise BadInput(
            f"{twice[0]} is set by algorithm and by training; leave it out of one of them"
        )
    training |= set_by_algorithm
    audited = values.setdefault("audit", {})
    if targets is not None:
        audited["targets"] = numbers("targets", targets)
    if options.view is not None:
        audited["view"] = register(reference("view", options.view))["name"]
    names = [register(reference("metric", metric))["name"] for metric in listed(options.metrics)]
    if names:
        others = () if figures is None else figures.metrics
        values.setdefault("figures", {})["metrics"] = [*others, *names]
    if options.server is not None:
        values["server"] = register(reference("server", options.server))
    study = study_from(
        {
            "name": name,
            "about": options.about,
            "seeds": numbers("seeds", seeds),
            "data": {
                **register(data),
                "classes": numbers("classes", federation.classes),
                "first_class": federation.first_class,
            },
            "partition": partition_settings(federation.clients, register),
            "task": register(reference("task", federation.task)),
            "model": register(reference("model", federation.model)),
            "models": [register(reference("model", one)) for one in listed(federation.models)],
            "algorithm": register(reference("algorithm", federation.algorithm)),
            "defense": defense_settings(federation.defenses, register),
            "attacks": attack_settings(attacks, register),
            **values,
        },
        source="the federation",
    )
    return AuditPlan(study, objects, folder)


def _training_of(algorithm: AlgorithmLike) -> Mapping[str, object]:
    part = algorithm.part() if isinstance(algorithm, FederatedAlgorithm) else algorithm
    return part.training if isinstance(part, AlgorithmPart) else {}


_SECTIONS: Mapping[str, type[Section]] = {
    **OPTIONAL,
    "audit": Audit,
    "detector": Detector,
    "figures": Figures,
    "game": Game,
    "neuron": Neuron,
    "risk": Risk,
    "rounds": Rounds,
    "shift": Shift,
    "training": Training,
}
"""Classes of settings by argument, which has the name of the table in a study."""


def sections(**given: object) -> dict[str, dict[str, object]]:
    """Return the settings of each argument that is not None.

    Raises:
        BadInput: An argument is of another class.
    """
    tables = {}
    for name, section in given.items():
        kind = _SECTIONS[name]
        if section is None:
            continue
        if not isinstance(section, kind):
            other = section if isinstance(section, type) else type(section)
            got = other.python_name() if issubclass(other, Section) else type_of(section)
            got = f"{got} without ()" if other is section else got
            raise BadInput(f"{name} is {kind.python_name()}(...), got {got}")
        tables[name] = section.model_dump(exclude_unset=True)
    return tables


def numbers(what: str, given: object) -> list[object]:
    """Return whole numbers as a list; a single one may be given without.

    Raises:
        BadInput: Something else.
    """
    if isinstance(given, int):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise BadInput(f"{what} are whole numbers, such as [0, 1], got {given!r}")
    return [one.item() if isinstance(one, np.generic) else one for one in given]
