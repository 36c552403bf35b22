"""Federations and options of audits in Python, and their conversion to studies.

:func:`plan_of` returns a :class:`fedaudit.plan.sections.Study`, and the custom objects that it
refers to by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from fedaudit.algorithms import FederatedAlgorithm
from fedaudit.api.references import (
    as_list,
    attack_settings,
    check_data,
    check_defense,
    check_part,
    clients_of,
    data_reference,
    defense_settings,
    partition_settings,
    reference,
    registering,
)
from fedaudit.api.target_names import target_numbers
from fedaudit.attacks import Attack
from fedaudit.core.arguments import Count, Range, dataclass, raise_if_invalid
from fedaudit.core.display import repr_html
from fedaudit.core.errors import BadInput, called_by, format_setting, type_of
from fedaudit.core.importing import RegisteredObject, with_registered
from fedaudit.core.naming import AlgorithmPart, NamedPart, PartitionPart
from fedaudit.core.tasks import Task
from fedaudit.core.values import Samples, Setting, short_repr
from fedaudit.datasets.arrays import InMemory
from fedaudit.datasets.dataset import Dataset, DataSource
from fedaudit.datasets.tables.dataframe import dataframe
from fedaudit.engines.base import CountedEngine
from fedaudit.engines.local import raise_if_unknown_engine
from fedaudit.fl.algorithms.base import Algorithm, Server
from fedaudit.fl.hooks import Defense
from fedaudit.metrics.catalogue import Metric
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
from fedaudit.plan.optional import OPTIONAL_SECTIONS
from fedaudit.plan.optional import AttackerSection as Attacker
from fedaudit.plan.optional import CanariesSection as Canaries
from fedaudit.plan.optional import LabelInferenceSection as LabelInference
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

DataLike: TypeAlias = (
    str
    | Samples
    | Dataset
    | InMemory
    | dataframe
    | DataSource
    | tuple[npt.ArrayLike, npt.ArrayLike]
    | Callable[..., Dataset]
)
"""Catalogue name, samples, object of :mod:`fedaudit.datasets`, or function that returns data."""

DefenseLike: TypeAlias = str | Defense | type[Defense] | NamedPart
"""Catalogue name, defense, class of defenses, or what :func:`fedaudit.named` returns."""

AttackLike: TypeAlias = str | Attack | type[Attack] | NamedPart
"""Catalogue name, attack, class of attacks, or what :func:`fedaudit.named` returns."""

AttacksLike: TypeAlias = (
    AttackLike | Sequence[AttackLike] | Mapping[str, Attack | Mapping[str, Setting]]
)
"""Attack, several attacks, or a dictionary from names to attacks or to settings of attacks."""

MetricLike: TypeAlias = str | Metric | Callable[[np.ndarray, np.ndarray], float]
"""Catalogue name, metric, or function of scores and membership."""

ModelLike: TypeAlias = str | ConfiguredModel | NamedPart | nn.Module | Callable[..., nn.Module]
"""Catalogue name, model of :mod:`fedaudit.models`, module, or class or function of a module."""

TaskLike: TypeAlias = str | Task | NamedPart | Callable[[Tensor, Tensor], Tensor]
"""Catalogue name, task of :mod:`fedaudit.tasks`, or loss of outputs and targets."""

AlgorithmLike: TypeAlias = str | FederatedAlgorithm | AlgorithmPart | Callable[..., Algorithm]
"""Catalogue name, object of :mod:`fedaudit.algorithms`, or function from a task to an algorithm."""

ClientsLike: TypeAlias = int | PartitionPart | PartitionScheme
"""Number of clients, or object of :mod:`fedaudit.partitions`."""


@short_repr
@dataclass(frozen=True, eq=False)
class Federation:
    """Federation: clients with data and defenses, a model and an algorithm.

    Every part is a name that ``fedaudit list`` shows, an object of one of fedaudit's packages, such
    as ``fedaudit.algorithms.FedAvg(rounds=50)``, or a custom object.

    Attributes:
        data: Samples (``fedaudit.Samples(x, y)``, or the pair ``(x, y)`` of arrays), an object of
            :mod:`fedaudit.datasets`, a ``fedaudit.datasets.Dataset``, a name such as "digits", or a
            function that returns a data set.
        clients: Number of clients, among which samples are divided at random, or an object of
            :mod:`fedaudit.partitions`.
        model: Name such as "mlp", an object of :mod:`fedaudit.models`, or a class or function that
            returns a ``torch.nn.Module``; ``fedaudit.named`` adds settings. It is called with
            ``shape`` and ``classes`` if it has such parameters. A module can also be passed; its
            weights are then the initial weights of every run.
        task: Task of the model: a name such as "regression", an object of :mod:`fedaudit.tasks`,
            or a loss, which is a function of outputs and targets that returns one number per
            sample.
        algorithm: Name such as "fedavg", an object of :mod:`fedaudit.algorithms`, or a function
            of a ``fedaudit.algorithms.FederatedTask`` that returns an algorithm.
        defenses: One defense or several: names, objects such as ``CoFedMID(clients=[0, 1])``, or
            classes. A defense without ``clients`` is used by all clients that have no other
            defense. Several defenses with the same clients are applied in order.
        training: Rounds and local training, if ``algorithm`` does not set them:
            ``fedaudit.Training``.
        shift: Groups of clients whose features differ: ``fedaudit.Shift``; none by default.
        risk: Measurement of membership risk, for algorithms that use it: ``fedaudit.Risk``.
        models: Models that replace ``model`` if clients have different networks. They are assigned
            to the clients in rotation. The algorithm must not average parameters, as FedMD.
        classes: Classes to keep, which are renumbered in this order; all if empty.
        first_class: Number of the first class. Lower numbers are reserved for classes of a public
            data set.

    Raises:
        BadInput: A part is of another type, out of range, or a name that does not exist. Names of
            data sets are looked up later, by :func:`fedaudit.audit`.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation(
        ...     "digits",
        ...     clients=fa.partitions.Dirichlet(5, beta=0.5),
        ...     model="cnn",
        ...     algorithm=fa.algorithms.FedAvg(rounds=10, epochs=2),
        ...     defenses=[fa.defenses.DPSGD(clip=1.0, noise_multiplier=0.1, clients=[0])],
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

    _repr_html_ = repr_html

    @called_by("objects")
    def __post_init__(self) -> None:
        check_data(self.data)
        clients_of(self.clients)
        check_part("model", self.model)
        check_part("task", self.task)
        check_part("algorithm", self.algorithm)
        for model in as_list(self.models):
            check_part("model", model)
        for defense in as_list(self.defenses):
            check_defense(defense)
        self._sections()
        raise_if_invalid(
            "classes of Federation",
            whole_numbers("classes of Federation", self.classes),
            Sequence[Count],
            (),
        )
        raise_if_invalid("first_class of Federation", self.first_class, _FirstClass, 0)

    def _sections(self) -> dict[str, dict[str, object]]:
        """Return the settings of training, shift and risk.

        Raises:
            BadInput: Both the algorithm and the training set the same setting.
        """
        settings = section_settings(risk=self.risk, shift=self.shift, training=self.training)
        part = self.algorithm
        part = part.named_part() if isinstance(part, FederatedAlgorithm) else part
        algorithm_training = part.training if isinstance(part, AlgorithmPart) else {}
        training = settings.setdefault("training", {})
        set_twice = sorted(training.keys() & algorithm_training.keys())
        if set_twice:
            raise BadInput(
                f"{set_twice[0]} is set by algorithm and by training; leave it out of one of them"
            )
        training |= algorithm_training
        return settings


_FirstClass = Annotated[int, Range(ge=0, le=10**6)]


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Less common settings of :func:`audit`, all optional.

    Attributes:
        shadow: Training examples of attacks that learn: ``fedaudit.Shadow``.
        references: Reference models that the adversary trains: ``fedaudit.References``.
        canaries: Canary clients, which measure how well one client's update is hidden:
            ``fedaudit.Canaries``.
        unlearning: Unlearning of audited samples after training: ``fedaudit.Unlearning``.
        secure_sum: Measurement of how well the sum of a round's updates hides a single update:
            ``fedaudit.SecureSum``.
        label_inference: Inference of the classes that occur in each client's training data:
            ``fedaudit.LabelInference``.
        attacker: A client that sends poisoned updates: ``fedaudit.Attacker``.
        metrics: Additional metrics of scores: one or several names, functions of scores and
            membership, or :class:`fedaudit.metrics.Metric` objects.
        server: Server that alters the models that it sends to clients, as an object or
            ``module:Class``.
        view: Custom view of the adversary. Set a catalogue view by ``fedaudit.Audit(view=...)``.
        engine: Engine that trains clients: "local", "ray" or an engine object.
        pool: Folder of runs that several audits share.
        data_dir: Folder of data sets; by default, the folder of the federation's file, or of the
            environment variable ``FEDAUDIT_DATA``.
        about: One sentence about the audit for readers of the report.
        keep_model: Whether to write the model after the last round next to the record, as
            ``model.safetensors``. With several seeds or models, there is a file for each.

    Raises:
        BadInput: An option is of another type, or a name that does not exist.

    Examples:
        >>> import fedaudit as fa
        >>> fa.AuditOptions(metrics=["average_precision"], about="A first look.").engine
        'local'
    """

    shadow: Shadow | None = None
    references: References | None = None
    canaries: Canaries | None = None
    unlearning: Unlearning | None = None
    secure_sum: SecureSum | None = None
    label_inference: LabelInference | None = None
    attacker: Attacker | None = None
    metrics: MetricLike | Sequence[MetricLike] = ()
    server: str | Server | None = None
    view: str | View | None = None
    engine: CountedEngine | str = "local"
    pool: Path | str | None = None
    data_dir: Path | str | None = None
    about: str = ""
    keep_model: bool = False

    @called_by("objects")
    def __post_init__(self) -> None:
        section_settings(**{name: getattr(self, name) for name in OPTIONAL_SECTIONS})
        for metric in as_list(self.metrics):
            check_part("metric", metric)
        if self.server is not None:
            check_part("server", self.server)
        if self.view is not None:
            check_part("view", self.view)
        if isinstance(self.engine, str):
            raise_if_unknown_engine(self.engine)
        elif not isinstance(self.engine, CountedEngine):
            raise BadInput(
                f'engine must be "local", "ray" or an object of fedaudit.engines, got '
                f"{type_of(self.engine)}"
            )
        for name in ("pool", "data_dir"):
            raise_if_invalid(
                f"{name} of AuditOptions", getattr(self, name), Path | str | None, None
            )
        raise_if_invalid("about of AuditOptions", self.about, str, "")


PlanKind = TypeVar("PlanKind", Study, GameStudy)


@dataclass(frozen=True)
class AuditPlan(Generic[PlanKind]):
    """Study, and the Python objects to which it refers.

    Attributes:
        study: All settings.
        objects: Objects by the names in the study.
        data_dir: Folder of the data set's file; None for the default folder.
        points: For games, the study and each of its variants.
    """

    study: PlanKind
    objects: dict[str, RegisteredObject]
    data_dir: Path | None
    points: Sequence[Point[GameStudy]] = ()


def plan_of(
    federation: Federation,
    *,
    attacks: AttacksLike = (),
    targets: int | str | Sequence[int | str] | None = None,
    seeds: int | Sequence[int] = (1,),
    audit: Audit | None = None,
    figures: Figures | None = None,
    options: AuditOptions | None = None,
    name: str,
) -> AuditPlan[Study]:
    """Return the study of an audit; see :func:`fedaudit.audit` for the arguments.

    Raises:
        BadInput: An argument is of another type, or a setting does not exist.
    """
    if not isinstance(federation, Federation):
        hint = "; run a study file with fedaudit.run_study(fedaudit.read_study(path), out)"
        raise BadInput(
            "federation must be a fedaudit.Federation(...) or fedaudit.Games(...), got "
            f"{type_of(federation)}{hint if isinstance(federation, str | Path) else ''}"
        )
    if isinstance(attacks, list | dict) and not attacks:
        raise BadInput("attacks is empty; leave it out for the default set, or name an attack")
    options = AuditOptions() if options is None else options
    objects: dict[str, RegisteredObject] = {}
    register = registering(objects)
    data, folder = data_reference(federation.data)
    data_settings = register(data)
    values = {
        **section_settings(
            audit=audit,
            figures=figures,
            **{name: getattr(options, name) for name in OPTIONAL_SECTIONS},
        ),
        **federation._sections(),
    }
    audit_values = values.setdefault("audit", {})
    if targets is not None:
        with with_registered(objects):
            target_names = (
                [targets] if isinstance(targets, str) else whole_numbers("targets", targets)
            )
        numbers = target_numbers(target_names, data, options.data_dir or folder)
        audit_values["targets"] = _merged_targets(audit, numbers)
    if options.view is not None:
        audit_values["view"] = register(reference("view", options.view))["name"]
    metrics = [register(reference("metric", metric))["name"] for metric in as_list(options.metrics)]
    if metrics:
        other_metrics = () if figures is None else figures.metrics
        values.setdefault("figures", {})["metrics"] = [*other_metrics, *metrics]
    if options.server is not None:
        values["server"] = register(reference("server", options.server))
    study = study_from(
        {
            "name": name,
            "about": options.about,
            "seeds": whole_numbers("seeds", seeds),
            "data": {
                **data_settings,
                "classes": whole_numbers("classes", federation.classes),
                "first_class": federation.first_class,
            },
            "partition": partition_settings(federation.clients, register),
            "task": register(reference("task", federation.task)),
            "model": register(reference("model", federation.model)),
            "models": [register(reference("model", model)) for model in as_list(federation.models)],
            "algorithm": register(reference("algorithm", federation.algorithm)),
            "defense": defense_settings(federation.defenses, register),
            "attacks": attack_settings(attacks, register),
            **values,
        },
        source="the audit",
    )
    return AuditPlan(study, objects, folder)


def _merged_targets(audit: Audit | None, targets: list[object]) -> list[object]:
    """Return the targets; raise if the audit settings name other targets."""
    if audit is not None and "targets" in audit.model_fields_set:
        audit_targets = list(audit.targets)
        if audit_targets != targets:
            raise BadInput(
                f"targets is {targets} and {format_setting('audit.targets')} is {audit_targets}; "
                "leave one out"
            )
    return targets


_SECTIONS: Mapping[str, type[Section]] = {
    **OPTIONAL_SECTIONS,
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
"""Class of settings of each argument. Arguments have the names of a study's tables."""


def section_settings(**sections: object) -> dict[str, dict[str, object]]:
    """Return the settings of each argument that is not None.

    Raises:
        BadInput: An argument is of another class.
    """
    tables = {}
    for name, section in sections.items():
        kind = _SECTIONS[name]
        if section is None:
            continue
        if not isinstance(section, kind):
            is_class = isinstance(section, type)
            section_class = section if isinstance(section, type) else type(section)
            actual = type_of(section)
            if issubclass(section_class, Section):
                actual = section_class.python_name()
            without_call = " without ()" if is_class else ""
            raise BadInput(f"{name} must be {kind.python_name()}(...), got {actual}{without_call}")
        tables[name] = section.model_dump(exclude_unset=True)
    return tables


def whole_numbers(name: str, value: object) -> list[object]:
    """Return a whole number, or several, as a list.

    Raises:
        BadInput: The value is neither a whole number nor a collection.
    """
    if isinstance(value, int):
        return [value]
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise BadInput(f"{name} must be whole numbers, such as [0, 1], got {value!r}")
    return [number.item() if isinstance(number, np.generic) else number for number in value]
