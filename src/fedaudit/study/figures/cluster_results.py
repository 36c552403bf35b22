"""Clustered learning over a whole run, put together from what was noted round by round."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from pydantic import ValidationError

from fedaudit.core.errors import Damaged
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId
from fedaudit.fl.visits import cohort_of
from fedaudit.metrics.violations import violations
from fedaudit.observe.measurements import Stored
from fedaudit.results.clusters import ClusterResult, ClusterRound, ModelState
from fedaudit.study.figures.cluster_notes import END, STATE, AtTheEnd, is_clustered
from fedaudit.study.setup.algorithm import accepted
from fedaudit.study.setup.parts import Setup


def clusters_of(runs: Sequence[Setup], stored: Sequence[Sequence[Stored]]) -> list[ClusterResult]:
    """Each run's models; nothing where clients do not choose.

    Args:
        runs: Of one study.
        stored: For each run, its measured rounds.

    Raises:
        Damaged: Notes are missing, or cannot be.
    """
    results = [cluster_result(run, rounds) for run, rounds in zip(runs, stored, strict=True)]
    return [result for result in results if result is not None]


def cluster_result(run: Setup, stored: Sequence[Stored]) -> ClusterResult | None:
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


def _result(run: Setup, rounds: Sequence[ClusterRound], end: AtTheEnd) -> ClusterResult:
    clients, groups, limits = sorted(run.deal.clients), run.groups, thresholds(run)
    since, last = joined(run), rounds[-1]
    used = [
        last.models[choice] if first else ModelState(clients=0)
        for choice, first in zip(last.choice, since, strict=True)
    ]
    real = violations(
        _risks([model.risk for model in used]),
        np.array(limits),
        lows=_risks([model.low for model in used]),
    )
    expected = violations(_risks([model.estimated for model in used]), np.array(limits))
    return ClusterResult(
        algorithm=run.study.algorithm.name,
        defense=run.study.defense.label,
        seed=run.seed,
        measure=run.study.risk.measure,
        clients=clients,
        group_names=list(groups.names),
        group=[groups.group[client] for client in clients],
        thresholds=limits,
        rounds=list(rounds),
        joined=[] if set(since) == {1} else since,
        violations=real.above,
        sure_violations=real.sure,
        expected_violations=expected.above,
        accuracy=end.accuracy,
        fairness=end.fairness,
        fairness_note=end.fairness_note,
    )


def _risks(values: Sequence[float | None]) -> Float[ndarray, " clients"]:
    return np.array([np.nan if value is None else value for value in values])
