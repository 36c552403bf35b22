"""A simulated GPU that checks the placement of tensors.

Tensors "on the GPU" are ordinary ones whose memory is marked. The simulation refuses the same
operations as a GPU: operations on tensors of both devices, random draws from a wrong generator,
kernels of CPU libraries, views as numpy arrays. Results equal those of the CPU, so that they can
be compared. Speed, last digits and memory of a real card are not simulated.
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
# Operations between devices, and operations whose indices may stay on the CPU.
_COPIES = {"aten::copy_", "aten::_to_copy"}
_INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class OnTwoDevices(RuntimeError):
    """Error for an operation that a real GPU refuses."""


class _Marks:
    """Marks of memory on the GPU; views share them, and in-place operations keep them."""

    def __init__(self) -> None:
        self._kept: dict[int, StorageWeakRef] = {}

    def has(self, tensor: Tensor) -> bool:
        key = _plain(tensor).untyped_storage()._cdata
        return key in self._kept and not _gone(self._kept[key])

    def put(self, tensor: Tensor, *, on_gpu: bool) -> None:
        storage = _plain(tensor).untyped_storage()
        self._kept.pop(storage._cdata, None)
        if on_gpu:
            self._kept[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        if len(self._kept) > _PRUNE_AT:
            self._kept = {key: ref for key, ref in self._kept.items() if not _gone(ref)}


def _gone(ref: StorageWeakRef) -> bool:
    return bool(ref.expired())  # type: ignore[no-untyped-call]


# One object per process, since modules that are reused between contexts stay on their device.
_MARKS = _Marks()


def _plain(tensor: Tensor) -> Tensor:
    """Return the tensor inside the wrappers of ``torch.func``."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _tensors(values: _Anything) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


class Card(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that checks every operation that runs, also in backward passes.

    Attributes:
        ran: Names of operations on tensors, by kind of device, and how often each ran.
        refused: Messages of refused operations, also if the caller caught the error.
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
        options = dict(kwargs or {})
        try:
            runs_on_gpu = self._runs_on_gpu(func, args, options)
        except OnTwoDevices as error:
            self.refused.append(str(error))
            raise
        self.ran["cuda" if runs_on_gpu else "cpu"][func._schema.name.removeprefix("aten::")] += 1
        before = {t.untyped_storage()._cdata for t in _tensors((args, options))}
        result = func(*args, **options)
        for out in _tensors(result):
            if runs_on_gpu and out.untyped_storage()._cdata not in before:
                self._marks.put(out, on_gpu=True)
        return result

    def _runs_on_gpu(
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
    """A mode that replaces the device handling of torch's Python functions."""

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
        options, name = dict(kwargs or {}), getattr(func, "__name__", "")
        first = args[0] if args else None
        if isinstance(first, Tensor):
            if name == "__get__" and getattr(func, "__self__", None) is torch.Tensor.device:
                return self._device(first)
            if name in ("numpy", "__array__") and self._marks.has(first):
                raise OnTwoDevices("a GPU's tensor is no numpy array")
            if name == "to":
                return self._moved(func, first, args[1:], options)
            if name == "__deepcopy__":
                copy = func(*args, **options)
                self._mark(copy, on_gpu=self._marks.has(first))
                return copy
        device = options.get("device")
        if isinstance(device, torch.device | str) and torch.device(device).type == "cuda":
            if options.get("generator") is not None:
                raise OnTwoDevices(f"{name} was to fill a GPU's tensor from a CPU generator")
            created = func(*args, **{**options, "device": "cpu"})
            self._mark(created, on_gpu=True)
            return created
        return func(*args, **options)

    def _device(self, tensor: Tensor) -> torch.device:
        return GPU if self._marks.has(tensor) else torch.device("cpu")

    def _mark(self, values: _Anything, *, on_gpu: bool) -> None:
        for tensor in _tensors(values):
            self._marks.put(tensor, on_gpu=on_gpu)

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

        def to_cpu(value: _Anything) -> _Anything:
            return "cpu" if isinstance(value, torch.device | str) else value

        moved = func(tensor, *tree_map(to_cpu, args), **tree_map(to_cpu, dict(kwargs)))
        if not isinstance(moved, Tensor) or not where or where[0] == self._device(tensor):
            return moved
        moved = moved.clone() if moved is tensor else moved
        self._mark(moved, on_gpu=where[0].type == "cuda")
        return moved


@contextmanager
def simulated_gpu() -> Iterator[Card]:
    """Simulate one GPU named ``cuda`` inside the context."""
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
