"""Partitions of the training samples among clients.

Every scheme returns a table of quotas: the number of samples of each class for each client. The
samples themselves are then chosen by shuffling each class.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int, Num
from numpy import ndarray

from fedaudit.core.arguments import AboveZero, Count, Positive, dataclass
from fedaudit.core.errors import BadInput, format_setting
from fedaudit.core.naming import PartitionPart, changed_fields
from fedaudit.core.values import positions_of

Counts: TypeAlias = Int[ndarray, " classes"]
Quotas: TypeAlias = Int[ndarray, "clients classes"]

_MAX_DRAWS = 200
_MAX_QUOTAS = 20_000_000
"""Limit of ``clients * clients * classes``, the size of the table of quotas of ``natural``."""


@runtime_checkable
class Partition(Protocol):
    """Scheme that divides the samples of each class among clients."""

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Return the number of samples of each class (column) for each client (row).

        Args:
            counts: Number of available samples of each class, which is not exceeded.
            clients: Number of clients.
            rng: Random generator.
        """
        ...


@dataclass(frozen=True)
class PartitionScheme:
    """Number of clients, and the scheme by which training samples are divided among them.

    Attributes:
        clients: Number of clients, at least 1.
    """

    catalogue_name: ClassVar[str] = ""

    clients: Positive = 10

    def named_part(self) -> PartitionPart:
        """Return name and settings as in a study file, without settings at their defaults.

        Raises:
            BadInput: The object is an instance of the base class, which has no scheme.
        """
        if not self.catalogue_name:
            raise BadInput(
                f"{type(self).__name__} is a base class; construct one of its schemes, such as "
                "fedaudit.partitions.IID(10)"
            )
        settings = changed_fields(self)
        settings.pop("clients", None)
        return PartitionPart(self.catalogue_name, settings, self.clients)


@dataclass(frozen=True)
class IID(PartitionScheme):
    """Equal numbers of samples for all clients, drawn at random regardless of class.

    Attributes:
        samples_per_client: Samples of each client; 0 assigns all samples.

    Examples:
        >>> import fedaudit as fa
        >>> fa.partitions.IID(10, samples_per_client=300).clients
        10
    """

    catalogue_name: ClassVar[str] = "iid"
    _: KW_ONLY
    samples_per_client: Count = 0

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Return the number of samples of each class for each client."""
        counts = _assigned_counts(counts, clients, self.samples_per_client, rng)
        shuffled_labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
        parts = np.array_split(shuffled_labels, clients)
        return np.stack([np.bincount(part, minlength=len(counts)) for part in parts])


@dataclass(frozen=True)
class Dirichlet(PartitionScheme):
    """Random unequal fractions of each class; a smaller ``beta`` makes them more unequal.

    Without ``samples_per_client``, the fractions of a class that clients get are one Dirichlet
    draw. Every sample is assigned exactly once, and clients differ in size.

    With ``samples_per_client``, the label distribution of each client is a Dirichlet draw. If a
    class has too few samples, random clients get remaining samples of other classes instead.
    Clients therefore have equal size, but their label distributions are a little more similar than
    drawn.

    Attributes:
        beta: Concentration, above 0 and finite; 0.1 to 100 is usual. Published: 0.1, 1 and 10
            (FedMIA), 0.5, 1 and 10 (CoFedMID).
        minimum: Minimum number of samples of a client; the draw is repeated until every client has
            them. It has no effect if ``samples_per_client`` is set.
        samples_per_client: Samples of each client; 0 assigns all samples.

    Examples:
        >>> import fedaudit as fa
        >>> fa.partitions.Dirichlet(10, beta=0.5).beta
        0.5

    Source: Zhu et al. 2024 (FedMIA), section 4.3 (non-IID extent); Hu et al. 2024 (SIA), section
        4.3 (its alpha is our beta).
    """

    catalogue_name: ClassVar[str] = "dirichlet"
    _: KW_ONLY
    beta: AboveZero
    minimum: Count = 1
    samples_per_client: Count = 0

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Return the number of samples of each class for each client."""
        _assigned_counts(counts, clients, self.samples_per_client, rng)
        if self.samples_per_client:
            return self._equal_sizes(counts, clients, rng)
        return _with_minimum(
            lambda: self._shares(counts, clients, rng),
            self.minimum,
            f"beta={self.beta} and {clients} clients",
        )

    def _shares(self, counts: Counts, clients: int, rng: np.random.Generator) -> Quotas:
        shares = rng.dirichlet(np.full(clients, self.beta), size=len(counts))
        # Round cumulative shares, so that every sample of a class is assigned exactly once.
        ends = np.rint(shares.cumsum(axis=1) * counts[:, None]).astype(np.int64)
        quotas: Quotas = np.diff(ends, axis=1, prepend=0).T
        return quotas

    def _equal_sizes(self, counts: Counts, clients: int, rng: np.random.Generator) -> Quotas:
        distributions = rng.dirichlet(np.full(len(counts), self.beta), size=clients)
        demand = np.stack([apportion(self.samples_per_client, row) for row in distributions])
        quotas = limit_quotas(demand, counts, rng=rng)
        remaining = counts - quotas.sum(axis=0)
        for client in rng.permutation(clients):
            missing = self.samples_per_client - int(quotas[client].sum())
            extra = rng.multivariate_hypergeometric(remaining, missing)
            quotas[client] += extra
            remaining = remaining - extra
        return quotas


