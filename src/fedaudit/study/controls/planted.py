"""The positive control: a small twin of the run with a leak that every attack must find."""

from collections.abc import Iterator

import numpy as np
import torch

from fedaudit.attacks.catalog import attack_named
from fedaudit.core.errors import Refusal
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import Samples
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.metrics import auc_interval
from fedaudit.observe.measurements import Measurements, stacked
from fedaudit.observe.views import View, as_one, seen_from, view_named
from fedaudit.results.record import ControlResult
from fedaudit.signals.measure import measure_round
from fedaudit.study.setup.parts import Setup, Work

CANARIES = 100
REPEATS = 5
OTHERS = 4
ROUNDS = 6
EPOCHS = 2
BATCH = 16
LR = 0.1
CONFIDENCE = 0.99


def planted_leak(setup: Setup, work: Work) -> Iterator[ControlResult]:
    """Trains a small federation whose target memorises mislabelled samples, and attacks it.

    Without a control of this kind "AUC 0.51" cannot be told from a broken attack. Half of the
    canaries, samples with wrong labels drawn at random, are trained on by the target, several
    times over, so that the global model memorises them too and even attacks that look at it
    alone can find them; no client trains on the other half. No defense is in force, and the
    twin trains gently, by federated averaging and settings of its own: a run that has converged or
    jumps about leaves updates in which no attack on gradients finds anything.

    Args:
        setup: The run that is controlled; its model, view and attacks are used.
        work: Which processes train, where they and the measurements calculate, and what is
            called after each of the twin's rounds.
    """
    if not setup.algorithm.architecture.task.classes:
        yield ControlResult(
            control="planted leak",
            target=0,
            seed=setup.seed,
            expected="finds mislabelled samples that the target of a twin run has memorised",
            value=None,
            passed=None,
            note="this task has no classes, and so no sample with a wrong label",
        )
        return
    canaries, is_member = _canaries(setup)
    measured = _measured_twin(setup, canaries, is_member, work)
    for name, attack in setup.on_membership.items():
        result = ControlResult(
            control="planted leak",
            attack=name,
            target=0,
            seed=setup.seed,
            expected="finds mislabelled samples that the target of a twin run has memorised",
            value=None,
            passed=None,
        )
        try:
            # No defense is in force: the target trains on all of its data in every round.
            informed = attack.with_side_information(
                dict.fromkeys(range(1, ROUNDS + 1), torch.tensor(True))
            )
            scores = informed.scores(measured, 0).numpy()
        except Refusal as refusal:
            yield result.model_copy(update={"note": str(refusal)})
            continue
        auc = auc_interval(scores, is_member, confidence=CONFIDENCE)
        found, learned = auc.low > 0.5, attack_named(name).learns
        yield result.model_copy(
            update={
                "value": auc.value,
                "low": auc.low,
                "high": auc.high,
                # What moves otherwise than what was learned from may well be missed.
                "passed": None if learned and not found else found,
                "note": f"{auc.method}; learned on a run that trains otherwise than the twin"
                if learned
                else auc.method,
            }
        )


def _measured_twin(
    setup: Setup, canaries: Samples, is_member: np.ndarray, work: Work
) -> dict[str, Measurements]:
    """The canaries in every round of the twin but the first."""
    members = canaries.take(torch.from_numpy(is_member))
    clients = {0: Samples.joined(*[members] * REPEATS)} | {
        place + 1: data.take(slice(0, len(members)))
        for place, data in enumerate(list(setup.deal.clients.values())[1 : 1 + OTHERS])
    }
    training = LocalTraining(epochs=EPOCHS, batch_size=BATCH, lr=LR)
    rounds = simulate(
        FedAvg(setup.algorithm.architecture, training),
        clients,
        rounds=ROUNDS,
        seed=seed_for(setup.seed, "planted leak"),
        engine=work.engine,
        device=work.device,
    )
    phase = f"seed {setup.seed}: planted leak"
    work.progress(phase, 0, ROUNDS)
    measured = []
    for round in seen_from(rounds, _view(setup)):
        if round.index > 1:
            measured.append(measure_round(round, setup.signals, canaries, device=work.device))
        work.progress(phase, round.index, ROUNDS)
    return stacked(measured)


def _view(setup: Setup) -> View:
    """The adversary of the run; where it attacks several clients as one, so it does in the twin."""
    merged = len(setup.study.audit.merge)
    together = range(min(merged, OTHERS - 1))
    return as_one(view_named(setup.study.audit.view), together) if merged else setup.view


def _canaries(setup: Setup) -> tuple[Samples, np.ndarray]:
    """Unseen audited samples with wrong labels, and which of them the twin's target holds."""
    audit = setup.deal.audit
    pool = audit.samples.take(torch.from_numpy(audit.owner < 0))
    rng = seeded(setup.seed, "canaries")
    chosen = pool.take(torch.randperm(len(pool), generator=rng)[: 2 * CANARIES])
    shift = torch.randint(1, setup.dataset.classes, (len(chosen),), generator=rng)
    wrong = (chosen.labels + shift) % setup.dataset.classes
    is_member = np.arange(len(chosen)) < len(chosen) // 2
    return Samples(chosen.features, wrong, chosen.ids), is_member
