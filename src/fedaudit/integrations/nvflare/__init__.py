"""Audits of federations that NVIDIA FLARE runs; needs ``pip install "fedaudit[nvflare]"``.

:class:`RecordingFilter` is an input filter of a job's server: it sees what each site is sent and
what comes back.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedaudit.integrations.nvflare.filter import RecordingFilter

__all__ = ["RecordingFilter"]


def __getattr__(name: str) -> object:
    """Import the filter when it is first used; other modules do not need NVFlare."""
    if name != "RecordingFilter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("nvflare") is None:
        raise ImportError(
            "fedaudit.integrations.nvflare needs NVFlare, which is not installed; install "
            '"fedaudit[nvflare]"'
        )
    from fedaudit.integrations.nvflare.filter import RecordingFilter

    return RecordingFilter
