"""Every sample's gradient against every client's update, without ever storing the gradients.

All attacks that look at gradients need three numbers only: ``<u_k, g_i>``, ``||g_i||^2`` and
``||u_k||``, where ``g_i`` is sample i's gradient at the model that was sent out. For instance
``||u||^2 - ||u - g||^2 = 2 <u, g> - ||g||^2``.
"""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from fedaudit.signals.kernels import LayerProducts
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
from fedaudit.signals.kernels.plan import measure_chunk, plan_for

_log = logging.getLogger("fedaudit")

# Wrong kernels are off by far more; float32 noise and ReLUs at zero by far less.
_RELATIVE_ERROR = 1e-3
_COSINE_ERROR = 1e-4


class GradientProducts(NamedTuple):
    """All that the gradient signals need, in double precision.

    Attributes:
        dots: ``<u_k, g_i>``.
        squared_norms: ``||g_i||^2``.
        update_norms: ``||u_k||``.
    """

    dots: Float[Tensor, "clients samples"]
    squared_norms: Float[Tensor, " samples"]
    update_norms: Float[Tensor, " clients"]


class _Way(NamedTuple):
    """One way to measure: makes what a worker runs on each chunk."""

    make: Callable[[], Measure]
    chunk: int


class _Built:
    """A model's module, of which every worker has a copy of its own."""

    def __init__(self, base: Model, device: torch.device) -> None:
        self._base, self._device = base, device
        self._first = base.module().to(device)

    def copy(self) -> nn.Module:
        """A module that shares nothing with the others; built anew where it cannot be copied."""
        try:
            return deepcopy(self._first)
        # Weights that hooks work out from others, and whatever else somebody keeps in a module.
        except (RuntimeError, TypeError):
            return self._base.module().to(self._device)


class _Work(NamedTuple):
    """Samples to measure, and with what; most fields are arguments of ``gradient_products``.

    Attributes:
        cut: Of parameters that count in part only: how many of their first entries do.
    """

    features: Tensor
    labels: Tensor
    workers: int
    chunk: int | None
    device: torch.device
    cut: Mapping[str, int]


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
) -> GradientProducts:
    """Products of each sample's gradient, in evaluation mode, with each update.

    One backward pass serves all clients, and each layer's gradients are used up in blocks.
    Layers without a fast kernel, and models that cannot be taken apart, go a slower exact way
    and are named once in the log. Two samples of every call are checked against ordinary
    automatic differentiation.

    Args:
        base: The model at which gradients are taken.
        updates: What each client changed, ``local - base``; may be empty for norms alone.
        features: One row a sample.
        labels: What the architecture's loss compares outputs with, one row a sample.
        workers: Threads, each with one processor core; results do not depend on it.
        chunk: Samples that go through together; None takes a number fixed by the shapes.
            Another number can change the last bits.
        device: Where to calculate, whatever the arguments are on; results are on the CPU.
        without: So many of the last parameters count neither in gradients nor in updates.

    Raises:
        BadInput: Arguments that do not fit each other.
        Unsupported: The model gives the same sample different gradients on different runs, or
            several workers are to share a GPU.
    """
    refuse_several_workers(device, workers)
    _check(base, updates, features, labels, workers, chunk)
    base, updates, cut = _without_last(base, updates, without)
    kept, place = _distinct(base, updates)
    lengths = torch.tensor([_length(base, update) for update in kept], dtype=torch.float64)
    if not len(labels):
        empty = torch.zeros(0, dtype=torch.float64)
        return GradientProducts(empty.new_zeros(len(updates), 0), empty, lengths[place])
    # Tensors made in inference mode cannot be differentiated; copies made outside can.
    with (
        torch.inference_mode(False),
        one_thread(),
        computing_on(device),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="There is a performance drop")
        work = _Work(in_model_dtype(features.detach(), base), labels, workers, chunk, device, cut)
        dots, squared = _checked(base, kept, lengths, work)
    return GradientProducts(dots.t()[place].contiguous(), squared, lengths[place])


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
    """As :func:`gradient_products`, without the share ``tail`` of the parameters, the last ones."""
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
    """As :func:`gradient_products`, once each vector's last entries are less their own mean.

    With 1 the vector that is one in the n last entries and zero elsewhere, gradients and updates
    are both projected: P v = v - <1, v> / n * 1. Of gradients, whose entries are never all
    there, <P u, P g> = <P u, g> and |P g|^2 = |g|^2 - <1, g>^2 / n say the same. ``tail`` is the
    share of the parameters that are the last ones.
    """
    last = tail_size(base.params, tail)
    if not last:
        return gradient_products(base, updates, features, labels, workers=workers, device=device)
    zeros = {name: torch.zeros_like(value) for name, value in base.params.items()}
    ones = plus_tail(zeros, torch.ones(last))
    centred = [_centred(base, update, last) for update in updates]
    found = gradient_products(
        base, [*centred, ones], features, labels, workers=workers, device=device
    )
    squared = found.squared_norms - found.dots[-1].square() / last
    return GradientProducts(found.dots[:-1], squared.clamp_min(0), found.update_norms[:-1])


