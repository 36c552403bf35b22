"""Formal epsilon that a defense guarantees, for the whole training and for one round."""

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
    """Return the figure of a guaranteed epsilon, or the reason why there is no guarantee.

    Args:
        figure: Function that constructs the figure.
        epsilon: Epsilon from the accountant; infinite without a guarantee.
        note: Scope of the guarantee.
        unclaimed: Reason why there is no guarantee; by default, that there is no noise.
        method: Method of accounting; by default, the Renyi accountant.
    """
    is_guaranteed = isfinite(epsilon)
    return figure(
        value=epsilon if is_guaranteed else None,
        method=method or f"Renyi accountant, delta {FORMAL_DELTA:g}",
        note=note if is_guaranteed else unclaimed or "without noise there is no guarantee",
    )


def formal_epsilons(runs: Sequence[Setup]) -> list[Estimate]:
    """Return epsilon for the whole training, and for one round in which a client participates.

    Papers often report epsilon for one round. It does not hold against an adversary that sees more
    rounds, such as the server.

    Args:
        runs: Runs of one study. Each figure is that of the least protected client.
    """
    first, rounds, figures = runs[0], runs[0].study.training.rounds, list[Estimate]()
    label, view = first.study.defense.label, first.view.name
    for metric, count, scope in (
        (FORMAL_EPSILON, rounds, ""),
        (FORMAL_EPSILON_OF_A_ROUND, 1, "one round alone; "),
    ):
        # In another run, a client may have fewer samples, of which each is drawn more often.
        guarantees = [guarantee for run in runs for guarantee in _guarantees(run, count)]
        weakest = max(guarantees, key=lambda guarantee: guarantee.epsilon, default=None)
        if weakest is None or (figures and (rounds == 1 or figures[0].value is None)):
            break
        method = weakest.method
        unclaimed = f"there is no guarantee: {method}" if method else ""
        figure = partial(Estimate, defense=label, view=view, contrast="unseen", metric=metric)
        note = f"{scope}unit: {weakest.unit}"
        figures.append(accounted(figure, weakest.epsilon, note, unclaimed, method))
    return figures


def _guarantees(run: Setup, rounds: int) -> Iterator[Guarantee]:
    """Yield the guarantees of defended targets, or of all defended clients without such targets."""
    targets = [client for client in run.study.audit.targets if client in run.defenses]
    # Source inference attacks samples of all clients.
    targets = [] if run.on_source else targets
    for client in targets or run.defenses:
        work = replace(
            run.algorithm.workload(rounds, run.deal.sizes[client]),
            features=run.dataset.train.features[0].numel(),
        )
        guarantee = run.defenses[client].guarantee(work, delta=FORMAL_DELTA)
        if guarantee is not None:
            yield guarantee
