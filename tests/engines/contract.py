"""Contract of every engine."""

import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.engines.base import Engine, SharedByKey
from fedaudit.observe.views import every_nth

TENSORS = {
    "plain": torch.arange(6.0).reshape(2, 3),
    "of no sample": torch.zeros(0, 3),
    "one number": torch.tensor(2.0),
    "of doubles": torch.arange(3.0).double(),
    "of truths": torch.tensor([True, False]),
    "with gaps": torch.arange(6.0)[::2],
    "turned": torch.arange(6.0).reshape(2, 3).t(),
    "channels last": torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "of 16 bits": torch.tensor([1.5], dtype=torch.bfloat16),
    "negated": torch.tensor([1 + 2j]).conj().imag,
    "trained": torch.ones(2, requires_grad=True),
}


def product(shared: int, item: int) -> int:
    return shared * item


def untouched(shared: object, item: torch.Tensor) -> torch.Tensor:
    return item


def doubled_in_place(shared: object, item: torch.Tensor) -> torch.Tensor:
    return item.mul_(2)


def one_shard(shared: SharedByKey[str, torch.Tensor], item: str) -> torch.Tensor:
    return shared[item] + len(shared)


def threads(shared: object, item: object) -> int:
    return torch.get_num_threads()


def results_come_in_the_order_of_the_items(engine: Engine) -> None:
    with engine.session(product, 10) as run:
        assert list(run([3, 1, 2])) == [30, 10, 20]
        assert list(run(iter(()))) == []
        assert list(run(range(7))) == list(range(0, 70, 10))


def errors_are_raised_unchanged(engine: Engine) -> None:
    with engine.session(every_nth, ()) as run, pytest.raises(BadInput, match="got 0"):
        list(run([0]))


def tensors_are_sent_unchanged(engine: Engine) -> None:
    with engine.session(untouched, 0) as run:
        for sent, back in zip(TENSORS.values(), run(TENSORS.values()), strict=True):
            assert torch.equal(sent, back)
            assert (sent.dtype, sent.stride()) == (back.dtype, back.stride())
            assert sent.requires_grad == back.requires_grad


def received_tensors_can_be_written_to(engine: Engine) -> None:
    same = torch.ones(3)
    with engine.session(doubled_in_place, 0) as run:
        for back in run([same, same]):
            assert back.add_(1).tolist() == [3, 3, 3]
    assert same.tolist() == [1, 1, 1]


def an_item_finds_its_shard(engine: Engine) -> None:
    shards = SharedByKey(a=torch.zeros(2), b=torch.ones(2))
    with engine.session(one_shard, shards) as run:
        assert [values.tolist() for values in run(["b", "a", "b"])] == [[3, 3], [2, 2], [3, 3]]


def work_is_done_on_one_thread(engine: Engine) -> None:
    with engine.session(threads, ()) as run:
        assert list(run([0])) == [1]
