"""Everything that fedaudit knows by name, for people: tables and explanations.

It is read from the plain dictionaries that the code itself uses and from the docstrings of what
is in them, so that it cannot fall behind.
"""

import inspect
import re
import textwrap
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedaudit.algorithms import ALGORITHMS
from fedaudit.attacks import ATTACK_SETS, ATTACKS, SOURCE_ATTACKS
from fedaudit.attacks.base import Attack
from fedaudit.core.errors import LISTED, folded_name, unknown_name
from fedaudit.core.importing import installed, package_of, stray_groups
from fedaudit.core.tasks import TASKS
from fedaudit.core.values import Sees
from fedaudit.datasets.catalog import FORMATS, GENERATED, SOURCES
from fedaudit.datasets.draws.fair import DRAWS
from fedaudit.datasets.partitions.schemes import PARTITIONS
from fedaudit.defenses import DEFENSES
from fedaudit.fl.training.local import SCHEDULES
from fedaudit.metrics.table import METRICS
from fedaudit.models import MODELS
from fedaudit.observe.views import VIEWS, View
from fedaudit.signals.base import Signal

_HEADING = re.compile(
    r"^(Args|Attributes|Examples|Parameters|Raises|Returns|Yields|Source|Differs):\s*(.*)$"
)
_NAMED = re.compile(r"^(\w+): (.*)$")
_ROLE = re.compile(r":\w+:`~?(?:\.?fedaudit[\w.]*\.)?([^`]+)`")
_GIVEN_BY_STUDY = {
    "seed",
    "shape",
    "classes",
    "clients",
    "partition",
    "targets",
    "coalition",
    "members",
}
_WIDTH = 88
_WIDE = 120
"""Columns of a terminal from which on every fact of an entry has a column of its own."""
_NARROW = 60
"""Columns of a terminal below which text stands under its name, and not beside it."""
_MORE = "All about one of them: fedaudit explain NAME"
_LEFT_OUT = ("needs", "runs in view")


@dataclass(frozen=True)
class _Doc:
    """A docstring in parts, as plain text.

    Attributes:
        first: Its first line.
        rest: The paragraphs up to the first heading.
        named: What it says of each argument or attribute.
        source: Paper with equation or section.
        differs: Deliberate departures from the source.
    """

    first: str = ""
    rest: tuple[str, ...] = ()
    named: dict[str, str] = field(default_factory=dict)
    source: str = ""
    differs: str = ""


def doc_of(thing: object) -> _Doc:
    """The docstring of a class or function, with the meaning of inherited settings."""
    doc = parsed(inspect.getdoc(thing) or "")
    above = thing.__mro__[1:] if inspect.isclass(thing) else ()
    inherited = [parsed(kind.__doc__ or "").named for kind in above]
    return replace(doc, named=dict(ChainMap(doc.named, *inherited)))


def parsed(text: str) -> _Doc:
    """A docstring taken apart; cross-references are reduced to the name they point at."""
    sections: dict[str, list[str]] = {"": []}
    heading = ""
    for line in _ROLE.sub(r"\1", inspect.cleandoc(text)).splitlines():
        match = _HEADING.match(line)
        if match:
            heading = match[1]
            sections[heading] = [match[2]]
        else:
            sections[heading].append(line)
    first, *rest = _paragraphs(sections[""]) or [""]
    named = sections.get("Args", []) + sections.get("Attributes", [])
    return _Doc(
        first,
        tuple(rest),
        _by_name(named),
        " ".join(_paragraphs(sections.get("Source", []))),
        " ".join(_paragraphs(sections.get("Differs", []))),
    )


def _paragraphs(lines: list[str]) -> list[str]:
    joined = "\n".join(line.strip() for line in lines).strip()
    return [block.replace("\n", " ") for block in re.split(r"\n{2,}", joined) if block]


