"""Groups of clients whose data differ: in image rotation or brightness, or in an attribute."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor
from torch.nn import functional

from fedaudit.core.errors import BadInput, format_setting, unknown_name
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import Samples, chunks
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Assignment
from fedaudit.datasets.partitions.schemes import Counts, Partition, Quotas

Images: TypeAlias = Float[Tensor, "images channels height width"]
Amounts: TypeAlias = Float[Tensor, " images"]

_IMAGES_AT_ONCE = 2048


def rotate(images: Images, degrees: Amounts) -> Images:
    """Return images rotated counter-clockwise about their centre, cropped to their size.

    Areas from outside an image repeat its edge.
    """
    angle = torch.deg2rad(degrees)
    cos, sin = angle.cos(), angle.sin()
    ratio = images.shape[2] / images.shape[3]
    zero = torch.zeros_like(cos)
    # affine_grid maps positions in the new image to positions in the old one. Both range from -1 to
    # 1 along each axis. In images that are not square, the ratio of height to width corrects this,
    # so that angles are preserved.
    rows = [torch.stack([cos, -sin * ratio, zero], 1), torch.stack([sin / ratio, cos, zero], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def brighten(images: Images, factors: Amounts) -> Images:
    """Return images with every pixel multiplied by a factor and clamped to 1 (white).

    Raises:
        BadInput: Pixels are not in [0, 1].
    """
    if float(images.min()) < 0 or float(images.max()) > 1:
        raise BadInput(
            "brightness is a factor of pixels in [0, 1], but these are standardised; set "
            f"{format_setting('data.options.standardise')} to false"
        )
    return (images * factors[:, None, None, None]).clamp(max=1.0)


ATTRIBUTE = "attribute"
"""Kind of shift that groups samples, and their clients, by an attribute of the data set."""

SHIFTS: dict[str, Callable[[Images, Amounts], Images]] = {
    "rotation": rotate,
    "brightness": brighten,
}
SHIFT_KINDS = (*SHIFTS, ATTRIBUTE)


@dataclass(frozen=True)
class Shift:
    """Shift of images that differs between a minority of clients and the majority.

    For every client, an angle or a factor, its amount, is drawn uniformly from the range of its
    group. It applies to all images of the client.

    Attributes:
        kind: "rotation" (amounts are degrees) or "brightness" (amounts are factors).
        minority: Fraction of the clients in the minority, in (0, 1); the first clients are in it.
        minority_range: Smallest and largest amount of the minority.
        majority_range: Smallest and largest amount of the majority.

    Raises:
        BadInput: The kind does not exist, or numbers are out of range.

    Source: Jung et al. 2025 (IFCA-MIR), section 5.1 (rotation and brightness drawn for each
        client).
    """

    kind: str
    minority: float
    minority_range: tuple[float, float]
    majority_range: tuple[float, float]

    def __post_init__(self) -> None:
        if self.kind not in SHIFTS:
            raise unknown_name("shift", self.kind, SHIFTS)
        if not 0 < self.minority < 1:
            raise BadInput(f"shift.minority is {self.minority}; give a share between 0 and 1")
        for low, high in (self.minority_range, self.majority_range):
            if not (np.isfinite([low, high]).all() and low <= high):
                raise BadInput(
                    f"a group's range is {low} and {high}; give two finite numbers, the smaller "
                    "first, as shift.minority_range and shift.majority_range"
                )
            if self.kind == "brightness" and low < 0:
                raise BadInput(f"a factor of brightness is {low}; give at least 0")

    def amounts(self, group: Int[ndarray, " clients"], *, seed: int) -> Float[ndarray, " clients"]:
        """Draw each client's amount; ``group`` is 0 for the majority and 1 for the minority."""
        low, high = np.array([self.majority_range, self.minority_range], dtype=float)[group].T
        amounts: Float[ndarray, " clients"] = seeded_numpy(seed, "shift").uniform(low, high)
        return amounts


def minority_groups(clients: int, minority_share: float) -> Int[ndarray, " clients"]:
    """Return each client's group: 1 for the minority, the first clients, and 0 for the majority.

    Both groups have at least one client.
    """
    size = min(max(round(minority_share * clients), 1), clients - 1)
    return (np.arange(clients) < size).astype(np.int64)


class Shifted(NamedTuple):
    """Data set and assignment after samples were shifted."""

    dataset: Dataset
    assignment: Assignment


def apply_shift(
    dataset: Dataset,
    assignment: Assignment,
    shift: Shift,
    client: Int[ndarray, " samples"],
    *,
    seed: int,
) -> Shifted:
    """Apply to every sample the shift of its client.

    ``client`` contains the client of each sample by id, as ``similar_clients`` returns it.

    Raises:
        BadInput: Samples are not images, or brightness would change standardised pixels.
    """
    if dataset.train.features.ndim != 4:
        raise BadInput(
            f"the shift {shift.kind!r} applies to images, but samples of {dataset.name!r} have "
            f"shape {tuple(dataset.train.features.shape[1:])}; use a data set of images"
        )
    amounts = shift.amounts(minority_groups(len(assignment.clients), shift.minority), seed=seed)
    amount = torch.from_numpy(amounts[client]).to(torch.float32)
    result = replace(
        dataset,
        train=_shift_samples(dataset.train, shift, amount),
        test=_shift_samples(dataset.test, shift, amount),
    )
    clients = {
        client: result.samples(samples.ids) for client, samples in assignment.clients.items()
    }
    audit = replace(assignment.audit, samples=result.samples(assignment.audit.samples.ids))
    return Shifted(result, replace(assignment, clients=clients, audit=audit))


