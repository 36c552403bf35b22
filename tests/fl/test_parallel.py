import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.modules import load_module
from fedaudit.core.values import Architecture
from fedaudit.fl.training import parallel as module
from fedaudit.fl.training.parallel import run_in_parallel, uses_global_rng
from fedaudit.models import architecture


def mlp(dropout: float) -> Architecture:
    return architecture("mlp", shape=(6,), classes=3, hidden="5", dropout=dropout)


def test_results_are_in_the_order_of_the_items() -> None:
    assert run_in_parallel(lambda item: item * item, range(7)) == [0, 1, 4, 9, 16, 25, 36]


def test_an_empty_list_gives_an_empty_list() -> None:
    assert run_in_parallel(lambda item: item, []) == []


def test_workers_use_one_thread_and_the_callers_count_is_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_cores", lambda: 3)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert run_in_parallel(lambda _: torch.get_num_threads(), range(6)) == [1] * 6
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_as_many_items_run_at_once_as_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_cores", lambda: 2)
    both = threading.Barrier(2, timeout=20)
    assert run_in_parallel(lambda _: both.wait() >= 0, range(4)) == [True] * 4


def test_alone_runs_items_sequentially(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cores", lambda: 4)
    workers = run_in_parallel(lambda _: threading.get_ident(), range(8), sequential=True)
    assert len(set(workers)) == 1


def test_training_does_not_use_the_global_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cores", lambda: 4)
    model = mlp(0.0).initial(1)
    before = torch.get_rng_state()
    run_in_parallel(lambda number: load_module(model, f"use {number}"), range(40))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_error_of_one_item_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run_in_parallel(lambda item: 1 / item, [1, 0, 2])


def test_dropout_with_probability_zero_draws_nothing() -> None:
    assert uses_global_rng(mlp(0.5).initial(1))
    assert not uses_global_rng(mlp(0.0).initial(1))


class FunctionalDropout(nn.Module):
    """A network with dropout, but without a dropout layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(functional.dropout(x, 0.5, self.training))
        return out


@pytest.mark.parametrize(
    ("make", "draws"),
    [
        (FunctionalDropout, True),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.RReLU()), True),
        (lambda: nn.Sequential(nn.TransformerEncoderLayer(6, 2, 8), nn.Linear(6, 3)), True),
        (lambda: nn.Sequential(nn.MultiheadAttention(6, 2, dropout=0.1)), True),
        (lambda: nn.Sequential(nn.LSTM(6, 3, num_layers=2, dropout=0.1)), True),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.LSTM(3, 3)), False),
    ],
)
def test_uses_global_rng_is_true_for_random_modules(
    make: Callable[[], nn.Module], draws: bool
) -> None:
    assert uses_global_rng(Architecture("made", make).initial(1)) is draws
