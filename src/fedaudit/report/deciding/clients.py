"""Decisions about several audited clients: which of them a sentence names, and whose limit."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fedaudit.core.metric_names import AUC
from fedaudit.report import evidence, wording
from fedaudit.report.deciding.membership import little_can_hide
from fedaudit.report.verdict import clients_named
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import above_chance, relied_on
from fedaudit.results.record import Record

POOLED = "pooled clients"
"""Name of the figures over all audited clients together."""


def audited_clients(figures: Iterable[Estimate]) -> list[int]:
    """Return the clients that figures are about, by number."""
    return sorted({figure.target for figure in figures if figure.target is not None})


def are_several(figures: Sequence[Estimate]) -> bool:
    """Return True if figures are about more than one client, or about one and all of them."""
    return len({figure.target for figure in figures}) > 1


def name_of(figure: Estimate, figures: Sequence[Estimate]) -> str:
    """Return the name of a figure's client; of a pooled figure how many of the clients it covers.

    Args:
        figure: The figure.
        figures: Those that it stands among.
    """
    if figure.target is not None:
        return wording.client_name(figure.target)
    every, covered = audited_clients(figures), _pooled_clients(figures, figure.attack)
    if covered in (0, len(every)):
        return POOLED
    return f"{covered} of {len(every)} clients pooled"


class Limit(NamedTuple):
    """An upper confidence limit and whose it is.

    Attributes:
        value: The limit.
        client: The client; None for several together.
        name: Its name in words.
    """

    value: float
    client: int | None
    name: str


def largest_limits(figures: Sequence[Estimate], metric: str) -> list[Limit]:
    """Return the upper limits to print: that of pooled clients, then the largest of a client.

    Args:
        figures: Figures of a headline.
        metric: The metric of interest.
    """
    limits = [
        Limit(one.high, one.target, name_of(one, figures))
        for one in figures
        if one.metric == metric and one.high is not None
    ]
    parts = (
        [limit for limit in limits if limit.client is None],
        [limit for limit in limits if limit.client is not None],
    )
    return [max(part, key=lambda limit: limit.value) for part in parts if part]


def highest_auc(figures: Sequence[Estimate]) -> Estimate | None:
    """Return the AUC to print where none is above chance: of pooled clients, if there is one.

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
    clients = audited_clients(figures)
    if len(clients) < 2:
        return ""
    pooled = evidence.pooled(figures)
    withheld = bool(pooled) and not relied_on(pooled)
    pooled = relied_on(pooled)
    alone = [one for one in figures if one.target is not None]
    above = audited_clients(one for one in alone if above_chance(one))
    if not pooled:
        if not above:
            return ""
        counted = f"{len(above)} of {len(clients)} audited clients"
        said = f"Shown for {clients_named(above)} ({counted})"
        return f"{said}; figures of all clients together are not relied on" if withheld else said
    by_all = any(above_chance(one) for one in pooled)
    strongest = highest_auc(pooled) or pooled[0]
    together = (
        f"{pooled_over(record)(strongest.attack)}, each compared with its own held-out samples"
    )
    if above:
        shown = f"Shown {together}, and" if by_all else f"Not shown {together}, but shown"
        return f"{shown} for {clients_named(above)} alone"
    shown = "Shown" if by_all else "Judged"
    own = evidence.grouped(alone, lambda one: one.target)
    small = [client for client in clients if not little_can_hide(record, own[client])]
    if not small:
        return f"{shown} {together}"
    who = "single clients" if small == clients else clients_named(small)
    verb = "are" if len(small) > 1 else "is"
    return f"{shown} {together}; {who} {verb} too small to be judged alone"


def pooled_over(record: Record) -> Callable[[str], str]:
    """Return what says which clients an attack's pooled figure is over: "over 2 of 3 ...".

    Clients that took part in no measured round, or in too few for the attack, are not in it. The
    record is looked through once, for all attacks.
    """
    figures = [one for one in record.findings if one.attack]
    by_attack = evidence.grouped((one for one in figures if one.fair), lambda one: one.attack)
    covered_by = {attack: _pooled_clients(own, attack) for attack, own in by_attack.items()}
    audited = {one.client for one in record.coverage.clients} if record.coverage else set()
    total = len(audited.union(audited_clients(figures)))

    def over(attack: str) -> str:
        covered = covered_by.get(attack, 0)
        if covered in (0, total):
            return f"over all {total} audited clients"
        return f"over {covered} of {total} audited clients"

    return over


def _pooled_clients(figures: Iterable[Estimate], attack: str) -> int:
    return len(
        audited_clients(
            one for one in figures if one.attack == attack and one.n_members and one.n_nonmembers
        )
    )
