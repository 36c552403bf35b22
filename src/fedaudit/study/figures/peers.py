"""Control on the updates of clients that an attack compares with each other.

A client that returns the model it was sent, repeats another client's update or sends enormous
numbers changes the figures of every other client if an attack compares clients. Its values are
finite, so that nothing else notices.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite, sqrt
from statistics import median
from typing import NamedTuple

from fedaudit.core.values import ClientId, Params
from fedaudit.observe.measurements import Stored
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import digest_of
from fedaudit.results.record import ControlResult
from fedaudit.results.text import plain
from fedaudit.study.setup.parts import Setup

CONTROL = "peer updates"
_PREFIX = "update/client-"
_SMALLEST, _LARGEST = 0.01, 100.0
"""Share of the median norm of a round below and above which an update is degenerate. Clients with
twenty times the data of others, or a tenth of their local steps, stay well within."""

_FEWEST_CLIENTS = 3
"""Below so many clients in a round no median says which of them differs."""

_TOLERATED = 0.1
"""Share of a client's rounds that may be degenerate, as where its training failed once."""

_MOST_NAMED = 5
_REPEATED = ", the same as another client's,"


def update_notes(round: Round) -> dict[str, str]:
    """Return a note with norm and digest of each client's update, for :func:`peer_controls`.

    Args:
        round: As the adversary sees it; clients whose update it hides are left out, and so are
            clients that are seen in a sum.
    """
    merged = {*round.stands_for, *round.stands_for.values()}
    return {
        f"{_PREFIX}{client}": f"{_norm(update)!r} {digest_of(update, {})}"
        for client in sorted(round.exposed)
        if client not in merged and (update := round.exposed[client].update) is not None
    }


def peer_controls(run: Setup, stored: Sequence[Stored]) -> Iterator[ControlResult]:
    """Compare the norms of clients' updates round by round, for attacks that compare clients.

    Args:
        run: The run.
        stored: Its measured rounds.
    """
    rounds = [updates for one in stored if len(updates := _updates(one)) >= _FEWEST_CLIENTS]
    attacks = [name for name, attack in run.attacks.items() if attack.compares_clients]
    if not rounds or not attacks:
        return
    seen, odd = dict[ClientId, int](), dict[ClientId, list[float]]()
    for updates in rounds:
        middle = median(update.norm for update in updates.values())
        times = Counter(update.digest for update in updates.values())
        for client, (norm, digest) in updates.items():
            seen[client] = seen.get(client, 0) + 1
            share = norm / middle if middle > 0 else 1.0
            # Two trainings never end in the same update to the last digit.
            repeated = norm > 0 and digest != "" and times[digest] > 1
            if repeated or not _SMALLEST <= share <= _LARGEST:
                odd.setdefault(client, []).append(share)
    worst = {c: shares for c, shares in odd.items() if len(shares) > _TOLERATED * seen[c]}
    for name in attacks:
        yield ControlResult(
            control=CONTROL,
            attack=name,
            defense=run.study.defense.label,
            seed=run.seed,
            clients=sorted(worst),
            expected="each client's update is its own and of the size of others",
            value=None,
            passed=not worst,
            note=_named(worst, run) if worst else f"{len(seen)} clients in {len(rounds)} rounds",
        )


def _named(worst: dict[ClientId, list[float]], run: Setup) -> str:
    said = []
    for client, shares in sorted(worst.items())[:_MOST_NAMED]:
        middle = median(shares)
        repeated = _REPEATED if _SMALLEST <= middle <= _LARGEST else ""
        name = plain(run.names.get(client, str(client)))
        said.append(
            f"client {name} sent updates of {middle:.2g} times the median norm{repeated} in "
            f"{len(shares)} rounds"
        )
    more = len(worst) - _MOST_NAMED
    said += [f"{more} more clients likewise"] if more > 0 else []
    return (
        f"{'; '.join(said)}: comparisons with such clients are distorted; find out why, or leave "
        "them out of the audit"
    )


def _norm(update: Params) -> float:
    return sqrt(sum(float(value.double().square().sum()) for value in update.values()))


class _Update(NamedTuple):
    """What is kept of a client's update; without a digest in older recordings."""

    norm: float
    digest: str


def _updates(stored: Stored) -> dict[ClientId, _Update]:
    """Return the updates of one round; what cannot be read is left out."""
    found = dict[ClientId, _Update]()
    for name, note in stored.notes.items():
        number = name.removeprefix(_PREFIX)
        if number == name or not number.isdecimal():
            continue
        text, _, digest = note.partition(" ")
        try:
            norm = float(text)
        except ValueError:
            continue
        if isfinite(norm) and norm >= 0:
            found[int(number)] = _Update(norm, digest)
    return found
