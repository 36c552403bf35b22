"""Generated results of clustered learning."""

import numpy as np
from numpy.typing import NDArray

from fedaudit.core.seeds import seeded_numpy
from fedaudit.evaluation.clusters import cluster_estimates, utility_estimate
from fedaudit.results.aggregate import average_each
from fedaudit.results.estimate import ACCURACY, FAIRNESS_GAPS, Estimate
from fedaudit.results.record import Record
from fedaudit.results.runs import ClusterResult, ClusterRound, ModelState
from tests.estimates import changed
from tests.report.records import HOSTILE, HOSTILE_LINK, HOSTILE_TAG, limits, record

Choices = NDArray[np.int64]

RISKS = (0.525, 0.72)
"""Risks of the trained models of the majority and the minority."""


def clustered(
    algorithm: str = "ifca-mir",
    *,
    seed: int = 1,
    clients: int = 200,
    minority: int = 30,
    rounds: int = 10,
    models: int = 2,
    **changes: object,
) -> ClusterResult:
    """Return a run; with "ifca-mir", clients receive risks and leave above their limit.

    Args:
        minority: Clients of the minority; 0 makes one group.
        rounds: Number of measured rounds, every fifth one.
        models: Number of models; the first is the majority's, the second the minority's.
        changes: Other fields of the result.
    """
    rng = seeded_numpy(seed, "clustered", algorithm)
    thresholds = seeded_numpy(seed, "thresholds").uniform(0.5, 0.8, clients)
    group = np.zeros(clients, dtype=np.int64)
    group[clients - minority :] = 1
    results, choice = [], rng.integers(0, models, clients)
    for step in range(1, rounds + 1):
        choice = _chosen(choice, group, thresholds, step, rng, weighs=algorithm == "ifca-mir")
        results.append(_round(5 * step, choice % models, models, algorithm == "ifca-mir", rng))
    groups = ["majority", "minority"] if minority else ["everybody"]
    result: dict[str, object] = {
        "algorithm": algorithm,
        "seed": seed,
        "measure": "train-mia",
        "clients": list(range(clients)),
        "group_names": groups,
        "group": group.tolist(),
        "thresholds": thresholds.tolist(),
        "rounds": results,
        "fairness_note": "" if minority else "there is one group of clients",
    }
    return ClusterResult.model_validate({**result, **changes})


def _chosen(
    choice: Choices,
    group: Choices,
    thresholds: NDArray[np.float64],
    step: int,
    rng: np.random.Generator,
    *,
    weighs: bool,
) -> Choices:
    """Clients settle with their group; those who weigh risk leave a model that is too risky."""
    settled = rng.random(len(choice)) < min(1.0, 0.55 + 0.2 * step)
    chosen = np.where(settled, group, choice)
    leaves = weighs & (thresholds < 0.5 + 0.013 * step) & (group == 1) & (step > 2)
    return np.where(leaves & (rng.random(len(choice)) < 0.8), 0, chosen)


def _round(
    index: int, choice: Choices, models: int, is_reported: bool, rng: np.random.Generator
) -> ClusterRound:
    states = []
    for model in range(models):
        size = int((choice == model).sum())
        if not size:
            states.append(ModelState(clients=0, told=0.5 if is_reported else None))
            continue
        final = RISKS[min(model, 1)] + 0.08 * (model == 1 and size < 20)
        risk = 0.5 + (final - 0.5) * (1 - np.exp(-index / 12)) + rng.normal(0, 0.004)
        reach = 0.012 if size > 50 else 0.021
        states.append(
            ModelState(
                clients=size,
                told=min(max(risk - 0.03, 0.5), 1) if is_reported else None,
                estimated=min(max(risk + rng.normal(0.02 * model, 0.01), 0), 1),
                risk=min(max(risk, 0), 1),
                low=max(risk - reach, 0),
                high=min(risk + reach, 1),
                members=5000,
                others=5000,
                loss=0.35 + 0.15 * model + 1.8 * float(np.exp(-index / 9)),
                accuracy=0.9 - 0.05 * model - 0.7 * float(np.exp(-index / 9)),
            )
        )
    return ClusterRound(round=index, choice=choice.tolist(), models=states)


def figures(run: ClusterResult, gaps: tuple[str, ...] = FAIRNESS_GAPS) -> list[Estimate]:
    """The figures of a run, with made-up accuracies of its groups and gaps between them."""
    rng, group = seeded_numpy(run.seed, "served", run.algorithm), np.array(run.group)
    parts = []
    for place, name in enumerate(run.group_names):
        tested = 10_000 * int((group == place).sum()) // len(group)
        parts.append((name, tested, 0.83 - 0.04 * place))
    if len(run.group_names) > 1:
        parts.append(("everybody", 10_000, 0.824))
    served = []
    for name, tested, share in parts:
        right = int(tested * min(share + rng.normal(0, 0.004), 1))
        value_with_limits = (right / tested, *limits(right, tested))
        served.append(
            utility_estimate(run, ACCURACY, value_with_limits, group=name, samples=tested)
        )
    for name, size in zip(gaps, (0.011, 0.042, 0.045), strict=True):
        value = size + float(rng.uniform(0, 0.003))
        if len(run.group_names) > 1:
            served.append(utility_estimate(run, name, (value, value - 0.004, value + 0.009)))
    return cluster_estimates(run, served)


def over_runs(*runs: ClusterResult) -> list[Estimate]:
    """Figures over runs."""
    return average_each([estimate for run in runs for estimate in figures(run)])


def with_clusters(*results: ClusterResult, membership: bool = False, **further: object) -> Record:
    """A record of clustered learning, and with ``membership`` of attacks on members too."""
    changes = {"details": False, "defenses": (("none", 1.0),), "strengths": (1.9, 0.4), **further}
    plain = record(**changes)  # type: ignore[arg-type]
    only: dict[str, object] = {} if membership else {"attacks": []}
    others = plain.estimates if membership else plain.where(topic="utility")
    runs = [estimate for run in results for estimate in figures(run)]
    return changed(
        plain,
        clusters=list(results),
        estimates=[*others, *runs, *average_each(runs)],
        seeds=[result.seed for result in results],
        **only,
    )


def hostile_clusters() -> Record:
    """A record of clustered learning whose every free text tries to break out of the page."""
    bad = HOSTILE + HOSTILE_TAG + HOSTILE_LINK + "x" * 3000
    runs = [
        changed(
            clustered(name, clients=20, minority=4, rounds=3),
            algorithm=f"{i} {bad}",
            defense=HOSTILE_TAG,
            measure=HOSTILE_LINK,
            group_names=[HOSTILE, HOSTILE_TAG],
            fairness_note=bad,
        )
        for i, name in enumerate(("ifca", "ifca-mir"))
    ]
    gaps = (bad, f"{bad} too", f"{bad} as well")
    estimates = [estimate for run in runs for estimate in figures(run, gaps)]
    hostile_record = with_clusters(*runs)
    return changed(
        hostile_record,
        estimates=[*hostile_record.where(topic="utility"), *estimates, *average_each(estimates)],
    )
