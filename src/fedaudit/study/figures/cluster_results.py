"""Clustered learning over a whole run, put together from what was noted round by round."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from fedaudit.core.errors import Damaged
from fedaudit.core.seeds import seed_for, seeded_numpy
from fedaudit.core.values import ClientId
from fedaudit.fl.visits import cohort_of
from fedaudit.metrics.fairness import ModelRisk, violations, violations_by_chance
from fedaudit.metrics.intervals import Limited, averaged
from fedaudit.observe.measurements import Stored
from fedaudit.results.clusters import (
    EVERYBODY,
    ClusterResult,
    ClusterRound,
    ModelState,
    choices,
    clients_of,
    groups_by_size,
    known_mean,
    models_of_groups,
    moves,
    shares_its_model,
    used_by,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.metrics import (
    ACCURACY,
    AGREEMENT,
    CHANCE_VIOLATIONS,
    CLIENT_ESTIMATE,
    CLIENT_RISK,
    ESTIMATE_ERROR,
    EXPECTED_VIOLATIONS,
    MODEL_ESTIMATE,
    MODEL_RISK,
    MOVED,
    MOVED_AT_THE_END,
    OWN_MODEL,
    SURE_VIOLATIONS,
    VIOLATIONS,
)
from fedaudit.study.figures.cluster_notes import END, STATE, AtTheEnd, is_clustered
from fedaudit.study.setup.algorithm import accepted
from fedaudit.study.setup.parts import Setup

COUNTED = "Clopper-Pearson 95%"


class ClusterFound(NamedTuple):
    """The models and clients of one run, and its figures."""

    choices: ClusterResult
    figures: list[Estimate]


def clusters_of(runs: Sequence[Setup], stored: Sequence[Sequence[Stored]]) -> list[ClusterFound]:
    """Each run's models; nothing where clients do not choose.

    Args:
        runs: Of one study.
        stored: For each run, its measured rounds.

    Raises:
        Damaged: Notes are missing, or cannot be.
    """
    results = [cluster_result(run, rounds) for run, rounds in zip(runs, stored, strict=True)]
    return [result for result in results if result is not None]


def cluster_result(run: Setup, stored: Sequence[Stored]) -> ClusterFound | None:
    """One run's models, their clients and their risk; None where clients do not choose.

    Args:
        run: The run.
        stored: Its measured rounds.

    Raises:
        Damaged: Notes are missing, or cannot be.
    """
    if not is_clustered(run):
        return None
    try:
        rounds = [ClusterRound.model_validate_json(one.notes[STATE]) for one in stored]
        end = AtTheEnd.model_validate_json(stored[-1].notes[END])
        return _result(run, rounds, end)
    except (KeyError, IndexError, ValidationError) as error:
        raise Damaged(
            f"what is known of the models of seed {run.seed} is missing or cannot be; restore "
            "the run's folder from a copy, or delete it and run the study again"
        ) from error


def thresholds(run: Setup) -> list[float]:
    """The highest risk that each client accepts, as it has it in the federation itself."""
    preference, seed = accepted(run.study), seed_for(run.seed, "federation")
    return [preference.threshold(seed, client) for client in sorted(run.deal.clients)]


def joined(run: Setup) -> list[int | None]:
    """The first round that each client took part in; None where there was none."""
    clients, share = sorted(run.deal.clients), run.study.training.participation
    first: dict[ClientId, int] = {}
    for index in range(run.measured_rounds[-1], 0, -1):
        asked = cohort_of(clients, share, run.holdout.seed, index)
        first |= dict.fromkeys(asked, index)
    return [first.get(client) for client in clients]


def _result(run: Setup, rounds: Sequence[ClusterRound], end: AtTheEnd) -> ClusterFound:
    clients, groups, since = sorted(run.deal.clients), run.groups, joined(run)
    choices = ClusterResult(
        algorithm=run.study.algorithm.name,
        defense=run.study.defense.label,
        seed=run.seed,
        measure=run.study.risk.measure,
        clients=clients,
        group_names=list(groups.names),
        group=[groups.group[client] for client in clients],
        thresholds=thresholds(run),
        rounds=list(rounds),
        joined=[] if set(since) == {1} else since,
        fairness_note=end.fairness_note,
    )
    served = [
        served_figure(
            choices,
            ACCURACY,
            (one.accuracy, one.low, one.high),
            group=one.group,
            samples=one.tested,
        )
        for one in end.accuracy
    ]
    served += [
        served_figure(choices, gap.metric, (gap.value, gap.low, gap.high)) for gap in end.fairness
    ]
    return ClusterFound(choices, cluster_figures(choices, served))


def cluster_figures(run: ClusterResult, served: Sequence[Estimate]) -> list[Estimate]:
    """Every figure of clustered learning in one run.

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
        run: Who trained which model.
        served: Accuracies of groups and fairness gaps (:func:`served_figure`).

    Source: IFCA-MIR, Tables 1 and 2 and Figures 2-7.
    """
    accuracies = {one.group: one for one in served if one.metric == ACCURACY}
    names = dict.fromkeys([*_groups(run).values(), *accuracies])
    return [
        *(accuracies[name] for name in names if name in accuracies),
        *_of_models(run),
        *_of_clients(run),
        *_violations(run),
        *(one for one in served if one.metric != ACCURACY),
        *_stability(run),
    ]


def served_figure(
    run: ClusterResult,
    metric: str,
    limits: tuple[float, float | None, float | None],
    *,
    group: str = EVERYBODY,
    samples: int = 0,
) -> Estimate:
    """Accuracy of a group of clients in one run, or a fairness gap between groups.

    Args:
        run: Who trained which model.
        metric: The accuracy, or a fairness gap.
        limits: The figure with its lower and upper limit.
        group: Of clients.
        samples: Test samples like those of these clients.
    """
    method = COUNTED if metric == ACCURACY else "bootstrap 95%"
    value, low, high = limits
    return _figure(run, metric, group, value, low=low, high=high, method=method, samples=samples)


def _figure(run: ClusterResult, metric: str, group: str, value: float, **more: object) -> Estimate:
    return Estimate.model_validate(
        {
            "topic": "clusters",
            "algorithm": run.algorithm,
            "defense": run.defense,
            "group": group,
            "seed": run.seed,
            "metric": metric,
            "value": value,
            **more,
        }
    )


def _groups(run: ClusterResult) -> dict[int | None, str]:
    """Names of the groups, largest first, and of all clients together where there are several."""
    names: dict[int | None, str] = {group: run.group_names[group] for group in groups_by_size(run)}
    return names if len(names) == 1 else {None: EVERYBODY, **names}


def _of_models(run: ClusterResult) -> Iterator[Estimate]:
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
            limits = {"low": state.low, "high": state.high, "method": COUNTED}
            counts = {"n_members": state.members, "n_nonmembers": state.others}
            yield _figure(run, MODEL_RISK, name, state.risk, note=note, **limits, **counts)
        if state.estimated is not None:
            yield _figure(run, MODEL_ESTIMATE, name, state.estimated, note=note)
        size = len(clients_of(run, group))
        used = choices(run)
        with_it = sum(used[at] == model for at in clients_of(run, group))
        yield _figure(run, OWN_MODEL, name, float(with_it), ceiling=size, note=note)


def _of_clients(run: ClusterResult) -> Iterator[Estimate]:
    for group, name in _groups(run).items():
        used = [model for model in used_by(run, group) if model is not None]
        known = [one for one in used if one.risk is not None]
        if known:
            mean = fmean(one.risk or 0.0 for one in known)
            yield _figure(run, CLIENT_RISK, name, mean, **_averaged(known))
        figures = {
            CLIENT_ESTIMATE: known_mean([model.estimated for model in used]),
            ESTIMATE_ERROR: known_mean([_error(model) for model in used]),
        }
        for figure, value in figures.items():
            if value is not None:
                yield _figure(run, figure, name, value)


def _averaged(models: Sequence[ModelState]) -> dict[str, object]:
    """Limits of a mean over clients, who share models: they are averaged as the risks are."""
    known = [
        Limited(one.risk, one.low, one.high)
        for one in models
        if one.risk is not None and one.low is not None and one.high is not None
    ]
    if len(known) < len(models):
        return {}
    low, high = averaged(known)
    return {"low": low, "high": high, "method": COUNTED}


def _error(model: ModelState) -> float | None:
    if model.risk is None or model.estimated is None:
        return None
    return abs(model.estimated - model.risk)


def _violations(run: ClusterResult) -> Iterator[Estimate]:
    """Never of a client that took no part, whose samples are in no model."""
    total, limits = len(run.clients), np.array(run.thresholds)
    used = [model or ModelState(clients=0) for model in used_by(run, None)]
    risks, lows, estimated = (
        np.array([np.nan if one is None else one for one in values])
        for values in (
            [model.risk for model in used],
            [model.low for model in used],
            [model.estimated for model in used],
        )
    )
    real = violations(risks, limits, lows=lows)
    counts = {
        VIOLATIONS: real.above,
        SURE_VIOLATIONS: real.sure,
        EXPECTED_VIOLATIONS: violations(estimated, limits).above,
    }
    for figure, number in counts.items():
        yield _figure(run, figure, EVERYBODY, float(number), ceiling=total)
    floor = _by_chance(run)
    if floor is not None:
        yield _figure(run, CHANCE_VIOLATIONS, EVERYBODY, floor, ceiling=total)
    groups = _groups(run)
    for group, name in groups.items():
        if None in groups and group is not None:
            places = clients_of(run, group)
            above = violations(risks[places], limits[places]).above
            yield _figure(run, VIOLATIONS, name, float(above), ceiling=len(places))


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


def _stability(run: ClusterResult) -> Iterator[Estimate]:
    pairs = [(g, m) for g, m in zip(run.group, choices(run), strict=True) if m is not None]
    if len(set(run.group)) > 1 and pairs:
        # Here, since it takes longer to load than most records without clusters take to compare.
        from sklearn.metrics import adjusted_rand_score

        agreement = float(adjusted_rand_score(*zip(*pairs, strict=True)))
        yield _figure(run, AGREEMENT, EVERYBODY, agreement)
    changed = moves(run)
    if changed:
        total = len(run.clients)
        ever = len({at for step in changed for at in step})
        yield _figure(run, MOVED, EVERYBODY, float(ever), ceiling=total)
        yield _figure(run, MOVED_AT_THE_END, EVERYBODY, float(len(changed[-1])), ceiling=total)
