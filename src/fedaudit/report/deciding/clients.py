"""Decisions about several audited clients: which of them a sentence names, and whose limit."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedaudit.core.metric_names import AUC
from fedaudit.report import evidence, words
from fedaudit.report.deciding.membership import little_can_hide
from fedaudit.report.verdict import clients_named
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import above_chance
from fedaudit.results.record import Record

POOLED = "all clients pooled"
"""Name of the figures over all audited clients together."""


def clients_of(figures: Iterable[Estimate]) -> list[int]:
    """Return the clients that figures are about, by number."""
    return sorted({figure.target for figure in figures if figure.target is not None})


def are_several(figures: Sequence[Estimate]) -> bool:
    """Return True if figures are about more than one client, or about one and all of them."""
    return len({figure.target for figure in figures}) > 1


def name_of(client: int | None) -> str:
    """Return a client's name; without a client, that of all of them together."""
    return POOLED if client is None else words.client_name(client)


class Limit(NamedTuple):
    """An upper confidence limit and the client it is about.

    Attributes:
        value: The limit.
        client: The client; None for all of them together.
    """

    value: float
    client: int | None


def largest_limits(figures: Sequence[Estimate], metric: str) -> list[Limit]:
    """Return the upper limits to print: that of all clients pooled, then the largest of a client.

    Args:
        figures: Figures of a headline.
        metric: The metric of interest.
    """
    limits = [Limit(f.high, f.target) for f in figures if f.metric == metric and f.high is not None]
    parts = (
        [limit for limit in limits if limit.client is None],
        [limit for limit in limits if limit.client is not None],
    )
    return [max(part, key=lambda limit: limit.value) for part in parts if part]


def highest_auc(figures: Sequence[Estimate]) -> Estimate | None:
    """Return the AUC to print where none is above chance: of all clients pooled, if there is one.

    The highest of many small clients is high by chance.
    """
    over_all = evidence.strongest(evidence.pooled(figures), AUC)
    return over_all or evidence.strongest(figures, AUC)


def scope_of(record: Record, figures: Sequence[Estimate]) -> str:
    """Return the sentence on which clients a headline is about; empty for a single client.

    Args:
        record: The record.
        figures: Figures of its headline, without those of another side of the run.
    """
    clients = clients_of(figures)
    if len(clients) < 2:
        return ""
    pooled = evidence.pooled(figures)
    alone = [one for one in figures if one.target is not None]
    above = clients_of(one for one in alone if above_chance(one))
    if not pooled:
        if not above:
            return ""
        return f"Shown for {clients_named(above)} of {len(clients)} audited clients"
    together = (
        f"over all {_pooled_clients(record)} audited clients{_taking_part(record)}, each compared "
        "with its own held-out samples"
    )
    if above:
        by_all = any(above_chance(one) for one in pooled)
        shown = f"Shown {together}, and" if by_all else f"Not shown {together}, but shown"
        return f"{shown} for {clients_named(above)} alone"
    shown = "Shown" if any(above_chance(one) for one in pooled) else "Judged"
    small = [
        client
        for client in clients
        if not little_can_hide(record, [one for one in alone if one.target == client])
    ]
    if not small:
        return f"{shown} {together}"
    who = "single clients" if small == clients else clients_named(small)
    verb = "are" if len(small) > 1 else "is"
    return f"{shown} {together}; {who} {verb} too small to be judged alone"


def _taking_part(record: Record) -> str:
    """Return " that took part" if some audited clients took part in no measured round."""
    clients = record.coverage.clients if record.coverage else []
    return " that took part" if any(not one.measured for one in clients) else ""


def _pooled_clients(record: Record) -> int:
    """Return the number of clients that a fair draw gave both members and non-members."""
    return len(
        clients_of(
            one
            for one in record.findings
            if one.attack and one.fair and one.n_members and one.n_nonmembers
        )
    )
