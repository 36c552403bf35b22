"""Placement of tensors, on a simulated GPU."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.devices import CPU, computing_on, device_named, samples_on
from fedaudit.core.errors import BadInput, FedauditError, Unsupported
from fedaudit.core.modules import load_module, outputs_of
from fedaudit.core.values import Architecture, Batch, Model, Params, Samples
from fedaudit.engines.local import Workers
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.hooks import UNDEFENDED, ClientContext, Defense, Objective, TrainingContext
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.plan.identity import run_key
from fedaudit.signals.gradients import gradient_products
from fedaudit.signals.kernels.plan import KERNELS
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.programs import exit_code
from tests.simulated_gpu import GPU, Card, OnTwoDevices, simulated_gpu
from tests.study.studies import quick_study


@pytest.fixture
def card() -> Iterator[Card]:
    with simulated_gpu() as card:
        yield card


@pytest.fixture
def gpu(card: Card) -> torch.device:
    return device_named("cuda")


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 6), nn.ReLU(), nn.Linear(6, 3))


def convolutional() -> nn.Module:
    """Build a network with every layer type that has a kernel, except tables.

    Maps are large and small. No bias precedes a batch norm, which would cancel it: its gradient
    would consist of rounding errors.
    """
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3, stride=2),
        nn.GroupNorm(2, 8),
        nn.Conv2d(8, 8, 1, groups=2),
        nn.AdaptiveAvgPool2d(2),
        nn.Conv2d(8, 8, 1),
        nn.Flatten(2),
        nn.Linear(4, 4),
        nn.LayerNorm(4),
        nn.Flatten(),
        nn.ReLU(),
        nn.BatchNorm1d(32),
        nn.Linear(32, 3),
    )


class Tied(nn.Module):
    """One layer used twice, which the fast kernels refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(72, 72)
        self.out = nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.one(self.one(x.flatten(1)).relu()))
        return out


def forgetful() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 9), nn.Dropout(0.5), nn.Linear(9, 3))


def table() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Flatten(), nn.Linear(20, 3))


NETS: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "convolutional": convolutional,
    "tied": Tied,
}


def model(build: Callable[[], nn.Module]) -> Model:
    return Architecture(f"devices {build.__name__}", build).initial(1)


def samples(count: int = 9, side: int = 6) -> Samples:
    rng = torch.Generator().manual_seed(2)
    features = torch.randn(count, 2, side, side, generator=rng)
    return Samples(features, torch.arange(count) % 3, torch.arange(count))


def context(received: Model, device: torch.device) -> TrainingContext:
    client_context = ClientContext(
        round=1, rounds=2, client=0, cohort=(0,), weights={0: 1.0}, seed=3, device=device
    )
    return client_context.with_model(received)


def same(left: Params, right: Params) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left.keys() | right.keys())


def updates_of(base: Model, clients: int) -> list[Params]:
    rng = torch.Generator().manual_seed(4)
    return [
        {name: torch.randn(value.shape, generator=rng) for name, value in base.params.items()}
        for _ in range(clients)
    ]


def on_cpu(*tensors: Tensor) -> bool:
    return all(tensor.device == CPU for tensor in tensors)


# The simulation itself, which must refuse what a GPU refuses.


def test_the_simulated_gpu_refuses_operations_across_devices(gpu: torch.device) -> None:
    on_host, on_gpu = torch.ones(3), torch.ones(3).to(gpu)
    with pytest.raises(OnTwoDevices, match="add"):
        on_host + on_gpu
    with pytest.raises(OnTwoDevices, match="addmm"):
        nn.Linear(3, 2).to(gpu)(on_host[None])
    with pytest.raises(OnTwoDevices, match="index"):
        on_host[torch.tensor([0]).to(gpu)]
    with pytest.raises(OnTwoDevices, match="numpy"):
        on_gpu.numpy()
    with pytest.raises(OnTwoDevices, match="generator"):
        torch.empty(3, device=gpu).normal_(generator=torch.Generator())
    with pytest.raises(OnTwoDevices, match="add"):
        torch._foreach_add_([on_gpu], [on_host])


