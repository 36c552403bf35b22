"""Suppression of single samples and small groups in a record.

A reader must not be able to compute suppressed figures from the remaining ones. An AUC is a mean
over pairs of a member and a non-member. The AUC against all non-members is therefore a weighted
mean of the AUCs of its parts, as are AUCs over seeds, over clients and within classes. If only one
part is missing, it can be computed from the total and the other parts. To keep a part hidden, every
total that includes it is hidden too, unless at least two parts of the total are hidden and these
are not a small group when combined.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

from fedaudit.core.metric_names import AUC
from fedaudit.results.estimate import Coordinates, Estimate
from fedaudit.results.fields import SMALLEST_GROUP
from fedaudit.results.record import ClientRow, ControlResult, OtherClients, Record
from fedaudit.results.runs import FAIR, SourceResult
from fedaudit.results.unlearning import UNLEARNING

MIXED = "mixed"
_PARTS_OF_MIXED = ("unseen", "other_client")
Name = TypeVar("Name", bound=Hashable)
_MOVING = {"attack", "within", "contrast", "target", "seed"}
_KIND = tuple(name for name in Coordinates.model_fields if name not in _MOVING)
_CURVE = attrgetter("attack", "defense", "contrast", "target", "seed")
_CLIENT = attrgetter("defense", "target", "seed")
_SOURCE = attrgetter("attack", "defense", "view")
"""Coordinates that identify a curve, a client and a source attack in a record, respectively."""


class Place(NamedTuple):
    """Metric and coordinates of a figure without its attack: all attacks have the same samples.

    Attributes:
        kind: Metric and the remaining coordinates.
        within: Property that members and non-members share, such as "class".
        contrast: Kind of non-members.
        target: Audited client; None over all.
        seed: Run; None over all.
    """

    kind: tuple[Hashable, ...]
    within: str
    contrast: str
    target: int | None
    seed: int | None


class Size(NamedTuple):
    """Numbers of members and non-members."""

    members: int
    nonmembers: int

    @property
    def smaller(self) -> int:
        """The smaller of the two numbers."""
        return min(self)


def place_of(figure: Estimate) -> Place:
    """Return the place of a figure."""
    kind = (figure.metric, figure.against, *(getattr(figure, name) for name in _KIND))
    return Place(kind, figure.within, figure.contrast, figure.target, figure.seed)


class Hidden(NamedTuple):
    """Parts of a record that must be hidden.

    Attributes:
        places: Places of figures over all samples.
        groups: Groups, by the names of :func:`group_of`.
        clients: Clients whose number of audited samples is hidden.
    """

    places: set[Place]
    groups: set[Hashable]
    clients: set[int]


def hidden_of(record: Record, smallest: int) -> Hidden:
    """Return the parts of a record that reveal groups of fewer than ``smallest`` samples."""
    figures = [*record.findings, *record.where(topic=UNLEARNING)]
    targets = {figure.target for figure in figures if figure.target is not None}
    clients = _hidden_clients(record.clients, targets, smallest)
    divisions = _divisions(record.groups)
    totals = {
        _division(figure, division): Size(figure.n_members, figure.n_nonmembers)
        for figure in record.findings
        if figure.attack and figure.metric == AUC and not figure.within
        for division in ("class", "client")
    }
    groups = {
        division: _hidden_groups(division, sizes, clients, smallest, totals.get(division))
        for division, sizes in divisions.items()
    }
    places = _hidden_places(figures, smallest)
    # The mean over classes can be computed from its classes, so these are hidden with it.
    hidden_means = {
        _division(figure, "class")
        for figure in figures
        if figure.within == "class" and figure.metric == AUC and place_of(figure) in places
    }
    groups |= {division: set(divisions[division]) for division in hidden_means & divisions.keys()}
    named: set[Hashable] = {
        (division, name) for division, names in groups.items() for name in names
    }
    return Hidden(places, named, clients)


def _hidden_places(figures: Iterable[Estimate], smallest: int) -> set[Place]:
    """Return the places of figures that must be hidden.

    A figure over contrasts or seeds is hidden if any of its parts is. A figure over clients stays
    visible if at least two clients are hidden and these are not a small group when combined.
    """
    sizes: dict[Place, Size] = {}
    for figure in figures:
        size = Size(figure.n_members, figure.n_nonmembers)
        if any(size):
            place = place_of(figure)
            sizes[place] = min(sizes.get(place, size), size, key=lambda each: each.smaller)
    hidden = {place for place, size in sizes.items() if size.smaller < smallest}
    # The order is contrasts, clients, seeds: each step can hide parts of the next one.
    hidden |= _mixed_of(hidden) & sizes.keys()
    clients = defaultdict[Place, dict[int, Size]](dict)
    for place in hidden:
        if place.target is not None:
            clients[_over_clients(place)][place.target] = sizes[place]
    of_runs = {place._replace(seed=None) for place in sizes if place.seed is not None}
    for place in sizes.keys() - hidden:
        hidden_sizes = list(clients.get(_over_clients(place), {}).values())
        # A mean over runs is computed from the runs' figures, not from the clients' figures.
        is_total = place.target is None and not (place.seed is None and place in of_runs)
        if is_total and hidden_sizes and not _is_blurred(hidden_sizes, smallest):
            hidden.add(place)
    hidden |= _mixed_of(hidden) & sizes.keys()
    hidden |= {place._replace(seed=None) for place in hidden} & sizes.keys()
    return hidden


def _over_clients(place: Place) -> Place:
    """Return the place over all clients."""
    return place._replace(within="class" if place.within == "class" else "", target=None)


def _mixed_of(hidden: Iterable[Place]) -> set[Place]:
    return {place._replace(contrast=MIXED) for place in hidden if place.contrast in _PARTS_OF_MIXED}


def _hidden_clients(rows: Sequence[ClientRow], targets: Collection[int], smallest: int) -> set[int]:
    sizes = {
        row.client: Size(row.audited, row.audited)
        for row in rows
        if row.audited and (row.client not in targets or row.audited < smallest)
    }
    return _with_complement(sizes, (), smallest)


class Division(NamedTuple):
    """Division of a target's samples into groups, such as classes, for figures of one setting."""

    by: str
    defense: str
    view: str
    contrast: str
    target: int | None
    seed: int | None


