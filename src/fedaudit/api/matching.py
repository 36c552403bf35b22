"""Search for audited samples by their content: of a sample in question, and in other runs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged, format_option
from fedaudit.core.files import RECORD_FILE
from fedaudit.core.values import Samples
from fedaudit.datasets.arrays import scale_columns, scale_images
from fedaudit.datasets.catalog import stored_table
from fedaudit.datasets.dataset import Dataset, number_rows
from fedaudit.datasets.formats.single import SingleSample
from fedaudit.datasets.tables.table import StoredTable, rows_by_id, rows_with
from fedaudit.plan.games import any_study_from
from fedaudit.plan.named import task_of
from fedaudit.plan.sections import Study
from fedaudit.results.older import resolve_older_settings
from fedaudit.results.record import Record
from fedaudit.study.build import dataset_of

_SCALING_OPTION = "standardise"
"""Option of data sets that can be read without scaling the features."""


class AuditedSamples(NamedTuple):
    """All samples of the audited units of one run.

    Attributes:
        forms: Features as the model's input, and without scaling if the data set can be read
            without scaling.
        labels: Class of each sample.
        units: Unit of each sample: its id, or the number of its person.
        scaling: Description of the scaling of the data set.
        ids: Id of each sample in the data set.
    """

    forms: Sequence[Shaped[Tensor, "samples ..."]]
    labels: Int[Tensor, " samples"]
    units: Int[ndarray, " samples"]
    scaling: str
    ids: Int[ndarray, " samples"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample of the model's input."""
        return tuple(self.forms[0].shape[1:])


def audited_samples(
    record: Record, seed: int, units: Int[ndarray, " units"], data_dir: Path | None
) -> AuditedSamples:
    """Read the data set of a study, and return the samples of some units in one of its runs.

    Args:
        record: Record of the study.
        seed: Seed of the run.
        units: Ids of samples, or numbers of people.
        data_dir: Folder of data sets.

    Raises:
        FedauditError: The data set cannot be read, or has other samples.
    """
    study = _study_of(record)
    data = [_dataset(study, seed, data_dir)]
    unscaled = {**study.data.options, _SCALING_OPTION: False}
    section = study.data.model_copy(update={"options": unscaled})
    # Custom sources and some data sets have no such option.
    with suppress(BadInput):
        data.append(_dataset(study.model_copy(update={"data": section}), seed, data_dir))
    first = data[0]
    if record.unit == "person":
        if first.person is None:
            raise BadInput(
                f"the data set {first.name!r} names no people; use the data set of the audit"
            )
        ids = np.flatnonzero(np.isin(first.person.numpy(), units))
        unit_of_sample = first.person.numpy()[ids]
    else:
        ids = unit_of_sample = units
    if len(ids) and int(ids.max()) >= len(first):
        raise Damaged(
            f"the data set {first.name!r} has {len(first)} samples, but the result audited sample "
            f"{int(ids.max())}; use the data set of the audit"
        )
    samples = [dataset.samples(torch.from_numpy(ids)) for dataset in data]
    return AuditedSamples(
        [part.features for part in samples],
        samples[0].labels,
        unit_of_sample,
        first.normalisation,
        ids,
    )


def _study_of(record: Record) -> Study:
    study = any_study_from(resolve_older_settings(record.config), source=RECORD_FILE)
    if not isinstance(study, Study):
        raise BadInput("security games audit no samples; give the result of an audit")
    return study


def audited_table(record: Record, data_dir: Path | None) -> StoredTable:
    """Read the table of a study.

    Raises:
        FedauditError: The data are no table, or cannot be read.
    """
    if record.watched:
        raise BadInput(
            "the result is of a recording, whose samples have no lines or columns; ask by "
            f"{format_option('row')}, or by {format_option('sample')} with the features"
        )
    data = _study_of(record).data
    if data.classes or data.first_class:
        raise BadInput(
            "the audit used only some classes of the table, so that its rows have other numbers; "
            f"ask by {format_option('row')}"
        )
    return stored_table(data.name, data_dir=data_dir, options=data.options)


def rows_in_question(
    stored: StoredTable, line: int | None, cells: Mapping[str, object] | None
) -> Bool[ndarray, " rows"]:
    """Return a mask of the table's rows in a line of its file, or with the values in ``cells``.

    Raises:
        BadInput: There is no such row, or the table is not a file with lines.
    """
    table = stored.table
    if line is None:
        assert cells is not None
        has_values = rows_with(stored, cells)
        if not has_values.any():
            raise BadInput(
                f"no row of {table.name!r} has these values; give them as in the table, and an "
                "empty value for a missing one"
            )
        return has_values
    if table.lines is None:
        raise BadInput(
            f"{table.name!r} has no lines of text; give {format_option('sample')} with the values "
            "of the row instead"
        )
    is_line: Bool[ndarray, " rows"] = table.lines == line
    if not is_line.any():
        first, last = int(table.lines[0]), int(table.lines[-1])
        raise BadInput(
            f"line {line} of {table.name!r} has no row; rows are in lines {first} to {last}, and "
            "the header is above them"
        )
    return is_line


