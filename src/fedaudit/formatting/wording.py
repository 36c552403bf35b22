"""Formatting of numbers, names and sentences, and cleaning of records' texts before printing."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias, TypeVar

from pydantic import BaseModel

from fedaudit.core.metric_names import AUC, LOWER_BOUNDS, rate_of
from fedaudit.core.sights import SIGHTS
from fedaudit.formatting.fixed import fixed_texts
from fedaudit.formatting.grid import as_one_line, shorten, shorten_middle
from fedaudit.results.estimate import (
    COUNTS,
    FIXED_THRESHOLD_METHOD,
    GROUP_AGREEMENT,
    NO_DEFENSE,
    Estimate,
    Interval,
    range_of,
)
from fedaudit.results.games import Rate
from fedaudit.results.guessing import mark_doubts
from fedaudit.results.record import Record

MOST_NAMED = 5  # largest number of items that a sentence names; further items are counted
MISSING = "–"


def study_setting(record: BaseModel, *names: str) -> object:
    """Return a setting of a record's study by its tables and its name; None if it is not set."""
    value: object = getattr(record, "config", None)
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def glossary_entries(text: str) -> tuple[tuple[str, str], ...]:
    """Return the glossary terms that a page uses, each with its explanation."""
    folded = text.casefold()
    return tuple(
        (term, meaning)
        for term, meaning in fixed_texts("glossary").items()
        # A search for substrings is much faster than the expression on a page without the term.
        if any(name.removesuffix("y").casefold() in folded for name in term.split(", "))
        and re.search(rf"(?i)\b(?:{_with_plurals(term)})\b", text)
    )


def _with_plurals(term: str) -> str:
    names = [re.escape(name) for name in term.split(", ")]
    return "|".join(f"{n[:-1]}(?:y|ies)" if n.endswith("y") else f"{n}s?" for n in names)


Rounding: TypeAlias = Literal["nearest", "up", "down"]
"""Direction of rounding: "up" for upper limits, "down" for lower limits."""


def _round(value: float, digits: int, rounding: Rounding) -> float:
    """Round up or down. For "nearest", return the value, which formatting then rounds."""
    if rounding == "nearest":
        return value
    # Rounding errors must not raise 0.646 to 0.647.
    scale = 10.0**digits
    scaled = round(value * scale, 6)
    return (math.ceil(scaled) if rounding == "up" else math.floor(scaled)) / scale


def format_percent(fraction: float, *, rounding: Rounding = "nearest") -> str:
    """Format a fraction in per cent: one decimal, two near 0 and 100 %, none at 0 and 100 %."""
    value = 100 * fraction
    digits = 2 if abs(value) < 1 or 99 < value < 100 else 1
    value = _round(value, digits, rounding)
    if value in (0, 100):
        return f"{value:.0f}%"
    if 0 < value < 0.005:
        return f"{value:.1g}%"
    # 99.996% must not be printed as 100%.
    return f"{min(value, 99.99) if value < 100 else value:.{digits}f}%"


def format_number(value: float, *, rounding: Rounding = "nearest") -> str:
    """Format a number that is not a fraction: three decimals below 10, otherwise one decimal."""
    size = abs(value)
    if size >= 100_000 or 0 < size < 0.0005:
        return f"{value:.2e}".replace("-", "−")
    digits = 3 if size < 10 else 1
    return f"{_round(value, digits, rounding):,.{digits}f}".replace("-", "−")


def format_range(
    values: Iterable[float], joint: str = " to ", *, text: Callable[[float], str] | None = None
) -> str:
    """Format the smallest and the largest number, as whole numbers by default."""
    numbers = list(values)
    format_one = text or (lambda value: f"{round(value):,}")
    low, high = format_one(min(numbers)), format_one(max(numbers))
    return low if low == high else f"{low}{joint}{high}"


def format_amount(value: float) -> str:
    """Format a count that may be a mean over runs: whole numbers without decimals."""
    return f"{round(value):,}" if abs(value - round(value)) < 1e-6 else f"{value:.1f}"


