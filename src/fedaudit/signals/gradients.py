"""Products of every sample's gradient with every client's update, without storing the gradients.

All attacks on gradients need three numbers only: ``<u_k, g_i>``, ``||g_i||^2`` and ``||u_k||``,
where ``g_i`` is sample i's gradient at the model that was sent. For instance ``||u||^2 - ||u -
g||^2 = 2 <u, g> - ||g||^2``.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from queue import SimpleQueue
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from fedaudit.core.devices import CPU, computing_on, model_on, params_on, refuse_several_workers
from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.modules import in_model_dtype
from fedaudit.core.values import Model, Params, chunks, plus_tail, tail_of, tail_size
from fedaudit.engines.local import one_thread
from fedaudit.signals.kernels import LayerKernel, LayerProducts
from fedaudit.signals.kernels.capture import (
    VMAP_CHUNK,
    Capture,
    Measure,
    first_entries,
    loop_measure,
    owners,
    stacked,
    vmap_measure,
)
from fedaudit.signals.kernels.kept import Kept, KeptChunks, products_of_kept
from fedaudit.signals.kernels.plan import KernelPlan, measure_chunk, plan_for

_log = logging.getLogger("fedaudit")

# Errors of a wrong kernel are far larger; those of float32 and of ReLUs at zero far smaller.
_RELATIVE_ERROR = 1e-3
_COSINE_ERROR = 1e-4


class GradientProducts(NamedTuple):
    """Products that all gradient signals are computed from, in double precision.

    Attributes:
        dots: ``<u_k, g_i>``.
        squared_norms: ``||g_i||^2``.
        update_norms: ``||u_k||``.
    """

    dots: Float[Tensor, "clients samples"]
    squared_norms: Float[Tensor, " samples"]
    update_norms: Float[Tensor, " clients"]


class _Method(NamedTuple):
    """Method of measuring: a factory of the function that a worker calls on each chunk."""

    make: Callable[[], Measure]
    chunk: int


class _FastMeasure(NamedTuple):
    """Fast measure of one worker.

    Attributes:
        capture: The worker's copy of the model.
        kernels: Kernel of each layer.
        clients: Number of updates.
        kept: What is kept of each layer, by the first sample of a chunk.
    """

    capture: Capture
    kernels: Mapping[str, LayerKernel]
    clients: int
    kept: Mapping[int, Mapping[str, Kept]]

    def __call__(self, features: Tensor, labels: Tensor) -> LayerProducts:
        return measure_chunk(self.capture, self.kernels, features, labels, self.clients)

    def of_kept(self, piece: slice) -> LayerProducts | None:
        """Return the products of a chunk of samples, if it is kept."""
        if piece.start not in self.kept:
            return None
        samples = piece.stop - piece.start
        dots = torch.zeros(samples, self.clients, dtype=torch.float64)
        squared = torch.zeros(samples, dtype=torch.float64)
        # In the order of a measurement in one go.
        for path, kept in reversed(self.kept[piece.start].items()):
            with torch.no_grad():
                share = products_of_kept(self.kernels[path], self.capture.part(path), kept)
            if share is not None:
                dots += share.dots
                squared += share.squared_norms
        return LayerProducts(dots, squared)


class _ModuleFactory:
    """Factory of one copy of a model's module for each worker."""

    def __init__(self, base: Model, device: torch.device) -> None:
        self._base, self._device = base, device
        self._first = base.module().to(device)

    def copy(self) -> nn.Module:
        """Return a module that shares no state with the others."""
        try:
            return deepcopy(self._first)
        # Modules with weights that hooks compute, or with other objects that cannot be copied.
        except (RuntimeError, TypeError):
            return self._base.module().to(self._device)


class _Work(NamedTuple):
    """Samples to measure and options; most fields are arguments of ``gradient_products``.

    Attributes:
        cut: Number of leading entries that count, for parameters that count only in part.
        kept: What was computed before the updates were known.
    """

    features: Tensor
    labels: Tensor
    workers: int
    chunk: int | None
    device: torch.device
    cut: Mapping[str, int]
    kept: KeptChunks | None


