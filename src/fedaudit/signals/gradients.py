"""Products of samples' gradients with clients' updates, without storing the gradients.

Let ``u_k`` be client k's update, and ``g_i`` sample i's gradient at the received model. Attacks on
gradients need only ``<u_k, g_i>``, ``||g_i||^2`` and ``||u_k||``. For instance,
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

from fedaudit.core.devices import CPU, computing_on, model_on, params_on, raise_if_several_workers
from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.modules import in_model_dtype
from fedaudit.core.values import Model, Params, chunks, plus_tail, tail_of, tail_size
from fedaudit.engines.local import one_thread
from fedaudit.signals.kernels import LayerKernel, LayerProducts
from fedaudit.signals.kernels.cache import CachedLayer, ChunkCache, products_from_cache
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
from fedaudit.signals.kernels.plan import KernelPlan, measure_chunk, plan_for

_log = logging.getLogger("fedaudit")

# Largest differences from ordinary automatic differentiation. A wrong kernel causes far larger
# differences. Rounding in float32, and ReLUs at zero, cause far smaller differences.
_MAX_RELATIVE_ERROR = 1e-3
_MAX_COSINE_ERROR = 1e-4


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
        create_measure: Creates the function that one worker calls on each chunk.
        chunk: Number of samples of a chunk.
    """

    create_measure: Callable[[], Measure]
    chunk: int


