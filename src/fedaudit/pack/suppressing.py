"""Suppression of single samples and small groups in a record.

A reader must not be able to compute suppressed estimates from the remaining ones. An AUC is a mean
over pairs of a member and a non-member. The AUC against all non-members is therefore a weighted
mean of the AUCs against each kind of non-members, its *parts*. The same is true of AUCs over seeds,
over clients and within classes. If only one part is missing, it can be computed from the total and
the other parts. To keep a part hidden, every total that includes it is hidden too. A total stays
visible only if at least two of its parts are hidden, and these have enough samples together.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

from fedaudit.core.metric_names import AUC
from fedaudit.results.estimate import Coordinates, Estimate
from fedaudit.results.fields import SMALLEST_GROUP
from fedaudit.results.record import ClientRow, ControlResult, OtherClients, Record
from fedaudit.results.runs import FAIR_DRAW, SourceResult
from fedaudit.results.unlearning import UNLEARNING

MIXED = "mixed"
_PARTS_OF_MIXED = ("unseen", "other_client")
Name = TypeVar("Name", bound=Hashable)
_SEPARATE_COORDINATES = {"attack", "within", "contrast", "target", "seed"}
_KIND = tuple(name for name in Coordinates.model_fields if name not in _SEPARATE_COORDINATES)
_CURVE = attrgetter("attack", "defense", "contrast", "target", "seed")
_CLIENT = attrgetter("defense", "target", "seed")
_SOURCE = attrgetter("attack", "defense", "view")
"""Coordinates that identify a curve, a client and a source attack in a record, respectively."""


class FigureKey(NamedTuple):
    """Metric and coordinates of an estimate, except the attack: all attacks have the same samples.

    Attributes:
        kind: Metric and the remaining coordinates.
        within: Property that members and non-members share, such as "class".
        contrast: Kind of non-members.
        target: Audited client; None for an estimate over all clients.
        seed: Seed of the run; None for an estimate over all runs.
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


def figure_key(figure: Estimate) -> FigureKey:
    """Return the metric and the coordinates of an estimate, except its attack."""
    kind = (figure.metric, figure.against, *(getattr(figure, name) for name in _KIND))
    return FigureKey(kind, figure.within, figure.contrast, figure.target, figure.seed)


class HiddenParts(NamedTuple):
    """Parts of a record that must be hidden.

    Attributes:
        estimates: Keys of hidden estimates over all samples.
        groups: Hidden groups, in the form of :func:`group_of`.
        clients: Clients whose number of audited samples is hidden.
    """

    estimates: set[FigureKey]
    groups: set[Hashable]
    clients: set[int]


def hidden_parts(record: Record, smallest: int) -> HiddenParts:
    """Return the parts of a record that reveal groups of fewer than ``smallest`` samples."""
    figures = [*record.findings, *record.where(topic=UNLEARNING)]
    targets = {figure.target for figure in figures if figure.target is not None}
    clients = _hidden_clients(record.clients, targets, smallest)
    divisions = _divisions(record.groups)
    totals = {
        _division(figure, division): Size(figure.n_members, figure.n_nonmembers)
        for figure in record.findings
        if figure.is_of_attack and figure.metric == AUC and not figure.within
        for division in ("class", "client")
    }
    groups = {
        division: _hidden_groups(division, sizes, clients, smallest, totals.get(division))
        for division, sizes in divisions.items()
    }
    keys = _hidden_keys(figures, smallest)
    # The mean over classes can be computed from its classes. If it is hidden, they are hidden too.
    hidden_means = {
        _division(figure, "class")
        for figure in figures
        if figure.within == "class" and figure.metric == AUC and figure_key(figure) in keys
    }
    groups |= {division: set(divisions[division]) for division in hidden_means & divisions.keys()}
    hidden_groups: set[Hashable] = {
        (division, name) for division, names in groups.items() for name in names
    }
    return HiddenParts(keys, hidden_groups, clients)


