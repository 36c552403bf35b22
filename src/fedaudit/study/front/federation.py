"""A federation of objects, and the study that says the same in names.

:func:`plan_of` turns what Python hands over into the one thing that runs: a
:class:`fedaudit.plan.sections.Study`, and beside it the objects that some of its names
stand for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from fedaudit.algorithms import ALGORITHMS, FederatedAlgorithm
from fedaudit.attacks import Attack
from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.importing import GivenObject
from fedaudit.core.naming import AlgorithmPart, Clients, NamedPart
from fedaudit.core.tasks import Task
from fedaudit.core.values import Samples, Setting, short_repr
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.in_memory import InMemory
from fedaudit.datasets.source import DataSource
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.hooks import Defense
from fedaudit.metrics.table import Metric
from fedaudit.models import MODELS, ConfiguredModel
from fedaudit.partitions import PartitionScheme
from fedaudit.plan.base import Section
from fedaudit.plan.optional import OPTIONAL
from fedaudit.plan.sections import (
    AuditSection,
    FiguresSection,
    RiskSection,
    ShiftSection,
    Study,
    TrainingSection,
)
from fedaudit.plan.values import study_from
from fedaudit.study.front.spelling import (
    Register,
    attack_settings,
    data_spelled,
    defense_settings,
    listed,
    metric_spelled,
    part_spelled,
    partition_settings,
    registering,
    server_spelled,
    task_spelled,
    view_spelled,
)

DataGiven: TypeAlias = (
    str
    | Samples
    | Dataset
    | InMemory
    | DataSource
    | tuple[npt.ArrayLike, npt.ArrayLike]
    | Callable[..., Dataset]
)
"""Name in the catalogue, samples, what :mod:`fedaudit.datasets` returns, or a function of these."""

DefenseGiven: TypeAlias = str | Defense | type[Defense] | NamedPart
"""Name in the catalogue, defense, class of defenses, or what :func:`fedaudit.named` returns."""

AttackGiven: TypeAlias = str | Attack | type[Attack] | NamedPart
"""Name in the catalogue, attack, class of attacks, or what :func:`fedaudit.named` returns."""

AttacksGiven: TypeAlias = (
    AttackGiven | Sequence[AttackGiven] | Mapping[str, Attack | Mapping[str, Setting]]
)
"""One attack, several, or a dictionary from names to attacks or to settings of catalogued ones."""

MetricGiven: TypeAlias = str | Metric | Callable[[np.ndarray, np.ndarray], float]
"""Name in the catalogue, metric, or function of scores and membership."""

ModelGiven: TypeAlias = str | ConfiguredModel | NamedPart | nn.Module | Callable[..., nn.Module]
"""Name in the catalogue, model of :mod:`fedaudit.models`, module, or what constructs one."""

TaskGiven: TypeAlias = str | Task | NamedPart | Callable[[Tensor, Tensor], Tensor]
"""Name in the catalogue, task of :mod:`fedaudit.tasks`, or loss of outputs and targets."""


@short_repr
@dataclass(frozen=True, eq=False)
class Federation:
    """Clients, their data, model, algorithm and defenses.

    Every part is a catalogue's name, an object that a room of fedaudit makes
    (``fedaudit.algorithms.FedAvg(rounds=50)``), or one of the caller's own.

    Attributes:
        data: Samples (``fedaudit.Samples(x, y)``, or the pair ``(x, y)``), what
            ``fedaudit.datasets`` makes, a ``Dataset``, a name, or a function that makes one.
        clients: How many, dealt to at random; or what ``fedaudit.partitions`` makes.
        task: What the model is trained for: a name ("regression"), what ``fedaudit.tasks`` makes,
            or a loss of one's own, of outputs and targets, with a number a sample.
        model: A name, a class or function that makes a ``torch.nn.Module`` (it is given ``shape``
            and ``classes`` where it takes them), or a module, with which every run then starts.
        models: Networks of the clients' own, in place of ``model``: a list of what that may be,
            dealt in turn, for algorithms that average no parameters, such as FedMD.
        classes: Only samples of these are kept, and they are numbered in this order; all if empty.
        first_class: Number of the first class; those before it are a public set's.
        algorithm: A name, what ``fedaudit.algorithms`` makes, or a function from a task to an
            algorithm.
        defenses: Defenses with their members, as ``CoFedMID(members=[0, 1])``; one without members
            is of all clients that have no other, and several with the same members are a chain.
        training: Rounds and local training, beside what ``algorithm`` says of them.
        shift: Groups of clients with other features.
        risk: How algorithms that weigh membership risk measure it.

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

    data: DataGiven
    clients: int | Clients | PartitionScheme = 10
    model: ModelGiven = "mlp"
    task: TaskGiven = "classification"
    algorithm: str | FederatedAlgorithm | AlgorithmPart | Callable[..., Algorithm] = "fedavg"
    defenses: DefenseGiven | Sequence[DefenseGiven] = ()
    training: TrainingSection | None = None
    shift: ShiftSection | None = None
    risk: RiskSection | None = None
    models: Sequence[ModelGiven] = ()
    classes: Sequence[int] = ()
    first_class: int = 0


