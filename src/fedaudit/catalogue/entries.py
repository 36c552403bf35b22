"""Everything that fedaudit knows by name, read from its dictionaries and their docstrings."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from fedaudit.attacks.base import Attack
from fedaudit.attacks.catalog import ATTACK_SETS, ATTACKS, SOURCE_ATTACKS
from fedaudit.catalogue.docstrings import Doc, doc_of, meanings_of
from fedaudit.core.tasks import TASKS
from fedaudit.core.values import Sees
from fedaudit.datasets.catalog import FORMATS, SOURCES
from fedaudit.datasets.draws.fair import DRAWS
from fedaudit.datasets.partitions.schemes import PARTITIONS
from fedaudit.defenses.catalog import DEFENSES
from fedaudit.fl.algorithms.catalog import ALGORITHMS
from fedaudit.fl.training.local import SCHEDULES
from fedaudit.metrics.table import METRICS
from fedaudit.models import MODELS
from fedaudit.observe.views import VIEWS, View
from fedaudit.signals.base import Signal

_GIVEN_BY_STUDY = {"seed", "shape", "classes", "clients", "partition", "targets", "coalition"}


@dataclass(frozen=True)
class Option:
    """A setting of an entry.

    Attributes:
        name: As a study writes it.
        default: As text; empty where it must be given.
        meaning: From the docstring.
    """

    name: str
    default: str
    meaning: str


@dataclass(frozen=True)
class CatalogueEntry:
    """One thing that fedaudit knows by name.

    Attributes:
        kind: What it is, in the singular.
        name: Under which studies ask for it.
        doc: What its docstring says.
        facts: Its row of the kind's table, beside name and first line.
        settings: What can be changed about it.
        parts: What it is made of.
    """

    kind: str
    name: str
    doc: Doc
    facts: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[Option, ...] = ()
    parts: tuple["CatalogueEntry", ...] = ()


def _attacks() -> list[CatalogueEntry]:
    return [_attack(name, attack) for name, attack in (ATTACKS | SOURCE_ATTACKS).items()]


def _attack(name: str, attack: Attack) -> CatalogueEntry:
    rule = CatalogueEntry("rule", type(attack.rule).__name__, doc_of(attack.rule))
    parts = (*(_signal(signal) for signal in attack.signals), rule)
    meanings = {key: text for part in parts for key, text in part.doc.named.items()}
    return CatalogueEntry(
        "attack",
        name,
        Doc(first=attack.about, source=attack.source),
        {
            "signal": ", ".join(signal.name for signal in attack.signals),
            "over clients": attack.rule.over_clients,
            "over rounds": attack.rule.over_rounds,
            "needs": _sees(attack.needs),
            "runs in view": ", ".join(v.name for v in VIEWS.values() if _possible(attack, v)),
            "in set": ", ".join(one for one, names in ATTACK_SETS.items() if name in names)
            or "none: name it",
        },
        tuple(
            Option(key, repr(value), meanings.get(key, ""))
            for key, value in attack.settings().items()
        ),
        parts,
    )


def _signals() -> list[CatalogueEntry]:
    by_name = {signal.name: signal for attack in ATTACKS.values() for signal in attack.signals}
    return [_signal(signal) for signal in by_name.values()]


def _signal(signal: Signal) -> CatalogueEntry:
    return CatalogueEntry(
        "signal", signal.name, doc_of(type(signal)), {"needs": _sees(signal.needs)}
    )


def _views() -> list[CatalogueEntry]:
    return [_view(view) for view in VIEWS.values()]


def _view(view: View) -> CatalogueEntry:
    known = ATTACKS | SOURCE_ATTACKS
    possible = [name for name, attack in known.items() if _possible(attack, view)]
    return CatalogueEntry(
        "view",
        view.name,
        Doc(first=_sentence(view.description)),
        {"sees": _sees(view.offers), "attacks": ", ".join(possible)},
    )


def _possible(attack: Attack, view: View) -> bool:
    return view.can_offer(attack.needs)


def _defenses() -> list[CatalogueEntry]:
    nothing = CatalogueEntry(
        "defense", "none", Doc(first="Nothing: clients train and upload as they are.")
    )
    others = {name: make for name, make in DEFENSES.items() if name != "none"}
    return [nothing, *_made("defense", others)]


def _sources() -> list[CatalogueEntry]:
    def facts(name: str) -> dict[str, str]:
        form = FORMATS.get(name)
        written = f"{name}:NAME" if form or name == "hf" else name
        return {"written": written, "looks for": form.looks_for if form else ""}

    entries = _made("data source", SOURCES)
    return [replace(entry, facts=facts(entry.name)) for entry in entries]


def _draws() -> list[CatalogueEntry]:
    """A study sets the fair draw through its audit section, published ones through options."""
    entries = _made("draw", DRAWS)
    return [
        replace(
            entry,
            facts={
                "in a study": "audit.fair, extra_other, extra_unseen, background"
                if entry.name == "fair"
                else "audit.options"
            },
        )
        for entry in entries
    ]


def _made(kind: str, catalogue: Mapping[str, Callable[..., object]]) -> list[CatalogueEntry]:
    return [
        CatalogueEntry(kind, name, doc_of(make), settings=tuple(_settings(make)))
        for name, make in catalogue.items()
    ]


def _settings(make: Callable[..., object]) -> Iterator[Option]:
    """The keyword settings of a class or function, without what a study gives elsewhere."""
    meanings = meanings_of(make)
    for parameter in inspect.signature(make).parameters.values():
        # A function's positional arguments are what it works on; a class has settings only.
        is_setting = inspect.isclass(make) or parameter.kind is parameter.KEYWORD_ONLY
        if parameter.name in _GIVEN_BY_STUDY or not is_setting:
            continue
        default = "" if parameter.default is parameter.empty else repr(parameter.default)
        yield Option(parameter.name, default, meanings.get(parameter.name, ""))


CATALOGUES: dict[str, Callable[[], list[CatalogueEntry]]] = {
    "attacks": _attacks,
    "signals": _signals,
    "views": _views,
    "algorithms": lambda: _made("algorithm", ALGORITHMS),
    "defenses": _defenses,
    "models": lambda: _made("model", MODELS),
    "tasks": lambda: _made("task", TASKS),
    "data": _sources,
    "partitions": lambda: _made("partition", PARTITIONS),
    "draws": _draws,
    "metrics": lambda: [
        CatalogueEntry("metric", name, Doc(first=m.about)) for name, m in METRICS.items()
    ],
    "schedules": lambda: [
        CatalogueEntry("schedule", n, doc_of(make)) for n, make in SCHEDULES.items()
    ],
}
"""Every catalogue by the name that ``fedaudit list`` takes."""


def _sees(needs: Sees) -> str:
    return ", ".join((part.name or "").lower() for part in needs) or "nothing"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