def unit_of_row(
    stored: StoredTable, in_question: Bool[ndarray, " rows"], audited: AuditedSamples, seed: int
) -> int | None:
    """Return the unit of the rows in question in a run; None if the run did not audit it.

    Raises:
        BadInput: Several audited units have such a row.
    """
    is_match = in_question[rows_by_id(stored, seed)[audited.ids]]
    units = np.unique(audited.units[is_match]).tolist()
    if len(units) > 1:
        raise BadInput(
            f"{len(units)} audited samples have these values, the first in "
            f"{stored.table.first(in_question)}; give further columns, or {format_option('line')}"
        )
    return int(units[0]) if units else None


def _dataset(study: Study, seed: int, data_dir: Path | None) -> Dataset:
    return dataset_of(study.data, task_of(study.task), seed, data_dir)


def unit_of(sample: SingleSample, audited: AuditedSamples) -> int:
    """Return the unit of the audited sample with the same features.

    Raises:
        BadInput: There is no such sample, several units have the same content, or the audited
            sample has another label.
    """
    if sample.features is None:
        raise BadInput(
            f"the sample has the columns {', '.join(sample.cells or ())[:200]}, and audited "
            f"samples have features of the shape {audited.shape}; give the features as numbers, or "
            f"ask by {format_option('row')}"
        )
    is_same = np.zeros(len(audited.units), dtype=bool)
    for features in audited.forms:
        for candidate in _forms_of(sample.features, tuple(features.shape[1:])):
            is_same |= _equal_rows(candidate, features)
    units = np.unique(audited.units[is_same]).tolist()
    if not units:
        raise BadInput(
            f"no audited sample has these features (shape {tuple(sample.features.shape)}; audited "
            f"samples have the shape {audited.shape}, {audited.scaling or 'as given'}); audit it: "
            "pass it among the audited samples, train and attack again"
        )
    if len(units) > 1:
        raise BadInput(
            f"{len(units)} audited samples have these features, such as {units[0]} and {units[1]}; "
            "ask about one of them by its row"
        )
    labels = sorted(set(audited.labels[torch.from_numpy(is_same)].tolist()))
    if sample.label is not None and sample.label not in labels:
        raise BadInput(
            f"the audited sample with these features has the label {labels[0]}, but the file has "
            f"{sample.label}; leave the label out, or audit the sample with that label"
        )
    return int(units[0])


def _forms_of(
    features: Shaped[ndarray, "..."], shape: tuple[int, ...]
) -> list[Shaped[Tensor, "..."]]:
    """Return the features in each form of this shape in which a data set could store them."""
    forms = [features, features[0]] if features.ndim and len(features) == 1 else [features]
    candidates = [scale_columns(form[None], form[None], standardise=False).train for form in forms]
    for form in forms:
        if form.dtype in (np.uint8, np.uint16) and form.ndim in (2, 3):
            pixels = form[None] if form.ndim == 3 else form[None, ..., None]
            candidates.append(scale_images(pixels, pixels, standardise=False).train)
    return [candidate[0] for candidate in candidates if tuple(candidate.shape[1:]) == shape]


def _equal_rows(
    candidate: Shaped[Tensor, "..."], features: Shaped[Tensor, "samples ..."]
) -> Bool[ndarray, " samples"]:
    row = candidate[None].to(features.dtype)
    # A candidate that the data type cannot represent, such as 0.5 for integers, equals no row.
    if not torch.equal(row.double(), candidate[None].double()):
        return np.zeros(len(features), dtype=bool)
    # number_rows gives equal rows the same number.
    numbers, (number,) = number_rows(_without_targets(features), _without_targets(row))
    equal: Bool[ndarray, " samples"] = numbers == number
    return equal


def _without_targets(features: Shaped[Tensor, "samples ..."]) -> Samples:
    return Samples(features, torch.zeros(len(features), dtype=torch.int64))


def same_units(unit: int, runs: Mapping[int, AuditedSamples]) -> dict[int, int]:
    """Return the unit with the same samples in each run that audited it, by seed.

    The same id may denote another sample in another run, since the seed decides which samples are
    held out. Two people are the same if all of their samples are equal.

    Args:
        unit: The unit in the first run.
        runs: Audited samples of each run, by seed; the first run comes first.
    """
    # Unscaled features are used, since the scaling depends on the run's training samples.
    samples = [_without_targets(audited_samples.forms[-1]) for audited_samples in runs.values()]
    if len({part.features.shape[1:] for part in samples}) > 1:
        return {next(iter(runs)): unit}
    # Equal rows get the same number in all runs.
    numbers = dict(zip(runs, number_rows(*samples), strict=True))
    first = next(iter(runs))
    content = set(numbers[first][runs[first].units == unit].tolist())
    units = {first: unit}
    for seed, audited_samples in list(runs.items())[1:]:
        shares_content = np.isin(numbers[seed], list(content))
        for other in np.unique(audited_samples.units[shares_content]).tolist():
            if set(numbers[seed][audited_samples.units == other].tolist()) == content:
                units[seed] = int(other)
                break
    return units