def _hidden_keys(figures: Iterable[Estimate], smallest: int) -> set[FigureKey]:
    """Return the keys of estimates that must be hidden.

    An estimate over contrasts or seeds is hidden if any of its parts is hidden. An estimate over
    clients stays visible if at least two clients are hidden that have enough samples together.
    """
    sizes: dict[FigureKey, Size] = {}
    for figure in figures:
        size = Size(figure.n_members, figure.n_nonmembers)
        if any(size):
            key = figure_key(figure)
            sizes[key] = min(sizes.get(key, size), size, key=lambda size: size.smaller)
    hidden = {key for key, size in sizes.items() if size.smaller < smallest}
    # Totals are hidden over contrasts, then clients, then seeds: a hidden total of one step can be
    # a part in the next step.
    hidden |= _over_contrasts(hidden) & sizes.keys()
    hidden_clients = defaultdict[FigureKey, dict[int, Size]](dict)
    for key in hidden:
        if key.target is not None:
            hidden_clients[_over_clients(key)][key.target] = sizes[key]
    over_runs = {key._replace(seed=None) for key in sizes if key.seed is not None}
    for key in sizes.keys() - hidden:
        hidden_sizes = list(hidden_clients.get(_over_clients(key), {}).values())
        # A mean over runs is computed from the runs' estimates, not from the clients' estimates.
        is_total = key.target is None and not (key.seed is None and key in over_runs)
        if is_total and hidden_sizes and not _are_inseparable(hidden_sizes, smallest):
            hidden.add(key)
    hidden |= _over_contrasts(hidden) & sizes.keys()
    hidden |= {key._replace(seed=None) for key in hidden} & sizes.keys()
    return hidden


def _over_clients(key: FigureKey) -> FigureKey:
    """Return the key of the estimate over all clients that includes an estimate."""
    return key._replace(within="class" if key.within == "class" else "", target=None)


def _over_contrasts(keys: Iterable[FigureKey]) -> set[FigureKey]:
    """Return the keys of the estimates over all non-members that include some estimates."""
    return {key._replace(contrast=MIXED) for key in keys if key.contrast in _PARTS_OF_MIXED}


def _hidden_clients(rows: Sequence[ClientRow], targets: Collection[int], smallest: int) -> set[int]:
    sizes = {
        row.client: Size(row.audited, row.audited)
        for row in rows
        if row.audited and (row.client not in targets or row.audited < smallest)
    }
    return _with_complement(sizes, (), smallest)


class Division(NamedTuple):
    """Division of a target's samples into groups, such as classes, for estimates of one setting.

    Attributes:
        by: What divides the samples: "class" or "client".
        defense: Defense of the target.
        view: The adversary's view.
        contrast: Kind of non-members.
        target: Audited client; None for all clients.
        seed: Seed of the run; None for all runs.
    """

    by: str
    defense: str
    view: str
    contrast: str
    target: int | None
    seed: int | None


def group_of(figure: Estimate) -> Hashable:
    """Return the division and name of the group that an estimate is about."""
    return _division(figure, figure.by), figure.group


def _division(figure: Estimate, by: str) -> Division:
    return Division(by, figure.defense, figure.view, figure.contrast, figure.target, figure.seed)


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
    # The estimates against single clients all have the target's members. Only the non-members
    # differ, and only their numbers add up to a total.
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
    """Return the names of groups to hide, so that no small group can be computed from the others.

    Larger groups are also hidden, the smallest first, until this is the case.

    Args:
        sizes: Size of each group.
        always: Names of groups that are hidden in any case.
        smallest: Smaller groups are hidden.
        total: Size of all groups together, if a reader knows it.
    """
    hidden = {name for name, size in sizes.items() if size.smaller < smallest or name in always}
    ascending = sorted(sizes.keys() - hidden, key=lambda name: (sizes[name].smaller, str(name)))
    for name in ascending:
        hidden_sizes = [sizes[group] for group in hidden]
        visible_sizes = [size for group, size in sizes.items() if group not in hidden]
        if (
            not hidden_sizes or _are_inseparable(hidden_sizes, smallest)
        ) and not _leaves_small_remainder(visible_sizes, total, smallest):
            break
        hidden.add(name)
    return hidden


def _are_inseparable(hidden_sizes: Sequence[Size], smallest: int) -> bool:
    """Return True if several groups are hidden, and these have enough samples together."""
    return len(hidden_sizes) > 1 and _sum(hidden_sizes).smaller >= smallest


