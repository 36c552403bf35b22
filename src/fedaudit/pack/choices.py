"""Choices behind a pack: attacks, settings of figures and policy, compared with the expected ones.

Figures can be right and still hide a leak, if whoever made the pack left out the attack that finds
it or chose other ceilings. The folder of the run and the receiver's policy say what was expected.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fedaudit.attacks.catalog import ATTACKS, SOURCE_ATTACKS
from fedaudit.core.importing import installed, is_own
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import Policy
from fedaudit.live.recording import read_recording
from fedaudit.report.grid import shortened
from fedaudit.report.verdict import coverage_gaps
from fedaudit.results.record import Record
from fedaudit.study.running.folder import recorded_study
from fedaudit.study.settings.sections import FiguresSection

MOST_NAMED = 20
"""Attacks and settings that are listed one by one."""
ABSENT = object()
_ADD_EVIDENCE = frozenset({"planted_leak", "blind_classifier"})
"""Settings of figures that add a control if they are turned on."""


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
    missing = sorted(_asked_attacks(own) - _attacks_of(record))
    problems = []
    if differences:
        outcome = evaluate_policy(record, own).outcome
        problems.append(
            f"policy.toml is not your policy {source.name}: "
            f"{_listed(_change(path, given, wanted) for path in differences)}; by your policy the "
            f"verdict on the packed record is {outcome}"
        )
    if missing:
        problems.append(f"the record lacks attacks that your policy asks for: {_listed(missing)}")
    held = [] if problems else [f"policy.toml has the settings of your policy {source.name}"]
    return Findings(problems, held, [])


def compare_choices(record: Record, recording: Path, policy: Policy | None) -> Findings:
    """Compare attacks and settings of figures with those that the run was made for.

    Args:
        record: As it is packed.
        recording: Folder of the study's run, or of a live recording.
        policy: The receiver's policy, whose attacks are enough if it names them; None without one.
    """
    study = None if record.watched else recorded_study(recording)
    planned = set(read_recording(recording).attacks if study is None else study.attacks)
    shown = _attacks_of(record)
    required = planned if policy is None else (_asked_attacks(policy) or planned)
    problems, unchecked = [], []
    if missing := sorted((required & planned) - shown):
        problems.append(f"the record leaves out attacks of the run: {_listed(missing)}")
    if left := sorted(planned - required - shown):
        unchecked.append(
            f"attacks of the run that the record leaves out and your policy does not ask for: "
            f"{_listed(left)}"
        )
    if added := sorted(shown - planned):
        unchecked.append(
            f"whether attacks were chosen after a look at the figures: the run does not name "
            f"{_listed(added)}, and tests are corrected over all"
        )
    figures = FiguresSection() if study is None else study.figures
    expected = figures.model_dump(mode="json")
    given = expected | _table(record.config.get("figures"))
    changes = [
        _change(path, given, expected, "figures")
        for path in differing_paths(given, expected)
        if not (path[0] in _ADD_EVIDENCE and given.get(path[0]) is True)
    ]
    if changes and study is not None:
        problems.append(f"settings of figures are not those of the run: {_listed(changes)}")
    elif changes:
        unchecked.append(
            "whether settings of figures were chosen after a look at them, as a recording states "
            f"none: {_listed(changes)}"
        )
    if record.nobody_is_a_member and not figures.nobody_is_a_member:
        problems.append("the record calls unseen samples members, so that it can show no leak")
    checked = [] if problems else ["attacks and settings of figures are those of the run"]
    return Findings(problems, [] if unchecked else checked, unchecked)


def foreign_names(record: Record, policy: Policy) -> Findings:
    """Find names that only look like those of the catalogue.

    Args:
        record: As it is packed.
        policy: In the pack.
    """
    attacks = _attacks_of(record) | {one.attack for one in record.controls if one.attack}
    attacks |= {one.attack for one in record.estimates if one.attack} | _asked_attacks(policy)
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
        unchecked.append(f"attacks that this fedaudit does not know: {_listed(others)}")
    if owned:
        unchecked.append(f"what attacks of the sender's own compute: {_listed(owned)}")
    problems = [f"names with letters outside ASCII: {_listed(ascii(one) for one in odd)}"]
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


def _change(path: tuple[str, ...], given: object, expected: object, table: str = "") -> str:
    values = (setting_at(config, path) for config in (given, expected))
    one, other = ("absent" if value is ABSENT else repr(value) for value in values)
    name = ".".join([*([table] if table else []), *path])
    return f"{shortened(name)} is {shortened(one, 80)} instead of {shortened(other, 80)}"


def _attacks_of(record: Record) -> set[str]:
    """Attacks that a record names in its settings or has a row for."""
    return {one.name for one in record.attacks} | set(_table(record.config.get("attacks")))


def _asked_attacks(policy: Policy) -> set[str]:
    """Attacks that a policy names; empty if it judges all attacks of a record."""
    tables = [one for one in (policy.membership, policy.sources) if one is not None]
    if not all(one.attacks for one in tables):
        return set()
    return {name for one in tables for name in one.attacks}


def _table(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}


def _listed(names: Iterator[str] | list[str]) -> str:
    given = [shortened(name, 160) for name in names]
    more = f" and {len(given) - MOST_NAMED} more" if len(given) > MOST_NAMED else ""
    return ", ".join(given[:MOST_NAMED]) + more


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
