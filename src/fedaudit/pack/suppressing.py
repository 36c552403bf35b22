"""A record without what is about single samples or small groups of them."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fedaudit.pack.complementary import (
    Place,
    group_of,
    hidden_classes,
    hidden_of,
    place_of,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import ClientRow, ControlResult, OtherClients, Record
from fedaudit.results.sources import FAIR, SourceResult
from fedaudit.results.unlearning import UNLEARNING

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
    figure would follow from goes too, see :mod:`fedaudit.pack.complementary`. To suppress the same
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

    Args:
        record: As it is packed.
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
    """The counts of a manifest: a record that was suppressed before shows that some are gone.

    Args:
        counts: Of :func:`suppressed`.
        packed: What it left.
    """
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
    """Entries that are no longer there as they were."""
    kept = set(map(id, after))
    return sum(id(entry) not in kept for entry in before)