def _leaves_small_remainder(
    visible_sizes: Sequence[Size], total: Size | None, smallest: int
) -> bool:
    """Return True if the total minus the visible groups is a small group."""
    if total is None:
        return False
    visible = _sum(visible_sizes)
    remainder = Size(total.members - visible.members, total.nonmembers - visible.nonmembers)
    return 0 < remainder.smaller < smallest


def _sum(sizes: Sequence[Size]) -> Size:
    members, nonmembers = zip(*sizes, strict=True) if sizes else ((), ())
    return Size(sum(members), sum(nonmembers))


_SUPPRESSED = "suppressed: fewer than "

_VALUE_FIELDS = (
    *("value", "low", "high", "at_threshold", "further", "ceiling", "realised_fpr"),
    "labels_alone",
)
"""Fields of an estimate that reveal its value, or that are computed from the same samples."""


class Suppressed(NamedTuple):
    """Record without small groups.

    Attributes:
        record: The record without suppressed parts.
        counts: Number of removed or changed entries in each of its lists.
    """

    record: Record
    counts: Mapping[str, int]


def suppress_small_groups(record: Record, smallest: int = SMALLEST_GROUP) -> Suppressed:
    """Remove data on single samples and on groups of fewer than ``smallest`` samples.

    The following entries are removed: the most exposed samples; histograms of scores, since a bin
    may contain a single sample; usage counts of samples; groups, clients and classes with too few
    samples; source attacks with too few samples of a client; small class counts, confusion matrices
    with small counts, and small numbers of audited samples.

    An estimate on too few samples loses its value and its curve. Trajectories of its client are
    removed, and controls on that client keep only their outcome. If samples belong to people, sizes
    are numbers of people. Estimates from which a suppressed estimate could be computed are removed
    too, see :mod:`fedaudit.pack.suppressing`. A second call changes nothing.
    """
    keys, small_groups, small_clients = hidden_parts(record, smallest)
    findings = [_figure(figure, smallest, keys) for figure in record.findings]
    # Estimates that were suppressed earlier are included, so that their curves are removed too.
    hidden = [figure for figure in findings if is_suppressed(figure)]
    curves, clients = set(map(_CURVE, hidden)), set(map(_CLIENT, hidden))
    few_sources = {
        _SOURCE(row) for row in record.sources if row.samples // len(row.clients) < smallest
    }
    n_clients = {_SOURCE(row): len(row.clients) for row in record.sources}
    few_fair_sources = {
        _SOURCE(row)
        for row in record.fair_source_estimates
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
            _client(row, smallest, small_clients)
            for row in record.clients
            if row.samples >= smallest
        ],
        "sources": [
            _source(row, smallest) for row in record.sources if _SOURCE(row) not in few_sources
        ],
    }
    groups = [row for row in record.groups if group_of(row) not in small_groups]
    counts = {name: _count_changes(getattr(record, name), rows) for name, rows in lists.items()}
    hidden_unlearning = sum(
        _figure(row, smallest, keys) is not row for row in record.where(topic=UNLEARNING)
    )
    counts |= {
        "findings": _count_changes(record.findings, findings) + hidden_unlearning,
        "groups": _count_changes(record.groups, groups),
    }
    others = [
        _figure(row, smallest, keys) if row.topic == UNLEARNING else row
        for row in record.others
        if row.topic != "source"
        or _SOURCE(row)
        not in few_sources | (few_fair_sources if row.contrast == FAIR_DRAW else set())
    ]
    # Estimates on single samples of people have numbers of samples, so that they are hidden
    # together with the estimate on people.
    single_samples = [row for row in record.of_single_samples if _CURVE(row) not in curves]
    estimates = [*findings, *single_samples, *groups, *others]
    other_clients = _other_clients(record.other_clients, smallest)
    counts["clients"] += other_clients is not record.other_clients
    people = _people(record, smallest)
    counts["clients"] += people != record.people
    config = _config(record.config, smallest)
    update = {
        **lists,
        "estimates": estimates,
        "other_clients": other_clients,
        "people": people,
        "config": config,
    }
    return Suppressed(record.model_copy(update=update), counts)


