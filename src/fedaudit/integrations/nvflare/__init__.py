"""Audits of federations that NVIDIA FLARE runs; needs ``pip install "fedaudit[nvflare]"``.

:class:`RecordingFilter` is an input filter of a job's server: it sees what each site is sent and
what comes back. :class:`GuardFilter` is a filter of a site: it withholds results that leak.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedaudit.integrations.nvflare.filter import RecordingFilter
    from fedaudit.integrations.nvflare.guarding import GuardFilter

_MODULES = {"GuardFilter": "guarding", "RecordingFilter": "filter"}

__all__ = ["GuardFilter", "RecordingFilter"]


def __getattr__(name: str) -> object:
    """Import a filter when it is first used; other modules do not need NVFlare."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("nvflare") is None:
        raise ImportError(
            "fedaudit.integrations.nvflare needs NVFlare, which is not installed; install "
            '"fedaudit[nvflare]"'
        )
    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
