"""Tables and explanations of all parts with a catalogue name.

They are generated from the dictionaries that the code uses and from docstrings, so that they are
always up to date.
"""

import inspect
import re
import textwrap
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedaudit.algorithms import ALGORITHMS
from fedaudit.attacks import ATTACK_SETS, ATTACKS, SOURCE_ATTACKS
from fedaudit.attacks.base import Attack
from fedaudit.core.errors import CATALOGUE_NAMES, folded_name, unknown_name
from fedaudit.core.importing import installed_entry_points, package_of, unknown_group_warnings
from fedaudit.core.task_catalogue import TASKS
from fedaudit.core.values import Capability
from fedaudit.datasets.catalog import FORMATS, GENERATED, SOURCES
from fedaudit.datasets.draws.fair import DRAWS
from fedaudit.datasets.partitions.schemes import PARTITIONS
from fedaudit.defenses import DEFENSES
from fedaudit.fl.training.local import SCHEDULES
from fedaudit.metrics.catalogue import METRICS
from fedaudit.models import MODELS
from fedaudit.observe.views import VIEWS, View
from fedaudit.signals.base import Signal

_HEADING = re.compile(
    r"^(Args|Attributes|Examples|Parameters|Raises|Returns|Yields|Source|Differs):\s*(.*)$"
)
_ATTRIBUTE = re.compile(r"^(\w+): (.*)$")
_ROLE = re.compile(r":\w+:`~?(?:\.?fedaudit[\w.]*\.)?([^`]+)`")
_SET_BY_STUDY = {
    "seed",
    "shape",
    "classes",
    "clients",
    "partition",
    "targets",
    "coalition",
}
_WIDTH = 88
_MIN_WIDE = 120
"""Smallest width of a terminal at which every fact of an entry has a column."""
_MIN_TWO_COLUMNS = 60
"""Smallest width of a terminal at which descriptions are next to names, and not below them."""
_HINT = "Details of an entry: fedaudit explain NAME"
_HIDDEN_FACTS = ("needs", "runs in view")  # not listed in tables, since they are long


@dataclass(frozen=True)
class _Doc:
    """A docstring in parts, as plain text.

    Attributes:
        first: First line.
        rest: Paragraphs up to the first section.
        attributes: Meaning of each argument or attribute.
        source: Paper with equation or section.
        differs: Deliberate differences from the source.
    """

    first: str = ""
    rest: tuple[str, ...] = ()
    attributes: dict[str, str] = field(default_factory=dict)
    source: str = ""
    differs: str = ""


# Cached, since the explanation of one entry searches all entries by name.
@cache
def doc_of(thing: object) -> _Doc:
    """Parse the docstring of a class or function, including the meanings of inherited settings."""
    doc = parse_docstring(inspect.getdoc(thing) or "")
    bases = thing.__mro__[1:] if inspect.isclass(thing) else ()
    inherited = [parse_docstring(kind.__doc__ or "").attributes for kind in bases]
    return replace(doc, attributes=dict(ChainMap(doc.attributes, *inherited)))


@cache
def parse_docstring(text: str) -> _Doc:
    """Parse a docstring; cross-references become the names that they refer to."""
    sections: dict[str, list[str]] = {"": []}
    heading = ""
    for line in _ROLE.sub(r"\1", inspect.cleandoc(text)).splitlines():
        match = _HEADING.match(line)
        if match:
            heading = match[1]
            sections[heading] = [match[2]]
        else:
            sections[heading].append(line)
    first, *paragraphs = _paragraphs(sections[""]) or [""]
    attribute_lines = sections.get("Args", []) + sections.get("Attributes", [])
    return _Doc(
        first,
        tuple(paragraphs),
        _by_name(attribute_lines),
        " ".join(_paragraphs(sections.get("Source", []))),
        " ".join(_paragraphs(sections.get("Differs", []))),
    )


def _paragraphs(lines: list[str]) -> list[str]:
    joined = "\n".join(line.strip() for line in lines).strip()
    return [block.replace("\n", " ") for block in re.split(r"\n{2,}", joined) if block]


def _by_name(lines: list[str]) -> dict[str, str]:
    meanings: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc("\n".join(["", *lines])).splitlines():
        match = _ATTRIBUTE.match(line)
        if match:
            name = match[1]
            meanings[name] = match[2]
        elif name and line.strip():
            meanings[name] += " " + line.strip()
    return meanings


@dataclass(frozen=True)
class Option:
    """A setting of an entry.

    Attributes:
        name: Name in a study.
        default: Default as text; empty if the setting is required.
        meaning: Meaning, from the docstring.
    """

    name: str
    default: str
    meaning: str


@dataclass(frozen=True)
class CatalogueEntry:
    """An entry of a catalogue.

    Attributes:
        kind: Kind of part, in the singular.
        name: Name in a study.
        doc: Parsed docstring.
        facts: Further columns of the entry's row in a table, by their headings.
        settings: Settings of the entry.
        parts: Signals and rule, if the entry is an attack.
    """

    kind: str
    name: str
    doc: _Doc
    facts: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[Option, ...] = ()
    parts: tuple["CatalogueEntry", ...] = ()


