"""Partitions of the training samples among clients.

Every scheme comes down to a table of quotas, how many samples of each class each client gets;
which samples they are is then a matter of shuffling each class.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int, Num
from numpy import ndarray

from fedaudit.core.arguments import AboveZero, Count, Positive, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.naming import Clients, changed_fields
from fedaudit.core.values import positions_of

Counts: TypeAlias = Int[ndarray, " classes"]
Quotas: TypeAlias = Int[ndarray, "clients classes"]

_REDRAWS = 200


@runtime_checkable
class Partition(Protocol):
    """A way to divide classes among clients."""

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Number of samples of each class for each client; never more than there are."""
        ...


@dataclass(frozen=True)
class PartitionScheme:
    """Clients, and the scheme by which training samples are divided among them.

    Attributes:
        clients: Number of clients, at least 1.
    """

    catalogue_name: ClassVar[str] = ""

    clients: Positive = 10

    def part(self) -> Clients:
        """Return name and settings as a study file has them, without settings at their defaults.

        Raises:
            BadInput: The object is of the base class, which divides nothing.
        """
        if not self.catalogue_name:
            raise BadInput(
                f"{type(self).__name__} is a base class; construct one of its schemes, such as "
                "fedaudit.partitions.IID(10)"
            )
        settings = changed_fields(self)
        settings.pop("clients", None)
        return Clients(self.catalogue_name, settings, self.clients)


@dataclass(frozen=True)
class IID(PartitionScheme):
    """Deals samples at random, whatever their class, in equal shares.

    Attributes:
        samples_per_client: Samples of each client; 0 deals everything.

    Examples:
        >>> IID(10, samples_per_client=300).clients
        10
    """

    catalogue_name: ClassVar[str] = "iid"
    _: KW_ONLY
    samples_per_client: Count = 0

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Number of samples of each class for each client."""
        counts = _used(counts, clients, self.samples_per_client, rng)
        shuffled = rng.permutation(np.repeat(np.arange(len(counts)), counts))
        hands = np.array_split(shuffled, clients)
        return np.stack([np.bincount(hand, minlength=len(counts)) for hand in hands])


@dataclass(frozen=True)
class Dirichlet(PartitionScheme):
    """Deals each class in random unequal shares: the smaller ``beta``, the more unequal.

    Without ``samples_per_client`` the clients' shares of each class are one Dirichlet draw, and
    every sample is dealt exactly once; clients differ in size. With it, each client draws its
    own label distribution and takes its samples from the classes' pools; where a class runs
    out, demand is cut at random and the gap filled at random from what is left over, so
    that clients keep their size and their mix is a little milder than drawn.

    Attributes:
        beta: Concentration, above 0 and finite; 0.1 to 100 is usual. Published:
            0.1, 1 and 10 (FedMIA), 0.5, 1 and 10 (CoFedMID).
        minimum: Fewest samples a client may get; the draw is repeated until all have them.
            Without effect where ``samples_per_client`` is set.
        samples_per_client: Samples of each client; 0 deals everything.

    Examples:
        >>> Dirichlet(10, beta=0.5).beta
        0.5

    Source: FedMIA, section 4.3 (non-IID extent); SIA, section 4.3 (its alpha is our beta).
    """

    catalogue_name: ClassVar[str] = "dirichlet"
    _: KW_ONLY
    beta: AboveZero
    minimum: Count = 1
    samples_per_client: Count = 0

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Number of samples of each class for each client."""
        _used(counts, clients, self.samples_per_client, rng)
        if self.samples_per_client:
            return self._equal_sizes(counts, clients, rng)
        return _with_minimum(
            lambda: self._shares(counts, clients, rng),
            self.minimum,
            f"beta={self.beta} and {clients} clients",
        )

    def _shares(self, counts: Counts, clients: int, rng: np.random.Generator) -> Quotas:
        shares = rng.dirichlet(np.full(clients, self.beta), size=len(counts))
        ends = np.rint(shares.cumsum(axis=1) * counts[:, None]).astype(np.int64)
        quotas: Quotas = np.diff(ends, axis=1, prepend=0).T
        return quotas

    def _equal_sizes(self, counts: Counts, clients: int, rng: np.random.Generator) -> Quotas:
        mixes = rng.dirichlet(np.full(len(counts), self.beta), size=clients)
        wanted = np.stack([apportioned(self.samples_per_client, mix) for mix in mixes])
        quotas = within(wanted, counts, rng=rng)
        left = counts - quotas.sum(axis=0)
        for client in rng.permutation(clients):
            missing = self.samples_per_client - int(quotas[client].sum())
            extra = rng.multivariate_hypergeometric(left, missing)
            quotas[client] += extra
            left = left - extra
        return quotas


