"""Groups of clients that differ: by rotated or brighter images, or by an attribute of people."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor
from torch.nn import functional

from fedaudit.core.errors import BadInput, setting, unknown_name
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import ClientId, Samples, chunks
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Deal
from fedaudit.datasets.partitions.schemes import Counts, Partition, Quotas

Images: TypeAlias = Float[Tensor, "images channels height width"]
Amounts: TypeAlias = Float[Tensor, " images"]

_IMAGES_AT_ONCE = 2048


def rotated(images: Images, degrees: Amounts) -> Images:
    """Images turned counter-clockwise about their middle, with as much of them as fits.

    Args:
        images: Channels first; what is turned in from outside is like the edge.
        degrees: For each image.
    """
    angle = torch.deg2rad(degrees)
    cos, sin = angle.cos(), angle.sin()
    ratio = images.shape[2] / images.shape[3]
    none = torch.zeros_like(cos)
    # From places in the new image to places in the old one, both in units of half a side.
    rows = [torch.stack([cos, -sin * ratio, none], 1), torch.stack([sin / ratio, cos, none], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def brightened(images: Images, factors: Amounts) -> Images:
    """Images with every pixel times a factor, at most white.

    Args:
        images: Pixels in [0, 1].
        factors: For each image; below 1 is darker.

    Raises:
        BadInput: Pixels are not in [0, 1].
    """
    if float(images.min()) < 0 or float(images.max()) > 1:
        raise BadInput(
            "brightness is a factor of pixels in [0, 1], and these are standardised; set "
            f"{setting('data.options.standardise')} to false"
        )
    return (images * factors[:, None, None, None]).clamp(max=1.0)


ATTRIBUTE = "attribute"
"""Kind of shift that divides people by an attribute of the data set."""

SHIFTS: dict[str, Callable[[Images, Amounts], Images]] = {
    "rotation": rotated,
    "brightness": brightened,
}


@dataclass(frozen=True)
class Shift:
    """A minority of clients whose images differ from the majority's.

    Every client draws its own amount, uniformly from its group's range, and all its images
    have that one.

    Attributes:
        kind: "rotation" (degrees) or "brightness" (a factor).
        minority: Share of the clients in the minority, in (0, 1); they are the first ones.
        minority_range: Smallest and largest amount there.
        majority_range: The same of the majority.

    Raises:
        BadInput: No such kind, or numbers out of range.

    Source: IFCA-MIR, section 5.1 (rotation and brightness drawn for each client).
    """

    kind: str
    minority: float
    minority_range: tuple[float, float]
    majority_range: tuple[float, float]

    def __post_init__(self) -> None:
        if self.kind not in SHIFTS:
            raise unknown_name("shift", self.kind, SHIFTS)
        if not 0 < self.minority < 1:
            raise BadInput(f"the minority's share lies between 0 and 1, got {self.minority}")
        for low, high in (self.minority_range, self.majority_range):
            if not (np.isfinite([low, high]).all() and low <= high):
                raise BadInput(
                    f"a group's range is two finite numbers, the smaller first, got {low} and "
                    f"{high}; see shift.minority_range and shift.majority_range"
                )
            if self.kind == "brightness" and low < 0:
                raise BadInput(f"a factor of brightness is at least 0, got {low}")

    def amounts(self, group: Int[ndarray, " clients"], *, seed: int) -> Float[ndarray, " clients"]:
        """Each client's amount.

        Args:
            group: 0 for the majority, 1 for the minority.
            seed: Root seed.
        """
        ranges = [self.minority_range if one else self.majority_range for one in group]
        low, high = np.array(ranges, dtype=float).reshape(-1, 2).T
        drawn: Float[ndarray, " clients"] = seeded_numpy(seed, "shift").uniform(low, high)
        return drawn


def of_clients(clients: int, minority: float) -> Int[ndarray, " clients"]:
    """Each client's group: 1 for the minority, the first clients, at least one and not all.

    Args:
        clients: How many there are.
        minority: The minority's share of them.
    """
    size = min(max(round(minority * clients), 1), clients - 1)
    return (np.arange(clients) < size).astype(np.int64)


class Shifted(NamedTuple):
    """A data set and a deal after the clients' shifts.

    Attributes:
        dataset: Every sample shifted as the client is whose place it has.
        deal: The same deal, with the shifted samples.
    """

    dataset: Dataset
    deal: Deal


def places(
    dataset: Dataset, deal: Deal, targets: Sequence[ClientId], *, seed: int
) -> Int[ndarray, " samples"]:
    """For every sample of a data set, the client whose data it is like.

    Its owner, where it has one. Audited samples of nobody take the place of the targets in turn,
    so that no shift tells them from members; all others, the test part among them, that of all
    clients in turn.

    Args:
        dataset: The samples.
        deal: Who has which.
        targets: Clients under audit.
        seed: Root seed; decides who is whose turn.
    """
    clients, rng = np.array(sorted(deal.clients)), seeded_numpy(seed, "places")
    place = np.empty(len(dataset), dtype=np.int64)
    for part in (dataset.train.ids.numpy(), dataset.test.ids.numpy()):
        place[rng.permutation(part)] = np.resize(clients, len(part))
    place[deal.audit.samples.ids.numpy()] = np.resize(np.array(targets), len(deal.audit))
    for client, samples in deal.clients.items():
        place[samples.ids.numpy()] = client
    return place


def shifted(
    dataset: Dataset, deal: Deal, shift: Shift, place: Int[ndarray, " samples"], *, seed: int
) -> Shifted:
    """Shifts every sample as the client is whose place it has.

    Args:
        dataset: Images.
        deal: Who trains on what, and what is audited.
        shift: Of groups of clients.
        place: For every sample, a client.
        seed: Root seed.

    Raises:
        BadInput: Samples are no images, or cannot be shifted that way.
    """
    if dataset.train.features.ndim != 4:
        raise BadInput(
            f"the shift {shift.kind!r} is of images, and samples of {dataset.name!r} have shape "
            f"{tuple(dataset.train.features.shape[1:])}; use a data set of images"
        )
    amounts = shift.amounts(of_clients(len(deal.clients), shift.minority), seed=seed)
    amount = torch.from_numpy(amounts[place]).to(torch.float32)
    world = replace(
        dataset,
        train=_moved(dataset.train, shift, amount),
        test=_moved(dataset.test, shift, amount),
    )
    clients = {client: world.samples(samples.ids) for client, samples in deal.clients.items()}
    audit = replace(deal.audit, samples=world.samples(deal.audit.samples.ids))
    return Shifted(world, replace(deal, clients=clients, audit=audit))


def _moved(samples: Samples, shift: Shift, amount: Float[Tensor, " all"]) -> Samples:
    move, features = SHIFTS[shift.kind], torch.empty_like(samples.features)
    for part in chunks(len(samples), _IMAGES_AT_ONCE):
        features[part] = move(samples.features[part], amount[samples.ids[part]])
    return replace(samples, features=features)


class AttributeSplit(NamedTuple):
    """Samples with one value of an attribute, and all others.

    Attributes:
        minority: Which samples of the data set, by id, have the minority's value.
        value: That value.
    """

    minority: Bool[Tensor, " samples"]
    value: str


@dataclass(frozen=True)
class BySide:
    """Deals each side's samples to that side's clients, by a scheme of its own.

    Classes are counted side by side: first those of the majority, then those of the minority.

    Attributes:
        scheme: How samples of one side are dealt to its clients.
        group: For each client, 0 for the majority, 1 for the minority.
    """

    scheme: Partition
    group: tuple[int, ...]

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Number of samples of each class and side for each client."""
        found = np.zeros((clients, len(counts)), dtype=np.int64)
        for side, own in enumerate(np.split(np.arange(len(counts)), 2)):
            theirs = np.flatnonzero(np.array(self.group) == side)
            quotas = self.scheme.quotas(counts[own], len(theirs), rng=rng)
            found[np.ix_(theirs, own)] = quotas
        return found