def gradient_products(
    base: Model,
    updates: Sequence[Params],
    features: Shaped[Tensor, "samples ..."],
    labels: Shaped[Tensor, "samples ..."],
    *,
    workers: int = 1,
    chunk: int | None = None,
    device: torch.device = CPU,
    without: int = 0,
    kept: KeptChunks | None = None,
) -> GradientProducts:
    """Compute the products of each sample's gradient, in evaluation mode, with each update.

    One backward pass serves all clients, and each layer's gradients are processed in blocks. Layers
    without a fast kernel, and models whose layers cannot be captured, use a slower exact method,
    which is logged once. Two samples of every call are checked against ordinary automatic
    differentiation.

    Args:
        base: The model at which gradients are computed.
        updates: Each client's update, ``local - base``; may be empty for norms alone.
        features: One row for each sample.
        labels: Targets of the architecture's loss, one row for each sample.
        workers: Threads, each with one processor core; they do not change results.
        chunk: Samples of a batch; None selects a number by the shapes. Another number can change
            the last bits.
        device: Device to compute on, wherever the arguments are; results are on the CPU.
        without: Number of trailing parameters that are excluded from gradients and updates.
        kept: What :func:`keep_chunks` kept of these samples, which does not change results. That
            of another model is ignored.

    Raises:
        BadInput: The arguments do not fit each other.
        Unsupported: The model gives the same sample different gradients on different runs, or
            several workers would share a GPU.
    """
    refuse_several_workers(device, workers)
    _check(base, updates, features, labels, workers, chunk)
    base, updates, cut = _without_last(base, updates, without)
    distinct, index = _distinct(base, updates)
    lengths = torch.tensor([_length(base, update) for update in distinct], dtype=torch.float64)
    if not len(labels):
        empty = torch.zeros(0, dtype=torch.float64)
        return GradientProducts(empty.new_zeros(len(updates), 0), empty, lengths[index])
    with _differentiating(device):
        features = in_model_dtype(features.detach(), base)
        kept = kept if kept is not None and kept.base is base and device == CPU else None
        work = _Work(features, labels, workers, chunk, device, cut, kept)
        dots, squared = _checked(base, distinct, lengths, work)
    return GradientProducts(dots.t()[index].contiguous(), squared, lengths[index])


def keep_chunks(
    base: Model,
    features: Shaped[Tensor, "samples ..."],
    labels: Shaped[Tensor, "samples ..."],
    most_bytes: int,
) -> Iterator[KeptChunks]:
    """Compute what :func:`gradient_products` needs of one client's base model, before its update.

    It is computed on the CPU, one chunk in each step, in the order of the samples.

    Args:
        base: The model at which gradients are computed.
        features: One row for each sample.
        labels: Targets of the architecture's loss, one row for each sample.
        most_bytes: Memory that may be used.

    Yields:
        What is kept so far, always in the same object.

    Raises:
        Uncapturable: The model cannot be captured, so that everything depends on the update.
    """
    modules = _ModuleFactory(base, CPU)
    with _differentiating(CPU):
        features = in_model_dtype(features.detach(), base)
        first = (part[:2].clone() for part in (features, labels))
        # Kernels depend on the number of updates, but not on their values.
        update = {name: torch.zeros_like(value) for name, value in base.params.items()}
        plan = plan_for(modules.copy, base, [update], *first)
        capture = _capture(modules, base, plan)
    kept = KeptChunks(base, plan, most_bytes)
    for piece in chunks(len(labels), plan.chunk):
        with _differentiating(CPU):
            passages = capture.run(*(part[piece].clone() for part in (features, labels)))
            has_room = kept.add(piece.start, passages)
        if not has_room:
            return
        yield kept


