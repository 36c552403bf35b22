"""Figures on what a defense guarantees: its formal epsilon, of a whole training and of a round."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite

from fedaudit.core.metric_names import FORMAL_EPSILON, FORMAL_EPSILON_OF_A_ROUND
from fedaudit.fl.accounting import FORMAL_DELTA
from fedaudit.fl.hooks import Guarantee
from fedaudit.plan.parts import Setup
from fedaudit.results.estimate import Estimate


def accounted(
    figure: Callable[..., Estimate],
    epsilon: float,
    note: str,
    unclaimed: str = "",
    method: str = "",
) -> Estimate:
    """Return the figure of a guaranteed epsilon, or the reason why nothing is guaranteed.

    Args:
        figure: Makes the figure.
        epsilon: By the accountant; infinite without a guarantee.
        note: What the epsilon is about.
        unclaimed: Why there is no guarantee; by default for want of noise.
        method: Another than the Renyi accountant, which is the default.
    """
    finite = isfinite(epsilon)
    return figure(
        value=epsilon if finite else None,
        method=method or f"Renyi accountant, delta {FORMAL_DELTA:g}",
        note=note if finite else unclaimed or "without noise there is no guarantee",
    )


def formal_epsilons(runs: Sequence[Setup]) -> list[Estimate]:
    """Return the epsilon of the whole training, and of one round in which a client takes part.

    That of a round is what papers often print. It does not hold for an adversary that sees more
    rounds: the budget of the training is what holds for the server.

    Args:
        runs: Of one study. Each figure is that of the client that is protected least.
    """
    first, rounds, found = runs[0], runs[0].study.training.rounds, list[Estimate]()
    label, view = first.study.defense.label, first.view.name
    for metric, asked, what in (
        (FORMAL_EPSILON, rounds, ""),
        (FORMAL_EPSILON_OF_A_ROUND, 1, "one round alone; "),
    ):
        # Of all runs: another seed may deal a client fewer samples, which are drawn more often.
        guarantees = [guarantee for run in runs for guarantee in _guarantees(run, asked)]
        weakest = max(guarantees, key=lambda guarantee: guarantee.epsilon, default=None)
        if weakest is None or (found and (rounds == 1 or found[0].value is None)):
            break
        method = weakest.method
        unclaimed = f"there is no guarantee: {method}" if method else ""
        figure = partial(Estimate, defense=label, view=view, contrast="unseen", metric=metric)
        note = f"{what}unit: {weakest.unit}"
        found.append(accounted(figure, weakest.epsilon, note, unclaimed, method))
    return found


def _guarantees(run: Setup, rounds: int) -> Iterator[Guarantee]:
    """Yield those of the defended targets; of all defended clients if no target is among them.

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
