"""Contract of every federated algorithm in the catalogue.

A new algorithm is a file, a row of the catalogue, and an entry in ``SETTINGS`` and ``REFUSED``.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from inspect import getdoc, signature
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedaudit.algorithms import ALGORITHMS, FederatedTask
from fedaudit.api.contracts.algorithms import ALGORITHM_CONTRACTS, AlgorithmCase
from fedaudit.api.contracts.base import name_of
from fedaudit.core.errors import BadInput, NotVisible, Unsupported
from fedaudit.core.objects import canonical_repr
from fedaudit.core.options import check_options
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import (
    Architecture,
    Batch,
    Capability,
    ClientId,
    Params,
    Samples,
    Setting,
    add_scaled,
)
from fedaudit.engines.base import Engine
from fedaudit.fl.algorithms.base import Algorithm, ChoosesModels, Cluster, HoldsOut, KeepsModels
from fedaudit.fl.hooks import ClientContext, Defense, TrainingContext
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Gradient, Logits, Round, Update, Upload
from fedaudit.observe.views import VIEWS, seen_from
from fedaudit.risk.catalog import LossThreshold
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure
from fedaudit.signals.outputs import Confidence, Loss
from fedaudit.signals.updates import GradientCosine, GradientDifference, GradientNorm
from tests.crew import started

PUBLIC_CLASSES, CLASSES = 2, 5

SETTINGS: dict[str, Mapping[str, Setting]] = {
    "fedavg": {},
    "fedsgd": {},
    "legacy-fedsgd": {},
    "fedprox": {"mu": 0.5},
    "fedadam": {"server_lr": 0.05},
    "fednova": {},
    "scaffold": {},
    "feddyn": {"alpha": 0.1},
    "ditto": {"lam": 0.5},
    "fed-embedding": {},
    "fedmd": {
        "public": "a public set",
        "public_samples": 10,
        "public_epochs": 1,
        "private_epochs": 2,
        "student_epochs": 1,
    },
    "ifca": {},
    "ifca-mir": {"every": 1},
    "ifca-mir-clients": {"held_out": 0.4},
}
"""Settings with which a tiny federation runs, by algorithm."""

nan, inf = float("nan"), float("inf")
Wrong = Mapping[str, tuple[Setting, ...]]
OF_MODELS: Wrong = {"models": (-3, 0), "explore": (-1,)}
OF_RISK: Wrong = {**OF_MODELS, "preference": ("none",), "alpha": (1.1, -0.5)}
REFUSED: dict[str, Wrong] = {
    "fedavg": {},
    "fedsgd": {"together": ("median",)},
    "legacy-fedsgd": {},
    "fedprox": {"mu": (-0.1, inf, nan)},
    "fedadam": {
        "server_lr": (0.0, -0.5),
        "beta1": (1.0, -0.1),
        "beta2": (1.0, -0.1),
        "adaptivity": (0.0, -0.5),
    },
    "fednova": {},
    "scaffold": {"option": ("III",)},
    "feddyn": {"alpha": (-0.1, inf, nan)},
    "ditto": {"lam": (-0.1, inf, nan)},
    "fed-embedding": {},
    "fedmd": {
        "public_samples": (77,),
        "public_epochs": (-3,),
        "private_epochs": (-3,),
        "digest_epochs": (-3,),
        "digest_batch": (-3,),
        "student_epochs": (-3, 0),
    },
    "ifca": OF_MODELS,
    "ifca-mir": {**OF_RISK, "every": (0, -3), "bonus": (-1.0,)},
    "ifca-mir-clients": {**OF_RISK, "held_out": (1.5,)},
}
"""Invalid values of each setting, by algorithm."""

NAMES_A_PART = {"public", "nets", "student"}
"""Settings that name a data set or network. Invalid names raise when they are resolved."""

FAITHFUL = {"fedadam"}
"""Algorithms that do not differ from their source."""

UNWEIGHTED = {"fedmd"}
"""Algorithms in which all clients have equal weights."""

every_algorithm = pytest.mark.parametrize("name", SETTINGS)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


def samples(count: int, purpose: str | int, first_class: int, classes: int) -> Samples:
    rng = seeded(4, "samples", purpose)
    return Samples(
        torch.randn(count, 4, generator=rng),
        first_class + torch.randint(0, classes, (count,), generator=rng),
        torch.arange(count) + (1000 * (purpose + 1) if isinstance(purpose, int) else 0),
    )


@dataclass(frozen=True)
class RiskBySize:
    """Risk that decreases with the number of samples."""

    def __call__(self, clusters: Sequence[Cluster], *, seed: int) -> list[float]:
        return [0.5 + 0.5 / (1 + cluster.samples) for cluster in clusters]


ARCHITECTURE = Architecture("net", partial(net))
PUBLIC = samples(10, "public", 0, PUBLIC_CLASSES)
DATA = {
    client: samples(8 + 2 * client, client, PUBLIC_CLASSES, CLASSES - PUBLIC_CLASSES)
    for client in range(3)
}
TASK = FederatedTask(
    architecture=ARCHITECTURE,
    training=LocalTraining(lr=0.1, batch_size=4),
    shape=(4,),
    first_class=PUBLIC_CLASSES,
    model=lambda name, **settings: ARCHITECTURE,
    public=lambda name: PUBLIC,
    seed=1,
    risk=RiskBySize,
    own_risk=LossThreshold,
)


def make_algorithm(name: str, **settings: Setting) -> Algorithm:
    return ALGORITHMS[name](TASK, **{**SETTINGS[name], **settings})


def run(name: str, seed: int = 3, **how: object) -> list[Round]:
    options: dict[str, object] = {"clients": DATA, "rounds": 2, "seed": seed, **how}
    return list(simulate(make_algorithm(name), **options))  # type: ignore[arg-type]


@cache
def run_of(name: str) -> list[Round]:
    """Run two rounds with all clients; callers must not modify them."""
    return run(name)


def bits(rounds: Iterable[Round]) -> list[object]:
    """Return the values of all models, uploads, states and choices of rounds."""

    def listed(tensors: Mapping[str, Tensor]) -> dict[str, object]:
        return {name: value.tolist() for name, value in tensors.items()}

    contents: list[object] = []
    for round in rounds:
        contents += [round.index, round.selected, round.answered, round.weights]
        contents += [dict(round.chosen), dict(round.trained)]
        for models in (round.after, round.private_models):
            contents += [(name, listed(model.tensors())) for name, model in models.items()]
        for client in round.answered:
            sent, upload, observed = (
                round.sent[client],
                round.uploads[client],
                round.observed[client],
            )
            contents += [listed(model.tensors()) for model in sent.models]
            contents += [listed(sent.extra), type(upload), listed(upload.values)]
            contents += [listed(getattr(upload, "buffers", {})), listed(observed.update or {})]
            contents += [listed(getattr(upload, "extra", {}))]
            contents += [listed(observed.local.tensors()) if observed.local else None]
    return contents


def test_every_algorithm_has_valid_and_invalid_test_settings() -> None:
    assert SETTINGS.keys() == REFUSED.keys() == ALGORITHMS.keys()
    for name, make in ALGORITHMS.items():
        parameters = signature(make).parameters.keys() - {"task"}
        assert REFUSED[name].keys() == parameters - NAMES_A_PART, name


@every_algorithm
def test_aggregation_depends_on_client_weights(name: str) -> None:
    algorithm, (first, _) = make_algorithm(name), run_of(name)
    server = algorithm.start(seed_for(3, "initial model"))
    lightest, *_, heaviest = sorted(first.weights, key=lambda client: first.weights[client])
    swapped = {
        **first.weights,
        lightest: first.weights[heaviest],
        heaviest: first.weights[lightest],
    }

    def folded(shares: Mapping[int, float]) -> list[object]:
        after = algorithm.models(algorithm.aggregate(server, first.uploads, shares))
        return [value.tolist() for model in after.values() for value in model.tensors().values()]

    assert (folded(first.weights) == folded(swapped)) is (name in UNWEIGHTED)


@every_algorithm
def test_docstrings_state_source_and_differences(name: str) -> None:
    texts = [getdoc(ALGORITHMS[name]) or "", getdoc(type(make_algorithm(name))) or ""]
    assert all("Source:" in text for text in texts)
    assert any("Differs:" in text for text in texts) is (name not in FAITHFUL)


@every_algorithm
def test_algorithms_are_frozen_and_have_a_canonical_repr(name: str) -> None:
    algorithm = make_algorithm(name)
    assert isinstance(algorithm, Algorithm)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(algorithm, dataclasses.fields(algorithm)[0].name, None)  # type: ignore[arg-type]
    assert canonical_repr(algorithm) == canonical_repr(make_algorithm(name))


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        (name, each, value)
        for name, wrong in REFUSED.items()
        for each in wrong
        for value in wrong[each]
    ],
)
def test_invalid_settings_raise_before_training(name: str, setting: str, value: Setting) -> None:
    with pytest.raises(BadInput) as refusal:
        make_algorithm(name, **{setting: value})
    assert str(value) in str(refusal.value)


@every_algorithm
def test_an_unknown_setting_raises_with_its_name(name: str) -> None:
    check_options("algorithm", name, ALGORITHMS[name], dict(SETTINGS[name]))
    with pytest.raises(BadInput, match="no_such_setting"):
        check_options("algorithm", name, ALGORITHMS[name], {**SETTINGS[name], "no_such_setting": 1})


@every_algorithm
def test_a_run_depends_only_on_its_seed(name: str) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert bits(run(name)) == bits(run_of(name))
    assert torch.equal(torch.get_rng_state(), before), "the global generator plays no part"
    assert bits(run(name, seed=4)) != bits(run_of(name))


@pytest.mark.parametrize("contract", ALGORITHM_CONTRACTS, ids=name_of)
@every_algorithm
def test_algorithms_fulfil_the_contracts_of_check_part(
    name: str, contract: Callable[[AlgorithmCase], str]
) -> None:
    assert contract(AlgorithmCase(partial(make_algorithm, name), DATA)) == ""


@pytest.fixture(scope="module")
def crew() -> Iterator[Engine]:
    with started() as engine:
        yield engine


@every_algorithm
@pytest.mark.slow
def test_two_workers_give_identical_results(name: str, crew: Engine) -> None:
    assert bits(run(name, engine=crew)) == bits(run_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("participation", [1.0, 0.6])
@every_algorithm
def test_an_interrupted_run_resumes_with_identical_results(
    name: str, participation: float, tmp_path: Path
) -> None:
    def begun(checkpoint: Path | None) -> Iterator[Round]:
        return simulate(
            make_algorithm(name),
            DATA,
            rounds=4,
            seed=3,
            participation=participation,
            checkpoint=checkpoint,
        )

    path = tmp_path / "checkpoint.safetensors"
    assert [round.index for round in islice(begun(path), 2)] == [1, 2]
    resumed = list(begun(path))
    assert [round.index for round in resumed] == [2, 3, 4]
    assert bits(resumed) == bits(list(begun(None))[1:])


@every_algorithm
def test_training_does_not_modify_client_data(name: str) -> None:
    before = {client: data.features.clone() for client, data in DATA.items()}
    run(name)
    for client, features in before.items():
        assert torch.equal(DATA[client].features, features)


@every_algorithm
def test_a_first_upload_does_not_depend_on_other_clients_data(name: str) -> None:
    others = {0: DATA[0], 1: DATA[2], 2: DATA[1]}
    (first,) = run(name, rounds=1, clients=others)
    ours, theirs = first.uploads[0], run_of(name)[0].uploads[0]
    assert ours.values.keys() == theirs.values.keys()
    for value, other in ours.values.items():
        assert torch.equal(other, theirs.values[value])


@every_algorithm
def test_uploads_have_the_declared_type_and_shapes(name: str) -> None:
    for round in run_of(name):
        assert sum(round.weights.values()) == pytest.approx(1)
        for client, upload in round.uploads.items():
            assert type(upload) is make_algorithm(name).upload_kind
            assert all(bool(value.isfinite().all()) for value in upload.values.values())
            if isinstance(upload, Logits):
                assert {n: v.shape for n, v in upload.values.items()} == {
                    "outputs": (len(PUBLIC), CLASSES)
                }
                continue
            model = round.sent[client].models[getattr(upload, "choice", 0)]
            for ours, theirs in ((upload.values, model.params), (upload.buffers, model.buffers)):
                assert {n: v.shape for n, v in ours.items()} == {
                    n: v.shape for n, v in theirs.items()
                }
            assert upload.samples == len(trained_on(name, client))


def trained_on(name: str, client: ClientId, seed: int = 3) -> Samples:
    """Return the samples that a client trains on."""
    algorithm, data = make_algorithm(name), DATA[client]
    if not isinstance(algorithm, HoldsOut):
        return data
    return data.take(~algorithm.held_out(data.ids, seed=seed))


@every_algorithm
def test_exposed_models_follow_from_sent_model_and_upload(name: str) -> None:
    algorithm = make_algorithm(name)
    for round in run_of(name):
        assert tuple(round.observed) == round.answered == tuple(round.uploads)
        for client, observed in round.observed.items():
            assert observed.local is not None
            assert observed.local.architecture == algorithm.architecture
            if observed.base is None:
                assert round.sent[client].models == ()
                continue
            assert any(observed.base is model for model in round.sent[client].models)
            assert observed.update is not None
            rebuilt = add_scaled(observed.base.params, observed.update)
            for param, value in observed.local.params.items():
                assert torch.equal(value, rebuilt[param])


@every_algorithm
def test_server_and_client_model_names_are_consistent(name: str) -> None:
    algorithm = make_algorithm(name)
    for round in run_of(name):
        assert all(
            bool(v.isfinite().all()) for m in round.after.values() for v in m.params.values()
        )
        chooses, keeps = isinstance(algorithm, ChoosesModels), isinstance(algorithm, KeepsModels)
        assert set(round.chosen) == (set(DATA) if chooses else set())
        assert set(round.chosen.values()) <= set(round.after)
        assert set(round.trained) == (set(round.after) if chooses else set())
        assert set(round.private_models) == (set(DATA) if keeps else set())
        assert round.after or round.private_models, (
            "there is nothing whose accuracy could be counted"
        )


@pytest.mark.parametrize("view", VIEWS)
@every_algorithm
def test_a_view_hides_data_without_changing_the_run(name: str, view: str) -> None:
    rounds = run_of(name)
    before = bits(rounds)
    try:
        seen = list(seen_from(rounds, VIEWS[view]))
    except NotVisible:
        seen = []
    assert bits(rounds) == before
    assert seen or view != "uploads"
    for visible, round in zip(seen, rounds, strict=False):
        assert visible.uploads.items() <= round.uploads.items()
        assert visible.sent.items() <= round.sent.items()
        assert dict(visible.after) == dict(round.after)
        if Capability.UPLOADS not in VIEWS[view].offers:
            assert not visible.uploads
            clients = visible.observed.keys() & round.observed.keys()
            assert not any(visible.observed[c].local is round.observed[c].local for c in clients)


OF_OUTPUTS: tuple[Signal, ...] = (Loss(), Confidence())
OF_UPDATES = (GradientCosine(), GradientNorm(), GradientDifference())
PROBE = Samples.concatenate(DATA[0], samples(6, 9, PUBLIC_CLASSES, CLASSES - PUBLIC_CLASSES))


@pytest.mark.parametrize("view", VIEWS)
@every_algorithm
def test_views_refuse_signals_that_they_do_not_show(name: str, view: str) -> None:
    algorithm = make_algorithm(name)
    available = OF_OUTPUTS if view == "final" else OF_OUTPUTS + OF_UPDATES
    if algorithm.upload_kind is Logits:
        available = OF_OUTPUTS if view == "uploads" else ()
    elif isinstance(algorithm, ChoosesModels) and view not in ("uploads", "shuffled"):
        # The sum view needs clients that all chose the same model.
        agreed = all(len(set(round.chosen.values())) == 1 for round in run_of(name))
        available = available if view == "sum" and agreed else ()
    if available:
        for measured in measure(seen_from(run_of(name), VIEWS[view]), available, PROBE):
            for values in measured.signals.values():
                assert values.shape == (len(measured.clients), len(PROBE))
                assert bool(values.isfinite().all())
    for signal in set(OF_OUTPUTS + OF_UPDATES) - set(available):
        with pytest.raises(NotVisible):
            list(measure(seen_from(run_of(name), VIEWS[view]), [signal], PROBE))


@every_algorithm
def test_equal_uploads_aggregate_like_a_single_upload(name: str) -> None:
    algorithm = make_algorithm(name)
    state = algorithm.start(3)
    upload = run_of(name)[0].uploads[0]
    alone = _server(algorithm, algorithm.aggregate(state, {0: upload}, {0: 1.0}))
    shares = {0: 0.5, 1: 0.2, 2: 0.3}
    three = _server(algorithm, algorithm.aggregate(state, dict.fromkeys(shares, upload), shares))
    assert alone.keys() == three.keys()
    for part, value in alone.items():
        torch.testing.assert_close(three[part], value)


@every_algorithm
def test_aggregation_does_not_depend_on_upload_order(name: str) -> None:
    algorithm, first = make_algorithm(name), run_of(name)[0]
    state = algorithm.start(3)
    forwards, backwards = (
        algorithm.aggregate(state, dict(order), first.weights)
        for order in ([*first.uploads.items()], [*first.uploads.items()][::-1])
    )
    assert forwards.keys() == backwards.keys()
    assert all(torch.equal(forwards[part], backwards[part]) for part in forwards)


def _server(algorithm: Algorithm, state: Params) -> Params:
    """Return the tensors of the server's models, or its state if it has none."""
    models = algorithm.models(state)
    return {
        f"{name}/{part}": value
        for name, model in models.items()
        for part, value in model.tensors().items()
    } or state


