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


def formal_epsilon(
    make_estimate: Callable[..., Estimate],
    epsilon: float,
    scope: str,
    reason: str = "",
    method: str = "",
) -> Estimate:
    """Return an estimate with the epsilon of a guarantee, or with the reason why there is none.

    Args:
        make_estimate: Constructor of the estimate.
        epsilon: Epsilon from the accountant; infinite without a guarantee.
        scope: Scope of the guarantee, such as the unit of privacy.
        reason: Reason why there is no guarantee; by default, that there is no noise.
        method: Method of accounting; by default, the Renyi accountant.
    """
    is_guaranteed = isfinite(epsilon)
    return make_estimate(
        value=epsilon if is_guaranteed else None,
        method=method or f"Renyi accountant, delta {FORMAL_DELTA:g}",
        note=scope if is_guaranteed else reason or "without noise there is no guarantee",
    )


def formal_epsilons(runs: Sequence[Setup]) -> list[Estimate]:
    """Return epsilon for the whole training, and for one round in which a client participates.

    Both are those of the least protected client. Papers often report epsilon for one round. It does
    not hold against an adversary that sees more rounds, such as the server.

    Args:
        runs: Runs of one study.
    """
    first, rounds, estimates = runs[0], runs[0].study.training.rounds, list[Estimate]()
    label, view = first.study.defense.label, first.view.name
    for metric, count, scope in (
        (FORMAL_EPSILON, rounds, ""),
        (FORMAL_EPSILON_OF_A_ROUND, 1, "one round alone; "),
    ):
        # In another run, a client may have fewer samples, of which each is drawn more often.
        guarantees = [guarantee for run in runs for guarantee in _guarantees(run, count)]
        weakest = max(guarantees, key=lambda guarantee: guarantee.epsilon, default=None)
        # Without a second round or a guarantee, epsilon of one round adds nothing.
        if weakest is None or (estimates and (rounds == 1 or estimates[0].value is None)):
            break
        method = weakest.method
        reason = f"there is no guarantee: {method}" if method else ""
        constructor = partial(Estimate, defense=label, view=view, contrast="unseen", metric=metric)
        unit = f"{scope}unit: {weakest.unit}"
        estimates.append(formal_epsilon(constructor, weakest.epsilon, unit, reason, method))
    return estimates


def _guarantees(run: Setup, rounds: int) -> Iterator[Guarantee]:
    """Yield the guarantees of the defended targets; if no target is defended, of all clients."""
    targets = [client for client in run.study.audit.targets if client in run.defenses]
    # Source inference attacks samples of all clients.
    targets = [] if run.source_attacks else targets
    for client in targets or run.defenses:
        workload = replace(
            run.algorithm.workload(rounds, run.assignment.sizes[client]),
            features=run.dataset.train.features[0].numel(),
        )
        guarantee = run.defenses[client].guarantee(workload, delta=FORMAL_DELTA)
        if guarantee is not None:
            yield guarantee
