"""Signals from updates, which compare each sample's gradient with the client's update.

FedMIA compares gradients with I, the received model minus the client's trained model. In fedaudit,
an update is the trained model minus the received model, so I is the negative update.
"""

from collections.abc import Iterator
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.arguments import PositiveFraction, ProperFraction, dataclass
from fedaudit.core.devices import CPU
from fedaudit.core.errors import NotVisible, Unsupported, unknown_name
from fedaudit.core.values import Capability, Model
from fedaudit.signals.base import ReceivedModelCache, UpdateProducts, VisibleRound
from fedaudit.signals.linear_layers import LinearLayer, layer_inputs, linear_layers


class _GradientSignal:
    """Signal that is computed from products of gradients and updates."""

    def prepare(self, received: ReceivedModelCache) -> Iterator[None]:
        yield from received.cache_gradients()


@dataclass(frozen=True)
class GradientCosine(_GradientSignal):
    """Cosine between a sample's gradient at the received model and the client's negative update.

    The cosine of a zero gradient or update is 0.

    Source: Zhu et al. 2024 (FedMIA), Eq. (7); Li et al. 2022.
    """

    name = "gradient-cosine"
    needs = Capability.GLOBAL_MODEL | Capability.UPDATE

    def __call__(self, visible: VisibleRound) -> Float[Tensor, "clients samples"]:
        return _negative_cosines(visible.update_products)


@dataclass(frozen=True)
class ControlVariateCosine(_GradientSignal):
    """Cosine between a sample's gradient at the received model and the client's control variate.

    SCAFFOLD's control variate is a mean gradient of the client in its last round. A server that
    sees all uploads adds up the changes that the client has sent.

    Source: None; Zhu et al. 2024 (FedMIA), Eq. (7), adapted to the control variates of Karimireddy
        et al. 2020.
    """

    name = "control-variate-cosine"
    needs = Capability.GLOBAL_MODEL | Capability.CONTROL_VARIATES

    def __call__(self, visible: VisibleRound) -> Float[Tensor, "clients samples"]:
        # A control variate points along the gradients, and an update against them.
        return -_negative_cosines(visible.with_control_variates_as_updates().update_products)


@dataclass(frozen=True)
class CentredTailCosine:
    """Cosine of gradient and negative update, both without the mean of their last parameters.

    A server can use this signal if a client adds the same random number to all of its last
    parameters. Subtracting the mean removes this number.

    Attributes:
        tail: Fraction of the parameters, counted from the last, to which the client adds the same
            random number, in (0, 1]. In a study, it defaults to that of the audited client's noise.

    Source: None; Zhu et al. 2024 (FedMIA), Eq. (7), adapted to algorithm 3 of Bai et al. 2026
        (CoFedMID).
    """

    tail: PositiveFraction = 0.2
    needs = Capability.GLOBAL_MODEL | Capability.UPDATE

    @property
    def name(self) -> str:
        return f"gradient-cosine-centred-tail-{self.tail:g}"

    def __call__(self, visible: VisibleRound) -> Float[Tensor, "clients samples"]:
        from fedaudit.signals.gradients import products_centred_in_tail

        products = partial(products_centred_in_tail, tail=self.tail)
        return _negative_cosines(visible.compute_update_products(products))


@dataclass(frozen=True)
class WithoutTailCosine:
    """Cosine of gradient and negative update without their last parameters.

    A server can use this signal if it knows that a client adds noise only to its last parameters.

    Attributes:
        tail: Fraction of the parameters, counted from the last, that is excluded, in (0, 1). In a
            study, it defaults to that of the audited client's noise.

    Source: None; Zhu et al. 2024 (FedMIA), Eq. (7), adapted to section 4.3 of Bai et al. 2026
        (CoFedMID).
    """

    tail: ProperFraction = 0.2
    needs = Capability.GLOBAL_MODEL | Capability.UPDATE

    @property
    def name(self) -> str:
        return f"gradient-cosine-without-tail-{self.tail:g}"

    def __call__(self, visible: VisibleRound) -> Float[Tensor, "clients samples"]:
        from fedaudit.signals.gradients import products_without_tail

        products = partial(products_without_tail, tail=self.tail)
        return _negative_cosines(visible.compute_update_products(products))


