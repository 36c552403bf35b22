"""A federation of objects, and the study that says the same in names.

:func:`plan_of` turns what Python hands over into the one thing that runs: a
:class:`fedaudit.study.settings.sections.Study`, and beside it the objects that some of its names
stand for.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import nn

from fedaudit.attacks.base import Attack
from fedaudit.attacks.catalog import ATTACKS, SOURCE_ATTACKS
from fedaudit.core.errors import BadInput
from fedaudit.core.importing import GivenObject
from fedaudit.core.naming import Clients, Copies, DefensePart, NamedPart
from fedaudit.core.objects import Spelled, frozen, plain_settings, spelled
from fedaudit.core.values import Samples, Setting
from fedaudit.datasets.catalog import SOURCES
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.in_memory import InMemory, of_samples, samples
from fedaudit.datasets.partitions.schemes import PARTITIONS
from fedaudit.defenses.base import Defense
from fedaudit.defenses.catalog import DEFENSES
from fedaudit.fl.algorithms.base import Server
from fedaudit.fl.algorithms.catalog import ALGORITHMS
from fedaudit.metrics.table import METRICS, Metric
from fedaudit.models import MODELS
from fedaudit.observe.views import VIEWS, View
from fedaudit.study.settings.base import Section
from fedaudit.study.settings.sections import (
    AuditSection,
    FiguresSection,
    RiskSection,
    ShadowSection,
    ShiftSection,
    Study,
    TrainingSection,
)
from fedaudit.study.settings.values import study_from

_ATTACK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")

Noted = Callable[[Spelled], dict[str, object]]
"""Keeps the object that a name stands for, and gives name and options as a study has them."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients, their data, model, algorithm and defenses.

    Every part is a catalogue's name, an object that a room of fedaudit makes
    (``fedaudit.algorithms.FedAvg(rounds=50)``), or one of the caller's own.

    Attributes:
        data: Samples (``fedaudit.Samples(x, y)``, or the pair ``(x, y)``), what
            ``fedaudit.datasets`` makes, a ``Dataset``, a name, or a function that makes one.
        clients: How many, dealt to at random; or what ``fedaudit.partitions`` makes.
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
    """

    data: object
    clients: object = 10
    model: object = "mlp"
    algorithm: object = "fedavg"
    defenses: object = ()
    training: TrainingSection | None = None
    shift: ShiftSection | None = None
    risk: RiskSection | None = None
    models: object = ()
    classes: object = ()
    first_class: int = 0


class Questions(NamedTuple):
    """The questions about a federation; see :func:`fedaudit.study.front.audit.audit`."""

    attacks: object = ()
    targets: object = None
    seeds: object = (1,)
    audit: AuditSection | None = None
    shadow: ShadowSection | None = None
    figures: FiguresSection | None = None
    server: object = None
    view: object = None
    metrics: object = ()


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
        raise BadInput(f"audited is a fedaudit.Federation, got a {type(federation).__name__}")
    objects: dict[str, GivenObject] = {}

    def noted(one: Spelled) -> dict[str, object]:
        if one.given is not None:
            objects[one.name] = one.given
        return {"name": one.name, "options": one.options}

    data, folder = _data(federation.data)
    values: dict[str, object] = {
        "name": name,
        "about": about,
        "seeds": _numbers("seeds", asked.seeds),
        "data": {
            **noted(data),
            "classes": _numbers("classes", federation.classes),
            "first_class": federation.first_class,
        },
        "partition": _partition(federation.clients, noted),
        "model": noted(_made("model", federation.model, MODELS)),
        "models": [noted(_made("model", one, MODELS)) for one in _listed(federation.models)],
        "algorithm": noted(_made("algorithm", federation.algorithm, ALGORITHMS)),
        "training": _training(federation),
        "audit": _audit(asked, noted),
        "defense": _defense(federation.defenses, noted),
        "attacks": attack_settings(asked.attacks, noted),
        **_sections(
            shift=(ShiftSection, federation.shift),
            risk=(RiskSection, federation.risk),
            shadow=(ShadowSection, asked.shadow),
            figures=(FiguresSection, asked.figures),
        ),
    }
    metrics = [noted(_metric(one))["name"] for one in _listed(asked.metrics)]
    if metrics:
        figures = values.get("figures", {})
        assert isinstance(figures, dict)
        values["figures"] = {**figures, "metrics": [*figures.get("metrics", ()), *metrics]}
    if asked.server is not None:
        values["server"] = noted(_server(asked.server))
    return AuditPlan(study_from(values, source="the federation"), objects, folder)


def attack_settings(given: object, noted: Noted) -> dict[str, object]:
    """Attacks as a study has them: names, objects, or a mapping from names to either.

    Args:
        given: One of them, several, or a mapping to settings or objects.
        noted: Keeps objects.

    Raises:
        BadInput: Something that is no attack.
    """
    if isinstance(given, Mapping):
        found = [_attack_called(str(name), one) for name, one in given.items()]
    else:
        found = [_attack(one) for one in _listed(given)]
    return {one.name: noted(one)["options"] for one in found}


def _listed(given: object) -> list[object]:
    return list(given) if isinstance(given, list | tuple | set | frozenset) else [given]


def _sections(**given: tuple[type[Section], object]) -> dict[str, object]:
    """Settings that were given, of each section that was."""
    found: dict[str, object] = {}
    for what, (kind, section) in given.items():
        if section is not None:
            found[what] = _settings_of(what, kind, section)
    return found


def _settings_of(what: str, kind: type[Section], given: object) -> dict[str, object]:
    if not isinstance(given, kind):
        name = kind.__name__.removesuffix("Section")
        raise BadInput(f"{what} is a fedaudit.{name}, got a {type(given).__name__}")
    return given.model_dump(exclude_unset=True)


def _numbers(what: str, given: object) -> list[object]:
    if isinstance(given, int):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise BadInput(f"{what} are whole numbers, such as [0, 1], got {given!r}")
    return [one.item() if isinstance(one, np.generic) else one for one in given]


def _audit(asked: Questions, noted: Noted) -> dict[str, object]:
    values = _sections(audit=(AuditSection, asked.audit)).get("audit")
    found: dict[str, object] = dict(values) if isinstance(values, dict) else {}
    if asked.targets is not None:
        found["targets"] = _numbers("targets", asked.targets)
    if asked.view is not None:
        found["view"] = noted(view_spelled(asked.view))["name"]
    return found


def _training(federation: Federation) -> dict[str, object]:
    given = _sections(training=(TrainingSection, federation.training)).get("training")
    apart: dict[str, object] = dict(given) if isinstance(given, dict) else {}
    within: dict[str, object] = dict(getattr(federation.algorithm, "training", {}))
    twice = sorted(apart.keys() & within.keys())
    if twice:
        raise BadInput(
            f"{twice[0]} is set by algorithm and by training; leave it out of one of them"
        )
    return {**apart, **within}


def _named_in(catalogue: Mapping[str, object], value: object) -> str | None:
    """The catalogue's name of one of its own classes, functions or objects."""
    return next((name for name, one in catalogue.items() if one is value), None)


