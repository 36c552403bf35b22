"""Clustered learning over seeds: accuracy, risk, violations, fairness and who moved, as means."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from fedaudit.core.seeds import seeded_numpy
from fedaudit.metrics.intervals import Limited, averaged, summed
from fedaudit.metrics.violations import ModelRisk, violations_by_chance
from fedaudit.results.aggregate import further_runs, these_runs
from fedaudit.results.cluster_groups import (
    choices,
    clients_of,
    groups_by_size,
    known_mean,
    models_of_groups,
    moves,
    shares_its_model,
    used_by,
)
from fedaudit.results.clusters import (
    ACCURACY,
    AGREEMENT,
    CHANCE_VIOLATIONS,
    CLIENT_ESTIMATE,
    CLIENT_RISK,
    ESTIMATE_ERROR,
    EVERYBODY,
    EXPECTED_VIOLATIONS,
    MODEL_ESTIMATE,
    MODEL_RISK,
    MOVED,
    MOVED_AT_THE_END,
    OWN_MODEL,
    SURE_VIOLATIONS,
    VIOLATIONS,
    ClusterMean,
    ClusterResult,
    ModelState,
)
from fedaudit.results.estimate import Interval


class _Key(NamedTuple):
    """The figure that a mean is of, and its clients."""

    figure: str
    group: str


class _Value(NamedTuple):
    """A figure of one run, with an interval of its own where there is one.

    Attributes:
        cancels: Whether errors of several runs cancel, which ask about samples of their own;
            accuracies and gaps between groups are of the same test samples in every run.
    """

    value: float
    low: float | None = None
    high: float | None = None
    method: str = ""
    least: float = 0.0
    most: float = 1.0
    note: str = ""
    cancels: bool = False


_Values = Mapping[_Key, _Value]


def cluster_means(results: Sequence[ClusterResult]) -> list[ClusterMean]:
    """Every figure of clustered learning over seeds, for each algorithm and defense.

    - Accuracy of each group's clients with their own models, and of everybody's.
    - True and estimated risk of the model that stands for each group
      (``models_of_groups``), and the mean over a group's clients of their models' risks; how far
      estimates are from true risks, in the mean over clients.
    - Violations: measured ones, sure ones, those that the estimates expect, and the noise floor:
      those to be expected where every true risk is one half.
    - Fairness gaps between groups.
    - How stable clusters are: the adjusted Rand index between models chosen and groups (1: the
      groups themselves; 0: as by chance), clients with their group's model, and clients that
      changed model between measured rounds. Clients of different seeds have different data, so
      that choices of two runs are not held against each other.

    Args:
        results: One a seed, of one study or several.

    Source: IFCA-MIR, Tables 1 and 2 and Figures 2-7.
    """
    studies: dict[tuple[str, str], list[ClusterResult]] = {}
    for result in results:
        studies.setdefault((result.algorithm, result.defense), []).append(result)
    return [mean for runs in studies.values() for mean in _means(runs)]


def _means(runs: Sequence[ClusterResult]) -> Iterator[ClusterMean]:
    found = [(run.seed, dict(_figures(run))) for run in runs]
    for key in dict.fromkeys(key for _, values in found for key in values):
        given = [(seed, values[key]) for seed, values in found if key in values]
        seeds, values = [seed for seed, _ in given], [value for _, value in given]
        limits = _limits(values)
        yield ClusterMean(
            algorithm=runs[0].algorithm,
            defense=runs[0].defense,
            figure=key.figure,
            group=key.group,
            seeds=seeds,
            values=[one.value for one in values],
            value=limits.value,
            low=limits.low,
            high=limits.high,
            method=limits.method,
            note=_note(values, len(runs)),
            further=_further(values),
        )


def _limits(values: Sequence[_Value]) -> _Value:
    if len(values) == 1:
        return values[0]
    value, known = fmean(one.value for one in values), _limited(values)
    if len(known) < len(values):
        return _Value(value)
    limits = summed(known) if all(one.cancels for one in values) else averaged(known)
    return _Value(value, *limits, f"{values[0].method}, over {these_runs(len(values))}")


def _further(values: Sequence[_Value]) -> Interval | None:
    if len(values) == 1:
        return None
    within = (min(one.least for one in values), max(one.most for one in values))
    return further_runs([float(one.value) for one in values], within=within)


def _note(values: Sequence[_Value], runs: int) -> str:
    said: dict[str, int] = {}
    for one in values:
        if one.note:
            said[one.note] = said.get(one.note, 0) + 1
    notes = [f"in {times} of {runs} runs {note}" for note, times in said.items()]
    if len(values) < runs:
        notes.append(f"{runs - len(values)} of {runs} runs do not have this figure")
    return "; ".join(notes)


def _figures(run: ClusterResult) -> Iterator[tuple[_Key, _Value]]:
    yield from _accuracies(run)
    yield from _of_models(run)
    yield from _of_clients(run)
    yield from _violations(run)
    for gap in run.fairness:
        value = _Value(gap.value, gap.low, gap.high, "bootstrap 95%")
        yield _Key(gap.metric, EVERYBODY), value
    yield from _stability(run)


def _groups(run: ClusterResult) -> dict[int | None, str]:
    """Names of the groups, largest first, and of all clients together where there are several."""
    names: dict[int | None, str] = {group: run.group_names[group] for group in groups_by_size(run)}
    return names if len(names) == 1 else {None: EVERYBODY, **names}


def _accuracies(run: ClusterResult) -> Iterator[tuple[_Key, _Value]]:
    found = {one.group: one for one in run.accuracy}
    for name in dict.fromkeys([*_groups(run).values(), *found]):
        if one := found.get(name):
            value = _Value(one.accuracy, one.low, one.high, "Clopper-Pearson 95%")
            yield _Key(ACCURACY, name), value


def _of_models(run: ClusterResult) -> Iterator[tuple[_Key, _Value]]:
    """Of the model that stands for each group."""
    for group, model in models_of_groups(run).items():
        name = run.group_names[group]
        if model is None:
            continue
        state = run.rounds[-1].models[model]
        note = ""
        if shares_its_model(run, group):
            note = f"most clients of the {name} use another group's model; this is the other one"
        if state.risk is not None:
            limits = (state.risk, state.low, state.high, "Clopper-Pearson 95%")
            yield _Key(MODEL_RISK, name), _Value(*limits, note=note, cancels=True)
        if state.estimated is not None:
            yield _Key(MODEL_ESTIMATE, name), _Value(state.estimated, note=note)
        size = len(clients_of(run, group))
        used = choices(run)
        with_it = sum(used[at] == model for at in clients_of(run, group))
        yield _Key(OWN_MODEL, name), _Value(with_it, most=float(size), note=note)


def _of_clients(run: ClusterResult) -> Iterator[tuple[_Key, _Value]]:
    for group, name in _groups(run).items():
        used = [model for model in used_by(run, group) if model is not None]
        risks = [_Value(one.risk, one.low, one.high) for one in used if one.risk is not None]
        if risks:
            yield _Key(CLIENT_RISK, name), _mean_risk(risks)
        figures = {
            CLIENT_ESTIMATE: known_mean([model.estimated for model in used]),
            ESTIMATE_ERROR: known_mean([_error(model) for model in used]),
        }
        for figure, value in figures.items():
            if value is not None:
                yield _Key(figure, name), _Value(value)


def _mean_risk(risks: Sequence[_Value]) -> _Value:
    """The mean over clients, who share models: limits are averaged as the risks are."""
    value, known = fmean(one.value for one in risks), _limited(risks)
    if len(known) < len(risks):
        return _Value(value)
    return _Value(value, *averaged(known), "Clopper-Pearson 95%", cancels=True)


def _limited(values: Sequence[_Value]) -> list[Limited]:
    return [
        Limited(one.value, one.low, one.high)
        for one in values
        if one.low is not None and one.high is not None
    ]


def _error(model: ModelState) -> float | None:
    if model.risk is None or model.estimated is None:
        return None
    return abs(model.estimated - model.risk)


def _violations(run: ClusterResult) -> Iterator[tuple[_Key, _Value]]:
    total = float(len(run.clients))
    counts = {
        VIOLATIONS: run.violations,
        SURE_VIOLATIONS: run.sure_violations,
        EXPECTED_VIOLATIONS: run.expected_violations,
    }
    for figure, number in counts.items():
        yield _Key(figure, EVERYBODY), _Value(number, most=total)
    floor = _by_chance(run)
    if floor is not None:
        yield _Key(CHANCE_VIOLATIONS, EVERYBODY), _Value(floor, most=total)
    groups = _groups(run)
    for group, name in groups.items():
        if None in groups and group is not None:
            places = clients_of(run, group)
            pairs = zip(places, used_by(run, group), strict=True)
            above = sum(
                model is not None and model.risk is not None and model.risk > run.thresholds[at]
                for at, model in pairs
            )
            yield _Key(VIOLATIONS, name), _Value(above, most=float(len(places)))


def _by_chance(run: ClusterResult) -> float | None:
    """The noise floor of violations; None where no model's risk was measured on counted samples."""
    used = choices(run)
    models = [
        ModelRisk(
            state.members,
            state.others,
            [run.thresholds[at] for at, model in enumerate(used) if model == number],
        )
        for number, state in enumerate(run.rounds[-1].models)
        if state.risk is not None and state.members and state.others
    ]
    rng = seeded_numpy(run.seed, "violations by chance")
    return violations_by_chance(models, rng=rng) if models else None


def _stability(run: ClusterResult) -> Iterator[tuple[_Key, _Value]]:
    pairs = [(g, m) for g, m in zip(run.group, choices(run), strict=True) if m is not None]
    if len(set(run.group)) > 1 and pairs:
        # Here, since it takes longer to load than most records without clusters take to compare.
        from sklearn.metrics import adjusted_rand_score

        agreement = float(adjusted_rand_score(*zip(*pairs, strict=True)))
        yield _Key(AGREEMENT, EVERYBODY), _Value(agreement, least=-1.0)
    changed = moves(run)
    if changed:
        total = float(len(run.clients))
        ever = len({at for step in changed for at in step})
        yield _Key(MOVED, EVERYBODY), _Value(ever, most=total)
        yield _Key(MOVED_AT_THE_END, EVERYBODY), _Value(len(changed[-1]), most=total)
