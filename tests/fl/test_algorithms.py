"""Specific behaviour of each federated algorithm; tests/contracts has the common part."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, ClientId, Model, Params, Samples, chunks, flat
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.defenses.hamp import Hamp
from fedaudit.fl.algorithms.fedavg import FedAdam, FedAvg, FedEmbedding, FedProx
from fedaudit.fl.algorithms.fedmd import Distillation, FedMD, Students, distill
from fedaudit.fl.algorithms.fedsgd import FedSGD
from fedaudit.fl.hooks import UNDEFENDED, ClientContext
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Logits, Round, Sent, Update
from tests.samples import random_samples

FEATURES, CLASSES = 4, 3


def net(hidden: int, dropout: float = 0.0) -> nn.Module:
    drops = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), *drops, nn.Linear(hidden, CLASSES))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES))


def tiny(hidden: int = 5) -> Architecture:
    return Architecture("tiny", partial(net, hidden), (("hidden", hidden),))


def samples(count: int, name: str | int) -> Samples:
    return random_samples(seeded(1, "samples", name), count, FEATURES, classes=CLASSES)


SGD = LocalTraining(lr=0.1, batch_size=4)
ADAM = LocalTraining(lr=0.01, batch_size=4, optimizer="adam")
FEDMD = FedMD(
    nets=(tiny(5), tiny(7)),
    public=samples(12, "public"),
    first_public=ADAM,
    first_private=ADAM,
    digest=ADAM,
    revisit=ADAM,
    student=tiny(6),
    distillation=Distillation(epochs=2, batch_size=5),
)
DATA = {client: samples(6 + client, client) for client in range(3)}


def local(round: Round, client: ClientId) -> Model:
    model = round.observed[client].local
    assert model is not None
    return model


def base(round: Round, client: ClientId) -> Model:
    model = round.observed[client].base
    assert model is not None
    return model


def gradient(model: Model, data: Samples, decay: float = 0.0) -> Params:
    module = model.module().double().train()
    loss = functional.cross_entropy(module(data.features.double()), data.labels)
    loss = loss + decay / 2 * sum(p.square().sum() for p in module.parameters())
    values = torch.autograd.grad(loss, list(module.parameters()))
    return dict(zip(model.params, values, strict=True))


def close(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> None:
    assert list(left) == list(right)
    for name, value in left.items():
        torch.testing.assert_close(value.double(), right[name].double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_fedsgd_exposes_one_gradient_step_per_client(decay: float) -> None:
    algorithm = FedSGD(tiny(), LocalTraining(lr=0.3, weight_decay=decay))
    for round in simulate(algorithm, DATA, rounds=2, seed=3):
        for client, data in DATA.items():
            start = base(round, client)
            step = gradient(start, data, decay)
            expected = {n: v.double() - 0.3 * step[n] for n, v in start.params.items()}
            close(local(round, client).params, expected)


def test_fedsgd_with_one_client_equals_full_batch_fedavg() -> None:
    single_client = {0: DATA[0]}
    full_batch = LocalTraining(lr=0.3, batch_size=100)
    (sgd,) = simulate(FedSGD(tiny(), LocalTraining(lr=0.3)), single_client, rounds=1, seed=3)
    (avg,) = simulate(FedAvg(tiny(), full_batch), single_client, rounds=1, seed=3)
    close(sgd.after["global"].params, avg.after["global"].params)


@pytest.mark.parametrize("together", ["mean", "sum"])
def test_fedsgd_steps_along_the_mean_or_the_sum(together: str) -> None:
    algorithm = FedSGD(tiny(), LocalTraining(lr=0.3), together)  # type: ignore[arg-type]
    (round,) = simulate(algorithm, DATA, rounds=1, seed=3)
    shares = {c: round.weights[c] if together == "mean" else 1.0 for c in DATA}
    start = base(round, 0)
    steps = {client: gradient(start, data) for client, data in DATA.items()}
    expected = {
        name: value.double() - 0.3 * sum(shares[c] * steps[c][name] for c in DATA)
        for name, value in start.params.items()
    }
    close(round.after["global"].params, expected)


def test_chunked_gradients_equal_full_gradients() -> None:
    data = {0: samples(1200, "many")}
    (round,) = simulate(FedSGD(tiny(), LocalTraining(lr=0.3)), data, rounds=1, seed=3)
    close(round.uploads[0].values, gradient(base(round, 0), data[0]))


def test_fedsgd_batch_norm_uses_all_samples_at_once() -> None:
    data = {0: samples(1200, "many")}
    architecture = Architecture("normalised", normalised)
    (round,) = simulate(FedSGD(architecture, LocalTraining(lr=0.3)), data, rounds=1, seed=3)
    close(round.uploads[0].values, gradient(base(round, 0), data[0]))
    # The weight of a batch's mean is 0.1 in torch, and the running mean starts at 0.
    hidden = base(round, 0).module()[0](data[0].features)  # type: ignore[index]
    mean = round.after["global"].buffers["1.running_mean"]
    torch.testing.assert_close(mean, 0.1 * hidden.mean(0), rtol=1e-4, atol=1e-6)


def test_fedsgd_gradients_include_the_loss_of_a_defense() -> None:
    (plain,) = simulate(FedSGD(tiny(), LocalTraining(lr=0.3)), DATA, rounds=1, seed=3)
    defended = FedSGD(tiny(), LocalTraining(lr=0.3))
    (other,) = simulate(defended, DATA, rounds=1, seed=3, defenses={0: Hamp(0.9, 0.5)})
    assert not torch.equal(flat(plain.uploads[0].values), flat(other.uploads[0].values))
    assert torch.equal(flat(plain.uploads[1].values), flat(other.uploads[1].values))


def test_dp_sgd_without_clip_and_noise_equals_fedsgd() -> None:
    algorithm = FedSGD(tiny(), LocalTraining(lr=0.3))
    free = DPSGD(clip=float("inf"), noise_multiplier=0.0)
    (plain,) = simulate(algorithm, DATA, rounds=1, seed=3)
    (other,) = simulate(algorithm, DATA, rounds=1, seed=3, defenses={0: free})
    close(plain.uploads[0].values, other.uploads[0].values)


@pytest.mark.parametrize(
    "how",
    [
        LocalTraining(epochs=2),
        LocalTraining(momentum=0.9),
        LocalTraining(optimizer="adam"),
        LocalTraining(schedule="cosine"),
    ],
)
def test_fedsgd_refuses_settings_of_local_training(how: LocalTraining) -> None:
    with pytest.raises(BadInput, match="fedavg"):
        FedSGD(tiny(), how)


def test_fedprox_with_mu_zero_equals_fedavg_bit_for_bit() -> None:
    proximal = list(simulate(FedProx(tiny(), SGD, mu=0.0), DATA, rounds=2, seed=3))
    averaged = list(simulate(FedAvg(tiny(), SGD), DATA, rounds=2, seed=3))
    for ours, theirs in zip(proximal, averaged, strict=True):
        for client in DATA:
            assert torch.equal(
                flat(ours.uploads[client].values), flat(theirs.uploads[client].values)
            )


def test_fedprox_descends_the_proximal_loss() -> None:
    how = LocalTraining(lr=0.1, batch_size=100, epochs=3)
    (round,) = simulate(FedProx(tiny(), how, mu=0.7), {0: DATA[0]}, rounds=1, seed=3)
    start = base(round, 0)
    module = start.module().double().train()
    anchor = [param.detach().clone() for param in module.parameters()]
    for _ in range(3):
        loss = functional.cross_entropy(module(DATA[0].features.double()), DATA[0].labels)
        for param, first in zip(module.parameters(), anchor, strict=True):
            loss = loss + 0.7 / 2 * (param - first).square().sum()
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for param, value in zip(module.parameters(), gradients, strict=True):
                param.sub_(0.1 * value)
    close(local(round, 0).params, dict(module.named_parameters()))


def test_fedadam_server_step_matches_the_paper() -> None:
    algorithm = FedAdam(tiny(), SGD, server_lr=0.05, beta1=0.8, beta2=0.9, adaptivity=0.01)
    rounds = list(simulate(algorithm, DATA, rounds=2, seed=3))
    mean = square = None
    before = base(rounds[0], 0).params
    for round in rounds:
        changes = []
        for client in DATA:
            upload = round.uploads[client]
            assert isinstance(upload, Update)
            changes.append(round.weights[client] * flat(upload.values).double())
        change = torch.stack(changes).sum(0)
        mean = 0.2 * change + (0 if mean is None else 0.8 * mean)
        square = 0.1 * change**2 + 0.9 * (0.01**2 if square is None else square)
        expected = flat(before).double() + 0.05 * mean / (square.sqrt() + 0.01)
        before = round.after["global"].params
        torch.testing.assert_close(flat(before).double(), expected, rtol=1e-5, atol=1e-6)


def test_fedadam_sends_only_the_model() -> None:
    (round,) = simulate(FedAdam(tiny(), SGD), DATA, rounds=1, seed=3)
    assert list(round.sent[0].model.params) == list(tiny().initial(0).params)


def test_fedembedding_averages_rows_over_clients_that_changed_them() -> None:
    architecture = Architecture("table", partial(nn.Embedding, 3, 2))
    start = architecture.initial(3)
    moves = torch.tensor(
        [[[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]], [[3.0, 6.0], [5.0, 0.0], [0.0, 0.0]]]
    )
    uploads = {client: Update({"weight": moves[client]}) for client in (0, 1)}
    weights = {0: 0.25, 1: 0.75}
    algorithm = FedEmbedding(architecture, SGD)
    after = algorithm.models(algorithm.aggregate(start.tensors(), uploads, weights))[
        "global"
    ].params["weight"]
    # Two, one and no clients changed the three rows.
    expected = torch.tensor([[2.5, 5.0], [5.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(after - start.params["weight"], expected)


def test_fedembedding_equals_fedavg_if_all_rows_change() -> None:
    (embedding,), (averaged,) = (
        list(simulate(kind(tiny(), SGD), DATA, rounds=1, seed=3)) for kind in (FedEmbedding, FedAvg)
    )
    close(embedding.after["global"].params, averaged.after["global"].params)


def test_fedmd_clients_keep_their_own_networks() -> None:
    first, second = simulate(FEDMD, DATA, rounds=2, seed=3)
    assert first.after == second.after == {}
    assert [list(round.uploads[0].values) for round in (first, second)] == [["outputs"]] * 2
    # Clients alternate between two kinds of networks.
    for round in (first, second):
        assert [len(round.private_models[client].params["0.weight"]) for client in DATA] == [
            5,
            7,
            5,
        ]
    outputs = torch.stack([first.uploads[client].values["outputs"] for client in DATA])
    torch.testing.assert_close(second.sent[0].extra["outputs"], outputs.mean(0))


def test_fedmd_clients_train_on_mean_outputs_instead_of_labels() -> None:
    still = replace(ADAM, lr=1e-12)
    learning = replace(
        FEDMD, nets=(tiny(40),), digest=replace(ADAM, epochs=60, lr=0.03), revisit=still
    )
    mean_outputs = torch.randn(12, CLASSES, generator=seeded(1, "said")) * 3
    client_state = tiny(40).initial(2).tensors()
    client_context = ClientContext(
        round=2, rounds=3, client=0, cohort=(0,), weights={0: 1.0}, seed=3
    )
    sent = Sent(extra={"outputs": mean_outputs})
    upload, client_state_after = learning.run_client(
        sent, DATA[0], client_state, UNDEFENDED, client_context
    )
    # The upload is the outputs of the network that the client keeps.
    outputs = Model.from_tensors(tiny(40), client_state_after).module()(FEDMD.public.features)
    torch.testing.assert_close(upload.values["outputs"], outputs.detach())
    assert (outputs - mean_outputs).abs().mean() < 0.2 * mean_outputs.abs().mean()


def test_students_imitate_the_outputs_of_their_client() -> None:
    learning = replace(FEDMD, student=tiny(40), distillation=Distillation(300, 12, 0.02))
    outputs_by_client = {c: torch.randn(12, CLASSES, generator=seeded(c, "said")) for c in DATA}
    students = Students(
        learning, {c: Logits({"outputs": out}) for c, out in outputs_by_client.items()}, 3
    )
    for client in DATA:
        student = students[client].local
        assert student is not None
        outputs = student.module()(FEDMD.public.features).detach()
        errors = {
            other: float((outputs - out).abs().mean()) for other, out in outputs_by_client.items()
        }
        assert min(errors, key=lambda other: errors[other]) == client
        assert errors[client] < 0.3


def test_equal_outputs_give_equal_students() -> None:
    outputs = torch.randn(12, CLASSES, generator=seeded(1, "said"))
    uploads = {client: Logits({"outputs": outputs}) for client in DATA}
    students = [
        student.local
        for _ in range(2)
        for student in Students(FEDMD, uploads, 3).values()
        if student.local is not None
    ]
    assert len(students) == 2 * len(DATA)
    for student in students:
        assert torch.equal(flat(student.params), flat(students[0].params))


def test_students_are_trained_lazily_and_once() -> None:
    (round,) = simulate(FEDMD, DATA, rounds=1, seed=3)
    students = Students(FEDMD, round.uploads, 3)
    assert "_students" not in vars(students)
    assert students[1] is students[1]
    assert "_students" in vars(students)


def test_fedmd_exposes_only_students() -> None:
    (round,) = simulate(FEDMD, DATA, rounds=1, seed=3)
    assert round.observed[1].base is None
    assert round.observed[1].update is None


@pytest.mark.slow
def test_a_student_fits_its_teacher() -> None:
    public = samples(200, "public")
    teacher = tiny(8).initial(1)
    with torch.no_grad():
        outputs = teacher.module()(public.features)
    how = Distillation(epochs=200, batch_size=20, lr=0.01)
    students = distill(
        tiny(20).initial(2), public.features, {0: outputs}, how, rng=seeded(1, "order")
    )
    with torch.no_grad():
        error = (students[0].module()(public.features) - outputs).abs().mean()
    assert error < 0.1 * outputs.abs().mean()


@pytest.mark.parametrize("architecture", [tiny(), Architecture("normalised", normalised)])
def test_jointly_trained_students_match_torch(
    architecture: Architecture,
) -> None:
    public, start = samples(12, "public"), architecture.initial(2)
    outputs = {client: torch.randn(12, CLASSES, generator=seeded(client)) for client in range(3)}
    how = Distillation(epochs=3, batch_size=5, lr=0.01)
    students = distill(start, public.features, outputs, how, rng=seeded(1, "order"))
    for client, targets in outputs.items():
        rng = seeded(1, "order")
        module = start.module().train()
        adam = torch.optim.Adam(module.parameters(), lr=0.01)
        for _ in range(3):
            order = torch.randperm(12, generator=rng)
            for rows in chunks(12, 5):
                part = order[rows]
                adam.zero_grad()
                loss = functional.l1_loss(module(public.features[part]), targets[part])
                torch.autograd.backward(loss)
                adam.step()
        close(students[client].params, dict(module.named_parameters()))


def test_a_student_with_dropout_is_refused() -> None:
    student = Architecture("drops", partial(net, 5, 0.5)).initial(0)
    with pytest.raises(Unsupported, match="dropout"):
        distill(student, torch.zeros(2, FEATURES), {}, Distillation(), rng=seeded(1, "order"))


def test_public_samples_without_row_numbers_raise() -> None:
    public = samples(4, "public")
    with pytest.raises(BadInput, match="must be their row numbers"):
        replace(FEDMD, public=replace(public, ids=public.ids + 1))


@pytest.mark.parametrize(("epochs", "size", "lr"), [(0, 1, 0.1), (1, 0, 0.1), (1, 1, 0.0)])
def test_distillation_without_steps_raises(epochs: int, size: int, lr: float) -> None:
    with pytest.raises(BadInput, match="of Distillation takes"):
        Distillation(epochs, size, lr)
