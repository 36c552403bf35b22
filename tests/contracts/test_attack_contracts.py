"""Contract of every attack in the catalogue, with default settings."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.api.contracts.attacks import ATTACK_CONTRACTS, AttackCase
from fedaudit.api.contracts.base import name_of
from fedaudit.attacks import ATTACKS
from fedaudit.attacks.base import Attack
from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.core.seeds import seeded
from fedaudit.core.sights import SIGHTS
from fedaudit.core.values import Architecture, Capability, ClientId, Samples, scaled
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.metrics import auc_interval
from fedaudit.observe.measurements import MeasuredRound, Measurements, stacked
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.observe.views import VIEWS, seen_from
from fedaudit.results.record import SOURCE_RULE_SUFFIX
from fedaudit.signals.measure import measure
from tests.output_kinds import EVERY_OUTPUT_KIND
from tests.samples import random_samples

FEATURES, CLASSES, CLIENTS, CANARIES = 96, 4, 5, 60
"""More features and units than a client has different samples: with fewer, the span of an update
is the whole space, and the projection residual is nearly 0 for all samples."""
TARGET = 1
SIGNALS = tuple({s.name: s for attack in ATTACKS.values() for s in attack.signals}.values())

PARTS: dict[Capability, str] = {
    Capability.PREDICTIONS: "local",
    Capability.GLOBAL_MODEL: "base",
    Capability.UPDATE: "update",
    Capability.CONTROL_VARIATES: "control_variate",
}
"""The attribute of an observed upload that each kind of knowledge reveals."""


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def samples(count: int, purpose: str, first_id: int = 0) -> Samples:
    return random_samples(seeded(5, purpose), count, FEATURES, classes=CLASSES, first=first_id)


# Labels that are independent of the features can only be memorised.
HELD = samples(CANARIES, "held")
UNSEEN = samples(CANARIES, "unseen", CANARIES)
AUDITED = Samples.concatenate(HELD, UNSEEN)
SHADOW_HELD = samples(CANARIES, "shadow held", 20_000)
SHADOW_UNSEEN = samples(CANARIES, "shadow unseen", 21_000)
SHADOW = Samples.concatenate(SHADOW_HELD, SHADOW_UNSEEN)
NON_MEMBERS = samples(400, "nobody's", 5000)


def federation(memorised: Samples, seed: int) -> tuple[Round, ...]:
    """Simulate a run in which the target memorises some samples."""
    clients = {
        c: samples(CANARIES, f"client {c} of {seed}", 1000 * (c + 1)) for c in range(CLIENTS)
    }
    clients[TARGET] = Samples.concatenate(*[memorised] * 5)
    algorithm = FedAvg(
        Architecture("net", partial(net), task=EVERY_OUTPUT_KIND),
        LocalTraining(epochs=2, batch_size=16, lr=0.1),
    )
    return tuple(map(with_control_variates, simulate(algorithm, clients, rounds=5, seed=seed)))[1:]


def with_control_variates(round: Round) -> Round:
    """Return a round in which each client's control variate is the negative update."""
    observed = {
        client: replace(models, control_variate=scaled(models.update or {}, -1.0))
        for client, models in round.observed.items()
    }
    return replace(round, observed=observed)


@cache
def trained() -> tuple[Round, ...]:
    """Return a run in which the target memorised the first half of the audited samples."""
    return federation(HELD, 3)


@cache
def reference(seed: int) -> tuple[Round, ...]:
    """Return a shadow run without any audited sample."""
    return federation(SHADOW_HELD, seed)


@cache
def ready(name: str, without_members: bool = False) -> Attack:
    """Return the attack, ready to score.

    A learned attack is fitted on another run with other samples. An attack with reference models
    has two, measured on the attacked samples.
    """
    # Side information: the target may have trained on all samples in all rounds.
    attack = ATTACKS[name].with_side_information(dict.fromkeys(range(1, 6), torch.tensor(True)))
    if attack.needs_references:
        attacked = NON_MEMBERS if without_members else AUDITED
        references = [
            stacked(measure(reference(seed), attack.signals, attacked)) for seed in (6, 7)
        ]
        never = torch.zeros(len(references), len(attacked), dtype=torch.bool)
        return attack.with_references(references, TARGET, never)
    if not attack.learns:
        return attack
    cubes = stacked(measure(federation(SHADOW_HELD, 4), attack.signals, SHADOW))
    return attack.fitted(cubes, torch.arange(len(SHADOW)) < CANARIES, TARGET, 5)


