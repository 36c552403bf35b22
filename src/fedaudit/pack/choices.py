"""Comparison of a pack's choices with the receiver's policy and with the catalogue.

Policies and settings are compared path by path, and names of attacks with known names.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS
from fedaudit.core.importing import installed_entry_points, is_custom
from fedaudit.formatting.grid import shorten
from fedaudit.formatting.wording import without_capital
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import Policy
from fedaudit.report.deciding.caveats import coverage_gaps
from fedaudit.report.differing import change_at, dict_or_empty, differing_paths
from fedaudit.results.record import Record

MOST_NAMED = 20
"""Maximum number of attacks or settings that are listed individually."""


class CheckResults(NamedTuple):
    """Results of one check of a pack.

    Attributes:
        problems: Descriptions of faults. A pack with a fault is unsound.
        checked: Statements that are confirmed.
        unchecked: Statements that are not confirmed, which the receiver must judge.
    """

    problems: Sequence[str] = ()
    checked: Sequence[str] = ()
    unchecked: Sequence[str] = ()


_LABELS = (("name",), ("owner",))
"""Settings of a policy that do not affect its outcome."""


def compare_policy(
    record: Record,
    packed: Policy,
    receiver: Policy,
    source: Path,
    baseline: Record | None = None,
) -> CheckResults:
    """Compare the policy of a pack with the receiver's policy, read from ``source``."""
    packed_settings, expected = (policy.model_dump(mode="json") for policy in (packed, receiver))
    differences = [
        path for path in differing_paths(packed_settings, expected) if path not in _LABELS
    ]
    missing = sorted(required_attacks(receiver) - attacks_of(record))
    problems = []
    if differences:
        outcome = evaluate_policy(record, receiver, baseline).outcome
        problems.append(
            f"policy.toml is not your policy {source.name}: "
            f"{list_names(change_at(path, packed_settings, expected) for path in differences)}; by "
            f"your policy the verdict on the packed record is {outcome}"
        )
    if missing:
        problems.append(
            f"the record lacks attacks that your policy requires: {list_names(missing)}"
        )
    checked = [] if problems else [f"policy.toml has the settings of your policy {source.name}"]
    return CheckResults(problems, checked)


def suspicious_names(record: Record, policy: Policy) -> CheckResults:
    """Report names with non-ASCII letters as problems, and unknown and custom attacks as unchecked.

    A name with non-ASCII letters can look the same as a name of the catalogue.
    """
    attacks = attacks_of(record) | {row.attack for row in record.controls if row.attack}
    attacks |= {row.attack for row in record.estimates if row.attack} | required_attacks(policy)
    attacks |= {row.attack for row in record.curves} | {row.attack for row in record.sources}
    names = attacks | {record.view.name} | {row.control for row in record.controls}
    for row in record.estimates:
        names |= {row.metric, row.contrast, row.view, row.algorithm, row.against, row.topic}
    not_ascii = sorted(name for name in names if not (name.isascii() and name.isprintable()))
    catalogue = {*ATTACKS, *SOURCE_ATTACKS, *installed_entry_points("attack")}
    unknown = sorted(name for name in attacks - catalogue - set(not_ascii) if not is_custom(name))
    custom = sorted(name for name in attacks - set(not_ascii) if is_custom(name))
    unchecked = []
    if unknown:
        unchecked.append(
            f"attacks that this version of fedaudit does not know: {list_names(unknown)}"
        )
    if custom:
        unchecked.append(f"what the sender's custom attacks compute: {list_names(custom)}")
    problems = [
        f"names with letters outside ASCII: {list_names(ascii(name) for name in not_ascii)}"
    ]
    return CheckResults(problems if not_ascii else [], [], unchecked)


def coverage_notes(record: Record) -> Iterator[str]:
    """Yield descriptions of rounds and uploads that a record does not cover.

    Each text completes the sentence "Not checked: ...".
    """
    gaps = coverage_gaps(record)
    if gaps:
        yield f"what was {without_capital(gaps)}; the record has no figures for it"
    elif record.watched and record.coverage is None:
        yield "which rounds and uploads were measured: the record does not state its coverage"


def attacks_of(record: Record) -> set[str]:
    """Return the attacks that are listed in a record or in its settings."""
    return {row.name for row in record.attacks} | set(dict_or_empty(record.config.get("attacks")))


def required_attacks(policy: Policy) -> set[str]:
    """Return the attacks that a policy names; empty if the policy judges all attacks."""
    tables = [table for table in (policy.membership, policy.sources) if table is not None]
    if not all(table.attacks for table in tables):
        return set()
    return {name for table in tables for name in table.attacks}


def list_names(names: Iterator[str] | list[str]) -> str:
    """Join at most :data:`MOST_NAMED` names with commas, and count the others."""
    texts = [shorten(name, 160) for name in names]
    others = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return ", ".join(texts[:MOST_NAMED]) + others
