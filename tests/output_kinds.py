"""A task that supports every reading of outputs: classes and tokens."""

from dataclasses import replace

import torch
from torch import Tensor

from fedaudit.core.tasks import CLASSIFICATION, NextTokens, OutputKind


def one_token(outputs: Tensor, targets: Tensor) -> NextTokens:
    counted = torch.ones(len(targets), 1, dtype=torch.bool)
    return NextTokens(outputs[:, None], targets[:, None], counted)


EVERY_OUTPUT_KIND = replace(
    CLASSIFICATION, output_kinds=OutputKind.POSTERIOR | OutputKind.TOKENS, tokens=one_token
)