def _centred(base: Model, update: Params, last: int) -> Params:
    own = {name: update[name] for name in base.params}
    mean = tail_of(own, last).double().mean()
    return plus_tail(own, -mean.expand(last))


def _without_last(
    base: Model, updates: Sequence[Params], last: int
) -> tuple[Model, Sequence[Params], dict[str, int]]:
    """The model with its last entries frozen, and updates with zeros there."""
    if not last:
        return base, updates, {}
    left = sum(value.numel() for value in base.params.values()) - last
    first: Params = {}
    cut: dict[str, int] = {}
    for name, value in base.params.items():
        if left > 0:
            first[name] = value
            cut |= {name: left} if left < value.numel() else {}
        left -= value.numel()
    frozen = {name: value for name, value in base.params.items() if name not in first}
    shortened: list[Params] = [
        {name: update[name] for name in first}
        | {name: first_entries(update[name], count) for name, count in cut.items()}
        for update in updates
    ]
    return Model(base.architecture, first, {**base.buffers, **frozen}), shortened, cut


def gradient_norms(
    base: Model,
    features: Shaped[Tensor, "samples ..."],
    labels: Shaped[Tensor, "samples ..."],
    *,
    workers: int = 1,
    device: torch.device = CPU,
) -> Float[Tensor, " samples"]:
    """Length of each sample's gradient; arguments as in :func:`gradient_products`."""
    products = gradient_products(base, [], features, labels, workers=workers, device=device)
    return products.squared_norms.sqrt()


def cosine(products: GradientProducts) -> Float[Tensor, "clients samples"]:
    """Cosine of each update with each gradient; 0 where either is zero."""
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
            f"features and labels must have one entry a sample, got {len(features)} and "
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
    """Each update once, and which of them each is.

    Rules ask whether clients agree exactly, and a product rounds equal columns by their place in
    it: only what is worked out once is the same.
    """
    alike: dict[tuple[float, ...], list[int]] = {}
    kept: list[Params] = []
    place = []
    for update in updates:
        parts = [update[name] for name in base.params]
        # Two numbers of each parameter tell most apart without a look at all of them.
        ends = tuple(float(p[(end,) * p.dim()]) for p in parts if p.numel() for end in (0, -1))
        like = alike.setdefault(ends, [])
        found = next((one for one in like if _same(base, kept[one], update)), len(kept))
        if found == len(kept):
            like.append(found)
            kept.append(update)
        place.append(found)
    return kept, place


def _same(base: Model, one: Params, other: Params) -> bool:
    return all(torch.equal(one[name], other[name]) for name in base.params)


def _checked(
    base: Model, updates: Sequence[Params], lengths: Float[Tensor, " clients"], work: _Work
) -> LayerProducts:
    """The first way whose results ordinary differentiation confirms."""
    features, labels, device = work.features, work.labels, work.device
    built = _Built(base, device)
    base, updates = model_on(base, device), [params_on(update, device) for update in updates]
    first = (part[:2].to(device, copy=True) for part in (features, labels))
    ways = (
        partial(_fast_way, built, base, updates, work.cut, *first),
        partial(_vmap_way, built, base, updates, work.cut),
        partial(_loop_way, built, base, updates, work.cut),
    )
    probe = torch.tensor(sorted({0, len(labels) - 1}))
    for step, way in enumerate(ways):
        last = step == len(ways) - 1
        try:
            found = _stream(way(), work)
        except Exception as error:
            # Whatever a model does that this way cannot follow, the next may.
            if last:
                raise
            _announce(base.architecture.name, step, str(error).split("\n")[0])
            continue
        exact = loop_measure(built.copy(), base, updates, work.cut)
        truth = exact(features[probe].to(device), labels[probe].to(device))
        if _agree(found, truth, probe, lengths):
            return found
        if not last:
            _announce(base.architecture.name, step, "two samples differ from ordinary autograd")
    raise Unsupported(
        f"model {base.architecture.name!r} gives the same sample different gradients on "
        "different runs; remove randomness from its evaluation mode"
    )


