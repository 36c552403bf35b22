"""A record without what is about single samples or small groups of them.

Suppressed figures must not follow from what is left. An AUC is a mean over pairs of a member and a
non-member. That of all non-members is therefore a weighted mean of those of its parts, as are AUCs
over seeds, over clients and within classes: a single part that is missing follows from the whole
and the other parts. A part stays hidden if all wholes that rest on it are hidden too, or if at
least two parts of a whole are hidden that are no small group together.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from fedaudit.core.metric_names import AUC
from fedaudit.results.estimate import Coordinates, Estimate
from fedaudit.results.record import ClientRow, ControlResult, OtherClients, Record
from fedaudit.results.sources import FAIR, SourceResult
from fedaudit.results.unlearning import UNLEARNING

MIXED = "mixed"
_PARTS_OF_MIXED = ("unseen", "other_client")
Name = TypeVar("Name", bound=Hashable)
_MOVING = {"attack", "within", "contrast", "target", "seed"}
_KIND = tuple(name for name in Coordinates.model_fields if name not in _MOVING)


class Place(NamedTuple):
    """Metric and coordinates of a figure, whatever its attack: all attacks have the same samples.

    Attributes:
        kind: Metric and all other coordinates.
        within: What members and non-members have in common.
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
        """The smaller of both."""
        return min(self)


def place_of(figure: Estimate) -> Place:
    """Return the place of a figure."""
    kind = (figure.metric, figure.against, *(getattr(figure, name) for name in _KIND))
    return Place(kind, figure.within, figure.contrast, figure.target, figure.seed)


class Hidden(NamedTuple):
    """All that must be hidden of a record.

    Attributes:
        places: Of figures over all samples.
        groups: As :func:`group_of` names them.
        clients: Whose number of audited samples is hidden.
    """

    places: set[Place]
    groups: set[Hashable]
    clients: set[int]


def hidden_of(record: Record, smallest: int) -> Hidden:
    """Return what must be hidden of a record.

    Args:
        record: Any.
        smallest: Samples that a group must have to be shown.
    """
    figures = [*record.findings, *record.where(topic=UNLEARNING)]
    targets = {one.target for one in figures if one.target is not None}
    clients = _hidden_clients(record.clients, targets, smallest)
    divisions = _divisions(record.groups)
    wholes = {
        _division(one, by): Size(one.n_members, one.n_nonmembers)
        for one in record.findings
        if one.attack and one.metric == AUC and not one.within
        for by in ("class", "client")
    }
    groups = {
        division: _hidden_groups(division, sizes, clients, smallest, wholes.get(division))
        for division, sizes in divisions.items()
    }
    places = _hidden_places(figures, smallest)
    # Where the mean over classes is hidden, so are the classes that it follows from.
    gone = {
        _division(one, "class")
        for one in figures
        if one.within == "class" and one.metric == AUC and place_of(one) in places
    }
    groups |= {division: set(divisions[division]) for division in gone & divisions.keys()}
    named: set[Hashable] = {
        (division, name) for division, names in groups.items() for name in names
    }
    return Hidden(places, named, clients)


def _hidden_places(figures: Iterable[Estimate], smallest: int) -> set[Place]:
    """Return the places of figures that must be hidden.

    A whole over contrasts or seeds is hidden with any of its parts. One over clients stays if the
    hidden clients are at least two, and no small group together.
    """
    sizes: dict[Place, Size] = {}
    for one in figures:
        size = Size(one.n_members, one.n_nonmembers)
        if any(size):
            place = place_of(one)
            sizes[place] = min(sizes.get(place, size), size, key=lambda each: each.smaller)
    hidden = {place for place, size in sizes.items() if size.smaller < smallest}
    # Contrasts before clients before seeds: each step can hide parts of the next.
    hidden |= _mixed_of(hidden) & sizes.keys()
    clients = defaultdict[Place, dict[int, Size]](dict)
    for place in hidden:
        if place.target is not None:
            clients[_over_clients(place)][place.target] = sizes[place]
    of_runs = {place._replace(seed=None) for place in sizes if place.seed is not None}
    for place in sizes.keys() - hidden:
        gone = list(clients.get(_over_clients(place), {}).values())
        # A mean over runs rests on what each run shows, not on the clients.
        whole = place.target is None and not (place.seed is None and place in of_runs)
        if whole and gone and not _is_blurred(gone, smallest):
            hidden.add(place)
    hidden |= _mixed_of(hidden) & sizes.keys()
    hidden |= {place._replace(seed=None) for place in hidden} & sizes.keys()
    return hidden


