"""A task with every reading: a class is also a sequence of one token, which a model predicts."""

from dataclasses import replace

import torch
from torch import Tensor

from fedaudit.core.tasks import CLASSIFICATION, NextTokens, Reading


def one_token(outputs: Tensor, targets: Tensor) -> NextTokens:
    counted = torch.ones(len(targets), 1, dtype=torch.bool)
    return NextTokens(outputs[:, None], targets[:, None], counted)


EVERY_READING = replace(
    CLASSIFICATION, readings=Reading.POSTERIOR | Reading.TOKENS, tokens=one_token
)
