"""Draws of the audit set: the fair draw, canaries, and the draws of published papers by name."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import BadInput, Unsupported, setting
from fedaudit.core.seeds import seeded, seeded_numpy
from fedaudit.core.values import NO_CLIENT, ClientId, Samples, positions_of
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import (
    Assignment,
    Audited,
    AuditSet,
    build_assignment,
    check_targets,
    other_positions,
)
from fedaudit.datasets.draws.published import cofedmid, fedmia_code, fedmia_paper, sia
from fedaudit.datasets.partitions.schemes import (
    Counts,
    Partition,
    Quotas,
    apportion,
    assign_samples,
    limit_quotas,
    shuffled_classes,
)

KINDS = ("mislabelled", "noise")


def with_canaries(
    assignment: Assignment,
    dataset: Dataset,
    *,
    seed: int,
    targets: Sequence[ClientId],
    kind: str,
) -> Assignment:
    """Turn the audited samples into canaries, and draw a fair coin for each.

    The canaries are divided equally among the targets. A target trains on those of its canaries
    whose coin shows heads.

    Args:
        assignment: The samples of each client and the audit set. No client may train on an audited
            sample yet.
        dataset: Data set of the samples.
        seed: Root seed of all choices.
        targets: Audited clients.
        kind: "mislabelled" or "noise"; see :func:`canaries`.

    Raises:
        BadInput: The kind does not exist.
        Unsupported: The task has no classes, or noise would replace tokens.
    """
    if kind not in KINDS:
        raise BadInput(f"the kind of canaries is {kind!r}; give 'mislabelled' or 'noise'")
    audit, rng = assignment.audit, seeded(seed, "canary records")
    samples = audit.samples
    has_classes = samples.targets.ndim == 1 and not samples.targets.is_floating_point()
    # With deal_by_code, labels are pairs of code and class, and dataset.classes is the number of
    # pairs. Targets are always classes.
    classes = 1 + int(dataset.train.targets.max()) if has_classes else 0
    if classes < 2:
        raise Unsupported(
            "a canary is a sample with a wrong label, and this task has no classes; use audit.draw "
            '= "fair"'
        )
    if kind == "noise":
        if samples.has_whole_numbers or samples.inputs is not None:
            raise Unsupported(
                "noise cannot replace tokens or several named inputs; use canaries of the kind "
                "'mislabelled'"
            )
        samples = samples.replace(features=_noise_like(samples, dataset, rng))
    # Never 0 modulo the number of classes, so that every label is wrong.
    label_shift = torch.randint(1, classes, (len(samples),), generator=rng)
    samples = samples.replace(targets=(samples.targets + label_shift) % classes)
    coin_rng = seeded_numpy(seed, "canary coins")
    coin_client = np.asarray(targets)[coin_rng.permutation(len(samples)) % len(targets)]
    owner = np.where(coin_rng.random(len(samples)) < 0.5, coin_client, NO_CLIENT)
    clients = dict(assignment.clients)
    for client in targets:
        canaries_of_client = samples.take(torch.from_numpy(owner == client))
        joined = Samples.joined(assignment.clients[client], canaries_of_client)
        order = seeded_numpy(seed, "order with canaries", client).permutation(len(joined))
        clients[client] = joined.take(torch.from_numpy(order))
    return replace(
        assignment, clients=clients, audit=AuditSet(samples, owner, coin_client, audit.group)
    )


def _noise_like(samples: Samples, dataset: Dataset, rng: torch.Generator) -> Tensor:
    """Return normal noise with the root mean square of the training features.

    The mean is 0, so that two canaries, and their gradients in a first layer, are almost
    orthogonal.
    """
    train = dataset.train.features
    scale = train.double().square().mean().sqrt().to(train.dtype)
    noise = torch.randn(samples.features.shape, generator=rng, dtype=train.dtype)
    return scale * noise.to(train.device)


_MIN_PEOPLE = 4


class _Panel(NamedTuple):
    """Audited training samples drawn for one target.

    ``positions`` are the samples' positions in the training part, ``counts`` their number per
    class, and ``subject`` their people if people were drawn.
    """

    target: ClientId
    positions: Int[ndarray, " audited"]
    counts: Counts
    subject: Int[ndarray, " audited"] | None = None


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
    unit: Literal["sample", "person"] = "sample",
    clients_per_person: int = 1,
) -> Assignment:
    """Draw audited samples, and decide by a fair draw which client trains on each.

    The partition determines every client's label distribution. Audited samples are drawn from the
    training part with the label distribution of their target. Each of ``n_fair`` samples goes
    independently, with probability 1/3 each, to the target, to another client (uniformly) or to no
    client. Extra samples go to other clients or to no client. Members, other clients' samples and
    unseen samples are therefore exchangeable, so a distribution shift between them cannot look
    like leakage. The partition assigns the other training samples of each client, its background,
    from the remaining data.

    The background depends on which samples are audited and not on the outcome of their draw, as
    bounds on independent inclusion require. It fills a client up to its size in the partition,
    given its expected number of audited samples. Clients' sizes are therefore close to their sizes
    in the partition, but not equal; see :attr:`Assignment.sizes`.

    With ``unit="person"``, people are drawn uniformly from the training part, each with all of
    their samples, and each person is assigned with probability 1/3. The target gets all samples of
    a person that is assigned to it. With ``clients_per_person`` above 1 it gets a share, like a
    hospital that has some of the records of a patient who visits several hospitals.

    Each target has a panel with its label distribution. Only this panel is fair for the target. If
    label distributions differ, estimates for a target leave out the panels of other targets.

    Args:
        dataset: Data set whose training part is drawn from; its test part is not used.
        clients: Number of clients, at least 2.
        partition: Label distribution and size of every client.
        n_fair: Fairly drawn samples, or people, per target; about a third become members.
        seed: Root seed of all choices.
        targets: Audited clients.
        extra_other: Further audited samples of other clients, per target.
        extra_unseen: Further audited samples of no client, per target.
        background: Background samples per target; None fills a target up like other clients.
        unit: Unit of the fair draw: a "sample", or a "person" with all of their samples.
        clients_per_person: Number of clients among which the samples of an assigned person are
            divided, in parts of equal size.

    Raises:
        BadInput: A target or number is out of range, the training part has too few people or
            samples of a class, the data set names no people, or a client would have no samples.
    """
    _check_draw(clients, targets, (n_fair, extra_other, extra_unseen, background or 0))
    labels = dataset.train.labels.numpy()
    counts = np.bincount(labels, minlength=dataset.classes)
    quotas = partition.quotas(counts, clients, rng=seeded_numpy(seed, "partition"))
    panel_size = n_fair + extra_other + extra_unseen
    target_share, others_share = n_fair / 3 / panel_size, (n_fair / 3 + extra_other) / panel_size
    if unit == "person":
        _check_people(dataset, clients, clients_per_person, n_fair, extra_other + extra_unseen)
        panels = _draw_people(dataset, targets=targets, size=n_fair, seed=seed)
        target_share = 1 / 3 / clients_per_person
        others_share = 2 / 3 - target_share
    else:
        panels = _draw_samples(labels, quotas, targets=targets, size=panel_size, seed=seed)
    audited_positions = np.concatenate([panel.positions for panel in panels])
    free_positions = other_positions(len(labels), audited_positions)
    background_quotas = _background_quotas(
        quotas, panels, target_share=target_share, others_share=others_share, fixed=background
    )
    rng = seeded_numpy(seed, "background")
    available = np.bincount(labels[free_positions], minlength=dataset.classes)
    assigned = assign_samples(
        labels[free_positions], limit_quotas(background_quotas, available, rng=rng), rng=rng
    )
    if unit == "person":
        audited = _assign_people(panels, clients, clients_per_person, seed=seed)
    else:
        audited = _assign_samples(
            panels, clients, n_fair=n_fair, extra_other=extra_other, seed=seed
        )
    # Ids of the training part are positions in it.
    training_ids = {
        client: np.concatenate(
            [free_positions[unaudited], audited_positions[audited.owner == client]]
        )
        for client, unaudited in enumerate(assigned)
    }
    empty = [target for target in targets if not len(training_ids[target])]
    if empty and background == 0:
        raise BadInput(
            f"client {empty[0]} has no samples: its background (audit.background) is 0, and it "
            f"got none of the {n_fair} fairly drawn {'people' if unit == 'person' else 'samples'}; "
            "raise or omit audit.background, or draw more (audit.samples)"
        )
    return build_assignment(dataset, training_ids, audited, seed=seed)


def canaries(
    dataset: Dataset,
    *,
    clients: int,
    partition: Partition,
    seed: int,
    targets: Sequence[ClientId] = (0,),
    count: int = 500,
    kind: str = "mislabelled",
) -> Assignment:
    """Draw canaries: samples with a wrong label, of which a fair coin makes each a member or not.

    A model can predict a wrong label only if it was trained on it. Bounds on epsilon from one run
    are therefore tighter than with ordinary samples. Member and non-member canaries differ only in
    their coin. The target has as many other samples as in the partition.

    Args:
        dataset: Data set whose training part is drawn from; its test part is not used.
        clients: Number of clients, at least 2.
        partition: Label distribution and size of every client.
        seed: Root seed of all choices.
        targets: Audited clients.
        count: Canaries per target; about half of them are trained on.
        kind: "mislabelled" for samples of the data set; "noise" for random normal features with
            mean 0 and the size of real features, which resemble neither other samples nor each
            other.

    Raises:
        BadInput: The kind does not exist, a target or number is out of range, or there are too few
            training samples.
        Unsupported: The task has no classes, or noise would replace tokens.

    Source: Steinke, Nasr and Jagielski 2023 (many canaries in one run, by fair coins); Nasr et al.
    2023, Tight Auditing of Differentially Private Machine Learning (mislabelled samples).
    Differs: Canaries are trained on in every round, as other samples are.
    """
    if count < 2:
        raise BadInput(f"the number of canaries is {count}; give at least 2 (audit.options.count)")
    untrained = draw(
        dataset,
        clients=clients,
        partition=partition,
        n_fair=0,
        extra_unseen=count,
        seed=seed,
        targets=targets,
    )
    return with_canaries(untrained, dataset, seed=seed, targets=targets, kind=kind)


AS_PUBLISHED = frozenset({"fedmia_paper", "fedmia_code", "cofedmid"})
"""Draws that compare members and non-members as a paper does, although clients may differ. Reports
state that no draw was fair."""

OF_EACH_CLIENT = AS_PUBLISHED | {"sia"}
"""Draws whose audited samples of each client are random samples of its training data."""

DRAWS: dict[str, Callable[..., Assignment]] = {
    "fair": draw,
    "canaries": canaries,
    "fedmia_paper": fedmia_paper,
    "fedmia_code": fedmia_code,
    "cofedmid": cofedmid,
    "sia": sia,
}


def _draw_samples(
    labels: Int[ndarray, " samples"],
    quotas: Quotas,
    *,
    targets: Sequence[ClientId],
    size: int,
    seed: int,
) -> list[_Panel]:
    rng = seeded_numpy(seed, "audit records")
    classes = quotas.shape[1]
    pools = shuffled_classes(labels, classes, rng)
    used = np.zeros(classes, dtype=np.int64)
    panels = []
    for target in targets:
        needed = apportion(size, quotas[target])
        _check_enough(target, needed, np.array([len(pool) for pool in pools]) - used)
        chosen = [
            pool[start : start + count]
            for pool, start, count in zip(pools, used, needed, strict=True)
        ]
        panels.append(_Panel(target, rng.permutation(np.concatenate(chosen)), needed))
        used = used + needed
    return panels


def _draw_people(
    dataset: Dataset, *, targets: Sequence[ClientId], size: int, seed: int
) -> list[_Panel]:
    """Draw disjoint sets of people for the targets, with all samples of each person.

    If the data name clients, only people whose samples all belong to a target are drawn for it.
    """
    assert dataset.subject is not None
    subject = dataset.subject[: len(dataset.train)].numpy()
    if dataset.client is None:
        people = np.unique(subject)
        if size * len(targets) > len(people):
            raise BadInput(
                f"{size} people are audited for each of {len(targets)} clients, and the training "
                f"part has samples of {len(people)}; lower {setting('audit.samples')}, the number "
                "of audited people"
            )
        drawn = seeded_numpy(seed, "audit records").permutation(people)
        return [
            _panel_of_people(dataset, subject, target, drawn[index * size : (index + 1) * size])
            for index, target in enumerate(targets)
        ]
    client = dataset.client[: len(dataset.train)].numpy()
    panels = []
    for target in targets:
        people = np.setdiff1d(subject[client == target], subject[client != target])
        if size > len(people):
            raise BadInput(
                f"{size} people of client {target} are audited, and {len(people)} have training "
                f"samples of this client alone; lower {setting('audit.samples')}, the number of "
                "audited people"
            )
        drawn = seeded_numpy(seed, "audit records", target).permutation(people)[:size]
        panels.append(_panel_of_people(dataset, subject, target, drawn))
    return panels


def _panel_of_people(
    dataset: Dataset,
    subject: Int[ndarray, " train"],
    target: ClientId,
    people: Int[ndarray, " people"],
) -> _Panel:
    positions = np.flatnonzero(np.isin(subject, people))
    counts = np.bincount(dataset.train.labels.numpy()[positions], minlength=dataset.classes)
    return _Panel(target, positions, counts, subject[positions])


def _assign_people(
    panels: Sequence[_Panel], clients: int, clients_per_person: int, *, seed: int
) -> Audited:
    """Assign each person to clients, and each sample of a person to one of these clients."""
    owners, subjects = [], []
    for panel in panels:
        assert panel.subject is not None
        rng = seeded_numpy(seed, "owners", panel.target)
        owner = np.full(len(panel.positions), NO_CLIENT, dtype=np.int64)
        others = np.delete(np.arange(clients), panel.target)
        for positions in positions_of(panel.subject).values():
            # Make all draws for every person, so that no draw depends on an earlier outcome.
            outcome, assigned = int(rng.integers(3)), rng.permutation(others)[:clients_per_person]
            if outcome == 0:
                assigned[0] = panel.target
            shuffled = rng.permutation(positions)
            if outcome < 2:
                owner[shuffled] = np.resize(assigned, len(shuffled))
        owners.append(owner)
        subjects.append(panel.subject)
    return Audited(
        np.concatenate([panel.positions for panel in panels]),
        np.concatenate(owners),
        _targets_by_sample(panels),
        np.concatenate(subjects),
    )


def _targets_by_sample(panels: Sequence[_Panel]) -> Int[ndarray, " audited"]:
    return np.repeat([panel.target for panel in panels], [len(panel.positions) for panel in panels])


def _assign_samples(
    panels: Sequence[_Panel], clients: int, *, n_fair: int, extra_other: int, seed: int
) -> Audited:
    """Assign an owner to each audited sample."""
    owners, fair_for = [], []
    for panel in panels:
        owners.append(_owners(panel, clients, n_fair=n_fair, extra_other=extra_other, seed=seed))
        is_fair = np.arange(len(panel.positions)) < n_fair
        fair_for.append(np.where(is_fair, panel.target, NO_CLIENT))
    return Audited(
        np.concatenate([panel.positions for panel in panels]),
        np.concatenate(owners),
        np.concatenate(fair_for),
        drawn_for=_targets_by_sample(panels),
    )


def _owners(
    panel: _Panel, clients: int, *, n_fair: int, extra_other: int, seed: int
) -> Int[ndarray, " audited"]:
    """Return owners by position: fair draws, then extra samples of others, then of no client."""
    rng = seeded_numpy(seed, "owners", panel.target)
    size = len(panel.positions)
    others = np.delete(np.arange(clients), panel.target)
    other = rng.choice(others, size=size)
    fair = np.choose(rng.integers(3, size=size), [np.full(size, panel.target), other, NO_CLIENT])
    extra = np.where(np.arange(size) < n_fair + extra_other, other, NO_CLIENT)
    return np.where(np.arange(size) < n_fair, fair, extra)


def _background_quotas(
    quotas: Quotas,
    panels: Sequence[_Panel],
    *,
    target_share: float,
    others_share: float,
    fixed: int | None,
) -> Quotas:
    """Return the number of background samples of each class that each client needs.

    A panel's target is expected to get ``target_share`` of it, and all other clients together
    ``others_share``. If ``fixed`` is not None, it is the size of each target's background.
    """
    clients = len(quotas)
    expected: Float[ndarray, "clients classes"] = np.zeros(quotas.shape)
    for panel in panels:
        share = np.full(clients, others_share / (clients - 1))
        share[panel.target] = target_share
        expected += share[:, None] * panel.counts
    sizes = np.maximum(np.rint(quotas.sum(axis=1) - expected.sum(axis=1)), 0).astype(np.int64)
    if fixed is not None:
        sizes[[panel.target for panel in panels]] = fixed
    missing = np.maximum(quotas - expected, 0)
    # If the audit covers a client's quota in every class, use the client's label distribution.
    is_covered = missing.sum(axis=1) == 0
    missing[is_covered] = quotas[is_covered]
    return np.stack([apportion(int(size), row) for size, row in zip(sizes, missing, strict=True)])


def _check_draw(clients: int, targets: Sequence[ClientId], numbers: Sequence[int]) -> None:
    check_targets(clients, targets)
    if min(numbers) < 0:
        raise BadInput(
            f"n_fair, extra_other, extra_unseen and background are {', '.join(map(str, numbers))}; "
            "give numbers of samples, 0 or more"
        )
    if not sum(numbers[:3]):
        raise BadInput(
            "no sample would be audited; give n_fair, the number of fairly drawn samples "
            f"({setting('audit.samples')} in a study)"
        )


def _check_people(
    dataset: Dataset, clients: int, clients_per_person: int, n_fair: int, n_extra: int
) -> None:
    if dataset.subject is None:
        raise BadInput(
            f"people are audited, but {dataset.name!r} does not state the person of each sample; "
            f"set {setting('data.options.person')}, or leave audit.unit at "
            '"sample"'
        )
    if not 1 <= clients_per_person < clients:
        raise BadInput(
            f"clients_per_person is {clients_per_person} of {clients} clients; give 1 to "
            f"{clients - 1}, so that at least one client has no samples of a person"
        )
    if n_fair < _MIN_PEOPLE:
        raise BadInput(
            f"{n_fair} people are audited, and only about a third become members; give at least "
            f"{_MIN_PEOPLE} ({setting('audit.samples')})"
        )
    if n_extra:
        raise BadInput(
            "extra_other and extra_unseen count single samples, but people are audited; set both "
            "to 0"
        )


def _check_enough(target: ClientId, needed: Counts, available: Counts) -> None:
    missing = np.maximum(needed - available, 0)
    if missing.any():
        worst = int(missing.argmax())
        raise BadInput(
            f"the audit of client {target} needs {needed.sum()} training samples of its label "
            f"distribution and is {missing.sum()} short: {needed[worst]} of class {worst} are "
            f"needed and {available[worst]} left; lower {setting('audit.samples')}, "
            f"the number of audited samples ({setting('shadow.fair')} in a shadow federation), or "
            "extra_other and extra_unseen, or make the clients' label distributions more similar "
            "(a larger beta)"
        )
