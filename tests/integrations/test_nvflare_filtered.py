"""check-dp on NVFlare filters."""

import math

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'fedaudit[nvflare]'")

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

from fedaudit.filters.check import check_dp
from fedaudit.filters.claim import FilterAudit, FilterVerdict, Result


class Gaussian(DXOFilter):
    """A filter that clips and adds noise; if ``forgets``, it does not clip the last array."""

    forgets = False

    def __init__(self) -> None:
        super().__init__([DataKind.WEIGHT_DIFF], None)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        clipped = [*dxo.data][: -1 if self.forgets else None]
        length = math.sqrt(sum(float((dxo.data[name] ** 2).sum()) for name in clipped))
        factor = min(1.0, 1.0 / (length + 1e-9))
        dxo.data = {
            name: value * (factor if name in clipped else 1.0)
            + np.random.normal(0, 0.8, np.shape(value))  # noqa: NPY002
            for name, value in dxo.data.items()
        }
        return dxo


class Forgetting(Gaussian):
    forgets = True


class ReportingLength(Gaussian):
    """A filter that also sends the length of the update."""

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        length = float(sum(np.abs(value).sum() for value in dxo.data.values()))
        sent = super().process_dxo(dxo, shareable, fl_ctx)
        sent.set_meta_prop("length", length)
        return sent


def failed(audit: FilterAudit) -> set[str]:
    return {check.name for check in audit.of(Result.FAILED)}


def test_a_filter_that_clips_and_adds_noise_is_sound() -> None:
    for candidate in (Gaussian, Gaussian()):
        audit = check_dp(candidate, sensitivity=1.0, sigma=0.8)
        assert audit.kind == "an NVFlare filter"
        assert audit.verdict is FilterVerdict.SOUND, str(audit)


def test_faults_of_filters_are_found() -> None:
    audit = check_dp(Forgetting, sensitivity=1.0, sigma=0.8, calls=16)
    assert failed(audit) == {"largest change of the output"}
    assert "large only in 'second.bias'" in str(audit)
    audit = check_dp(ReportingLength, sensitivity=1.0, sigma=0.8, calls=16)
    assert failed(audit) == {"outputs without noise"}
    assert "'length'" in str(audit)


def test_percentile_privacy_limits_each_entry_and_adds_no_noise() -> None:
    entries = 32 * 16 + 32 + 10 * 32 + 10
    length = 0.01 * math.sqrt(entries)
    assert check_dp(PercentilePrivacy, sensitivity=length, sigma=0.0).verdict is FilterVerdict.SOUND
    audit = check_dp(PercentilePrivacy, sensitivity=0.9 * length, sigma=0.0)
    assert failed(audit) == {"largest change of the output"}
    audit = check_dp(PercentilePrivacy, sensitivity=length, sigma=1.0)
    assert failed(audit) == {"outputs without noise", "standard deviation of noise"}


def test_check_dp_cannot_check_the_noise_of_sparse_vectors() -> None:
    audit = check_dp(SVTPrivacy, sensitivity=1e-5, sigma=1.0)
    assert audit.verdict is FilterVerdict.UNCHECKED
    assert "visible noise" in {check.name for check in audit.of(Result.UNTESTED)}
