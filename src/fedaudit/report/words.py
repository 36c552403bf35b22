"""Numbers, names and sentences as a reader sees them, and records with text made safe to show."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeGuard, TypeVar

from pydantic import BaseModel

from fedaudit.core import metric_names
from fedaudit.report.grid import clean, cut_within, shortened
from fedaudit.results.estimate import AT_THRESHOLD, NO_DEFENSE, Estimate, Interval
from fedaudit.results.guessing import with_doubts
from fedaudit.results.metrics import AGREEMENT, COUNTS, range_of
from fedaudit.results.record import Record

MISSING = "–"

Number = int | float


def percent(share: float) -> str:
    """A share in per cent: two decimals near the ends, one between, none at exactly 0 or 100%."""
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
    """A number that is no share: three decimals up to 10, fewer for larger ones."""
    size = abs(value)
    if size >= 100_000 or 0 < size < 0.0005:
        return f"{value:.2e}".replace("-", "−")
    text = f"{value:,.3f}" if size < 10 else f"{value:,.1f}"
    return text.replace("-", "−")


def count(value: int) -> str:
    """A whole number with separators."""
    return f"{value:,}"


def from_to(
    values: Iterable[Number], joint: str = " to ", *, text: Callable[[Number], str] | None = None
) -> str:
    """The least and the largest of some numbers, whole ones by default; one where all are equal."""
    known = list(values)
    speak = text or (lambda value: count(round(value)))
    low, high = speak(min(known)), speak(max(known))
    return low if low == high else f"{low}{joint}{high}"


def amount(value: float) -> str:
    """A count that may be a mean over runs: whole numbers without decimals."""
    return count(round(value)) if abs(value - round(value)) < 1e-6 else f"{value:.1f}"


def given(value: float | None, text: Callable[[float], str] = percent) -> str | None:
    """The text of a value; None where there is none, for a table's empty cell."""
    return None if value is None else text(value)


def shown(value: float | None, metric: str) -> str:
    """A metric's value, in per cent where it is a share; a dash where there is none."""
    if value is None:
        return MISSING
    if metric in COUNTS:
        return amount(value)
    if metric == AGREEMENT:
        return f"{value:.2f}".replace("-", "−")
    return percent(value) if is_share(metric) else number(value)


