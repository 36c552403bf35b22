"""Warnings of a recorder, which replace errors so that the training loop continues."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fedaudit.core.errors import BadInput
from fedaudit.results.text import clean_text, log_line


class RecorderWarnings:
    """Warnings about rounds that cannot be recorded; a strict recorder raises errors instead.

    Attributes:
        strict: Whether a round that cannot be recorded stops the loop.
    """

    def __init__(self, *, strict: bool, log: Callable[[str], None]) -> None:
        self.strict, self._log = strict, log
        self._reasons = set[str]()

    def warn(self, text: str, reason: str) -> None:
        """Warn, unless an earlier warning had the same reason.

        For example, every round may fail for one reason.
        """
        if reason in self._reasons:
            return
        self._reasons.add(reason)
        text = log_line(text)
        try:
            warnings.warn(f"fedaudit: {text}", RuntimeWarning, stacklevel=4)
        # A loop that turns warnings into errors must not stop because of this one.
        except RuntimeWarning:
            with suppress(Exception):
                self._log(f"warning: {text}")

    def raise_or_warn(self, text: str, reason: str = "") -> None:
        """Raise an error if the recorder is strict, and warn otherwise."""
        if self.strict:
            raise BadInput(text)
        self.warn(text, reason or text)

    @contextmanager
    def unless_strict(self, operation: str) -> Iterator[None]:
        """Turn an error of the block into a warning that names ``operation``, unless strict."""
        try:
            yield
        except Exception as error:
            if self.strict:
                raise
            self.warn(clean_text(f"{operation}: {error}"), str(error))
