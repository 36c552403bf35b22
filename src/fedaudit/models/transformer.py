"""A small transformer that predicts next tokens."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.arguments import Positive, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.pretrained import cached_pretrained
from fedaudit.models.base import ConfiguredModel, format_shape


class _Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(
        self, x: Float[Tensor, "samples positions width"]
    ) -> Float[Tensor, "samples positions width"]:
        samples, positions, width = x.shape
        split = self.inward(x).view(samples, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split[0], split[1], split[2]
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.outward(attended.transpose(1, 2).reshape(samples, positions, width))
        return out


class _Block(nn.Module):
    """Attention and then a hidden layer, each after a normalisation and with a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.attention = nn.LayerNorm(width), _Attention(width, heads)
        self.second = nn.LayerNorm(width)
        self.hidden = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(
        self, x: Float[Tensor, "samples positions width"]
    ) -> Float[Tensor, "samples positions width"]:
        x = x + self.attention(self.first(x))
        out: Tensor = x + self.hidden(self.second(x))
        return out


class TransformerNetwork(nn.Module):
    """A decoder over sequences of tokens that returns the next token's logits at each position."""

    def __init__(self, length: int, vocabulary: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.last, self.logits = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(
        self, x: Int[Tensor, "samples positions"]
    ) -> Float[Tensor, "samples positions tokens"]:
        """Return the logits of the next token at every position."""
        # Hooks that compute gradients per sample expect one row per sample.
        positions = torch.arange(x.shape[1], device=x.device).expand(x.shape)
        out: Tensor = self.logits(self.last(self.blocks(self.tokens(x) + self.places(positions))))
        return out


@dataclass(frozen=True, kw_only=True)
class Transformer(ConfiguredModel):
    """A causal transformer over tokens, such as bytes of text, for the task "next-token".

    Attributes:
        layers: Number of blocks, at least 1. A block has attention and a hidden layer with four
            times the width.
        width: Embedding dimension, a multiple of ``heads``.
        heads: Number of attention heads, at least 1.
        weights: File with the weights of a pretrained network, from which clients start. A study
            with a ``[pretraining]`` table creates this file and sets its name. Without weights, the
            network is random.

    Examples:
        >>> import fedaudit as fa
        >>> fa.models.Transformer(layers=1).build(shape=(16,), classes=256).logits
        Linear(in_features=128, out_features=256, bias=True)

    Source: Radford et al. 2019 (GPT-2), section 2.3: normalisation before attention and before the
        hidden layer.
    Differs: Position embeddings have torch's initialisation, the output layer does not share the
        weights of the token embeddings, and there is no dropout.
    """

    layers: Positive = 2
    width: Positive = 128
    heads: Positive = 4
    weights: str = ""

    def build(self, shape: tuple[int, ...], classes: int) -> TransformerNetwork:
        """Return a network with pretrained or random weights.

        Raises:
            BadInput: Samples are not sequences, ``width`` is not a multiple of ``heads``, or the
                pretrained weights do not exist or have other shapes.
            Damaged: The pretrained weights cannot be read.
        """
        if len(shape) != 1:
            raise BadInput(
                "model 'transformer' needs sequences of tokens, got samples of shape "
                f"{format_shape(shape)}; use the task 'next-token', or another model"
            )
        if self.width % self.heads:
            raise BadInput(
                "width of model 'transformer' must be a multiple of heads, got "
                f"heads={self.heads} and width={self.width}; change one of them"
            )
        net = TransformerNetwork(shape[0], classes, self.layers, self.width, self.heads)
        if self.weights and net.logits.weight.device.type != "meta":
            self._load_weights(net)
        return net

    def _load_weights(self, net: TransformerNetwork) -> None:
        values = cached_pretrained(self.weights)
        expected = {name: value.shape for name, value in net.state_dict().items()}
        if {name: value.shape for name, value in values.items()} != expected:
            raise BadInput(
                f"the pretrained weights {self.weights!r} do not fit this 'transformer' model; use "
                "the layers, width, heads, sequence length and vocabulary of the pretrained network"
            )
        net.load_state_dict(values)
