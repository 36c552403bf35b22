"""Canary nodes in a Flower app with server noise."""

import importlib
import re
import sys
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")

import torch
from flwr.app import Context, RecordDict

from fedaudit.fl.accounting import gaussian_mechanism_epsilon
from tests.integrations.federation import StubGrid

PROJECT = Path(__file__).parents[2] / "examples" / "flower" / "canaries"
CONFIG: dict[str, object] = {
    "clients": 5, "canaries": 40, "canary-seed": 1, "clip": 0.5, "noise-multiplier": 1.0,
    "num-server-rounds": 4, "local-epochs": 1, "learning-rate": 0.05, "batch-size": 32,
}  # fmt: skip


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(PROJECT)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = ("client_app", "server_app", "canaries")
    yield {name: importlib.import_module(f"digits_app.{name}") for name in names}
    for name in [name for name in sys.modules if name.split(".")[0] == "digits_app"]:
        del sys.modules[name]


def printed(
    example: dict[str, ModuleType], capsys: pytest.CaptureFixture[str], **changes: object
) -> tuple[float, float]:
    """Return the two bounds that the server prints at the end."""
    torch.manual_seed(3)
    config = {**CONFIG, **{name.replace("_", "-"): value for name, value in changes.items()}}
    grid = StubGrid(example["client_app"].app, nodes=45)
    for context in grid.contexts.values():
        context.run_config.update(config)
    example["server_app"].app._main(grid, Context(1, 0, {}, RecordDict(), config))
    coins, normal = re.findall(r"(?:assumptions|Gaussian) +(\S+)", capsys.readouterr().out)
    return float(coins), float(normal)


def test_canary_nodes_bound_the_epsilon_of_flower_noise(
    example: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    # In each of four rounds, the standard deviation of the noise is one clip.
    truth = gaussian_mechanism_epsilon(1.0, 4, delta=1e-5)
    coins, normal = printed(example, capsys)
    assert 0 <= coins < normal < truth
    assert normal > truth / 4


def test_missing_noise_is_detected(
    example: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    coins, normal = printed(example, capsys, noise_multiplier=1e-6)
    assert normal > 10 * gaussian_mechanism_epsilon(1.0, 4, delta=1e-5)
    assert coins > 1


def test_half_of_the_canaries_move_the_model_and_count_as_one_client(
    example: dict[str, ModuleType],
) -> None:
    config = dict(CONFIG)
    context = Context(1, 9, {"partition-id": 7, "num-partitions": 45}, RecordDict(), config)
    assert example["canaries"].canary_number(context) == 2
    assert example["canaries"].clients(context, 45) == 5
    canaries = example["canaries"].canaries(context)
    assert 10 < canaries.sends.sum() < 30
    sent = {name: value.clone() for name, value in example["canaries"].Net().state_dict().items()}
    for number in range(40):
        moved = canaries.upload(number, sent)
        assert isinstance(moved, dict)
        length = sqrt(sum(float((moved[n] - sent[n]).square().sum()) for n in sent))
        assert length == pytest.approx(0.5 if canaries.sends[number] else 0.0, abs=1e-4)