def group_of(figure: Estimate) -> Hashable:
    """Return the name of a group in :attr:`Hidden.groups`."""
    return _division(figure, figure.by), figure.group


def _division(figure: Estimate, grouping: str) -> Division:
    return Division(
        grouping, figure.defense, figure.view, figure.contrast, figure.target, figure.seed
    )


def _divisions(groups: Iterable[Estimate]) -> dict[Division, dict[str, Size]]:
    divisions = defaultdict[Division, dict[str, Size]](dict)
    for figure in groups:
        divisions[_division(figure, figure.by)][figure.group] = Size(
            figure.n_members, figure.n_nonmembers
        )
    return divisions


def _hidden_groups(
    division: Division,
    sizes: Mapping[str, Size],
    clients: Collection[int],
    smallest: int,
    total: Size | None,
) -> set[str]:
    if division.by == "class":
        return _with_complement(sizes, (), smallest, total)
    # All clients have the target's members in their figures, so only non-members add up.
    if any(size.members < smallest for size in sizes.values()):
        return set(sizes)
    others = {name: Size(size.nonmembers, size.nonmembers) for name, size in sizes.items()}
    other_total = None if total is None else Size(total.nonmembers, total.nonmembers)
    return _with_complement(others, {str(client) for client in clients}, smallest, other_total)


def hidden_classes(samples: Mapping[int, int], total: int, smallest: int) -> set[int]:
    """Return classes whose counts must be hidden."""
    sizes = {label: Size(count, count) for label, count in samples.items() if count}
    return _with_complement(sizes, (), smallest, Size(total, total))


def _with_complement(
    sizes: Mapping[Name, Size],
    always: Collection[Name],
    smallest: int,
    total: Size | None = None,
) -> set[Name]:
    """Return small groups, ``always``, and larger groups until no hidden one can be computed."""
    hidden = {name for name, size in sizes.items() if size.smaller < smallest or name in always}
    rising = sorted(sizes.keys() - hidden, key=lambda name: (sizes[name].smaller, str(name)))
    for name in rising:
        hidden_sizes = [sizes[group] for group in hidden]
        visible = [size for group, size in sizes.items() if group not in hidden]
        if (not hidden_sizes or _is_blurred(hidden_sizes, smallest)) and not _leaves_few(
            visible, total, smallest
        ):
            break
        hidden.add(name)
    return hidden


def _is_blurred(hidden_sizes: Sequence[Size], smallest: int) -> bool:
    """Return True if several groups are hidden, and they are not a small group when combined."""
    return len(hidden_sizes) > 1 and _sum(hidden_sizes).smaller >= smallest