@every_algorithm
def test_a_client_without_samples_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=r"clients \[1\] have no samples"):
        run(name, clients={**DATA, 1: DATA[1].take(slice(0))})


@every_algorithm
def test_clients_that_do_not_participate_keep_their_state(name: str) -> None:
    rounds = run(name, rounds=5, participation=0.6)
    assert {client for round in rounds for client in round.selected} == set(DATA)
    for last, round in zip([None, *rounds], rounds, strict=False):
        assert len(round.selected) == 2
        assert set(round.uploads) == set(round.observed) == set(round.sent) == set(round.selected)
        idle = set(DATA) - set(round.selected)
        for client in idle & set(round.private_models):
            assert last is not None
            now, before = (
                round.private_models[client].tensors(),
                last.private_models[client].tensors(),
            )
            assert all(torch.equal(now[part], before[part]) for part in before)
        for client in idle & set(round.chosen):
            assert last is not None
            assert round.chosen[client] == last.chosen[client]


class Watching(Defense):
    """A defense that withholds some samples, counts its calls, and sends zeros."""

    def __init__(self) -> None:
        self.calls = torch.zeros(2, dtype=torch.int64)

    def prepare(self, data: Samples, client_context: ClientContext) -> Samples:
        self.calls = self.calls + torch.tensor([1, 0])
        return data.take(slice(0, KEPT))

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        self.calls = self.calls + torch.tensor([0, 1])
        return batch

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        context.note("calls", self.calls)
        zeros = {name: torch.zeros_like(value) for name, value in upload.values.items()}
        return dataclasses.replace(upload, values=zeros)

    def state(self) -> Params:
        return {"calls": self.calls}

    def restore(self, state: Params) -> None:
        self.calls = state["calls"]


