"""Data sets from arrays in files or in memory: checks, scaling and splits."""

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from numpy import ndarray
from torch import Tensor

from fedaudit.core.arguments import ProperFraction, check_arguments
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.tasks import InputLayout
from fedaudit.core.values import Samples, chunks, positions_of, short_repr
from fedaudit.datasets.dataset import Dataset, number_samples, with_people

# Limits the memory of the histogram of pixels.
_PIXELS_AT_ONCE = 2**23


class ScaledFeatures(NamedTuple):
    """Scaled features of the training and the test part, and a description of the scaling."""

    train: Tensor
    test: Tensor
    description: str


class Moments(NamedTuple):
    """Mean and population standard deviation of each channel."""

    mean: Float[ndarray, " channels"]
    std: Float[ndarray, " channels"]


def pixel_moments(images: UInt8[ndarray, "samples height width channels"]) -> Moments:
    """Compute the exact mean and standard deviation of every channel of ``pixels / 255``."""
    channels = images.shape[-1]
    # A histogram is exact and needs no floating-point copy of the images.
    histogram = np.zeros((channels, 256), dtype=np.int64)
    for rows in chunks(len(images), max(1, _PIXELS_AT_ONCE // images[0].size)):
        for channel in range(channels):
            histogram[channel] += np.bincount(images[rows, :, :, channel].ravel(), minlength=256)
    levels = np.arange(256) / 255
    frequencies = histogram / histogram.sum(axis=1, keepdims=True)
    mean = frequencies @ levels
    variance = (frequencies * (levels - mean[:, None]) ** 2).sum(axis=1)
    return Moments(mean, np.sqrt(variance))


class PixelRange(NamedTuple):
    """Pixel values that are scaled to 0 (``low``) and to 1 (``high``)."""

    low: float
    high: float


def pixel_range(images: Shaped[ndarray, "samples height width channels"]) -> PixelRange:
    """Return the largest possible range of 8-bit or 16-bit pixels, or else the observed range."""
    if images.dtype.kind == "u" and images.dtype.itemsize <= 2:
        return PixelRange(0, float(np.iinfo(images.dtype).max))
    return PixelRange(float(images.min()), float(images.max()))


def scale_images(
    train: Shaped[ndarray, "samples height width channels"],
    test: Shaped[ndarray, "others height width channels"],
    *,
    standardise: bool = True,
) -> ScaledFeatures:
    """Return images as floating-point channels-first tensors, standardised per channel.

    Means, standard deviations and observed pixel ranges are those of the training images.
    """
    pixels = pixel_range(train)
    scaled_train, scaled_test = _channels_first(train, pixels), _channels_first(test, pixels)
    scaling = f"pixels / {pixels.high:g}"
    if train.dtype.kind != "u":
        scaling = f"pixels from {pixels.low:g} to {pixels.high:g} (training range) scaled to 0 to 1"
    if not standardise:
        return ScaledFeatures(scaled_train, scaled_test, scaling)
    mean, std = pixel_moments(train) if train.dtype == np.uint8 else _moments(scaled_train)
    # The standard deviation of a constant channel is 0, so divide by 1 instead.
    divisor = np.where(std > 0, std, 1.0)
    description = (
        f"{scaling}, minus the mean {_format(mean)}, divided by the standard deviation "
        f"{_format(divisor)} (of each channel of the training images)"
    )
    shift = torch.tensor(mean, dtype=torch.float32)[:, None, None]
    scale = torch.tensor(divisor, dtype=torch.float32)[:, None, None]
    return ScaledFeatures(
        scaled_train.sub_(shift).div_(scale), scaled_test.sub_(shift).div_(scale), description
    )


def _moments(images: Float[Tensor, "samples channels height width"]) -> Moments:
    """Compute the moments of images with values in [0, 1], one image at a time to save memory."""
    means = np.array([image.double().mean((1, 2)).numpy() for image in images])
    squares = np.array([image.double().square().mean((1, 2)).numpy() for image in images])
    mean = means.mean(0)
    # This formula is accurate enough, because values lie in [0, 1]: the error is about 1e-16.
    return Moments(mean, np.sqrt(np.maximum(squares.mean(0) - mean**2, 0)))


def scale_columns(
    train: Shaped[ndarray, "samples ..."],
    test: Shaped[ndarray, "others ..."],
    *,
    standardise: bool = True,
) -> ScaledFeatures:
    """Standardise features per column by the moments of the training rows.

    If all training values are 0 or 1, features are not changed.
    """
    is_binary = bool(((train == 0) | (train == 1)).all())
    if is_binary or not standardise:
        description = "0/1 features as stored" if is_binary else "as stored"
        return ScaledFeatures(_as_float(train), _as_float(test), description)
    mean = train.mean(axis=0, dtype=np.float64)
    std = train.std(axis=0, dtype=np.float64)
    # The standard deviation of a constant column is 0, so divide by 1 instead.
    divisor = np.where(std > 0, std, 1.0)
    description = "every feature minus its training mean, over its training standard deviation"
    scaled_train, scaled_test = (_as_float((part - mean) / divisor) for part in (train, test))
    return ScaledFeatures(scaled_train, scaled_test, description)


def _channels_first(
    images: Shaped[ndarray, "samples height width channels"], pixels: PixelRange
) -> Float[Tensor, "samples channels height width"]:
    if images.dtype == np.uint8:
        # Copy, because torch warns about the read-only arrays of a file.
        moved = np.array(np.moveaxis(images, -1, 1), order="C")
        return torch.from_numpy(moved).to(torch.float32).div_(255)
    count, height, width, channels = images.shape
    scaled = torch.empty(count, channels, height, width)
    span = (pixels.high - pixels.low) or 1.0
    for index, image in enumerate(images):
        scaled_image = (image.astype(np.float64) - pixels.low) / span
        scaled[index] = torch.from_numpy(np.moveaxis(scaled_image, -1, 0))
    return scaled


def _as_float(values: Shaped[ndarray, "samples ..."]) -> Float[Tensor, "samples ..."]:
    return torch.from_numpy(np.array(values, dtype=np.float32, order="C"))


def _format(values: Float[ndarray, " channels"]) -> str:
    return " ".join(f"{value:.4f}" for value in values)


MAX_VALUES = 2**32
"""Maximum number of feature values of a data set: 16 GiB as 32-bit floats."""

AnyArray: TypeAlias = Shaped[ndarray, "..."]


class Arrays(NamedTuple):
    """Unscaled features and targets of the training and the test part.

    Features are images of N x height x width (x 1 or 3) bytes, or one row of numbers per sample.
    Targets are the class of each sample, or numbers.
    """

    x_train: AnyArray
    y_train: AnyArray
    x_test: AnyArray
    y_test: AnyArray


class PartPositions(NamedTuple):
    """Positions of the samples of each part, in ascending order."""

    train: Int[ndarray, " train"]
    test: Int[ndarray, " test"]


def stratified_split(
    labels: Int[ndarray, " samples"], test_share: float, *, rng: np.random.Generator
) -> PartPositions:
    """Draw the same fraction of every class for testing, rounded to whole samples.

    Raises:
        BadInput: The fraction is out of range, or one of the parts would be empty.
    """
    if not 0 < test_share < 1:
        raise BadInput(f"test_share is {test_share}; give a share between 0 and 1, such as 0.2")
    is_test: Bool[ndarray, " samples"] = np.zeros(len(labels), dtype=bool)
    for positions in positions_of(labels).values():
        shuffled = rng.permutation(positions)
        is_test[shuffled[: round(test_share * len(shuffled))]] = True
    if not is_test.any() or is_test.all():
        raise BadInput(
            f"test_share {test_share} of {len(labels)} samples leaves a part empty; "
            "give more samples or another share"
        )
    return PartPositions(np.flatnonzero(~is_test), np.flatnonzero(is_test))


def are_numbers(targets: AnyArray) -> bool:
    """Return whether targets are numbers instead of classes: floats, or several per sample."""
    return targets.dtype.kind == "f" or (targets.ndim == 2 and targets.dtype.kind in "iub")


def stratification_labels(targets: AnyArray) -> Int[ndarray, " samples"]:
    """Return the classes for a stratified split; all are 0 if targets are numbers."""
    if are_numbers(targets):
        return np.zeros(len(targets), dtype=np.int64)
    return validate_labels("labels", targets)


class SplitArrays(NamedTuple):
    """Training and test part, with the positions of their samples before the split."""

    arrays: Arrays
    positions: PartPositions


def split_arrays(
    x: AnyArray,
    y: AnyArray,
    *,
    test_share: float,
    rng: np.random.Generator,
    groups: AnyArray | None = None,
) -> SplitArrays:
    """Split samples into a training and a test part; see :func:`stratified_split`.

    Both parts have the same fraction of every group, or of every class if groups are None.
    """
    _check_arrays("data", x, y)
    positions = stratified_split(
        stratification_labels(y if groups is None else groups), test_share, rng=rng
    )
    return SplitArrays(
        Arrays(x[positions.train], y[positions.train], x[positions.test], y[positions.test]),
        positions,
    )


def from_arrays(
    name: str,
    arrays: Arrays,
    *,
    standardise: bool = True,
    first_label: int = 0,
    tokenizer: str = "",
    are_images: bool = False,
) -> Dataset:
    """Check and scale the samples in arrays, and return them as a data set.

    Bytes of three or four dimensions are images, which become channels-first tensors. Other arrays
    are tables of numbers, unless ``are_images`` is True.

    Args:
        name: Name of the data set.
        arrays: Arrays of both parts.
        standardise: Whether features are scaled to mean 0 and standard deviation 1 on the training
            part; tables of 0 and 1 stay unchanged.
        first_label: Label of the first class; 0 for most data sets, 1 for EMNIST letters.
        tokenizer: Name of the tokenizer if features are tokens, which stay integers; else empty.
        are_images: Whether features are images even if they are not bytes.

    Raises:
        BadInput: Shapes do not match, features are not finite numbers, labels are not integers or
            omit a class, or there are no samples or a single class.
    """
    for part, x, y in (
        ("training", arrays.x_train, arrays.y_train),
        ("test", arrays.x_test, arrays.y_test),
    ):
        _check_arrays(part, x, y)
    if arrays.x_train.shape[1:] != arrays.x_test.shape[1:]:
        raise BadInput(
            f"training features have shape {arrays.x_train.shape[1:]} per sample, but test "
            f"features have {arrays.x_test.shape[1:]}; give both parts the same shape"
        )
    if tokenizer:
        train = torch.from_numpy(arrays.x_train.astype(np.int32))
        test = torch.from_numpy(arrays.x_test.astype(np.int32))
        scaled = ScaledFeatures(train, test, f"tokens of {tokenizer}")
    else:
        scaled = _scale(name, arrays, standardise, are_images)
    if are_numbers(arrays.y_train) and are_numbers(arrays.y_test):
        targets = (_as_float(arrays.y_train), _as_float(arrays.y_test))
        return build_dataset(name, scaled, *targets, classes=1)
    y_train = validate_labels("training labels", arrays.y_train) - first_label
    y_test = validate_labels("test labels", arrays.y_test) - first_label
    classes = count_classes(y_train, y_test)
    targets = (torch.from_numpy(y_train), torch.from_numpy(y_test))
    return build_dataset(name, scaled, *targets, classes=classes)


def build_dataset(
    name: str,
    scaled: ScaledFeatures,
    y_train: Shaped[Tensor, "train ..."],
    y_test: Shaped[Tensor, "test ..."],
    *,
    classes: int,
    group: Int[Tensor, " samples"] | None = None,
    group_names: tuple[str, ...] = (),
    client: Int[Tensor, " samples"] | None = None,
    client_names: tuple[str, ...] = (),
    statement: tuple[str, ...] = (),
) -> Dataset:
    """Return a data set from scaled features and checked targets.

    Raises:
        BadInput: All training samples have the same features.
    """
    raise_if_identical_features(scaled.train, f"training samples of {name!r}")
    return Dataset(
        name,
        number_samples(scaled.train, y_train),
        number_samples(scaled.test, y_test, first=len(y_train)),
        classes,
        scaled.description,
        group,
        group_names,
        client=client,
        client_names=client_names,
        statement=statement,
    )


def raise_if_identical_features(features: Shaped[Tensor, "samples ..."], noun: str) -> None:
    """Raise if several samples all have the same features, such as images that became all white."""
    # The first two samples nearly always differ, so the comparison of all samples is rare.
    if len(features) < 2 or not torch.equal(features[0], features[1]):
        return
    if bool((features == features[:1]).all()):
        raise BadInput(
            f"all {len(features)} {noun} have the same features, so nothing can be learned from "
            "them; check how they are read and scaled"
        )


def validate_labels(subject: str, labels: AnyArray) -> Int[ndarray, " samples"]:
    """Return labels as 64-bit integers.

    Raises:
        BadInput: Labels are not one integer for each sample.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(
            f"{subject} must be one whole number for each sample, got shape {labels.shape} of type "
            f"{labels.dtype}; store class indices as integers, and targets of other tasks as "
            "floating-point numbers"
        )
    return labels.astype(np.int64)


def _check_arrays(part: str, x: AnyArray, y: AnyArray) -> None:
    if x.ndim < 2 or y.ndim < 1 or len(x) != len(y):
        raise BadInput(
            f"the {part} part needs one row of features per label, got features of shape "
            f"{x.shape} and labels of shape {y.shape}; check that they belong together"
        )
    if not x.size:
        raise BadInput(f"the {part} part is empty (features of shape {x.shape}); give samples")
    if x.size > MAX_VALUES:
        raise BadInput(
            f"the {part} part has {x.size} feature values, but at most {MAX_VALUES} are read; "
            "give fewer samples or smaller images"
        )
    if x.dtype.kind not in "uifb":
        raise BadInput(
            f"features of the {part} part have type {x.dtype}; give numbers (bytes for images)"
        )
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        n_invalid = int((~np.isfinite(x)).reshape(len(x), -1).any(axis=1).sum())
        raise BadInput(
            f"{n_invalid} of {len(x)} samples of the {part} part hold NaN or infinity; "
            "features must be finite, so drop or fill them"
        )
    largest = float(np.finfo(np.float32).max)
    if x.dtype.kind == "f" and x.dtype.itemsize > 4 and (np.abs(x) > largest).any():
        raise BadInput(
            f"features of the {part} part reach {np.abs(x).max():.3g}, and models compute in "
            f"32-bit numbers up to {largest:.3g}; scale the features"
        )


def count_classes(train: Int[ndarray, " train"], test: Int[ndarray, " test"]) -> int:
    """Return the number of classes, which are numbered from 0.

    Raises:
        BadInput: The training part lacks a class number, or a class of the test part.
    """
    training_classes = np.unique(train)
    classes = int(training_classes[-1]) + 1
    if training_classes[0] < 0 or len(training_classes) != classes:
        raise BadInput(
            f"training labels must use every class from 0 up, got {len(training_classes)} classes "
            "between "
            f"{training_classes[0]} and {training_classes[-1]}; renumber them, or set first_label "
            "if they count from 1; give targets that are not classes as floating-point numbers"
        )
    unknown = np.setdiff1d(test, training_classes)
    if len(unknown):
        raise BadInput(
            f"test label {unknown[0]} does not occur in the training part (classes 0 to "
            f"{classes - 1}); drop those samples or check the labels"
        )
    return classes


def _scale(name: str, arrays: Arrays, standardise: bool, are_images: bool) -> ScaledFeatures:
    x_train, x_test = arrays.x_train, arrays.x_test
    if are_images and x_train.dtype != x_test.dtype:
        raise BadInput(
            f"training pictures of {name!r} have values of type {x_train.dtype}, and test pictures "
            f"{x_test.dtype}; convert all pictures to one depth"
        )
    if not are_images and (x_train.dtype != np.uint8 or x_train.ndim == 2):
        return scale_columns(x_train, x_test, standardise=standardise)
    if x_train.ndim == 3:
        x_train, x_test = x_train[..., None], x_test[..., None]
    if x_train.ndim != 4 or x_train.shape[-1] not in (1, 3):
        raise BadInput(
            f"images must be N x height x width, with 1 or 3 channels last if any, got shape "
            f"{x_train.shape}; move the channels to the end"
        )
    return scale_images(x_train, x_test, standardise=standardise)


@short_repr
@dataclass(frozen=True, eq=False)
class InMemory:
    """Factory of a data set from arrays; see :func:`samples` for most attributes.

    Attributes:
        inputs: Layout of the features of a model with several named inputs.
        labels: Group of each sample, which partitions and audit draws use in place of the class if
            targets are not classes. It requires that ``x_test`` is None.
        subject: Person of each sample, with the samples of ``x_test`` last.
    """

    name: str
    x: AnyArray
    y: AnyArray
    x_test: AnyArray | None
    y_test: AnyArray | None
    test_share: float
    standardise: bool
    inputs: InputLayout | None = None
    labels: AnyArray | None = None
    subject: AnyArray | None = None

    def __call__(self, *, seed: int) -> Dataset:
        """Return the data set; the seed selects the test samples if there is no ``x_test``."""
        subject, labels = self.subject, self.labels
        if self.x_test is not None and self.y_test is not None:
            parts = Arrays(self.x, self.y, self.x_test, self.y_test)
        else:
            parts, positions = split_arrays(
                self.x,
                self.y,
                test_share=self.test_share,
                rng=seeded_numpy(seed, "split", self.name),
                groups=labels,
            )
            # Ids of the data set count through the training part and then the test part.
            order = np.concatenate(positions)
            subject = None if subject is None else subject[order]
            labels = None if labels is None else labels[order]
        dataset = from_arrays(self.name, parts, standardise=self.standardise)
        train = replace(dataset.train, inputs=self.inputs)
        test = replace(dataset.test, inputs=self.inputs)
        classes = dataset.classes
        if labels is not None:
            labels_train, labels_test = np.split(labels, [len(train)])
            classes = count_classes(labels_train, labels_test)
            train = train.replace(labels=torch.from_numpy(labels_train))
            test = test.replace(labels=torch.from_numpy(labels_test))
        dataset = replace(dataset, train=train, test=test, classes=classes)
        return dataset if subject is None else with_people(dataset, subject)


@check_arguments
def samples(
    x: object,
    y: object,
    x_test: object = None,
    y_test: object = None,
    *,
    name: str = "samples",
    test_share: ProperFraction = 0.2,
    standardise: bool = False,
    person: object = None,
    subject: object = None,
) -> InMemory:
    """Return a data set of arrays, tensors, tables or lists.

    Args:
        x: Features, one row per sample: numbers, or images as bytes, channels last; or a dictionary
            of a model's named inputs.
        y: Class of each sample, counted from 0; for other tasks the target.
        x_test: Features of the test part; without it, a part of ``x`` is drawn for each seed.
        y_test: Classes of the test part.
        name: Name of the data set, for the report.
        test_share: Fraction of each class that is drawn for testing, in (0, 1).
        standardise: Whether features are scaled to mean 0 and standard deviation 1 on the training
            part.
        person: Name or number of the person that each sample is from, for ``unit="person"``:
            people of ``x``, then people of ``x_test``.
        subject: Another name of ``person``.

    Raises:
        BadInput: Samples, labels and people differ in number, a test part has only features or only
            labels, or ``person`` and ``subject`` are given.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.samples([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], name="toy").name
        'toy'
    """
    train = Samples(x, y)
    if (x_test is None) != (y_test is None):
        raise BadInput("a test part has features and labels; give x_test and y_test, or neither")
    test = None if x_test is None else Samples(x_test, y_test)
    if person is not None and subject is not None:
        raise BadInput("person and subject are two names of one argument; give person only")
    person = subject if person is None else person
    people = None if person is None else _array_of(person)
    count = len(train) + (0 if test is None else len(test))
    if people is not None and people.shape != (count,):
        raise BadInput(
            f"there are {count} samples and people of shape {people.shape}; give person one name "
            "or number per sample: people of x, then people of x_test"
        )
    return InMemory(
        name,
        _array_of(train.features),
        _array_of(train.targets),
        None if test is None else _array_of(test.features),
        None if test is None else _array_of(test.targets),
        test_share,
        standardise,
        train.inputs,
        subject=people,
    )


def _array_of(values: object) -> AnyArray:
    """Convert a list, array or tensor to an array; the tensor may be on a GPU or have gradients."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    array: AnyArray = np.asarray(values)
    return array


def from_samples(source: Samples) -> InMemory:
    """Return a data set that draws its test part from the samples; see :func:`samples`."""
    dataset = samples(_array_of(source.features), _array_of(source.targets))
    # Labels that are not the targets are groups. By default they are zero: there are no groups.
    has_groups = source.labels is not source.targets and bool(source.labels.any())
    labels = np.asarray(source.labels) if has_groups else None
    return replace(dataset, inputs=source.inputs, labels=labels)