def _over_clients(place: Place) -> Place:
    """Return the place over all clients; pairs within one client are all pairs of each."""
    return place._replace(within="class" if place.within == "class" else "", target=None)


def _mixed_of(hidden: Iterable[Place]) -> set[Place]:
    return {one._replace(contrast=MIXED) for one in hidden if one.contrast in _PARTS_OF_MIXED}


def _hidden_clients(rows: Sequence[ClientRow], targets: Collection[int], smallest: int) -> set[int]:
    sizes = {
        row.client: Size(row.audited, row.audited)
        for row in rows
        if row.audited and (row.client not in targets or row.audited < smallest)
    }
    return _with_complement(sizes, (), smallest)


class Division(NamedTuple):
    """One way of dividing the samples of a target into groups."""

    by: str
    defense: str
    view: str
    contrast: str
    target: int | None
    seed: int | None


def group_of(figure: Estimate) -> Hashable:
    """Return the name of a group in :attr:`Hidden.groups`."""
    return _division(figure, figure.by), figure.group


def _division(figure: Estimate, by: str) -> Division:
    return Division(by, figure.defense, figure.view, figure.contrast, figure.target, figure.seed)


def _divisions(groups: Iterable[Estimate]) -> dict[Division, dict[str, Size]]:
    found = defaultdict[Division, dict[str, Size]](dict)
    for one in groups:
        found[_division(one, one.by)][one.group] = Size(one.n_members, one.n_nonmembers)
    return found


def _hidden_groups(
    division: Division,
    sizes: Mapping[str, Size],
    clients: Collection[int],
    smallest: int,
    whole: Size | None,
) -> set[str]:
    if division.by == "class":
        return _with_complement(sizes, (), smallest, whole)
    # Clients have the target's members in common, so that only their own samples add up.
    if any(size.members < smallest for size in sizes.values()):
        return set(sizes)
    others = {name: Size(size.nonmembers, size.nonmembers) for name, size in sizes.items()}
    together = None if whole is None else Size(whole.nonmembers, whole.nonmembers)
    return _with_complement(others, {str(client) for client in clients}, smallest, together)


def hidden_classes(samples: Mapping[int, int], whole: int, smallest: int) -> set[int]:
    """Return classes whose counts must be hidden.

    Args:
        samples: Of each class.
        whole: Samples of all classes together.
        smallest: Samples that a class must have to be shown.
    """
    sizes = {label: Size(count, count) for label, count in samples.items() if count}
    return _with_complement(sizes, (), smallest, Size(whole, whole))


def _with_complement(
    sizes: Mapping[Name, Size],
    given: Collection[Name],
    smallest: int,
    whole: Size | None = None,
) -> set[Name]:
    """Return small groups and those given, and the next larger ones until none of them follows."""
    hidden = {name for name, size in sizes.items() if size.smaller < smallest or name in given}
    rising = sorted(sizes.keys() - hidden, key=lambda name: (sizes[name].smaller, str(name)))
    for name in rising:
        gone = [sizes[one] for one in hidden]
        shown = [size for one, size in sizes.items() if one not in hidden]
        if (not gone or _is_blurred(gone, smallest)) and not _leaves_few(shown, whole, smallest):
            break
        hidden.add(name)
    return hidden


def _is_blurred(gone: Sequence[Size], smallest: int) -> bool:
    """Return whether what is gone is several groups that are not small together."""
    return len(gone) > 1 and _sum(gone).smaller >= smallest


def _leaves_few(shown: Sequence[Size], whole: Size | None, least: int) -> bool:
    """Return whether what a whole has beyond the groups that are shown is a small group."""
    if whole is None:
        return False
    shown_size = _sum(shown)
    rest = Size(whole.members - shown_size.members, whole.nonmembers - shown_size.nonmembers)
    return 0 < rest.smaller < least


def _sum(sizes: Sequence[Size]) -> Size:
    members, nonmembers = zip(*sizes, strict=True) if sizes else ((), ())
    return Size(sum(members), sum(nonmembers))


_SUPPRESSED = "suppressed: fewer than "