@contextmanager
def _differentiating(device: torch.device) -> Iterator[None]:
    # Tensors from inference mode cannot be differentiated, but their copies can.
    with (
        torch.inference_mode(False),
        one_thread(),
        computing_on(device),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


def products_without_tail(
    base: Model,
    updates: Sequence[Params],
    features: Shaped[Tensor, "samples ..."],
    labels: Shaped[Tensor, "samples ..."],
    *,
    tail: float,
    workers: int = 1,
    device: torch.device = CPU,
) -> GradientProducts:
    """Return :func:`gradient_products` without the last parameters, a share ``tail`` of all."""
    last = tail_size(base.params, tail)
    return gradient_products(
        base, updates, features, labels, workers=workers, device=device, without=last
    )


def products_centred_in_tail(
    base: Model,
    updates: Sequence[Params],
    features: Shaped[Tensor, "samples ..."],
    labels: Shaped[Tensor, "samples ..."],
    *,
    tail: float,
    workers: int = 1,
    device: torch.device = CPU,
) -> GradientProducts:
    """Return :func:`gradient_products` with the last entries of each vector centred by their mean.

    With 1 the vector that is one in the n last entries and zero elsewhere, gradients and updates
    are both projected: P v = v - <1, v> / n * 1. Gradients are never stored, so their products use
    <P u, P g> = <P u, g> and |P g|^2 = |g|^2 - <1, g>^2 / n.
    """
    last = tail_size(base.params, tail)
    if not last:
        return gradient_products(base, updates, features, labels, workers=workers, device=device)
    zeros = {name: torch.zeros_like(value) for name, value in base.params.items()}
    ones = plus_tail(zeros, torch.ones(last))
    centred = [_centred(base, update, last) for update in updates]
    products = gradient_products(
        base, [*centred, ones], features, labels, workers=workers, device=device
    )
    squared = products.squared_norms - products.dots[-1].square() / last
    return GradientProducts(products.dots[:-1], squared.clamp_min(0), products.update_norms[:-1])


def _centred(base: Model, update: Params, last: int) -> Params:
    trained = {name: update[name] for name in base.params}
    mean = tail_of(trained, last).double().mean()
    return plus_tail(trained, -mean.expand(last))


def _without_last(
    base: Model, updates: Sequence[Params], last: int
) -> tuple[Model, Sequence[Params], dict[str, int]]:
    """Return the model with its last entries frozen, and updates with zeros there."""
    if not last:
        return base, updates, {}
    remaining = sum(value.numel() for value in base.params.values()) - last
    first: Params = {}
    cut: dict[str, int] = {}
    for name, value in base.params.items():
        if remaining > 0:
            first[name] = value
            cut |= {name: remaining} if remaining < value.numel() else {}
        remaining -= value.numel()
    frozen = {name: value for name, value in base.params.items() if name not in first}
    shortened: list[Params] = [
        {name: update[name] for name in first}
        | {name: first_entries(update[name], count) for name, count in cut.items()}
        for update in updates
    ]
    return Model(base.architecture, first, {**base.buffers, **frozen}), shortened, cut


def cosine(products: GradientProducts) -> Float[Tensor, "clients samples"]:
    """Return the cosine of each update with each gradient; 0 if either is zero."""
    lengths = products.update_norms[:, None] * products.squared_norms.sqrt()
    safe = lengths.masked_fill(lengths == 0, 1.0)
    return (products.dots / safe).masked_fill(lengths == 0, 0.0).clamp(-1, 1)


def _check(
    base: Model,
    updates: Sequence[Params],
    features: Tensor,
    labels: Tensor,
    workers: int,
    chunk: int | None,
) -> None:
    if not base.params:
        raise BadInput("the model has no trainable parameters; there is no gradient to measure")
    if len(features) != len(labels):
        raise BadInput(
            f"features and labels must have one entry for each sample, got {len(features)} and "
            f"{len(labels)}"
        )
    if workers < 1 or (chunk is not None and chunk < 1):
        raise BadInput(f"workers and chunk must be at least 1, got {workers} and {chunk}")
    for client, update in enumerate(updates):
        for name, value in base.params.items():
            if name not in update or update[name].shape != value.shape:
                raise BadInput(
                    f"update {client} has no entry of shape {tuple(value.shape)} for parameter "
                    f"{name!r}; an update has every trainable parameter of the base model"
                )


def _distinct(base: Model, updates: Sequence[Params]) -> tuple[list[Params], list[int]]:
    """Return the distinct updates, and the index of each update among them.

    Attacks test whether clients agree exactly, and a matrix product rounds equal columns
    differently at different positions. Equal updates therefore share one computed column.
    """
    by_ends: dict[tuple[float, ...], list[int]] = {}
    distinct: list[Params] = []
    indices = []
    for update in updates:
        parts = [update[name] for name in base.params]
        # Two entries of each parameter distinguish most updates, and save full comparisons.
        ends = tuple(float(p[(end,) * p.dim()]) for p in parts if p.numel() for end in (0, -1))
        candidates = by_ends.setdefault(ends, [])
        equal = (
            i
            for i in candidates
            if all(torch.equal(distinct[i][name], update[name]) for name in base.params)
        )
        index = next(equal, len(distinct))
        if index == len(distinct):
            candidates.append(index)
            distinct.append(update)
        indices.append(index)
    return distinct, indices


def _checked(
    base: Model, updates: Sequence[Params], lengths: Float[Tensor, " clients"], work: _Work
) -> LayerProducts:
    """Return the first method's products that ordinary differentiation confirms."""
    features, labels, device = work.features, work.labels, work.device
    modules = _ModuleFactory(base, device)
    base, updates = model_on(base, device), [params_on(update, device) for update in updates]
    first = (part[:2].to(device, copy=True) for part in (features, labels))
    methods = (
        partial(_fast_method, modules, base, updates, work, *first),
        partial(_vmap_method, modules, base, updates, work.cut),
        partial(_loop_method, modules, base, updates, work.cut),
    )
    probe = torch.tensor(sorted({0, len(labels) - 1}))
    for step, method in enumerate(methods):
        last = step == len(methods) - 1
        try:
            products = _stream(method(), work)
        except Exception as error:
            # The next method may support what this one does not.
            if last:
                raise
            _announce(base.architecture.name, step, str(error).split("\n")[0])
            continue
        exact = loop_measure(modules.copy(), base, updates, work.cut)
        truth = exact(features[probe].to(device), labels[probe].to(device))
        if _agree(products, truth, probe, lengths):
            return products
        if not last:
            _announce(base.architecture.name, step, "two samples differ from ordinary autograd")
    raise Unsupported(
        f"model {base.architecture.name!r} gives the same sample different gradients on "
        "different runs; remove randomness from its evaluation mode"
    )


@cache
def _announce(architecture: str, step: int, reason: str) -> None:
    slower = ("per-sample gradients of the whole model", "one backward pass a sample")[step]
    _log.warning("gradients of %r use a slower exact method, %s: %s", architecture, slower, reason)


@cache
def _announce_generic(architecture: str, kind: str) -> None:
    _log.info("layer type %s of %r uses the generic kernel, which is slower", kind, architecture)


def _fast_method(
    modules: _ModuleFactory,
    base: Model,
    updates: Sequence[Params],
    work: _Work,
    features: Tensor,
    labels: Tensor,
) -> _Method:
    plan = plan_for(modules.copy, base, updates, features, labels, work.cut)
    for kind in plan.generic:
        _announce_generic(base.architecture.name, kind)

    chunk = work.chunk or plan.chunk
    kept = {} if work.kept is None else work.kept.by_start(chunk, plan.layout, len(updates))

    def make() -> Measure:
        return _FastMeasure(_capture(modules, base, plan), plan.kernels, len(updates), kept)

    return _Method(make, chunk)


def _capture(modules: _ModuleFactory, base: Model, plan: KernelPlan) -> Capture:
    module = modules.copy()
    return Capture(module, owners(module, base.params), base.architecture.task, plan.layout)


def _vmap_method(
    modules: _ModuleFactory, base: Model, updates: Sequence[Params], cut: Mapping[str, int]
) -> _Method:
    rows = stacked(base, updates)
    return _Method(lambda: vmap_measure(modules.copy(), base, rows, cut), VMAP_CHUNK)


def _loop_method(
    modules: _ModuleFactory, base: Model, updates: Sequence[Params], cut: Mapping[str, int]
) -> _Method:
    return _Method(lambda: loop_measure(modules.copy(), base, updates, cut), VMAP_CHUNK)


def _stream(method: _Method, work: _Work) -> LayerProducts:
    """Measure chunks in parallel; results are on the CPU, in the order of the samples."""
    pieces = list(chunks(len(work.labels), work.chunk or method.chunk))
    idle: SimpleQueue[Measure] = SimpleQueue()
    for _ in range(min(work.workers, len(pieces))):
        idle.put(method.make())

    def run(piece: slice) -> LayerProducts:
        measure = idle.get()
        try:
            if isinstance(measure, _FastMeasure):
                products = measure.of_kept(piece)
                if products is not None:
                    return products
            # Copies, since the model may overwrite its input. New memory also has the same
            # alignment on every run, on which the last bits of a matrix product depend.
            x, y = (part[piece].to(work.device, copy=True) for part in work[:2])
            return measure(x, y)
        finally:
            idle.put(measure)

    if idle.qsize() == 1:
        parts = [run(piece) for piece in pieces]
    else:
        # A new thread adopts the process's number of threads only at its first operation.
        with ThreadPoolExecutor(
            idle.qsize(), initializer=partial(torch.set_num_threads, 1)
        ) as pool:
            parts = list(pool.map(run, pieces))
    return LayerProducts(*(part.double().to(CPU) for part in LayerProducts.joined(parts)))


def _agree(
    products: LayerProducts,
    truth: LayerProducts,
    probe: Int[Tensor, " probed"],
    lengths: Float[Tensor, " clients"],
) -> bool:
    norms = truth.squared_norms.sqrt()
    reach = norms[:, None] * lengths
    dots = _are_close(products.dots[probe], truth.dots, _COSINE_ERROR * reach)
    return dots and _are_close(products.squared_norms[probe].sqrt(), norms, torch.tensor(1e-12))


def _are_close(values: Tensor, truth: Tensor, slack: Tensor) -> bool:
    close = (values - truth).abs() <= _RELATIVE_ERROR * truth.abs() + slack
    # A diverged model has no finite gradient by any method.
    return bool((close | ~(values.isfinite() | truth.isfinite())).all())


def _length(base: Model, update: Params) -> float:
    # One parameter at a time, since concatenation would copy them.
    parts = [
        torch.linalg.vector_norm(update[name].detach(), dtype=torch.float64) for name in base.params
    ]
    return float(torch.stack(parts).norm())