def _negative_cosines(products: UpdateProducts) -> Float[Tensor, "clients samples"]:
    dots, gradient_norms, update_norms = products
    norms = gradient_norms * update_norms[:, None]
    return torch.where(norms > 0, -dots / norms.where(norms > 0, 1.0), 0.0)


@dataclass(frozen=True)
class GradientNorm(_GradientSignal):
    """Negative squared norm of a sample's gradient at the received model.

    Clients that received the same model have the same values.

    Source: Nasr et al. 2019, as in Grad-Norm of Zhu et al. 2024 (FedMIA).
    Differs: Larger scores mean members here and in FedMIA's Grad-Norm, whose published code negates
    the average over rounds twice.
    """

    name = "gradient-norm"
    needs = Capability.GLOBAL_MODEL

    def __call__(self, visible: VisibleRound) -> Float[Tensor, "clients samples"]:
        return -visible.gradient_norms.square()


@dataclass(frozen=True)
class GradientDifference(_GradientSignal):
    """Value of |I|^2 - |I - g|^2 for the negative update I and a sample's gradient g.

    It is large if subtracting the gradient reduces the norm of the negative update.

    Attributes:
        scale: Scale of the negative update. "raw" leaves it unscaled, like the published code. Its
            norm is then proportional to the learning rate, and the signal is mostly the negative
            squared norm of the sample's gradient. "sum" scales it to the sum of the gradients of
            the client's samples, for which the paper derived the threshold 0.

    Source: Li et al. 2022; Grad-Diff of Zhu et al. 2024 (FedMIA).
    """

    scale: Literal["raw", "sum"] = "raw"
    needs = Capability.GLOBAL_MODEL | Capability.UPDATE

    @property
    def name(self) -> str:
        return f"gradient-difference-{self.scale}"

    def __call__(self, visible: VisibleRound) -> Float[Tensor, "clients samples"]:
        dots, gradient_norms, _ = visible.update_products
        return 2 * self._scales(visible)[:, None] * -dots - gradient_norms.square()

    def _scales(self, visible: VisibleRound) -> Float[Tensor, " clients"]:
        if self.scale == "raw":
            return torch.ones(len(visible.clients), dtype=torch.float64)
        scales = [scale for scale in visible.gradient_scales if scale is not None]
        if len(scales) < len(visible.clients):
            raise Unsupported(
                'gradient-difference with scale "sum" needs the learning rate, batch size and '
                'epochs of SGD clients, which are unknown; use scale "raw"'
            )
        return torch.tensor(scales, dtype=torch.float64)


