"""MiniLM, a small pretrained language model with trained adapters, prompt and head."""

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
_WORDS = "embeddings.word_embeddings"
"""Name of the encoder's token embeddings."""


@cache
def _weights() -> dict[str, Tensor]:
    return load(read_minilm_file("model.safetensors"))


class MiniLMNetwork(nn.Module):
    """A frozen encoder with a trained head, and trained attention adapters or a trained prompt.

    The head reads the mean of the last layer over prompt and tokens, without padding.
    """

    def __init__(self, classes: int, rank: int, alpha: float, prompt: int) -> None:
        super().__init__()
        needed = ("transformers", "peft") if rank else ("transformers",)
        config = json.loads(read_minilm_file("config.json", *needed))
        from transformers import BertConfig, BertModel

        for dropout in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            config[dropout] = 0.0
        encoder = BertModel(BertConfig(**config), add_pooling_layer=False)
        # The meta device has no memory: only the number of parameters is needed there.
        if encoder.device.type != "meta":
            encoder.load_state_dict(_weights(), strict=False)
        encoder.requires_grad_(False)
        width = int(config["hidden_size"])
        self.encoder = with_adapters(encoder, rank, alpha) if rank else encoder
        self.prompt = nn.Embedding(prompt, width) if prompt else None
        if self.prompt is not None:
            # The standard deviation of token embeddings.
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
            first = self.prompt(torch.arange(count, device=ids.device).expand(len(ids), -1))
            tokens = torch.cat([first, self.encoder.get_submodule(_WORDS)(ids)], 1)
            mask = torch.cat([mask.new_ones(len(ids), count), mask], 1)
            last = self.encoder(inputs_embeds=tokens, attention_mask=mask.long()).last_hidden_state
        counted = mask[..., None].to(last)
        out: Tensor = self.head((last * counted).sum(1) / counted.sum(1).clamp_min(1))
        return out


def with_adapters(encoder: nn.Module, rank: int, alpha: float) -> nn.Module:
    """Add LoRA adapters to the queries and values of an encoder's attention."""
    from peft import LoraConfig, inject_adapter_in_model

    adapters = LoraConfig(r=rank, lora_alpha=alpha, target_modules=["query", "value"])
    adapted: nn.Module = inject_adapter_in_model(adapters, encoder)
    return adapted


@dataclass(frozen=True, kw_only=True)
class MiniLM(ConfiguredModel):
    """MiniLM-L6 (22.7 million parameters, frozen) with LoRA of its attention, a prompt and a head.

    Samples are sequences of MiniLM's tokens, into which the data option ``tokenizer = "minilm"``
    converts texts. Clients train and upload only adapters, prompt and head. Needs the extra
    ``text``; nothing is downloaded.

    Attributes:
        rank: Rank of the adapters; 0 for none.
        alpha: Scale of the adapters, above 0, divided by their rank.
        prompt: Number of trained prompt tokens before each text (prompt tuning); 0 for none.

    Examples:
        >>> import fedaudit as fa
        >>> fa.models.MiniLM(rank=4).alpha
        16.0

    Source: Wang et al. 2020 (MiniLM), as all-MiniLM-L6-v2; Hu et al. 2022 (LoRA), section 4.2;
        Lester et al. 2021 (prompt tuning), section 2.
    Differs: No dropout.
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
                "model 'minilm' reads sequences of tokens, got samples of shape "
                f"{format_shape(shape)}; use another model"
            )
        return MiniLMNetwork(classes, self.rank, self.alpha, self.prompt)
