"""Data sets ready for training, base classes of their sources, and detection of equal samples."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int, Shaped, UInt64
from numpy import ndarray
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import dataclass
from fedaudit.core.display import repr_html
from fedaudit.core.errors import BadInput, format_setting
from fedaudit.core.lazy import entry_name
from fedaudit.core.naming import DataPart, changed_fields
from fedaudit.core.next_token import without_masked
from fedaudit.core.tasks import OutputKind, Task
from fedaudit.core.values import Samples, chunks, short_repr


@short_repr
@arguments.dataclass(frozen=True)
class Dataset:
    """Samples in a training and a test part, with consecutive ids.

    Attributes:
        name: Name by which the data set was loaded.
        train: The training part; ids 0 to n - 1, in order.
        test: The test part; ids n to n + m - 1, in order.
        classes: Number of classes, or of groups if labels are groups. Labels are from 0 to
            ``classes - 1``.
        normalisation: Description of how stored features were scaled.
        group: Group of every sample (a protected attribute), indexed by sample id.
        group_names: Names of the group codes; empty without groups.
        person: Number of the person (patient, author, device) of every sample, indexed by sample
            id; None if unknown.
        client: Client that every sample is from, indexed by sample id, for the partition
            ``natural``; None if the data name no clients.
        client_names: Names of the clients; empty if the data name no clients.
        statement: Sentences that describe to the user what was read. They reveal no single sample.

    Raises:
        BadInput: Ids are out of order, a label is outside the classes, there is no class, the
            training part is empty, or groups, people or clients do not fit the samples.
    """

    name: str
    train: Samples
    test: Samples
    classes: int
    normalisation: str
    group: Int[Tensor, " samples"] | None = None
    group_names: tuple[str, ...] = ()
    person: Int[Tensor, " samples"] | None = None
    client: Int[Tensor, " samples"] | None = None
    client_names: tuple[str, ...] = ()
    statement: tuple[str, ...] = ()

    _repr_html_ = repr_html

    def __post_init__(self) -> None:
        self._check_ids()
        self._check_labels()
        self._check_codes("group", self.group, self.group_names)
        self._check_codes("client", self.client, self.client_names)
        self._check_subject()

    def __len__(self) -> int:
        return len(self.train) + len(self.test)

    def samples(self, ids: Int[Tensor, " chosen"]) -> Samples:
        """Return the samples with these ids, in the given order, from both parts.

        Raises:
            BadInput: The data set lacks one of the ids.
        """
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(self):
            raise BadInput(
                f"sample ids of {self.name!r} run from 0 to {len(self) - 1}, got "
                f"{int(ids.min())} to {int(ids.max())}; load the data set they were drawn from"
            )
        first_test = len(self.train)
        is_test = ids >= first_test
        # Ids of clients are nearly always training ids. Copying only once saves memory then.
        if not is_test.any():
            samples = self.train.take(ids)
        else:
            train, test = self.train.take(ids[~is_test]), self.test.take(ids[is_test] - first_test)
            order = torch.cat([(~is_test).nonzero(), is_test.nonzero()]).flatten().argsort()
            samples = Samples.concatenate(train, test).take(order)
        features = samples.features
        return samples.replace(
            features=features.float() if features.is_floating_point() else features, ids=ids
        )

    def _check_ids(self) -> None:
        if not len(self.train):
            raise BadInput(f"data set {self.name!r} has no training samples; give at least one")
        if not torch.equal(torch.cat([self.train.ids, self.test.ids]), torch.arange(len(self))):
            raise BadInput(
                f"sample ids of {self.name!r} must count from 0 through the training and then "
                "the test part; build it with fedaudit.datasets.samples"
            )
        train_shape = tuple(self.train.features.shape[1:])
        test_shape = tuple(self.test.features.shape[1:])
        if train_shape != test_shape:
            raise BadInput(
                f"training features of {self.name!r} have shape {train_shape} per sample, but test "
                f"features have {test_shape}; give both parts the same shape"
            )

    def _check_labels(self) -> None:
        if self.classes < 1:
            raise BadInput(f"data set {self.name!r} has {self.classes} classes; give at least one")
        labels = torch.cat([self.train.labels, self.test.labels])
        if int(labels.min()) < 0 or int(labels.max()) >= self.classes:
            raise BadInput(
                f"labels of {self.name!r} must lie in 0 to {self.classes - 1}, got "
                f"{int(labels.min())} to {int(labels.max())}; number the classes from 0"
            )

    def _check_codes(
        self, code_kind: str, codes: Int[Tensor, " samples"] | None, names: Sequence[str]
    ) -> None:
        if codes is None:
            return
        if len(codes) != len(self) or int(codes.min()) < 0 or int(codes.max()) >= len(names):
            raise BadInput(
                f"{self.name!r} has {len(self)} samples, {len(codes)} {code_kind} codes and "
                f"{len(names)} {code_kind} names; give one code for each sample, below the number "
                "of names"
            )

    def _check_subject(self) -> None:
        person = self.person
        if person is None:
            return
        if person.shape != (len(self),) or person.is_floating_point() or int(person.min()) < 0:
            raise BadInput(
                f"{self.name!r} has {len(self)} samples and people of shape "
                f"{tuple(person.shape)}; give the number of one person for each sample, from 0"
            )


def person_setting(person: str, subject: str) -> str:
    """Return the value of the setting ``person``, which may also be given as ``subject``.

    Raises:
        BadInput: Both are set.
    """
    if person and subject:
        raise BadInput(
            f"person ({person!r}) and subject ({subject!r}) are two names of one setting; give "
            "person only"
        )
    return person or subject


def with_people(dataset: Dataset, people: Shaped[ndarray, " samples"]) -> Dataset:
    """Add the person of each sample, by name or number and in the order of ids.

    Raises:
        BadInput: There is not one name or number per sample.
    """
    if people.dtype.kind == "O":
        missing = sum(person is None or person != person for person in people.flat)
        if missing:
            raise BadInput(
                f"the person of {missing} of {len(dataset)} samples of {dataset.name!r} is "
                "missing; name one for each sample"
            )
        # Columns of tables contain names as Python objects, which NumPy cannot sort.
        people = people.astype(str)
    if people.shape != (len(dataset),) or people.dtype.kind not in "iuUS":
        raise BadInput(
            f"{dataset.name!r} has {len(dataset)} samples and people of shape {people.shape} and "
            f"type {people.dtype}; give one name or whole number for each sample"
        )
    codes = np.unique(people, return_inverse=True)[1]
    return replace(dataset, person=torch.from_numpy(codes.astype(np.int64)))


def number_samples(
    features: Shaped[Tensor, "samples ..."],
    targets: Shaped[Tensor, "samples ..."],
    *,
    first: int = 0,
    labels: Int[Tensor, " samples"] | None = None,
) -> Samples:
    """Return samples with consecutive ids from ``first`` on."""
    return Samples(features, targets, torch.arange(first, first + len(targets)), labels)


def prepare_for_task(dataset: Dataset, task: Task) -> Dataset:
    """Convert targets to those of a task, and labels to classes if the task has classes.

    Raises:
        BadInput: Targets do not fit the task, or a classifier has a single class.
    """
    train, test = prepare_samples(dataset.train, task), prepare_samples(dataset.test, task)
    classes = dataset.classes
    if task.classes:
        classes = max(classes, *(int(part.labels.max()) + 1 for part in (train, test) if len(part)))
    if task.classes and classes < 2:
        raise BadInput(
            f"data set {dataset.name!r} has {classes} class; a classifier needs at least two, so "
            "check the labels"
        )
    return replace(dataset, train=train, test=test, classes=classes)


def prepare_samples(samples: Samples, task: Task) -> Samples:
    """Convert samples to features for a task's models and targets for its loss.

    Raises:
        BadInput: Targets or features do not fit the task, or targets are not finite.
    """
    if samples.inputs is None:
        converted = task.features(samples.features, samples.labels)
        samples = Samples(converted, samples.targets, samples.ids, samples.labels)
    features, raw_targets = samples.features, samples.targets
    if samples.inputs is not None:
        inputs = samples.inputs.unpack(features)
        features = next(iter(inputs.values()))
        if OutputKind.TOKENS in task.output_kinds:
            features = without_masked(task, inputs, features)
            raw_targets = without_masked(task, inputs, raw_targets)
    targets = task.targets(features, raw_targets)
    if targets.is_floating_point() and not bool(targets.isfinite().all()):
        n_invalid = int((~targets.reshape(len(targets), -1).isfinite()).any(1).sum())
        raise BadInput(
            f"{n_invalid} of {len(targets)} targets are infinite or not a number; remove these "
            "samples"
        )
    replaces_labels = task.classes and targets is not samples.targets
    return samples.replace(targets=targets, labels=targets if replaces_labels else samples.labels)


def select_classes(dataset: Dataset, selected: Sequence[int], *, first: int = 0) -> Dataset:
    """Return the samples of some classes, with new class numbers and unchanged features.

    Args:
        dataset: The data set with all its classes.
        selected: Classes to keep; all if empty.
        first: New number of the first class. Lower numbers are classes without samples in this data
            set, such as the classes of a public data set.

    Raises:
        BadInput: A class does not exist or is listed twice, or there is a single class.
    """
    if not selected and not first:
        return dataset
    selected = selected or range(dataset.classes)
    unknown = [label for label in selected if not 0 <= label < dataset.classes]
    if unknown or len(set(selected)) < len(selected):
        raise BadInput(
            f"{format_setting('data.classes')} is {list(selected)}; give classes of "
            f"{dataset.name!r}, whole numbers from 0 to {dataset.classes - 1}, each once"
        )
    if first + len(selected) < 2:
        raise BadInput(
            f"{format_setting('data.classes')} is {list(selected)}; give at least two classes, as "
            "a classifier needs them"
        )
    new_label = torch.full((dataset.classes,), -1)
    new_label[list(selected)] = torch.arange(first, first + len(selected))
    train = _relabel(dataset.train, new_label)
    test = _relabel(dataset.test, new_label, first_id=len(train))
    is_kept = new_label[torch.cat([dataset.train.labels, dataset.test.labels])] >= 0
    return with_parts(dataset, train, test, is_kept, classes=first + len(selected))


def with_parts(
    dataset: Dataset,
    train: Samples,
    test: Samples,
    selection: Shaped[Tensor, " chosen"],
    *,
    classes: int,
) -> Dataset:
    """Return a data set of chosen samples of ``dataset``, with their groups, people and clients.

    Args:
        dataset: Data set that contains the samples.
        train: Chosen training samples with consecutive ids.
        test: Chosen test samples with consecutive ids.
        selection: Ids of these samples in ``dataset``, or a mask.
        classes: Number of classes.
    """
    return replace(
        dataset,
        train=train,
        test=test,
        classes=classes,
        group=None if dataset.group is None else dataset.group[selection],
        person=None if dataset.person is None else dataset.person[selection],
        client=None if dataset.client is None else dataset.client[selection],
    )


def _relabel(samples: Samples, new_label: Tensor, *, first_id: int = 0) -> Samples:
    labels = new_label[samples.labels]
    is_kept = labels >= 0
    selected_samples = samples.take(is_kept)
    field = "targets" if samples.labels is samples.targets else "labels"
    ids = torch.arange(first_id, first_id + len(selected_samples))
    return selected_samples.replace(ids=ids, **{field: labels[is_kept]})


@dataclass(frozen=True)
class DataSource:
    """Base class of the data sets of the catalogue; the fields of a subclass are its settings.

    Attributes:
        catalogue_name: Name in the catalogue, which is the module's name.
    """

    catalogue_name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.catalogue_name = entry_name(cls.__module__)

    def named_part(self) -> DataPart:
        """Return name and settings as in a study file, without settings at their defaults."""
        return DataPart(self.catalogue_name, changed_fields(self))

    def read(self, seed: int) -> Dataset:
        """Return the data set.

        Args:
            seed: Seed of generated data, and of the split if no file defines it.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class DataFile(DataSource):
    """Base class of data sets in a file or folder.

    Attributes:
        path: Path of the file or folder, or its name in the data directory.
    """

    expected_layout: ClassVar[str]
    """Path that :meth:`find` searches for, for messages; NAME is a placeholder."""
    suffix: ClassVar[str] = ""
    """Suffix of the file, which users may omit."""

    path: Path | str

    @property
    def file(self) -> Path:
        """The path with its suffix.

        Raises:
            BadInput: There is no such file or folder.
        """
        path = self._path_with_suffix
        if _is_missing(path):
            relative = "" if path.is_absolute() else f", which is relative to {Path.cwd()}"
            raise BadInput(f"there is no file or folder {path}; check the path{relative}")
        return path

    @property
    def _path_with_suffix(self) -> Path:
        path = Path(self.path)
        return path if path.suffix == self.suffix else Path(f"{path}{self.suffix}")

    def named_part(self) -> DataPart:
        """Return name, settings and folder as in a study file."""
        settings = changed_fields(self)
        settings.pop("path")
        path = Path(self.path)
        name = path.name.removesuffix(self.suffix)
        exists = not (_is_missing(path) and _is_missing(self._path_with_suffix))
        is_path = exists or name != str(self.path)
        # Without a folder, the name is looked up in the data directory.
        folder = path.absolute().parent if is_path else None
        return DataPart(f"{self.catalogue_name}:{name}", settings, folder)

    @classmethod
    def find(cls, folder: Path, name: str) -> Path | None:
        """Return the file or folder of a data set in the data directory if it exists."""
        path = folder / f"{name}{cls.suffix}"
        return path if path.is_file() else None


