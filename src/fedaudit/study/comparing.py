"""Comparison of the records of several studies: privacy-utility trade-offs of defenses.

A *row* of a comparison is one defense of one record. Its *base* is the row with which it is
compared, usually the undefended row with the same other settings. For each row, the comparison also
has the mean over attacks, and the strongest attack.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import AUC, rate_of
from fedaudit.plan.optional import NONE, PartSection
from fedaudit.plan.sections import Study
from fedaudit.plan.values import study_from
from fedaudit.results.aggregate import (
    Value,
    Values,
    average_each,
    describe_runs,
    difference,
    further_runs_interval,
    mean_over_seeds,
    restrict_targets,
    seeds_of,
    subtract_estimates,
)
from fedaudit.results.comparison import (
    EVERY_ATTACK,
    NOT_SET,
    OF_SEVERAL,
    STRONGEST_ATTACK,
    AttackEntry,
    Comparison,
    FigureEntry,
    Row,
    Source,
)
from fedaudit.results.estimate import NO_DEFENSE, TEST_ACCURACY, Difference, Estimate, errors_cancel
from fedaudit.results.guessing import above_chance, mark_doubts, most_frequent_class
from fedaudit.results.older import resolve_older_settings
from fedaudit.results.read import read_comparison
from fedaudit.results.record import Record
from fedaudit.results.tradeoffs import (
    AttackKey,
    Direction,
    Directions,
    average_attacks,
    directions_of,
    strongest_attacks,
    tradeoff_fronts,
    undefended_base,
)

EntryRole = Literal["inside", "outside", "reference"]
"""Clients of an entry. "Inside" are clients that use the row's defense, and "outside" its other
clients. "Reference" are the clients of the base row with which another row is compared."""

Targets = frozenset[int | None]

_IGNORED_SETTINGS = (
    *("name", "about", "hours", "seeds", "defense", "attacks", "attack_set", "shadow"),
    "references",
)
"""Settings that may differ between a row and its base."""

_FIGURE_SETTINGS = ("evaluation", "null_members")
"""Evaluation settings that must be equal in a row and its base."""

NOTHING_COUNTS = "without a defense, no attack is above chance level, so there is no average"
NO_UNDEFENDED_ROW = "there is no row without a defense, which decides the attacks to average"
NO_SHARED_RUN = "no run has every attack that counts, so there is no average"


class _AttackEstimates(NamedTuple):
    """Estimates of a row for one attack, contrast and metric.

    Attributes:
        values: Estimates by seed and target; estimates over all runs have the seed None.
        note: Reason why an estimate is missing; None if all estimates have values.
        above_chance: Targets whose estimate is above chance level by both the test and the
            interval.
        significant: Targets whose estimate is above chance level by the test.
        has_tests: Whether any estimate was tested.
        directions: For each target, 1 if the attack is above chance level, -1 if its AUC is below
            it, and 0 otherwise, from the estimates of this row.
        combined_attacks: For a mean or a strongest attack, the attacks from which it is computed,
            by target.
    """

    values: Values
    note: str | None = None
    above_chance: Targets = frozenset()
    significant: Targets = frozenset()
    has_tests: bool = False
    directions: Mapping[int | None, Direction] = {}
    combined_attacks: Mapping[int | None, tuple[str, ...]] = {}


_RowEstimates = dict[AttackKey, _AttackEstimates]
_NO_FIGURES = _AttackEstimates({})


def compare_records(records: Sequence[Record], paths: Sequence[str] = ()) -> Comparison:
    """Compare studies: attacks, accuracy, clients without the defense, and Pareto fronts.

    Args:
        records: At least two records. The first row is the base of rows that have no matching
            undefended row.
        paths: Paths of the records relative to the comparison file; optional.

    Raises:
        BadInput: There are fewer than two records, one is a record of games, or some audit people
            and others samples.
    """
    games = next((record for record in records if record.kind == "games"), None)
    if games is not None:
        raise BadInput(
            f"{games.name[:80]!r} is a record of games, but only studies can be compared; the "
            "report of games compares their settings"
        )
    if len(records) < 2:
        raise BadInput(
            f"a comparison needs at least 2 records, got {len(records)}; write a report of a "
            "single record instead"
        )
    if len({record.unit for record in records if record.findings}) > 1:
        raise BadInput(
            "some of these records audit people and others single samples, whose estimates "
            "cannot be compared; compare records of the same unit (audit.unit)"
        )
    records = [mark_doubts(record) for record in records]
    rows = rows_of(records)
    figures_by_attack = [_attack_estimates(records[row.source], row.family) for row in rows]
    figures = _with_combined_estimates(rows, figures_by_attack)
    return Comparison(
        sources=[
            Source(name=record.name, content_hash=record.content_hash, path=path)
            for record, path in zip(records, paths or [""] * len(records), strict=True)
        ],
        rows=rows,
        entries=_entries(rows, figures),
        figures=figure_entries(rows, records),
        fronts=tradeoff_fronts(
            rows,
            [
                {key: attack.values for key, attack in row_figures.items() if attack.values}
                for row_figures in figures
            ],
            [_accuracy(records[row.source], row.family) for row in rows],
            [
                _defending_clients(row, row_figures)
                for row, row_figures in zip(rows, figures, strict=True)
            ],
        ),
    )


def relative_path(path: Path, folder: Path) -> str:
    """Return a path relative to a folder, with forward slashes."""
    return Path(os.path.relpath(path, folder)).as_posix()


def record_paths(comparison: Path) -> list[Path]:
    """Return the paths of the records of a stored comparison.

    Raises:
        BadInput: A record no longer exists, or the comparison does not have its path.
        Damaged: The comparison cannot be read.
    """
    paths = []
    for source in read_comparison(comparison).sources:
        path = comparison.parent / source.path
        if not source.path or not path.is_file():
            raise BadInput(
                f"{comparison} needs the record {source.name[:80]!r}, which is not at {path}; move "
                "it back, or give the paths of the records instead"
            )
        paths.append(path)
    return paths


def _keys(figures: Sequence[_RowEstimates]) -> list[AttackKey]:
    """Return the keys of all rows. Attacks without a value in any row come last."""
    items = [(key, attack) for row_figures in figures for key, attack in row_figures.items()]
    with_values = [key for key, attack in items if attack.values]
    with_notes = [key for key, attack in items if attack.note is not None]
    return list(dict.fromkeys([*with_values, *with_notes]))


def _with_combined_estimates(
    rows: Sequence[Row], figures: Sequence[_RowEstimates]
) -> list[_RowEstimates]:
    """Add the mean over attacks and the strongest attack to each row.

    The mean is over the attacks that all rows have and that are above chance level in the
    undefended row. It is added if all rows have several attacks in common.
    """
    keys, extended = _keys(figures), []
    for index, row_figures in enumerate(figures):
        undefended = _undefended(rows, index)
        base = {} if undefended is None else figures[undefended]
        directions = {key: attack.directions for key, attack in base.items()}
        combined: _RowEstimates = {}
        for contrast, metric in dict.fromkeys((key.contrast, key.metric) for key in keys):
            attack_keys = [key for key in keys if (key.contrast, key.metric) == (contrast, metric)]
            shared_keys = [
                key
                for key in attack_keys
                if all(row.get(key, _NO_FIGURES).values for row in figures)
            ]
            if len(shared_keys) > 1:
                mean = _mean_attack(shared_keys, row_figures, directions)
                if undefended is None and not mean.values:
                    mean = mean._replace(note=NO_UNDEFENDED_ROW)
                combined[AttackKey(EVERY_ATTACK, contrast, metric)] = mean
            best = _strongest_attack(attack_keys, row_figures, directions)
            combined[AttackKey(STRONGEST_ATTACK, contrast, metric)] = best
        extended.append(row_figures | combined)
    return extended


def _mean_attack(
    keys: Sequence[AttackKey], figures: _RowEstimates, directions: Directions
) -> _AttackEstimates:
    """Return the mean over the attacks that are above chance level without a defense."""
    mean = average_attacks(
        _values_by_attack(keys, figures), _directions_by_attack(keys, directions)
    )
    note = None
    if not mean.values:
        note = NO_SHARED_RUN if mean.attacks else NOTHING_COUNTS
    return _AttackEstimates(mean.values, note, combined_attacks=mean.attacks)


def _strongest_attack(
    keys: Sequence[AttackKey], figures: _RowEstimates, directions: Directions
) -> _AttackEstimates:
    best = strongest_attacks(
        _values_by_attack(keys, figures), _directions_by_attack(keys, directions)
    )
    attacks = [figures[key] for key in keys if key in figures]
    above_chance = {
        target for attack in attacks for target, direction in attack.directions.items() if direction
    }
    return _AttackEstimates(
        best.values,
        above_chance=frozenset(above_chance),
        has_tests=any(attack.has_tests for attack in attacks),
        combined_attacks=best.attacks,
    )


def _values_by_attack(keys: Sequence[AttackKey], figures: _RowEstimates) -> dict[str, Values]:
    return {
        key.attack: figures[key].values for key in keys if key in figures and figures[key].values
    }


def _directions_by_attack(
    keys: Sequence[AttackKey], directions: Directions
) -> dict[str, Mapping[int | None, Direction]]:
    return {key.attack: directions.get(key, {}) for key in keys}


def _undefended(rows: Sequence[Row], index: int) -> int | None:
    """Return the undefended row with the same other settings as a row; None if it is missing."""
    return index if rows[index].family == NONE else undefended_base(rows, index)


def _entries(rows: Sequence[Row], figures: Sequence[_RowEstimates]) -> list[AttackEntry]:
    keys, entries = _keys(figures), list[AttackEntry]()
    # A dictionary keeps the order and drops repetitions.
    references = dict[tuple[int, Targets], None]()

    def add(
        row: int, role: EntryRole, targets: Targets, bases: Mapping[AttackKey, _RowEstimates]
    ) -> None:
        entries.extend(
            _entry(row, role, key, figures[row], targets, bases.get(key)) for key in keys
        )

    for index, row in enumerate(rows):
        defending = _defending_clients(row, figures[index])
        not_defending = _audited_clients(figures[index]) - defending
        bases = dict[AttackKey, _RowEstimates]()
        if row.base is not None:
            is_same = _undefended(rows, index) == _undefended(rows, row.base)
            # Means of rows with different undefended rows are over different attacks.
            bases = {k: figures[row.base] for k in keys if is_same or k.attack != EVERY_ATTACK}
            base_clients = _defending_clients(rows[row.base], figures[row.base])
            for targets in (defending, not_defending):
                if targets and targets != base_clients:
                    references[row.base, targets] = None
        add(index, "inside", defending, bases)
        if not_defending:
            add(index, "outside", not_defending, bases)
    for index, targets in references:
        add(index, "reference", targets, {})
    return entries


def _entry(
    row: int,
    role: EntryRole,
    key: AttackKey,
    figures: _RowEstimates,
    targets: Targets,
    base: _RowEstimates | None,
) -> AttackEntry:
    attack = figures.get(key, _NO_FIGURES)
    values = restrict_targets(attack.values, targets)
    estimate, clients = mean_over_seeds(values), _clients(values)
    base_values = {} if base is None else base.get(key, _NO_FIGURES).values
    if estimate is None:
        change = None
        note = attack.note or ("not in this record" if targets else "no audited client")
    else:
        change = None if base is None else difference(values, base_values)
        note = "; ".join(_gap_notes(values, figures, base_values if change else None))
    combined_names = [
        name
        for target, names in attack.combined_attacks.items()
        if target in clients
        for name in names
    ]
    has_single_test = attack.has_tests and key.attack not in OF_SEVERAL
    return AttackEntry(
        row=row,
        part=role,
        attack=key.attack,
        attacks=list(dict.fromkeys(combined_names)),
        contrast=key.contrast,
        metric=key.metric,
        clients=sorted(target for target in targets if target is not None),
        targets=sorted(target for target in (clients or targets) if target is not None),
        above=bool(attack.above_chance & targets) if attack.has_tests else None,
        by_test=bool(attack.significant & targets) if has_single_test else None,
        change=change,
        note=note,
        **(vars(estimate) if estimate else {"value": None}),
    )


def _clients(values: Values) -> Targets:
    return frozenset(target for by_target in values.values() for target in by_target)


def _gap_notes(values: Values, figures: _RowEstimates, base: Values | None) -> Iterator[str]:
    """Yield notes on runs without the estimate, and on clients without a change of the estimate."""
    clients = _clients(values)
    seeds = {seed for attack in figures.values() for seed in attack.values if seed is not None}
    counts = sorted({len(seeds_of(values, target)) for target in clients})
    if 0 < counts[0] < len(seeds):
        low, high = counts[0], counts[-1]
        number = f"{low}" if low == high else f"{low} to {high}, by client,"
        yield f"over {number} of {len(seeds)} runs: the others lack it"
    if base is None:
        return
    paired = {target for target in clients if seeds_of(values, target) & seeds_of(base, target)}
    if paired < clients:
        names = ", ".join(str(target) for target in sorted(t for t in paired if t is not None))
        yield f"the change is over only client{'s' * (len(paired) > 1)} {names}"


def rows_of(records: Sequence[Record]) -> list[Row]:
    """Return a row for each defense of each record, in the order of the records.

    The base of a defended row is the undefended row with the same other settings. The base of an
    undefended row is the first row.
    """
    studies = [_study(record) for record in records]
    all_settings = [
        dict(_flatten(_distinguishing_settings(record, study)))
        for record, study in zip(records, studies, strict=True)
    ]
    names = dict.fromkeys(name for settings in all_settings for name in settings)
    differing = [
        name for name in names if len({settings.get(name) for settings in all_settings}) > 1
    ]
    rows: list[Row] = []
    for source, (record, study) in enumerate(zip(records, studies, strict=True)):
        settings = {name: all_settings[source].get(name, NOT_SET) for name in differing}
        guess = most_frequent_class(record)
        rows += [
            _row(source, defense, study, settings).model_copy(update={"guess": guess})
            for defense in defenses_of(record)
        ]
    return [row.model_copy(update={"base": _base(rows, index)}) for index, row in enumerate(rows)]


def defenses_of(record: Record) -> list[str]:
    """Return the names of defenses with estimates in a record; "none" comes first."""
    names = [estimate.defense for estimate in record.findings if _is_compared(estimate)]
    names += [estimate.defense for estimate in record.where(topic="utility")]
    unique_names = list(dict.fromkeys(name or NONE for name in names))
    return sorted(unique_names, key=lambda name: name != NONE) or [NONE]


def defended_clients(study: Study) -> tuple[int, ...] | None:
    """Return the clients that use a defense; None if all clients or no client use one."""
    n_clients = study.partition.clients
    groups = [group.clients for group in study.defense.groups(n_clients) if group.parts]
    defended = {client for group in groups for client in group}
    return tuple(sorted(defended)) if 0 < len(defended) < n_clients else None


def _row(source: int, defense: str, study: Study | None, settings: dict[str, str]) -> Row:
    # The study's settings are used only if they describe this defense.
    described = None if study is None or study.defense.label != defense else study
    defended = None if described is None else defended_clients(described)
    return Row(
        source=source,
        defense=defense if described is None else _describe_defenses(described),
        family=defense,
        coalition=None if defended is None else list(defended),
        clients=0 if study is None else study.partition.clients,
        settings=settings,
    )


def _describe_defenses(study: Study) -> str:
    """Return all defenses with their settings, such as "gradient-noise (sigma 0.01) + mixup"."""
    groups = study.defense.groups(study.partition.clients)
    chains = [" + ".join(_describe_defense(part) for part in group.parts) for group in groups]
    names = ", ".join(dict.fromkeys(chain for chain in chains if chain))
    return "; ".join([names, *_undefended_models(study)]) if names else NONE


def _undefended_models(study: Study) -> Iterator[str]:
    """Yield which of the adversary's models have no defense, since their attacks may miss leaks."""
    for name, section in (("shadow", study.shadow), ("references", study.references)):
        if section is not None and section.defense == "none":
            yield f"undefended {name}"