def _shift_samples(samples: Samples, shift: Shift, amount: Float[Tensor, " all"]) -> Samples:
    apply = SHIFTS[shift.kind]
    features = torch.empty_like(samples.features)
    for rows in chunks(len(samples), _IMAGES_AT_ONCE):
        features[rows] = apply(samples.features[rows], amount[samples.ids[rows]])
    return replace(samples, features=features)


class AttributeSplit(NamedTuple):
    """Division of a data set into samples with one value of an attribute, and all others.

    Attributes:
        is_minority: Mask of the samples with the value, by id.
        value: The minority's value of the attribute.
    """

    is_minority: Bool[Tensor, " samples"]
    value: str


@dataclass(frozen=True)
class PartitionByAttribute:
    """Partition of the majority's samples among its clients, and likewise for the minority.

    ``counts`` has an entry for each class of the majority, followed by an entry for each class of
    the minority.

    Attributes:
        scheme: Partition of a group's samples among the clients of this group.
        group: For each client, 0 for the majority, 1 for the minority.
    """

    scheme: Partition
    group: tuple[int, ...]

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Return the number of samples of each group and class for each client."""
        quotas = np.zeros((clients, len(counts)), dtype=np.int64)
        for group, columns in enumerate(np.split(np.arange(len(counts)), 2)):
            group_clients = np.flatnonzero(np.array(self.group) == group)
            group_quotas = self.scheme.quotas(counts[columns], len(group_clients), rng=rng)
            quotas[np.ix_(group_clients, columns)] = group_quotas
        return quotas


def split_by_attribute(dataset: Dataset, value: str = "") -> AttributeSplit:
    """Return the samples with one value of the data set's attribute; the rarest value if empty.

    Raises:
        BadInput: The data set has no groups or no such value, or all training samples have it.
    """
    if dataset.group is None:
        raise BadInput(
            f"the data set {dataset.name!r} has no attribute that groups its samples; name one "
            f"with {format_setting('data.options.group')}, or use another shift"
        )
    names = dataset.group_names
    if value and value not in names:
        raise unknown_name("value of the attribute", value, names)
    counts = torch.bincount(dataset.group[: len(dataset.train)], minlength=len(names))
    number = names.index(value) if value else int(counts.argmin())
    if int(counts[number]) == 0 or int(counts[number]) == len(dataset.train):
        raise BadInput(
            f"{int(counts[number])} of the {len(dataset.train)} training samples have the value "
            f"{names[number]!r}; both the minority and the majority need samples, so name another "
            "value"
        )
    return AttributeSplit(dataset.group == number, names[number])


def draw_by_code(
    dataset: Dataset,
    code: Int[Tensor, " all"],
    codes: int,
    draw: Callable[[Dataset], Assignment],
) -> Assignment:
    """Draw an assignment that is stratified by code and class.

    Draws and partitions receive pairs of a code and a class in place of classes, so that they keep
    the proportions of every pair. The samples of the result have their ordinary classes again.

    Args:
        dataset: Data set to draw from.
        code: Code of each sample by id, such as its client or its group.
        codes: Number of codes.
        draw: Function that receives a data set whose classes are ``classes * code + class``.
    """
    classes = dataset.classes

    def split_classes(samples: Samples) -> Samples:
        return replace(samples, labels=samples.labels + classes * code[samples.ids])

    def merge_classes(samples: Samples) -> Samples:
        return replace(samples, labels=samples.labels % classes)

    train, test = split_classes(dataset.train), split_classes(dataset.test)
    assignment = draw(replace(dataset, train=train, test=test, classes=codes * classes))
    clients = {client: merge_classes(samples) for client, samples in assignment.clients.items()}
    audit = replace(assignment.audit, samples=merge_classes(assignment.audit.samples))
    return Assignment(clients, audit)


def assign_held_out(
    split: AttributeSplit,
    group: Int[ndarray, " clients"],
    ids: Int[ndarray, " held_out"],
    *,
    rng: np.random.Generator,
) -> Int[ndarray, " held_out"]:
    """Divide held-out samples equally among the clients of their group.

    ``group`` is 1 for clients of the minority, and ``ids`` are the held-out samples.
    """
    is_minority = split.is_minority.numpy()[ids]
    client = np.empty(len(ids), dtype=np.int64)
    for number in (0, 1):
        samples = rng.permutation(np.flatnonzero(is_minority == number))
        client[samples] = np.resize(np.flatnonzero(group == number), len(samples))
    return client
