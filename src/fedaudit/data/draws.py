"""Drawing the audit set: the fair draw, and the fixed draws of published papers by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from fedaudit.core import NOBODY, ClientId
from fedaudit.data.audit_set import AuditSet, Deal
from fedaudit.data.dataset import Dataset
from fedaudit.data.partition import Counts, Partition, Quotas, apportioned, deal, within
from fedaudit.errors import BadInput
from fedaudit.seeds import seeded_numpy


class _Panel(NamedTuple):
    """The audited training samples drawn for one target."""

    target: ClientId
    positions: Int[ndarray, " audited"]
    counts: Counts


class _Audited(NamedTuple):
    """Audited samples by id, who owns each and for which target that was a fair draw."""

    ids: Int[ndarray, " audited"]
    owner: Int[ndarray, " audited"]
    panel: Int[ndarray, " audited"]


def draw(
    dataset: Dataset,
    *,
    clients: int,
    partition: Partition,
    n_fair: int,
    seed: int,
    targets: Sequence[ClientId] = (0,),
    extra_other: int = 0,
    extra_unseen: int = 0,
    background: int | None = None,
) -> Deal:
    """Draws audited samples first and decides by a fair draw who trains on each.

    The partition settles every client's class mix. Audited samples are drawn from the training
    part with the mix of their target. Each of ``n_fair`` of them goes independently, with
    chance 1/3 each, to the target, to another client (any of them alike) or to nobody; the
    extra ones go to other clients or to nobody. Members, other clients' and unseen samples are
    therefore exchangeable: no shift between them can pass for leakage. What clients need beside
    the audited samples, their background, is dealt by the partition from the rest.

    The background depends on which samples are audited, never on how their draw fell, as
    bounds on independent inclusion require. It tops a client up to its size by the partition
    given the number of audited samples that it can expect, so sizes come out close to, not
    equal to, what the partition says; see :attr:`Deal.sizes`.

    With several targets each has a panel of its own, drawn with its class mix. Samples of
    another target's panel count by their owner like any other; only a target's own panel is
    fair for it.

    Args:
        dataset: Its training part is drawn from; its test part stays untouched.
        clients: Number of clients, at least 2.
        partition: Class mix and size of every client.
        n_fair: Fairly drawn samples for each target; about a third become members.
        seed: Root seed of all choices.
        targets: Clients under audit.
        extra_other: Further audited samples of other clients, for each target.
        extra_unseen: Further audited samples of nobody, for each target.
        background: Background samples of each target; None tops it up like other clients.

    Raises:
        BadInput: Targets or numbers out of range, fewer training samples of a class than the
            audit needs, or a client left without samples.
    """
    _check_draw(clients, targets, (n_fair, extra_other, extra_unseen, background or 0))
    labels = dataset.train.labels.numpy()
    counts = np.bincount(labels, minlength=dataset.classes)
    quotas = partition.quotas(counts, clients, rng=seeded_numpy(seed, "partition"))
    asked = n_fair + extra_other + extra_unseen
    panels = _panels(labels, quotas, targets=targets, size=asked, seed=seed)
    taken = np.concatenate([panel.positions for panel in panels])
    left = np.setdiff1d(np.arange(len(labels)), taken)
    wanted = _background(
        quotas,
        panels,
        fair_share=n_fair / 3 / asked,
        other_share=extra_other / asked,
        fixed=background,
    )
    rng = seeded_numpy(seed, "background")
    available = np.bincount(labels[left], minlength=dataset.classes)
    hands = deal(labels[left], within(wanted, available, rng=rng), rng=rng)
    owners = np.concatenate(
        [
            _owners(panel, clients, n_fair=n_fair, extra_other=extra_other, seed=seed)
            for panel in panels
        ]
    )
    fair = np.tile(np.arange(asked) < n_fair, len(panels))
    panel_of = np.where(fair, np.repeat(np.asarray(targets), asked), NOBODY)
    held = {client: left[hand] for client, hand in enumerate(hands)}
    for client in held:
        held[client] = np.concatenate([held[client], taken[owners == client]])
    return _dealt(dataset, held, _Audited(taken, owners, panel_of), seed=seed)


def fedmia_paper(
    dataset: Dataset,
    *,
    clients: int,
    partition: Partition,
    seed: int,
    targets: Sequence[ClientId] = (0,),
    share: float = 0.1,
) -> Deal:
    """Audits all of the target's data, a share of the test part and of every other client.

    Args:
        dataset: The training part is dealt to clients, the test part to nobody.
        clients: Number of clients, at least 2.
        partition: How the training part is dealt.
        seed: Root seed of all choices.
        targets: The one client under audit.
        share: Share of the test part, and of each other client, that is audited, in (0, 1].

    Raises:
        BadInput: More than one target, or numbers out of range.

    Source: FedMIA, section 5.1.
    Differs: Non-members are drawn once, as the paper's equations require; its code draws them
        anew for every client and round.
    """
    _check_share(share)
    hands = _whole_deal(dataset, clients, partition, targets, seed)
    return _audited(
        dataset,
        hands,
        target=targets[0],
        unseen=round(share * len(dataset.test)),
        others={client: round(share * len(hand)) for client, hand in hands.items()},
        seed=seed,
    )


def fedmia_code(
    dataset: Dataset,
    *,
    clients: int,
    partition: Partition,
    seed: int,
    targets: Sequence[ClientId] = (0,),
    n_unseen: int = 1000,
    share: float = 0.2,
) -> Deal:
    """Audits all of the target's data, 1,000 test samples and a fifth of every other client.

    Args:
        dataset: The training part is dealt to clients, the test part to nobody.
        clients: Number of clients, at least 2.
        partition: How the training part is dealt.
        seed: Root seed of all choices.
        targets: The one client under audit.
        n_unseen: Test samples audited.
        share: Share of each other client that is audited, in (0, 1].

    Raises:
        BadInput: More than one target, or more test samples than there are.

    Source: FedMIA, published code.
    Differs: Non-members are drawn once, not anew for every client and round.
    """
    _check_share(share)
    hands = _whole_deal(dataset, clients, partition, targets, seed)
    return _audited(
        dataset,
        hands,
        target=targets[0],
        unseen=n_unseen,
        others={client: round(share * len(hand)) for client, hand in hands.items()},
        seed=seed,
    )


def cofedmid(
    dataset: Dataset,
    *,
    clients: int,
    partition: Partition,
    seed: int,
    targets: Sequence[ClientId] = (0,),
    n_unseen: int = 1000,
    n_other: int = 9000,
) -> Deal:
    """Audits all of the target's data, 1,000 test samples and 9,000 of the other clients.

    Args:
        dataset: The training part is dealt to clients, the test part to nobody.
        clients: Number of clients, at least 2.
        partition: How the training part is dealt.
        seed: Root seed of all choices.
        targets: The one client under audit.
        n_unseen: Test samples audited.
        n_other: Other clients' samples audited, divided by the clients' sizes.

    Raises:
        BadInput: More than one target, or more samples than there are.

    Source: CoFedMID, section 5.1.
    """
    hands = _whole_deal(dataset, clients, partition, targets, seed)
    sizes = np.array([0 if client == targets[0] else len(hand) for client, hand in hands.items()])
    if n_other > sizes.sum():
        raise BadInput(
            f"{n_other} samples of other clients are to be audited and they have {sizes.sum()} "
            f"({n_other - sizes.sum()} short); lower n_other or deal more samples"
        )
    others = apportioned(n_other, sizes)
    return _audited(
        dataset,
        hands,
        target=targets[0],
        unseen=n_unseen,
        others={client: int(others[client]) for client in hands},
        seed=seed,
    )


DRAWS: dict[str, Callable[..., Deal]] = {
    "fair": draw,
    "fedmia_paper": fedmia_paper,
    "fedmia_code": fedmia_code,
    "cofedmid": cofedmid,
}


def _panels(
    labels: Int[ndarray, " samples"],
    quotas: Quotas,
    *,
    targets: Sequence[ClientId],
    size: int,
    seed: int,
) -> list[_Panel]:
    rng = seeded_numpy(seed, "audit records")
    classes = quotas.shape[1]
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    used = np.zeros(classes, dtype=np.int64)
    panels = []
    for target in targets:
        need = apportioned(size, quotas[target])
        _check_enough(target, need, np.array([len(pool) for pool in pools]) - used)
        chosen = [
            pool[start : start + count]
            for pool, start, count in zip(pools, used, need, strict=True)
        ]
        panels.append(_Panel(target, rng.permutation(np.concatenate(chosen)), need))
        used = used + need
    return panels


def _owners(
    panel: _Panel, clients: int, *, n_fair: int, extra_other: int, seed: int
) -> Int[ndarray, " audited"]:
    """Owners by position: fair ones first, then extra samples of others, then of nobody."""
    rng = seeded_numpy(seed, "owners", panel.target)
    size = len(panel.positions)
    others = np.delete(np.arange(clients), panel.target)
    someone = rng.choice(others, size=size)
    fair = np.choose(rng.integers(3, size=size), [np.full(size, panel.target), someone, NOBODY])
    extra = np.where(np.arange(size) < n_fair + extra_other, someone, NOBODY)
    return np.where(np.arange(size) < n_fair, fair, extra)


def _background(
    quotas: Quotas,
    panels: Sequence[_Panel],
    *,
    fair_share: float,
    other_share: float,
    fixed: int | None,
) -> Quotas:
    """Samples of each class that each client needs beside the audited ones it can expect."""
    clients = len(quotas)
    expected: Float[ndarray, "clients classes"] = np.zeros(quotas.shape)
    for panel in panels:
        chance = np.full(clients, (fair_share + other_share) / (clients - 1))
        chance[panel.target] = fair_share
        expected += chance[:, None] * panel.counts
    sizes = np.maximum(np.rint(quotas.sum(axis=1) - expected.sum(axis=1)), 0).astype(np.int64)
    if fixed is not None:
        sizes[[panel.target for panel in panels]] = fixed
    missing = np.maximum(quotas - expected, 0)
    # A client whose quota the audit covers in every class draws by its mix all the same.
    empty = missing.sum(axis=1) == 0
    missing[empty] = quotas[empty]
    return np.stack([apportioned(int(size), row) for size, row in zip(sizes, missing, strict=True)])


def _whole_deal(
    dataset: Dataset,
    clients: int,
    partition: Partition,
    targets: Sequence[ClientId],
    seed: int,
) -> dict[ClientId, Int[ndarray, " dealt"]]:
    """The training part dealt by the partition alone, as positions."""
    _check_targets(clients, targets)
    if len(targets) != 1:
        raise BadInput(
            f"a published draw audits one target, got {len(targets)}; take the fair draw for "
            "several, or run one study a target"
        )
    labels = dataset.train.labels.numpy()
    counts = np.bincount(labels, minlength=dataset.classes)
    rng = seeded_numpy(seed, "partition")
    return dict(enumerate(deal(labels, partition.quotas(counts, clients, rng=rng), rng=rng)))


def _audited(
    dataset: Dataset,
    hands: dict[ClientId, Int[ndarray, " dealt"]],
    *,
    target: ClientId,
    unseen: int,
    others: Mapping[ClientId, int],
    seed: int,
) -> Deal:
    """A deal whose audit holds all of the target, some of each other client and of the test."""
    if not 0 <= unseen <= len(dataset.test):
        raise BadInput(
            f"{unseen} unseen samples are to be audited and the test part has "
            f"{len(dataset.test)} ({unseen - len(dataset.test)} short); lower n_unseen"
        )
    rng = seeded_numpy(seed, "audit records")
    chosen = {
        client: hand if client == target else rng.permutation(hand)[: others[client]]
        for client, hand in hands.items()
    }
    test = rng.permutation(len(dataset.test))[:unseen] + len(dataset.train)
    ids = np.concatenate([*chosen.values(), test])
    owners = np.repeat([*chosen, NOBODY], [*map(len, chosen.values()), len(test)])
    return _dealt(dataset, hands, _Audited(ids, owners, np.full(len(ids), NOBODY)), seed=seed)


def _dealt(
    dataset: Dataset,
    held: Mapping[ClientId, Int[ndarray, " dealt"]],
    audited: _Audited,
    *,
    seed: int,
) -> Deal:
    """Looks the samples up, in orders that give nothing away."""
    for client, mine in held.items():
        if not len(mine):
            raise BadInput(
                f"client {client} is left without samples; give more samples per client, "
                "fewer clients or a smaller audit"
            )
    # Ids of the training part are positions in it.
    clients = {
        client: dataset.samples(
            torch.from_numpy(seeded_numpy(seed, "order", client).permutation(mine))
        )
        for client, mine in held.items()
    }
    order = seeded_numpy(seed, "audit order").permutation(len(audited.ids))
    samples = dataset.samples(torch.from_numpy(audited.ids[order]))
    group = None if dataset.group is None else dataset.group[samples.ids].numpy()
    return Deal(clients, AuditSet(samples, audited.owner[order], audited.panel[order], group))


def _check_targets(clients: int, targets: Sequence[ClientId]) -> None:
    if clients < 2:
        raise BadInput(
            f"an audit compares the target with other clients and so needs at least 2 clients, "
            f"got {clients}; raise clients"
        )
    if not targets or len(set(targets)) != len(targets):
        raise BadInput(f"targets must name at least one client, each once, got {tuple(targets)}")
    for target in targets:
        if not 0 <= target < clients:
            raise BadInput(f"target {target} is no client; clients are numbered 0 to {clients - 1}")


def _check_draw(clients: int, targets: Sequence[ClientId], numbers: Sequence[int]) -> None:
    _check_targets(clients, targets)
    if min(numbers) < 0:
        raise BadInput(
            f"n_fair, extra_other, extra_unseen and background are numbers of samples, got "
            f"{', '.join(map(str, numbers))}; give 0 or more"
        )
    if not sum(numbers[:3]):
        raise BadInput("nothing would be audited; give n_fair, the number of fairly drawn samples")


def _check_enough(target: ClientId, need: Counts, left: Counts) -> None:
    short = np.maximum(need - left, 0)
    if short.any():
        worst = int(short.argmax())
        raise BadInput(
            f"the audit of client {target} needs {need.sum()} training samples of its class mix "
            f"and is {short.sum()} short: {need[worst]} of class {worst} are needed and "
            f"{left[worst]} left; lower n_fair and the extra samples, or make the clients' "
            "classes more alike (a larger beta)"
        )


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise BadInput(f"share must lie in (0, 1], got {share}; the paper audits a tenth")
