"""The interface of layer kernels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedaudit.signals.kernels.gemm import product


class LayerProducts(NamedTuple):
    """One layer's share of the products of a chunk.

    Attributes:
        dots: Inner product of each sample's gradient with each client's update.
        squared_norms: Squared length of each sample's gradient.
    """

    dots: Float[Tensor, "samples clients"]
    squared_norms: Float[Tensor, " samples"]

    def plus(self, other: "LayerProducts") -> "LayerProducts":
        """The share of two parameters together."""
        return LayerProducts(self.dots + other.dots, self.squared_norms + other.squared_norms)


@runtime_checkable
class LayerKernel(Protocol):
    """The products of one layer for a chunk of samples."""

    def __call__(
        self,
        module: nn.Module,
        inputs: Shaped[Tensor, "samples ..."],
        grads: Float[Tensor, "samples ..."],
    ) -> LayerProducts:
        """The layer's share, from what entered it and the loss's gradient at what left it."""
        ...


@dataclass(frozen=True)
class Layer:
    """A module that owns audited parameters, as seen on a trial run.

    Attributes:
        module: The module itself; kernels read its settings only.
        updates: Every client's update of each audited parameter, by its name in the module.
        inputs: Shape of one sample where it enters.
        outputs: Shape of one sample where it leaves.
    """

    module: nn.Module
    updates: Mapping[str, Sequence[Tensor]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one of the module's parameters."""
        return tuple(dict(self.module.named_parameters(recurse=False))[name].shape)

    def stacked(self, name: str) -> Shaped[Tensor, "clients ..."] | None:
        """All clients' updates of a parameter, which may be no client's; None if not audited."""
        if name not in self.updates:
            return None
        parts = self.updates[name]
        if parts:
            return torch.stack(list(parts))
        own = dict(self.module.named_parameters(recurse=False))[name]
        return own.detach().new_zeros(0, *own.shape)

    def owns_only(self, *names: str) -> bool:
        """True when no audited parameter lies outside the names given."""
        return set(self.updates) <= set(names)


KernelMaker: TypeAlias = Callable[[Layer], LayerKernel | None]


def direct(
    gradients: Float[Tensor, "samples entries"], updates: Float[Tensor, "clients entries"]
) -> LayerProducts:
    """Products of gradients that are small enough to be written out."""
    return LayerProducts(product(gradients, updates), gradients.square().sum(1))


def optional_bias(
    layer: Layer,
) -> Callable[[LayerProducts | None, Float[Tensor, "samples outputs"]], LayerProducts]:
    """Adds the bias's share where the layer has an audited bias."""
    bias = layer.stacked("bias")

    def add(
        share: LayerProducts | None, gradients: Float[Tensor, "samples outputs"]
    ) -> LayerProducts:
        if bias is None:
            if share is None:
                raise RuntimeError("a layer without audited parameters has no kernel")
            return share
        own = direct(gradients, bias)
        return own if share is None else share.plus(own)

    return add
