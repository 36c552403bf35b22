"""Epsilon that a defense guarantees, for the whole training and for one round."""

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
    """Return an estimate with the guaranteed epsilon, or with the reason why there is none.

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

    Both epsilons are those of the least protected client. Papers often report epsilon for one
    round. It is not valid against an adversary that sees more rounds, such as the server.

    Args:
        runs: Runs of one study.
    """
    rounds = runs[0].study.training.rounds
    whole_training = _formal_epsilon_over(runs, rounds, FORMAL_EPSILON, "")
    if whole_training is None:
        return []
    if rounds == 1 or whole_training.value is None:  # One round has the same epsilon, or none.
        return [whole_training]
    one_round = _formal_epsilon_over(runs, 1, FORMAL_EPSILON_OF_A_ROUND, "one round alone; ")
    return [whole_training] if one_round is None else [whole_training, one_round]


def _formal_epsilon_over(
    runs: Sequence[Setup], rounds: int, metric: str, scope: str
) -> Estimate | None:
    # Compare all runs, since a client may have fewer samples in another run, where each sample is
    # then drawn more often.
    guarantees = [guarantee for run in runs for guarantee in _guarantees(run, rounds)]
    if not guarantees:
        return None
    weakest_guarantee = max(guarantees, key=lambda guarantee: guarantee.epsilon)
    study, method = runs[0].study, weakest_guarantee.method
    constructor = partial(
        Estimate,
        defense=study.defense.label,
        view=runs[0].view.name,
        contrast="unseen",
        metric=metric,
    )
    reason = f"there is no guarantee: {method}" if method else ""
    unit = f"{scope}unit: {weakest_guarantee.unit}"
    return formal_epsilon(constructor, weakest_guarantee.epsilon, unit, reason, method)


def _guarantees(run: Setup, rounds: int) -> Iterator[Guarantee]:
    """Yield the guarantees of the defended targets; if no target is defended, of all clients."""
    targets = [client for client in run.study.audit.targets if client in run.defenses]
    # Source inference attacks the samples of all clients.
    clients = run.defenses if run.source_attacks or not targets else targets
    for client in clients:
        data_use = replace(
            run.algorithm.data_use(rounds, run.assignment.sizes[client]),
            features=run.dataset.train.features[0].numel(),
        )
        guarantee = run.defenses[client].full_guarantee(data_use, delta=FORMAL_DELTA)
        if guarantee is not None:
            yield guarantee
