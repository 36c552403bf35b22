"""Matching of parameter names of wrapped networks."""

from collections.abc import Callable, Collection
from time import monotonic

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput
from fedaudit.core.values import Architecture, Model
from fedaudit.live.unsent import UnsentTensors
from fedaudit.live.weights import ModelLayout


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.head = nn.Linear(3, 2)


class Holding(nn.Module):
    """A module that holds another under a name, as wrappers do."""

    def __init__(self, attribute: str, module: nn.Module) -> None:
        super().__init__()
        self.add_module(attribute, module)


def shape(build: Callable[[], nn.Module] = Net, declared: Collection[str] = ()) -> ModelLayout:
    module, unsent = build(), UnsentTensors(declared=frozenset(declared))
    return ModelLayout(Model.of(Architecture("net", build), module), module, unsent)


def trained() -> Net:
    net = Net()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        for value in net.parameters():
            value.normal_()
    return net


def renamed(change: Callable[[str], str]) -> dict[str, Tensor]:
    return {change(name): value for name, value in trained().state_dict().items()}


WRAPPED: dict[str, Callable[[], object]] = {
    "Opacus": lambda: renamed(lambda n: f"_module.{n}"),
    "Lightning": lambda: renamed(lambda n: f"model.{n}"),
    "compiled within Lightning": lambda: renamed(lambda n: f"model._orig_mod.{n}"),
    "EMA": lambda: torch.optim.swa_utils.AveragedModel(trained()).state_dict(),
    "EMA as a module": lambda: torch.optim.swa_utils.AveragedModel(trained()),
    "FSDP": lambda: renamed(lambda n: f"_fsdp_wrapped_module.{n}"),
    "FSDP with wrapped parts": lambda: renamed(
        lambda n: f"_fsdp_wrapped_module.{n}".replace("body.", "body._fsdp_wrapped_module.")
    ),
    "FSDP of checkpointed parts": lambda: renamed(
        lambda n: n.replace("body.", "body._fsdp_wrapped_module._checkpoint_wrapped_module.")
    ),
    "Opacus within DistributedDataParallel": lambda: renamed(lambda n: f"module._module.{n}"),
    "a strategy's attribute": lambda: renamed(lambda n: f"trainer.state.net.{n}"),
    "a module that holds it": lambda: Holding("network", trained()),
    "a module within two": lambda: Holding("a", Holding("b", trained())),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_parameters_of_wrapped_networks_are_read(kind: str) -> None:
    model = shape().model_of(WRAPPED[kind](), subject="it")  # type: ignore[arg-type]
    expected = Model.of(model.architecture, trained())
    assert model.params.keys() == expected.params.keys()
    for name, value in expected.params.items():
        torch.testing.assert_close(model.params[name], value)


def test_a_wrapped_network_can_be_recorded() -> None:
    net = trained()
    model = shape(lambda: Holding("model", Net())).model_of(net, subject="it")
    torch.testing.assert_close(model.params["model.head.weight"], net.head.weight.detach())


def test_partial_uploads_with_a_prefix_are_read() -> None:
    net_shape = shape(declared=["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"])
    sent = net_shape.model_of(trained(), subject="sent")
    part = {"model.head.weight": torch.ones(2, 3), "model.head.bias": torch.ones(2)}
    model = net_shape.model_of(part, subject="it", sent=sent)
    assert model.params["head.bias"].tolist() == [1, 1]
    torch.testing.assert_close(model.params["body.0.weight"], sent.params["body.0.weight"])


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)


class Nested(nn.Module):
    """Has one parameter under a name that a wrapper would make of another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.module = Holding("layer", nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("build", "names"),
    [
        pytest.param(Twins, ["weight", "bias"], id="which twin"),
        pytest.param(Nested, ["_orig_mod.layer.weight"], id="which layer"),
        pytest.param(Net, ["model.head.weight", "ema.head.weight"], id="two copies"),
        pytest.param(Net, ["head.weight", "model.head.weight"], id="under two names"),
        pytest.param(Net, ["head.weight", "tail.weight"], id="another part"),
    ],
)
def test_ambiguous_and_unknown_parameter_names_raise(
    build: Callable[[], nn.Module], names: list[str]
) -> None:
    with pytest.raises(BadInput, match=r"^it has ") as refused:
        shape(build).model_of(dict.fromkeys(names, torch.ones(2, 2)), subject="it")
    assert len(str(refused.value)) < 600


def test_wrapper_like_names_of_the_network_are_read() -> None:
    model = shape(Nested).model_of(Nested(), subject="it")
    assert [*model.params][::2] == ["layer.weight", "module.layer.weight"]


class Renamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.classifier = nn.Linear(3, 2)


@pytest.mark.parametrize("as_module", [True, False])
def test_a_module_with_other_names_raises_like_a_dictionary(as_module: bool) -> None:
    net_shape, net = shape(), Renamed()
    sent = net_shape.model_of(trained(), subject="sent")
    upload = net if as_module else dict(net.state_dict())
    with pytest.raises(BadInput, match=r"'classifier.weight', which the model"):
        net_shape.model_of(upload, subject="it", sent=sent)
    with pytest.raises(BadInput, match=r"'classifier.weight', which the model"):
        net_shape.change_of(upload, subject="it")
    with pytest.raises(BadInput, match=r"'classifier.weight', which the model"):
        net_shape.trainable_names(upload, subject="it")


def many(count: int) -> dict[object, Tensor]:
    return {f"head.weight{n}": torch.ones(1) for n in range(count)}


HOSTILE: dict[str, Callable[[], dict[object, Tensor]]] = {
    "a long name": lambda: {"module." * 80_000: torch.ones(1)},
    "a long name of the network": lambda: {"module." * 80_000 + "head.weight": torch.ones(2, 3)},
    "dots": lambda: {"." * 500_000: torch.ones(1)},
    "names at the limit": lambda: {f"{'module.' * 140}{n}": torch.ones(1) for n in range(1_000)},
    "many names": lambda: many(200_000),
    "numbers": lambda: {10**40: torch.ones(1)},
    "no name": lambda: {"": torch.ones(1)},
    "None": lambda: {None: torch.ones(1)},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_raise_without_delay(kind: str) -> None:
    net_shape, upload = shape(), HOSTILE[kind]()
    began = monotonic()
    with pytest.raises(BadInput, match=r"^it has ") as refused:
        net_shape.model_of(upload, subject="it")  # type: ignore[arg-type]
    assert monotonic() - began < 0.3
    assert len(str(refused.value)) < 600
