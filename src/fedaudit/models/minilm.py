"""MiniLM, a small pretrained language model, with adapters (LoRA) and a head that clients train."""

import json
from functools import cache

from jaxtyping import Float, Int
from safetensors.torch import load
from torch import Tensor, nn

from fedaudit.core.errors import BadInput
from fedaudit.core.pretrained import of_minilm
from fedaudit.models._parts import spelled

_PADDING = 0
"""Token that fills sequences up, by MiniLM's own vocabulary."""


@cache
def _weights() -> dict[str, Tensor]:
    return load(of_minilm("model.safetensors"))


class MiniLM(nn.Module):
    """A frozen encoder with trained adapters beside its attention, and a trained head.

    The head reads the mean of the last layer over the tokens that are no padding.
    """

    def __init__(self, classes: int, rank: int, alpha: float) -> None:
        super().__init__()
        config = json.loads(of_minilm("config.json", "transformers", "peft"))
        from peft import LoraConfig, inject_adapter_in_model
        from transformers import BertConfig, BertModel

        for dropout in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            config[dropout] = 0.0
        encoder = BertModel(BertConfig(**config), add_pooling_layer=False)
        # Without memory where it is only asked how large it would be.
        if encoder.device.type != "meta":
            encoder.load_state_dict(_weights(), strict=False)
        encoder.requires_grad_(False)
        adapters = LoraConfig(r=rank, lora_alpha=alpha, target_modules=["query", "value"])
        self.encoder = inject_adapter_in_model(adapters, encoder)
        self.head = nn.Linear(int(config["hidden_size"]), classes)

    def forward(self, x: Int[Tensor, "samples tokens"]) -> Float[Tensor, "samples classes"]:
        """Logits of each sequence."""
        ids = x.long()
        mask = ids != _PADDING
        last = self.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        counted = mask[..., None].to(last)
        out: Tensor = self.head((last * counted).sum(1) / counted.sum(1).clamp_min(1))
        return out


def minilm(*, shape: tuple[int, ...], classes: int, rank: int = 8, alpha: float = 16.0) -> MiniLM:
    """MiniLM-L6 (22.7 million parameters, frozen) with LoRA of its attention and a head.

    Samples are sequences of its own tokens, which the data option ``tokenizer = "minilm"`` makes of
    texts. Clients train and upload adapters and head alone. Needs the extra ``text``; nothing is
    downloaded.

    Args:
        shape: Of one sample: the length of a sequence.
        classes: Number of outputs.
        rank: Of the adapters.
        alpha: Scale of the adapters, over their rank.

    Raises:
        BadInput: The packages are not installed, or samples are no sequences.

    Source: Wang et al. 2020 (MiniLM), as all-MiniLM-L6-v2; Hu et al. 2022 (LoRA), section 4.2.
    Differs: No dropout.
    """
    if len(shape) != 1 or rank < 1:
        raise BadInput(
            "model 'minilm' reads sequences of tokens and has adapters of rank 1 or more, got "
            f"samples of shape {spelled(shape)} and rank {rank}"
        )
    return MiniLM(classes, rank, alpha)
