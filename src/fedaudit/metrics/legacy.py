"""A published evaluation that is not sound, kept so that its effect can be shown."""

import numpy as np
from jaxtyping import Bool, Float

from fedaudit.errors import BadInput


def redraw(
    values: Float[np.ndarray, "rounds clients samples"],
    is_member: Bool[np.ndarray, " flagged"],
    *,
    rng: np.random.Generator,
) -> Float[np.ndarray, "rounds clients samples"]:
    """Measurements as they look when non-members are drawn anew for every round and client.

    Members keep their places; at each round and client the non-members' values are dealt out
    again among the non-members, without replacement. What is then taken for one non-member
    is another sample at every client and in every round. That is wrong twice: a rule over
    clients compares the target with other clients *on other samples*, and a mean over rounds
    averages *different* samples, so that non-members' scores shrink towards their common mean
    while members' keep their spread. Members stand out even where nobody was trained on
    them. For parity with published tables only, never for a finding.

    Args:
        values: Measurements of a signal.
        is_member: Which samples the target trained on.
        rng: Draws the permutations.

    Raises:
        BadInput: The mask has another length than the samples axis.

    Source: FedMIA's published code, where the non-member indices are drawn inside the loop
        over rounds and clients. The paper does not mention it.
    """
    if len(is_member) != values.shape[2]:
        raise BadInput(
            f"every sample needs a membership, got {len(is_member)} for {values.shape[2]} samples"
        )
    dealt = values.copy()
    dealt[:, :, ~is_member] = rng.permuted(values[:, :, ~is_member], axis=2)
    return dealt