@dataclass(frozen=True)
class Shards(PartitionScheme):
    """Sorts samples by class, cuts them into equal shards and gives each client a few.

    Attributes:
        per_client: Shards of each client, at least 1; 2 gives most clients two classes.
        samples_per_client: Samples of each client; 0 deals everything.

    Examples:
        >>> Shards(100, per_client=2).per_client
        2

    Source: McMahan et al. 2017, section 3 (the "pathological" partition).
    """

    catalogue_name: ClassVar[str] = "shards"
    _: KW_ONLY
    per_client: Positive = 2
    samples_per_client: Count = 0

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Number of samples of each class for each client."""
        shards = clients * self.per_client
        if shards > counts.sum():
            raise BadInput(
                f"{self.per_client} shards for each of {clients} clients cannot be cut from "
                f"{counts.sum()} samples; give between 1 and {counts.sum() // max(clients, 1)}"
            )
        counts = _used(counts, clients, self.samples_per_client, rng)
        sizes = apportioned(int(counts.sum()), np.ones(clients))
        slots = np.concatenate([apportioned(int(size), np.ones(self.per_client)) for size in sizes])
        # The order in which clients' slots are cut from the sorted samples is all the chance.
        order = rng.permutation(shards)
        by_class = np.repeat(np.arange(len(counts)), counts)
        parts = np.split(by_class, slots[order].cumsum()[:-1])
        quotas: Quotas = np.zeros((clients, len(counts)), dtype=np.int64)
        for slot, part in zip(order, parts, strict=True):
            quotas[slot // self.per_client] += np.bincount(part, minlength=len(counts))
        return quotas


@dataclass(frozen=True)
class WholeClasses(PartitionScheme):
    """Gives every class whole to one client, as where clients are books, authors or hospitals.

    The largest class goes first, each to the client with the fewest samples so far. Of a client
    under audit it is what it had before the fair draw, which gives samples of its classes to
    others.

    Attributes:
        samples_per_client: Samples of each client, drawn from its classes; 0 deals everything.

    Examples:
        >>> WholeClasses(5).samples_per_client
        0
    """

    catalogue_name: ClassVar[str] = "whole-classes"
    _: KW_ONLY
    samples_per_client: Count = 0

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Number of samples of each class for each client."""
        _used(counts, clients, self.samples_per_client, rng)
        quotas: Quotas = np.zeros((clients, len(counts)), dtype=np.int64)
        # Equal ones in any order.
        order = rng.permutation(len(counts))
        for label in order[np.argsort(-counts[order], kind="stable")]:
            sizes = quotas.sum(axis=1)
            least = rng.choice(np.flatnonzero(sizes == sizes.min()))
            quotas[least, label] = counts[label]
        fewest, wanted = int(quotas.sum(axis=1).min()), max(1, self.samples_per_client)
        if fewest < wanted:
            raise BadInput(
                f"of {np.count_nonzero(counts)} classes dealt whole to {clients} clients one gets "
                f"{fewest} samples, and {wanted} are asked for; give fewer clients or fewer samples"
            )
        if not self.samples_per_client:
            return quotas
        drawn = [rng.multivariate_hypergeometric(own, self.samples_per_client) for own in quotas]
        return np.stack(drawn)


