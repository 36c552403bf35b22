import operator

import pytest
import torch

from fedaudit.engines.base import Engine
from fedaudit.engines.local import LOCAL, Workers, local_engine, one_thread
from fedaudit.errors import BadInput, Unsupported
from fedaudit.observe.transforms import every


def test_one_worker_is_this_process() -> None:
    assert local_engine(1) is LOCAL
    assert local_engine(3) == Workers(3)
    assert all(isinstance(engine, Engine) for engine in (LOCAL, Workers(2)))


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_worker_is_refused(count: int) -> None:
    with pytest.raises(BadInput, match=f"at least 1, got {count}"):
        Workers(count)


def test_threads_are_one_inside_and_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("engine", [LOCAL, Workers(2)], ids=["sequential", "workers"])
def test_results_come_in_the_order_of_the_items(engine: Engine) -> None:
    with engine.session(operator.mul, 10) as run:
        assert list(run([3, 1, 2])) == [30, 10, 20]
        assert list(run(iter(()))) == []


@pytest.mark.parametrize("engine", [LOCAL, Workers(1)], ids=["sequential", "workers"])
def test_a_refusal_comes_through_as_it_was_said(engine: Engine) -> None:
    with engine.session(every, ()) as run, pytest.raises(BadInput, match="got every 0"):
        list(run([0]))


def test_work_that_cannot_be_sent_to_another_process_is_refused() -> None:
    with (
        pytest.raises(Unsupported, match=r"cannot be sent to other processes.*one worker"),
        Workers(2).session(lambda shared, item: item, 0),
    ):
        pass
