"""What was audited, and against whom, in words."""

from fedaudit.report.choosing import about_members, attacks_tried, distinct
from fedaudit.report.cluster_words import cluster_question
from fedaudit.report.clusters import clustered_of
from fedaudit.report.grid import shortened
from fedaudit.report.names import NO_DEFENSE, defense_name
from fedaudit.report.reading import Record
from fedaudit.report.source_words import (
    guessing,
    source_attacks_tried,
    source_audited,
    source_question,
)
from fedaudit.report.words import capital, count, listed, plural, sentence

_MOST_NAMED = 5
"""Audited clients that are named; of more, their number stands."""


def audited(record: Record) -> str:
    """What was audited, what was asked of it, and what the adversary sees."""
    sizes = [row.samples for row in record.clients]
    held = f" holding {_from_to(sizes)} samples each" if sizes else ""
    targets = sorted({f.target for f in record.findings if f.target is not None})
    used = [figure.defense for figure in record.findings]
    used += [run.defense for run in record.sources]
    used += [run.defense for run in record.clusters]
    defenses = distinct(defense_name(defense) for defense in used)
    against = f", with {listed([shortened(name, 60) for name in defenses])}" if defenses else ""
    view = shortened(record.view.description, 400) or "not described in the record"
    clients = plural(len(record.clients), "client")
    if record.watched:
        trained = f"watched a federation of {clients} that somebody else trained"
    else:
        seeds = plural(len(record.seeds), "seed")
        trained = f"trained a federation of {clients}{held} ({seeds}){against}"
    return (
        f"This audit {trained}, and asked {_question(record, targets)} "
        f"The adversary: {sentence(view)}{_undefended(record, targets)}"
    )


def _from_to(sizes: list[int]) -> str:
    low, high = min(sizes), max(sizes)
    return count(low) if low == high else f"{count(low)} to {count(high)}"


def _question(record: Record, targets: list[int]) -> str:
    """What was asked of the federation, and how many attacks tried to answer it."""
    on_clusters = f" It also asked {_of_clusters(record)}" if record.clusters else ""
    if not about_members(record) and not record.sources:
        return _of_clusters(record)
    if not about_members(record):
        tried = plural(source_attacks_tried(record), "attack was", "attacks were")
        return (
            f"of {source_question(record)}: can an adversary name the client that a sample is "
            f"from? {tried} tried; a guess is right for {guessing(record)}.{on_clusters}"
        )
    others = max(attacks_tried(record) - source_attacks_tried(record), 0)
    tried = plural(others, "attack was", "attacks were")
    return (
        f"of {_asked(targets)}: can an adversary tell whether a given sample was among the "
        f"training data? {tried} tried; guessing gives an AUC of 0.5."
        f"{' ' + source_audited(record) if record.sources else ''}{on_clusters}"
    )


def _of_clusters(record: Record) -> str:
    return cluster_question(clustered_of(record))


def _undefended(record: Record, targets: list[int]) -> str:
    """Which audited clients do not use the defense that others use: their leak is not its own."""
    used = [row for row in record.usage if row.defense != NO_DEFENSE]
    users = {row.client for row in used if row.defended}
    others = [t for t in targets if t in {row.client for row in used} - users]
    if not users or not others:
        return ""
    who = f"{count(len(others))} of the audited clients"
    if len(others) <= _MOST_NAMED:
        who = capital(_by_number(others))
    return f" {who} {'does' if len(others) == 1 else 'do'} not use the defense."


def _asked(targets: list[int]) -> str:
    if not targets:
        return "them"
    if len(targets) > _MOST_NAMED:
        return f"{count(len(targets))} of them in turn"
    return _by_number(targets) + " in turn" * (len(targets) > 1)


def _by_number(clients: list[int]) -> str:
    return f"client{'s' * (len(clients) > 1)} {listed([str(client) for client in clients])}"
