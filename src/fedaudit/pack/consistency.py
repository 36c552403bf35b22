"""Comparison of a packed record with its own settings and with the catalogue of attacks.

A sender can mark an attack as refused, or leave out audited samples. These checks need no recording
and run no code of the sender.
"""

from collections.abc import Iterator
from datetime import date
from typing import NamedTuple

from fedaudit import __version__
from fedaudit.attacks import ATTACK_SETS, ATTACKS, SOURCE_ATTACKS
from fedaudit.attacks.base import Attack
from fedaudit.report.grid import shortened
from fedaudit.results.record import Record

_ATTACKS: dict[str, Attack] = {**ATTACKS, **SOURCE_ATTACKS}


class AttackFindings(NamedTuple):
    """Results of the check of a record's attacks.

    Attributes:
        problems: Descriptions of faults.
        checked: Statements that are confirmed.
        unexplained: Attacks without results, for which neither the view nor the number of clients
            is a reason.
    """

    problems: list[str]
    checked: list[str]
    unexplained: list[str]


def check_attacks(record: Record) -> AttackFindings:
    """Compare a record's attacks with the catalogue, the adversary's view and the set of attacks.

    An attack is refused if the adversary does not see what the attack needs. Any other reason
    depends on data that a pack does not contain.
    """
    visible = set(record.view.sees)
    without_results = [r for r in record.attacks if r.name in _ATTACKS and r.status != "run"]
    refused = [row for row in without_results if _needs(row.name) - visible]
    problems = [
        f"the record states that {row.name} needs {', '.join(row.needs) or 'nothing'}, but it "
        f"needs {', '.join(sorted(_needs(row.name)))}"
        for row in without_results
        # Needs may differ between versions.
        if set(row.needs) != _needs(row.name) and not other_version(record)
    ]
    problems += _missing_attacks(record)
    names = ", ".join(row.name for row in refused)
    statement = f"the adversary does not see what the refused attacks need: {names}"
    return AttackFindings(
        problems,
        [statement] if names and not problems else [],
        [
            f"{row.name} ({shortened(row.note) or 'no reason'})"
            for row in without_results
            if row not in refused
        ],
    )


def other_version(record: Record) -> str:
    """Return the version of fedaudit that made a record, or "" if it is the present one."""
    version = record.environment.versions.get("fedaudit", "unknown")
    return "" if version == __version__ else version


def _needs(attack: str) -> set[str]:
    return {(part.name or "").lower() for part in _ATTACKS[attack].needs}


def _missing_attacks(record: Record) -> Iterator[str]:
    """Describe attacks of the study's set of attacks that the record does not list."""
    name = record.config.get("attack_set")
    if record.config.get("attacks") or not isinstance(name, str) or name not in ATTACK_SETS:
        return
    present = {row.name for row in record.attacks}
    missing = [
        attack
        for attack in ATTACK_SETS[name]
        # Without side information of the defense, these attacks are left out.
        if attack not in present and not _ATTACKS[attack].needs_side_information
    ]
    if missing:
        yield f"the record lacks attacks of its set {name}: {', '.join(missing)}"


def unequal_sizes(record: Record) -> list[str]:
    """Describe results of attacks on fewer samples than another attack on the same client and run.

    Each text completes the sentence "Not checked: ...".
    """
    sizes: dict[tuple[object, ...], dict[str, tuple[int, int]]] = {}
    for row in record.estimates:
        if row.attack and row.n_members and row.n_nonmembers and not row.group:
            key = (row.target, row.seed, row.contrast, row.metric, row.topic, row.view)
            sizes.setdefault(key, {})[row.attack] = (row.n_members, row.n_nonmembers)
    smaller: dict[str, tuple[int, int]] = {}
    for by_attack in sizes.values():
        largest = max(by_attack.values())
        smaller.update({name: size for name, size in by_attack.items() if size != largest})
    return [
        f"why {name} was evaluated on only {members} members and {others} non-members, fewer than "
        "other attacks on the same client"
        for name, (members, others) in sorted(smaller.items())
    ]


def describe_age(record: Record, not_before: date) -> str:
    """Return why a record is too old; empty if it states that its run started late enough."""
    started = record.environment.started[:10]
    try:
        is_old = date.fromisoformat(started) < not_before
    except ValueError:
        return f"the record does not state when its run started, but {not_before} is required"
    return f"the record's run started on {started}, before {not_before}" if is_old else ""
