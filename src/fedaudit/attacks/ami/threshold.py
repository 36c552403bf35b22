"""The threshold of a planted neuron that serves best, by records that nobody plays with."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.errors import BadInput


def best_shift(
    of_target: Float[Tensor, "neurons copies"],
    of_others: Float[Tensor, "neurons records"],
    *,
    batch: int,
) -> Float[Tensor, " neurons"]:
    """Shift of each neuron's values that serves best in games.

    A neuron is to fire for the target and to stay silent over a whole batch without it: the share
    (TPR + (1 - FPR)^batch) / 2 of single records, as these count it, is largest. Games won by
    another record's firing are not aimed at. Of equally good places the middle of the widest gap
    is taken.

    Args:
        of_target: Values on the target's copies, as the client might hold it.
        of_others: Values on other records.
        batch: Records in a client's batch.

    Raises:
        BadInput: A side is empty, or the batch.

    Source: AMI, Eqs. (3) and (7).
    Differs: the published code keeps zero where training left it, and takes the checkpoint that is
        best on the records of the games themselves.
    """
    copies, records = of_target.shape[1], of_others.shape[1]
    if not (copies and records and batch > 0):
        raise BadInput(
            f"a neuron's zero is placed by values of its target and of others, for batches of at "
            f"least one record; got {copies} and {records}, and {batch}"
        )
    values, order = torch.cat([of_target, of_others], dim=1).double().sort(dim=1)
    target_above = _above(order < copies)
    other_above = _above(order >= copies)
    won = (target_above / copies + (1 - other_above / records) ** batch) / 2
    gaps = values.diff(dim=1)
    best = won >= won.amax(1, keepdim=True) - 1e-12
    place = gaps.where(best, torch.tensor(-1.0).double()).argmax(1, keepdim=True)
    zero = (values.gather(1, place) + values.gather(1, place + 1)) / 2
    return -zero.squeeze(1).to(of_target)


def _above(which: Tensor) -> Tensor:
    """Number of these above each gap between two values."""
    return which.sum(1, keepdim=True) - which.cumsum(1)[:, :-1]
