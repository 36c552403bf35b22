"""A planted neuron that is one row of the second layer, over the units that the model has."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.ami.neuron import Distinct
from fedaudit.attacks.ami.plant import Place, Planted, first_two
from fedaudit.attacks.ami.threshold import best_shift
from fedaudit.core import Model
from fedaudit.errors import BadInput

_RIDGE = 1e-3
"""Of the mean variance of a unit, added to each: records are fewer than units may be."""

_TRACE = 1e-6


def plant_one_row(
    model: Model,
    of_target: Float[Tensor, "copies features"],
    of_others: Float[Tensor, "records features"],
    *,
    batch: int,
) -> Planted:
    """The model with its second layer's first row made to fire for a target; all else is kept.

    The row is the direction that sets the target's mean activations best apart from others'
    (Fisher's discriminant), as long as the row that it replaces. Half of the others place its
    zero, which one bias holds.

    Args:
        model: What an honest server would send: three dense layers, with a ReLU behind each of
            the first two.
        of_target: Copies of the target, as the client might hold it.
        of_others: Records of the server's own.
        batch: Records in a client's batch.

    Raises:
        Unsupported: The model is of other layers.
        BadInput: There are no copies, or fewer than four other records.

    Source: AMI, Eq. (5).
    Differs: the paper trains r units of the first layer as well; here they stay as an honest
        server trained them, so that one row of the model is all that gives the neuron away.
    """
    if len(of_target) < 1 or len(of_others) < 4:
        raise BadInput(
            "a row is fitted to copies of the target and to four other records or more, got "
            f"{len(of_target)} and {len(of_others)}"
        )
    first, second = first_two(model.module())
    values = {name: value.clone() for name, value in model.params.items()}
    weight, bias = (values[f"{first}.{part}"].double() for part in ("weight", "bias"))
    kept = Distinct.of(torch.cat([of_target, of_others]).flatten(1).double())
    active = (kept.rows @ weight.T + bias).relu()
    copies, fitted = len(of_target), len(of_target) + -(-len(of_others) // 2)
    target, fit = (active[part] for part in kept.place.tensor_split([copies, fitted])[:2])
    centred = fit - fit.mean(0)
    spread = centred.T @ centred / len(fit)
    ridge = _RIDGE * spread.diagonal().mean().clamp_min(1e-12)
    spread.diagonal().add_(ridge)
    row = torch.linalg.solve(spread, target.mean(0) - fit.mean(0))
    # Where a unit fires for none of them, a trace of what it was: exact zeros would show.
    honest = values[f"{second}.weight"][0].double()
    row = torch.where(row == 0, _TRACE * honest * row.norm() / honest.norm(), row)
    row *= honest.norm() / row.norm().clamp_min(1e-30)
    fires = (active @ row)[None, kept.place]
    zero = best_shift(fires[:, :copies], fires[:, fitted:], batch=batch)
    values[f"{second}.weight"][0] = row
    values[f"{second}.bias"][0] = zero[0]
    place = Place(f"{second}.weight", f"{second}.bias", 0)
    return Planted(Model(model.architecture, values, model.buffers), (place,))
