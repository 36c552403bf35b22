"""Clustered learning over a whole run, put together from what was noted round by round."""

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import ValidationError

from fedaudit.core.errors import Damaged
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId
from fedaudit.fl.visits import cohort_of
from fedaudit.observe.measurements import Stored
from fedaudit.results.cluster_figures import cluster_figures, served_figure
from fedaudit.results.clusters import ClusterResult, ClusterRound
from fedaudit.results.estimate import Estimate
from fedaudit.results.metrics import ACCURACY
from fedaudit.study.figures.cluster_notes import END, STATE, AtTheEnd, is_clustered
from fedaudit.study.setup.algorithm import accepted
from fedaudit.study.setup.parts import Setup


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
