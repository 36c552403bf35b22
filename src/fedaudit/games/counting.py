"""Games counted: how often a server was right, of both kinds."""

from jaxtyping import Bool
from torch import Tensor

from fedaudit.errors import BadInput
from fedaudit.metrics.games import GameSuccess, game_success
from fedaudit.metrics.rates import Share
from fedaudit.results.games import Rate


def success_of(
    said_in: Bool[Tensor, " games"], was_in: Bool[Tensor, " games"], *, delta: float = 0.0
) -> GameSuccess:
    """How often verdicts were right.

    Args:
        said_in: The verdicts.
        was_in: What was so.
        delta: At which the games' own epsilon is read.

    Raises:
        BadInput: All games are of one kind.
    """
    inside, outside = int(was_in.sum()), int((~was_in).sum())
    if not (inside and outside):
        raise BadInput(
            f"of {len(said_in)} games {inside} had the target in the batch, and figures need "
            "games of both kinds; raise game.games"
        )
    right = int(said_in[was_in].sum()), int((~said_in[~was_in]).sum())
    return game_success(right[0], inside, right[1], outside, delta=delta)


def rate(found: Share) -> Rate:
    """A share as records keep it."""
    return Rate(**found._asdict())