_FOLLOWS = (
    *("value", "low", "high", "at_threshold", "further", "ceiling", "realised_fpr"),
    "labels_alone",
)
"""Fields of a figure that show its value or follow from the same samples."""

SMALLEST_GROUP = 10
"""Fewer samples than this are a small group, unless somebody says otherwise."""


class Suppressed(NamedTuple):
    """A record that may leave the house.

    Attributes:
        record: Without what is suppressed.
        counts: How many entries of each of its lists are gone or have less in them.
    """

    record: Record
    counts: Mapping[str, int]


def suppressed(record: Record, smallest: int = SMALLEST_GROUP) -> Suppressed:
    """The record without samples' numbers and without groups of fewer than so many samples.

    Gone are the most exposed samples, histograms of scores (a bin may hold one sample), how often
    samples were used, groups and clients with too few samples, source attacks that asked about too
    few of each client, and classes of those that had too few. A figure on too few samples loses its
    value, its curve and the trajectories of its client, and controls on that client lose all but
    their outcome; a client with few of some class loses its class counts, and one with few audited
    samples their number. Of people, they and not their samples are counted. What a suppressed
    figure would follow from goes too, see :mod:`fedaudit.pack.suppressing`. To suppress the same
    once more changes nothing.

    Args:
        record: Any.
        smallest: Samples that a group must have to be shown.
    """
    whole, parts = record.findings, record.groups
    unlearned = record.where(topic=UNLEARNING)
    places, small, few = hidden_of(record, smallest)
    findings = [_figure(figure, smallest, places) for figure in whole]
    # Also what was suppressed before, so that nothing that goes with it can be put back.
    hidden = [figure for figure in findings if is_suppressed(figure)]
    curves = {(f.attack, f.defense, f.contrast, f.target, f.seed) for f in hidden}
    clients = {(f.defense, f.target, f.seed) for f in hidden}
    owners = {
        (one.attack, one.defense, one.view)
        for one in record.sources
        if one.samples // len(one.clients) < smallest
    }
    asked = {(one.attack, one.defense, one.view): len(one.clients) for one in record.sources}
    few_on_fair_draw = {
        key
        for one in record.on_fair_sources
        if (key := (one.attack, one.defense, one.view)) in asked
        if one.seed is not None and one.samples // asked[key] < smallest
    }
    lists: dict[str, Sequence[object]] = {
        "curves": [
            one
            for one in record.curves
            if (one.attack, one.defense, one.contrast, one.target, one.seed) not in curves
        ],
        "trajectories": [
            one for one in record.trajectories if (one.defense, one.target, one.seed) not in clients
        ],
        "controls": [
            _control(one, smallest) if (one.defense, one.target, one.seed) in clients else one
            for one in record.controls
        ],
        "histograms": [],
        "exposed": [],
        "usage": [],
        "clients": [
            _client(row, smallest, few) for row in record.clients if row.samples >= smallest
        ],
        "sources": [
            _source(one, smallest)
            for one in record.sources
            if (one.attack, one.defense, one.view) not in owners
        ],
    }
    groups = [one for one in parts if group_of(one) not in small]
    counts = {name: _touched(getattr(record, name), rows) for name, rows in lists.items()}
    gone = sum(_figure(one, smallest, places) is not one for one in unlearned)
    counts |= {"findings": _touched(whole, findings) + gone, "groups": _touched(parts, groups)}
    others = [
        _figure(one, smallest, places) if one.topic == UNLEARNING else one
        for one in record.others
        if one.topic != "source"
        or (
            (one.attack, one.defense, one.view) not in owners
            and not (
                one.contrast == FAIR and (one.attack, one.defense, one.view) in few_on_fair_draw
            )
        )
    ]
    # On more samples than there are people, who are what makes a group small.
    singles = [
        one
        for one in record.of_single_samples
        if (one.attack, one.defense, one.contrast, one.target, one.seed) not in curves
    ]
    kept = [*findings, *singles, *groups, *others]
    together = _other_clients(record.other_clients, smallest)
    counts["clients"] += together is not record.other_clients
    config = _config(record.config, smallest)
    update = {**lists, "estimates": kept, "other_clients": together, "config": config}
    return Suppressed(record.model_copy(update=update), counts)


