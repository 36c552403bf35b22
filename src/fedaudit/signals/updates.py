"""Signals from updates: each sample's gradient against what training did to the model.

FedMIA writes I for the model sent minus the model returned, which points along the gradient;
fedaudit's update is returned minus sent, so that I is minus the update.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedaudit.core.devices import CPU, computing_on
from fedaudit.core.errors import BadInput, NotVisible, Unsupported, unknown_name
from fedaudit.core.modules import CHUNK, in_model_dtype, loaded
from fedaudit.core.values import Model, Sees, chunks
from fedaudit.signals.base import AgainstUpdates, Seen


@dataclass(frozen=True)
class GradientCosine:
    """Cosine between a sample's gradient at the model sent and minus the client's update.

    A zero gradient or update has no direction; its cosine is 0.

    Source: FedMIA, Eq. (7); Li et al. 2022.
    """

    name = "gradient-cosine"
    needs = Sees.GLOBAL_MODEL | Sees.UPDATE

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        return _cosines(seen.against_updates)


@dataclass(frozen=True)
class CentredTailCosine:
    """The cosine once the last entries of gradient and update are each less their own mean.

    A server that knows of one number which a client adds to all of its last parameters has by
    this what the cosine over uploads without that number would tell it, but for the one
    direction that it gives up.

    Attributes:
        tail: Share of the parameters, counted from the last, to which the number is added, in
            (0, 1]; in a study that of the audited client's noise if left out.

    Source: None; FedMIA, Eq. (7), against CoFedMID's algorithm 3.
    """

    tail: float = 0.2
    needs = Sees.GLOBAL_MODEL | Sees.UPDATE

    def __post_init__(self) -> None:
        if not 0 < self.tail <= 1:
            raise BadInput(f"tail is a share of the parameters in (0, 1], got {self.tail}")

    @property
    def name(self) -> str:
        """Differs by where the tail begins."""
        return f"gradient-cosine-centred-tail-{self.tail:g}"

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        from fedaudit.signals.gradients import products_centred_in_tail

        products = partial(products_centred_in_tail, tail=self.tail)
        return _cosines(seen.against_updates_by(products))


@dataclass(frozen=True)
class WithoutTailCosine:
    """The cosine over all parameters but the last.

    A server that knows where a client's noise lies looks at the rest, which has none.

    Attributes:
        tail: Share of the parameters, counted from the last, that is left out, in (0, 1); in a
            study that of the audited client's noise if left out.

    Source: None; FedMIA, Eq. (7), against CoFedMID's section 4.3.
    """

    tail: float = 0.2
    needs = Sees.GLOBAL_MODEL | Sees.UPDATE

    def __post_init__(self) -> None:
        if not 0 < self.tail < 1:
            raise BadInput(
                f"tail is a share of the parameters in (0, 1), of which some must be left; got "
                f"{self.tail}"
            )

    @property
    def name(self) -> str:
        """Differs by where the tail begins."""
        return f"gradient-cosine-without-tail-{self.tail:g}"

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        from fedaudit.signals.gradients import products_without_tail

        return _cosines(seen.against_updates_by(partial(products_without_tail, tail=self.tail)))


def _cosines(against: AgainstUpdates) -> Float[Tensor, "clients samples"]:
    dots, gradient_norms, update_norms = against
    lengths = gradient_norms * update_norms[:, None]
    return torch.where(lengths > 0, -dots / lengths.where(lengths > 0, 1.0), 0.0)


@dataclass(frozen=True)
class GradientNorm:
    """Minus the squared length of a sample's gradient at the model sent.

    It knows nothing of the client: the same for all clients that were sent the same model.

    Source: Nasr et al. 2019, as FedMIA's Grad-Norm.
    Differs: Also as "grad-norm" over several rounds it keeps this sign; the published code
        negates the averaged form twice.
    """

    name = "gradient-norm"
    needs = Sees.GLOBAL_MODEL

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        return -seen.gradient_norms.square()


@dataclass(frozen=True)
class GradientDifference:
    """Reduction of I's squared length without a sample's gradient g: |I|^2 - |I - g|^2.

    Attributes:
        scale: "raw" takes I as it is, as the published code does: I is about a learning rate
            long, so that the score is mostly minus the squared length of g. "sum" lengthens I
            to the sum of the samples' gradients, for which the threshold 0 was derived.

    Source: Li et al. 2022; FedMIA's Grad-Diff.
    """

    scale: Literal["raw", "sum"] = "raw"
    needs = Sees.GLOBAL_MODEL | Sees.UPDATE

    def __post_init__(self) -> None:
        if self.scale not in ("raw", "sum"):
            raise BadInput(f'scale is "raw" or "sum", got {self.scale!r}')

    @property
    def name(self) -> str:
        """Differs by scale."""
        return f"gradient-difference-{self.scale}"

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        """See :class:`fedaudit.signals.base.Signal`.

        Raises:
            Unsupported: The scale "sum" is asked for, but how clients step is unknown.
        """
        dots, gradient_norms, _ = seen.against_updates
        return 2 * self._lengthening(seen)[:, None] * -dots - gradient_norms.square()

    def _lengthening(self, seen: Seen) -> Float[Tensor, " clients"]:
        if self.scale == "raw":
            return torch.ones(len(seen.clients), dtype=torch.float64)
        known = [scale for scale in seen.gradient_scales if scale is not None]
        if len(known) < len(seen.clients):
            raise Unsupported(
                'gradient-difference with scale "sum" must know the learning rate, batch size and '
                'epochs of SGD clients; they are not known here, use scale "raw"'
            )
        return torch.tensor(known, dtype=torch.float64)


class _Linear(NamedTuple):
    """A trained linear layer: its path, and its weight's shape."""

    path: str
    outputs: int
    inputs: int