def _part(kind: str, given: object, catalogue: Mapping[str, object]) -> Spelled:
    """A name, a class or a function, with options."""
    part = given if isinstance(given, NamedPart) else NamedPart(given)
    what: object = part.what
    options: dict[str, object] = dict(part.options)
    if isinstance(what, functools.partial) and _named_in(catalogue, what.func):
        options = {**what.keywords, **options}
        what = what.func
    known = what if isinstance(what, str) else _named_in(catalogue, what)
    if known is not None:
        return Spelled(known, _plain(kind, known, options))
    return spelled(what, options, kind=kind)


def _plain(kind: str, name: str, options: Mapping[str, object]) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for option, given in options.items():
        value: object = given.item() if isinstance(given, np.generic) else given
        if not isinstance(value, bool | int | float | str):
            raise BadInput(
                f"{option} of the {kind} {name!r} is a {type(value).__name__}, and a setting is a "
                "number, a text, or true or false"
            )
        found[option] = value
    return found


_WANTED = {
    "model": "a torch.nn.Module, a class or function that makes one, or a catalogue's name",
    "algorithm": "what fedaudit.algorithms makes, a function from a task to an algorithm, or a "
    "catalogue's name",
    "data": "samples, what fedaudit.datasets makes, a function that makes a Dataset, or a name",
    "defense": "derived from fedaudit.defenses.base.Defense, or a catalogue's name",
}