class Questions(NamedTuple):
    """The questions about a federation; see :func:`fedaudit.study.front.audit.audit`.

    Attributes:
        tables: Settings of the optional tables of a study, by their names; None where there is no
            such table.
    """

    attacks: object = ()
    targets: object = None
    seeds: object = (1,)
    audit: AuditSection | None = None
    figures: FiguresSection | None = None
    server: object = None
    view: object = None
    metrics: object = ()
    tables: Mapping[str, object] = MappingProxyType({})


class AuditPlan(NamedTuple):
    """The audit that is carried out.

    Attributes:
        study: All settings, in names.
        objects: What those names stand for that no catalogue has.
        data_dir: Folder of the data set's file; None where nothing is said of it.
    """

    study: Study
    objects: dict[str, GivenObject]
    data_dir: Path | None


def plan_of(federation: Federation, asked: Questions, *, name: str, about: str = "") -> AuditPlan:
    """The study that says the same as objects do.

    Args:
        federation: What is audited.
        asked: How.
        name: Of the study.
        about: A sentence for the reader of its report.

    Raises:
        BadInput: A part that is none, or a setting that does not exist.
    """
    if not isinstance(federation, Federation):
        raise BadInput(
            f"audited is a fedaudit.Federation or fedaudit.Games, got {type_of(federation)}"
        )
    if isinstance(asked.attacks, list | dict) and not asked.attacks:
        raise BadInput("attacks names none; leave it out for the default set, or name at least one")
    objects: dict[str, GivenObject] = {}
    register = registering(objects)
    data, folder = data_spelled(federation.data)
    algorithm: object = federation.algorithm
    if isinstance(algorithm, FederatedAlgorithm):
        algorithm = algorithm.part()
    values: dict[str, object] = {
        "name": name,
        "about": about,
        "seeds": numbers("seeds", asked.seeds),
        "data": {
            **register(data),
            "classes": numbers("classes", federation.classes),
            "first_class": federation.first_class,
        },
        "partition": partition_settings(federation.clients, register),
        "task": register(task_spelled(federation.task)),
        "model": register(part_spelled("model", federation.model, MODELS)),
        "models": [
            register(part_spelled("model", one, MODELS)) for one in listed(federation.models)
        ],
        "algorithm": register(part_spelled("algorithm", algorithm, ALGORITHMS)),
        "training": _training(federation, algorithm),
        "audit": _audit(asked, register),
        "defense": defense_settings(federation.defenses, register),
        "attacks": attack_settings(asked.attacks, register),
        **sections(
            shift=(ShiftSection, federation.shift),
            risk=(RiskSection, federation.risk),
            figures=(FiguresSection, asked.figures),
            **{name: (OPTIONAL[name], given) for name, given in asked.tables.items()},
        ),
    }
    metrics = [register(metric_spelled(one))["name"] for one in listed(asked.metrics)]
    if metrics:
        figures = values.get("figures", {})
        assert isinstance(figures, dict)
        values["figures"] = {**figures, "metrics": [*figures.get("metrics", ()), *metrics]}
    if asked.server is not None:
        values["server"] = register(server_spelled(asked.server))
    return AuditPlan(study_from(values, source="the federation"), objects, folder)


def sections(**given: tuple[type[Section], object]) -> dict[str, dict[str, object]]:
    """Settings that were given, of each section that was."""
    found = {}
    for what, (kind, section) in given.items():
        if section is not None:
            found[what] = _settings_of(what, kind, section)
    return found


def _settings_of(what: str, kind: type[Section], given: object) -> dict[str, object]:
    if not isinstance(given, kind):
        section = given if isinstance(given, type) else type(given)
        got = section.python_name() if issubclass(section, Section) else type_of(given)
        got = f"{got} without ()" if given is section else got
        raise BadInput(f"{what} is {kind.python_name()}(...), got {got}")
    return given.model_dump(exclude_unset=True)


def numbers(what: str, given: object) -> list[object]:
    """Whole numbers, of which there may be one.

    Raises:
        BadInput: Something else.
    """
    if isinstance(given, int):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise BadInput(f"{what} are whole numbers, such as [0, 1], got {given!r}")
    return [one.item() if isinstance(one, np.generic) else one for one in given]


def _audit(asked: Questions, register: Register) -> dict[str, object]:
    found = sections(audit=(AuditSection, asked.audit)).get("audit", {})
    if asked.targets is not None:
        found["targets"] = numbers("targets", asked.targets)
    if asked.view is not None:
        found["view"] = register(view_spelled(asked.view))["name"]
    return found


def _training(federation: Federation, algorithm: object) -> dict[str, object]:
    apart = sections(training=(TrainingSection, federation.training)).get("training", {})
    within: dict[str, object] = dict(getattr(algorithm, "training", {}))
    twice = sorted(apart.keys() & within.keys())
    if twice:
        raise BadInput(
            f"{twice[0]} is set by algorithm and by training; leave it out of one of them"
        )
    return {**apart, **within}
