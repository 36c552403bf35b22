"""Audits of federations that differ in some arguments, such as their defenses."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import TypeAlias

from fedaudit.api.audit import Run, audit
from fedaudit.api.comparing import ComparedRuns
from fedaudit.api.federation import AttacksLike, AuditOptions, Federation
from fedaudit.core.arguments import Count, dataclass
from fedaudit.core.display import repr_html
from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.plan.file import MAX_POINTS, file_name_of
from fedaudit.plan.sections import AuditSection as Audit
from fedaudit.plan.sections import FiguresSection as Figures
from fedaudit.results.frames import frame_of

Values: TypeAlias = Mapping[str, object] | Sequence[object]
"""Values of an argument by their labels, or values that are their own labels."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Federations that differ in some arguments, such as defenses or numbers of clients.

    Attributes:
        federation: Federation with the values of all other arguments.
        vary: For each argument of :class:`fedaudit.Federation` that varies, its values: a
            dictionary from labels to values, or a list of numbers or names. Every combination is a
            point of the grid; the first one is the baseline of comparisons.

    Raises:
        BadInput: An argument or its values are invalid, or there are more than 200 points.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation("digits", clients=4, training=fa.Training(rounds=2))
        >>> defenses = {"none": [], "noise": [fa.defenses.DPSGD(clip=1.0, noise_multiplier=0.5)]}
        >>> grid = fa.Grid(federation, {"defenses": defenses, "model": ["mlp", "cnn"]})
        >>> list(grid.federations())
        ['none,mlp', 'none,cnn', 'noise,mlp', 'noise,cnn']
    """

    federation: Federation
    vary: Mapping[str, Values]

    def __post_init__(self) -> None:
        arguments = [field.name for field in dataclasses.fields(Federation)]
        for name, values in self.vary.items():
            if name not in arguments:
                raise unknown_name("argument of Federation", name, arguments)
            if not isinstance(values, Mapping | list | tuple) or not values:
                raise BadInput(
                    f"vary[{name!r}] must be a dictionary from labels to values, or a list of "
                    f"values, with at least one; got {values!r}"
                )
        n_points = prod(len(values) for values in self.vary.values())
        if n_points > MAX_POINTS:
            raise BadInput(
                f"this grid has {n_points:,} points, but at most {MAX_POINTS} are allowed; vary "
                "fewer values"
            )
        self.federations()

    def _points(self) -> Iterator[dict[str, str]]:
        labels = (_labelled(values) for values in self.vary.values())
        for combination in product(*labels):
            yield dict(zip(self.vary, combination, strict=True))

    @staticmethod
    def _label(point: Mapping[str, str]) -> str:
        return ",".join(point.values())

    def federations(self) -> dict[str, Federation]:
        """Return the federation of each point by the point's label."""
        values = {name: _labelled(values) for name, values in self.vary.items()}
        return {
            self._label(point): dataclasses.replace(
                self.federation,
                **{name: values[name][label] for name, label in point.items()},  # type: ignore[arg-type]
            )
            for point in self._points()
        }

    def audit(
        self,
        out: Path | str,
        *,
        attacks: AttacksLike = (),
        targets: int | str | Sequence[int | str] | None = None,
        seeds: int | Sequence[int] = (1,),
        audit: Audit | None = None,
        figures: Figures | None = None,
        options: AuditOptions | None = None,
        workers: Count = 1,
        device: str = "cpu",
        progress: bool | None = None,
    ) -> "GridRuns":
        """Audit the federation of every point.

        An interrupted call resumes if it is repeated. Later calls may add seeds and attacks, which
        trains and computes only what is new.

        Args:
            out: Folder with a subfolder for each point.
            attacks: As for :func:`fedaudit.audit`, like all further arguments.
            targets: Clients under audit.
            seeds: Seeds of the runs.
            audit: Audited samples and view.
            figures: Settings of the evaluation.
            options: Less common settings.
            workers: Number of training processes.
            device: Device of training and signals.
            progress: Whether to show progress and notes; by default, progress is shown in a
                terminal and in a notebook.

        Raises:
            FedauditError: A setting or object cannot be used.
        """
        runs, points = dict[str, Run](), list(self._points())
        for point, (label, federation) in zip(points, self.federations().items(), strict=True):
            if progress:
                print(f"{label} (point {len(runs) + 1} of {len(points)})")
            runs[label] = _audit(
                federation,
                attacks=attacks,
                targets=targets,
                seeds=seeds,
                out=Path(out) / ",".join(map(file_name_of, point.values())),
                audit=audit,
                figures=figures,
                options=options,
                workers=workers,
                device=device,
                progress=progress,
            )
        return GridRuns(runs, dict(zip(runs, points, strict=True)))


_audit = audit  # the method has an argument with the function's name


def _labelled(values: Values) -> dict[str, object]:
    if isinstance(values, Mapping):
        return {str(label): value for label, value in values.items()}
    return {str(value): value for value in values}


class GridRuns(Mapping[str, Run]):
    """Audits of the points of a grid, by label.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
        >>> grid = fa.Grid(federation, {"clients": [4, 5]})
        >>> list(grid.audit("runs/sizes", attacks=["loss-series"]))
        ['4', '5']
    """

    def __init__(self, runs: Mapping[str, Run], points: Mapping[str, Mapping[str, str]]) -> None:
        """Store runs, and the label of each varied argument, by the label of the point."""
        self._runs, self._points = dict(runs), dict(points)

    def __getitem__(self, label: str) -> Run:
        if label not in self._runs:
            raise KeyError(f"there is no point {label!r}; points: {', '.join(self._runs)}")
        return self._runs[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return f"<fedaudit.GridRuns of {len(self)} audits: {', '.join(self._runs)}>"

    def to_frame(self) -> object:
        """Return all estimates as a pandas table, or as a list of rows without pandas.

        The first columns are the varied arguments. Means over seeds have no seed.
        """
        rows = [
            {**self._points[label], **row}
            for label, run in self._runs.items()
            for row in (*run.record.mean_rows(), *run.record.rows())
        ]
        return frame_of(rows)

    def compare(self) -> ComparedRuns:
        """Compare the audits; the first one is the baseline.

        Raises:
            BadInput: There is only one audit.
        """
        return ComparedRuns([run.record for run in self._runs.values()])
