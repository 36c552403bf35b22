"""Google docstrings taken apart, so that catalogue and documentation say what the code says."""

import inspect
import re
from collections import ChainMap
from dataclasses import dataclass, field

_HEADING = re.compile(
    r"^(Args|Attributes|Parameters|Raises|Returns|Yields|Source|Differs):\s*(.*)$"
)
_NAMED = re.compile(r"^(\w+): (.*)$")
_ROLE = re.compile(r":\w+:`~?(?:\.?fedaudit[\w.]*\.)?([^`]+)`")


@dataclass(frozen=True)
class Doc:
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


def doc_of(thing: object) -> Doc:
    """The docstring of a class or function; of an instance, that of its class."""
    return parsed(inspect.getdoc(thing) or "")


def meanings_of(make: object) -> dict[str, str]:
    """Meaning of each setting; of an inherited one, where it is inherited from."""
    above = make.__mro__[:0:-1] if inspect.isclass(make) else ()
    inherited = [parsed(each.__doc__ or "").named for each in above]
    return dict(ChainMap(doc_of(make).named, *reversed(inherited)))


def parsed(text: str) -> Doc:
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
    return Doc(
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
