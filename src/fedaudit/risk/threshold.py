"""Where to draw the line between the scores of members and of others."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.errors import BadInput


def best_threshold(inside: Float[Tensor, " members"], outside: Float[Tensor, " others"]) -> float:
    """The score from which on samples are taken for members with the largest balanced accuracy.

    Compared in whole numbers, so that rounding breaks no tie.

    Args:
        inside: Scores of members, larger for likelier ones.
        outside: Scores of others.

    Returns:
        One of the scores, the highest of equally good ones; infinity, at which nobody is taken for
        a member, where no score is better than a guess.

    Raises:
        BadInput: A side is empty, or a score is not a number.
    """
    refuse_unusable(inside, outside)
    levels = torch.cat([inside, outside]).sort(descending=True).values
    found, alarms = (
        len(side) - torch.searchsorted(side.sort().values, levels) for side in (inside, outside)
    )
    gain = found * len(outside) - alarms * len(inside)
    most = gain.max()
    return float(levels[gain == most][0]) if most > 0 else torch.inf


def refuse_unusable(inside: Tensor, outside: Tensor) -> None:
    """Refuses scores (or losses) that no line can be drawn between.

    Raises:
        BadInput: A side is empty, or one of them is not a number.
    """
    broken = int(torch.cat([inside, outside]).isnan().sum())
    if broken or not (len(inside) and len(outside)):
        raise BadInput(
            f"a line is drawn between members and others, got {len(inside)} and {len(outside)} of "
            f"them, of whose scores or losses {broken} are not numbers; give samples of both kinds "
            "and check the model's outputs"
        )
