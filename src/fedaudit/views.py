"""Views of adversaries: those of ``fedaudit list views``, and custom ones."""

from fedaudit.core.values import Sees
from fedaudit.observe.views import VIEWS, View, seen_from, view_named

__all__ = ["VIEWS", "Sees", "View", "seen_from", "view_named"]


def __dir__() -> list[str]:
    return __all__
