"""Growth of a study: more seeds, attacks or figures for runs that a folder already holds.

A study may grow where its runs stay what they are: what is added is trained, measured or worked
out, and nothing else is. The record then equals that of the larger study in a fresh folder.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from fedaudit.attacks import SET_SETTINGS, attack_set
from fedaudit.core.errors import Damaged
from fedaudit.results.text import one_line, plain
from fedaudit.study.running.identity import settings_of
from fedaudit.study.settings.sections import Study

AFTER_A_LOOK = "chosen after a look at the figures"
"""What the record says of that."""

_LONGEST_NAME = 500
"""Characters of a name that was added."""
_MOST_NAMES = 10_000
"""Names of one kind that were added."""

_MORE = ("metrics", "fprs")
_SWITCHES = ("planted_leak", "blind_classifier")
_TABLES = ("references", "unlearning")
"""Tables that train federations of their own, next to runs that stay as they are."""


class Growth(NamedTuple):
    """What a study has more than an earlier one, each by name; all empty if they are the same."""

    seeds: list[str]
    attacks: list[str]
    figures: list[str]

    def __str__(self) -> str:
        named = {"seed": self.seeds, "attack": self.attacks, "setting": self.figures}
        parts = [
            f"the {kind}{'s' if len(names) > 1 else ''} {', '.join(names)}"
            for kind, names in named.items()
            if names
        ]
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def growth_of(there: Study, here: Study) -> Growth | None:
    """Return what a study has more than another; None if it is no extension of it.

    Args:
        there: The study that was run.
        here: The one that is asked for. It may have more seeds, attacks, metrics and
            false-positive rates, list more exposed members, turn controls on, and have a table of
            references or of unlearning. Everything else must be the same.
    """
    (fixed, parts), (other, more) = _split(there), _split(here)
    if fixed != other or any(not parts[name] <= more[name] for name in parts):
        return None
    added = {name: sorted(more[name] - parts[name]) for name in more}
    return Growth(
        seeds=[str(seed) for seed in here.seeds if seed not in there.seeds],
        attacks=[name for name in _attacks(here) if name not in _attacks(there)],
        figures=[name for name, values in added.items() if values and name not in _NAMED],
    )


_NAMED = ("seeds", "attacks", "code")


def _split(study: Study) -> tuple[dict[str, object], dict[str, frozenset[str]]]:
    """Return the settings that cannot grow, and as sets those that can."""
    values = {
        name: value
        for name, value in settings_of(study).items()
        if name not in (*_NAMED, *_TABLES, "attack_set", "figures")
    }
    figures = study.figures.model_dump(mode="json")
    parts = {
        "seeds": frozenset(map(str, study.seeds)),
        "attacks": frozenset(map(_text, _attacks(study).items())),
        "code": frozenset(map(_text, study.code.items())),
        "figures.most_exposed": frozenset(map(str, range(figures.pop("most_exposed")))),
    }
    for name in _MORE:
        parts[f"figures.{name}"] = frozenset(map(_text, figures.pop(name)))
    for name in _SWITCHES:
        parts[f"figures.{name}"] = frozenset({"true"} if figures.pop(name) else ())
    for name in _TABLES:
        table = getattr(study, name)
        parts[name] = frozenset() if table is None else frozenset({table.model_dump_json()})
    return {**values, "figures": figures}, parts


def _attacks(study: Study) -> Mapping[str, object]:
    """Settings of the attacks that a study names, or of all in its set."""
    given = SET_SETTINGS.get(study.attack_set, {})
    return study.attacks or {name: given.get(name, {}) for name in attack_set(study.attack_set)}


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def more(known: Growth, added: Growth) -> Growth:
    """Return all that was added to a study, as the study's file keeps it.

    Args:
        known: What was added before.
        added: What is added now.
    """
    both = zip(known, added, strict=True)
    return Growth(*(list(dict.fromkeys([*old, *map(_short, new)])) for old, new in both))


def growth_notes(growth: Growth | None) -> list[str]:
    """Return a sentence on what was added to a study after it had a record, if anything was."""
    if growth is None or not any(growth):
        return []
    one = sum(map(len, growth)) == 1
    return [
        plain(
            f"Whether {growth} {'was' if one else 'were'} {AFTER_A_LOOK}: "
            f"{'it was' if one else 'they were'} added to a study that had a record. Tests are "
            "corrected over all attacks, and not over such a choice."
        )
    ]


def growth_from(values: object, source: str) -> Growth | None:
    """Return what was added to a study that has a record; None if it has none yet.

    Args:
        values: What the study's file holds of it: lists of short texts, by name.
        source: The file, for refusals.

    Raises:
        Damaged: They are something else.
    """
    if values is None:
        return None
    if not (
        isinstance(values, dict)
        and values.keys() == {*Growth._fields}
        and all(
            isinstance(names, list) and len(names) <= _MOST_NAMES and all(map(_is_short, names))
            for names in values.values()
        )
    ):
        raise Damaged(
            f"{source} does not say what was added to the study as fedaudit writes it; restore "
            "it from a copy"
        )
    return Growth(**values)


def _short(name: str) -> str:
    return one_line(name)[:_LONGEST_NAME]


def _is_short(name: object) -> bool:
    return isinstance(name, str) and name != "" and name == _short(name)
