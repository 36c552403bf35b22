"""Products of every sample's gradient with every client's update, without storing the gradients.

Attacks on gradients need only three products: ``<u_k, g_i>``, ``||g_i||^2`` and ``||u_k||``, where
``u_k`` is client k's update and ``g_i`` is sample i's gradient at the received model. For instance,
``||u||^2 - ||u - g||^2 = 2 <u, g> - ||g||^2``.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
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
    stack_updates,
    vmap_measure,
)
from fedaudit.signals.kernels.kept import Kept, KeptChunks, products_of_kept
from fedaudit.signals.kernels.plan import KernelPlan, measure_chunk, plan_for

_log = logging.getLogger("fedaudit")

# A wrong kernel causes far larger errors; rounding in float32, and ReLUs at zero, far smaller ones.
_RELATIVE_ERROR = 1e-3
_COSINE_ERROR = 1e-4


class GradientProducts(NamedTuple):
    """Products from which gradient signals are computed, in double precision.

    Attributes:
        dots: Inner product of each update and each gradient.
        squared_norms: Squared norm of each gradient.
        update_norms: Norm of each update.
    """

    dots: Float[Tensor, "clients samples"]
    squared_norms: Float[Tensor, " samples"]
    update_norms: Float[Tensor, " clients"]


class _Method(NamedTuple):
    """Method of computing products.

    Attributes:
        make: Creates the function that one worker calls on each chunk.
        chunk: Number of samples of a chunk.
    """

    make: Callable[[], Measure]
    chunk: int


@dataclass(frozen=True)
class _FastMeasure:
    """Function of one worker that computes products with kernels.

    Attributes:
        capture: The worker's copy of the model.
        kernels: Kernel of each layer.
        clients: Number of updates.
        kept: Kept activations or gradients of each layer, by the first sample of a chunk.
    """

    capture: Capture
    kernels: Mapping[str, LayerKernel]
    clients: int
    kept: Mapping[int, dict[str, Kept]]

    def __call__(self, features: Tensor, labels: Tensor) -> LayerProducts:
        return measure_chunk(self.capture, self.kernels, features, labels, self.clients)

    def from_kept(self, rows: slice) -> LayerProducts | None:
        """Return the products of a chunk of samples; None if the chunk was not kept."""
        if rows.start not in self.kept:
            return None
        samples = rows.stop - rows.start
        dots = torch.zeros(samples, self.clients, dtype=torch.float64)
        squared = torch.zeros(samples, dtype=torch.float64)
        # The order of the layers is that of measure_chunk, so that results are bitwise equal.
        for path, kept in reversed(self.kept[rows.start].items()):
            with torch.no_grad():
                products = products_of_kept(self.kernels[path], self.capture.part(path), kept)
            if products is not None:
                dots += products.dots
                squared += products.squared_norms
        return LayerProducts(dots, squared)


class _ModuleFactory:
    """Factory of copies of a model's module, one for each worker."""

    def __init__(self, base: Model, device: torch.device) -> None:
        self._base, self._device = base, device
        self._first = base.module().to(device)

    def copy(self) -> nn.Module:
        """Return a module that shares no state with the others."""
        try:
            return deepcopy(self._first)
        # Some modules cannot be copied, for example if hooks compute their weights.
        except (RuntimeError, TypeError):
            return self._base.module().to(self._device)


