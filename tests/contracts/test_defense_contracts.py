"""Contract of every defense in the catalogue."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from inspect import signature
from itertools import islice, permutations
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedaudit.api.contracts.base import name_of
from fedaudit.api.contracts.defenses import DEFENSE_CONTRACTS, DefenseCase
from fedaudit.core.devices import device_named
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import (
    Architecture,
    Model,
    Params,
    Samples,
    Setting,
    add_scaled,
    flat,
    weighted_sum,
)
from fedaudit.defenses import DEFENSES, create_defense
from fedaudit.engines.base import Engine
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import ClientContext, Defense, Plan
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Gradient, Logits, Round, Update, Upload
from fedaudit.signals.base import VisibleRound
from fedaudit.signals.outputs import Loss
from tests.crew import started
from tests.simulated_gpu import simulated_gpu


def halved(update: Params) -> Params:
    return {name: value.mul_(0.5) for name, value in update.items()}


NEUTRAL: dict[str, Mapping[str, Setting]] = {
    "none": {},
    "gradient-noise": {"sigma": 0.0},
    "client-dp": {"clip": float("inf"), "noise_multiplier": 0.0},
    "dp-sgd": {"clip": float("inf"), "noise_multiplier": 0.0},
    "sparsification": {"ratio": 0.0},
    "quantization": {"bits": 32},
    "data-sampling": {"share": 1.0},
    "filter": {"path": "copy:copy"},
    "mixup": {"alpha": 0.0},
    "augmentation": {
        "padding": 0,
        "horizontal_flip": 0.0,
        "vertical_flip": 0.0,
        "rotation": 0.0,
        "brightness": 0.0,
        "contrast": 0.0,
    },
    "relaxloss": {"target_loss": 0.0},
    "hamp": {"entropy_threshold": 0.0, "entropy_weight": 0.0, "divide_by_classes": False},
    "cofedmid": {"m_max": 3, "m_min": 3, "recycle": 0.0, "sigma": 0.0},
    "class-guided": {"m_max": 3, "m_min": 3},
    "compensation": {"m_max": 3, "m_min": 3, "recycle": 0.0},
    "neutral-noise": {"sigma": 0.0},
    "bitrand": {"nominal_epsilon": float("inf")},
    "ome": {"nominal_epsilon": float("inf")},
    "bitwise-rr": {"epsilon": float("inf")},
    "ldp-laplace": {"epsilon": float("inf"), "clip": float("inf")},
    "ldp-gaussian": {"epsilon": float("inf"), "clip": float("inf")},
}
"""Settings with which a defense has no effect, by defense."""

ACTIVE: dict[str, Mapping[str, Setting]] = {
    "gradient-noise": {"sigma": 0.01},
    "client-dp": {"clip": 0.1, "noise_multiplier": 1.0},
    "dp-sgd": {"clip": 0.1, "noise_multiplier": 1.0},
    "sparsification": {"ratio": 0.5},
    "quantization": {"bits": 2},
    "data-sampling": {"share": 0.5},
    "filter": {"path": f"{__name__}:halved"},
    "mixup": {"alpha": 1.0},
    "augmentation": {"padding": 1},
    "relaxloss": {"target_loss": 1.0},
    "hamp": {"entropy_threshold": 0.5, "entropy_weight": 0.01},
    "cofedmid": {"m_max": 2, "m_min": 1, "start": 1, "recycle": 0.3},
    "class-guided": {"m_max": 2, "m_min": 1},
    "compensation": {"m_max": 2, "m_min": 1, "start": 1, "recycle": 0.3},
    "neutral-noise": {},
    "bitrand": {"nominal_epsilon": 5.0},
    "ome": {"nominal_epsilon": 5.0},
    "bitwise-rr": {"epsilon": 20.0},
    "ldp-laplace": {"epsilon": 5.0, "clip": 2.0},
    "ldp-gaussian": {"epsilon": 5.0, "clip": 2.0},
}
"""Settings with which a defense has an effect, by defense."""

nan, inf = float("nan"), float("inf")
Rows = list[tuple[str, str, tuple[Setting, ...], str]]
MODULES = "cofedmid compensation"
REFUSED: Rows = [
    ("gradient-noise", "sigma", (-1.0, nan, inf), "sigma of .* takes"),
    ("client-dp dp-sgd", "clip", (0.0,), "clip of .* takes"),
    ("client-dp dp-sgd", "clip", (inf,), "give a finite clip, or noise_multiplier=0"),
    ("client-dp", "noise_multiplier", (-1.0, inf), "noise_multiplier of .* takes"),
    ("dp-sgd", "noise_multiplier", (-1.0,), "noise_multiplier of .* takes"),
    ("dp-sgd", "multiplicity", (0,), "multiplicity of .* takes"),
    ("dp-sgd", "padding", (-1,), "padding of .* takes"),
    ("dp-sgd", "horizontal_flip", (2.0,), "horizontal_flip of .* takes"),
    ("sparsification", "ratio", (-0.1, 1.1, nan), "ratio of .* takes"),
    ("sparsification", "scope", ("globaly",), "did you mean 'global'"),
    ("quantization", "bits", (0, -1, 11, 31, 33), "bits of .* takes"),
    ("quantization", "rounding", ("stochastical",), "did you mean 'stochastic'"),
    ("data-sampling", "share", (0.0, -0.5, 1.5, nan), "share of .* takes"),
    ("data-sampling", "every", ("epochs",), "did you mean 'epoch'"),
    ("filter", "path", ("math:pi",), "is a float"),
    ("mixup", "alpha", (-0.1, inf, nan), "alpha of .* takes"),
    ("mixup", "mixes", ("legacy-label-only",), "did you mean 'legacy_label_only'"),
    ("augmentation", "padding", (-1,), "padding of .* takes"),
    ("augmentation", "horizontal_flip", (1.1,), "horizontal_flip of .* takes"),
    ("augmentation", "vertical_flip", (-0.1,), "vertical_flip of .* takes"),
    ("augmentation", "rotation", (181.0,), "rotation of .* takes"),
    ("augmentation", "brightness", (1.1,), "brightness of .* takes"),
    ("augmentation", "contrast", (nan,), "contrast of .* takes"),
    ("relaxloss", "target_loss", (-1.0, inf), "target_loss of .* takes"),
    ("relaxloss", "upper", (1.1,), "upper of .* takes"),
    ("relaxloss", "form", ("image",), "did you mean 'images'"),
    ("hamp", "entropy_threshold", (1.5, -0.1), "entropy_threshold of .* takes"),
    ("hamp", "entropy_weight", (-1.0, nan), "entropy_weight of .* takes"),
    (f"class-guided {MODULES}", "m_max", (-1,), "m_max of .* takes"),
    (f"class-guided {MODULES}", "m_min", (-1,), "m_min of .* takes"),
    (f"class-guided {MODULES}", "decay", ("linar",), "did you mean 'linear'"),
    (f"class-guided {MODULES}", "assignment", ("greedy",), "assignment of .* takes"),
    (MODULES, "start", (0,), "start of .* takes"),
    (MODULES, "intervals", (0,), "intervals of .* takes"),
    (MODULES, "recycle", (1.1,), "recycle of .* takes"),
    (MODULES, "recycling", ("eps-greedy",), "recycling of .* takes"),
    (MODULES, "validation", (1.0,), "validation of .* takes"),
    (MODULES, "validation", (0.0,), "learns from validation samples"),
    (MODULES, "mu", (-1.0,), "mu of .* takes"),
    ("cofedmid neutral-noise", "sigma", (-1.0, inf), "sigma of .* takes"),
    ("cofedmid neutral-noise", "ratio", (0.0, 1.1), "ratio of .* takes"),
    ("cofedmid neutral-noise", "noise", ("vectors",), "noise of .* takes"),
    ("bitrand ome", "nominal_epsilon", (0.0, -1.0, nan), "nominal_epsilon of .* takes"),
    ("bitwise-rr ldp-laplace ldp-gaussian", "epsilon", (0.0, -1.0, nan), "epsilon of .* takes"),
    ("bitrand ome bitwise-rr", "bits", (1, 20), "bits of .* takes"),
    ("bitrand ome bitwise-rr", "integer_bits", (-1, 99), "integer_bits of .* takes"),
    ("bitrand ome bitwise-rr", "integer_bits", (12,), "bits is the sign"),
    ("ome", "alpha", (0.0, inf, nan), "alpha of .* takes"),
    ("bitwise-rr", "split", ("linaer",), "did you mean 'linear'"),
    ("ldp-laplace ldp-gaussian", "clip", (0.0, -1.0, nan), "clip of .* takes"),
    ("ldp-laplace ldp-gaussian", "clip", (inf,), "give a finite clip"),
    ("ldp-gaussian", "delta", (0.0, 1.0, 1e-13, nan), "delta of .* takes"),
]
"""Names of defenses, a setting, invalid values of it, and a pattern of the error message."""
WRONG = [
    (name, setting, value, message)
    for names, setting, values, message in REFUSED
    for name in names.split()
    for value in values
]


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def samples(client: int) -> Samples:
    rng = seeded(2, "data", client)
    features = torch.randn(9, 1, 2, 2, generator=rng)
    return Samples(features, torch.randint(0, 3, (9,), generator=rng), torch.arange(9) + client * 9)


DATA = {client: samples(client) for client in range(3)}
FEDAVG = FedAvg(Architecture("net", partial(net)), LocalTraining(batch_size=5, lr=0.3))
DEFENDED = (0, 2)
"""Clients that use the defense, as a coalition if it supports one."""

every_defense = pytest.mark.parametrize("name", NEUTRAL)
every_active = pytest.mark.parametrize("name", ACTIVE)


def neutral(name: str) -> dict[int, Defense]:
    return {client: create_defense(name, NEUTRAL[name], coalition=DEFENDED) for client in DEFENDED}


def active(name: str) -> dict[int, Defense]:
    return {client: create_defense(name, ACTIVE[name], coalition=DEFENDED) for client in DEFENDED}


@cache
def bare_run() -> list[Round]:
    """Run without a defense; callers must not modify the rounds."""
    return run()


@cache
def active_run(name: str) -> list[Round]:
    return run(active(name))


def run(
    defenses: Mapping[int, Defense] | None = None,
    data: Mapping[int, Samples] = DATA,
    how: Mapping[str, object] = {},
) -> list[Round]:
    options: dict[str, object] = {"rounds": 2, "seed": 1, "defenses": defenses, **how}
    return list(simulate(FEDAVG, data, **options))  # type: ignore[arg-type]


def client_context(round: int = 1) -> ClientContext:
    """Return the context of client 0."""
    weights = dict.fromkeys(DATA, 1 / len(DATA))
    return ClientContext(
        round=round, rounds=2, client=0, cohort=tuple(DATA), weights=weights, seed=0
    )


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def alike(ours: list[Round], theirs: list[Round], *, facts: bool = True) -> None:
    for our_round, their_round in zip(ours, theirs, strict=True):
        assert our_round.uploads.keys() == their_round.uploads.keys()
        for client, upload in our_round.uploads.items():
            assert same(upload.values, their_round.uploads[client].values)
            assert not facts or same(
                our_round.client_notes[client], their_round.client_notes[client]
            )


def test_every_defense_has_neutral_and_active_test_settings() -> None:
    assert NEUTRAL.keys() == DEFENSES.keys()
    assert ACTIVE.keys() == DEFENSES.keys() - {"none"}


def test_every_setting_except_booleans_has_an_invalid_test_value() -> None:
    for name, make in DEFENSES.items():
        parameters = signature(make).parameters
        non_boolean = {
            each for each in parameters if not isinstance(parameters[each].default, bool)
        }
        assert {row[1] for row in WRONG if row[0] == name} == non_boolean - {"clients"}, name


@pytest.mark.parametrize(("name", "setting", "value", "message"), WRONG)
def test_invalid_settings_raise_before_training(
    name: str, setting: str, value: Setting, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        create_defense(name, {**ACTIVE[name], setting: value}, coalition=DEFENDED)


@every_defense
def test_neutral_settings_equal_the_undefended_run_bit_for_bit(name: str) -> None:
    alike(run(neutral(name)), bare_run(), facts=False)


@every_active
def test_checks_before_training_accept_valid_defenses(name: str) -> None:
    plan = Plan(architecture=FEDAVG.architecture, shape=(1, 2, 2), classes=3, rounds=2)
    for defense in (*active(name).values(), *neutral(name).values()):
        defense.raise_if_misfit(plan)
        Chain((defense,)).raise_if_misfit(plan)


@pytest.mark.parametrize("contract", DEFENSE_CONTRACTS, ids=name_of)
@every_active
def test_defenses_fulfil_the_contracts_of_check_part(
    name: str, contract: Callable[[DefenseCase], str]
) -> None:
    assert contract(DefenseCase(lambda client: active(name)[client])) == ""


@pytest.fixture(scope="module")
def crew() -> Iterator[Engine]:
    with started() as engine:
        yield engine


@pytest.mark.slow
@every_active
def test_two_workers_give_identical_results(name: str, crew: Engine) -> None:
    alike(run(active(name), how={"engine": crew}), active_run(name))


@pytest.mark.slow
@every_active
def test_a_simulated_gpu_gives_the_results_of_the_cpu(name: str) -> None:
    cpu_rounds = active_run(name)
    with simulated_gpu():
        gpu_rounds = run(active(name), how={"device": device_named("cuda")})
    alike(cpu_rounds, gpu_rounds)


@every_active
def test_clients_with_equal_defenses_draw_independently(name: str) -> None:
    data = dict.fromkeys(DATA, DATA[0])
    first = run(active(name), data)[0]
    assert not same(first.uploads[0].values, first.uploads[2].values)


@every_active
def test_the_adversary_measures_defended_uploads(name: str) -> None:
    audited = Samples.concatenate(*DATA.values())
    for round in active_run(name):
        losses = Loss()(VisibleRound(round, audited))
        for client, upload in round.uploads.items():
            observed, base = round.observed[client], round.sent[client].model
            assert observed.update is not None
            assert same(observed.update, upload.values)
            returned = Model(base.architecture, add_scaled(base.params, upload.values)).module()
            with torch.no_grad():
                expected = -cross_entropy(returned(audited.features), audited.labels)
            torch.testing.assert_close(losses[client], expected.double())


@every_active
def test_the_global_model_averages_defended_uploads(name: str) -> None:
    for round in active_run(name):
        uploads = [round.uploads[client].values for client in DATA]
        mean = weighted_sum(uploads, [round.weights[client] for client in DATA])
        made_of = add_scaled(round.sent[0].model.params, mean)
        for param, value in round.after["global"].params.items():
            torch.testing.assert_close(value, made_of[param])


@pytest.mark.parametrize("kind", [Update, Gradient, Logits])
@every_active
def test_an_upload_of_zeros_stays_finite_with_the_same_shapes(
    name: str, kind: type[Upload]
) -> None:
    defense = active(name)[0]
    if kind not in defense.accepts:
        return
    model = FEDAVG.architecture.initial(0)
    zeros = kind({"w": torch.zeros(3, 2), "b": torch.zeros(3, dtype=torch.float64)})
    if isinstance(zeros, Update):
        zeros = replace(zeros, buffers={"mean": torch.ones(2)}, choice=1)
    sent = defense.upload(zeros, client_context().with_model(model))
    assert isinstance(sent, kind)
    assert {**vars(sent), "values": 0} == {**vars(zeros), "values": 0}
    assert {n: (v.shape, v.dtype) for n, v in sent.values.items()} == {
        n: (v.shape, v.dtype) for n, v in zeros.values.items()
    }
    assert all(bool(value.isfinite().all()) for value in sent.values.values())


@pytest.mark.slow
@every_active
def test_an_interrupted_run_resumes_with_identical_results(name: str, tmp_path: Path) -> None:
    # Participation is partial.
    def begun(checkpoint: Path | None) -> Iterator[Round]:
        return simulate(
            FEDAVG,
            DATA,
            rounds=5,
            seed=1,
            defenses=active(name),
            participation=0.7,
            checkpoint=checkpoint,
        )

    path = tmp_path / "checkpoint.safetensors"
    assert [round.index for round in islice(begun(path), 3)] == [1, 2, 3]
    resumed = list(begun(path))
    assert [round.index for round in resumed] == [3, 4, 5]
    alike(resumed, list(begun(None))[2:])


@every_active
def test_a_chain_of_one_equals_the_defense_bit_for_bit(name: str) -> None:
    chains = {client: Chain((defense,)) for client, defense in active(name).items()}
    alike(run(chains), active_run(name))


def pair(first: str, second: str) -> dict[int, Defense]:
    ones, others = active(first), active(second)
    return {client: Chain((ones[client], others[client])) for client in DEFENDED}


def refusal(first: str, second: str) -> str:
    """Return the reason why two defenses form no chain; empty if they do."""
    try:
        rounds = run(pair(first, second), {client: DATA[client] for client in DEFENDED})
    except FedauditError as error:
        return str(error)
    uploads = [upload for round in rounds for upload in round.uploads.values()]
    assert all(bool(flat(upload.values).isfinite().all()) for upload in uploads)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), list(permutations(ACTIVE, 2)))
def test_any_two_defenses_run_in_a_chain_or_raise(first: str, second: str) -> None:
    reason = refusal(first, second)
    accepted = {name: {name, type(active(name)[0]).__name__} for name in (first, second)}
    assert not reason or any(word in reason for words in accepted.values() for word in words), (
        reason
    )
