"""Records side by side in words: names of rows and fronts, cautions, and the best trade-off."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedaudit.core.metric_names import AUC
from fedaudit.report.evidence import checks_of, headline
from fedaudit.report.grid import Cell, named, shortened
from fedaudit.report.text.verdict import learning_warning
from fedaudit.report.words import defense_name, plural
from fedaudit.results.comparison import (
    NOT_SET,
    STRONGEST_ATTACK,
    AttackEntry,
    Comparison,
    Front,
    FrontPoint,
    Row,
)
from fedaudit.results.estimate import NO_DEFENSE
from fedaudit.results.record import Record

MOST_SETTINGS = 4
"""Settings named in a row's heading; all of them stand in the table of rows."""


def labels_of(comparison: Comparison) -> list[str]:
    """A name for each row that no other row has, in one line."""
    any_defense = any(row.family != NO_DEFENSE for row in comparison.rows)
    return _distinct([_label(row, any_defense=any_defense) for row in comparison.rows], comparison)


def case_of(row: Row | Front) -> str:
    """Clients that use its defense: "pair: clients 0 and 1 of 10"; empty if unknown."""
    if row.family == NO_DEFENSE:
        return ""
    if row.coalition is None:
        return f"all {row.clients} clients" if row.clients else ""
    size = len(row.coalition)
    name = "one client" if size == 1 else "pair" if size == 2 else f"{size} clients"
    if row.clients == 2 * size and size > 2:
        name = "half"
    return f"{name}: {on_clients(row.coalition)} of {row.clients}"


def settings_text(settings: Mapping[str, str]) -> str:
    """Settings in a few words: the last part of each name, and of which part if there are two."""
    # What is set in other rows alone says nothing of this one.
    given = {name: value for name, value in settings.items() if value not in (NOT_SET, "{}")}
    short = {name: _short_setting(name) for name in given}
    twice = {last for last, count in Counter(short.values()).items() if count > 1}
    full = {
        n: f"{n.partition('.')[0]} {last}" if last in twice else last for n, last in short.items()
    }
    parts = [f"{full[name].replace('_', ' ')} {value}" for name, value in given.items()]
    more = len(parts) - MOST_SETTINGS
    told = [shortened(part, 32) for part in parts[:MOST_SETTINGS]]
    return ", ".join([*told, f"and {more} more"] if more > 0 else told)


def _short_setting(name: str) -> str:
    """The last part of a setting's name; a catalogue's name is called after what it is of."""
    above, _, last = name.rpartition(".")
    return above if last in ("name", "scheme") and above else last


def _clients(clients: Sequence[int]) -> str:
    ordered = sorted(clients)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}–{ordered[-1]}"
    return shortened(", ".join(str(client) for client in ordered), 40)


def _label(row: Row, *, any_defense: bool) -> str:
    parts = [defense_name(row.defense), case_of(row), settings_text(row.settings)]
    if row.family == NO_DEFENSE and not any_defense and parts[-1]:
        parts = parts[1:]
    return " · ".join(shortened(part, 80) for part in parts if part)


