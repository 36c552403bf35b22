"""Third-party networks in recordings and simulations; gradients compared with autograd."""

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional

import fedaudit
from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.modules import outputs_of
from fedaudit.core.values import Architecture, Batch, Params, Samples
from fedaudit.defenses.dpsgd import clipped_sum
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.hooks import Objective
from fedaudit.fl.training.local import LocalTraining
from fedaudit.live.audited import Split, labelled_samples
from fedaudit.live.rounds import UploadKind
from fedaudit.live.weights import Weights
from fedaudit.observe.measurements import read_measured
from fedaudit.signals.gradients import gradient_products
from tests.foreign.networks import CLASSES, MEASURED, REFUSED, Case, Dense, OneLogit, Tutorial
from tests.study.studies import SMALL

FEW = ("blackbox-loss", "avg-cosine", "grad-norm", "fta-c")
every_network = pytest.mark.parametrize("name", MEASURED)
CLIENTS = 3


class Data(NamedTuple):
    split: Split
    train: dict[int, tuple[Tensor, Tensor]]


@cache
def data(shape: tuple[int, ...], classes: int, tokens: bool) -> Data:
    rng = torch.Generator().manual_seed(0)
    samples_by_client = {}
    for client in range(CLIENTS):
        x = torch.randn(20, *shape, generator=rng)
        if tokens:
            x = torch.randint(20, (20, *shape), generator=rng).float()
        samples_by_client[client] = (x, torch.randint(classes, (20,), generator=rng))
    split = fedaudit.fair_split(samples_by_client, audited=10)
    train = {c: (x[split.train[c]], y[split.train[c]]) for c, (x, y) in samples_by_client.items()}
    return Data(split, train)


def data_for(case: Case) -> Data:
    return data(case.shape, case.classes, case.tokens)


def make_network(case: Case) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return case.make()


def loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss as a custom training loop computes it."""
    outputs = net(x.clone().to(next(net.parameters()).dtype))
    outputs = (
        outputs["logits"] if isinstance(outputs, dict) else getattr(outputs, "logits", outputs)
    )
    if outputs.numel() == len(x):
        return functional.binary_cross_entropy_with_logits(outputs.view(-1), y.to(outputs.dtype))
    return functional.cross_entropy(outputs, y)


def trained(net: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    local = copy.deepcopy(net).train()
    optimizer = torch.optim.SGD(local.parameters(), lr=0.05)
    for rows in torch.split(torch.arange(len(x)), 6):
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(local, x[rows], y[rows]))
        optimizer.step()
    return local


def products_by_autograd(
    net: nn.Module, update: Params, x: Tensor, y: Tensor
) -> tuple[float, float]:
    """Return the cosine of a sample's gradient and an update, and its squared norm, in float64."""
    exact = copy.deepcopy(net).double().eval()
    named = {n: p for n, p in exact.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(
        loss_of(exact, x[None], y[None]),
        list(named.values()),
        allow_unused=True,
        materialize_grads=True,
    )
    gradients = dict(zip(named, grads, strict=True))
    dot = sum(float((g * update[n].double()).sum()) for n, g in gradients.items())
    length = sum(float(g.square().sum()) for g in gradients.values()) ** 0.5
    update_length = sum(float(update[n].double().square().sum()) for n in gradients) ** 0.5
    return dot / (length * update_length), length**2


@pytest.mark.slow
@every_network
def test_recorded_signals_of_custom_loops_match_autograd(name: str, tmp_path: Path) -> None:
    case = MEASURED[name]
    split, train = data_for(case)
    audited = split.audit.samples
    before = audited.features.clone()
    net = make_network(case)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        locals_ = {client: trained(net, *batch) for client, batch in train.items()}
    with fedaudit.record(
        tmp_path / "r", case.make, split.audit, attacks=FEW, strict=True
    ) as recorder:
        uploads = {client: local.state_dict() for client, local in locals_.items()}
        recorder.round(1, sent=net, uploads=uploads)
    assert torch.equal(audited.features, before)
    (stored,) = read_measured(tmp_path / "r")
    signals, base = stored.measured.signals, dict(net.named_parameters())
    for client, local in locals_.items():
        update = {n: (p - base[n]).detach() for n, p in local.named_parameters()}
        exact = copy.deepcopy(local).double().eval()
        for place in range(client, len(audited), 7):
            x, y = audited.features[place], audited.labels[place]
            cosine, squared = products_by_autograd(net, update, x, y)
            loss = loss_of(exact, x[None], y[None]).item()
            measured = {s: float(signals[s][client, place]) for s in signals}
            assert measured["gradient-cosine"] == pytest.approx(-cosine, abs=2e-5)
            assert measured["gradient-norm"] == pytest.approx(-squared, rel=2e-4, abs=1e-12)
            assert measured["loss"] == pytest.approx(-loss, rel=1e-4, abs=1e-6)
            sure = torch.tensor(-loss, dtype=torch.float64).exp().item()
            assert measured["confidence"] == pytest.approx(sure, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["the tutorial's", "lstm", "one logit"])
def test_recordings_of_third_party_networks_can_be_attacked(name: str, tmp_path: Path) -> None:
    case = MEASURED[name]
    split, train = data_for(case)
    net = make_network(case)
    with fedaudit.record(tmp_path / "r", net, split.audit, attacks=FEW, strict=True) as recorder:
        for number in (1, 2):
            uploads = {client: trained(net, *batch) for client, batch in train.items()}
            recorder.round(number, sent=net, uploads=uploads)
    out = tmp_path / "out"
    record = fedaudit.attack_recording(tmp_path / "r", (), out, figures=SMALL["figures"])
    assert {attack.name for attack in record.attacks} == {*FEW}
    assert all(attack.status == "run" for attack in record.attacks)


def clients_of(case: Case) -> dict[int, Samples]:
    return {
        client: Samples(x, y, torch.arange(len(x)) + 100 * client)
        for client, (x, y) in data_for(case).train.items()
    }


SIMULATED = [name for name in MEASURED if "logit" not in name]
DROPPING = ("batch norm and dropout", "lstm", "gru", "transformer")
"""Networks whose dropout masks come from a random stream of the simulation."""
MIXING = ("batch norm and dropout", "residual, in place")
"""Networks that DP-SGD refuses in training mode."""


@pytest.mark.parametrize("name", [name for name in SIMULATED if name not in DROPPING])
def test_a_simulated_step_matches_torch(name: str) -> None:
    case = MEASURED[name]
    architecture = Architecture(f"foreign {name}", case.make)
    algorithm = FedAvg(architecture, LocalTraining(lr=0.05, batch_size=100))
    clients = {0: clients_of(case)[0]}
    (simulated,) = fedaudit.simulate(algorithm, clients, rounds=1, seed=1)
    base = simulated.observed[0].base
    assert base is not None
    start = base.module().train()
    optimizer = torch.optim.SGD(start.parameters(), lr=0.05)
    torch.autograd.backward(loss_of(start, clients[0].features, clients[0].labels))
    optimizer.step()
    for key, value in simulated.after["global"].params.items():
        expected = dict(start.named_parameters())[key].detach()
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in SIMULATED if name not in MIXING])
def test_clipped_gradients_match_a_loop_over_samples(name: str) -> None:
    case = MEASURED[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module = case.make().eval()
    x, y = data_for(case).train[0]
    x = x.to(next(module.parameters()).dtype)[:5]
    objective = Objective(
        module,
        lambda outputs, rows: functional.cross_entropy(outputs, rows.y),
        per_sample=partial(functional.cross_entropy, reduction="none"),
    )
    clipped = clipped_sum(objective, Batch(x.clone(), y[:5], torch.arange(5)), clip=0.05)
    total = {n: torch.zeros_like(p) for n, p in objective.params.items()}
    for row, label in zip(x, y[:5], strict=True):
        grads = torch.autograd.grad(
            loss_of(module, row[None], label[None]),
            list(objective.params.values()),
            allow_unused=True,
            materialize_grads=True,
        )
        length = torch.cat([g.flatten() for g in grads]).norm()
        for value, grad in zip(total.values(), grads, strict=True):
            value += grad * (0.05 / length).clamp(max=1)
    for key, value in total.items():
        torch.testing.assert_close(clipped[key], value, rtol=1e-3, atol=1e-6)


def test_clipping_raises_for_networks_that_mix_samples() -> None:
    for name in MIXING:
        module = MEASURED[name].make().train()
        x, y = data_for(MEASURED[name]).train[0]
        objective = Objective(module, lambda outputs, rows: outputs.sum())
        with pytest.raises(Unsupported, match="statistics mix the samples"):
            clipped_sum(objective, Batch(x, y, torch.arange(len(x))), clip=1.0)


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_networks_raise_in_one_sentence(name: str, tmp_path: Path) -> None:
    case, says = REFUSED[name]
    audit = data_for(case).split.audit
    with pytest.raises(BadInput, match=says) as refusal:
        fedaudit.record(tmp_path / "r", case.make, audit)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "a softmax"])
def test_simulations_refuse_unsupported_networks_before_training(name: str) -> None:
    # A softmax is accepted in a simulation, which computes the cross-entropy of any outputs.
    case, _ = REFUSED[name]
    algorithm = FedAvg(Architecture(f"refused {name}", case.make), LocalTraining())
    with pytest.raises(BadInput, match=r"model|layers") as refusal:
        fedaudit.simulate(algorithm, clients_of(case), rounds=1, seed=1)
    assert "\n" not in str(refusal.value)


