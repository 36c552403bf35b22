"""Numbers, names and sentences as a reader sees them, and records with text made safe to show."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from pydantic import BaseModel

from fedaudit.core.metric_names import AUC, rate_of
from fedaudit.report.fixed import fixed_texts
from fedaudit.report.grid import clean, cut_within, shortened
from fedaudit.results.estimate import (
    AGREEMENT,
    AT_THRESHOLD,
    COUNTS,
    NO_DEFENSE,
    Estimate,
    Interval,
    range_of,
)
from fedaudit.results.guessing import mark_doubts
from fedaudit.results.record import Record

MISSING = "–"

Number = int | float


def explained(text: str) -> tuple[tuple[str, str], ...]:
    """Return the terms of the glossary that a text uses, each with its explanation.

    Args:
        text: Everything that a page prints.
    """
    return tuple(
        (term, meaning)
        for term, meaning in fixed_texts("glossary").items()
        if re.search(rf"(?i)\b(?:{_with_plurals(term)})\b", text)
    )


def _with_plurals(term: str) -> str:
    names = [re.escape(name) for name in term.split(", ")]
    return "|".join(f"{n[:-1]}(?:y|ies)" if n.endswith("y") else f"{n}s?" for n in names)


# Numbers and intervals.


def percent(share: float) -> str:
    """Format a share in per cent: one decimal, two near the ends, none at exactly 0 or 100%."""
    value = 100 * share
    if value in (0, 100):
        return f"{value:.0f}%"
    if 0 < value < 0.005:
        return f"{value:.1g}%"
    if abs(value) < 1 or 99 < value < 100:
        # 99.996% must not read as 100%: cut, not rounded.
        return f"{min(value, 99.99):.2f}%"
    return f"{value:.1f}%"


def number(value: float) -> str:
    """Format a number that is no share: three decimals up to 10, fewer for larger ones."""
    size = abs(value)
    if size >= 100_000 or 0 < size < 0.0005:
        return f"{value:.2e}".replace("-", "−")
    text = f"{value:,.3f}" if size < 10 else f"{value:,.1f}"
    return text.replace("-", "−")


def count(value: int) -> str:
    """Format a whole number with separators."""
    return f"{value:,}"


def from_to(
    values: Iterable[Number], joint: str = " to ", *, text: Callable[[Number], str] | None = None
) -> str:
    """Format the least and the largest number, whole ones by default; one if all are equal."""
    known = list(values)
    speak = text or (lambda value: count(round(value)))
    low, high = speak(min(known)), speak(max(known))
    return low if low == high else f"{low}{joint}{high}"


def amount(value: float) -> str:
    """Format a count that may be a mean over runs: whole numbers without decimals."""
    return count(round(value)) if abs(value - round(value)) < 1e-6 else f"{value:.1f}"


def given(value: float | None, text: Callable[[float], str] = percent) -> str | None:
    """Format a value; return None for None, which is an empty cell of a table."""
    return None if value is None else text(value)


def shown(value: float | None, metric: str) -> str:
    """Format a metric's value, in per cent if it is a share; return a dash for None."""
    if value is None:
        return MISSING
    if metric in COUNTS:
        return amount(value)
    if metric == AGREEMENT:
        return f"{value:.2f}".replace("-", "−")
    return percent(value) if is_share(metric) else number(value)


def points(change: float) -> str:
    """Format a difference of shares in percentage points, with its sign."""
    return _signed(100 * change, 1)


def signed(value: float, metric: str) -> str:
    """Format a difference of two values of a metric with its sign; of shares in points."""
    if is_share(metric):
        return points(value)
    return _signed(value, 1 if metric in COUNTS else 2 if metric == AGREEMENT else 3)


def _signed(value: float, decimals: int) -> str:
    size = f"{abs(value):.{decimals}f}"
    return size if float(size) == 0 else ("+" if value > 0 else "−") + size


def span(low: float, high: float, metric: str) -> str:
    """Format both limits of a difference."""
    return f"{signed(low, metric)} to {signed(high, metric)}"


