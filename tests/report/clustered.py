"""Made-up results of clustered learning that look like real ones: clients settle, some leave."""

import numpy as np
from numpy.typing import NDArray

from fedaudit.core.seeds import seeded_numpy
from fedaudit.results.cluster_means import cluster_means
from fedaudit.results.clusters import (
    ClusterResult,
    ClusterRound,
    FairnessGap,
    GroupAccuracy,
    ModelState,
)
from fedaudit.results.record import Record
from tests.report.records import HOSTILE, HOSTILE_LINK, HOSTILE_TAG, limits, record

Choices = NDArray[np.int64]

RISKS = (0.525, 0.72)
"""Of the majority's and of the minority's model once it is trained."""


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
    """One run; with "ifca-mir" clients are told risks, and those who accept little leave.

    Args:
        minority: Clients of the minority; 0 makes one group.
        rounds: Measured ones, every fifth round.
        models: That there are; the first is the majority's, the second the minority's.
        changes: To fields of the result.
    """
    rng = seeded_numpy(seed, "clustered", algorithm)
    thresholds = seeded_numpy(seed, "thresholds").uniform(0.5, 0.8, clients)
    group = np.zeros(clients, dtype=np.int64)
    group[clients - minority :] = 1
    found, choice = [], rng.integers(0, models, clients)
    for step in range(1, rounds + 1):
        choice = _chosen(choice, group, thresholds, step, rng, weighs=algorithm == "ifca-mir")
        found.append(_round(5 * step, choice % models, models, algorithm == "ifca-mir", rng))
    used = [found[-1].models[model] for model in found[-1].choice]
    pairs = list(zip(used, thresholds, strict=True))
    groups = ["majority", "minority"] if minority else ["everybody"]
    result: dict[str, object] = {
        "algorithm": algorithm,
        "seed": seed,
        "measure": "train-mia",
        "clients": list(range(clients)),
        "group_names": groups,
        "group": group.tolist(),
        "thresholds": thresholds.tolist(),
        "rounds": found,
        "violations": sum(m.risk is not None and m.risk > t for m, t in pairs),
        "sure_violations": sum(m.low is not None and m.low > t for m, t in pairs),
        "expected_violations": sum(m.estimated is not None and m.estimated > t for m, t in pairs),
        "accuracy": _accuracies(groups, group, rng),
        "fairness": _gaps(rng) if minority else [],
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
    index: int, choice: Choices, models: int, told: bool, rng: np.random.Generator
) -> ClusterRound:
    states = []
    for model in range(models):
        size = int((choice == model).sum())
        if not size:
            states.append(ModelState(clients=0, told=0.5 if told else None))
            continue
        final = RISKS[min(model, 1)] + 0.08 * (model == 1 and size < 20)
        risk = 0.5 + (final - 0.5) * (1 - np.exp(-index / 12)) + rng.normal(0, 0.004)
        reach = 0.012 if size > 50 else 0.021
        states.append(
            ModelState(
                clients=size,
                told=min(max(risk - 0.03, 0.5), 1) if told else None,
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


def _accuracies(names: list[str], group: Choices, rng: np.random.Generator) -> list[GroupAccuracy]:
    """Of each group, and of everybody last where there are several."""
    parts = []
    for place, name in enumerate(names):
        tested = 10_000 * int((group == place).sum()) // len(group)
        parts.append((name, int((group == place).sum()), tested, 0.83 - 0.04 * place))
    if len(names) > 1:
        parts.append(("everybody", len(group), 10_000, 0.824))
    found = []
    for name, size, tested, share in parts:
        right = int(tested * min(share + rng.normal(0, 0.004), 1))
        low, high = limits(right, tested)
        found.append(
            GroupAccuracy(
                group=name,
                clients=size,
                right=right,
                tested=tested,
                accuracy=right / tested,
                low=low,
                high=high,
            )
        )
    return found


def _gaps(rng: np.random.Generator) -> list[FairnessGap]:
    sizes = {"demographic parity": 0.011, "equal opportunity": 0.042, "equalised odds": 0.045}
    return [
        FairnessGap(metric=name, value=value, low=value - 0.004, high=value + 0.009)
        for name, size in sizes.items()
        if (value := size + float(rng.uniform(0, 0.003)))
    ]


def with_clusters(*results: ClusterResult, membership: bool = False, **rest: object) -> Record:
    """A record of clustered learning, and with ``membership`` of attacks on members too."""
    changes = {"details": False, "defenses": (("none", 1.0),), "strengths": (1.9, 0.4), **rest}
    plain = record(**changes)  # type: ignore[arg-type]
    only: dict[str, object] = {} if membership else {"estimates": [], "attacks": []}
    seeds = [result.seed for result in results]
    return plain.model_copy(
        update={
            "clusters": list(results),
            "cluster_means": cluster_means(results),
            "seeds": seeds,
            **only,
        }
    )


def hostile_clusters() -> Record:
    """A record of clustered learning whose every free text tries to break out of the page."""
    bad = HOSTILE + HOSTILE_TAG + HOSTILE_LINK + "x" * 3000
    names = [HOSTILE, HOSTILE_TAG, "everybody"]
    runs = [clustered(name, clients=20, minority=4, rounds=3) for name in ("ifca", "ifca-mir")]
    return with_clusters(
        *(
            run.model_copy(
                update={
                    "algorithm": f"{at} {bad}",
                    "defense": HOSTILE_TAG,
                    "measure": HOSTILE_LINK,
                    "group_names": names[:2],
                    "fairness_note": bad,
                    "accuracy": [
                        one.model_copy(update={"group": name})
                        for one, name in zip(run.accuracy, names, strict=True)
                    ],
                    "fairness": [one.model_copy(update={"metric": bad}) for one in run.fairness],
                }
            )
            for at, run in enumerate(runs)
        )
    )