@dataclass(frozen=True)
class ProjectionResidual:
    """Minus the share of a linear layer's input that lies outside of the span of its update.

    The input is that of the model sent, in evaluation mode; of a sequence, that of all positions
    together. The span has at most as many dimensions as the layer has outputs (an adapter has its
    rank of them, the last layer one less than there are classes), and as an upload stands for
    different inputs: with more of these it holds members in part, and with more of these than the
    layer has inputs it tells little. What enters the first layer is the same in all steps of a
    client; what enters later ones moves as the client trains. Noise, weight decay and optimizers
    that scale each weight (Adam) bring in directions that nobody's sample has.

    An input of zeros, and every input where the update is zero, is outside: -1.

    Attributes:
        layer: Path of the layer in the network, such as ``"3"`` or ``"blocks.0.hidden.0"``; empty
            takes the one whose update can span most, the first of equal ones.
        ridge: How strong a direction is, as a share of the update's length, that counts by half:
            with A the layer's update over its length, I - A'(AA' + ridge² I)⁻¹A is what is left
            outside. Above 0.

    Source: Deng et al. 2026 (ProjRes, arXiv 2604.21197), the idea; seen in its abstract alone.
    Differs: No threshold on singular values, at which rounding would decide what is in the span.
    """

    layer: str = ""
    ridge: float = 3e-4
    needs = Sees.GLOBAL_MODEL | Sees.UPDATE

    def __post_init__(self) -> None:
        if not 0 < self.ridge < 1:
            raise BadInput(
                f"ridge is a share of the update's length, in (0, 1), got {self.ridge}; 0.0003 is "
                "far above rounding and far below what a sample leaves"
            )

    @property
    def name(self) -> str:
        """Differs by layer and ridge."""
        at = f"-at-{self.layer}" if self.layer else ""
        return f"projection-residual{at}" + (f"-{self.ridge:g}" if self.ridge != 3e-4 else "")

    def refuse_misfit(self, model: Model) -> None:
        """Refuses a model without a trained linear layer, or without the one that is named.

        Raises:
            Unsupported: There is no linear layer.
            BadInput: None of that name.
        """
        self._layer_of(model)

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        features, bases = seen.samples.features, seen.bases.tolist()
        # Each distinct model is run once, wherever the clients that were sent it stand.
        entered: dict[int, tuple[_Linear, list[Tensor]]] = {}
        found = list[Float[Tensor, " samples"]]()
        for client, base in zip(seen.clients, bases, strict=True):
            one = seen.round.exposed[client]
            if one.base is None or one.update is None:
                raise NotVisible(
                    "the models the clients were sent, or their updates, are hidden in this view, "
                    "so this signal cannot be measured"
                )
            if base not in entered:
                layer = self._layer_of(one.base, seen.device)
                entered[base] = layer, _entering(one.base, layer, features, seen.device)
            layer, inputs = entered[base]
            found.append(_scores(one.update[f"{layer.path}.weight"], inputs, self.ridge))
        return torch.stack(found)

    def _layer_of(self, model: Model, device: torch.device = CPU) -> _Linear:
        layers = {one.path: one for one in _linear_layers(model, device)}
        if not layers:
            raise Unsupported(
                f"model {model.architecture.name!r} has no linear layer that clients train, in "
                "whose update a sample could leave its input; take an attack on losses or "
                "gradients, such as fedmia-1 or fedmia-2"
            )
        if self.layer and self.layer not in layers:
            raise unknown_name("trained linear layer", self.layer, layers)
        if self.layer:
            return layers[self.layer]
        return max(layers.values(), key=lambda one: min(one.outputs, one.inputs))