def value_of(figure: Estimate) -> str:
    """Format the value of a figure, with its sign if it is a difference."""
    if figure.against and figure.value is not None:
        return signed(figure.value, figure.metric)
    return shown(figure.value, figure.metric)


def interval(low: float | None, high: float | None, metric: str) -> str:
    """Format both limits, such as "0.918–0.944" or "38.0–44.5%"; return "" without them."""
    if low is None and high is None:
        return ""
    if low is None or high is None:
        return f"≤ {shown(high, metric)}" if low is None else f"≥ {shown(low, metric)}"
    left, right = shown(low, metric), shown(high, metric)
    if left.endswith("%") and right.endswith("%"):
        left = left[:-1]
    return f"{left}–{right}" if not left.startswith("−") else f"{left} to {right}"


def interval_of(figure: Estimate) -> str:
    """Format the interval of a figure; of older rates that at the threshold used."""
    at = figure.at_threshold
    used = interval(at.low, at.high, figure.metric) if at else ""
    return _limits(figure.low, figure.high, figure) or (used and f"{AT_THRESHOLD} {used}")


def _limits(low: float | None, high: float | None, figure: Estimate) -> str:
    if not figure.against:
        return interval(low, high, figure.metric)
    return "" if low is None or high is None else span(low, high, figure.metric)


def further_of(figure: Estimate) -> str:
    """Return "further runs 0.580–0.660", which is below an interval for these runs, or ""."""
    further = figure.further
    if further is None or further.low is None or further.high is None:
        return ""
    return f"further runs {_limits(further.low, further.high, figure)}"


def about_runs(further: Iterable[Interval | None]) -> str:
    """Return what intervals of figures over several runs mean, for a table's remark, or "".

    Args:
        further: Of every figure of the table.
    """
    known = [one for one in further if one is not None]
    if not known:
        return ""
    methods = "; ".join(list(dict.fromkeys(shortened(one.method, 80) for one in known))[:3])
    text = " Over several seeds intervals are for these runs; "
    if all(one.low is None for one in known):
        return f"{text}{methods}."
    return f"{text}the interval for further runs is below them ({methods})."


def level_of(method: str) -> str:
    """Return the level named in a method, such as "95%"; empty if it names none."""
    found = re.search(r"\d+(?:\.\d+)?\s?%", method)
    return found[0].replace(" ", "") if found else ""


def with_interval(figure: Estimate) -> str:
    """Format a figure for running text: "0.931 (95% interval 0.918–0.944)"."""
    limits, level = interval_of(figure), level_of(figure.method)
    name = f"{level} interval" if level else shortened(figure.method, 60) or "interval"
    return (
        f"{shown(figure.value, figure.metric)} ({f'{name} {limits}' if limits else 'no interval'})"
    )


# Words in a row.


def listed(items: Sequence[str]) -> str:
    """Join words: "a", "a and b", "a, b and c"."""
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + " and " + items[-1]


MOST_NAMED = 5
"""Items that a sentence names; of more, their number is given."""


def some(items: Sequence[str], most: int = MOST_NAMED, what: str = "more") -> str:
    """Join items, of many the first: "a, b and 3 more"."""
    left = len(items) - most
    return listed([*items[:most], f"{count(left)} {what}"] if left > 0 else items)


def plural(amount: int, one: str, many: str = "") -> str:
    """Return a count with its noun: "1 seed", "3 seeds"."""
    return f"{count(amount)} {one if amount == 1 else many or one + 's'}"


def sentence(text: str) -> str:
    """Return a text with a full stop, unless it ends as a sentence does."""
    text = text.strip()
    return text if text.endswith((".", "!", "?", "…")) else text + "."


def capital(text: str) -> str:
    """Return a text with a capital letter in front."""
    return text[:1].upper() + text[1:]


# Names.

NO_FAIR_DRAW = "no fair draw: differences between clients may be part of it"
"""Mark of a contrast whose members and non-members no single draw divided."""


def _named(name: str, section: str) -> str:
    return fixed_texts(section).get(name) or shortened(name.replace("_", " "))