def sides_of(dataset: Dataset, value: str = "") -> AttributeSplit:
    """The samples with one value of the data set's attribute.

    Args:
        dataset: With groups of samples.
        value: The minority's; the rarest of the training part if empty.

    Raises:
        BadInput: The data set has no groups, or no such value.
    """
    if dataset.group is None:
        raise BadInput(
            f"the data set {dataset.name!r} has no attribute that groups its samples; name one "
            f"with {setting('data.options.group')}, or use another shift"
        )
    names = dataset.group_names
    if value and value not in names:
        raise unknown_name("value of the attribute", value, names)
    counts = torch.bincount(dataset.group[: len(dataset.train)], minlength=len(names))
    number = names.index(value) if value else int(counts.argmin())
    if int(counts[number]) == 0 or int(counts[number]) == len(dataset.train):
        raise BadInput(
            f"{int(counts[number])} of the {len(dataset.train)} training samples have the value "
            f"{names[number]!r}; a minority needs some, and so do the others"
        )
    return AttributeSplit(dataset.group == number, names[number])


def dealt_by_side(dataset: Dataset, sides: AttributeSplit, deal: Callable[[Dataset], Deal]) -> Deal:
    """Deals a data set with a class for each pair of class and side, and names classes back.

    Args:
        dataset: The samples.
        sides: Of their attribute.
        deal: Deals a data set.
    """
    classes = dataset.classes
    apart = replace(
        dataset,
        train=_renamed(dataset.train, sides.minority, classes),
        test=_renamed(dataset.test, sides.minority, classes),
        classes=2 * classes,
    )
    found = deal(apart)
    clients = {client: _back(samples, classes) for client, samples in found.clients.items()}
    return Deal(clients, replace(found.audit, samples=_back(found.audit.samples, classes)))


def like_their_side(
    sides: AttributeSplit,
    group: Int[ndarray, " clients"],
    ids: Int[ndarray, " asked"],
    *,
    rng: np.random.Generator,
) -> Int[ndarray, " asked"]:
    """For samples that nobody has, a client of their side, in turn.

    Args:
        sides: Of all samples.
        group: For each client, 1 for the minority.
        ids: Of the samples.
        rng: Decides who is whose turn.
    """
    minority = sides.minority.numpy()[ids]
    place = np.empty(len(ids), dtype=np.int64)
    for side in (0, 1):
        mine = rng.permutation(np.flatnonzero(minority == side))
        place[mine] = np.resize(np.flatnonzero(group == side), len(mine))
    return place


def _renamed(samples: Samples, minority: Bool[Tensor, " all"], classes: int) -> Samples:
    return replace(samples, labels=samples.labels + classes * minority[samples.ids].long())


def _back(samples: Samples, classes: int) -> Samples:
    return replace(samples, labels=samples.labels % classes)
