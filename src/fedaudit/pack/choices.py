"""Choices in a pack: its policy, its names and its coverage, compared with the expected ones."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS
from fedaudit.core.importing import installed, is_own
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import Policy
from fedaudit.report.grid import shortened
from fedaudit.report.verdict import coverage_gaps
from fedaudit.results.record import Record

MOST_NAMED = 20
"""Attacks and settings that are listed one by one."""
ABSENT = object()


class Findings(NamedTuple):
    """Results of one comparison, in words.

    Attributes:
        problems: Differences that make a pack unsound.
        checked: Comparisons that hold.
        unchecked: Differences for the receiver to judge.
    """

    problems: list[str]
    checked: list[str]
    unchecked: list[str]


def compare_policy(record: Record, packed: Policy, own: Policy, source: Path) -> Findings:
    """Compare the policy of a pack with that of its receiver.

    Args:
        record: As it is packed.
        packed: The policy in the pack.
        own: The receiver's policy.
        source: File of the receiver's policy.
    """
    given, wanted = (policy.model_dump(mode="json") for policy in (packed, own))
    differences = [path for path in differing_paths(given, wanted) if path != ("name",)]
    missing = sorted(asked_attacks(own) - attacks_of(record))
    problems = []
    if differences:
        outcome = evaluate_policy(record, own).outcome
        problems.append(
            f"policy.toml is not your policy {source.name}: "
            f"{listed(change_at(path, given, wanted) for path in differences)}; by your policy the "
            f"verdict on the packed record is {outcome}"
        )
    if missing:
        problems.append(f"the record lacks attacks that your policy asks for: {listed(missing)}")
    held = [] if problems else [f"policy.toml has the settings of your policy {source.name}"]
    return Findings(problems, held, [])


def foreign_names(record: Record, policy: Policy) -> Findings:
    """Find names that only look like those of the catalogue.

    Args:
        record: As it is packed.
        policy: In the pack.
    """
    attacks = attacks_of(record) | {one.attack for one in record.controls if one.attack}
    attacks |= {one.attack for one in record.estimates if one.attack} | asked_attacks(policy)
    attacks |= {one.attack for one in record.curves} | {one.attack for one in record.sources}
    names = attacks | {record.view.name} | {one.control for one in record.controls}
    for one in record.estimates:
        names |= {one.metric, one.contrast, one.view, one.algorithm, one.against, one.topic}
    odd = sorted(name for name in names if not (name.isascii() and name.isprintable()))
    known = {*ATTACKS, *SOURCE_ATTACKS, *installed("attack")}
    others = sorted(name for name in attacks - known - set(odd) if not is_own(name))
    owned = sorted(name for name in attacks - set(odd) if is_own(name))
    unchecked = []
    if others:
        unchecked.append(f"attacks that this fedaudit does not know: {listed(others)}")
    if owned:
        unchecked.append(f"what attacks of the sender's own compute: {listed(owned)}")
    problems = [f"names with letters outside ASCII: {listed(ascii(one) for one in odd)}"]
    return Findings(problems if odd else [], [], unchecked)


def coverage_notes(record: Record) -> Iterator[str]:
    """Yield what the coverage of a record leaves open."""
    gaps = coverage_gaps(record)
    if gaps:
        yield f"what was {gaps[:1].lower()}{gaps[1:]}; the record's figures say nothing about it"
    elif record.watched and record.coverage is None:
        yield "which rounds and uploads were measured: the record does not state its coverage"


def differing_paths(
    one: object, other: object, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield paths of settings that differ in value or type: 1, 1.0 and true are three."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys([*one, *other]):
            pair = one.get(key, ABSENT), other.get(key, ABSENT)
            yield from differing_paths(*pair, (*path, key))
    elif ABSENT in (one, other) or _text(one) != _text(other):
        yield path


def setting_at(config: object, path: tuple[str, ...]) -> object:
    """Return the value at a path of keys; ``ABSENT`` if there is none."""
    for key in path:
        config = config.get(key, ABSENT) if isinstance(config, Mapping) else ABSENT
    return config


def change_at(path: tuple[str, ...], given: object, expected: object, table: str = "") -> str:
    """Describe how the setting at a path differs, by its dotted name with both values."""
    values = (setting_at(config, path) for config in (given, expected))
    one, other = ("absent" if value is ABSENT else repr(value) for value in values)
    name = ".".join([*([table] if table else []), *path])
    return f"{shortened(name)} is {shortened(one, 80)} instead of {shortened(other, 80)}"


def attacks_of(record: Record) -> set[str]:
    """Attacks that a record names in its settings or has a row for."""
    return {one.name for one in record.attacks} | set(as_table(record.config.get("attacks")))


def asked_attacks(policy: Policy) -> set[str]:
    """Attacks that a policy names; empty if it judges all attacks of a record."""
    tables = [one for one in (policy.membership, policy.sources) if one is not None]
    if not all(one.attacks for one in tables):
        return set()
    return {name for one in tables for name in one.attacks}


def as_table(value: object) -> dict[str, object]:
    """Return a table of settings; an empty one for any other value."""
    return dict(value) if isinstance(value, dict) else {}


def listed(names: Iterator[str] | list[str]) -> str:
    """Join names with commas; after :data:`MOST_NAMED` only their number follows."""
    given = [shortened(name, 160) for name in names]
    more = f" and {len(given) - MOST_NAMED} more" if len(given) > MOST_NAMED else ""
    return ", ".join(given[:MOST_NAMED]) + more


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
