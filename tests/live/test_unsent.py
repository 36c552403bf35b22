"""Parameters that clients train but do not send."""

import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import fedaudit
from fedaudit.core.errors import BadInput
from fedaudit.live.audited import Split
from fedaudit.live.measuring import MeasurementTime
from fedaudit.live.record import record
from fedaudit.live.rounds import UploadKind
from fedaudit.live.unsent import ESTIMATED_NOTE
from fedaudit.observe.measurements import read_measured
from fedaudit.results.record import Record
from tests.live.federation import measured

ROUNDS = 3
QUICK = {"permutations": 20, "blind_classifier": False}
ATTACKS = ["loss-series"]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def network(momentum: float | None = 0.1) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Linear(64, 128),
            nn.BatchNorm1d(128, momentum=momentum),
            nn.ReLU(),
            nn.Linear(128, 10),
        )


@cache
def split() -> Split:
    digits = load_digits()
    # Pixels with a mean far from 0 and a variance far from 1, as in unscaled images.
    x, y = torch.tensor(digits.data, dtype=torch.float32) * 4, torch.tensor(digits.target)
    y = (y + torch.randint(0, 10, y.shape, generator=torch.Generator().manual_seed(1))) % 10
    return fedaudit.fair_split({c: (x[c:360:3], y[c:360:3]) for c in range(3)}, audited=80)