def format_optional(
    value: float | None, text: Callable[[float], str] = format_percent
) -> str | None:
    """Format a value, or return None, which tables print as a dash, for None."""
    return None if value is None else text(value)


def format_value(value: float | None, metric: str, *, rounding: Rounding = "nearest") -> str:
    """Format a metric's value, in per cent if it is a fraction; return a dash for None."""
    if value is None:
        return MISSING
    if metric in COUNTS:
        return format_amount(value)
    if metric == GROUP_AGREEMENT:
        return f"{value:.2f}".replace("-", "−")
    return (
        format_percent(value, rounding=rounding)
        if is_proportion(metric)
        else format_number(value, rounding=rounding)
    )


def format_points(change: float, *, rounding: Rounding = "nearest") -> str:
    """Format a difference of two fractions in percentage points, with its sign."""
    return _signed(100 * change, 1, rounding)


def format_change(value: float, metric: str, *, rounding: Rounding = "nearest") -> str:
    """Format a difference of two values of a metric, with its sign; fractions in points."""
    if is_proportion(metric):
        return format_points(value, rounding=rounding)
    return _signed(
        value, 1 if metric in COUNTS else 2 if metric == GROUP_AGREEMENT else 3, rounding
    )


def _signed(value: float, digits: int, rounding: Rounding) -> str:
    size = f"{abs(_round(value, digits, rounding)):.{digits}f}"
    return size if float(size) == 0 else ("+" if value > 0 else "−") + size


def limits_of_change(low: float | None, high: float | None, metric: str) -> str:
    """Format both limits of a difference; return "" without them."""
    if low is None or high is None:
        return ""
    lower = format_change(low, metric, rounding="down")
    return f"{lower} to {format_change(high, metric, rounding='up')}"


def value_text(estimate: Estimate) -> str:
    """Format the value of an estimate, with its sign if it is a difference."""
    if estimate.against and estimate.value is not None:
        return format_change(estimate.value, estimate.metric)
    rounding: Rounding = "down" if estimate.metric in LOWER_BOUNDS else "nearest"
    return format_value(estimate.value, estimate.metric, rounding=rounding)


def format_interval(low: float | None, high: float | None, metric: str) -> str:
    """Format both limits, such as "0.918–0.944" or "38.0–44.5%"; return "" without limits.

    The lower limit is rounded down and the upper limit up, so that coverage does not decrease.
    """
    lower = format_value(low, metric, rounding="down")
    upper = format_value(high, metric, rounding="up")
    if low is None or high is None:
        return "" if low is high else f"≤ {upper}" if low is None else f"≥ {lower}"
    if lower.endswith("%") and upper.endswith("%"):
        lower = lower[:-1]
    return f"{lower}–{upper}" if not lower.startswith("−") else f"{lower} to {upper}"


def interval_text(estimate: Estimate) -> str:
    """Format an estimate's interval; rates of old records only have one for a fixed threshold."""
    limits = estimate.at_threshold
    fixed_at = format_interval(limits.low, limits.high, estimate.metric) if limits else ""
    at_threshold = f"{FIXED_THRESHOLD_METHOD} {fixed_at}" if fixed_at else ""
    return _limits(estimate.low, estimate.high, estimate) or at_threshold


def rate_texts(measured: Rate) -> tuple[str, str]:
    """Format a rate in games, and its interval."""
    return format_percent(measured.value), format_interval(measured.low, measured.high, "accuracy")


def limits_in_words(limits: str) -> str:
    """Return "95% interval 39.1–57.6%", or "no interval" without limits."""
    return f"95% interval {limits}" if limits else "no interval"


def _limits(low: float | None, high: float | None, estimate: Estimate) -> str:
    return (limits_of_change if estimate.against else format_interval)(low, high, estimate.metric)


def further_interval(estimate: Estimate) -> str:
    """Format the limits of the mean over all seeds: "further runs 0.580–0.660"; "" without."""
    further = estimate.further or Interval()
    if further.low is None or further.high is None:
        return ""
    return f"further runs {_limits(further.low, further.high, estimate)}"