def test_a_custom_loss_receives_a_single_logit(tmp_path: Path) -> None:
    case = Case(OneLogit, (12,), classes=2)
    audit = data_for(case).split.audit

    def doubled(outputs: Tensor, labels: Tensor) -> Tensor:
        target = labels[:, None].to(outputs.dtype)
        losses = functional.binary_cross_entropy_with_logits(outputs, target, reduction="none")
        return 2 * losses[:, 0]

    net = make_network(case)
    with fedaudit.record(tmp_path, net, audit, loss=doubled, attacks=FEW, strict=True) as recorder:
        recorder.round(1, sent=net, uploads={0: net, 1: net, 2: net})
    (stored,) = read_measured(tmp_path)
    expected = -2 * loss_of(net, audit.samples.features[:1], audit.samples.labels[:1]).item()
    assert float(stored.measured.signals["loss"][0, 0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (nn.CrossEntropyLoss(), r"returns \(\) for 3 samples"),
        (lambda outputs, labels: functional.mse_loss(outputs, labels), "loss cannot be computed"),
    ],
)
def test_a_loss_without_one_value_per_sample_raises(
    loss: nn.Module, says: str, tmp_path: Path
) -> None:
    audit = data_for(Case(Dense, (12,))).split.audit
    with pytest.raises(BadInput, match=says):
        fedaudit.record(tmp_path, Dense, audit, loss=loss)


def test_flattened_convolutions_keep_their_memory_order() -> None:
    model = Architecture("tutorial", Tutorial).initial(0)
    outputs = outputs_of(model, torch.ones(3, 3, 20, 20))
    torch.testing.assert_close(outputs, model.module()(torch.ones(3, 3, 20, 20)))


