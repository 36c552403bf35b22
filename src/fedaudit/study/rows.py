"""The rows of a comparison: which ways to train there are, and what each is held against."""

import json
from collections.abc import Iterator, Mapping, Sequence

from fedaudit.core.errors import BadInput
from fedaudit.results.comparison import Row
from fedaudit.results.figure_index import is_compared
from fedaudit.results.older import settled
from fedaudit.results.record import Record
from fedaudit.study.settings.defense import NONE, PartSection
from fedaudit.study.settings.sections import Study
from fedaudit.study.settings.values import study_from

_APART = ("name", "about", "hours", "seeds", "defense", "attacks", "attack_set", "shadow")
_TOLD = ("evaluation", "nobody_is_a_member")
"""Of the settings of figures, those that make figures incomparable."""


def rows_of(records: Sequence[Record]) -> list[Row]:
    """A row for each record and each defense in it, in the order given.

    A row with a defense is held against the undefended row of the same other settings, and
    against the first row where there is none; a row without a defense against the first row.
    """
    studies = [_study(record) for record in records]
    flat = [dict(_leaves(_apart(record, s))) for record, s in zip(records, studies, strict=True)]
    differing = _differing(flat)
    rows: list[Row] = []
    for place, (record, study) in enumerate(zip(records, studies, strict=True)):
        settings = {name: flat[place].get(name, "not set") for name in differing}
        rows += [_row(place, defense, study, settings) for defense in defenses_of(record)]
    return [row.model_copy(update={"base": _base(rows, at)}) for at, row in enumerate(rows)]


def defenses_of(record: Record) -> list[str]:
    """Names of the defenses that a record has figures of, no defense first."""
    named = [figure.defense for figure in record.findings if is_compared(figure)]
    named += [one.defense for one in record.where(topic="utility")]
    found = list(dict.fromkeys(name or NONE for name in named))
    return sorted(found, key=lambda name: name != NONE) or [NONE]


def defended(study: Study) -> tuple[int, ...] | None:
    """The clients that use a defense; None where that is all of them, or none of them."""
    clients = study.partition.clients
    used = [group.clients for group in study.defense.groups(clients) if group.parts]
    users = {client for group in used for client in group}
    return tuple(sorted(users)) if 0 < len(users) < clients else None


def _row(place: int, defense: str, study: Study | None, settings: dict[str, str]) -> Row:
    if study is None or study.defense.label != defense:
        clients = 0 if study is None else study.partition.clients
        return Row(
            source=place, defense=defense, family=defense, clients=clients, settings=settings
        )
    users = defended(study)
    return Row(
        source=place,
        defense=_in_words(study),
        family=defense,
        coalition=None if users is None else list(users),
        clients=study.partition.clients,
        settings=settings,
    )


def _in_words(study: Study) -> str:
    """All defenses with their settings: "gradient-noise (sigma 0.01) + mixup"."""
    groups = study.defense.groups(study.partition.clients)
    parts = [" + ".join(_part(part) for part in group.parts) for group in groups]
    return ", ".join(dict.fromkeys(part for part in parts if part)) or NONE


def _part(part: PartSection) -> str:
    options = ", ".join(f"{name.replace('_', ' ')} {v}" for name, v in part.options.items())
    return f"{part.name} ({options})" if options else part.name


def _base(rows: Sequence[Row], at: int) -> int | None:
    """The row that a row is compared with: its undefended twin, or else the first."""
    twin = _undefended_twin(rows, at)
    if twin is not None:
        return twin
    return None if at == 0 else 0


def _undefended_twin(rows: Sequence[Row], at: int) -> int | None:
    """For a defended row the undefended one of its other settings; of its own record if it can."""
    row = rows[at]
    if row.family == NONE:
        return None
    twins = [
        place
        for place, other in enumerate(rows)
        if other.family == NONE and other.settings == row.settings
    ]
    return min(twins, key=lambda place: rows[place].source != row.source, default=None)


def _study(record: Record) -> Study | None:
    """The study behind a record; None for one whose settings are not this program's."""
    try:
        return study_from(settled(record.config))
    except BadInput:
        return None


def _apart(record: Record, study: Study | None) -> dict[str, object]:
    """Settings that tell studies apart: not words, seeds, attacks, nor what is compared."""
    values = dict(record.config) if study is None else study.model_dump(mode="json")
    figures = values.get("figures")
    if isinstance(figures, dict):
        values["figures"] = {name: figures[name] for name in _TOLD if name in figures}
    return {name: value for name, value in values.items() if name not in _APART}


def _leaves(value: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    """Settings by dotted name, as short texts."""
    for name, part in value.items():
        if isinstance(part, dict) and part:
            yield from _leaves(part, f"{above}{name}.")
        else:
            yield f"{above}{name}", part if isinstance(part, str) else json.dumps(part)


def _differing(flat: Sequence[Mapping[str, str]]) -> list[str]:
    names = dict.fromkeys(name for settings in flat for name in settings)
    return [name for name in names if len({settings.get(name) for settings in flat}) > 1]
