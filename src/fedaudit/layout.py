"""In which order a network's images lie in memory."""

import torch
from torch import nn


def layout(module: nn.Module) -> torch.memory_format:
    """The memory order in which a module trains fastest on a CPU.

    A rule about the architecture, not a timing, so that it never differs between two runs:
    another order changes the last bits of a result.

    Returns:
        Channels last for convolutional networks: 1.2 to 1.7 times as fast with 3x3 and 5x5
        windows. The usual order without 2-d convolutions, and where one of them has a stride
        above 2: most of the work is then on maps of a few pixels, where channels last costs
        15 % (AlexNet). The usual order too where code of somebody else's is run, which may take
        it for granted, as ``x.view(-1, 400)`` does behind a convolution.
    """
    strides = [max(part.stride) for part in module.modules() if isinstance(part, nn.Conv2d)]
    if not strides or max(strides) > 2 or runs_foreign_code(module):
        return torch.contiguous_format
    return torch.channels_last


def runs_foreign_code(module: nn.Module) -> bool:
    """True if a part of a module is written by somebody else than torch and fedaudit, or watched.

    Nothing is known of such code: it may take an order in memory for granted, or draw numbers.
    """
    return not all(
        type(part).__module__.startswith(("torch.nn.modules.", "fedaudit.models."))
        and not part._forward_hooks
        and not part._forward_pre_hooks
        for part in module.modules()
    )


def laid_out(module: nn.Module) -> nn.Module:
    """The module with its convolutions in the order of :func:`layout`, changed in place.

    A module that is to lie in the usual order is left as it is. Inputs need no change: the
    convolutions convert them. Names, shapes and values stay; a copy for others should be made
    with ``clone(memory_format=torch.contiguous_format)``.
    """
    if layout(module) is torch.channels_last:
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                part.weight.data = part.weight.data.to(memory_format=torch.channels_last)
    return module