def _attacks() -> list[CatalogueEntry]:
    return [_attack(name, attack) for name, attack in (ATTACKS | SOURCE_ATTACKS).items()]


def _attack(name: str, attack: Attack) -> CatalogueEntry:
    rule = CatalogueEntry("rule", type(attack.rule).__name__, doc_of(type(attack.rule)))
    parts = (*(_signal(signal) for signal in attack.signals), rule)
    meanings = {key: text for part in parts for key, text in part.doc.attributes.items()}
    return CatalogueEntry(
        "attack",
        name,
        _Doc(first=attack.about, source=attack.source),
        {
            "signal": ", ".join(signal.name for signal in attack.signals),
            "over clients": attack.rule.client_aggregation,
            "over rounds": attack.rule.round_aggregation,
            "needs": _describe_needs(attack.needs),
            "runs in view": ", ".join(v.name for v in VIEWS.values() if _can_run(attack, v)),
            "in set": ", ".join(
                set_name for set_name, names in ATTACK_SETS.items() if name in names
            )
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


_SNAPSHOTS = {
    "global": "global model after the round",
    "received": "model that the client received, before it trained in the round",
}
"""Models other than the clients' trained models, on which signals are measured."""


def _signal(signal: Signal) -> CatalogueEntry:
    doc = doc_of(type(signal))
    measured = _SNAPSHOTS.get(getattr(signal, "snapshot", ""))
    if measured is not None:
        # The docstring describes the default, which measures the clients' models.
        first = doc.first.replace("client's model after training", measured)
        doc = replace(doc, first=first)
    return CatalogueEntry("signal", signal.name, doc, {"needs": _describe_needs(signal.needs)})


def _views() -> list[CatalogueEntry]:
    return [_view(view) for view in VIEWS.values()]


def _view(view: View) -> CatalogueEntry:
    attacks = ATTACKS | SOURCE_ATTACKS
    names = [name for name, attack in attacks.items() if _can_run(attack, view)]
    return CatalogueEntry(
        "view",
        view.name,
        _Doc(first=_sentence(view.description)),
        {"sees": _describe_needs(view.offers), "attacks": ", ".join(names)},
    )


def _can_run(attack: Attack, view: View) -> bool:
    return view.can_offer(attack.needs)


def _defenses() -> list[CatalogueEntry]:
    nothing = CatalogueEntry(
        "defense", "none", _Doc(first="No defense: clients train and upload without changes.")
    )
    others = {name: make for name, make in DEFENSES.items() if name != "none"}
    return [nothing, *_entries("defense", others)]


def _sources() -> list[CatalogueEntry]:
    def described(entry: CatalogueEntry) -> CatalogueEntry:
        written = entry.name if entry.name in GENERATED else f"{entry.name}:NAME"
        facts = {
            "written": written,
            "looks for": FORMATS[entry.name].expected_layout if entry.name in FORMATS else "",
        }
        # Required settings are part of the name, after the colon.
        return replace(
            entry,
            facts=facts,
            settings=tuple(option for option in entry.settings if option.default),
        )

    return [described(entry) for entry in _entries("data source", SOURCES)]


def _draws() -> list[CatalogueEntry]:
    # Studies configure the fair draw in the table [audit], and published draws in audit.options.
    entries = _entries("draw", DRAWS)
    return [
        replace(
            entry,
            facts={
                "in a study": "audit.samples, extra_other, extra_unseen, background"
                if entry.name == "fair"
                else "audit.options"
            },
        )
        for entry in entries
    ]


def _entries(kind: str, catalogue: Mapping[str, Callable[..., object]]) -> list[CatalogueEntry]:
    return [
        CatalogueEntry(kind, name, doc_of(make), settings=tuple(_settings(make)))
        for name, make in catalogue.items()
    ]


def _settings(make: Callable[..., object]) -> Iterator[Option]:
    """Yield the settings of a class or function, except those that a study sets elsewhere."""
    meanings = doc_of(make).attributes
    for parameter in inspect.signature(make).parameters.values():
        # Positional arguments of a function are not settings; those of a class are.
        is_setting = inspect.isclass(make) or parameter.kind is parameter.KEYWORD_ONLY
        if parameter.name in _SET_BY_STUDY or not is_setting:
            continue
        default = "" if parameter.default is parameter.empty else repr(parameter.default)
        yield Option(parameter.name, default, meanings.get(parameter.name, ""))


CATALOGUES: dict[str, Callable[[], list[CatalogueEntry]]] = {
    "attacks": _attacks,
    "signals": _signals,
    "views": _views,
    "algorithms": lambda: _entries("algorithm", ALGORITHMS),
    "defenses": _defenses,
    "models": lambda: _entries("model", MODELS),
    "tasks": lambda: _entries("task", TASKS),
    "data": _sources,
    "partitions": lambda: _entries("partition", PARTITIONS),
    "draws": _draws,
    "metrics": lambda: [
        CatalogueEntry("metric", name, _Doc(first=m.about)) for name, m in METRICS.items()
    ],
    "schedules": lambda: [
        CatalogueEntry("schedule", n, doc_of(make)) for n, make in SCHEDULES.items()
    ],
}
"""All catalogues by their names in ``fedaudit list``."""


def _describe_needs(needs: Capability) -> str:
    names = [(part.name or "").lower().replace("_", " ") for part in needs]
    return ", ".join("several rounds" if name == "rounds" else name for name in names) or "nothing"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def format_catalogue(kind: str = "") -> RenderableType:
    """Return a table of a catalogue's entries, or tables of all catalogues for an empty name.

    Raises:
        BadInput: There is no catalogue with this name.
    """
    if not kind:
        return Group(*(_Catalogue(name) for name in CATALOGUES), *unknown_group_warnings(), _HINT)
    # Both the singular and the plural are accepted.
    kind = CATALOGUE_NAMES.get(kind, kind)
    if kind not in CATALOGUES:
        raise unknown_name("catalogue", kind, CATALOGUES)
    return Group(_Catalogue(kind), _HINT)


def explain_entry(name: str) -> str:
    """Return the explanation of an entry: kind, meaning, facts, settings and source.

    Raises:
        BadInput: No catalogue has an entry with this name.
    """
    entries = [
        entry for kind in CATALOGUES for entry in (*CATALOGUES[kind](), *_installed_entries(kind))
    ]
    matches = [entry for entry in entries if folded_name(entry.name) == folded_name(name)]
    if not matches:
        names = {entry.name for entry in entries}
        raise unknown_name("entry in any catalogue", name, names, list_command="fedaudit list")
    return "\n\n".join(_explain_entry(entry) for entry in matches)


@dataclass(frozen=True)
class _Catalogue:
    """A catalogue that rich prints as a table; on narrow terminals, facts follow descriptions."""

    kind: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        entries = [*CATALOGUES[self.kind](), *_installed_entries(self.kind)]
        facts = [fact for fact in entries[0].facts if fact not in _HIDDEN_FACTS]
        wide = options.max_width >= _MIN_WIDE
        table = Table(title=self.kind, title_justify="left", title_style="bold", box=None)
        table.pad_edge = False
        narrow = options.max_width < _MIN_TWO_COLUMNS
        # Names are not truncated, since users copy them.
        table.add_column("name", no_wrap=not narrow, overflow="fold")
        for column in (*(facts if wide else ()), *(() if narrow else ("what it is",))):
            table.add_column(column, overflow="fold")
        for entry in entries:
            values = {fact: entry.facts.get(fact, "") for fact in facts}
            if wide:
                table.add_row(entry.name, *values.values(), _plain(entry.doc.first))
                continue
            facts_text = "; ".join(f"{fact}: {text}" for fact, text in values.items() if text)
            below = Text(f"\n{facts_text}", style="dim") if facts_text else ""
            text = Text.assemble(_plain(entry.doc.first), below)
            if narrow:
                table.add_row(Group(Text(entry.name, style="bold"), Padding(text, (0, 0, 0, 2))))
            else:
                table.add_row(entry.name, text)
        table.add_row()
        yield table


def _installed_entries(kind: str) -> list[CatalogueEntry]:
    """Return the entries that installed packages register, without importing them."""
    singular = next(name for name, plural in CATALOGUE_NAMES.items() if plural == kind)
    return [
        CatalogueEntry(
            singular, name, _Doc(first=f"From {package_of(entry_point)}: {entry_point.value}.")
        )
        for name, entry_point in installed_entry_points(singular).items()
    ]


def _explain_entry(entry: CatalogueEntry) -> str:
    blocks = [f"{entry.name} ({entry.kind})", _fill(entry.doc.first)]
    blocks += [_fill(text) for text in entry.doc.rest]
    if entry.facts:
        blocks.append("\n".join(_fact(label, text) for label, text in entry.facts.items() if text))
    if entry.settings:
        heading = "in Python:" if entry.kind == "draw" else "settings:"
        blocks.append("\n".join([heading, *map(_format_option, entry.settings)]))
    blocks += _source_lines(entry.doc)
    for part in entry.parts:
        blocks.append(_fill(f"The {part.kind} {part.name}: {part.doc.first}"))
        blocks += [*(_fill(text) for text in part.doc.rest), *_source_lines(part.doc)]
    return "\n\n".join(blocks)


def _plain(text: str) -> str:
    return text.replace("``", "")


def _fill(text: str) -> str:
    return textwrap.fill(_plain(text), _WIDTH)


def _fact(label: str, text: str) -> str:
    return textwrap.fill(f"{label + ':':14}{text}", _WIDTH, subsequent_indent=" " * 14)


def _format_option(setting: Option) -> str:
    default = f" = {setting.default}" if setting.default else " (required)"
    text = f"{setting.name}{default}" + (f": {setting.meaning}" if setting.meaning else "")
    return textwrap.fill(_plain(text), _WIDTH, initial_indent="  ", subsequent_indent="      ")


def _source_lines(doc: _Doc) -> list[str]:
    lines = {"Paper": doc.source, "Differs from the paper": doc.differs}
    paragraphs = [_fill(f"{label}: {text}") for label, text in lines.items() if text]
    return ["\n".join(paragraphs)] if paragraphs else []
