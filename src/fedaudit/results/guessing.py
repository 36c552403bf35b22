"""Guessing as the null hypothesis: levels of chance, and figures or trained models above them."""

from collections.abc import Collection, Mapping
from itertools import product, zip_longest
from typing import NamedTuple, TypeVar

from fedaudit.core.metric_names import HEADLINE_METRICS, chance_of, rate_of
from fedaudit.results.estimate import Estimate
from fedaudit.results.metrics import TRAIN_ACCURACY
from fedaudit.results.record import ControlResult, Record

HIDES_LEAKS = ("planted leak", "reported training metrics")
"""Controls whose failure means that figures may be too low, never that they are too high."""
NOT_RELIED_ON = "not relied on: a control failed"
_TOPICS = ("membership", "source")
_MOST_CLIENTS = 5
_LONGEST = 60
_ANY = -1


class _Scope(NamedTuple):
    """Figures that a failed control is about: None is all clients or runs, -1 any of them."""

    attack: str
    target: int | None
    seed: int | None


AnyRecord = TypeVar("AnyRecord", bound=Record)


def with_doubts(record: AnyRecord) -> AnyRecord:
    """Return the record with the failed control noted in each figure that it takes back.

    A control of one attack, client or run takes back figures of that attack, client or run, and
    those over all clients or runs that include it. Where a client has the same control of its own
    beside one over all clients, its own decides about it.
    """
    clients = {figure.target for figure in record.estimates} - {None}
    own = {
        (one.control, one.attack, one.target) for one in record.controls if one.passed is not None
    }
    failed: dict[_Scope, str] = {}
    for one in record.controls:
        if one.passed is False and one.control not in HIDES_LEAKS:
            about: set[int | None] = {one.target}
            if one.target is None:
                without = {c for c in clients if (one.control, one.attack, c) not in own}
                about = without if without < clients else {None}
            for scope in product((one.attack,), (*about, _ANY), (one.seed, _ANY)):
                failed.setdefault(_Scope(*scope), control_name(one))
    found = [(figure, _doubt(figure, failed)) for figure in record.estimates]
    if all(figure.doubt == doubt for figure, doubt in found):
        return record
    marked = [figure if figure.doubt == doubt else figure.doubted(doubt) for figure, doubt in found]
    return record.model_copy(update={"estimates": marked})


def _doubt(figure: Estimate, failed: Mapping[_Scope, str]) -> str:
    if not failed or figure.topic not in _TOPICS:
        return ""
    clients, runs = ((_ANY,) if at is None else (None, at) for at in (figure.target, figure.seed))
    scopes = product(dict.fromkeys(("", figure.attack)), clients, runs)
    return next((named for scope in scopes if (named := failed.get(_Scope(*scope)))), "")


def relied_on(figures: Collection[Estimate]) -> list[Estimate]:
    """Return the figures that no failed control takes back."""
    return [figure for figure in figures if not figure.doubt]


def control_name(control: ControlResult) -> str:
    """Return a control's name with its attack, its clients and its run."""
    clients = [control.target] if control.target is not None else control.clients
    names = [_client(client) for client in clients[:_MOST_CLIENTS]]
    more = len(clients) - len(names)
    names += [f"{more} more"] if more else []
    where = [
        f"of {_cut(control.attack)}" if control.attack else "",
        f"on {', '.join(names)}" if names else "",
        f"in seed {control.seed}" if control.seed is not None else "",
    ]
    return " ".join(filter(None, [f"“{_cut(control.control)}”", *where]))


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def _client(client: int) -> str:
    # Clients of a record that is to be shown are printed as their names.
    return f"client {client}" if type(client) is int else str(client)


LEAST_LEARNED = 0.1
"""Share of what guessing leaves to be learned, below which a model is near guessing."""