def _distinct(labels: list[str], comparison: Comparison) -> list[str]:
    """With the study's name where two rows say the same, and a number where that is not enough."""
    names = [
        f"{shortened(comparison.sources[row.source].name, 60)} · {label}"
        if labels.count(label) > 1
        else label
        for row, label in zip(comparison.rows, labels, strict=True)
    ]
    return [
        f"{name} ({place + 1})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def on_clients(targets: Sequence[int]) -> str:
    """Clients in a few words: "client 3", "clients 0–4"."""
    return f"client{'s' if len(targets) > 1 else ''} {_clients(targets)}"


def clients_of(entry: AttackEntry) -> tuple[int, ...]:
    """Return the audited clients of an entry's part; in older comparisons those of its figure."""
    return tuple(entry.clients or entry.targets)


def heading_of(row: Row, label: str) -> Cell:
    """The defense, and below it who uses it and what else differs."""
    details = " · ".join(part for part in (case_of(row), settings_text(row.settings)) if part)
    plain = defense_name(row.defense)
    if label.startswith(plain[:20]):
        return named(plain, details, limit=80)
    return named(label, limit=120)


def front_name(front: Front) -> str:
    """A front as a reader sees it: defense, coalition, and settings that differ."""
    parts = [defense_name(front.family), case_of(front), settings_text(front.settings)]
    return " · ".join(shortened(part, 60) for part in parts if part)


def case_name(front: Front) -> str:
    """Users of a front's defense, in a word or two: "pair", "half", "all 10 clients"."""
    return case_of(front).partition(":")[0]


SIZES_DIFFER = "Rows audit different numbers of samples, and more samples show smaller leaks."


def sizes_differ(records: Sequence[Record]) -> bool:
    """True where rows audit different numbers of samples, which qualifies any headline."""
    sizes = {frozenset((f.n_members, f.n_nonmembers) for f in headline(r)) for r in records}
    return len(sizes) > 1


def cautions(comparison: Comparison, records: Sequence[Record]) -> list[str]:
    """Differences that make records hard to compare, in plain words; sizes stand at the top."""
    said = [
        f"{shortened(record.name, 60)} was evaluated with the published code's flawed redraw of "
        "non-members: its figures mean nothing about leakage."
        for record in records
        if record.evaluation == "redraw"
    ]
    failed = [record for record in records if checks_of(record.controls).failed]
    said += [
        f"A control failed in {shortened(record.name, 60)}: its figures cannot be relied on yet."
        for record in failed[:5]
    ]
    if len(failed) > 5:
        said.append(f"A control failed in {plural(len(failed) - 5, 'further record')}.")
    said += [
        f"{shortened(record.name, 60)}: {warning}"
        for record in records
        if (warning := learning_warning(record))
    ][:5]
    if len({record.view.name for record in records}) > 1:
        said.append("The adversaries differ: the records were made under different views.")
    if len({tuple(sorted(record.seeds)) for record in records}) > 1:
        said.append("The seeds differ: a change is taken over the seeds that two rows share.")
    return said + _without_tuned(comparison)


def _without_tuned(comparison: Comparison) -> list[str]:
    families = [row.family for row in comparison.rows]
    if all(family == NO_DEFENSE for family in families) or any("dp-sgd" in f for f in families):
        return []
    return [
        "Tuned DP-SGD is not among the defenses: whether these beat the usual one is not shown."
    ]


MOST_LOST = 0.75
"""Share of what was learned above guessing from which on a defense that lost it has no merit."""


class TradeOff(NamedTuple):
    """Leakage that a row of a comparison takes away, and its cost in what the model has learned.

    Attributes:
        row: The row of the comparison.
        name: The defense, with who uses it.
        leakage: Change of the strongest attack's membership advantage, in shares.
        error: Change of the test error, in shares.
        lost: Share of what the undefended model has learned above guessing that this row lacks;
            None where the undefended model is no better than guessing.
        undefended: The advantage without it.
        undefended_error: The test error without it.
        contrast: The non-members that the leakage is against.
        low: Lower limit of the change of leakage; None where there is none.
        high: Upper limit, over all attacks of the row; None likewise.
    """

    row: int
    name: str
    leakage: float
    error: float
    lost: float | None
    undefended: float
    undefended_error: float
    contrast: str
    low: float | None
    high: float | None

    @property
    def lowers(self) -> bool:
        """True where the leakage is shown to be lower than undefended."""
        return self.leakage < 0 and self.high is not None and self.high < 0

    @property
    def keeps(self) -> bool:
        """True where less than three quarters of what was learned above guessing is lost."""
        return self.lost is not None and self.lost < MOST_LOST

    @property
    def pays(self) -> bool:
        """True where leakage falls by more than the share of what was learned that is lost."""
        return self.lowers and self.keeps and self.cost < 0

    @property
    def cost(self) -> float:
        """Share of what was learned that is lost, less the fall of leakage."""
        return self.leakage + (1.0 if self.lost is None else self.lost)


def point_cost(point: FrontPoint) -> float:
    """Return leakage plus the share of what was learned that a point of a front has lost."""
    return point.leakage + (point.error if point.lost is None else point.lost)


def best_tradeoff(comparison: Comparison) -> TradeOff | None:
    """Return the row with the least cost of those that pay; None where none does.

    Both sides are shares of what guessing leaves open: the membership advantage (2 AUC - 1) of the
    strongest attack, and the part of the undefended model's accuracy above guessing that is lost.
    Their sum is a convention of this report; the front shows all rows.
    """
    return least_cost([one for one in tradeoffs(comparison) if one.pays])


def least_cost(found: Sequence[TradeOff]) -> TradeOff | None:
    """Return the trade-off with the least cost; None of none."""
    return min(found, key=lambda one: one.cost, default=None)


def tradeoffs(comparison: Comparison) -> list[TradeOff]:
    """Compare every defended row with the undefended one, for the contrast that leaks most.

    Rows whose undefended one has no attack above chance are left out: there is nothing to lower.
    """
    fronts = [
        front
        for front in comparison.fronts
        if front.metric == AUC
        and front.attack == STRONGEST_ATTACK
        and front.gain is not None
        and _leaks(comparison, front.points[0].row, front.contrast)
    ]
    if not fronts:
        return []
    contrast = max(fronts, key=lambda front: front.points[0].leakage).contrast
    return [
        TradeOff(
            point.row,
            front_name(front),
            point.leakage - front.points[0].leakage,
            point.error - front.points[0].error,
            point.lost,
            front.points[0].leakage,
            front.points[0].error,
            contrast,
            *_limits(comparison, point.row, contrast),
        )
        for front in fronts
        if front.contrast == contrast
        for point in front.points[1:]
    ]


def nothing_to_lower(comparison: Comparison) -> bool:
    """True where rows are defended, and no undefended one has a membership attack above chance."""
    bare = {at for at, row in enumerate(comparison.rows) if row.family == NO_DEFENSE}
    return holds_defenses(comparison) and not any(
        entry.above for entry in comparison.entries if entry.row in bare
    )


def holds_defenses(comparison: Comparison) -> bool:
    """True where membership in a defended row is held against an undefended one."""
    return any(front.gain is not None for front in comparison.fronts)


def _leaks(comparison: Comparison, row: int, contrast: str) -> bool:
    entry = strongest_entry(comparison, row, contrast)
    return entry is not None and entry.above is True


def strongest_entry(
    comparison: Comparison, row: int, contrast: str, clients: Sequence[int] | None = None
) -> AttackEntry | None:
    """Return the AUC of a row's strongest attack on the clients that defend; None without one.

    Args:
        comparison: The comparison.
        row: Its row.
        contrast: The non-members.
        clients: Of an undefended row the figure on these clients, if it has one.
    """
    found = [
        entry
        for entry in comparison.entries
        if (entry.row, entry.contrast, entry.metric) == (row, contrast, AUC)
        and entry.attack == STRONGEST_ATTACK
        and entry.part in ("inside", "reference")
        and entry.value is not None
    ]
    same = [one for one in found if clients is not None and clients_of(one) == tuple(clients)]
    inside = [one for one in found if one.part == "inside"]
    return next(iter([*same, *inside]), None)


def _limits(comparison: Comparison, row: int, contrast: str) -> tuple[float | None, float | None]:
    """Return limits of the change of the strongest attack's advantage; None where not known.

    The upper one allows for every attack of the row, as the strongest attack's own limit does.
    """
    entry = strongest_entry(comparison, row, contrast)
    change = entry.change if entry else None
    if change is None or change.low is None or change.high is None:
        return None, None
    return max(2 * change.low, -1.0), min(2 * change.high, 1.0)