def contrast_name(contrast: str) -> str:
    """Return the heading of a contrast."""
    return _named(contrast, "contrasts.heading")


def against(contrast: str) -> str:
    """Return the non-members of a contrast after a figure of members: "v. unseen"."""
    return f"v. {contrast_name(contrast).lower()}"


def contrast_meaning(contrast: str, unit: str = "sample") -> str:
    """Return the non-members of a contrast, samples or people, for running text."""
    return _named(contrast, f"contrasts.{'person' if unit == 'person' else 'sample'}")


def contrast_order(contrast: str) -> tuple[int, str]:
    """Return a sort key that puts contrasts in the order of a report."""
    known = list(fixed_texts("contrasts.heading"))
    return (known.index(contrast) if contrast in known else len(known), contrast)


class UnknownDefense(str):
    """The defense of a recording: equal to "none", and printed as unknown."""

    __slots__ = ()


def defense_name(defense: str) -> str:
    """Return the name of a defense as a reader sees it."""
    if isinstance(defense, UnknownDefense):
        return "defense unknown"
    return "no defense" if defense in ("", NO_DEFENSE) else defense


def sight_name(sight: str) -> str:
    """Return the name of what an adversary sees or an attack needs."""
    return _named(sight.lower(), "sights")


def metric_name(metric: str) -> str:
    """Return a metric's name for a heading: "auc" is AUC, "tpr@0.001" is TPR at 0.1% FPR."""
    rate = rate_of(metric)
    return _named(metric, "metrics") if rate is None else f"TPR at {100 * rate:g}% FPR"


def is_share(metric: str) -> bool:
    """Return True if a metric is a share of something, and so is shown in per cent."""
    return range_of(metric) == (0.0, 1.0) and not metric.endswith(AUC)


class NamedClient(int):
    """Number of a client that also has a name; it is printed and formatted as that name."""

    name: str

    def __new__(cls, number: int, name: str) -> "NamedClient":
        """Attach a name to a number."""
        made = super().__new__(cls, number)
        made.name = name
        return made

    def __str__(self) -> str:
        """Return the name."""
        return self.name


def client_name(client: int) -> str:
    """Return a client's name, or its number if it has none: "hospital-a", "client 3"."""
    return client.name if isinstance(client, NamedClient) else f"client {int(client)}"


def client_heading(client: int) -> str:
    """Return a client's name as it is, or its number as a heading: "hospital-a", "Client 3"."""
    return client_name(client) if isinstance(client, NamedClient) else f"Client {int(client)}"


def client_names(record: BaseModel) -> dict[int, NamedClient]:
    """Return the clients of a recording that have names, by number; texts are safe to show."""
    config = getattr(record, "config", None)
    recording = config.get("recording") if isinstance(config, dict) else None
    names = recording.get("names") if isinstance(recording, dict) else None
    if not isinstance(names, dict):
        return {}
    numbers = ((_as_number(str(number)), str(name)) for number, name in names.items())
    whole = {number: name for number, name in numbers if number is not None}
    printed = {number: cut_within(name, LONGEST_NAME) for number, name in whole.items()}
    count = Counter(printed.values())
    return {
        number: NamedClient(
            number,
            # Names that differ where they are cut are distinguished by number.
            name if count[name] == 1 else cut_within(f"{whole[number]} ({number})", LONGEST_NAME),
        )
        for number, name in printed.items()
    }


def _as_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None


LONGEST_NAME = 40
"""Characters of a client's name that are printed."""


# Texts of records, made safe to show.

Model = TypeVar("Model", bound=BaseModel)
Speaker = Callable[[str], str]
"""Makes a text safe to show."""

_NOT_SHOWN = "config"
"""A study's settings are shown as a study file, which escapes what it must."""
_NUMBERS = {float, int, bool, type(None)}
"""Most of a record, which needs no look at each."""
_DIGEST = re.compile(r"(?<=[^\s#])#[0-9a-f]{8}\b")
_MOST_BEFORE = 100
"""Characters before a digest that are compared: bounded, since a text may be of any length."""