class _Inputs(NamedTuple):
    """Samples to measure and options of :func:`gradient_products`.

    Attributes:
        cut: Number of audited entries, for each parameter of which only the first are audited.
        kept: Activations and gradients that were computed before the updates were known.
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

    One backward pass is enough for all clients, and each layer's gradients are processed in blocks.
    Layers without a fast kernel, and models whose layers cannot be captured, use a slower exact
    method, which is logged once. In every call, two samples are compared with ordinary automatic
    differentiation.

    Args:
        base: The model at which gradients are computed.
        updates: Each client's update, ``local - base``; may be empty if only norms are needed.
        features: One row for each sample.
        labels: Targets of the architecture's loss, one row for each sample.
        workers: Threads, each with one processor core; they do not change results.
        chunk: Samples of a batch; None selects a number by the shapes. Another number can change
            the last bits.
        device: Device to compute on; arguments may be on another one. Results are on the CPU.
        without: Number of trailing entries of the parameters that are excluded from gradients and
            updates.
        kept: Result of :func:`keep_chunks` for these samples, which does not change products. If it
            belongs to another model, it is ignored.

    Raises:
        BadInput: The shapes of the arguments do not match, or a number is below 1.
        Unsupported: The model gives the same sample different gradients on different runs, or
            several workers would share a GPU.
    """
    refuse_several_workers(device, workers)
    _refuse_mismatch(base, updates, features, labels, workers, chunk)
    base, updates, cut = _freeze_last(base, updates, without)
    distinct, index = _distinct_updates(base, updates)
    update_norms = torch.tensor([_norm(base, update) for update in distinct], dtype=torch.float64)
    if not len(labels):
        empty = torch.zeros(0, dtype=torch.float64)
        return GradientProducts(empty.new_zeros(len(updates), 0), empty, update_norms[index])
    with _differentiating(device):
        features = in_model_dtype(features.detach(), base)
        kept = kept if kept is not None and kept.base is base and device == CPU else None
        inputs = _Inputs(features, labels, workers, chunk, device, cut, kept)
        dots, squared = _verified_products(base, distinct, update_norms, inputs)
    return GradientProducts(dots.t()[index].contiguous(), squared, update_norms[index])


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
        Results of all chunks so far, always in the same object.

    Raises:
        Uncapturable: The model cannot be captured, so that everything depends on the update.
    """
    modules = _ModuleFactory(base, CPU)
    with _differentiating(CPU):
        features = in_model_dtype(features.detach(), base)
        # Kernels depend on the number of updates, but not on their values.
        update = {name: torch.zeros_like(value) for name, value in base.params.items()}
        plan = plan_for(modules.copy, base, [update], features[:2].clone(), labels[:2].clone())
        capture = _capture(modules, base, plan)
    kept = KeptChunks(base, plan, most_bytes)
    for rows in chunks(len(labels), plan.chunk):
        with _differentiating(CPU):
            activations = capture.run(*(tensor[rows].clone() for tensor in (features, labels)))
            has_room = kept.add(rows.start, activations)
        if not has_room:
            return
        yield kept


@contextmanager
def _differentiating(device: torch.device) -> Iterator[None]:
    # Inference mode is left, as tensors that are created in it cannot be differentiated.
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
    """Return :func:`gradient_products` without a fraction ``tail`` of the parameters at the end."""
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

    Let e be the vector that is one in the n last entries and zero elsewhere. Centring is the
    projection P v = v - (<e, v> / n) e. As gradients are never stored, products with centred
    gradients are computed by <P u, P g> = <P u, g> and |P g|^2 = |g|^2 - <e, g>^2 / n.
    """
    last = tail_size(base.params, tail)
    if not last:
        return gradient_products(base, updates, features, labels, workers=workers, device=device)
    zeros = {name: torch.zeros_like(value) for name, value in base.params.items()}
    ones = plus_tail(zeros, torch.ones(last))
    centred = [_centre_last(base, update, last) for update in updates]
    products = gradient_products(
        base, [*centred, ones], features, labels, workers=workers, device=device
    )
    # The last "update" is e.
    squared = products.squared_norms - products.dots[-1].square() / last
    return GradientProducts(products.dots[:-1], squared.clamp_min(0), products.update_norms[:-1])


def _centre_last(base: Model, update: Params, last: int) -> Params:
    trained = {name: update[name] for name in base.params}
    mean = tail_of(trained, last).double().mean()
    return plus_tail(trained, -mean.expand(last))