@dataclass(frozen=True)
class _FastMeasure:
    """Function of one worker that computes products with kernels.

    Attributes:
        capture: The worker's copy of the model.
        kernels: Kernel of each layer.
        clients: Number of updates.
        cache: Activations or gradients of each layer, by the first sample of a chunk.
    """

    capture: Capture
    kernels: Mapping[str, LayerKernel]
    clients: int
    cache: Mapping[int, dict[str, CachedLayer]]

    def __call__(self, features: Tensor, labels: Tensor) -> LayerProducts:
        return measure_chunk(self.capture, self.kernels, features, labels, self.clients)

    def from_cache(self, rows: slice) -> LayerProducts | None:
        """Return the products of a chunk of samples; None if the chunk is not in the cache."""
        if rows.start not in self.cache:
            return None
        samples = rows.stop - rows.start
        dots = torch.zeros(samples, self.clients, dtype=torch.float64)
        squared_norms = torch.zeros(samples, dtype=torch.float64)
        # The order of the layers is that of measure_chunk, so that results are bitwise equal.
        for path, layer in reversed(self.cache[rows.start].items()):
            with torch.no_grad():
                products = products_from_cache(self.kernels[path], self.capture.part(path), layer)
            if products is not None:
                dots += products.dots
                squared_norms += products.squared_norms
        return LayerProducts(dots, squared_norms)


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
        cut: Number of leading entries that are used, for each parameter that is used in part.
        cache: Activations and gradients that were computed before the updates were known.
    """

    features: Tensor
    labels: Tensor
    workers: int
    chunk: int | None
    device: torch.device
    cut: Mapping[str, int]
    cache: ChunkCache | None


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
    cache: ChunkCache | None = None,
) -> GradientProducts:
    """Compute the products of each sample's gradient, in evaluation mode, with each update.

    One backward pass is enough for all clients, and each layer's gradients are processed in blocks.
    Layers without a fast kernel, and models whose layers cannot be captured, use a slower exact
    method, which is logged once. To detect wrong products, every call compares two samples with
    ordinary automatic differentiation.

    Args:
        base: The model at which gradients are computed.
        updates: Each client's update, ``local - base``; may be empty if only norms are needed.
        features: One row for each sample.
        labels: Targets of the architecture's loss, one row for each sample.
        workers: Number of threads, each with one processor core. It does not change results.
        chunk: Number of samples of a batch; None selects a number by the shapes. Another number can
            change the last bits.
        device: Device to compute on; arguments may be on another one. Results are on the CPU.
        without: Number of trailing entries of the parameters that are excluded from gradients and
            updates.
        cache: Result of :func:`cache_chunks` for these samples, which does not change products. It
            is ignored if it belongs to another model.

    Raises:
        BadInput: The shapes of the arguments do not match, or a number is below 1.
        Unsupported: The model gives the same sample different gradients on different runs, or
            several workers would use the same GPU.
    """
    raise_if_several_workers(device, workers)
    _raise_if_mismatched(base, updates, features, labels, workers, chunk)
    base, updates, cut = _without_last(base, updates, without)
    unique_updates, index = _distinct_updates(base, updates)
    update_norms = torch.tensor(
        [_norm(base, update) for update in unique_updates], dtype=torch.float64
    )
    if not len(labels):
        empty = torch.zeros(0, dtype=torch.float64)
        return GradientProducts(empty.new_zeros(len(updates), 0), empty, update_norms[index])
    with _differentiating(device):
        features = in_model_dtype(features.detach(), base)
        if cache is not None and (cache.base is not base or device != CPU):
            cache = None
        inputs = _Inputs(features, labels, workers, chunk, device, cut, cache)
        dots, squared_norms = _verified_products(base, unique_updates, update_norms, inputs)
    return GradientProducts(dots.t()[index].contiguous(), squared_norms, update_norms[index])


def cache_chunks(
    base: Model,
    features: Shaped[Tensor, "samples ..."],
    labels: Shaped[Tensor, "samples ..."],
    max_bytes: int,
) -> Iterator[ChunkCache]:
    """Compute the part of :func:`gradient_products` for one client that does not need the update.

    The part is computed on the CPU, one chunk in each step, in the order of the samples.

    Args:
        base: The model at which gradients are computed.
        features: One row for each sample.
        labels: Targets of the architecture's loss, one row for each sample.
        max_bytes: Memory that may be used.

    Yields:
        The cache after each chunk, always the same object.

    Raises:
        Uncapturable: The model cannot be captured, so every computation depends on the update.
    """
    modules = _ModuleFactory(base, CPU)
    with _differentiating(CPU):
        features = in_model_dtype(features.detach(), base)
        # Kernels depend on the number of updates, but not on their values.
        update = {name: torch.zeros_like(value) for name, value in base.params.items()}
        plan = plan_for(modules.copy, base, [update], features[:2].clone(), labels[:2].clone())
        capture = _capture(modules, base, plan)
    cache = ChunkCache(base, plan, max_bytes)
    for rows in chunks(len(labels), plan.chunk):
        with _differentiating(CPU):
            activations = capture.run(features[rows].clone(), labels[rows].clone())
            has_room = cache.add(rows.start, activations)
        if not has_room:
            return
        yield cache


@contextmanager
def _differentiating(device: torch.device) -> Iterator[None]:
    # Tensors that are created in inference mode cannot be differentiated.
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
    size = tail_size(base.params, tail)
    return gradient_products(
        base, updates, features, labels, workers=workers, device=device, without=size
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
    """Return :func:`gradient_products` of vectors whose last entries have their mean subtracted.

    Let e be the vector that is one in the n last entries and zero elsewhere. Subtracting the mean
    is the projection P v = v - (<e, v> / n) e. As gradients are never stored, their products are
    computed by <P u, P g> = <P u, g> and |P g|^2 = |g|^2 - <e, g>^2 / n.
    """
    size = tail_size(base.params, tail)
    if not size:
        return gradient_products(base, updates, features, labels, workers=workers, device=device)
    zeros = {name: torch.zeros_like(value) for name, value in base.params.items()}
    ones = plus_tail(zeros, torch.ones(size))
    centred = [_centre_last(base, update, size) for update in updates]
    # The vector e is passed as one more update.
    products = gradient_products(
        base, [*centred, ones], features, labels, workers=workers, device=device
    )
    squared_norms = products.squared_norms - products.dots[-1].square() / size
    return GradientProducts(
        products.dots[:-1], squared_norms.clamp_min(0), products.update_norms[:-1]
    )


def _centre_last(base: Model, update: Params, size: int) -> Params:
    trained = {name: update[name] for name in base.params}
    mean = tail_of(trained, size).double().mean()
    return plus_tail(trained, -mean.expand(size))


def _without_last(
    base: Model, updates: Sequence[Params], size: int
) -> tuple[Model, Sequence[Params], dict[str, int]]:
    """Return the model and the updates without the last entries, and the parameters used in part.

    Parameters that are excluded completely become buffers. If a parameter is excluded in part, the
    last value contains the number of entries that are used, and updates are zero in all others.
    """
    if not size:
        return base, updates, {}
    remaining = sum(value.numel() for value in base.params.values()) - size
    used_params: Params = {}
    cut: dict[str, int] = {}
    for name, value in base.params.items():
        if remaining > 0:
            used_params[name] = value
            if remaining < value.numel():
                cut[name] = remaining
        remaining -= value.numel()
    frozen = {name: value for name, value in base.params.items() if name not in used_params}
    shortened: list[Params] = []
    for update in updates:
        params = {name: update[name] for name in used_params}
        params |= {name: first_entries(update[name], count) for name, count in cut.items()}
        shortened.append(params)
    return Model(base.architecture, used_params, {**base.buffers, **frozen}), shortened, cut


def cosine(products: GradientProducts) -> Float[Tensor, "clients samples"]:
    """Return the cosine of each update with each gradient; 0 if either is zero."""
    norms = products.update_norms[:, None] * products.squared_norms.sqrt()
    safe = norms.masked_fill(norms == 0, 1.0)
    return (products.dots / safe).masked_fill(norms == 0, 0.0).clamp(-1, 1)


def _raise_if_mismatched(
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
    unique_updates: list[Params] = []
    indices = []
    for update in updates:
        # The first and last entry of each parameter distinguish most updates, so that full
        # comparisons are rare.
        params = [update[name] for name in base.params if update[name].numel()]
        ends = tuple(float(p[(end,) * p.dim()]) for p in params for end in (0, -1))
        candidates = by_ends.setdefault(ends, [])
        for index in candidates:
            if all(torch.equal(unique_updates[index][name], update[name]) for name in base.params):
                break
        else:
            index = len(unique_updates)
            candidates.append(index)
            unique_updates.append(update)
        indices.append(index)
    return unique_updates, indices


def _verified_products(
    base: Model, updates: Sequence[Params], update_norms: Float[Tensor, " clients"], inputs: _Inputs
) -> LayerProducts:
    """Return products of the fastest method that agrees with ordinary automatic differentiation."""
    features, labels, device = inputs.features, inputs.labels, inputs.device
    modules = _ModuleFactory(base, device)
    base, updates = model_on(base, device), [params_on(update, device) for update in updates]
    create_methods = (
        partial(_fast_method, modules, base, updates, inputs),
        partial(_vmap_method, modules, base, updates, inputs.cut),
        partial(_loop_method, modules, base, updates, inputs.cut),
    )
    compared = torch.tensor(sorted({0, len(labels) - 1}))
    for number, create_method in enumerate(create_methods):
        is_last = number == len(create_methods) - 1
        try:
            products = _measure_chunks(create_method(), inputs)
        except Exception as error:
            # The next method may support models that this method does not.
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
def _log_generic_kernel(architecture: str, layer_type: str) -> None:
    _log.info(
        "layer type %s of %r uses the generic kernel, which is slower", layer_type, architecture
    )


def _fast_method(
    modules: _ModuleFactory, base: Model, updates: Sequence[Params], inputs: _Inputs
) -> _Method:
    features, labels = (
        tensor[:2].to(inputs.device, copy=True) for tensor in (inputs.features, inputs.labels)
    )
    plan = plan_for(modules.copy, base, updates, features, labels, inputs.cut)
    for layer_type in plan.generic:
        _log_generic_kernel(base.architecture.name, layer_type)
    chunk = inputs.chunk or plan.chunk
    cache = {} if inputs.cache is None else inputs.cache.by_start(chunk, plan.layout, len(updates))

    def create_measure() -> Measure:
        return _FastMeasure(_capture(modules, base, plan), plan.kernels, len(updates), cache)

    return _Method(create_measure, chunk)


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
    # Functions that no thread uses at the moment.
    idle: SimpleQueue[Measure] = SimpleQueue()
    for _ in range(min(inputs.workers, len(slices))):
        idle.put(method.create_measure())

    def run(rows: slice) -> LayerProducts:
        measure = idle.get()
        try:
            products = measure.from_cache(rows) if isinstance(measure, _FastMeasure) else None
            if products is not None:
                return products
            # Inputs are copied, as the model may overwrite them. The last bits of a matrix product
            # depend on the alignment of memory, which is the same for every new tensor.
            features = inputs.features[rows].to(inputs.device, copy=True)
            return measure(features, inputs.labels[rows].to(inputs.device, copy=True))
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
    return LayerProducts(
        *(tensor.double().to(CPU) for tensor in LayerProducts.concatenate(products))
    )


def _match_autograd(
    products: LayerProducts,
    expected: LayerProducts,
    compared: Int[Tensor, " compared"],
    update_norms: Float[Tensor, " clients"],
) -> bool:
    """Return True if the products of compared samples equal the expected ones up to rounding."""
    norms = expected.squared_norms.sqrt()
    # The tolerance of a dot product is relative to its largest possible value.
    tolerance = _MAX_COSINE_ERROR * norms[:, None] * update_norms
    are_dots_close = _are_close(products.dots[compared], expected.dots, tolerance)
    measured_norms = products.squared_norms[compared].sqrt()
    return are_dots_close and _are_close(measured_norms, norms, torch.tensor(1e-12))


def _are_close(values: Tensor, expected: Tensor, tolerance: Tensor) -> bool:
    is_close = (values - expected).abs() <= _MAX_RELATIVE_ERROR * expected.abs() + tolerance
    # If a model has diverged, no method gives finite gradients, so non-finite values are accepted.
    return bool((is_close | ~(values.isfinite() | expected.isfinite())).all())


def _norm(base: Model, update: Params) -> float:
    # The norms of parameters are combined, because concatenating the parameters would copy them.
    norms = [
        torch.linalg.vector_norm(update[name].detach(), dtype=torch.float64) for name in base.params
    ]
    return float(torch.stack(norms).norm())
