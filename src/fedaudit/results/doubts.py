"""Doubts: figures that a failed control takes back, and failed controls that only hide leaks."""

from collections.abc import Collection, Mapping
from itertools import product
from typing import NamedTuple, TypeVar

from fedaudit.results.estimate import Estimate
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