def test_flattened_convolutions_use_the_fast_kernels(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Architecture("tutorial network", Tutorial).initial(0)
    with caplog.at_level(logging.WARNING, "fedaudit"):
        gradient_products(model, [], torch.randn(4, 3, 20, 20), torch.zeros(4, dtype=torch.int64))
    assert not caplog.records


def test_the_slow_path_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    case = MEASURED["lstm"]
    model = Architecture("an lstm with a new name", case.make).initial(0)
    x, y = data_for(case).train[0]
    with caplog.at_level(logging.WARNING, "fedaudit"):
        for _ in range(3):
            gradient_products(model, [], x, y)
    assert 1 <= len(caplog.records) <= 2
    assert len({log_record.getMessage() for log_record in caplog.records}) == len(caplog.records)


def test_in_place_networks_do_not_change_samples() -> None:
    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(12, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(x.div_(255))
            return out

    x = torch.full((5, 12), 255.0)
    outputs_of(Architecture("scaling", Scaling).initial(0), x)
    assert torch.equal(x, torch.full((5, 12), 255.0))


class Adapted(nn.Module):
    """A frozen layer with a trained adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(12, CLASSES).requires_grad_(False)
        self.down = nn.Linear(12, 2, bias=False)
        self.up = nn.Linear(2, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


@pytest.mark.parametrize("kind", ["models", "updates"])
@pytest.mark.parametrize("listed", [False, True])
def test_uploads_of_trainable_parameters_are_measured(
    kind: UploadKind, listed: bool, tmp_path: Path
) -> None:
    audit, net = data_for(Case(Adapted, (12,))).split.audit, Adapted()
    trained = {n: value.detach() for n, value in net.named_parameters() if value.requires_grad}
    change = {n: 0.1 * torch.randn_like(value) for n, value in trained.items()}
    sent = {n: trained[n] + change[n] for n in trained} if kind == "models" else change
    upload: Weights = list(sent.values()) if listed else sent
    with fedaudit.record(tmp_path, net, audit, uploads=kind, attacks=FEW, strict=True) as recorder:
        recorder.round(1, sent=net, uploads=dict.fromkeys(range(3), upload))
    (stored,) = read_measured(tmp_path)
    x, y = audit.samples.features[0], audit.samples.labels[0]
    cosine, _ = products_by_autograd(net, change, x, y)
    measured = float(stored.measured.signals["gradient-cosine"][0, 0])
    assert measured == pytest.approx(-cosine, abs=2e-5)


def test_missing_parameters_of_an_upload_count_as_unchanged(tmp_path: Path) -> None:
    audit, net = data_for(Case(Dense, (12,))).split.audit, Dense()
    name, value = list(net.named_parameters())[-1]
    change = {name: 0.1 * torch.randn_like(value)}
    upload = {name: value.detach() + change[name]}
    others = [n for n, _ in net.named_parameters()][:-1]
    with fedaudit.record(
        tmp_path, net, audit, attacks=FEW, strict=True, not_uploaded=others
    ) as recorder:
        recorder.round(1, sent=net, uploads=dict.fromkeys(range(3), upload))
        with pytest.raises(
            BadInput, match="upload of client 0: its upload holds another part of the model"
        ):
            recorder.round(2, sent=net, uploads=dict[int, Weights]({0: upload, 1: net, 2: net}))
        with pytest.raises(BadInput, match=r"has 'elsewhere', which the model .* lacks"):
            recorder.round(2, sent=net, uploads={0: {"elsewhere": value}})
    (stored,) = read_measured(tmp_path)
    frozen = deepcopy(net).requires_grad_(False)
    frozen.get_parameter(name).requires_grad_(True)
    x, y = audit.samples.features[0], audit.samples.labels[0]
    cosine, _ = products_by_autograd(frozen, change, x, y)
    measured = float(stored.measured.signals["gradient-cosine"][0, 0])
    assert measured == pytest.approx(-cosine, abs=2e-5)


def test_scikit_learn_models_are_recorded_as_linear_layers(tmp_path: Path) -> None:
    split, train = data((12,), CLASSES, False)
    models = {c: LogisticRegression().fit(x.numpy(), y.numpy()) for c, (x, y) in train.items()}
    with pytest.raises(BadInput, match=r"returns a LogisticRegression; .*coef_, intercept_"):
        fedaudit.record(tmp_path, lambda: models[0], split.audit)
    uploads = {c: [model.coef_, model.intercept_] for c, model in models.items()}
    sent = [np.zeros((CLASSES, 12)), np.zeros(CLASSES)]
    make = partial(nn.Linear, 12, CLASSES)
    with fedaudit.record(tmp_path, make, split.audit, attacks=FEW, strict=True) as recorder:
        recorder.round(1, sent=sent, uploads=uploads)
    (stored,) = read_measured(tmp_path)
    samples = split.audit.samples
    for client, model in models.items():
        sure = model.predict_proba(samples.features.numpy())[range(len(samples)), samples.labels]
        losses = stored.measured.signals["loss"][client].numpy()
        np.testing.assert_allclose(losses, np.log(sure), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        ({"input_ids": torch.zeros(8, 4), "attention_mask": torch.ones(7, 4)}, torch.ones(8)),
        (torch.zeros(8, 4), torch.zeros(7, dtype=torch.int64)),
        (torch.full((8, 4), float("nan")), torch.zeros(8, dtype=torch.int64)),
        (torch.zeros(8, 4), torch.zeros(8, dtype=torch.complex64)),
        ([[1.0, 2.0], [3.0]], [0, 1]),
        (["a text", "another"], [0, 1]),
    ],
)
def test_invalid_samples_raise_with_advice(features: Any, labels: Any) -> None:
    data = {0: (features, labels)}
    with pytest.raises(BadInput, match=r"of client 0 .*(give|remove)") as refusal:
        # Without the runtime type checks of the tests, as users call it.
        inspect.unwrap(labelled_samples)(data[0], "client 0")
    assert "\n" not in str(refusal.value)


def test_a_network_class_with_arguments_raises_with_advice(tmp_path: Path) -> None:
    audit = data((12,), CLASSES, False).split.audit
    with pytest.raises(BadInput, match=r"model is Linear, which returns no network .* arguments"):
        fedaudit.record(tmp_path, nn.Linear, audit)  # type: ignore[arg-type]


def names(prefix: str, net: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((prefix + name, value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_name_prefixes_of_wrappers_are_removed(prefix: str, tmp_path: Path) -> None:
    net, audit = Tutorial(), data_for(MEASURED["the tutorial's"]).split.audit
    with fedaudit.record(tmp_path, Tutorial, audit, attacks=FEW[:1], strict=True) as recorder:
        sent = dict(names(prefix, net))
        uploads: dict[int, Weights] = {0: sent, 1: net, 2: net}
        recorder.round(1, sent=sent, uploads=uploads)
    assert len(read_measured(tmp_path)) == 1


def test_traced_networks_are_measured_sample_by_sample(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(Tutorial().eval(), torch.zeros(2, 3, 20, 20))  # type: ignore[no-untyped-call]
        audit = data_for(MEASURED["the tutorial's"]).split.audit
        with fedaudit.record(tmp_path, traced, audit, attacks=FEW, strict=True) as recorder:
            state = traced.state_dict()
            uploads = {c: {n: v + 0.1 * c + 0.1 for n, v in state.items()} for c in range(3)}
            recorder.round(1, sent=state, uploads=uploads)
    plain = Tutorial()
    plain.load_state_dict(state)
    (stored,) = read_measured(tmp_path)
    update = {n: torch.full_like(v, 0.1) for n, v in state.items()}
    x, y = audit.samples.features[4], audit.samples.labels[4]
    cosine, _ = products_by_autograd(plain, update, x, y)
    measured = float(stored.measured.signals["gradient-cosine"][0, 4])
    assert measured == pytest.approx(-cosine, abs=2e-5)