def _describe_defense(part: PartSection) -> str:
    options = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in part.options.items())
    return f"{part.name} ({options})" if options else part.name


def _base(rows: Sequence[Row], index: int) -> int | None:
    """Return the base of a row; see :func:`rows_of`.

    Among several undefended rows, a row of the same record is preferred.
    """
    row = rows[index]
    undefended = [
        candidate
        for candidate, other in enumerate(rows)
        if row.family != NONE and other.family == NONE and other.settings == row.settings
    ]
    first = 0 if index else None
    return min(undefended, key=lambda other: rows[other].source != row.source, default=first)


def _study(record: Record) -> Study | None:
    """Return the study of a record; None if this version of fedaudit cannot read its settings."""
    try:
        return study_from(resolve_older_settings(record.config))
    except BadInput:
        return None


def _distinguishing_settings(record: Record, study: Study | None) -> dict[str, object]:
    """Return the settings that must be equal in a row and its base."""
    values = dict(record.config) if study is None else study.model_dump(mode="json")
    figures = values.get("figures")
    if isinstance(figures, dict):
        values["figures"] = {name: figures[name] for name in _FIGURE_SETTINGS if name in figures}
    audit = values.get("audit")
    if isinstance(audit, dict):
        # Samples of source inference do not affect the estimates of membership.
        values["audit"] = {name: value for name, value in audit.items() if name != "sources"}
    return {name: value for name, value in values.items() if name not in _IGNORED_SETTINGS}