def _freeze_last(
    base: Model, updates: Sequence[Params], last: int
) -> tuple[Model, Sequence[Params], dict[str, int]]:
    """Return the model and the updates without the last entries, and partly audited parameters.

    Parameters that are excluded as a whole become buffers. Of a parameter that is excluded in part,
    the result names the number of remaining entries, and updates are zero in the others.
    """
    if not last:
        return base, updates, {}
    remaining = sum(value.numel() for value in base.params.values()) - last
    audited: Params = {}
    cut: dict[str, int] = {}
    for name, value in base.params.items():
        if remaining > 0:
            audited[name] = value
            cut |= {name: remaining} if remaining < value.numel() else {}
        remaining -= value.numel()
    frozen = {name: value for name, value in base.params.items() if name not in audited}
    shortened: list[Params] = [
        {name: update[name] for name in audited}
        | {name: first_entries(update[name], count) for name, count in cut.items()}
        for update in updates
    ]
    return Model(base.architecture, audited, {**base.buffers, **frozen}), shortened, cut


def cosine(products: GradientProducts) -> Float[Tensor, "clients samples"]:
    """Return the cosine of each update with each gradient; 0 if either is zero."""
    norms = products.update_norms[:, None] * products.squared_norms.sqrt()
    safe = norms.masked_fill(norms == 0, 1.0)
    return (products.dots / safe).masked_fill(norms == 0, 0.0).clamp(-1, 1)