@cache
def _announce(architecture: str, step: int, reason: str) -> None:
    slower = ("per-sample gradients of the whole model", "one backward pass a sample")[step]
    _log.warning(
        "gradients of %r are taken the slower exact way, %s: %s", architecture, slower, reason
    )


@cache
def _announce_generic(architecture: str, kind: str) -> None:
    _log.info("layer type %s of %r has no fast kernel; the generic one serves", kind, architecture)


def _fast_way(
    built: _Built,
    base: Model,
    updates: Sequence[Params],
    cut: Mapping[str, int],
    features: Tensor,
    labels: Tensor,
) -> _Way:
    plan = plan_for(built.copy, base, updates, features, labels, cut)
    for kind in plan.generic:
        _announce_generic(base.architecture.name, kind)

    def make() -> Measure:
        module = built.copy()
        parts = owners(module, base.params)
        capture = Capture(module, parts, base.architecture.task, plan.layout)

        def measure(x: Tensor, y: Tensor) -> LayerProducts:
            return measure_chunk(capture, plan.kernels, x, y, len(updates))

        return measure

    return _Way(make, plan.chunk)


def _vmap_way(
    built: _Built, base: Model, updates: Sequence[Params], cut: Mapping[str, int]
) -> _Way:
    packed = stacked(base, updates)
    return _Way(lambda: vmap_measure(built.copy(), base, packed, cut), VMAP_CHUNK)


def _loop_way(
    built: _Built, base: Model, updates: Sequence[Params], cut: Mapping[str, int]
) -> _Way:
    return _Way(lambda: loop_measure(built.copy(), base, updates, cut), VMAP_CHUNK)


def _stream(way: _Way, work: _Work) -> LayerProducts:
    """Chunks through as many workers; the order of results, on the CPU, is that of the samples."""
    pieces = list(chunks(len(work.labels), work.chunk or way.chunk))
    idle: SimpleQueue[Measure] = SimpleQueue()
    for _ in range(min(work.workers, len(pieces))):
        idle.put(way.make())

    def run(piece: slice) -> LayerProducts:
        measure = idle.get()
        try:
            # Copies: the model may overwrite its input, and new memory is aligned alike on every
            # run, on which the last bits of a matrix product depend.
            x, y = (part[piece].to(work.device, copy=True) for part in work[:2])
            return measure(x, y)
        finally:
            idle.put(measure)

    if idle.qsize() == 1:
        parts = [run(piece) for piece in pieces]
    else:
        with ThreadPoolExecutor(idle.qsize(), initializer=_worker) as pool:
            parts = list(pool.map(run, pieces))
    return LayerProducts(
        torch.cat([part.dots for part in parts]).double().to(CPU),
        torch.cat([part.squared_norms for part in parts]).double().to(CPU),
    )


def _worker() -> None:
    # A thread takes up the process's setting only when its first operation asks for it.
    torch.set_num_threads(1)


def _agree(
    found: LayerProducts,
    truth: LayerProducts,
    probe: Int[Tensor, " probed"],
    lengths: Float[Tensor, " clients"],
) -> bool:
    norms = truth.squared_norms.sqrt()
    reach = norms[:, None] * lengths
    dots = _near(found.dots[probe], truth.dots, _COSINE_ERROR * reach)
    return dots and _near(found.squared_norms[probe].sqrt(), norms, torch.tensor(1e-12))


def _near(found: Tensor, truth: Tensor, slack: Tensor) -> bool:
    near = (found - truth).abs() <= _RELATIVE_ERROR * truth.abs() + slack
    # A model that has diverged has no gradient, whichever way it is taken.
    return bool((near | ~(found.isfinite() | truth.isfinite())).all())


def _length(base: Model, update: Params) -> float:
    # Parameter by parameter: joining them would copy them.
    parts = [
        torch.linalg.vector_norm(update[name].detach(), dtype=torch.float64) for name in base.params
    ]
    return float(torch.stack(parts).norm())