def test_results_on_the_simulated_gpu_have_its_device(gpu: torch.device) -> None:
    on_gpu = torch.ones(4, 4).to(gpu)
    assert on_gpu.device == gpu
    for result in (on_gpu[1:], on_gpu @ on_gpu, torch.zeros_like(on_gpu), on_gpu.new_zeros(2)):
        assert result.device == gpu
    assert torch.zeros(2, dtype=torch.float64, device=gpu).device == gpu
    assert (on_gpu * 2 + torch.tensor(1.0)).device == gpu
    assert on_gpu[torch.tensor([0, 2])].device == gpu
    assert on_cpu(torch.ones(2), on_gpu.to("cpu"), on_gpu.to(CPU) + torch.ones(4))
    assert torch.vmap(lambda row: row.sum())(on_gpu).device == gpu


# Training and measuring.


@pytest.mark.parametrize(
    ("net", "optimizer"),
    # Adam would make steps of equal length from the rounding errors in gradients before a norm.
    [("dense", "sgd"), ("dense", "adam"), ("convolutional", "sgd"), ("tied", "adam")],
)
def test_training_on_a_gpu_uses_the_random_draws_of_a_cpu(
    gpu: torch.device, net: str, optimizer: str
) -> None:
    start = model(NETS[net])
    how = LocalTraining(epochs=2, batch_size=3, momentum=0.5, optimizer=optimizer, lr=0.01)  # type: ignore[arg-type]
    data = samples()
    gpu_model = train(start, data, how, UNDEFENDED, context(start, gpu))
    cpu_model = train(start, data, how, UNDEFENDED, context(start, CPU))
    assert on_cpu(*gpu_model.tensors().values())
    for name, value in cpu_model.tensors().items():
        torch.testing.assert_close(gpu_model.tensors()[name], value, rtol=1e-3, atol=2e-3)


def test_dropout_on_a_gpu_is_repeatable(
    gpu: torch.device,
) -> None:
    start, data, how = model(forgetful), samples(), LocalTraining(batch_size=4)
    before = torch.get_rng_state()
    first = train(start, data, how, UNDEFENDED, context(start, gpu))
    torch.rand(3)
    assert same(first.params, train(start, data, how, UNDEFENDED, context(start, gpu)).params)
    torch.set_rng_state(before)
    train(start, data, how, UNDEFENDED, context(start, gpu))
    assert torch.equal(torch.get_rng_state(), before)


class Recording(Defense):
    """A defense that records the devices of the tensors that its hooks receive."""

    def __init__(self) -> None:
        self.places: dict[str, set[str]] = {}

    def _note(self, hook: str, *tensors: Tensor) -> None:
        self.places.setdefault(hook, set()).update(tensor.device.type for tensor in tensors)

    def select(self, data: Samples, context: TrainingContext) -> Samples:
        self._note("select", data.features, data.labels, data.ids, context.evaluate(data))
        return data.take(data.ids % 2 == 0)

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        self._note("batch", batch.x, batch.y, batch.ids)
        return batch

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        self._note("loss", outputs)
        return super().loss(outputs, batch, context)

    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        gradient = super().gradient(objective, batch, context)
        self._note("gradient", *gradient.values())
        return gradient

    def after(self, start: Model, end: Model, context: TrainingContext) -> None:
        self._note("after", *start.params.values(), *end.params.values())

    def state(self) -> Params:
        return {"kept": torch.ones(2, device=GPU)}


def test_hooks_of_defenses_receive_tensors_on_the_device(gpu: torch.device, card: Card) -> None:
    defense, start = Recording(), model(dense)
    train(start, samples(), LocalTraining(batch_size=3), defense, context(start, gpu))
    during = {hook: {"cuda"} for hook in ("select", "batch", "loss", "gradient")}
    assert defense.places == during | {"after": {"cpu"}}
    assert card.ran["cpu"]["addmm"] == 0, "the hook's evaluation ran on the CPU"


