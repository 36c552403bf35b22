"""Figures that must go so that suppressed ones cannot be calculated from what is left.

An AUC is a mean over pairs of a member and a non-member. That of all non-members is therefore a
weighted mean of those of its parts, as are AUCs over seeds, over clients and within classes: a
single part that is missing follows from the whole and the other parts. A part stays hidden if all
wholes that rest on it are hidden too, or if at least two parts of a whole are hidden that are no
small group together.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from fedaudit.core.metric_names import AUC
from fedaudit.results.estimate import Coordinates, Estimate
from fedaudit.results.record import ClientRow, Record
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
    """Return clients whose number of audited samples must be hidden.

    The number over all clients is known from the figures, and so is that of each target.
    """
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