KEPT = 8


@every_algorithm
def test_defenses_transform_the_samples_and_the_upload(name: str) -> None:
    rounds = run(name, defenses={1: Watching()})
    (once, first), (still, second) = (round.client_notes[1]["calls"].tolist() for round in rounds)
    assert once == still == 1
    assert 0 < first < second
    for round, bare in zip(rounds, run_of(name), strict=True):
        assert set(round.client_notes[1]["used"].tolist()) <= set(DATA[1].ids[:KEPT].tolist())
        assert not any(bool(value.any()) for value in round.uploads[1].values.values())
        assert any(bool(value.any()) for value in bare.uploads[1].values.values())


@every_algorithm
def test_a_defense_for_another_upload_type_raises(name: str) -> None:
    algorithm = make_algorithm(name)

    class Elsewhere(Defense):
        accepts = tuple({Update, Gradient, Logits} - {algorithm.upload_kind})

    sends = f"{type(algorithm).__name__} sends {algorithm.upload_kind.__name__}"
    with pytest.raises(Unsupported, match=f"Elsewhere .client 0..*{sends}"):
        run(name, defenses={0: Elsewhere()})


@every_algorithm
def test_the_workload_matches_the_samples_used_in_training(name: str) -> None:
    rounds = run_of(name)
    for client in DATA:
        trained = trained_on(name, client)
        work = make_algorithm(name).data_use(len(rounds), len(trained))
        used = torch.cat([round.client_notes[client]["used"] for round in rounds])
        assert work.samples == len(trained)
        assert len(used) == work.rounds * work.epochs * len(trained)
        assert set(used.tolist()) == set(trained.ids.tolist())