def interval_remark(further: Iterable[Interval | None]) -> str:
    """Explain the intervals of a table's means over seeds; "" if it has no such intervals."""
    intervals = [interval for interval in further if interval is not None]
    if not intervals:
        return ""
    methods = "; ".join(list(dict.fromkeys(shorten(i.method, 80) for i in intervals))[:3])
    text = " Intervals of means over seeds are for these runs only"
    if all(interval.low is None for interval in intervals):
        return f"{text}: {methods}."
    return f"{text}; “further runs” are limits of the mean over all possible seeds ({methods})."


def confidence_level(method: str) -> str:
    """Return the confidence level in a method's text, such as "95%", or "" without a level."""
    match = re.search(r"\d+(?:\.\d+)?\s?%", method)
    return match[0].replace(" ", "") if match else ""


def with_interval(estimate: Estimate) -> str:
    """Format an estimate for running text: "0.931 (95% interval 0.918–0.944)"."""
    limits, level = interval_text(estimate), confidence_level(estimate.method)
    name = f"{level} interval" if level else shorten(estimate.method, 60) or "interval"
    value = format_value(estimate.value, estimate.metric)
    return f"{value} ({name} {limits})" if limits else f"{value} (no interval)"


def join_parts(*parts: str, by: str = " · ") -> str:
    """Join the parts that are not empty."""
    return by.join(filter(None, parts))


def join_and(items: Sequence[str]) -> str:
    """Join words: "a", "a and b", "a, b and c"."""
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + " and " + items[-1]


def join_some(items: Sequence[str], limit: int = MOST_NAMED, what: str = "more") -> str:
    """Join the first items and the number of further items: "a, b and 3 more"."""
    excess = len(items) - limit
    return join_and([*items[:limit], f"{excess:,} {what}"] if excess > 0 else items)


def format_count(amount: int, singular: str, plural: str = "") -> str:
    """Return a count with its noun: "1 seed", "3 seeds"."""
    return f"{amount:,} {singular if amount == 1 else plural or singular + 's'}"


def with_full_stop(text: str) -> str:
    """Return a text with a full stop at the end, unless it ends with a punctuation mark."""
    text = text.strip()
    return text if text.endswith((".", "!", "?", "…")) else text + "."