@dataclass(frozen=True)
class SIAClass0Size(PartitionScheme):
    """The split of SIA's published code, for comparison only: most samples are dropped.

    Attributes:
        beta: Concentration of the Dirichlet draw, above 0.
        minimum: Fewest samples a client may get; the published code has no such limit.

    Examples:
        >>> SIAClass0Size(10, beta=1.0).minimum
        1

    Source: SIA, published code (its alpha is our beta).
    Differs: From an exact split, on purpose: every class is dealt as if it were as large as
        class 0, and clients are served in order until a class runs out. The original draws its
        shuffle and its shares from two global generators.
    """

    catalogue_name: ClassVar[str] = "sia_class0_size"
    _: KW_ONLY
    beta: AboveZero
    minimum: Count = 1

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Number of samples of each class for each client."""
        _used(counts, clients, 0, rng)

        def once() -> Quotas:
            shares = rng.dirichlet(np.full(clients, self.beta), size=len(counts))
            ends = np.rint(shares * counts[0]).astype(np.int64).cumsum(axis=1)
            quotas: Quotas = np.diff(np.minimum(ends, counts[:, None]), axis=1, prepend=0).T
            return quotas

        return _with_minimum(once, self.minimum, f"beta={self.beta} and {clients} clients")


PARTITIONS: dict[str, Callable[..., Partition]] = {
    kind.catalogue_name: kind for kind in (IID, Dirichlet, Shards, WholeClasses, SIAClass0Size)
}


def deal(
    labels: Int[ndarray, " samples"], quotas: Quotas, *, rng: np.random.Generator
) -> list[Int[ndarray, " _"]]:
    """Positions of the samples that each client gets; no position goes to two clients.

    Args:
        labels: Class of each sample.
        quotas: Samples of each class for each client.
        rng: Decides which samples of a class, and the order within a client.
    """
    hands: list[list[Int[ndarray, " _"]]] = [[] for _ in quotas]
    positions, none = positions_of(labels), np.zeros(0, dtype=np.int64)
    for label in range(quotas.shape[1]):
        pool = rng.permutation(positions.get(label, none))
        pieces = np.split(pool, quotas[:, label].cumsum())
        for hand, piece in zip(hands, pieces[:-1], strict=True):
            hand.append(piece)
    return [rng.permutation(np.concatenate(hand)) for hand in hands]


def apportioned(total: int, shares: Num[ndarray, " classes"]) -> Counts:
    """Divides a whole number in proportion to shares; the largest remainders are rounded up.

    Shares that are all zero divide it evenly.
    """
    weights = shares.astype(np.float64)
    weights = weights if weights.sum() > 0 else np.ones(len(weights))
    exact = total * weights / weights.sum()
    whole: Counts = np.floor(exact).astype(np.int64)
    missing = total - int(whole.sum())
    # A stable order decides ties, so that the result does not depend on the sorting method.
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return whole


def within(wanted: Quotas, available: Counts, *, rng: np.random.Generator) -> Quotas:
    """Cuts the demand for each class to what there is, at random among those who want it."""
    served = wanted.copy()
    for label in np.flatnonzero(wanted.sum(axis=0) > available):
        served[:, label] = rng.multivariate_hypergeometric(wanted[:, label], int(available[label]))
    return served


def _used(counts: Counts, clients: int, per_client: int, rng: np.random.Generator) -> Counts:
    """Class counts of the samples that are dealt at all, after checking that there are enough."""
    total = int(counts.sum())
    if clients < 1 or clients > total:
        raise BadInput(
            f"{clients} clients cannot share {total} samples; give between 1 and {total} clients"
        )
    if per_client < 0 or clients * per_client > total:
        raise BadInput(
            f"{clients} clients with {per_client} samples each need {clients * per_client} and "
            f"there are {total} ({clients * per_client - total} short); give at most "
            f"{total // clients} samples per client, or 0 to deal everything"
        )
    if not per_client:
        return counts
    kept: Counts = rng.multivariate_hypergeometric(counts, clients * per_client)
    return kept


def _with_minimum(draw: Callable[[], Quotas], minimum: int, setting: str) -> Quotas:
    for _ in range(_REDRAWS):
        quotas = draw()
        if quotas.sum(axis=1).min() >= minimum:
            return quotas
    raise BadInput(
        f"with {setting}, none of {_REDRAWS} draws gave every client {minimum} samples; "
        "raise beta, lower minimum, or take fewer clients"
    )
