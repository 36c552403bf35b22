"""A filter of NVFlare as a function from update to update, for a check of what it does."""

from typing import cast

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_context import FLContext

from fedaudit.core.errors import BadInput
from fedaudit.filters.claim import Arrays, Claim


class _Filtered:
    """A site's result filter, which is given differences of weights."""

    def __init__(self, filter: Filter) -> None:
        self._filter = filter

    def __call__(self, update: Arrays) -> tuple[Arrays, dict[str, object]]:
        given = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
        result = DXO(DataKind.WEIGHT_DIFF, data=dict(update), meta=dict(given))
        sent = from_shareable(self._filter.process(result.to_shareable(), FLContext()))
        if not isinstance(sent.data, dict):
            raise BadInput("the filter sends no weights")
        arrays = {name: np.asarray(value) for name, value in sent.data.items()}
        return arrays, {str(name): value for name, value in (sent.meta or {}).items()}


def filtered(filter: object, claim: Claim) -> object:
    """The filter as it stands at a site, on the way out.

    Args:
        filter: Its ``process`` takes a shareable and a context.
        claim: Not used: nothing in a task tells a filter what was declared.
    """
    return _Filtered(cast(Filter, filter))