def local(net: nn.Module, client: int) -> nn.Module:
    """A client that trains on the audited samples that it keeps."""
    model, samples = deepcopy(net).train(), split().audit.samples
    mine = torch.from_numpy(split().audit.owner == client)
    x, y = samples.features[mine], samples.labels[mine]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with torch.random.fork_rng():
        torch.manual_seed(client)
        for _ in range(25):
            for rows in torch.randperm(len(x)).tensor_split(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return model


class Trained(NamedTuple):
    sent: nn.Module
    uploads: dict[int, nn.Module]


@cache
def rounds() -> tuple[Trained, ...]:
    trained_rounds, net = [], network()
    for _ in range(ROUNDS):
        trained_round = Trained(deepcopy(net), {c: local(net, c) for c in range(3)})
        states = [upload.state_dict() for upload in trained_round.uploads.values()]
        net.load_state_dict(
            {n: torch.stack([s[n].float() for s in states]).mean(0) for n in states[0]}
        )
        trained_rounds.append(trained_round)
    return tuple(trained_rounds)


def parameters(net: nn.Module) -> list[Tensor]:
    return [value.detach().clone() for value in net.parameters()]


def without_statistics(net: nn.Module) -> dict[str, Tensor]:
    return {n: v for n, v in net.state_dict().items() if not n.endswith(STATISTICS)}


def server_side(net: nn.Module) -> nn.Module:
    """A module with parameters from the server, but without its running statistics."""
    built = network()
    built.load_state_dict(without_statistics(net), strict=False)
    return built


Form = Callable[[nn.Module], object]


def recorded(
    folder: Path,
    upload: Form,
    sent: Form | None = None,
    *,
    make: Callable[[], nn.Module] = network,
    **settings: object,
) -> None:
    how = {"attacks": ATTACKS, "strict": True, **settings}
    with record(folder, make, split().audit, **how) as recorder:  # type: ignore[arg-type]
        for number, trained_round in enumerate(rounds(), 1):
            uploads = {c: upload(net) for c, net in trained_round.uploads.items()}
            recorder.round(number, sent=(sent or upload)(trained_round.sent), uploads=uploads)  # type: ignore[arg-type]


def attacked(folder: Path) -> Record:
    return fedaudit.attack_recording(folder, [], folder / "attacked", figures=QUICK)


def auc(record: Record) -> float:
    figures = record.where(topic="membership", metric="auc", contrast="unseen")
    values = [
        estimate.value
        for estimate in figures
        if estimate.target is not None and estimate.value is not None
    ]
    return sum(values) / len(values)


FORMS: dict[str, tuple[Form, Form]] = {
    "lists of parameters": (parameters, parameters),
    "mappings without statistics": (without_statistics, without_statistics),
    "lists, and the server's module": (parameters, server_side),
    "modules that the server has filled": (server_side, server_side),
}


@pytest.fixture(scope="module")
def complete_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorded(folder, lambda net: net)
    return folder


def test_whole_modules_are_measured_as_they_are(complete_recording: Path) -> None:
    record = attacked(complete_recording)
    assert auc(record) > 0.9
    assert not any("running statistics" in line for line in record.untested)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_statistics_that_clients_do_not_send_are_estimated_and_reported(
    form: str, complete_recording: Path, tmp_path: Path
) -> None:
    upload, sent = FORMS[form]
    with pytest.warns(RuntimeWarning, match=r"clients do not send the running statistics of 1;"):
        recorded(tmp_path, upload, sent)
    record = attacked(tmp_path)
    assert auc(record) == pytest.approx(auc(attacked(complete_recording)), abs=0.05)
    assert any("running statistics of 1, which" in line for line in record.untested)


@pytest.mark.filterwarnings("ignore:fedaudit. clients do not send")
@pytest.mark.parametrize("measure", ["background", "after"])
def test_estimated_statistics_do_not_depend_on_the_time_of_measurement(
    measure: MeasurementTime, tmp_path: Path
) -> None:
    recorded(tmp_path / "now", parameters, keep="full")
    recorded(tmp_path / "other", parameters, keep="full", measure=measure)
    immediate, other = measured(tmp_path / "now"), measured(tmp_path / "other")
    assert immediate.keys() == other.keys()
    assert all(torch.equal(immediate[key], other[key]) for key in immediate)


@pytest.mark.filterwarnings("ignore:fedaudit. clients do not send")
@pytest.mark.parametrize("view", ["sum", "globals", "final"])
def test_statistics_are_estimated_in_every_view(view: str, tmp_path: Path) -> None:
    names = ["blackbox-loss"]
    if view == "sum":
        recorded(tmp_path, parameters, view=view, attacks=names)
    else:
        with record(tmp_path, network, split().audit, view=view, attacks=names) as recorder:
            for number, trained_round in enumerate(rounds(), 1):
                recorder.round(number, sent=server_side(trained_round.sent))
    assert any("running statistics" in line for line in attacked(tmp_path).untested)


@pytest.mark.filterwarnings("ignore:fedaudit. clients do not send")
def test_a_client_without_statistics_does_not_change_other_clients(
    complete_recording: Path, tmp_path: Path
) -> None:
    with record(tmp_path, network, split().audit, attacks=ATTACKS, strict=True) as recorder:
        for number, trained_round in enumerate(rounds(), 1):
            uploads = {
                c: server_side(net) if c == 2 else net for c, net in trained_round.uploads.items()
            }
            recorder.round(number, sent=trained_round.sent, uploads=uploads)
    actual, expected = measured(tmp_path), measured(complete_recording)
    for key, values in actual.items():
        assert torch.equal(values[:2], expected[key][:2])
        assert not torch.equal(values[2], expected[key][2])


@pytest.mark.filterwarnings("ignore:fedaudit. clients do not send")
@pytest.mark.parametrize("kind", ["updates", "gradients"])
def test_updates_use_the_sent_statistics_and_missing_statistics_are_estimated(
    kind: UploadKind, tmp_path: Path
) -> None:
    sign = 1 if kind == "updates" else -1
    with record(
        tmp_path, network, split().audit, attacks=ATTACKS, uploads=kind, strict=True
    ) as recorder:
        for number, trained_round in enumerate(rounds(), 1):
            uploads = {
                c: {
                    n: sign * (value.detach() - trained_round.sent.get_parameter(n).detach())
                    for n, value in net.named_parameters()
                }
                for c, net in trained_round.uploads.items()
            }
            recorder.round(number, sent=trained_round.sent, uploads=uploads)
    (estimated,) = [line for line in attacked(tmp_path).untested if "running statistics" in line]
    assert "in round 1 they" in estimated, "later ones were sent, and are not the recorder's own"


@pytest.mark.filterwarnings("ignore:fedaudit. clients do not send")
def test_undeclared_personal_layers_raise_in_the_first_round(
    tmp_path: Path,
) -> None:
    def without_norm(net: nn.Module) -> dict[str, Tensor]:
        return {n: v for n, v in net.state_dict().items() if not n.startswith("1.")}

    with pytest.raises(BadInput, match=r"lacks 1.bias, 1.weight, which clients train.*not_upl"):
        recorded(tmp_path / "refused", without_norm, lambda net: net)
    with pytest.raises(BadInput, match=r"the model sent lacks 1.bias, 1.weight.*not_uploaded"):
        recorded(tmp_path / "neither", without_norm)
    for number, form in enumerate((without_norm, lambda net: [*without_norm(net).values()])):
        recorded(tmp_path / f"{number}", form, not_uploaded=["1.*"])
        record = attacked(tmp_path / f"{number}")
        assert any("stay at the clients (1.*)" in line for line in record.untested)


@pytest.mark.parametrize("declared", ["*", "1.*", "1.running*", "3.*"])
def test_complete_uploads_ignore_declared_personal_layers(declared: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorded(tmp_path / "all", lambda net: net.state_dict())
        recorded(tmp_path / "declared", lambda net: net.state_dict(), not_uploaded=[declared])
    actual, expected = (read_measured(tmp_path / name) for name in ("declared", "all"))
    assert not any(ESTIMATED_NOTE in stored.notes for stored in actual)
    for stored, other in zip(actual, expected, strict=True):
        for name, values in other.measured.signals.items():
            assert torch.equal(stored.measured.signals[name], values)


@pytest.mark.parametrize("kind", ["updates", "gradients"])
def test_an_update_without_the_head_raises(kind: UploadKind, tmp_path: Path) -> None:
    trained_round = rounds()[0]
    body = {n: torch.zeros_like(v) for n, v in trained_round.sent.named_parameters() if n[0] != "3"}
    how = {"attacks": ATTACKS, "uploads": kind, "strict": True}
    with (
        record(tmp_path, network, split().audit, **how) as recorder,  # type: ignore[arg-type]
        pytest.raises(BadInput, match=r"upload lacks 3.bias, 3.weight, which clients train"),
    ):
        recorder.round(1, sent=trained_round.sent, uploads=dict.fromkeys(range(3), body))


def test_frozen_parameters_need_not_be_uploaded_and_keep_the_sent_values(tmp_path: Path) -> None:
    def frozen() -> nn.Module:
        net = network()
        for name, value in net.named_parameters():
            value.requires_grad_(name.startswith("3."))
        return net

    def head(net: nn.Module) -> dict[str, Tensor]:
        return {n: v.detach() for n, v in net.named_parameters() if n.startswith("3.")}

    # Statistics between frozen layers are frozen too: no client trains them.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorded(tmp_path / "part", head, lambda net: net, make=frozen)
        recorded(
            tmp_path / "all",
            lambda net: net.state_dict() | rounds()[0].sent.state_dict() | head(net),
            lambda net: net,
            make=frozen,
        )
    first = {k: v for k, v in measured(tmp_path / "part").items() if k[0] == 1}
    expected = measured(tmp_path / "all")
    assert all(torch.equal(values, expected[key]) for key, values in first.items())


def test_declaring_an_unknown_parameter_as_not_uploaded_raises(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"not_uploaded has 'bn1.\*', and the model has no such"):
        recorded(tmp_path, parameters, not_uploaded=["bn1.*"])


class Counting(nn.Module):
    """Has buffers of every kind that a parameter list leaves out."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.shift: Tensor
        self.kind, self.layer = kind, nn.Linear(64, 10)
        start = torch.randn(10) if kind == "random" else torch.arange(10.0)
        self.register_buffer("shift", start, persistent=kind != "not in the state dict")
        if kind == "unused parameter":
            self.unused = nn.Parameter(torch.ones(3))
        if kind == "spectral norm":
            spectral_norm(self.layer)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        if self.kind == "own statistics" and self.training:
            self.shift = 0.9 * self.shift + 0.1 * output.detach().mean(0)
        return output + self.shift


def trained_lists(kind: str) -> Iterator[tuple[list[Tensor], dict[int, list[Tensor]]]]:
    net = Counting(kind)
    params = {n: v for n, v in net.named_parameters() if n != "unused"}
    values = [value.detach().clone() for value in params.values()]
    yield values, {c: [value + 0.1 for value in values] for c in range(3)}


@pytest.mark.parametrize("kind", ["constant", "not in the state dict"])
def test_constant_buffers_need_not_be_uploaded(kind: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with record(tmp_path, partial(Counting, kind), split().audit, strict=True) as recorder:
            for sent, uploads in trained_lists(kind):
                recorder.round(1, sent=sent, uploads=uploads)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("own statistics", r"lacks shift, which training changes.*not_uploaded"),
        ("spectral norm", r"lacks layer.parametrizations.weight.0._[uv], which training changes"),
        ("random", r"lacks 'shift', which is drawn at random whenever the network is built"),
    ],
)
def test_unknown_buffers_raise(kind: str, message: str, tmp_path: Path) -> None:
    make = partial(Counting, kind)
    with record(tmp_path / "refused", make, split().audit, strict=True) as recorder:
        for sent, uploads in trained_lists(kind):
            with pytest.raises(BadInput, match=message):
                recorder.round(1, sent=sent, uploads=uploads)
    names = ["shift"] if kind != "spectral norm" else ["*._u", "*._v"]
    with record(
        tmp_path / "declared", make, split().audit, strict=True, not_uploaded=names
    ) as recorder:
        for sent, uploads in trained_lists(kind):
            recorder.round(1, sent=sent, uploads=uploads)


def test_a_parameter_without_a_gradient_need_not_be_uploaded(tmp_path: Path) -> None:
    make = partial(Counting, "unused parameter")
    with record(tmp_path, make, split().audit, strict=True) as recorder:
        state = {n: v for n, v in make().state_dict().items() if n != "unused"}
        recorder.round(1, sent=make(), uploads=dict.fromkeys(range(3), state))


@pytest.mark.filterwarnings("ignore:fedaudit. clients do not send")
def test_clients_that_send_different_parameters_are_not_averaged(tmp_path: Path) -> None:
    trained_round = rounds()[0]
    parts = {c: dict(net.named_parameters()) for c, net in trained_round.uploads.items()}
    parts[2] = {n: v for n, v in parts[2].items() if n != "3.bias"}
    how = {"attacks": ATTACKS, "strict": True, "not_uploaded": ["3.bias"]}
    with (
        record(tmp_path, network, split().audit, **how) as recorder,  # type: ignore[arg-type]
        pytest.raises(BadInput, match="of client 2: its upload holds another part of the model"),
    ):
        recorder.round(1, sent=trained_round.sent, uploads=parts)


@pytest.mark.filterwarnings("ignore:fedaudit. clients do not send")
@pytest.mark.parametrize("statistics", ["estimated", "of another network"])
def test_the_reported_accuracy_shows_whether_statistics_are_local(
    statistics: str, tmp_path: Path
) -> None:
    def another(net: nn.Module) -> dict[str, Tensor]:
        state = dict(net.state_dict())
        return state | {"1.running_mean": state["1.running_mean"] + 200}

    samples, owner = split().audit.samples, torch.from_numpy(split().audit.owner)
    send: Form = parameters if statistics == "estimated" else another
    with record(tmp_path, network, split().audit, attacks=ATTACKS, strict=True) as recorder:
        for number, trained_round in enumerate(rounds(), 1):
            reported = {}
            for client, net in trained_round.uploads.items():
                mine = owner == client
                right = net.eval()(samples.features[mine]).argmax(1) == samples.labels[mine]
                reported[client] = {"accuracy": float(right.float().mean())}
            uploads = {c: send(net) for c, net in trained_round.uploads.items()}
            sent = send(trained_round.sent)
            recorder.round(number, sent=sent, uploads=uploads, reported=reported)  # type: ignore[arg-type]
    controls = [c for c in attacked(tmp_path).controls if c.control == "reported training metrics"]
    assert {c.passed for c in controls} == {statistics == "estimated"}


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "without weights": lambda: nn.BatchNorm1d(16, affine=False),
    "plain means": lambda: nn.BatchNorm1d(16, momentum=None),
    "synchronised": lambda: nn.SyncBatchNorm(16),
    "of instances": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 16)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten()
    ),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_statistics_of_every_normalisation_of_torch_are_estimated(
    kind: str, tmp_path: Path
) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 16), LAYERS[kind](), nn.Linear(16, 10))

    net = make()
    with (
        record(tmp_path, make, split().audit, attacks=ATTACKS, strict=True) as recorder,
        pytest.warns(
            RuntimeWarning, match=r"clients do not send the running statistics of 1(\.1)?;"
        ),
    ):
        recorder.round(1, sent=parameters(net), uploads={c: parameters(net) for c in range(3)})