def points(change: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return _signed(100 * change, 1)


def signed(value: float, metric: str) -> str:
    """A difference of two values of a metric with its sign; of shares in percentage points."""
    if is_share(metric):
        return points(value)
    return _signed(value, 1 if metric in COUNTS else 2 if metric == AGREEMENT else 3)


def _signed(value: float, decimals: int) -> str:
    size = f"{abs(value):.{decimals}f}"
    sign = "" if float(size) == 0 else "+" if value > 0 else "−"
    return sign + size


def span(low: float, high: float, metric: str) -> str:
    """Both limits of a difference."""
    return f"{signed(low, metric)} to {signed(high, metric)}"


def value_of(figure: Estimate) -> str:
    """The value of a figure, with its sign where it is a difference."""
    if figure.against and figure.value is not None:
        return signed(figure.value, figure.metric)
    return shown(figure.value, figure.metric)


def interval(low: float | None, high: float | None, metric: str) -> str:
    """Both limits, such as "0.918–0.944" or "38.0–44.5%"; empty without them."""
    if low is None and high is None:
        return ""
    if low is None or high is None:
        return f"≤ {shown(high, metric)}" if low is None else f"≥ {shown(low, metric)}"
    left, right = shown(low, metric), shown(high, metric)
    if left.endswith("%") and right.endswith("%"):
        left = left[:-1]
    return f"{left}–{right}" if not left.startswith("−") else f"{left} to {right}"


def interval_of(figure: Estimate) -> str:
    """The interval of a figure, without its method; of older rates that at the threshold used."""
    limits = _limits(figure.low, figure.high, figure)
    at = figure.at_threshold
    used = interval(at.low, at.high, figure.metric) if at else ""
    return limits or (f"{AT_THRESHOLD} {used}" if used else "")


def _limits(low: float | None, high: float | None, figure: Estimate) -> str:
    if figure.against:
        return "" if low is None or high is None else span(low, high, figure.metric)
    return interval(low, high, figure.metric)


def further_of(figure: Estimate) -> str:
    """ "further runs 0.580–0.660", below an interval for these runs; empty without limits."""
    further = figure.further
    if further is None or further.low is None or further.high is None:
        return ""
    return f"further runs {_limits(further.low, further.high, figure)}"


def about_runs(further: Iterable[Interval | None]) -> str:
    """Meaning of intervals of figures over several runs, for a table's remark; empty without any.

    Args:
        further: Of every figure of the table.
    """
    given = [one for one in further if one is not None]
    if not given:
        return ""
    methods = list(dict.fromkeys(shortened(one.method, 80) for one in given))
    if all(one.low is None for one in given):
        return f" Over several seeds intervals are for these runs; {'; '.join(methods[:3])}."
    return (
        " Over several seeds intervals are for these runs; below them stands what further runs "
        f"would give ({'; '.join(methods[:3])})."
    )


def level_of(method: str) -> str:
    """The level named in a method, such as "95%"; empty if it names none."""
    found = re.search(r"\d+(?:\.\d+)?\s?%", method)
    return found[0].replace(" ", "") if found else ""


def with_interval(figure: Estimate) -> str:
    """A figure in running text: "0.931 (95% interval 0.918–0.944)"."""
    limits = interval_of(figure)
    if not limits:
        return f"{shown(figure.value, figure.metric)} (no interval)"
    level = level_of(figure.method)
    name = f"{level} interval" if level else shortened(figure.method, 60) or "interval"
    return f"{shown(figure.value, figure.metric)} ({name} {limits})"


def listed(items: list[str]) -> str:
    """Words in a row: "a", "a and b", "a, b and c"."""
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + " and " + items[-1]


MOST_NAMED = 5
"""Items that a sentence names; of more, their number is given."""


def some(items: Sequence[str], most: int = MOST_NAMED, what: str = "more") -> str:
    """Return items in a row, of many the first: "a, b and 3 more"."""
    left = len(items) - most
    return listed([*items[:most], f"{count(left)} {what}"] if left > 0 else list(items))


def plural(amount: int, one: str, many: str = "") -> str:
    """ "1 seed", "3 seeds"."""
    return f"{count(amount)} {one if amount == 1 else many or one + 's'}"


def sentence(text: str) -> str:
    """The text with a full stop, unless it ends as a sentence does."""
    text = text.strip()
    return text if text.endswith((".", "!", "?", "…")) else text + "."


def capital(text: str) -> str:
    """The text with a capital letter in front."""
    return text[:1].upper() + text[1:]


CONTRASTS = {
    "unseen": "Unseen",
    "other_client": "Other clients'",
    "mixed": "Mixed",
}
"""Short heading of each contrast, in the order of a report."""

CONTRAST_MEANINGS = {
    "unseen": "samples that no client trained on",
    "other_client": "samples that another client trained on",
    "mixed": "a mixture of unseen samples and other clients' samples",
}

PEOPLE_MEANINGS = {
    "unseen": "people of whom no client has a sample",
    "other_client": "people whose samples other clients trained on",
    "mixed": "a mixture of unseen people and other clients' people",
}
"""The same where people are told apart, each by all of their samples."""

NO_FAIR_DRAW = "no fair draw: differences between clients may be part of it"
"""Mark of a contrast whose members and non-members no single draw divided."""

METRICS = {
    metric_names.AUC: "AUC",
    metric_names.EPSILON: "ε (lower bound)",
    metric_names.EPSILON_IF_GAUSSIAN: "ε (lower bound, if Gaussian)",
    metric_names.EPSILON_IF_NORMAL: "ε (lower bound, if scores are normal)",
    metric_names.CLIENT_EPSILON: "one client's whole contribution, ε (lower bound)",
    metric_names.CLIENT_EPSILON_IF_GAUSSIAN: "one client's whole contribution, ε (lower bound, if "
    "Gaussian)",
    metric_names.CLAIMED_CLIENT_EPSILON: "one client's whole contribution, claimed ε",
    metric_names.CLAIMED_CLIENT_EPSILON_ALONE: "one client's whole contribution, claimed ε without "
    "canaries",
    metric_names.SECURE_SUM_EPSILON: "one client's update in one round's sum, ε (lower bound)",
    metric_names.SECURE_SUM_EPSILON_IF_GAUSSIAN: "one client's update in one round's sum, ε (if "
    "Gaussian)",
    metric_names.FORMAL_EPSILON: "formal ε, whole training",
    metric_names.FORMAL_EPSILON_OF_A_ROUND: "formal ε, one round",
}
"""Metrics whose words are not those of their name; rates at a rate have words of their own."""


def contrast_name(contrast: str) -> str:
    """Heading of a contrast."""
    return CONTRASTS.get(contrast, _as_it_is(contrast))


def against(contrast: str) -> str:
    """The non-members of a contrast after a figure of members: "v. unseen"."""
    return f"v. {contrast_name(contrast).lower()}"


def contrast_meaning(contrast: str, unit: str = "sample") -> str:
    """The non-members of a contrast, samples or people, in running text."""
    meanings = PEOPLE_MEANINGS if unit == "person" else CONTRAST_MEANINGS
    return meanings.get(contrast, _as_it_is(contrast))


def contrast_order(contrast: str) -> tuple[int, str]:
    """Sort key that puts contrasts in the order of a report."""
    known = list(CONTRASTS)
    return (known.index(contrast) if contrast in known else len(known), contrast)


class UnknownDefense(str):
    """The defense of a recording: equal to "none", and printed as unknown."""

    __slots__ = ()


def defense_name(defense: str) -> str:
    """A defense as a reader sees it."""
    if isinstance(defense, UnknownDefense):
        return "defense unknown"
    return "no defense" if defense in ("", NO_DEFENSE) else defense


def sight_name(sight: str) -> str:
    """A thing that an adversary sees or an attack needs."""
    plain = sight.lower()
    return SIGHTS.get(plain, _as_it_is(plain))


def metric_name(metric: str) -> str:
    """A metric's name for a heading: "auc" is AUC, "tpr@0.001" is TPR at 0.1% FPR."""
    rate = metric_names.rate_of(metric)
    if rate is not None:
        return f"TPR at {100 * rate:g}% FPR"
    return METRICS.get(metric, _as_it_is(metric))


def is_share(metric: str) -> bool:
    """True where a metric is a share of something, and so is shown in per cent."""
    return range_of(metric) == (0.0, 1.0) and not metric.endswith(metric_names.AUC)


def _as_it_is(name: str) -> str:
    return shortened(name.replace("_", " "))


SIGHTS = {
    "predictions": "model outputs",
    "global_model": "the model sent out",
    "next_model": "the next global model",
    "update": "how training changed it",
    "uploads": "each client's upload",
    "rounds": "several rounds",
    "auxiliary_data": "data of the adversary's own",
    "chooses_model": "the choice of the model sent out",
}
"""Things that an adversary sees and that attacks need."""

_IN_NOTES = {key.upper(): words for key, words in SIGHTS.items()} | {
    "other_client": "other clients'"
}
_NOTED = re.compile(rf"\b({'|'.join(_IN_NOTES)})\b")

Model = TypeVar("Model", bound=BaseModel)

_AS_IT_IS = {"config"}
"""A study's settings are shown as a study file, which escapes what it must."""
_NUMBERS = {float, int, bool, type(None)}
"""Most of a record, which needs no look at each."""


Speaker = Callable[[str], str]
"""Makes a text safe to show."""

_DIGEST = re.compile(r"(?<=[^\s#])#[0-9a-f]{8}\b")
_MOST_BEFORE = 100
"""Characters before a digest that tell names apart: bounded, since a text may be of any length."""


def without_digests(models: Iterable[BaseModel]) -> Speaker:
    """Cleans texts of some records, and names a user's own objects without their digests.

    A digest stays where two of these names, or one and another name, would otherwise be one.
    """
    texts = {clean(text) for model in models for text in _texts(model)}
    digests: dict[str, set[str]] = {}
    for text in texts:
        every = list(_DIGEST.finditer(text))
        taken = {""} if every and _DIGEST.sub("", text) in texts else set()
        for found in every:
            digests.setdefault(_word_before(found), set()).update({found[0], *taken})

    @cache
    def speak(text: str) -> str:
        return _DIGEST.sub(
            lambda found: found[0] if len(digests.get(_word_before(found), "")) > 1 else "",
            clean(text),
        )

    return speak


def _word_before(found: re.Match[str]) -> str:
    before = found.string[max(0, found.start() - _MOST_BEFORE) : found.start()]
    return re.split(r"[\s#]", before)[-1]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, BaseModel):
        for name, part in vars(value).items():
            if type(part) not in _NUMBERS and name not in _AS_IT_IS:
                yield from _texts(part)
    elif isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list | tuple) and not _NUMBERS.issuperset(map(type, value)):
        for part in value:
            yield from _texts(part)


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
    return client.name if isinstance(client, NamedClient) else f"Client {int(client)}"


