"""Records with given estimates, for comparisons."""

from collections.abc import Mapping

from fedaudit.plan.values import study_from
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Environment, Record, UsageRow, ViewRow
from tests.estimates import estimate

Values = Mapping[int, Mapping[int, float]]
"""A figure by seed and target."""


def make_record(
    name: str,
    aucs: Mapping[str, Values],
    accuracy: Mapping[int, float],
    *,
    defense: Mapping[str, object] | None = None,
    rounds: int = 10,
    reach: float = 0.02,
    usage: tuple[UsageRow, ...] = (),
    tables: Mapping[str, object] | None = None,
) -> Record:
    """A record of a study with these AUCs (against unseen samples) and accuracies."""
    study = study_from(
        {
            "name": name,
            "seeds": list(accuracy),
            "partition": {"clients": 6},
            "training": {"rounds": rounds},
            "defense": dict(defense or {}),
            **(tables or {}),
        }
    )
    label = study.defense.label
    findings = [
        estimate(
            attack=attack,
            defense=label,
            contrast="unseen",
            target=target,
            seed=seed,
            metric="auc",
            value=value,
            low=value - reach,
            high=value + reach,
            method="DeLong 95%",
            n_members=100,
            n_nonmembers=100,
            significant=value > 0.6,
        )
        for attack, by_seed in aucs.items()
        for seed, by_target in by_seed.items()
        for target, value in by_target.items()
    ]
    return Record(
        name=name,
        content_hash=name.ljust(64, "0")[:64],
        config=study.model_dump(mode="json"),
        seeds=list(accuracy),
        environment=Environment(),
        view=ViewRow(name="uploads", sees=[], description="A server."),
        attacks=[],
        clients=[],
        estimates=[
            *findings,
            *(
                Estimate(
                    topic="utility",
                    defense=label,
                    seed=seed,
                    metric="test_accuracy",
                    value=value,
                    low=value - 0.01,
                    high=value + 0.01,
                    method="Clopper-Pearson 95%",
                    samples=1000,
                )
                for seed, value in accuracy.items()
            ),
        ],
        usage=list(usage),
    )


def noise(sigma: float, *clients: int) -> dict[str, object]:
    """Gradient noise of these clients, or of all."""
    options: dict[str, object] = {"name": "gradient-noise", "options": {"sigma": sigma}}
    return options | ({"clients": list(clients)} if clients else {})


PLAIN = make_record(
    "plain",
    {"a": {1: {0: 0.80, 4: 0.70}, 2: {0: 0.84, 4: 0.72}}, "b": {1: {0: 0.6}, 2: {0: 0.6}}},
    {1: 0.90, 2: 0.92},
)
WEAK = make_record(
    "weak",
    {"a": {1: {0: 0.70, 4: 0.71}, 2: {0: 0.76, 4: 0.75}}, "b": {1: {0: 0.6}, 2: {0: 0.5}}},
    {1: 0.90, 2: 0.90},
    defense=noise(0.01, 0, 1),
)
STRONG = make_record(
    "strong",
    {"a": {1: {0: 0.55, 4: 0.80}, 2: {0: 0.55, 4: 0.80}}, "b": {1: {0: 0.5}, 2: {0: 0.5}}},
    {1: 0.70, 2: 0.72},
    defense=noise(0.1, 0, 1),
)