def _by_name(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc("\n".join(["", *lines])).splitlines():
        match = _NAMED.match(line)
        if match:
            name = match[1]
            found[name] = match[2]
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found


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
    doc: _Doc
    facts: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[Option, ...] = ()
    parts: tuple["CatalogueEntry", ...] = ()


def _attacks() -> list[CatalogueEntry]:
    return [_attack(name, attack) for name, attack in (ATTACKS | SOURCE_ATTACKS).items()]


def _attack(name: str, attack: Attack) -> CatalogueEntry:
    rule = CatalogueEntry("rule", type(attack.rule).__name__, doc_of(type(attack.rule)))
    parts = (*(_signal(signal) for signal in attack.signals), rule)
    meanings = {key: text for part in parts for key, text in part.doc.named.items()}
    return CatalogueEntry(
        "attack",
        name,
        _Doc(first=attack.about, source=attack.source),
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
        _Doc(first=_sentence(view.description)),
        {"sees": _sees(view.offers), "attacks": ", ".join(possible)},
    )


def _possible(attack: Attack, view: View) -> bool:
    return view.can_offer(attack.needs)


def _defenses() -> list[CatalogueEntry]:
    nothing = CatalogueEntry(
        "defense", "none", _Doc(first="Nothing: clients train and upload as they are.")
    )
    others = {name: make for name, make in DEFENSES.items() if name != "none"}
    return [nothing, *_made("defense", others)]


def _sources() -> list[CatalogueEntry]:
    def described(entry: CatalogueEntry) -> CatalogueEntry:
        written = entry.name if entry.name in GENERATED else f"{entry.name}:NAME"
        facts = {
            "written": written,
            "looks for": FORMATS[entry.name].looks_for if entry.name in FORMATS else "",
        }
        # What must be given is the name that is written after the colon.
        return replace(
            entry, facts=facts, settings=tuple(one for one in entry.settings if one.default)
        )

    return [described(entry) for entry in _made("data source", SOURCES)]


def _draws() -> list[CatalogueEntry]:
    """A study sets the fair draw through its audit section, published ones through options."""
    entries = _made("draw", DRAWS)
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


def _made(kind: str, catalogue: Mapping[str, Callable[..., object]]) -> list[CatalogueEntry]:
    return [
        CatalogueEntry(kind, name, doc_of(make), settings=tuple(_settings(make)))
        for name, make in catalogue.items()
    ]


def _settings(make: Callable[..., object]) -> Iterator[Option]:
    """The keyword settings of a class or function, without what a study gives elsewhere."""
    meanings = doc_of(make).named
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
        CatalogueEntry("metric", name, _Doc(first=m.about)) for name, m in METRICS.items()
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


def listing(kind: str = "") -> RenderableType:
    """The entries of one catalogue as a table; of all of them for an empty name.

    Raises:
        BadInput: No catalogue of that name.
    """
    if not kind:
        return Group(*(_Catalogue(one) for one in CATALOGUES), *stray_groups(), _MORE)
    # One entry of it may be meant, or all.
    kind = LISTED.get(kind, kind)
    if kind not in CATALOGUES:
        raise unknown_name("catalogue", kind, CATALOGUES)
    return Group(_Catalogue(kind), _MORE)


def explanation(name: str) -> str:
    """All that is known of an entry: kind, meaning, place in its table, settings, source.

    Raises:
        BadInput: No entry of that name in any catalogue.
    """
    entries = [entry for kind in CATALOGUES for entry in (*CATALOGUES[kind](), *_brought(kind))]
    found = [entry for entry in entries if folded_name(entry.name) == folded_name(name)]
    if not found:
        known = {entry.name for entry in entries}
        raise unknown_name("entry in any catalogue", name, known, listed="fedaudit list")
    return "\n\n".join(_explained(entry) for entry in found)


@dataclass(frozen=True)
class _Catalogue:
    """A catalogue in columns; on a narrow terminal facts stand below the text."""

    kind: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        entries = [*CATALOGUES[self.kind](), *_brought(self.kind)]
        facts = [fact for fact in entries[0].facts if fact not in _LEFT_OUT]
        wide = options.max_width >= _WIDE
        table = Table(title=self.kind, title_justify="left", title_style="bold", box=None)
        table.pad_edge = False
        narrow = options.max_width < _NARROW
        # Nothing is cut: what is read here is typed elsewhere.
        table.add_column("name", no_wrap=not narrow, overflow="fold")
        for column in (*(facts if wide else ()), *(() if narrow else ("what it is",))):
            table.add_column(column, overflow="fold")
        for entry in entries:
            found = {fact: entry.facts.get(fact, "") for fact in facts}
            if wide:
                table.add_row(entry.name, *found.values(), _plain(entry.doc.first))
                continue
            said = "; ".join(f"{fact}: {text}" for fact, text in found.items() if text)
            below = Text(f"\n{said}", style="dim") if said else ""
            text = Text.assemble(_plain(entry.doc.first), below)
            if narrow:
                table.add_row(Group(Text(entry.name, style="bold"), Padding(text, (0, 0, 0, 2))))
            else:
                table.add_row(entry.name, text)
        table.add_row()
        yield table


def _brought(kind: str) -> list[CatalogueEntry]:
    """Entries that installed packages bring to a catalogue, listed without importing them."""
    singular = next(one for one, plural in LISTED.items() if plural == kind)
    return [
        CatalogueEntry(singular, name, _Doc(first=f"Of {package_of(one)}, as {one.value}."))
        for name, one in installed(singular).items()
    ]


def _explained(entry: CatalogueEntry) -> str:
    blocks = [f"{entry.name} ({entry.kind})", _filled(entry.doc.first)]
    blocks += [_filled(text) for text in entry.doc.rest]
    if entry.facts:
        blocks.append("\n".join(_fact(label, text) for label, text in entry.facts.items() if text))
    if entry.settings:
        heading = "in Python:" if entry.kind == "draw" else "settings:"
        blocks.append("\n".join([heading, *map(_line, entry.settings)]))
    blocks += _sourced(entry.doc)
    for part in entry.parts:
        blocks.append(_filled(f"The {part.kind} {part.name}: {part.doc.first}"))
        blocks += [*(_filled(text) for text in part.doc.rest), *_sourced(part.doc)]
    return "\n\n".join(blocks)


def _plain(text: str) -> str:
    return text.replace("``", "")


def _filled(text: str) -> str:
    return textwrap.fill(_plain(text), _WIDTH)


def _fact(label: str, text: str) -> str:
    return textwrap.fill(f"{label + ':':14}{text}", _WIDTH, subsequent_indent=" " * 14)


def _line(setting: Option) -> str:
    default = f" = {setting.default}" if setting.default else " (must be given)"
    text = f"{setting.name}{default}" + (f": {setting.meaning}" if setting.meaning else "")
    return textwrap.fill(_plain(text), _WIDTH, initial_indent="  ", subsequent_indent="      ")


def _sourced(doc: _Doc) -> list[str]:
    lines = {"Source": doc.source, "Differs": doc.differs}
    said = [_filled(f"{label}: {text}") for label, text in lines.items() if text]
    return ["\n".join(said)] if said else []