def client_names(record: BaseModel) -> dict[int, NamedClient]:
    """Return the clients of a recording that have names, by number; texts are safe to show."""
    config = getattr(record, "config", None)
    recording = config.get("recording") if isinstance(config, dict) else None
    names = recording.get("names") if isinstance(recording, dict) else None
    if not isinstance(names, dict):
        return {}
    whole = {
        int(number): str(name)
        for number, name in names.items()
        if str(number).isascii() and str(number).isdecimal() and len(str(number)) <= 15
    }
    printed = {number: cut_within(name, LONGEST_NAME) for number, name in whole.items()}
    count = Counter(printed.values())
    return {
        number: NamedClient(
            number,
            # Names that differ where they are cut are told apart by number.
            name if count[name] == 1 else cut_within(f"{whole[number]} ({number})", LONGEST_NAME),
        )
        for number, name in printed.items()
    }


LONGEST_NAME = 40
"""Characters of a client's name that are printed."""
_CLIENT_FIELDS = ("target", "client")
_CLIENT_LISTS = ("clients", "unattacked")


def cleaned(
    model: Model,
    speak: Speaker = clean,
    clients: Mapping[int, NamedClient] | None = None,
    *,
    watched: bool | None = None,
) -> Model:
    """A record or comparison without control or direction characters in any text.

    Notes, which readers of all kinds see, get words in the place of the program's own names.

    Names that a page or a terminal shows must not turn round the text beside them, whichever
    field they stand in, so nothing of a record is shown before it went through here. What is
    clean already is given back as it is: nearly all of a record, whose copy would take long.
    Figures of a record are marked that a failed control takes back.

    Args:
        model: The record or comparison.
        speak: Makes each text safe.
        clients: Clients that have names; read from the record by default.
        watched: Whether defenses are not known, as of recordings; read from the record by default.
    """
    clients = client_names(model) if clients is None else clients
    watched = bool(getattr(model, "watched", False)) if watched is None else watched
    update: dict[str, object] = {}
    for name, value in vars(model).items():
        if clients and name in _CLIENT_FIELDS and value in clients:
            update[name] = clients[value]
            continue
        if clients and name in _CLIENT_LISTS and _holds_clients(value):
            update[name] = [clients.get(client, client) for client in value]
            continue
        if clients and name == "group" and getattr(model, "by", "") == "client":
            update[name] = _named_group(str(value), clients)
            continue
        if watched and name == "defense" and value == NO_DEFENSE:
            update[name] = UnknownDefense(NO_DEFENSE)
            continue
        if type(value) not in _NUMBERS and name not in _AS_IT_IS:
            safe = _cleaned(value, speak, clients, watched)
            safe = in_words(safe) if name == "note" and isinstance(safe, str) else safe
            if safe is not value:
                update[name] = safe
    safe_model = model.model_copy(update=update) if update else model
    return with_doubts(safe_model) if isinstance(safe_model, Record) else safe_model


