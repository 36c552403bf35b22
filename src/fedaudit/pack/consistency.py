"""Comparison of a packed record with its own settings and with the catalogue of attacks.

A sender can mark an attack as refused, change what the adversary sees, or leave out samples, seeds
and clients. These checks need no recording and run no code of the sender.
"""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from itertools import pairwise
from typing import NamedTuple

from fedaudit import __version__
from fedaudit.attacks import ATTACK_SETS, ATTACKS, SOURCE_ATTACKS
from fedaudit.attacks.base import Attack
from fedaudit.core.metric_names import AUC
from fedaudit.core.values import Capability
from fedaudit.formatting.grid import shorten
from fedaudit.observe.views import VIEWS
from fedaudit.pack.choices import MOST_NAMED, CheckResults
from fedaudit.results.record import Record

_ROUNDING = 1e-3
"""Largest distance of an AUC from the areas of its curve's steps, as values are rounded."""
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
    problems += [*_missing_attacks(record), *_view_faults(record)]
    names = ", ".join(row.name for row in refused)
    statement = f"the adversary does not see what the refused attacks need: {names}"
    return AttackFindings(
        problems,
        [statement] if names and not problems else [],
        [
            f"{row.name} ({shorten(row.note) or 'no reason'})"
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


_ALGORITHM_MAY_HIDE = (
    Capability.GLOBAL_MODEL
    | Capability.UPDATE
    | Capability.NEXT_MODEL
    | Capability.CONTROL_VARIATES
)
_RECORDER_MAY_HIDE = Capability.CONTROL_VARIATES
"""Parts of a view that some algorithms do not have, such as those without a common model."""


def _view_faults(record: Record) -> Iterator[str]:
    """Describe differences between the record's view, its settings and the catalogue."""
    table = record.config.get("recording" if record.watched else "audit")
    settings = table if isinstance(table, dict) else {}
    chosen = "merged" if settings.get("merge") else settings.get("view")
    if isinstance(chosen, str) and record.view.name != chosen:
        yield (
            f"the record has the view {shorten(record.view.name, 60)!r}, but its settings "
            f"{shorten(chosen, 60)!r}"
        )
    view = VIEWS.get(record.view.name)
    if view is None or other_version(record):
        return
    hidden = view.offers & ~(_RECORDER_MAY_HIDE if record.watched else _ALGORITHM_MAY_HIDE)
    missing = {(part.name or "").lower() for part in hidden} - {*record.view.sees}
    if missing:
        yield (
            f"the record states that the adversary does not see {', '.join(sorted(missing))}, but "
            f"the view {view.name!r} shows it"
        )


def seed_faults(record: Record) -> Iterator[str]:
    """Describe seeds of the settings that the record lacks, and seeds that it adds."""
    seeds = record.config.get("seeds")
    if isinstance(seeds, list) and sorted(map(str, seeds)) != sorted(map(str, record.seeds)):
        yield (
            f"the record has the seeds {_joined(record.seeds)}, but its settings {_joined(seeds)}"
        )


def curve_faults(record: Record) -> Iterator[str]:
    """Describe AUCs that are not between the areas below the lower and upper steps of their curve.

    A record has some points of each curve. Both rates only rise, so the area is between the steps.
    """
    curves = {(c.attack, c.defense, c.view, c.contrast, c.target, c.seed): c for c in record.curves}
    for e in record.where(metric=AUC, within="", group=""):
        curve = curves.get((e.attack, e.defense, e.view, e.contrast, e.target, e.seed))  # type: ignore[arg-type]
        if curve is None or e.value is None:
            continue
        points = [(0.0, 0.0), *zip(curve.fpr, curve.tpr, strict=True), (1.0, 1.0)]
        low = sum((b[0] - a[0]) * a[1] for a, b in pairwise(points))
        high = sum((b[0] - a[0]) * b[1] for a, b in pairwise(points))
        if not low - _ROUNDING <= e.value <= high + _ROUNDING:
            yield (
                f"the AUC of {shorten(e.attack, 60)} on client {e.target} in seed {e.seed} is "
                f"{e.value:.3f}, but the record's curve has an area of {low:.3f} to {high:.3f}"
            )


def _joined(values: Sequence[object]) -> str:
    return shorten(", ".join(map(str, values)) or "none", 80)


def missing_results(record: Record) -> list[str]:
    """Describe attacks without results for a client and seed for which another attack has some.

    Each text completes the sentence "Not checked: ...".
    """
    have: dict[str, set[tuple[int, int]]] = {
        row.name: set() for row in record.attacks if row.status == "run" and row.name in ATTACKS
    }
    for row in record.estimates:
        if row.attack in have and row.target is not None and row.seed is not None:
            have[row.attack].add((row.target, row.seed))
    expected = set().union(*have.values()) | {
        (target, seed) for target in _audited(record) for seed in record.seeds
    }
    return [
        f"why {name} has no results for client {target} in seed {seed}"
        for name, present in sorted(have.items())
        for target, seed in sorted(expected - present)
    ]


def _audited(record: Record) -> set[int]:
    """Return the clients that the settings audit, except those that the coverage leaves out."""
    table = record.config.get("recording" if record.watched else "audit")
    targets = table.get("targets") if isinstance(table, dict) else None
    left_out = (
        {*record.coverage.unattacked, *record.coverage.never_measured} if record.coverage else set()
    )
    numbers = targets if isinstance(targets, list) else []
    return {target for target in numbers if isinstance(target, int)} - left_out


def fewer_than_audited(record: Record) -> list[str]:
    """Describe clients whose attacks were evaluated on fewer members than the client's audit has.

    Each text completes the sentence "Not checked: ...".
    """
    audited = {row.client: row.audited for row in record.clients if row.audited}
    most: dict[int, int] = {}
    for row in record.estimates:
        is_auc = row.metric == AUC and row.topic == "membership" and not row.group
        if row.target in audited and is_auc and row.unit == "sample" and row.n_members:
            most[row.target] = max(row.n_members, most.get(row.target, 0))
    return [
        f"why the attacks on client {client} were evaluated on only {members} members, if "
        f"{audited[client]} of its samples were audited"
        for client, members in sorted(most.items())
        if members < audited[client]
    ]


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
    started = _start(record)
    if started is None:
        return f"the record does not state when its run started, but {not_before} is required"
    is_old = started < not_before
    return f"the record's run started on {started}, before {not_before}" if is_old else ""


def start_faults(record: Record, today: date) -> Iterator[str]:
    """Describe a start of the run that is after today, with a day for time zones."""
    started = _start(record)
    if started is not None and started > today + timedelta(days=1):
        yield f"the record states that its run started on {started}, but today is {today}"


def _start(record: Record) -> date | None:
    try:
        return date.fromisoformat(record.environment.started[:10])
    except ValueError:
        return None


def check_lineage(record: Record) -> CheckResults:
    """Check that each round was sent the model with which the previous round ended."""
    models = record.coverage.models if record.coverage else []
    breaks = [
        f"why round {later.round} was sent another model than the one after round {earlier.round}"
        for earlier, later in pairwise(models)
        if later.round == earlier.round + 1
        and earlier.after
        and later.sent
        and later.sent != earlier.after
    ]
    rounds = [entry.round for entry in models if entry.sent and entry.after]
    is_whole = len(rounds) > 1 and rounds == [*range(rounds[0], rounds[-1] + 1)] and not breaks
    statement = (
        (
            f"each of the rounds {rounds[0] + 1} to {rounds[-1]} was sent the model with which the "
            "previous round ended"
        )
        if is_whole
        else ""
    )
    return CheckResults(checked=[statement] if statement else [], unchecked=breaks[:MOST_NAMED])