@dataclass(frozen=True)
class Shards(PartitionScheme):
    """A few equal shards for each client, cut from the samples sorted by class.

    Attributes:
        per_client: Shards of each client, at least 1; 2 gives most clients two classes.
        samples_per_client: Samples of each client; 0 assigns all samples.

    Examples:
        >>> import fedaudit as fa
        >>> fa.partitions.Shards(100, per_client=2).per_client
        2

    Source: McMahan et al. 2017, section 3 (the "pathological" partition).
    """

    catalogue_name: ClassVar[str] = "shards"
    _: KW_ONLY
    per_client: Positive = 2
    samples_per_client: Count = 0

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Return the number of samples of each class for each client."""
        shards = clients * self.per_client
        if shards > counts.sum():
            raise BadInput(
                f"{self.per_client} shards for each of {clients} clients cannot be cut from "
                f"{counts.sum()} samples; give between 1 and {counts.sum() // max(clients, 1)}"
            )
        counts = _assigned_counts(counts, clients, self.samples_per_client, rng)
        sizes = apportion(int(counts.sum()), np.ones(clients))
        shard_sizes = np.concatenate(
            [apportion(int(size), np.ones(self.per_client)) for size in sizes]
        )
        # Only the order of the shards is random.
        order = rng.permutation(shards)
        sorted_labels = np.repeat(np.arange(len(counts)), counts)
        parts = np.split(sorted_labels, shard_sizes[order].cumsum()[:-1])
        quotas: Quotas = np.zeros((clients, len(counts)), dtype=np.int64)
        for shard, part in zip(order, parts, strict=True):
            quotas[shard // self.per_client] += np.bincount(part, minlength=len(counts))
        return quotas


@dataclass(frozen=True)
class WholeClasses(PartitionScheme):
    """Whole classes for single clients, as if clients were books, authors or hospitals.

    Classes are assigned from large to small, each to the client with the fewest samples so far.
    The fair draw then gives some samples of an audited client's classes to other clients.

    Attributes:
        samples_per_client: Samples of each client, drawn from its classes; 0 assigns all samples.

    Examples:
        >>> import fedaudit as fa
        >>> fa.partitions.WholeClasses(5).samples_per_client
        0
    """

    catalogue_name: ClassVar[str] = "whole-classes"
    _: KW_ONLY
    samples_per_client: Count = 0

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Return the number of samples of each class for each client."""
        _assigned_counts(counts, clients, self.samples_per_client, rng)
        quotas: Quotas = np.zeros((clients, len(counts)), dtype=np.int64)
        # Shuffle before the stable sort, so that classes of equal size are in random order.
        order = rng.permutation(len(counts))
        for label in order[np.argsort(-counts[order], kind="stable")]:
            sizes = quotas.sum(axis=1)
            smallest = rng.choice(np.flatnonzero(sizes == sizes.min()))
            quotas[smallest, label] = counts[label]
        fewest, needed = int(quotas.sum(axis=1).min()), max(1, self.samples_per_client)
        if fewest < needed:
            raise BadInput(
                f"with {np.count_nonzero(counts)} whole classes for {clients} clients, one gets "
                f"{fewest} of the needed {needed} samples; give fewer clients or fewer samples"
            )
        return _sampled_quotas(quotas, self.samples_per_client, rng)