def _flatten(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and values of settings."""
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


def _is_compared(estimate: Estimate) -> bool:
    """Return whether an estimate is the AUC or true-positive rate of an attack.

    Estimates over pooled clients are excluded, since they would count each client twice.
    """
    is_rate = estimate.metric == AUC or estimate.metric.startswith("tpr@")
    return bool(estimate.attack) and is_rate and estimate.within != "client"


def _audited_clients(figures: _RowEstimates) -> Targets:
    """Return all clients with estimates in a row."""
    return frozenset().union(*(_clients(attack.values) for attack in figures.values()))


def _defending_clients(row: Row, figures: _RowEstimates) -> Targets:
    """Return the audited clients that use a row's defense; all if it has no coalition."""
    targets = _audited_clients(figures)
    return targets if row.coalition is None else targets.intersection(row.coalition)


def _attack_estimates(record: Record, family: str) -> _RowEstimates:
    """Return a record's estimates of attacks on a defense, those with values first."""
    candidates = [
        estimate
        for estimate in record.findings
        if _is_compared(estimate) and (estimate.defense or NO_DEFENSE) == family
    ]
    # Estimates with a fair draw are preferred, since others include differences between clients.
    candidates = [estimate for estimate in candidates if estimate.fair] or candidates
    # If there are means over all seeds, only their tests are used, which are corrected separately.
    has_means = any(estimate.seed is None for estimate in candidates)
    single_runs = [estimate for estimate in candidates if estimate.seed is not None] or candidates
    without_value = [estimate for estimate in single_runs if estimate.value is None]
    groups: dict[AttackKey, list[Estimate]] = {}
    for estimate in [
        *(estimate for estimate in candidates if estimate.value is not None),
        *without_value,
    ]:
        key = AttackKey(estimate.attack, estimate.contrast, estimate.metric)
        groups.setdefault(key, []).append(estimate)
    by_key, directions = _RowEstimates(), directions_of(candidates)
    for key, estimates in groups.items():
        values: dict[int | None, dict[int | None, Value]] = {}
        tested = []
        for estimate in estimates:
            if estimate.value is None:
                continue
            values.setdefault(estimate.seed, {})[estimate.target] = _value(estimate)
            if estimate.significant is not None and has_means == (estimate.seed is None):
                tested.append(estimate)
        by_key[key] = _AttackEstimates(
            values=values,
            note=next((estimate.note for estimate in estimates if estimate.value is None), None),
            above_chance=frozenset(
                estimate.target for estimate in tested if above_chance(estimate)
            ),
            significant=frozenset(estimate.target for estimate in tested if estimate.significant),
            has_tests=bool(tested),
            directions=directions.get(key, {}),
        )
    return by_key


def _value(estimate: Estimate) -> Value:
    is_rate = rate_of(estimate.metric) is not None
    # With too few non-members, the lower limit of a rate is 0.
    low = 0.0 if estimate.low is None and estimate.high is not None and is_rate else estimate.low
    return Value(estimate.number, low, estimate.high, estimate.method, not is_rate)


def _accuracy(record: Record, defense: str) -> Values:
    return {
        estimate.seed: {None: Value(estimate.value, estimate.low, estimate.high, estimate.method)}
        for estimate in record.where(topic="utility", metric=TEST_ACCURACY)
        if estimate.value is not None and (estimate.defense or NO_DEFENSE) == defense
    }


class _OverRuns(NamedTuple):
    """Mean of an estimate over all runs, and the estimate of each run."""

    overall: Estimate
    runs: Sequence[Estimate]


_figure_key = attrgetter("topic", "attack", "metric", "against", "group", "contrast")
"""Key of an estimate within a row. Of estimates that differ only in their view, the first is
used."""


def figure_entries(rows: Sequence[Row], records: Sequence[Record]) -> list[FigureEntry]:
    """Return test accuracy and estimates of sources and clusters, with changes paired by seed."""
    estimates = [_over_runs(records[row.source], row.family) for row in rows]
    entries = []
    for index, row in enumerate(rows):
        base_figures = {} if row.base is None else estimates[row.base]
        for key, (estimate, runs) in estimates[index].items():
            change, base = None, base_figures.get(key)
            if base is not None and not estimate.against:
                change = (
                    paired_change(estimate, base.overall, runs, base.runs)
                    if estimate.topic == "clusters"
                    else difference(_by_seed(runs), _by_seed(base.runs))
                )
            entries.append(FigureEntry(row=index, figure=estimate, runs=len(runs), change=change))
    return entries


def _over_runs(record: Record, family: str) -> dict[object, _OverRuns]:
    utility = record.where(topic="utility", metric=TEST_ACCURACY)
    estimates = [
        estimate
        for estimate in (*utility, *record.source_estimates, *record.where(topic="clusters"))
        if (estimate.defense or NO_DEFENSE) == family
    ]
    overall = [
        *average_each([estimate for estimate in estimates if estimate.topic == "utility"]),
        *(estimate for estimate in estimates if estimate.seed is None),
    ]
    by_key: dict[object, _OverRuns] = {}
    for mean in overall:
        key = _figure_key(mean)
        runs = [run for run in estimates if run.seed is not None and _figure_key(run) == key]
        by_key.setdefault(key, _OverRuns(mean, [run for run in runs if run.view == mean.view]))
    return by_key


def _by_seed(runs: Sequence[Estimate]) -> Values:
    """Return the values of runs by seed, under the target None."""
    return {
        run.seed: {None: Value(run.value, run.low, run.high, run.method, errors_cancel(run.metric))}
        for run in runs
        if run.value is not None
    }


def paired_change(
    mean: Estimate, base: Estimate, runs: Sequence[Estimate], base_runs: Sequence[Estimate]
) -> Difference | None:
    """Return the difference of an estimate between two studies; None if they share no seed.

    Runs with the same seed have the same groups of clients, data and initial models. The variance
    of these random choices cancels in the difference.

    Args:
        mean: The estimate over all runs.
        base: The same estimate of the other study.
        runs: The estimate of each run.
        base_runs: The estimate of each run of the other study.
    """
    base_values = {estimate.seed: estimate.number for estimate in base_runs}
    differences = [
        estimate.number - base_values[estimate.seed]
        for estimate in runs
        if estimate.seed in base_values
    ]
    count = len(differences)
    if not differences:
        return None
    if not count == len(runs) == len(base_runs):
        # The limits cannot be combined, since they include runs that the other study lacks.
        return Difference(
            value=fmean(differences),
            low=None,
            high=None,
            method=f"over the {count} runs that both have",
            runs=count,
            further=further_runs_interval(differences) if count > 1 else None,
        )
    change = subtract_estimates(
        Value(mean.number, mean.low, mean.high, ""), Value(base.number, base.low, base.high, "")
    )
    prefix = "limits combined, " * (change.low is not None)
    limits = None if change.low is None or change.high is None else (change.low, change.high)
    return Difference(
        value=fmean(differences),
        low=change.low,
        high=change.high,
        method=f"{prefix}one seed" if count == 1 else f"{prefix}over {describe_runs(count)}",
        runs=count,
        further=further_runs_interval(differences, limits_of_runs=limits) if count > 1 else None,
    )