def _figure(figure: Estimate, smallest: int, keys: Collection[FigureKey]) -> Estimate:
    if figure.value is None or figure_key(figure) not in keys:
        return figure
    removed = dict.fromkeys(_VALUE_FIELDS)
    return figure.model_copy(update={**removed, "tests": [], "note": _note_on(figure, smallest)})


def is_suppressed(figure: Estimate) -> bool:
    """Return True if an estimate has lost its value to :func:`suppress_small_groups`."""
    return figure.value is None and figure.note.startswith(_SUPPRESSED)


def least_suppressed(record: Record) -> Mapping[str, int]:
    """Return the minimum number of entries that must have been suppressed in a packed record.

    Removed entries cannot be seen in a record, so that only the number of findings is exact.
    """
    suppressed_figures = [figure for figure in record.findings if is_suppressed(figure)]
    runs_with_curves = {(row.attack, row.defense, row.target, row.seed) for row in record.curves}
    # A run with a curve had curves against every kind of non-members, and one histogram.
    curves = {
        (row.attack, row.defense, row.contrast, row.target, row.seed)
        for row in suppressed_figures
        if (row.attack, row.defense, row.target, row.seed) in runs_with_curves
    }
    return {
        "findings": len(suppressed_figures),
        "curves": len(curves),
        "histograms": len(runs_with_curves),
        "clients": sum(not classes for classes in record.label_distributions),
        "sources": sum(
            not row.confusion or sum(row.samples for row in row.classes) < row.samples
            for row in record.sources
        ),
    }


def total_suppressed(counts: Mapping[str, int], packed: Record) -> dict[str, int]:
    """Return the counts for a manifest, including entries that were suppressed before."""
    least = least_suppressed(packed)
    return {name: max(count, least.get(name, 0)) for name, count in counts.items()}


def wrongly_suppressed(record: Record, smallest: int) -> list[Estimate]:
    """Return estimates that are marked as suppressed without reason, or for another group size."""
    keys = hidden_parts(record, smallest).estimates
    return [
        figure
        for figure in record.findings
        if is_suppressed(figure)
        and (figure.note != _note_on(figure, smallest) or figure_key(figure) not in keys)
    ]


def _note_on(figure: Estimate, smallest: int) -> str:
    if min(figure.n_members, figure.n_nonmembers) < smallest:
        return f"{_SUPPRESSED}{smallest} samples on a side"
    return f"{_SUPPRESSED}{smallest} samples on a side of a part, which would follow from this"


def _control(control: ControlResult, smallest: int) -> ControlResult:
    """Return only the outcome of a control on a small client."""
    note = f"{_SUPPRESSED}{smallest} samples"
    if control.note == note and control.value is None:
        return control
    return control.model_copy(update={"value": None, "low": None, "high": None, "note": note})


def _client(row: ClientRow, smallest: int, small_clients: Collection[int]) -> ClientRow:
    removed: dict[str, object] = {}
    if any(0 < count < smallest for count in row.class_counts):
        removed["class_counts"] = []
    if row.audited is not None and row.client in small_clients:
        removed["audited"] = None
    if row.people is not None and row.people < smallest:
        removed["people"] = None
    return row.model_copy(update=removed) if removed else row


def _people(record: Record, smallest: int) -> int | None:
    """Return the number of people, unless a small number could be calculated from it."""
    numbers = [row.people or 0 for row in record.clients]
    return record.people if record.people and min(numbers, default=0) >= smallest else None


def _config(config: dict[str, object], smallest: int) -> dict[str, object]:
    """Remove the sizes of small clients, which the settings of a live recording list."""
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
    removed: dict[str, object] = {}
    if any(0 < count < smallest for row in result.confusion for count in row):
        # A single cell follows from the others, the success rate and the clients' samples.
        removed["confusion"] = []
    counts = {row.label: row.samples for row in result.classes}
    small = hidden_classes(counts, result.samples, smallest)
    visible = [row for row in result.classes if row.label not in small]
    if len(visible) < len(result.classes):
        removed["classes"] = visible
    return result.model_copy(update=removed) if removed else result


def _count_changes(before: Sequence[object], after: Sequence[object]) -> int:
    after_ids = set(map(id, after))
    return sum(id(entry) not in after_ids for entry in before)