@pytest.fixture(params=ATTACKS)
def attack(request: pytest.FixtureRequest) -> Attack:
    """Each attack of the catalogue."""
    return ready(request.param)


@cache
def measured(without_members: bool = False) -> Mapping[str, Measurements]:
    """Measure all signals of the audited samples, or of samples without members."""
    return stacked(measure(trained(), SIGNALS, NON_MEMBERS if without_members else AUDITED))


def renamed(
    rounds: Iterator[MeasuredRound], names: Mapping[ClientId, ClientId]
) -> dict[str, Measurements]:
    """Return the same measurements with other client IDs, sorted by ID."""
    renumbered = []
    for measured_round in rounds:
        new = [names[client] for client in measured_round.clients]
        order = np.argsort(new).tolist()
        renumbered.append(
            MeasuredRound(
                measured_round.index,
                tuple(sorted(new)),
                measured_round.bases[order],
                {name: values[order] for name, values in measured_round.signals.items()},
            )
        )
    return stacked(renumbered)


def measured_rounds() -> Iterator[MeasuredRound]:
    """Yield the measurements round by round."""
    cubes = measured()
    first = next(iter(cubes.values()))
    for row, index in enumerate(first.rounds):
        values = {name: cube.values[row] for name, cube in cubes.items()}
        yield MeasuredRound(index, first.clients, first.bases[row], values)


@pytest.mark.parametrize("contract", ATTACK_CONTRACTS, ids=name_of)
def test_attacks_fulfil_the_contracts_of_check_part(
    attack: Attack, contract: Callable[[AttackCase], str]
) -> None:
    assert contract(AttackCase(attack, measured(), TARGET, len(HELD))) == ""


def test_arbitrary_client_ids_give_equal_scores(attack: Attack) -> None:
    names = dict(enumerate([70, 4, 33, 1, 90]))
    scores = attack.scores(renamed(measured_rounds(), names), names[TARGET])
    torch.testing.assert_close(scores, attack.scores(measured(), TARGET), rtol=1e-9, atol=1e-9)


def without(rounds: tuple[Round, ...], hidden: Capability) -> Iterator[Round]:
    """Return the rounds without the parts that some knowledge reveals."""
    gone = dict.fromkeys((part for sees, part in PARTS.items() if sees in hidden))
    for round in rounds:
        observed = {
            client: ObservedModels(**{**vars(full), "gradient_scale": None, **gone})
            for client, full in round.observed.items()
        }
        after = {} if Capability.NEXT_MODEL in hidden else round.after
        yield replace(round, observed=observed, sent={}, uploads={}, after=after)


def test_attacks_run_with_only_the_parts_that_they_need(attack: Attack) -> None:
    rounds = trained() if Capability.ROUNDS in attack.needs else trained()[-1:]
    if not attack.needs & (Capability.UPLOADS | Capability.CONTROL_VARIATES):
        rounds = tuple(seen_from(rounds, VIEWS["sum"]))
    cubes = stacked(measure(without(rounds, ~attack.needs), attack.signals, AUDITED))
    assert bool(attack.scores(cubes, TARGET).isfinite().all())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        (name, part)
        for name, attack in ATTACKS.items()
        for part in (*PARTS, Capability.NEXT_MODEL)
        if part in attack.needs
    ],
)
def test_attacks_raise_if_a_needed_part_is_hidden(name: str, part: Capability) -> None:
    with pytest.raises(NotVisible, match="hides"):
        list(measure(without(trained(), part), ATTACKS[name].signals, AUDITED))