def _is_not(kind: str, given: object) -> BadInput:
    article = "an" if kind[0] in "aeiou" else "a"
    subject = "data are" if kind == "data" else f"{article} {kind} is"
    return BadInput(f"{subject} {_WANTED[kind]}; got a {type(given).__name__}")


def _made(kind: str, given: object, catalogue: Mapping[str, object]) -> Spelled:
    """A model or an algorithm."""
    if isinstance(given, nn.Module) and kind == "model":
        return _kept(frozen(given, given))
    what = given.what if isinstance(given, NamedPart) else given
    if not isinstance(what, str) and (isinstance(what, nn.Module) or not callable(what)):
        raise _is_not(kind, what)
    return _part(kind, given, catalogue)


def _kept(one: Spelled) -> Spelled:
    """An object that is made already, of which its name gives copies."""
    assert one.given is not None
    copies = Copies(one.given.value, one.given.digest)
    return one._replace(given=replace(one.given, value=copies))


def _instance(
    kind: str, value: object, catalogue: Mapping[str, object], *, besides: tuple[str, ...] = ()
) -> Spelled:
    """An object by its class and plain settings where these make it again, else as it is."""
    settings = plain_settings(value, besides=besides)
    if settings is None:
        return _kept(frozen(value, value))
    known = _named_in(catalogue, type(value))
    return Spelled(known, settings) if known else spelled(type(value), settings, kind=kind)


def _data(given: object) -> tuple[Spelled, Path | None]:
    """A data set, and the folder of its file."""
    if isinstance(given, tuple) and len(given) == 2:
        given = samples(*given)
    if isinstance(given, Samples):
        given = of_samples(given)
    if isinstance(given, InMemory):
        return frozen(given, given, label=given.name), None
    if isinstance(given, Dataset):
        dataset = given
        return frozen(dataset, lambda: dataset, label=dataset.name), None
    what = given.what if isinstance(given, NamedPart) else given
    if not isinstance(what, str) and not callable(what):
        raise _is_not("data", what)
    return _part("data set", given, SOURCES), getattr(given, "folder", None)


def _partition(given: object, noted: Noted) -> dict[str, object]:
    if isinstance(given, int) and not isinstance(given, bool):
        given = Clients("iid", {}, given)
    if not isinstance(given, Clients):
        raise BadInput(
            "clients are a number of them, or what fedaudit.partitions makes, such as "
            f"Dirichlet(10, beta=1.0); got a {type(given).__name__}"
        )
    what, by_name = given.what, isinstance(given.what, str | type) or callable(given.what)
    scheme = (
        _part("partition", given, PARTITIONS)
        if by_name
        else _instance("partition", what, PARTITIONS)
    )
    options = dict(scheme.options)
    size = options.pop("samples_per_client", 0) if scheme.given is None else 0
    name = noted(scheme)["name"]
    return {
        "scheme": name,
        "clients": given.count,
        "samples_per_client": size,
        "options": options,
    }


def _server(given: object) -> Spelled:
    if isinstance(given, str):
        return Spelled(given, {})
    if not isinstance(given, Server):
        raise BadInput(
            "a server is derived from fedaudit.fl.algorithms.base.Server; got a "
            f"{type(given).__name__}"
        )
    return _instance("server", given, {})