def _named_group(group: str, clients: Mapping[int, NamedClient]) -> str:
    number = int(group) if group.isascii() and group.isdecimal() and len(group) <= 15 else -1
    return clients[number].name if number in clients else clean(group)


def _holds_clients(value: object) -> TypeGuard[list[int]]:
    """Return True for a list of numbers; other fields of that name hold rows or a count."""
    return isinstance(value, list) and all(type(one) is int for one in value)


def _cleaned(
    value: object, speak: Speaker, clients: Mapping[int, NamedClient], watched: bool
) -> object:
    if isinstance(value, str):
        return speak(value)
    if isinstance(value, BaseModel):
        return cleaned(value, speak, clients, watched=watched)
    if isinstance(value, list | tuple):
        if _NUMBERS.issuperset(map(type, value)):
            return value
        parts = [_cleaned(part, speak, clients, watched) for part in value]
        same = all(part is old for part, old in zip(parts, value, strict=True))
        return value if same else type(value)(parts)
    if isinstance(value, dict):
        return {
            _cleaned(key, speak, clients, watched): _cleaned(part, speak, clients, watched)
            for key, part in value.items()
        }
    return value


def in_words(note: str) -> str:
    """A note with words in the place of names that only the program's own text has."""
    return _NOTED.sub(lambda found: _IN_NOTES[found[1]], note)