def _figure(figure: Estimate, smallest: int, places: Collection[Place]) -> Estimate:
    if figure.value is None or place_of(figure) not in places:
        return figure
    nothing = dict.fromkeys(_FOLLOWS)
    return figure.model_copy(update={**nothing, "tests": [], "note": _note_on(figure, smallest)})


def is_suppressed(figure: Estimate) -> bool:
    """True if a figure has lost its value to :func:`suppressed`."""
    return figure.value is None and figure.note.startswith(_SUPPRESSED)


def least_suppressed(record: Record) -> Mapping[str, int]:
    """Numbers of entries of some lists that must have been suppressed, as what is left shows.

    What is gone as a whole leaves no trace, so that no count but that of findings is exact.
    """
    blank = [figure for figure in record.findings if is_suppressed(figure)]
    drawn = {(one.attack, one.defense, one.target, one.seed) for one in record.curves}
    # A run draws its curves against every kind of non-members, and one histogram.
    curves = {
        (one.attack, one.defense, one.contrast, one.target, one.seed)
        for one in blank
        if (one.attack, one.defense, one.target, one.seed) in drawn
    }
    return {
        "findings": len(blank),
        "curves": len(curves),
        "histograms": len(drawn),
        "clients": sum(not classes for classes in record.label_distributions),
        "sources": sum(
            sum(row.samples for row in one.classes) < one.samples for one in record.sources
        ),
    }


def counted(counts: Mapping[str, int], packed: Record) -> dict[str, int]:
    """The counts of a manifest: a record that was suppressed before shows that some are gone."""
    least = least_suppressed(packed)
    return {name: max(count, least.get(name, 0)) for name, count in counts.items()}


def wrongly_blank(record: Record, smallest: int) -> list[Estimate]:
    """Figures called suppressed that are on samples enough, or by another size of groups.

    Args:
        record: As it is packed.
        smallest: Samples that a group must have to be shown.
    """
    blank = [figure for figure in record.findings if is_suppressed(figure)]
    places = hidden_of(record, smallest).places
    return [
        one for one in blank if one.note != _note_on(one, smallest) or place_of(one) not in places
    ]


def _note_on(figure: Estimate, smallest: int) -> str:
    if min(figure.n_members, figure.n_nonmembers) < smallest:
        return f"{_SUPPRESSED}{smallest} samples on a side"
    return f"{_SUPPRESSED}{smallest} samples on a side of a part, which would follow from this"


def _control(control: ControlResult, smallest: int) -> ControlResult:
    """Return a control on a small client with its outcome alone."""
    note = f"{_SUPPRESSED}{smallest} samples"
    if control.note == note and control.value is None:
        return control
    return control.model_copy(update={"value": None, "low": None, "high": None, "note": note})


def _client(row: ClientRow, smallest: int, few: Collection[int]) -> ClientRow:
    gone: dict[str, object] = {}
    if any(0 < count < smallest for count in row.class_counts):
        gone["class_counts"] = []
    if row.audited is not None and row.client in few:
        gone["audited"] = None
    return row.model_copy(update=gone) if gone else row


def _config(config: dict[str, object], smallest: int) -> dict[str, object]:
    """Return settings without sizes of small clients, which a live recording lists."""
    recording = config.get("recording")
    sizes = recording.get("sizes") if isinstance(recording, dict) else None
    if not isinstance(recording, dict) or not isinstance(sizes, dict):
        return config
    shown = {
        client: size for client, size in sizes.items() if isinstance(size, int) and size >= smallest
    }
    return {**config, "recording": {**recording, "sizes": shown}}


def _other_clients(row: OtherClients | None, smallest: int) -> OtherClients | None:
    """The row unless it tells the size of a client that is too small for one of its own."""
    if row is None or row.fewest < smallest or 0 < row.audited < smallest:
        return None
    if not any(0 < count < smallest for count in row.class_counts):
        return row
    return row.model_copy(update={"class_counts": []})


def _source(one: SourceResult, smallest: int) -> SourceResult:
    counts = {row.label: row.samples for row in one.classes}
    small = hidden_classes(counts, one.samples, smallest)
    shown = [row for row in one.classes if row.label not in small]
    return one if len(shown) == len(one.classes) else one.model_copy(update={"classes": shown})


def _touched(before: Sequence[object], after: Sequence[object]) -> int:
    kept = set(map(id, after))
    return sum(id(entry) not in kept for entry in before)
