"""Reports for people, made from records alone.

The room is a door as well: ``fedaudit.report(record, "page.html")`` writes a record's report.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedaudit.results.record import Record


class _Door(ModuleType):
    """A module that can be called, since a function of its name cannot stand beside it."""

    def __call__(self, record: "Record", path: Path | str) -> Path:
        """Writes the report of a record as one self-contained HTML file, and says where it is.

        Args:
            record: Of an audit, as ``run.record``.
            path: Where the file goes.

        Raises:
            BadInput: It is no record, or cannot be written there.
        """
        from fedaudit.core.errors import BadInput
        from fedaudit.report.page import write_report
        from fedaudit.results.record import Record

        if not isinstance(record, Record):
            raise BadInput(
                f"a report is of a record, got {repr(record)[:80]}; give "
                "`fedaudit.Run(folder).record`, or run `fedaudit report FOLDER` in a terminal"
            )

        write_report(record, Path(path))
        return Path(path)


sys.modules[__name__].__class__ = _Door
