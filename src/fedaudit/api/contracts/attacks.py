"""Contracts of attacks. Each returns a message if it is violated, and otherwise "".

An attack consists of signals, which it measures, and of a rule, the function that turns the
measurements into scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor, nn

from fedaudit.api.contracts.base import GLOBAL_GENERATOR_MESSAGE, uses_global_generator
from fedaudit.attacks.base import Attack
from fedaudit.core.errors import Unsupported
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, ClientId, Samples, scaled
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.metrics import auc_interval
from fedaudit.observe.measurements import Measurements, stacked
from fedaudit.observe.round import Round
from fedaudit.signals.measure import measure

_FEATURES, _CLASSES, _CLIENTS, _SAMPLES_PER_SET = 96, 4, 5, 60
_TARGET: ClientId = 1


@dataclass(frozen=True)
class AttackCase:
    """Attack that is ready to score, with measurements of its signals.

    Attributes:
        attack: The attack, with all that it needs to score.
        measured: Measurements by signal.
        target: The attacked client.
        n_members: The first ``n_members`` samples are members, which the target memorised; the
            others are unseen.
    """

    attack: Attack
    measured: Mapping[str, Measurements]
    target: ClientId
    n_members: int

    @property
    def scores(self) -> Tensor:
        """Scores of all samples."""
        return self.attack.scores(self.measured, self.target)

    def of_samples(self, rows: Tensor) -> Tensor:
        """Return the scores of some samples, measured in this order."""
        measured = {
            name: replace(cube, values=cube.values[:, :, rows])
            for name, cube in self.measured.items()
        }
        return self.attack.on_samples(rows).scores(measured, self.target)


def scores_are_finite(case: AttackCase) -> str:
    """There is one finite score of type float64 for each sample."""
    n_samples, scores = next(iter(case.measured.values())).values.shape[2], case.scores
    if scores.shape != (n_samples,):
        return f"scores have the shape {tuple(scores.shape)} instead of ({n_samples},)"
    if scores.dtype != torch.float64:
        return f"scores have the type {scores.dtype}; convert them with .double()"
    n_infinite = int((~scores.isfinite()).sum())
    return f"{n_infinite} of {n_samples} scores are not finite" if n_infinite else ""


def scores_are_deterministic(case: AttackCase) -> str:
    """The same measurements give the same scores."""
    if uses_global_generator(lambda: case.scores):
        return GLOBAL_GENERATOR_MESSAGE
    same = torch.equal(case.scores, case.scores)
    return "" if same else "two calls differ; use no random numbers, or draw them from a fixed seed"


def order_does_not_matter(case: AttackCase) -> str:
    """Scores do not depend on the order of samples."""
    order = torch.randperm(len(case.scores), generator=seeded(0, "order"))
    if torch.equal(case.of_samples(order), case.scores[order]):
        return ""
    return "shuffled samples have other scores; do not use the position of a sample"


def other_samples_do_not_matter(case: AttackCase) -> str:
    """The score of a sample does not depend on the other audited samples."""
    alone = case.of_samples(torch.tensor([7]))
    if torch.equal(alone, case.scores[7:8]):
        return ""
    return (
        "a sample alone has another score than among others; compare it with other clients or "
        "rounds, but not with other audited samples, since half of them are members"
    )


def client_ids_do_not_matter(case: AttackCase) -> str:
    """Scores do not depend on the numbers of clients."""
    renamed = {
        name: replace(cube, clients=tuple(10 * client + 3 for client in cube.clients))
        for name, cube in case.measured.items()
    }
    if torch.equal(case.attack.scores(renamed, 10 * case.target + 3), case.scores):
        return ""
    return "other client numbers give other scores; look clients up in measurements.clients"


def members_score_higher(case: AttackCase) -> str:
    """Samples that the target memorised score higher than unseen ones."""
    scores = case.scores.numpy()
    auc = auc_interval(scores, np.arange(len(scores)) < case.n_members, confidence=0.99)
    if auc.low > 0.5:
        return ""
    return (
        f"the AUC on memorised samples is {auc.value:.3f} ({auc.low:.3f} to {auc.high:.3f}); "
        "scores must be larger for members"
    )


def description_is_complete(case: AttackCase) -> str:
    """The attack states its source, and its rule how it combines clients and rounds."""
    rule = case.attack.rule
    missing = [
        name
        for name, value in (
            ("source", case.attack.source),
            ("rule.client_aggregation", rule.client_aggregation),
            ("rule.round_aggregation", rule.round_aggregation),
        )
        if not value
    ]
    return f"{', '.join(missing)} is empty; reports print it" if missing else ""


ATTACK_CONTRACTS = (
    description_is_complete,
    scores_are_finite,
    scores_are_deterministic,
    order_does_not_matter,
    other_samples_do_not_matter,
    client_ids_do_not_matter,
    members_score_higher,
)
"""All contracts of attacks."""


def attack_case(attack: Attack) -> AttackCase:
    """Return an attack with measurements of a small run in which the target memorised samples.

    A learned attack is fitted on another run. An attack with reference models has two of them.

    Raises:
        Unsupported: The attack identifies sources of samples.
    """
    if attack.infers_source:
        raise Unsupported(
            "contracts exist for membership attacks, but this attack identifies the client of a "
            "sample; check it on a study with a known answer"
        )
    memorised, unseen = _samples("held"), _samples("unseen", first_id=_SAMPLES_PER_SET)
    audited = Samples.concatenate(memorised, unseen)
    # The side information of a round states which samples the target may have trained on: here all.
    attack = attack.with_side_information(dict.fromkeys(range(1, 6), torch.tensor(True)))
    shadow_memorised = _samples("shadow held", first_id=20_000)
    shadow_unseen = _samples("shadow unseen", first_id=21_000)
    if attack.needs_references:
        references = [
            stacked(measure(_federation(shadow_memorised, seed), attack.signals, audited))
            for seed in (6, 7)
        ]
        trained_on = torch.zeros(len(references), len(audited), dtype=torch.bool)
        attack = attack.with_references(references, _TARGET, trained_on)
    elif attack.learns:
        shadow = Samples.concatenate(shadow_memorised, shadow_unseen)
        cubes = stacked(measure(_federation(shadow_memorised, 4), attack.signals, shadow))
        attack = attack.fitted(cubes, torch.arange(len(shadow)) < _SAMPLES_PER_SET, _TARGET, seed=5)
    measured = stacked(measure(_federation(memorised, 3), attack.signals, audited))
    return AttackCase(attack, measured, _TARGET, len(memorised))


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(_FEATURES, 64), nn.ReLU(), nn.Linear(64, _CLASSES))


@cache
def _samples(purpose: str, *, first_id: int = 0) -> Samples:
    rng = seeded(5, purpose)
    # Labels that are independent of the features can only be memorised.
    return Samples(
        torch.randn(_SAMPLES_PER_SET, _FEATURES, generator=rng),
        torch.randint(0, _CLASSES, (_SAMPLES_PER_SET,), generator=rng),
        torch.arange(_SAMPLES_PER_SET) + first_id,
    )


def _federation(memorised: Samples, seed: int) -> Sequence[Round]:
    """Simulate a run in which the target memorises some samples."""
    clients = {
        c: _samples(f"client {c} of {seed}", first_id=1000 * (c + 1)) for c in range(_CLIENTS)
    }
    clients[_TARGET] = Samples.concatenate(*[memorised] * 5)
    algorithm = FedAvg(
        Architecture("net", partial(_net)), LocalTraining(epochs=2, batch_size=16, lr=0.1)
    )
    rounds = [_with_control_variates(r) for r in simulate(algorithm, clients, rounds=5, seed=seed)]
    return rounds[1:]


def _with_control_variates(round: Round) -> Round:
    """Return a round in which each client's control variate is the negative update."""
    observed = {
        client: replace(models, control_variate=scaled(models.update or {}, -1.0))
        for client, models in round.observed.items()
    }
    return replace(round, observed=observed)
