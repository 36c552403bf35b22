"""Signs in how far units moved since the model of the round before."""

from fedaudit.core import Model, Samples
from fedaudit.defenses.planted.base import row_moves, sign


@sign
def moved_row(now: Model, before: Model | None, own: Samples) -> float:
    """How much farther the most moved unit moved than the median one of its layer: log ratio.

    Weights and bias of a unit together. Silent where more than half of a layer is replaced.
    """
    return max(
        float((moves[:, 0].max() / moves[:, 0].median()).log()) for moves in row_moves(now, before)
    )


@sign
def rewritten_row(now: Model, before: Model | None, own: Samples) -> float:
    """How far a unit moved beside its own length the round before: largest log ratio.

    Weights and bias of a unit together; near 0 or above where it was replaced.
    """
    return max(float((moves[:, 0] / moves[:, 1]).log().max()) for moves in row_moves(now, before))