def capitalise(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def without_capital(text: str) -> str:
    """Return a text with a small first letter."""
    return text[:1].lower() + text[1:]


def without_verdict(headline: str, status: str) -> str:
    """Return a headline without the verdict at its start, since a badge next to it has the verdict.

    "Strong leakage: members can be distinguished" gives "Members can be distinguished".
    """
    # "Trace of a leak" also fits "A trace of source leakage".
    words = r"\W+(?:\w+ ){0,2}".join(map(re.escape, status.replace(" a ", " ").split()))
    start = re.match(rf"(?:a )?{words}\w*\W+", headline, re.IGNORECASE)
    return capitalise(headline[start.end() :]) if start else headline


_ATTACKS = fixed_texts("attacks")


def attack_name(attack: str) -> str:
    """Return an attack's name with its catalogue name: "Loss over rounds (loss-series)"."""
    code, *remark = attack.split(", ", 1)  # a comparison appends "mirrored"
    return ", ".join([f"{_ATTACKS[code]} ({code})", *remark]) if code in _ATTACKS else attack


def attack_title(attack: str) -> str:
    """Return an attack's name without its catalogue name, for readers who run no audits."""
    return attack_name(attack).replace(f" ({attack})", "")


def attack_code(name: str) -> str:
    """Return the catalogue name of an attack: the inverse of :func:`attack_name`."""
    code = name.rpartition("(")[2][:-1]
    return code if attack_name(code) == name else name


def _name_in(name: str, section: str) -> str:
    return fixed_texts(section).get(name) or shorten(name.replace("_", " "))


def contrast_name(contrast: str) -> str:
    """Return the heading of a contrast."""
    return _name_in(contrast, "contrasts.heading")


def nonmember_heading(contrast: str) -> str:
    """Return the non-members that members are compared with, as in headings: "v. unseen"."""
    return f"v. {contrast_name(contrast).lower()}"


def contrast_meaning(contrast: str, unit: str = "sample") -> str:
    """Describe the non-members of a contrast, samples or people, for running text."""
    return _name_in(contrast, f"contrasts.{'person' if unit == 'person' else 'sample'}")


def contrast_order(contrast: str) -> tuple[int, str]:
    """Return a sort key for the order of contrasts in a report."""
    order = list(fixed_texts("contrasts.heading"))
    return (order.index(contrast) if contrast in order else len(order), contrast)


class UnknownDefense(str):
    """Defense of a live recording, which equals "none" but is printed as unknown."""

    __slots__ = ()


def defense_name(defense: str) -> str:
    """Return the name of a defense for a reader."""
    if isinstance(defense, UnknownDefense):
        return "defense unknown"
    return "no defense" if defense in ("", NO_DEFENSE) else defense


def sight_name(sight: str) -> str:
    """Describe what an adversary sees, or what an attack needs, by its identifier."""
    return SIGHTS.get(sight.lower()) or shorten(sight.lower().replace("_", " "))


def metric_name(metric: str) -> str:
    """Return a metric's name for a heading, such as "TPR at 0.1% FPR" for "tpr@0.001"."""
    rate = rate_of(metric)
    return _name_in(metric, "metrics") if rate is None else f"TPR at {100 * rate:g}% FPR"


def is_proportion(metric: str) -> bool:
    """Return True if a metric is a fraction (not an AUC), which is printed in per cent."""
    return range_of(metric) == (0.0, 1.0) and not metric.endswith(AUC)


class NamedClient(int):
    """Number of a client that is printed as the client's name."""

    name: str

    def __new__(cls, number: int, name: str) -> "NamedClient":
        """Attach a name to a number."""
        client = super().__new__(cls, number)
        client.name = name
        return client

    def __str__(self) -> str:
        return self.name


def client_name(client: int, text: str = "client") -> str:
    """Return a client's name, or else its number after a noun: "hospital-a", "client 3"."""
    return client.name if isinstance(client, NamedClient) else f"{text} {int(client)}"


def full_client_names(record: BaseModel) -> dict[int, str]:
    """Return the names of a record's clients by number; clients without a name are omitted."""
    names = study_setting(record, "recording", "names")
    if not isinstance(names, dict):
        names = {row.client: row.name for row in getattr(record, "clients", ()) if row.name}
    numbers = ((_as_number(str(key)), str(name)) for key, name in names.items())
    return {number: name for number, name in numbers if number is not None}


def client_names(record: BaseModel) -> dict[int, NamedClient]:
    """Return the clients of a record that have names, by number; names are shortened."""
    full_names = full_client_names(record)
    printed = {number: shorten_middle(name, LONGEST_NAME) for number, name in full_names.items()}
    uses = Counter(printed.values())
    for number, name in printed.items():
        # Shortened names that are equal are distinguished by the client's number.
        if uses[name] > 1:
            printed[number] = shorten_middle(f"{full_names[number]} ({number})", LONGEST_NAME)
    return {number: NamedClient(number, name) for number, name in printed.items()}


def _as_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None


LONGEST_NAME = 40  # largest number of characters of a client's name that are printed


Model = TypeVar("Model", bound=BaseModel)
TextCleaner = Callable[[str], str]
"""Function that makes a text safe to print."""

_NOT_CLEANED = "config"  # settings are printed as a study file, whose writer escapes texts
_LISTS_OF_CLIENTS = ("clients", "targets", "coalition", "unattacked")  # fields with client numbers
_NUMBERS = {float, int, bool, type(None)}
"""Types of most values of a record, which need no cleaning."""
_DIGEST = re.compile(r"([^\s#\"]{1,100})(#[0-9a-f]{8})\b")


def without_digests(models: Iterable[BaseModel]) -> TextCleaner:
    """Return a function that makes texts safe and removes the digests of custom objects.

    A digest is not removed if two objects of the records have the same name.
    """
    texts, digests = set[str](), defaultdict[str, set[str]](set)

    def collect(text: str) -> str:
        texts.add(as_one_line(text))
        return text

    for model in models:
        _Cleaner(collect, {}, watched=False).model(model)
    # The expression is slow on long texts, and few texts have a digest.
    with_digests = [text for text in texts if "#" in text]
    for name, digest in (pair for text in with_digests for pair in _DIGEST.findall(text)):
        digests[name] |= {digest, ""} if name in texts else {digest}

    def shorten_digest(match: re.Match[str]) -> str:
        return match[0] if len(digests[match[1]]) > 1 else match[1]

    def clean_text(text: str) -> str:
        safe = as_one_line(text)
        return _DIGEST.sub(shorten_digest, safe) if "#" in safe else safe

    return cache(clean_text)


def clean_texts(
    model: Model,
    clean_text: TextCleaner = as_one_line,
    clients: Mapping[int, NamedClient] | None = None,
    *,
    watched: bool | None = None,
    name_attack: Callable[[str], str] = str,
) -> Model:
    """Return a record or comparison without control or direction characters in any text.

    Every text of a record must pass through this function before it is printed: direction
    characters in a client's name could reverse the text next to it. In notes, identifiers of the
    program become words. Estimates that a failed control invalidates are marked as doubtful.
    Unchanged parts of a record are not copied, to save time.

    Args:
        model: The record or comparison.
        clean_text: Function that makes a text safe to print.
        clients: Clients that have names. By default, they are read from the record.
        watched: Whether defenses are unknown. By default, it is read from the record.
        name_attack: Function that returns the printed name of an attack.
    """
    clients = client_names(model) if clients is None else clients
    watched = bool(getattr(model, "watched", False)) if watched is None else watched
    safe = _Cleaner(clean_text, clients, watched, name_attack).model(model)
    return mark_doubts(safe) if isinstance(safe, Record) else safe


def printable_record(record: Record, name_attack: Callable[[str], str] = attack_name) -> Record:
    """Return a record whose texts are safe to print, and whose attacks have names for readers."""
    return clean_texts(record, without_digests([record]), name_attack=name_attack)


@dataclass(frozen=True)
class _Cleaner:
    clean_text: TextCleaner
    clients: Mapping[int, NamedClient]
    watched: bool
    name_attack: Callable[[str], str] = str

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
        if self.clients and name in _LISTS_OF_CLIENTS and isinstance(value, list):
            value = [self.clients.get(v, v) if type(v) is int else v for v in value]
        if type(value) in _NUMBERS or name == _NOT_CLEANED:
            return value
        if self.watched and name == "defense" and value == NO_DEFENSE:
            return UnknownDefense(NO_DEFENSE)
        safe = self._value(value)
        if name == "note" and isinstance(safe, str):
            return without_identifiers(safe)
        if name == "attack" and isinstance(safe, str):
            return self.name_attack(safe)
        if name == "attacks" and isinstance(safe, list):
            return [self.name_attack(part) if isinstance(part, str) else part for part in safe]
        return safe

    def _value(self, value: object) -> object:
        if isinstance(value, str):
            return self.clean_text(value)
        if isinstance(value, BaseModel):
            return self.model(value)
        if isinstance(value, list | tuple):
            if _NUMBERS.issuperset(map(type, value)):
                return value
            parts = [self._value(part) for part in value]
            is_unchanged = all(part is old for part, old in zip(parts, value, strict=True))
            return value if is_unchanged else type(value)(parts)
        if isinstance(value, dict):
            return {self._value(key): self._value(part) for key, part in value.items()}
        return value


_IN_NOTES = {key.upper(): text for key, text in SIGHTS.items()}
_IN_NOTES["other_client"] = "other clients'"
_NOTED = re.compile(rf"\b({'|'.join(_IN_NOTES)})\b")


def without_identifiers(note: str) -> str:
    """Return a note in which words replace the program's identifiers."""
    return _NOTED.sub(lambda match: _IN_NOTES[match[1]], note)
