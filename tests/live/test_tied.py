"""Uploads of networks in which one parameter has several names."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput
from fedaudit.core.values import Architecture, Model
from fedaudit.live.record import record
from fedaudit.live.recording import read_round_log
from fedaudit.live.rounds import UploadKind
from fedaudit.live.weights import ModelLayout
from tests.live.federation import data, measured


class Tied(nn.Module):
    scale: Tensor
    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.head = nn.Linear(64, 10)
        scale = torch.ones(1)
        self.register_buffer("scale", scale)
        self.register_buffer("factor", scale)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.second(self.first(x).relu()).relu()
        outputs: Tensor = self.head(hidden * self.scale)
        return outputs


State = dict[str, Tensor]
DISAGREEING: dict[str, Callable[[State], object]] = {
    "parameter": lambda s: {**s, "second.weight": s["second.weight"] * 0 + 1},
    "in one value": lambda s: {**s, "second.weight": s["second.weight"] + torch.eye(64) * 1e-6},
    "buffer": lambda s: {**s, "factor": s["factor"] + 1},
    "shape": lambda s: {**s, "second.weight": s["second.weight"][:3]},
    "wrapped": lambda s: {f"module.{n}": v + (n == "second.weight") for n, v in s.items()},
    "list": lambda s: [v + (n == "second.weight") for n, v in s.items()],
    "type": lambda s: {**s, "second.weight": s["second.weight"].half()},
    "not finite": lambda s: {**s, "second.weight": s["second.weight"] * torch.nan},
}
AGREEING: dict[str, Callable[[State], object]] = {
    "copies": lambda s: {n: v.clone() for n, v in s.items()},
    "first alone": lambda s: {n: v for n, v in s.items() if n not in ("second.weight", "factor")},
    "second alone": lambda s: {n: v for n, v in s.items() if n not in ("first.weight", "scale")},
    "list": lambda s: list(s.values()),
    "double": lambda s: {n: v.double() for n, v in s.items()},
}


def upload(seed: int) -> State:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return dict(Tied().state_dict())


def shape() -> ModelLayout:
    module = Tied()
    return ModelLayout(Model.of(Architecture("tied", Tied), module), module)


@pytest.mark.parametrize("how", DISAGREEING)
def test_tied_entries_that_differ_are_refused_with_both_names(how: str) -> None:
    with pytest.raises(BadInput, match=r"its upload has other values for '(first|scale)"):
        shape().model_of(DISAGREEING[how](upload(1)), subject="its upload")  # type: ignore[arg-type]


@pytest.mark.parametrize("how", AGREEING)
def test_tied_parameters_are_read_under_either_name(how: str) -> None:
    model = shape().model_of(AGREEING[how](upload(1)), subject="its upload")  # type: ignore[arg-type]
    assert torch.equal(model.params["first.weight"], upload(1)["first.weight"])
    assert torch.equal(model.buffers["scale"], upload(1)["scale"])


def test_tied_entries_that_are_both_not_finite_count_as_equal() -> None:
    nan = {n: v * torch.nan for n, v in upload(1).items()}
    assert shape().model_of(nan, subject="its upload").params["first.weight"].isnan().all()


@pytest.mark.parametrize("kind", ["models", "updates"])
def test_a_client_with_unequal_tied_weights_is_excluded(kind: UploadKind, tmp_path: Path) -> None:
    uploads: dict[int, object] = {client: upload(client) for client in range(3)}
    for folder in ("without", "with"):
        if folder == "with":
            uploads[1] = DISAGREEING["parameter"](upload(1))
        else:
            del uploads[1]
        with record(
            tmp_path / folder, Tied, data().split.audit, attacks=["blackbox-loss"], uploads=kind
        ) as recorder:
            if folder == "without":
                recorder.round(1, sent=upload(9), uploads=uploads, selected=range(3))  # type: ignore[arg-type]
                continue
            with pytest.warns(RuntimeWarning, match="round 1 is recorded without client 1"):
                recorder.round(1, sent=upload(9), uploads=uploads)  # type: ignore[arg-type]
    (entry,) = read_round_log(tmp_path / "with")
    assert "'second.weight', which are one parameter" in entry.excluded[1]
    expected, actual = (measured(tmp_path / name) for name in ("without", "with"))
    assert all(torch.equal(actual[key], expected[key]) for key in expected)
