"""Figures on what a defense guarantees: its formal epsilon, of a whole training and of a round."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fedaudit.core.metric_names import FORMAL_EPSILON, FORMAL_EPSILON_OF_A_ROUND
from fedaudit.fl.accounting import FORMAL_DELTA
from fedaudit.fl.hooks import Guarantee
from fedaudit.results.estimate import Estimate
from fedaudit.study.setup.parts import Setup


def formal_epsilons(runs: Sequence[Setup]) -> list[Estimate]:
    """The epsilon of the whole training, and that of one round in which a client takes part.

    That of a round is what papers often print. It says nothing of somebody who sees more rounds:
    the budget of the training is what holds for the server.

    Args:
        runs: Of one study. Each figure is that of the client that is protected least.
    """
    rounds = runs[0].study.training.rounds
    whole = _weakest(runs, rounds)
    if whole is None:
        return []
    found = [_figure(runs[0], FORMAL_EPSILON, whole, "")]
    one = _weakest(runs, 1)
    if one is not None and rounds > 1 and whole.epsilon < float("inf"):
        found.append(_figure(runs[0], FORMAL_EPSILON_OF_A_ROUND, one, "one round alone; "))
    return found


def _figure(run: Setup, metric: str, weakest: Guarantee, of_what: str) -> Estimate:
    finite = weakest.epsilon < float("inf")
    return Estimate(
        defense=run.study.defense.label,
        view=run.view.name,
        contrast="unseen",
        metric=metric,
        value=weakest.epsilon if finite else None,
        method=weakest.method or f"Renyi accountant, delta {FORMAL_DELTA:g}",
        note=f"{of_what}unit: {weakest.unit}" if finite else _nothing(weakest),
    )


def _nothing(guarantee: Guarantee) -> str:
    if guarantee.method:
        return f"there is no guarantee: {guarantee.method}"
    return "without noise there is no guarantee"


def _weakest(runs: Sequence[Setup], rounds: int) -> Guarantee | None:
    # Of all runs: another seed may deal a client fewer samples, which are drawn more often.
    guarantees = [guarantee for run in runs for guarantee in _guarantees(run, rounds)]
    return max(guarantees, key=lambda guarantee: guarantee.epsilon, default=None)


def _guarantees(run: Setup, rounds: int) -> Iterator[Guarantee]:
    """Those of the defended targets; of all defended clients where no target is among them.

    Source inference asks about everybody's samples, and all defended clients count.
    """
    targets = [client for client in run.study.audit.targets if client in run.defenses]
    targets = [] if run.on_source else targets
    for client in targets or run.defenses:
        work = replace(
            run.algorithm.workload(rounds, run.deal.sizes[client]),
            features=run.dataset.train.features[0].numel(),
        )
        guarantee = run.defenses[client].guarantee(work, delta=FORMAL_DELTA)
        if guarantee is not None:
            yield guarantee
