"""Audits of federations that NVIDIA FLARE runs; needs ``pip install "fedaudit[nvflare]"``.

:class:`RecordingFilter` is an input filter of a job's server. It records the model that each site
is sent, and the site's result. :class:`GuardFilter` is a filter of a site. It withholds results
that leak.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from fedaudit.core.lazy import lazy_names

if TYPE_CHECKING:
    from fedaudit.integrations.nvflare.filter import RecordingFilter as RecordingFilter
    from fedaudit.integrations.nvflare.guarding import GuardFilter as GuardFilter
else:
    _load, __dir__, __all__ = lazy_names(__name__)

    def __getattr__(name: str) -> object:
        """Import a filter when it is first used; other modules do not need NVFlare."""
        if name in __all__ and find_spec("nvflare") is None:
            raise ImportError(
                "fedaudit.integrations.nvflare needs NVFlare, which is not installed; install "
                '"fedaudit[nvflare]"'
            )
        return _load(name)
