"""Comparison of several audits in Python."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fedaudit.api.audit import Run
from fedaudit.core.display import conclusion, describe, repr_html
from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.files import record_at
from fedaudit.results.comparison import Comparison
from fedaudit.results.frames import frame_of
from fedaudit.results.read import read_record
from fedaudit.results.record import Record, flat_row
from fedaudit.study.comparing import compare_records

if TYPE_CHECKING:
    from fedaudit.results.estimate import Difference

Audited: TypeAlias = Run | Record | Path | str
"""A run, its record, or the path of a record or of its folder."""


class ComparedRuns:
    """Comparison of several audits; ``print`` and a notebook show the best trade-off.

    Attributes:
        records: Records of the audits, the baseline first.
        comparison: Estimates of all audits, and their differences from the baseline.

    Examples:
        >>> import fedaudit as fa
        >>> training = fa.Training(rounds=2)
        >>> plain = fa.Federation("digits", training=training)
        >>> defense = fa.defenses.DPSGD(clip=1.0, noise_multiplier=0.5)
        >>> noisy = fa.Federation("digits", training=training, defenses=[defense])
        >>> runs = [
        ...     fa.audit(federation, attacks=["loss-series"], out=f"runs/{name}")
        ...     for name, federation in [("plain", plain), ("noisy", noisy)]
        ... ]
        >>> len(fa.compare(*runs).records)
        2
    """

    def __init__(self, records: Sequence[Record]) -> None:
        """Compare records; see :func:`fedaudit.compare`."""
        self.records = list(records)
        self.comparison: Comparison = compare_records(self.records)

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return describe(self)

    def __str__(self) -> str:
        """Return the best trade-off and the compared audits, in 80 columns."""
        return conclusion(self)

    def to_frame(self) -> object:
        """Return all estimates as a pandas table, or as a list of rows without pandas.

        Returns:
            A row per audit, defense, attack and metric, with "value", its 95% limits "low" and
            "high", the difference "change" from the baseline with its limits, and the settings in
            which the audits differ.
        """
        rows = list(self._rows())
        names = dict.fromkeys(name for row in rows for name in row)
        return frame_of([{name: row.get(name) for name in names} for row in rows])

    def _rows(self) -> Iterator[dict[str, object]]:
        comparison = self.comparison
        for entry in comparison.entries:
            yield {
                **self._audit(entry.row),
                "clients": entry.part,
                "attack": entry.attack,
                "contrast": entry.contrast,
                "metric": entry.metric,
                "value": entry.value,
                "low": entry.low,
                "high": entry.high,
                "above_chance": entry.above,
                **_change(entry.change),
            }
        for figure in comparison.figures:
            estimate = flat_row(figure.figure)
            shared = ("attack", "metric", "value", "low", "high")
            yield {
                **self._audit(figure.row),
                "clients": "inside",
                "contrast": None,
                **{name: estimate[name] for name in shared},
                "above_chance": None,
                **_change(figure.change),
            }

    def _audit(self, index: int) -> dict[str, object]:
        row = self.comparison.rows[index]
        name = self.comparison.sources[row.source].name
        return {"audit": name, "defense": row.defense, **row.settings}

    def save_page(self, path: Path | str) -> Path:
        """Write the comparison as one HTML file, and return its path.

        Args:
            path: Path of the file, which must end in .html.

        Raises:
            BadInput: The path has another suffix, or cannot be written.
        """
        from fedaudit.report.page import write_comparison

        write_comparison(self.comparison, self.records, Path(path))
        return Path(path)


def _change(change: "Difference | None") -> Mapping[str, object]:
    value = (None, None, None) if change is None else (change.value, change.low, change.high)
    return dict(zip(("change", "change_low", "change_high"), value, strict=True))


def record_of(audited: object) -> Record:
    """Return the record of a run, of a path, or the record itself.

    Raises:
        BadInput: The argument is something else, or there is no record at the path.
    """
    if isinstance(audited, Run):
        return audited.record
    if isinstance(audited, str | Path):
        return read_record(record_at(Path(audited)))
    if isinstance(audited, Record):
        return audited
    raise BadInput(
        f"give a fedaudit.Run, its record, or the folder of an audit; got {type_of(audited)}"
    )


def compare(*audited: Audited) -> ComparedRuns:
    """Compare audits: what a defense gains, for which clients, and at what cost.

    Args:
        audited: Two or more audits, the baseline first: runs, records, or their folders.

    Raises:
        BadInput: There are fewer than two audits, or they cannot be compared.

    Examples:
        >>> import fedaudit as fa
        >>> training = fa.Training(rounds=2)
        >>> federation = fa.Federation("digits", training=training)
        >>> defense = fa.defenses.DPSGD(clip=1.0, noise_multiplier=0.5)
        >>> noisy = fa.Federation("digits", training=training, defenses=[defense])
        >>> first = fa.audit(federation, attacks=["loss-series"], out="runs/plain")
        >>> second = fa.audit(noisy, attacks=["loss-series"], out="runs/noisy")
        >>> compared = fa.compare(first, second)
        >>> len(compared.comparison.rows)
        2
    """
    return ComparedRuns([record_of(item) for item in audited])