@dataclass(frozen=True)
class Natural(PartitionScheme):
    """The clients that the data name, such as hospitals, each with its samples.

    The fair draw moves some audited samples of a client to other clients, and holds some out.

    Attributes:
        samples_per_client: Samples of each client, drawn from the client's data; 0 assigns all.

    Examples:
        >>> import fedaudit as fa
        >>> fa.partitions.Natural(5).clients
        5
    """

    catalogue_name: ClassVar[str] = "natural"
    _: KW_ONLY
    samples_per_client: Count = 0

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Return quotas; ``counts`` lists all classes of client 0, then those of client 1, etc."""
        if clients * len(counts) > _MAX_QUOTAS:
            raise BadInput(
                f"{clients} clients with {len(counts) // clients} classes each are too many to "
                f"assign (at most {_MAX_QUOTAS:,} for clients squared times classes); merge clients"
            )
        by_client = counts.reshape(clients, -1)
        sizes = by_client.sum(axis=1)
        if sizes.min() < max(1, self.samples_per_client):
            raise BadInput(
                f"client {sizes.argmin()} has {sizes.min()} of the needed "
                f"{max(1, self.samples_per_client)} training samples; lower "
                f"{format_setting('partition.samples_per_client')}, or leave the client out of the "
                "data"
            )
        quotas: Quotas = np.zeros((clients, clients, by_client.shape[1]), dtype=np.int64)
        # A client gets samples of its own classes only, which are on the diagonal.
        diagonal = np.arange(clients)
        quotas[diagonal, diagonal] = _sampled_quotas(by_client, self.samples_per_client, rng)
        return quotas.reshape(clients, -1)


@dataclass(frozen=True)
class SIAClass0Size(PartitionScheme):
    """Split of SIA's published code, for comparison only: it drops most samples.

    Attributes:
        beta: Concentration of the Dirichlet draw, above 0.
        minimum: Minimum number of samples of a client; the published code has no such limit.

    Examples:
        >>> import fedaudit as fa
        >>> fa.partitions.SIAClass0Size(10, beta=1.0).minimum
        1

    Source: Hu et al. 2024 (SIA), published code (its alpha is our beta).
    Differs: On purpose, the split is not exact: every class is assigned as if it were as large as
    class 0, to clients in order until the class runs out. The published code draws its shuffle and
    its shares from two global generators.
    """

    catalogue_name: ClassVar[str] = "sia_class0_size"
    _: KW_ONLY
    beta: AboveZero
    minimum: Count = 1

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Return the number of samples of each class for each client."""
        _assigned_counts(counts, clients, 0, rng)

        def draw() -> Quotas:
            shares = rng.dirichlet(np.full(clients, self.beta), size=len(counts))
            ends = np.rint(shares * counts[0]).astype(np.int64).cumsum(axis=1)
            quotas: Quotas = np.diff(np.minimum(ends, counts[:, None]), axis=1, prepend=0).T
            return quotas

        return _with_minimum(draw, self.minimum, f"beta={self.beta} and {clients} clients")


