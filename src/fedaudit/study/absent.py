"""Clients under audit that never take part while the adversary looks."""

from fedaudit.core.errors import BadInput
from fedaudit.core.values import Sees
from fedaudit.fl.visits import cohort_of
from fedaudit.study.parts import Setup


def refuse_absent_targets(run: Setup) -> None:
    """Refuses a run in which the adversary would never see a client under audit.

    Args:
        run: Who is asked when follows from its seed alone.

    Raises:
        BadInput: A target is asked in none of the measured rounds.
    """
    if Sees.UPLOADS not in run.view.offers or not run.on_membership:
        return
    clients, share = sorted(run.deal.clients), run.study.training.participation
    seed = run.trainers.seed
    rounds = [cohort_of(clients, share, seed, index) for index in run.measured_rounds]
    seen = {client for cohort in rounds for client in cohort}
    merged = set(run.study.audit.merge)
    for target in run.study.audit.targets:
        if not seen & (merged if target in merged else {target}):
            raise BadInput(
                f"client {target} takes part in no measured round of seed {run.seed} (rounds "
                f"measured: {len(rounds)}), so that nothing of it would be seen; raise "
                "training.participation, measure more rounds (training.rounds, audit.every), or "
                "audit another client"
            )