def _refuse_mismatch(
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


def _distinct_updates(base: Model, updates: Sequence[Params]) -> tuple[list[Params], list[int]]:
    """Return the distinct updates, and the index of each update among them.

    Products are only computed once for equal updates. Attacks test whether clients have exactly
    equal values, but a matrix product rounds equal columns differently at different positions.
    """
    by_ends: dict[tuple[float, ...], list[int]] = {}
    distinct: list[Params] = []
    indices = []
    for update in updates:
        params = [update[name] for name in base.params]
        # The first and last entry of each parameter distinguish most updates, so that full
        # comparisons are rare.
        ends = tuple(float(p[(end,) * p.dim()]) for p in params if p.numel() for end in (0, -1))
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


def _verified_products(
    base: Model, updates: Sequence[Params], update_norms: Float[Tensor, " clients"], inputs: _Inputs
) -> LayerProducts:
    """Return products of the fastest method that agrees with ordinary automatic differentiation."""
    features, labels, device = inputs.features, inputs.labels, inputs.device
    modules = _ModuleFactory(base, device)
    base, updates = model_on(base, device), [params_on(update, device) for update in updates]
    trial = (tensor[:2].to(device, copy=True) for tensor in (features, labels))
    methods = (
        partial(_fast_method, modules, base, updates, inputs, *trial),
        partial(_vmap_method, modules, base, updates, inputs.cut),
        partial(_loop_method, modules, base, updates, inputs.cut),
    )
    compared = torch.tensor(sorted({0, len(labels) - 1}))
    for number, method in enumerate(methods):
        is_last = number == len(methods) - 1
        try:
            products = _measure_chunks(method(), inputs)
        except Exception as error:
            # The next method may support what this one does not.
            if is_last:
                raise
            _log_slower_method(base.architecture.name, number, str(error).split("\n")[0])
            continue
        by_autograd = loop_measure(modules.copy(), base, updates, inputs.cut)
        expected = by_autograd(features[compared].to(device), labels[compared].to(device))
        if _match_autograd(products, expected, compared, update_norms):
            return products
        if not is_last:
            reason = "two samples differ from ordinary autograd"
            _log_slower_method(base.architecture.name, number, reason)
    raise Unsupported(
        f"model {base.architecture.name!r} gives the same sample different gradients on "
        "different runs; remove randomness from its evaluation mode"
    )


@cache
def _log_slower_method(architecture: str, failed: int, reason: str) -> None:
    slower = ("per-sample gradients of the whole model", "one backward pass per sample")[failed]
    _log.warning("gradients of %r use a slower exact method, %s: %s", architecture, slower, reason)


@cache
def _log_generic_kernel(architecture: str, kind: str) -> None:
    _log.info("layer type %s of %r uses the generic kernel, which is slower", kind, architecture)


def _fast_method(
    modules: _ModuleFactory,
    base: Model,
    updates: Sequence[Params],
    inputs: _Inputs,
    features: Tensor,
    labels: Tensor,
) -> _Method:
    plan = plan_for(modules.copy, base, updates, features, labels, inputs.cut)
    for kind in plan.generic:
        _log_generic_kernel(base.architecture.name, kind)

    chunk = inputs.chunk or plan.chunk
    kept = {} if inputs.kept is None else inputs.kept.by_start(chunk, plan.layout, len(updates))

    def make() -> Measure:
        return _FastMeasure(_capture(modules, base, plan), plan.kernels, len(updates), kept)

    return _Method(make, chunk)


def _capture(modules: _ModuleFactory, base: Model, plan: KernelPlan) -> Capture:
    module = modules.copy()
    return Capture(module, owners(module, base.params), base.architecture.task, plan.layout)


def _vmap_method(
    modules: _ModuleFactory, base: Model, updates: Sequence[Params], cut: Mapping[str, int]
) -> _Method:
    rows = stack_updates(base, updates)
    return _Method(lambda: vmap_measure(modules.copy(), base, rows, cut), VMAP_CHUNK)


def _loop_method(
    modules: _ModuleFactory, base: Model, updates: Sequence[Params], cut: Mapping[str, int]
) -> _Method:
    return _Method(lambda: loop_measure(modules.copy(), base, updates, cut), VMAP_CHUNK)


def _measure_chunks(method: _Method, inputs: _Inputs) -> LayerProducts:
    """Measure chunks in parallel; results are on the CPU, in the order of the samples."""
    slices = list(chunks(len(inputs.labels), inputs.chunk or method.chunk))
    idle: SimpleQueue[Measure] = SimpleQueue()
    for _ in range(min(inputs.workers, len(slices))):
        idle.put(method.make())

    def run(rows: slice) -> LayerProducts:
        measure = idle.get()
        try:
            if isinstance(measure, _FastMeasure):
                products = measure.from_kept(rows)
                if products is not None:
                    return products
            # Inputs are copied, as the model may overwrite them. The last bits of a matrix product
            # depend on the alignment of memory, which is the same for every new tensor.
            x, y = (tensor[rows].to(inputs.device, copy=True) for tensor in inputs[:2])
            return measure(x, y)
        finally:
            idle.put(measure)

    if idle.qsize() == 1:
        products = [run(rows) for rows in slices]
    else:
        # Without the initializer, a new thread would use the process's number of threads only after
        # its first operation.
        with ThreadPoolExecutor(
            idle.qsize(), initializer=partial(torch.set_num_threads, 1)
        ) as pool:
            products = list(pool.map(run, slices))
    return LayerProducts(*(tensor.double().to(CPU) for tensor in LayerProducts.joined(products)))


def _match_autograd(
    products: LayerProducts,
    expected: LayerProducts,
    compared: Int[Tensor, " compared"],
    update_norms: Float[Tensor, " clients"],
) -> bool:
    """Return True if the products of compared samples equal the expected ones up to rounding."""
    norms = expected.squared_norms.sqrt()
    # The tolerance of a dot product is relative to its largest possible value.
    tolerance = _COSINE_ERROR * norms[:, None] * update_norms
    are_dots_close = _are_close(products.dots[compared], expected.dots, tolerance)
    measured_norms = products.squared_norms[compared].sqrt()
    return are_dots_close and _are_close(measured_norms, norms, torch.tensor(1e-12))


def _are_close(values: Tensor, expected: Tensor, tolerance: Tensor) -> bool:
    is_close = (values - expected).abs() <= _RELATIVE_ERROR * expected.abs() + tolerance
    # If a model has diverged, no method gives finite gradients.
    return bool((is_close | ~(values.isfinite() | expected.isfinite())).all())


def _norm(base: Model, update: Params) -> float:
    # Norms are combined, as concatenating the parameters would copy them.
    norms = [
        torch.linalg.vector_norm(update[name].detach(), dtype=torch.float64) for name in base.params
    ]
    return float(torch.stack(norms).norm())