COMPARING = [
    name
    for name, attack in ATTACKS.items()
    if Capability.UPLOADS in attack.needs and Capability.CONTROL_VARIATES not in attack.needs
]


@pytest.mark.parametrize("name", COMPARING)
def test_attacks_on_single_uploads_raise_for_the_sum_view(name: str) -> None:
    rounds = seen_from(trained(), VIEWS["sum"])
    cubes = stacked(measure(rounds, ATTACKS[name].signals, AUDITED))
    with pytest.raises(NotVisible, match="other clients"):
        ready(name).scores(cubes, TARGET)


def test_an_insufficient_view_raises_with_the_missing_part(attack: Attack) -> None:
    for name, weak in VIEWS.items():
        missing = attack.needs & ~weak.offers
        if missing:
            sight = SIGHTS[str(next(iter(missing)).name).lower()]
            with pytest.raises(NotVisible, match=f"(?s){sight}.*{name}"):
                weak.raise_unless_offered(attack.needs, "the attack")
        else:
            weak.raise_unless_offered(attack.needs, "the attack")


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_at_chance_without_members(name: str) -> None:
    attack = ready(name, without_members=ATTACKS[name].needs_references)
    scores = attack.scores(measured(without_members=True), TARGET).numpy()
    called_members = np.arange(len(NON_MEMBERS)) % 2 == 0
    auc = auc_interval(scores, called_members, confidence=0.99)
    assert auc.low <= 0.5 <= auc.high


def test_attacks_state_description_source_and_rules(attack: Attack) -> None:
    assert attack.source
    assert attack.about.endswith(".")
    assert attack.rule.client_aggregation
    assert attack.rule.round_aggregation


@pytest.mark.parametrize(
    "name", [name for name, attack in ATTACKS.items() if attack.needs_side_information]
)
def test_adaptive_attacks_raise_without_defense_information(name: str) -> None:
    with pytest.raises(BadInput, match="needs to know which samples"):
        ATTACKS[name].scores(measured(), TARGET)


@pytest.mark.parametrize(
    "name", [name for name, attack in ATTACKS.items() if attack.needs_references]
)
def test_reference_attacks_raise_without_reference_models(name: str) -> None:
    with pytest.raises(BadInput, match="has none"):
        ATTACKS[name].scores(measured(), TARGET)
    assert Capability.REFERENCE_MODELS in ATTACKS[name].needs


LEARNING = [name for name, attack in ATTACKS.items() if attack.learns]


@pytest.mark.parametrize("name", LEARNING)
def test_learned_attacks_raise_before_fitting(name: str) -> None:
    with pytest.raises(BadInput, match="is not fitted"):
        ATTACKS[name].scores(measured(), TARGET)


@pytest.mark.parametrize("name", LEARNING)
def test_learned_attacks_need_auxiliary_data(name: str) -> None:
    assert Capability.AUXILIARY_DATA in ATTACKS[name].needs


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_fitting_depends_only_on_the_seed(name: str) -> None:
    scores, threads = [], torch.get_num_threads()
    for seed in (5, 5, 6):
        cubes = {n: replace(m, values=m.values[:, :, :60]) for n, m in measured().items()}
        before = torch.get_rng_state()
        fitted = ATTACKS[name].fitted(cubes, torch.arange(60) % 2 == 0, TARGET, seed)
        assert torch.equal(torch.get_rng_state(), before), "the global generator plays no part"
        scores.append(fitted.scores(measured(), TARGET))
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", LEARNING)
def test_fitting_on_members_only_raises(name: str) -> None:
    with pytest.raises(BadInput, match=f"{len(AUDITED)} members among {len(AUDITED)}"):
        ATTACKS[name].fitted(measured(), torch.ones(len(AUDITED), dtype=torch.bool), TARGET, 5)


@pytest.mark.parametrize("name", ATTACKS)
def test_source_attacks_are_marked_by_their_rule_over_clients(name: str) -> None:
    attack = ATTACKS[name]
    assert attack.rule.client_aggregation.endswith(SOURCE_RULE_SUFFIX) == attack.infers_source
