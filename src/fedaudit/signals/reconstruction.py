"""Reconstruction of samples from the update of a model's first layer."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.arguments import dataclass
from fedaudit.core.devices import CPU
from fedaudit.core.errors import NotVisible, Unsupported
from fedaudit.core.values import Capability, Model
from fedaudit.signals.base import VisibleRound
from fedaudit.signals.linear_layers import LinearLayer, layer_inputs, linear_layers

_SMALLEST_BIAS_UPDATE = 1e-9
"""Smallest absolute bias update, relative to the largest one, that is used as a divisor."""


@dataclass(frozen=True)
class NearestReconstruction:
    """Negative distance from a sample to the nearest sample that the update reconstructs.

    The gradient of a first linear layer with a bias reveals samples: for each neuron, the gradient
    of the weights divided by that of the bias is a weighted mean of the samples that activate the
    neuron, and it is the sample itself if only one sample does. Each neuron thus gives a candidate.
    The signal is minus the Euclidean distance from a sample to the nearest candidate, divided by
    the norm of the sample. It is 0 for a sample that is reconstructed exactly.

    Candidates are compared with members and with samples that no client trained on. Resemblance
    alone is therefore not counted as a reconstruction: if the data are similar to each other,
    candidates are as close to unseen samples.

    Source: Phong et al. 2018 and Geiping et al. 2020, for the reconstruction.
    Differs: The update of all local steps replaces the gradient of one batch.
    """

    name = "nearest-reconstruction"
    needs = Capability.GLOBAL_MODEL | Capability.UPDATE

    def raise_if_misfit(self, model: Model) -> None:
        self._first_layer(model)

    def __call__(self, visible: VisibleRound) -> Float[Tensor, "clients samples"]:
        features = visible.samples.features
        samples = features.reshape(len(features), -1).double()
        layer_of_base: dict[int, LinearLayer] = {}
        distances = []
        for client, base in zip(visible.clients, visible.bases.tolist(), strict=True):
            observed = visible.round.observed[client]
            if observed.base is None or observed.update is None:
                raise NotVisible(
                    "this view hides the models that clients received, or their updates, so that "
                    "samples cannot be reconstructed"
                )
            if base not in layer_of_base:
                layer_of_base[base] = self._layer_of_samples(observed.base, visible)
            layer = layer_of_base[base]
            candidates = _candidates(observed.update[layer.weight], observed.update[layer.bias])
            distances.append(_relative_distances(samples, candidates))
        return -torch.stack(distances)

    def _layer_of_samples(self, model: Model, visible: VisibleRound) -> LinearLayer:
        """Return the first layer, after a check that its inputs are the samples themselves."""
        layer, features = self._first_layer(model), visible.samples.features
        inputs = torch.cat(layer_inputs(model, layer, features, visible.device))
        samples = features.reshape(len(features), -1)
        is_sample = inputs.shape[1:] == (1, samples.shape[1]) and torch.allclose(
            inputs[:, 0].double(), samples.double(), rtol=1e-4, atol=1e-6
        )
        if not is_sample:
            raise Unsupported(
                f"the inputs of the layer {layer.path!r} of model {model.architecture.name!r} are "
                "not the samples themselves, so that no samples can be computed from its update; "
                "use a model such as mlp, or an attack on losses or gradients, such as fedmia-2"
            )
        return layer

    def _first_layer(self, model: Model) -> LinearLayer:
        layer = next(linear_layers(model, CPU), None)
        if layer is None or layer.bias not in model.params:
            raise Unsupported(
                f"model {model.architecture.name!r} does not begin with a trained linear layer "
                "with a bias, from which samples can be computed; use a model such as mlp, or an "
                "attack on losses or gradients, such as fedmia-2"
            )
        return layer


def _candidates(
    weight_update: Float[Tensor, "outputs inputs"], bias_update: Float[Tensor, " outputs"]
) -> Float[Tensor, "candidates inputs"]:
    """Return the mean sample of each neuron whose bias was updated."""
    weights, biases = weight_update.detach().double().cpu(), bias_update.detach().double().cpu()
    is_updated = biases.abs() > _SMALLEST_BIAS_UPDATE * biases.abs().max()
    return weights[is_updated] / biases[is_updated, None]


def _relative_distances(
    samples: Float[Tensor, "samples inputs"], candidates: Float[Tensor, "candidates inputs"]
) -> Float[Tensor, " samples"]:
    """Return each sample's distance to the nearest candidate; without candidates, to zero."""
    norms = distances = samples.square().sum(1).sqrt()
    if len(candidates):
        # The exact form is used, because the squared norms of equal vectors would not cancel.
        pairs = torch.cdist(samples, candidates, compute_mode="donot_use_mm_for_euclid_dist")
        distances = pairs.amin(1)
    return distances / norms.clamp_min(torch.finfo(torch.float64).tiny)