@pytest.mark.parametrize("net", NETS)
def test_outputs_are_returned_on_the_device_of_the_features(gpu: torch.device, net: str) -> None:
    start, data = model(NETS[net]), samples(300)
    outputs = outputs_of(start, data.features, gpu)
    assert on_cpu(outputs)
    torch.testing.assert_close(outputs, outputs_of(start, data.features))
    assert outputs_of(start, data.features.to(gpu), gpu).device == gpu
    assert load_module(start, "evaluation", gpu) is not load_module(start, "evaluation")


def tokens() -> Samples:
    features = torch.arange(40).reshape(8, 5) % 9
    return Samples(features, torch.arange(8) % 3, torch.arange(8))


@pytest.mark.slow
@pytest.mark.parametrize("clients", [0, 2, 20])
@pytest.mark.parametrize(
    ("build", "data"),
    [
        (dense, samples(40)),
        (convolutional, samples()),
        (convolutional, samples(5, side=14)),
        (Tied, samples()),
        (table, tokens()),
    ],
)
def test_gradient_products_agree_on_gpu_and_cpu(
    gpu: torch.device, card: Card, build: Callable[[], nn.Module], data: Samples, clients: int
) -> None:
    base = model(build)
    arguments = (base, updates_of(base, clients), data.features, data.labels)
    gpu_products, cpu_products = (
        gradient_products(*arguments, device=gpu),
        gradient_products(*arguments),
    )
    assert on_cpu(*gpu_products)
    assert card.refused == []
    for on_gpu, on_host in zip(gpu_products, cpu_products, strict=True):
        torch.testing.assert_close(on_gpu, on_host, rtol=1e-4, atol=1e-4)