@dataclass(frozen=True)
class ProjectionResidual:
    """Negative fraction of a linear layer's input that is outside the row space of its update.

    The rows of a linear layer's update are linear combinations of the inputs in training. The input
    of a member is therefore in their span. Inputs are computed with the received model, in
    evaluation mode. For a sequence, the inputs at all positions are used.

    The dimension of an update's row space is at most the layer's number of outputs. For an adapter,
    it is at most the rank. For the last layer, it is at most the number of classes minus 1. If
    training had more distinct inputs than this dimension, a member's input is only partly in the
    row space. If it had more distinct inputs than the layer has input features, the signal barely
    distinguishes members.

    Inputs of the first layer are the same in all steps of a client. Inputs of later layers change
    during training. Noise, weight decay and optimizers that scale each weight (Adam) add directions
    that are not inputs.

    The signal is -1 for an input of zeros, and for every input if the update is zero.

    Attributes:
        layer: Path of the layer in the network, such as ``"3"`` or ``"blocks.0.hidden.0"``. By
            default, it is the first of the layers whose update can span the most dimensions.
        ridge: Singular value, relative to the update's norm, at which a direction is removed by
            half, in (0, 1). For an update A divided by its norm, an input is multiplied by I -
            A'(AA' + ridge² I)⁻¹A.

    Source: Deng et al. 2026 (ProjRes, arXiv 2604.21197): the idea, from the abstract only.
    Differs: A ridge replaces a threshold on singular values, because rounding would decide about
        singular values near a threshold.
    """

    layer: str = ""
    # The default is far above rounding errors and far below the contribution of a sample.
    ridge: ProperFraction = 3e-4
    needs = Capability.GLOBAL_MODEL | Capability.UPDATE

    @property
    def name(self) -> str:
        suffix = f"-at-{self.layer}" if self.layer else ""
        return f"projection-residual{suffix}" + (f"-{self.ridge:g}" if self.ridge != 3e-4 else "")

    def raise_if_misfit(self, model: Model) -> None:
        self._layer_of(model)

    def __call__(self, visible: VisibleRound) -> Float[Tensor, "clients samples"]:
        # Each distinct model runs once, even if several clients received it.
        inputs_by_base: dict[int, tuple[LinearLayer, list[Tensor]]] = {}
        scores = list[Float[Tensor, " samples"]]()
        for client, base in zip(visible.clients, visible.bases.tolist(), strict=True):
            observed = visible.round.observed[client]
            if observed.base is None or observed.update is None:
                raise NotVisible(
                    "this view hides the models that clients received, or their updates, so that "
                    "this signal cannot be measured"
                )
            if base not in inputs_by_base:
                inputs_by_base[base] = self._inputs(observed.base, visible)
            layer, inputs = inputs_by_base[base]
            scores.append(_scores(observed.update[layer.weight], inputs, self.ridge))
        return torch.stack(scores)

    def prepare(self, received: ReceivedModelCache) -> Iterator[None]:
        layer = self._layer_of(received.model)
        features = received.samples.features
        yield from received.cache_inputs(
            layer.path, lambda: layer_inputs(received.model, layer, features, CPU)
        )

    def _inputs(self, base: Model, visible: VisibleRound) -> tuple[LinearLayer, list[Tensor]]:
        layer, received = self._layer_of(base, visible.device), visible.received
        inputs = received.inputs(layer.path, base) if received is not None else None
        if inputs is None:
            inputs = layer_inputs(base, layer, visible.samples.features, visible.device)
        return layer, inputs

    def _layer_of(self, model: Model, device: torch.device = CPU) -> LinearLayer:
        layers = {layer.path: layer for layer in linear_layers(model, device)}
        if not layers:
            raise Unsupported(
                f"model {model.architecture.name!r} has no trained linear layer, which this "
                "signal needs; use an attack on losses or gradients, such as fedmia-1 or fedmia-2"
            )
        if self.layer and self.layer not in layers:
            raise unknown_name("trained linear layer", self.layer, layers)
        if self.layer:
            return layers[self.layer]
        return max(layers.values(), key=lambda layer: min(layer.outputs, layer.inputs))


def _scores(
    update: Float[Tensor, "outputs inputs"], inputs: list[Tensor], ridge: float
) -> Float[Tensor, " samples"]:
    if not bool(update.isfinite().all()):
        return torch.full((sum(map(len, inputs)),), torch.nan, dtype=torch.float64)
    projection = _ResidualProjection(update, ridge)
    scores = [torch.empty(0, dtype=torch.float64)]
    for batch in inputs:
        vectors = batch.double()
        norms = vectors.square().sum((1, 2)).sqrt()
        residual_norms = projection.residual(vectors).square().sum((1, 2)).sqrt()
        scores.append(-torch.where(norms > 0, residual_norms / norms.where(norms > 0, 1.0), 1.0))
    return torch.cat(scores)


class _ResidualProjection:
    """Ridge-regularised projection onto the complement of a matrix's row space."""

    def __init__(self, update: Float[Tensor, "outputs inputs"], ridge: float) -> None:
        rows = update.detach().double().to(CPU)
        norm = rows.norm()
        self._rows = rows / norm if float(norm) > 0 else rows
        # Both Gram matrices give the same projection; the smaller one is faster to factorise.
        self._is_wide = rows.shape[0] < rows.shape[1]
        gram = self._rows @ self._rows.T if self._is_wide else self._rows.T @ self._rows
        self._squared_ridge = ridge**2
        identity = torch.eye(len(gram), dtype=gram.dtype)
        self._factor = torch.linalg.cholesky(gram + self._squared_ridge * identity)

    def residual(self, vectors: Float[Tensor, "samples positions inputs"]) -> Tensor:
        """Return the component of each vector outside the row space."""
        flat = vectors.reshape(-1, vectors.shape[-1])
        if self._is_wide:
            residual = flat - (self._solve(self._rows @ flat.T).T @ self._rows)
        else:
            residual = self._squared_ridge * self._solve(flat.T).T
        return residual.reshape(vectors.shape)

    def _solve(self, right_side: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
        solution: Tensor = torch.cholesky_solve(right_side, self._factor)
        return solution
