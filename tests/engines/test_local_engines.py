import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import NoReturn, cast

import pytest
import torch

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.engines.base import Engine
from fedaudit.engines.local import LOCAL, Workers, local_engine, one_thread
from tests.crew import started
from tests.engines import contract


def test_one_worker_is_this_process() -> None:
    assert local_engine(1) is LOCAL
    assert local_engine(3) == Workers(3)
    assert all(isinstance(engine, Engine) for engine in (LOCAL, Workers(2)))


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_worker_is_refused(count: int) -> None:
    with pytest.raises(BadInput, match=f"at least 1, got {count}"):
        Workers(count)


def test_one_thread_is_used_in_the_context_and_the_previous_count_restored() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def workers() -> Iterator[Engine]:
    with started() as engine:
        with engine.session(contract.product, 3) as run:
            # Only one worker is started here; the other one gets its job later.
            assert list(run([2])) == [6]
        yield engine


@pytest.fixture(params=["sequential", "workers"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "sequential":
        return LOCAL
    return cast(Engine, request.getfixturevalue("workers"))


@pytest.mark.slow
def test_results_are_in_the_order_of_the_items(engine: Engine) -> None:
    contract.results_come_in_the_order_of_the_items(engine)


def test_an_error_of_a_worker_is_raised_unchanged(engine: Engine) -> None:
    contract.errors_are_raised_unchanged(engine)


def test_an_item_finds_its_shard(engine: Engine) -> None:
    contract.an_item_finds_its_shard(engine)
    contract.work_is_done_on_one_thread(engine)


def test_tensors_are_sent_unchanged(workers: Engine) -> None:
    contract.tensors_are_sent_unchanged(workers)
    contract.received_tensors_can_be_written_to(workers)


def test_messages_contain_no_more_than_needed(workers: Engine) -> None:
    much = torch.arange(2_000_000)
    with workers.session(contract.untouched, 0) as run:
        assert all(torch.equal(back, much) for back in run([much] * 5))


def test_work_that_cannot_be_sent_to_another_process_is_refused(workers: Engine) -> None:
    message = r"cannot be sent to other processes.*one worker"
    with (
        pytest.raises(Unsupported, match=message),
        Workers(2).session(lambda shared, item: item, 0),
    ):
        pass
    with (
        workers.session(contract.untouched, lambda: 0) as run,
        pytest.raises(Unsupported, match=message),
    ):
        list(run([torch.ones(1)]))


def test_discarded_results_are_not_those_of_other_items(workers: Engine) -> None:
    with workers.session(contract.product, 10) as run:
        for result in run(range(9)):
            assert result == 0
            break
        first, second = run([4, 5, 6]), run([7, 8, 9])
        assert list(zip(first, second, strict=True)) == [(40, 70), (50, 80), (60, 90)]


def noted(folder: Path, item: int) -> bytes:
    (folder / str(item)).touch()
    return bytes(1_000_000)


def test_items_without_a_request_are_neither_processed_nor_kept(
    workers: Engine, tmp_path: Path
) -> None:
    tracemalloc.start()
    try:
        with workers.session(noted, tmp_path) as run:
            for result in run(range(20)):
                assert result
                break
            del result
            for item in range(20, 24):
                assert list(run([item]))
            allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Without discarding, 24 items would be processed. The actual number depends on the load.
    assert len(list(tmp_path.iterdir())) < 20
    assert allocated < 500_000


class TwoArgumentError(Exception):
    """An error that cannot be reconstructed from its arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def fails(shared: type[Exception], item: int) -> None:
    raise shared(item, item)


@pytest.mark.parametrize(
    ("kind", "raised"), [(ValueError, ValueError), (TwoArgumentError, RuntimeError)]
)
def test_errors_of_workers_keep_their_traceback(
    kind: type[Exception], raised: type[Exception], workers: Engine
) -> None:
    with workers.session(fails, kind) as run, pytest.raises(raised) as caught:
        list(run([3]))
    text = "".join(traceback.format_exception(caught.value))
    assert "In a worker process" in text
    assert "raise shared(item, item)" in text


class Unreadable:
    """An object that can be pickled, but not unpickled."""

    def __reduce__(self) -> tuple[Callable[[], NoReturn], tuple[()]]:
        return refuse, ()


def refuse() -> NoReturn:
    raise BadInput("not to be read")


def no_answer(shared: object, item: str) -> object:
    return {"unreadable": Unreadable(), "unsendable": Lock(), "fine": 1}[item]


@pytest.mark.slow
def test_a_worker_continues_after_a_value_that_cannot_be_unpickled(workers: Engine) -> None:
    with workers.session(no_answer, 0) as run:
        for item, message in (("unreadable", "not to be read"), ("unsendable", "pickle")):
            with pytest.raises((BadInput, TypeError), match=message):
                list(run([item]))
            assert list(run(["fine"] * 3)) == [1] * 3
    with (
        workers.session(no_answer, Unreadable()) as misread,
        pytest.raises(BadInput, match="not to be read"),
    ):
        list(misread(["fine"]))