def _leaves_few(visible: Sequence[Size], total: Size | None, smallest: int) -> bool:
    """Return True if the total minus the visible groups is a small group."""
    if total is None:
        return False
    shown_size = _sum(visible)
    remainder = Size(total.members - shown_size.members, total.nonmembers - shown_size.nonmembers)
    return 0 < remainder.smaller < smallest


def _sum(sizes: Sequence[Size]) -> Size:
    members, nonmembers = zip(*sizes, strict=True) if sizes else ((), ())
    return Size(sum(members), sum(nonmembers))


_SUPPRESSED = "suppressed: fewer than "

_FOLLOWS = (
    *("value", "low", "high", "at_threshold", "further", "ceiling", "realised_fpr"),
    "labels_alone",
)
"""Fields of a figure that reveal its value, or that are computed from the same samples."""


class Suppressed(NamedTuple):
    """Record without small groups.

    Attributes:
        record: The record without suppressed parts.
        counts: Number of removed or changed entries in each of its lists.
    """

    record: Record
    counts: Mapping[str, int]


def suppressed(record: Record, smallest: int = SMALLEST_GROUP) -> Suppressed:
    """Remove data on single samples and on groups of fewer than ``smallest`` samples.

    The following entries are removed: the most exposed samples; histograms of scores, since a bin
    may contain one sample; usage counts of samples; groups, clients and classes with too few
    samples; source attacks with too few samples of a client; small class counts and small numbers
    of audited samples.

    A figure on too few samples loses its value and its curve. Trajectories of its client are
    removed, and controls on that client keep only their outcome. If samples belong to people, sizes
    are numbers of people. Figures from which a suppressed figure could be computed are removed too,
    see :mod:`fedaudit.pack.suppressing`. The function is idempotent.
    """
    findings_before, parts = record.findings, record.groups
    unlearned = record.where(topic=UNLEARNING)
    places, small, few = hidden_of(record, smallest)
    findings = [_figure(figure, smallest, places) for figure in findings_before]
    # This includes figures that were suppressed before, so that their curves cannot be restored.
    hidden = [figure for figure in findings if is_suppressed(figure)]
    curves, clients = set(map(_CURVE, hidden)), set(map(_CLIENT, hidden))
    owners = {_SOURCE(row) for row in record.sources if row.samples // len(row.clients) < smallest}
    n_clients = {_SOURCE(row): len(row.clients) for row in record.sources}
    few_on_fair_draw = {
        _SOURCE(row)
        for row in record.on_fair_sources
        if _SOURCE(row) in n_clients and row.seed is not None
        if row.samples // n_clients[_SOURCE(row)] < smallest
    }
    lists: dict[str, Sequence[object]] = {
        "curves": [row for row in record.curves if _CURVE(row) not in curves],
        "trajectories": [row for row in record.trajectories if _CLIENT(row) not in clients],
        "controls": [
            _control(row, smallest) if _CLIENT(row) in clients else row for row in record.controls
        ],
        "histograms": [],
        "exposed": [],
        "usage": [],
        "clients": [
            _client(row, smallest, few) for row in record.clients if row.samples >= smallest
        ],
        "sources": [_source(row, smallest) for row in record.sources if _SOURCE(row) not in owners],
    }
    groups = [row for row in parts if group_of(row) not in small]
    counts = {name: _count_changes(getattr(record, name), rows) for name, rows in lists.items()}
    hidden_unlearning = sum(_figure(row, smallest, places) is not row for row in unlearned)
    counts |= {
        "findings": _count_changes(findings_before, findings) + hidden_unlearning,
        "groups": _count_changes(parts, groups),
    }
    others = [
        _figure(row, smallest, places) if row.topic == UNLEARNING else row
        for row in record.others
        if row.topic != "source"
        or _SOURCE(row) not in owners | (few_on_fair_draw if row.contrast == FAIR else set())
    ]
    # A group is small by its number of people, not of samples.
    singles = [row for row in record.of_single_samples if _CURVE(row) not in curves]
    estimates = [*findings, *singles, *groups, *others]
    other_clients = _other_clients(record.other_clients, smallest)
    counts["clients"] += other_clients is not record.other_clients
    config = _config(record.config, smallest)
    update = {**lists, "estimates": estimates, "other_clients": other_clients, "config": config}
    return Suppressed(record.model_copy(update=update), counts)


def _figure(figure: Estimate, smallest: int, places: Collection[Place]) -> Estimate:
    if figure.value is None or place_of(figure) not in places:
        return figure
    nothing = dict.fromkeys(_FOLLOWS)
    return figure.model_copy(update={**nothing, "tests": [], "note": _note_on(figure, smallest)})


def is_suppressed(figure: Estimate) -> bool:
    """Return True if a figure has lost its value to :func:`suppressed`."""
    return figure.value is None and figure.note.startswith(_SUPPRESSED)


def least_suppressed(record: Record) -> Mapping[str, int]:
    """Count the entries that must have been suppressed, judging by the rest of the record.

    Removed list entries leave no trace, so only the count of findings is exact.
    """
    blank = [figure for figure in record.findings if is_suppressed(figure)]
    drawn = {(row.attack, row.defense, row.target, row.seed) for row in record.curves}
    # A run draws its curves against every kind of non-members, and one histogram.
    curves = {
        (row.attack, row.defense, row.contrast, row.target, row.seed)
        for row in blank
        if (row.attack, row.defense, row.target, row.seed) in drawn
    }
    return {
        "findings": len(blank),
        "curves": len(curves),
        "histograms": len(drawn),
        "clients": sum(not classes for classes in record.label_distributions),
        "sources": sum(
            sum(row.samples for row in row.classes) < row.samples for row in record.sources
        ),
    }


def total_suppressed(counts: Mapping[str, int], packed: Record) -> dict[str, int]:
    """Return the counts for a manifest, including entries that were suppressed before."""
    least = least_suppressed(packed)
    return {name: max(count, least.get(name, 0)) for name, count in counts.items()}


def wrongly_blank(record: Record, smallest: int) -> list[Estimate]:
    """Return figures that are marked as suppressed without reason, or for another group size."""
    blank = [figure for figure in record.findings if is_suppressed(figure)]
    places = hidden_of(record, smallest).places
    return [
        figure
        for figure in blank
        if figure.note != _note_on(figure, smallest) or place_of(figure) not in places
    ]


def _note_on(figure: Estimate, smallest: int) -> str:
    if min(figure.n_members, figure.n_nonmembers) < smallest:
        return f"{_SUPPRESSED}{smallest} samples on a side"
    return f"{_SUPPRESSED}{smallest} samples on a side of a part, which would follow from this"


def _control(control: ControlResult, smallest: int) -> ControlResult:
    """Return the control of a small client with its outcome only."""
    note = f"{_SUPPRESSED}{smallest} samples"
    if control.note == note and control.value is None:
        return control
    return control.model_copy(update={"value": None, "low": None, "high": None, "note": note})


def _client(row: ClientRow, smallest: int, few: Collection[int]) -> ClientRow:
    removed: dict[str, object] = {}
    if any(0 < count < smallest for count in row.class_counts):
        removed["class_counts"] = []
    if row.audited is not None and row.client in few:
        removed["audited"] = None
    return row.model_copy(update=removed) if removed else row


def _config(config: dict[str, object], smallest: int) -> dict[str, object]:
    """Return settings without sizes of small clients, which a live recording lists."""
    recording = config.get("recording")
    sizes = recording.get("sizes") if isinstance(recording, dict) else None
    if not isinstance(recording, dict) or not isinstance(sizes, dict):
        return config
    visible = {
        client: size for client, size in sizes.items() if isinstance(size, int) and size >= smallest
    }
    return {**config, "recording": {**recording, "sizes": visible}}


def _other_clients(row: OtherClients | None, smallest: int) -> OtherClients | None:
    """Return the row unless it reveals the size of a small client."""
    if row is None or row.fewest < smallest or 0 < row.audited < smallest:
        return None
    if not any(0 < count < smallest for count in row.class_counts):
        return row
    return row.model_copy(update={"class_counts": []})


def _source(result: SourceResult, smallest: int) -> SourceResult:
    counts = {row.label: row.samples for row in result.classes}
    small = hidden_classes(counts, result.samples, smallest)
    visible = [row for row in result.classes if row.label not in small]
    return (
        result
        if len(visible) == len(result.classes)
        else result.model_copy(update={"classes": visible})
    )


def _count_changes(before: Sequence[object], after: Sequence[object]) -> int:
    after_ids = set(map(id, after))
    return sum(id(entry) not in after_ids for entry in before)