def _is_missing(path: Path) -> bool:
    """Return True if there is no such file; False if it exists or its folder cannot be read."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # The reader of the format describes the fault.
        return False
    return False


# Limits the memory of products in the hash.
_WORDS_AT_ONCE = 2**22


def number_rows(*parts: Samples) -> list[Int[ndarray, " samples"]]:
    """Number the distinct samples of all parts together; equal samples share a number.

    Samples are grouped by a hash first. Only samples with equal hashes are compared, by all their
    bytes. The result is exact, and 100,000 images take seconds.
    """
    hashes = np.concatenate([_hashes(part) for part in parts])
    _, numbers, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    next_number = int(numbers.max(initial=-1)) + 1
    number_by_content: dict[bytes, int] = {}
    starts = np.cumsum([0, *map(len, parts)])
    for part, start in zip(parts, starts[:-1], strict=True):
        shares_hash = counts[numbers[start : start + len(part)]] > 1
        for row in np.flatnonzero(shares_hash):
            content = _content(part.features, int(row)) + b"|" + _content(part.targets, int(row))
            unused_number = next_number + len(number_by_content)
            numbers[start + row] = number_by_content.setdefault(content, unused_number)
    return np.split(numbers, starts[1:-1])


def rows_in_several_parts(rows: list[Int[ndarray, " samples"]]) -> Int[ndarray, " shared"]:
    """Return the numbers of :func:`number_rows` that occur in more than one part."""
    unique_by_part = [np.unique(part) for part in rows]
    numbers, counts = np.unique(np.concatenate(unique_by_part), return_counts=True)
    shared: Int[ndarray, " shared"] = numbers[counts > 1]
    return shared


def _hashes(samples: Samples) -> UInt64[ndarray, " samples"]:
    """Return the multilinear hash of each row, modulo 2**64."""
    hashes = np.zeros(len(samples), dtype=np.uint64)
    for index, tensor in enumerate((samples.features, samples.targets)):
        rows = _rows(tensor)
        width = rows.shape[1] * max(1, rows.itemsize // 4)
        # Odd factors: rows that differ in a single 32-bit word always have different hashes.
        factors = np.random.default_rng(index).integers(2**63, size=width, dtype=np.uint64) * 2 + 1
        for part in chunks(len(rows), max(1, _WORDS_AT_ONCE // max(1, width))):
            words = _words(rows[part]).astype(np.uint64)
            hashes[part] += (words * factors.astype(np.uint64)).sum(axis=1, dtype=np.uint64)
    return hashes


def _rows(tensor: Tensor) -> Shaped[ndarray, "samples values"]:
    # Not reshape(len(tensor), -1), which fails for a tensor without rows.
    return tensor.detach().cpu().reshape(len(tensor), prod(tensor.shape[1:])).numpy()


def _words(rows: Shaped[ndarray, "samples values"]) -> Shaped[ndarray, "samples words"]:
    if rows.dtype.itemsize < 4:
        return rows.astype(np.float32 if rows.dtype.kind == "f" else np.int32).view(np.uint32)
    # Adding 0 turns minus zero into zero. Both are equal, but their bytes differ.
    rows_without_negative_zero = rows + rows.dtype.type(0) if rows.dtype.kind == "f" else rows
    return np.ascontiguousarray(rows_without_negative_zero).view(np.uint32)


def _content(tensor: Tensor, row: int) -> bytes:
    return _words(_rows(tensor[row][None])).tobytes()