_Members = tuple[int, ...] | None


def _defense(given: object, noted: Noted) -> dict[str, object]:
    """The section of defenses: groups of clients, and what each group uses in order."""
    plans = [_defended(one) for one in _listed(given)]
    order: list[_Members] = list(dict.fromkeys(members for members, _ in plans))
    # Those of all others come first, because the section's own group is what is left over.
    order.sort(key=lambda members: members is not None)
    groups = [[noted(part) for members, part in plans if members == one] for one in order]
    if not groups:
        return {}
    first, *others = [
        {**parts[0], "chain": parts[1:], "clients": members}
        for members, parts in zip(order, groups, strict=True)
    ]
    return {**first, "also": others}


def _defended(given: object) -> tuple[_Members, Spelled]:
    if isinstance(given, DefensePart):
        return given.members, _part("defense", given, DEFENSES)
    if isinstance(given, Defense):
        together = getattr(given, "coalition", None)
        members = tuple(together) if isinstance(together, tuple) else None
        return members, _instance("defense", given, DEFENSES, besides=("coalition",))
    is_class = isinstance(given, type) and issubclass(given, Defense)
    if not (is_class or isinstance(given, str | NamedPart)):
        raise _is_not("defense", given)
    return None, _part("defense", given, DEFENSES)


def _attack_called(name: str, given: object) -> Spelled:
    if isinstance(given, Mapping):
        return Spelled(name, _plain("attack", name, given))
    if not isinstance(given, Attack) or not _ATTACK_NAME.fullmatch(name):
        raise BadInput(
            f"attacks[{name!r}] is a dictionary of settings, or a fedaudit.attacks.base.Attack "
            f"under a name of letters and digits; got a {type(given).__name__}"
        )
    return frozen(given, given, label=name)


def _attack(given: object) -> Spelled:
    if isinstance(given, str):
        return Spelled(given, {})
    if isinstance(given, NamedPart) and isinstance(given.what, str):
        return Spelled(given.what, _plain("attack", given.what, given.options))
    if isinstance(given, type) and issubclass(given, Attack):
        return spelled(given, {}, kind="attack")
    if not isinstance(given, Attack):
        raise BadInput(
            "an attack is a catalogue's name, or a fedaudit.attacks.base.Attack of signals and a "
            f"rule; got a {type(given).__name__}"
        )
    known = _named_in({**ATTACKS, **SOURCE_ATTACKS}, given)
    if known:
        return Spelled(known, {})
    kind = type(given)
    if kind is Attack:
        rule = type(given.rule).__name__
        return frozen(given, given, label="+".join([*(s.name for s in given.signals), rule]))
    return spelled(kind, {}, kind="attack") if _is_made_alone(given) else frozen(given, given)


def _is_made_alone(given: Attack) -> bool:
    """True if the class of an attack makes the same one without any argument."""
    try:
        return type(given)() == given  # type: ignore[call-arg]
    except TypeError:
        return False


def _metric(given: object) -> Spelled:
    if isinstance(given, str):
        return Spelled(given, {})
    if isinstance(given, Metric):
        known = _named_in(METRICS, given)
        label = getattr(given.of, "__name__", "metric")
        return Spelled(known, {}) if known else frozen(given, given, label=label)
    if not callable(given):
        raise BadInput(
            "a metric is a name, a function of scores and membership, or a "
            "fedaudit.metrics.Metric; "
            f"got a {type(given).__name__}"
        )
    return spelled(given, {}, kind="metric")


def view_spelled(given: object) -> Spelled:
    """A view by name, or of the caller's own.

    Raises:
        BadInput: It is none.
    """
    if isinstance(given, str):
        return Spelled(given, {})
    if not isinstance(given, View):
        raise BadInput(f"a view is a name or a fedaudit.views.View; got {given!r}")
    return Spelled(given.name, {}) if given in VIEWS.values() else frozen(given, given)
