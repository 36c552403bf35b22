"""Views of adversaries: those of ``fedaudit list views``, and custom ones."""

from fedaudit.core.values import Capability
from fedaudit.observe.views import VIEWS, View, seen_from, view_named

__all__ = ["VIEWS", "Capability", "View", "seen_from", "view_named"]


def __dir__() -> list[str]:
    return __all__
