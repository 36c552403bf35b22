"""A simulated GPU that checks the placement of tensors.

Tensors "on the GPU" are ordinary ones whose memory carries a mark. What a GPU would refuse is
refused here: an operation on tensors of both kinds, a random draw from the wrong generator, a
CPU library's kernel, a view as a numpy array. Results are those of the CPU, so that they can be
compared. What a real card does differently (speed, last digits, memory) is not simulated.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)

_Anything: TypeAlias = object
_PRUNE_AT = 4096
# Between devices by their nature, or with indices that may stay on the CPU.
_COPIES = {"aten::copy_", "aten::_to_copy"}
_INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class OnTwoDevices(RuntimeError):
    """What a real GPU would have refused."""


class _Marks:
    """Which memory is on the GPU; views share it, in-place operations keep it."""

    def __init__(self) -> None:
        self._kept: dict[int, StorageWeakRef] = {}

    def has(self, tensor: Tensor) -> bool:
        key = _plain(tensor).untyped_storage()._cdata
        return key in self._kept and not _gone(self._kept[key])

    def put(self, tensor: Tensor, *, there: bool) -> None:
        storage = _plain(tensor).untyped_storage()
        self._kept.pop(storage._cdata, None)
        if there:
            self._kept[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        if len(self._kept) > _PRUNE_AT:
            self._kept = {key: ref for key, ref in self._kept.items() if not _gone(ref)}


def _gone(ref: StorageWeakRef) -> bool:
    return bool(ref.expired())  # type: ignore[no-untyped-call]


# One for the process: modules that are kept from one use to the next stay where they are.
_MARKS = _Marks()


def _plain(tensor: Tensor) -> Tensor:
    """The tensor within the wrappers of ``torch.func``."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _tensors(values: _Anything) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


class Card(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at every operation that really runs, those of backward passes too.

    Attributes:
        ran: Names of operations on tensors, by kind of device, and how often each ran.
        refused: What was refused, also where the caller went on in another way.
    """

    def __init__(self, marks: _Marks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._marks = marks
        self.ran: dict[str, Counter[str]] = {"cpu": Counter(), "cuda": Counter()}
        self.refused: list[str] = []

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[_Anything, ...] = (),
        kwargs: Mapping[str, _Anything] | None = None,
    ) -> _Anything:
        given = dict(kwargs or {})
        try:
            there = self._there(func, args, given)
        except OnTwoDevices as error:
            self.refused.append(str(error))
            raise
        self.ran["cuda" if there else "cpu"][func._schema.name.removeprefix("aten::")] += 1
        before = {t.untyped_storage()._cdata for t in _tensors((args, given))}
        result = func(*args, **given)
        for out in _tensors(result):
            if there and out.untyped_storage()._cdata not in before:
                self._marks.put(out, there=True)
        return result

    def _there(
        self,
        func: torch._ops.OpOverload,
        args: tuple[_Anything, ...],
        kwargs: Mapping[str, _Anything],
    ) -> bool:
        name, tensors = str(func._schema.name), _tensors((args, kwargs))
        if name in _COPIES:
            return self._marks.has(tensors[-1])
        on_gpu = [t for t in tensors if self._marks.has(t)]
        if not on_gpu:
            return False
        may_stay = tensors[1:] if name in _INDEXED else []
        on_cpu = [
            t
            for t in tensors
            if t.dim() > 0 and not self._marks.has(t) and not any(t is index for index in may_stay)
        ]
        if on_cpu:
            shapes = [tuple(t.shape) for t in on_cpu]
            raise OnTwoDevices(f"{name} met CPU tensors of shapes {shapes} among a GPU's")
        if "mkldnn" in name:
            raise OnTwoDevices(f"{name} runs on CPUs only")
        if any(isinstance(leaf, torch.Generator) for leaf in tree_leaves((args, kwargs))):
            raise OnTwoDevices(f"{name} was to fill a GPU's tensor from a CPU generator")
        return True


class _Calls(TorchFunctionMode):
    """Replaces the device handling of torch's Python functions."""

    def __init__(self, marks: _Marks) -> None:
        super().__init__()
        self._marks = marks

    def __torch_function__(
        self,
        func: Callable[..., _Anything],
        types: Sequence[type],
        args: tuple[_Anything, ...] = (),
        kwargs: Mapping[str, _Anything] | None = None,
    ) -> _Anything:
        given, name = dict(kwargs or {}), getattr(func, "__name__", "")
        first = args[0] if args else None
        if isinstance(first, Tensor):
            if name == "__get__" and getattr(func, "__self__", None) is torch.Tensor.device:
                return self._device(first)
            if name in ("numpy", "__array__") and self._marks.has(first):
                raise OnTwoDevices("a GPU's tensor is no numpy array")
            if name == "to":
                return self._moved(func, first, args[1:], given)
            if name == "__deepcopy__":
                copy = func(*args, **given)
                self._mark(copy, there=self._marks.has(first))
                return copy
        device = given.get("device")
        if isinstance(device, torch.device | str) and torch.device(device).type == "cuda":
            if given.get("generator") is not None:
                raise OnTwoDevices(f"{name} was to fill a GPU's tensor from a CPU generator")
            made = func(*args, **{**given, "device": "cpu"})
            self._mark(made, there=True)
            return made
        return func(*args, **given)

    def _device(self, tensor: Tensor) -> torch.device:
        return GPU if self._marks.has(tensor) else torch.device("cpu")

    def _mark(self, made: _Anything, *, there: bool) -> None:
        for tensor in _tensors(made):
            self._marks.put(tensor, there=there)

    def _moved(
        self,
        func: Callable[..., _Anything],
        tensor: Tensor,
        args: tuple[_Anything, ...],
        kwargs: Mapping[str, _Anything],
    ) -> _Anything:
        where = [
            self._device(a) if isinstance(a, Tensor) else torch.device(a)
            for a in (*args, kwargs.get("device"))
            if isinstance(a, Tensor | torch.device | str)
        ]

        def here(value: _Anything) -> _Anything:
            return "cpu" if isinstance(value, torch.device | str) else value

        made = func(tensor, *tree_map(here, args), **tree_map(here, dict(kwargs)))
        if not isinstance(made, Tensor) or not where or where[0] == self._device(tensor):
            return made
        made = made.clone() if made is tensor else made
        self._mark(made, there=where[0].type == "cuda")
        return made


@contextmanager
def simulated_gpu() -> Iterator[Card]:
    """Inside, this process has one GPU by the name of ``cuda``."""
    driver = patch.multiple(
        torch.cuda,
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_name=lambda device: "Simulated",
        get_rng_state=lambda device: torch.get_rng_state(),
        set_rng_state=lambda state, device: None,
    )
    with driver, _Calls(_MARKS), Card(_MARKS) as card:
        yield card