def without_digests(models: Iterable[BaseModel]) -> Speaker:
    """Return a function that makes texts safe and leaves out the digests of custom objects.

    A digest is kept if two objects of some records, or one and another name, share a name.
    """
    texts = set[str]()

    def collect(text: str) -> str:
        texts.add(clean(text))
        return text

    for model in models:
        _Cleaner(collect, {}, watched=False).model(model)
    digests = defaultdict[str, set[str]](set)
    for text in texts:
        for found in _DIGEST.finditer(text):
            name = _word_before(found)
            digests[name].update({found[0], ""} if name in texts else {found[0]})

    def kept(found: re.Match[str]) -> str:
        return found[0] if len(digests[_word_before(found)]) > 1 else ""

    return cache(lambda text: _DIGEST.sub(kept, clean(text)))


def _word_before(found: re.Match[str]) -> str:
    before = found.string[max(0, found.start() - _MOST_BEFORE) : found.start()]
    return re.split(r"[\s#]", before)[-1]


def cleaned(
    model: Model,
    speak: Speaker = clean,
    clients: Mapping[int, NamedClient] | None = None,
    *,
    watched: bool | None = None,
) -> Model:
    """Return a record or comparison without control or direction characters in any text.

    Names that a page or a terminal shows must not turn round the text next to them, whichever
    field they are in, so nothing of a record is shown before it went through here. Notes get words
    in the place of the program's own names. What is clean already is returned as it is: nearly all
    of a record, whose copy would take long. Figures are marked that a failed control takes back.

    Args:
        model: The record or comparison.
        speak: Makes each text safe.
        clients: Clients that have names; read from the record by default.
        watched: Whether defenses are not known, as of recordings; read from the record by default.
    """
    clients = client_names(model) if clients is None else clients
    watched = bool(getattr(model, "watched", False)) if watched is None else watched
    safe = _Cleaner(speak, clients, watched).model(model)
    return mark_doubts(safe) if isinstance(safe, Record) else safe


@dataclass(frozen=True)
class _Cleaner:
    """Makes texts safe, and puts names in the place of clients' numbers."""

    speak: Speaker
    clients: Mapping[int, NamedClient]
    watched: bool

    def model(self, model: Model) -> Model:
        update: dict[str, object] = {}
        for name, value in vars(model).items():
            safe = self._field(name, value)
            if name == "group" and getattr(model, "by", "") == "client":
                client = self.clients.get(_as_number(str(value)) or 0)
                safe = client.name if client and str(int(client)) == str(value) else safe
            if safe is not value:
                update[name] = safe
        return model.model_copy(update=update) if update else model

    def _field(self, name: str, value: object) -> object:
        if self.clients and name in ("target", "client") and isinstance(value, int):
            return self.clients.get(value, value)
        if self.clients and name in ("clients", "unattacked") and isinstance(value, list):
            value = [self.clients.get(v, v) if type(v) is int else v for v in value]
        if type(value) in _NUMBERS or name == _NOT_SHOWN:
            return value
        if self.watched and name == "defense" and value == NO_DEFENSE:
            return UnknownDefense(NO_DEFENSE)
        safe = self._value(value)
        return in_words(safe) if name == "note" and isinstance(safe, str) else safe

    def _value(self, value: object) -> object:
        if isinstance(value, str):
            return self.speak(value)
        if isinstance(value, BaseModel):
            return self.model(value)
        if isinstance(value, list | tuple):
            if _NUMBERS.issuperset(map(type, value)):
                return value
            parts = [self._value(part) for part in value]
            same = all(part is old for part, old in zip(parts, value, strict=True))
            return value if same else type(value)(parts)
        if isinstance(value, dict):
            return {self._value(key): self._value(part) for key, part in value.items()}
        return value


_IN_NOTES = {key.upper(): text for key, text in fixed_texts("sights").items()}
_IN_NOTES["other_client"] = "other clients'"
_NOTED = re.compile(rf"\b({'|'.join(_IN_NOTES)})\b")


def in_words(note: str) -> str:
    """Return a note with words in the place of names that only the program has."""
    return _NOTED.sub(lambda found: _IN_NOTES[found[1]], note)