def test_no_kernel_falls_back_to_a_slower_one_on_a_gpu(
    gpu: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    base, data = Architecture("placed", convolutional).initial(1), samples()
    gradient_products(base, updates_of(base, 2), data.features, data.labels, device=gpu)
    assert not [record for record in caplog.records if "slower" in record.message]
    reached = {type(part) for build in (convolutional, table) for part in build().modules()}
    assert set(KERNELS) <= reached, "a layer type with a kernel is not tried on a GPU here"


# Runs.


federation = partial(
    simulate,
    FedAvg(model(dense).architecture, LocalTraining(batch_size=3)),
    {0: samples(6), 1: samples(9)},
    rounds=2,
    seed=5,
)


def test_results_of_a_federation_on_a_gpu_are_on_the_cpu(gpu: torch.device) -> None:
    gpu_rounds, cpu_rounds = list(federation(device=gpu)), list(federation(device=CPU))
    for gpu_round, cpu_round in zip(gpu_rounds, cpu_rounds, strict=True):
        for client, upload in gpu_round.uploads.items():
            assert on_cpu(*upload.values.values())
            assert same(upload.values, cpu_round.uploads[client].values)


def test_defense_states_are_kept_on_the_cpu(gpu: torch.device, tmp_path: Path) -> None:
    states: list[Params] = []

    class Restored(Recording):
        def restore(self, state: Params) -> None:
            states.append(state)

    list(federation(device=gpu, defenses={0: Restored()}, checkpoint=tmp_path / "c.safetensors"))
    assert on_cpu(*states[-1].values())
    assert len(states[-1]) == 1


def test_a_run_from_a_cpu_is_not_continued_on_a_gpu(gpu: torch.device, tmp_path: Path) -> None:
    list(federation(checkpoint=tmp_path / "c.safetensors"))
    with pytest.raises(BadInput, match="another type of device"):
        list(federation(device=gpu, checkpoint=tmp_path / "c.safetensors"))


def test_the_run_key_depends_on_the_device_type() -> None:
    study = quick_study()
    assert run_key(study, 1, "cuda") != run_key(study, 1) == run_key(study, 1, "cpu")


@pytest.mark.slow
def test_a_study_on_a_gpu_has_the_results_of_a_cpu(
    gpu: torch.device, card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = quick_study(
        attacks={}, figures={"planted_leak": True}, partition={"samples_per_client": 60}
    )
    with monkeypatch.context() as patched:
        # The check of a network before training uses the CPU on any device.
        patched.setattr("fedaudit.fl.simulate.raise_if_unusable_model", lambda model, samples: None)
        gpu_record = run_study(study, tmp_path / "gpu", device=gpu, workers=0)
        reattack(tmp_path / "gpu", [], tmp_path / "again", device=gpu)
    for name in ("addmm", "mm"):
        assert card.ran["cuda"][name] > 0
        assert card.ran["cpu"][name] == 0
    cpu_record = run_study(study, tmp_path / "cpu")
    assert gpu_record.content_hash != cpu_record.content_hash
    assert gpu_record.environment.device.startswith("Simulated (cuda), ")
    assert len(gpu_record.findings) == len(cpu_record.findings)
    for gpu_estimate, cpu_estimate in zip(gpu_record.findings, cpu_record.findings, strict=True):
        assert gpu_estimate.value == pytest.approx(cpu_estimate.value, abs=1e-3)
    with pytest.raises(BadInput, match="another type of device"):
        run_study(study, tmp_path / "gpu")
    # Signals that were measured on a GPU can be attacked without one.
    reattacked = reattack(tmp_path / "gpu", ["fedmia-1"], tmp_path / "once more")
    original = [f for f in gpu_record.findings if f.attack == "fedmia-1"]
    assert [f.value for f in reattacked.findings] == [f.value for f in original]


@pytest.mark.slow
def test_signals_left_out_on_a_gpu_are_measured_on_a_gpu(gpu: torch.device, tmp_path: Path) -> None:
    study = quick_study(
        audit={"keep": "full"},
        attacks={"fedmia-1": {}},
        partition={"samples_per_client": 60},
        training={"rounds": 2, "epochs": 1},
    )
    run_study(study, tmp_path / "run", device=gpu)
    with pytest.raises(BadInput, match="device=cuda"):
        reattack(tmp_path / "run", ["fedmia-2"], tmp_path / "cpu")
    assert reattack(tmp_path / "run", ["fedmia-2"], tmp_path / "gpu", device=gpu).findings


# Refusals.


UNKNOWN = dict.fromkeys(("gpu", "cuda:x", "cpu:1", "", "CUDA", "cuda:-1"), "a device is .* has cpu")
REFUSED = {"mps": "double precision", "cuda:3": "no device 'cuda:3'; it has cpu, cuda:0"}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("name", "message"), {**UNKNOWN, **REFUSED}.items())
def test_a_missing_device_is_refused_with_the_existing_ones(name: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        device_named(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_command_line_refuses_a_missing_gpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert exit_code("demo", "--device", "cuda", "--out", tmp_path) == 2
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert "no device 'cuda'; it has cpu" in stderr


def test_a_gpu_takes_one_worker(gpu: torch.device, tmp_path: Path) -> None:
    base, data = model(dense), samples()
    several: list[Callable[[], object]] = [
        partial(federation, device=gpu, engine=Workers(2)),
        partial(run_study, quick_study(), tmp_path, workers=2, device=gpu),
        partial(gradient_products, base, [], data.features, data.labels, workers=2, device=gpu),
    ]
    for ask in several:
        with pytest.raises(Unsupported, match="one worker computes on cuda:0, got 2"):
            ask()


# Precision and memory of a GPU.


def test_a_gpu_computes_in_full_precision_only_inside_the_context(gpu: torch.device) -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def settings() -> tuple[object, ...]:
        newer = [getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None), matmul]
        precisions = [getattr(part, "fp32_precision", "ieee") for part in newer]
        return (*precisions, cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic)

    before = settings()
    with computing_on(gpu):
        assert settings() == ("ieee", "ieee", "ieee", False, False, True)
        with computing_on(gpu):
            pass
        assert settings()[:3] == ("ieee", "ieee", "ieee")
    assert settings() == before
    with computing_on(CPU):
        assert settings() == before


def test_a_gpu_out_of_memory_is_one_sentence(gpu: torch.device) -> None:
    with pytest.raises(FedauditError, match="cuda:0 has run out of memory"), computing_on(gpu):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")


def test_nothing_is_copied_on_the_cpu() -> None:
    data = samples()
    assert samples_on(data, CPU).features is data.features
    assert device_named("cpu") == CPU
