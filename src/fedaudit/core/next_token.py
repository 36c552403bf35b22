"""Next-token task of language models."""

from collections.abc import Mapping
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fedaudit.core.arguments import Count, check_arguments
from fedaudit.core.errors import BadInput, format_setting
from fedaudit.core.tasks import NextTokens, OutputKind, Task, Utility, describe_tensor


@check_arguments
def next_token(*, padding: int = 0, vocabulary: Count = 0) -> Task:
    """Prediction of the next token at each position, with the mean negative log-likelihood.

    Samples are sequences of token ids, and each sequence is also its own target. A model returns
    one row of logits per position.

    Args:
        padding: Token that pads sequences; losses ignore it.
        vocabulary: Size of the vocabulary. With 0, it is the largest token id in the data plus 1.

    Examples:
        >>> import fedaudit as fa
        >>> dict(fa.tasks.next_token(padding=3).settings)
        {'padding': 3, 'vocabulary': 0}
    """
    return Task(
        "next-token",
        losses=partial(_sequence_losses, padding=padding),
        utility=Utility("negative log-likelihood", partial(_sequence_losses, padding=padding)),
        output_kinds=OutputKind.TOKENS,
        features=_token_features,
        targets=partial(_token_targets, padding=padding, vocabulary=vocabulary),
        output_width=partial(_vocabulary_size, vocabulary=vocabulary),
        tokens=partial(_next_tokens, padding=padding),
        settings=(("padding", padding), ("vocabulary", vocabulary)),
    )


def _next_tokens(outputs: Tensor, targets: Tensor, *, padding: int) -> NextTokens:
    return NextTokens(outputs[:, :-1], targets[:, 1:], targets[:, 1:] != padding)


def _sequence_losses(
    outputs: Tensor, targets: Tensor, *, padding: int
) -> Float[Tensor, " samples"]:
    if outputs.ndim != 3 or outputs.shape[:2] != targets.shape:
        raise BadInput(
            "a model for the task 'next-token' must return logits (samples, positions, "
            f"vocabulary) for tokens of shape {tuple(targets.shape)}, got shape "
            f"{tuple(outputs.shape)}"
        )
    logits, tokens, counted = _next_tokens(outputs, targets, padding=padding)
    token_losses = functional.cross_entropy(
        logits.transpose(1, 2), tokens, ignore_index=padding, reduction="none"
    )
    return token_losses.sum(1) / counted.sum(1)


def _token_features(features: Tensor, labels: Tensor) -> Tensor:
    if features.ndim != 2 or not bool((features == features.round()).all()):
        raise BadInput(
            "samples of the task 'next-token' must be sequences of whole numbers, one row per "
            f"sample, got {describe_tensor(features)}; if the data file contains tokens, set "
            f"{format_setting('data.options.standardise')} to false"
        )
    return features.int()


ATTENTION_MASK = "attention_mask"
"""Name of the model input that is 0 for tokens that a loss ignores."""


def without_masked(task: Task, inputs: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Return the tokens with the padding token wherever ``attention_mask`` is 0."""
    mask, padding = inputs.get(ATTENTION_MASK), dict(task.settings).get("padding")
    if mask is None or padding is None or mask.shape != tokens.shape:
        return tokens
    return tokens.where(mask != 0, torch.tensor(padding, dtype=tokens.dtype))


def _token_targets(features: Tensor, targets: Tensor, *, padding: int, vocabulary: int) -> Tensor:
    # Targets that are not rows of tokens are labels of groups, such as the book of each text. The
    # tokens to predict are then the features.
    is_tokens = targets.ndim == 2 and bool((targets == targets.round()).all())
    tokens = targets if is_tokens else features
    if is_tokens and _are_shifted(targets, features, padding):
        raise BadInput(
            "targets of the task 'next-token' must be the tokens themselves, but they are "
            "shifted by one position; pass the tokens unshifted, or leave the targets out"
        )
    n_too_short = int(((tokens[:, 1:] != padding).sum(1) == 0).sum())
    if tokens.shape[1] < 2 or n_too_short:
        raise BadInput(
            f"{n_too_short} of {len(tokens)} sequences have no token to predict after the first "
            f"(padding is {padding}); leave them out, or set task.options.padding"
        )
    counted = tokens[tokens != padding]
    smallest, largest = int(counted.min()), int(counted.max())
    if smallest < 0:
        raise BadInput(
            f"token ids must be at least 0, got {smallest}; if it marks padding, set "
            "task.options.padding"
        )
    if vocabulary and largest >= vocabulary:
        raise BadInput(
            f"with a vocabulary of {vocabulary}, token ids must be at most {vocabulary - 1}, got "
            f"{largest}; set task.options.vocabulary"
        )
    return tokens.long()


def _are_shifted(targets: Tensor, features: Tensor, padding: int) -> bool:
    """Return whether each target is the next token of the features."""
    if targets.shape != features.shape or torch.equal(targets, features):
        return False
    is_next = targets[:, :-1] == features[:, 1:]
    is_counted = (targets[:, :-1] != padding) & (features[:, 1:] != padding)
    return bool(is_counted.any()) and bool(is_next[is_counted].all())


def _vocabulary_size(features: Tensor, targets: Tensor, *, vocabulary: int) -> int:
    return vocabulary or int(targets.max()) + 1