class NearGuessing(NamedTuple):
    """A row of a record whose models hardly fit their own training data.

    Attributes:
        defense: Name of the defense in force, "none" without.
        seeds: Runs in which that is so.
        train_accuracy: The lowest training accuracy of these runs, a share.
        guess: Accuracy of always naming the most frequent class of the clients' data.
    """

    defense: str
    seeds: tuple[int, ...]
    train_accuracy: float
    guess: float


def near_guessing(record: Record, least: float = LEAST_LEARNED) -> list[NearGuessing]:
    """Rows whose training accuracy is near guessing, where there is hardly anything to leak.

    A row is near guessing where (training accuracy - guess) / (1 - guess) is below ``least`` in
    any of its runs. Attacks and defenses cannot be judged on such models.

    Args:
        record: The record.
        least: Share of what guessing leaves to be learned, in [0, 1]; 0 finds none.
    """
    guess = most_frequent_class(record)
    if guess is None:
        return []
    below: dict[str, list[tuple[int, float]]] = {}
    for one in record.where(topic="utility", metric=TRAIN_ACCURACY):
        if one.seed is not None and is_near_guessing(one.number, guess, least):
            below.setdefault(one.defense, []).append((one.seed, one.number))
    return [
        NearGuessing(defense, tuple(seed for seed, _ in rows), min(a for _, a in rows), guess)
        for defense, rows in below.items()
    ]


def is_near_guessing(accuracy: float, guess: float, least: float = LEAST_LEARNED) -> bool:
    """Return whether an accuracy exceeds guessing by less than a share of what is left.

    Args:
        accuracy: A share, in [0, 1].
        guess: Accuracy of guessing.
        least: Share of what guessing leaves to be learned, in [0, 1]; 0 for never.
    """
    return least > 0 and accuracy - guess < least * (1 - guess)


def most_frequent_class(record: Record) -> float | None:
    """Its share of all clients' samples; None where the record does not tell, or has one class."""
    counts = [classes for classes in record.label_distributions if classes]
    if not counts:
        return None
    totals = [sum(column) for column in zip_longest(*counts, fillvalue=0)]
    whole = sum(totals)
    return max(totals) / whole if 0 < max(totals) < whole else None


def alpha_of(record: Record) -> float:
    """The study's error level of a family of tests; 5% where the record does not say."""
    figures = record.config.get("figures")
    alpha = figures.get("alpha") if isinstance(figures, dict) else None
    return alpha if isinstance(alpha, float) and 0 < alpha < 1 else 0.05


def above_chance(figure: Estimate) -> bool | None:
    """True if a figure is above guessing; None where that was neither tested nor bounded.

    None, too, of a figure that a failed control takes back.

    It takes both: the record's test, which is corrected over the whole study, and the figure's
    own interval, which is not. Where one of them is missing the other decides. A rate is
    above guessing where its test says so: that test is exact, while the interval allows for any
    threshold that the false-positive rate may stand for and says how large the leak is at least.
    """
    if figure.value is None or figure.doubt:
        return None
    excludes = _excludes_guessing(figure)
    if figure.significant is None:
        return excludes
    by_test = rate_of(figure.metric) is not None
    return figure.significant and (by_test or excludes is not False)


def by_test_alone(figure: Estimate) -> bool:
    """True if the corrected test finds a figure above guessing but its interval holds guessing.

    That happens over several runs: the test asks whether there was a leak in any of them, the
    interval how large their mean is.
    """
    tested = figure.value is not None and not figure.doubt and figure.significant is True
    return tested and not above_chance(figure)


def by_interval_alone(figure: Estimate) -> bool:
    """True if an interval leaves guessing out that the corrected test does not rule out."""
    return figure.significant is False and _excludes_guessing(figure) is True


def _excludes_guessing(figure: Estimate) -> bool | None:
    level = 0.0 if figure.against else figure.level
    if level is not None:
        least = figure.value if figure.low is None else figure.low
        return None if least is None else least > level
    if figure.metric not in HEADLINE_METRICS:
        return None
    chance = chance_of(figure.metric)
    return None if chance is None or figure.low is None else figure.low > chance
