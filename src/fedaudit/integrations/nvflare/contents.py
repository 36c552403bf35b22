"""What NVFlare's messages carry, as fedaudit needs it."""

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants

from fedaudit.errors import BadInput
from fedaudit.integrations.nvflare.ledger import Arrays, Upload


def round_of(task: Shareable) -> int:
    """The round that a task is of, from 1; NVFlare counts from 0.

    Raises:
        BadInput: It does not say.
    """
    said = task.get_header(AppConstants.CURRENT_ROUND)
    if not isinstance(said, int) or said < 0:
        raise BadInput(
            f"a task says that it is of round {said!r}; a recorder needs tasks with the header "
            f"{AppConstants.CURRENT_ROUND!r}, as FedAvg and its like send them"
        )
    return said + 1


def error_in(result: Shareable) -> str:
    """The error that a result stands for; empty for none."""
    code = result.get_return_code()
    return "" if code in (None, ReturnCode.OK) else str(code)


def model_in(task: Shareable) -> Arrays:
    """The model that a site is sent.

    Raises:
        BadInput: There is none, or one that cannot be read.
    """
    dxo = _dxo(task)
    if dxo.data_kind != DataKind.WEIGHTS:
        raise BadInput(f"it is {_named(dxo)}; a recorder needs the whole model ({_WHOLE})")
    return _arrays(dxo)


def upload_in(result: Shareable) -> Upload:
    """What a site sends back.

    Raises:
        BadInput: No model and no difference, or one that cannot be read.
    """
    dxo = _dxo(result)
    if dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
        raise BadInput(f"it is {_named(dxo)}; a recorder reads {_WHOLE} and {_DIFFERENCE}")
    return Upload(_arrays(dxo), dxo.data_kind == DataKind.WEIGHT_DIFF, _weight(dxo))


_HEAVIEST = 1e300
"""Whole numbers beyond it may be none that a float holds."""

_WHOLE, _DIFFERENCE = DataKind.WEIGHTS.value, DataKind.WEIGHT_DIFF.value


def _dxo(content: Shareable) -> DXO:
    try:
        return from_shareable(content)
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"it carries no DXO ({error})") from error


def _arrays(dxo: DXO) -> Arrays:
    processed = dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM)
    if processed:
        raise BadInput(
            f"its arrays are {processed}; a recorder reads plain ones, so add it after the filter "
            "that undoes this, if the server has one"
        )
    if not isinstance(dxo.data, dict) or not dxo.data:
        raise BadInput(f"it is {_named(dxo)} without arrays")
    return dxo.data


def _weight(dxo: DXO) -> float:
    said = dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)
    number = isinstance(said, int | float) and not isinstance(said, bool)
    # As NVFlare takes it: a weight that is none counts as 1.
    return float(said) if number and 0 < said <= _HEAVIEST else 1.0


def _named(dxo: DXO) -> str:
    return f"data of the kind {getattr(dxo.data_kind, 'value', dxo.data_kind)}"