PARTITIONS: dict[str, Callable[..., Partition]] = {
    scheme.catalogue_name: scheme
    for scheme in (IID, Dirichlet, Shards, WholeClasses, Natural, SIAClass0Size)
}


def assign_samples(
    labels: Int[ndarray, " samples"], quotas: Quotas, *, rng: np.random.Generator
) -> list[Int[ndarray, " _"]]:
    """Return the positions of each client's samples, in random order; no two clients share one."""
    pools = shuffled_classes(labels, quotas.shape[1], rng)
    by_class = [
        # The last piece contains the samples of the class that no client gets.
        np.split(pool, quota.cumsum())[:-1]
        for pool, quota in zip(pools, quotas.T, strict=True)
    ]
    by_client = zip(*by_class, strict=True)
    return [rng.permutation(np.concatenate(positions)) for positions in by_client]


def shuffled_classes(
    labels: Int[ndarray, " samples"], classes: int, rng: np.random.Generator
) -> list[Int[ndarray, " _"]]:
    """Return the positions of the samples of each class, in random order."""
    positions, empty = positions_of(labels), np.zeros(0, dtype=np.int64)
    return [rng.permutation(positions.get(label, empty)) for label in range(classes)]


def apportion(total: int, shares: Num[ndarray, " classes"]) -> Counts:
    """Divide a whole number in proportion to shares; the largest remainders are rounded up.

    If all shares are zero, it is divided evenly.
    """
    weights = shares.astype(np.float64)
    weights = weights if weights.sum() > 0 else np.ones(len(weights))
    exact = total * weights / weights.sum()
    counts: Counts = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    # A stable order decides ties, so that the result does not depend on the sorting method.
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts


def limit_quotas(demand: Quotas, available: Counts, *, rng: np.random.Generator) -> Quotas:
    """Reduce the demand for each class to the available samples, at random among the clients."""
    limited_demand = demand.copy()
    for label in np.flatnonzero(demand.sum(axis=0) > available):
        limited_demand[:, label] = rng.multivariate_hypergeometric(
            demand[:, label], int(available[label])
        )
    return limited_demand


def _assigned_counts(
    counts: Counts, clients: int, per_client: int, rng: np.random.Generator
) -> Counts:
    """Return class counts of the samples that are assigned; raise if there are too few samples."""
    total = int(counts.sum())
    if clients < 1 or clients > total:
        raise BadInput(
            f"{clients} clients cannot share {total} samples; give between 1 and {total} clients"
        )
    if per_client < 0 or clients * per_client > total:
        raise BadInput(
            f"{clients} clients with {per_client} samples each need {clients * per_client}, but "
            f"there are {total} ({clients * per_client - total} short); give at most "
            f"{total // clients} samples per client, or 0 to assign everything"
        )
    if not per_client:
        return counts
    drawn_counts: Counts = rng.multivariate_hypergeometric(counts, clients * per_client)
    return drawn_counts


def _with_minimum(draw: Callable[[], Quotas], minimum: int, settings: str) -> Quotas:
    """Repeat a draw until every client has the minimum number of samples."""
    for _ in range(_MAX_DRAWS):
        quotas = draw()
        if quotas.sum(axis=1).min() >= minimum:
            return quotas
    raise BadInput(
        f"with {settings}, none of {_MAX_DRAWS} draws gave every client {minimum} samples; "
        "raise beta, lower minimum, or use fewer clients"
    )


def _sampled_quotas(quotas: Quotas, samples_per_client: int, rng: np.random.Generator) -> Quotas:
    """Draw each client's samples from its quotas at random; 0 keeps all."""
    if not samples_per_client:
        return quotas
    drawn_counts = [rng.multivariate_hypergeometric(row, samples_per_client) for row in quotas]
    return np.stack(drawn_counts)