def _scores(
    update: Float[Tensor, "outputs inputs"],
    inputs: list[Tensor],
    ridge: float,
) -> Float[Tensor, " samples"]:
    if not bool(update.isfinite().all()):
        return torch.full((sum(map(len, inputs)),), torch.nan, dtype=torch.float64)
    outside = _Outside(update, ridge)
    parts = [torch.empty(0, dtype=torch.float64)]
    for vectors in (part.double() for part in inputs):
        whole, left = (each.square().sum((1, 2)).sqrt() for each in (vectors, outside.of(vectors)))
        parts.append(-torch.where(whole > 0, left / whole.where(whole > 0, 1.0), 1.0))
    return torch.cat(parts)


class _Outside:
    """Takes away from vectors what lies in the span of a matrix's rows, weak directions less."""

    def __init__(self, update: Float[Tensor, "outputs inputs"], ridge: float) -> None:
        rows = update.detach().double().to(CPU)
        length = rows.norm()
        self._rows = rows / length if float(length) > 0 else rows
        # Of both products the smaller: the inverse is the same map, worked out on either side.
        self._wide = rows.shape[0] < rows.shape[1]
        product = self._rows @ self._rows.T if self._wide else self._rows.T @ self._rows
        eye = torch.eye(len(product), dtype=product.dtype)
        self._weakest = ridge**2
        self._factor = torch.linalg.cholesky(product + self._weakest * eye)

    def of(self, vectors: Float[Tensor, "samples positions inputs"]) -> Tensor:
        """Rest of each vector."""
        flat = vectors.reshape(-1, vectors.shape[-1])
        if self._wide:
            left = flat - (self._solved(self._rows @ flat.T).T @ self._rows)
        else:
            left = self._weakest * self._solved(flat.T).T
        return left.reshape(vectors.shape)

    def _solved(self, right: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
        found: Tensor = torch.cholesky_solve(right, self._factor)
        return found


def _linear_layers(model: Model, device: torch.device) -> Iterator[_Linear]:
    for path, part in loaded(model, "evaluation", device).named_modules():
        weight = model.params.get(f"{path}.weight")
        if isinstance(part, nn.Linear) and weight is not None:
            yield _Linear(path, *weight.shape)


def _entering(model: Model, layer: _Linear, features: Tensor, device: torch.device) -> list[Tensor]:
    """Inputs of a layer, for some samples at a time; several calls are so many positions."""
    found, given = list[Tensor](), list[Tensor]()

    def watch(part: nn.Module, args: tuple[Tensor, ...]) -> None:
        given.append(args[0].detach().clone())

    with computing_on(device), torch.no_grad():
        module = loaded(model, "evaluation", device).eval()
        handle = module.get_submodule(layer.path).register_forward_pre_hook(watch)
        try:
            for piece in chunks(len(features), CHUNK):
                x = in_model_dtype(features[piece].detach(), model).to(device, copy=True)
                model.architecture.task.outputs(module, x)
                if not given or any(one.shape[0] != len(x) for one in given):
                    raise Unsupported(
                        f"the layer {layer.path!r} of model {model.architecture.name!r} is not "
                        "called with a row a sample; name another in the setting 'layer'"
                    )
                rows = [one.reshape(len(x), -1, layer.inputs).to(CPU) for one in given]
                found.append(torch.cat(rows, dim=1))
                given.clear()
        finally:
            handle.remove()
    return found
