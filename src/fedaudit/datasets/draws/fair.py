"""Draws of the audit set: the fair draw, canaries, and the draws of published papers by name."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import BadInput, Unsupported, format_setting
from fedaudit.core.seeds import seeded, seeded_numpy
from fedaudit.core.values import NO_CLIENT, ClientId, Samples, positions_of
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import (
    Assignment,
    AuditedIds,
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

CANARY_KINDS = ("mislabelled", "noise", "gradient")


def _noise_like(samples: Samples, dataset: Dataset, rng: torch.Generator) -> Tensor:
    """Return normal noise with the root mean square of the training features.

    Its mean is 0, so that two canaries are almost orthogonal. Their gradients in a first layer
    are then almost orthogonal, too.
    """
    train = dataset.train.features
    scale = train.double().square().mean().sqrt().to(train.dtype)
    noise = torch.randn(samples.features.shape, generator=rng, dtype=train.dtype)
    return scale * noise.to(train.device)


# About a third of the audited people become members, so fewer people often give no member.
_MIN_PEOPLE = 4


class _TargetDraw(NamedTuple):
    """Samples that are audited for one target, before owners are assigned.

    Attributes:
        target: The audited client.
        positions: Positions of the samples in the training part.
        class_counts: Number of the samples in each class.
        person: Person of each sample, if people were drawn.
    """

    target: ClientId
    positions: Int[ndarray, " audited"]
    class_counts: Counts
    person: Int[ndarray, " audited"] | None = None


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
    like leakage.

    The partition assigns the other training samples of each client, its background, from the
    remaining data. The background depends on which samples are audited, but not on which client
    gets them: bounds on epsilon need this independence. The background fills a client up to its
    size in the partition, given its expected number of audited samples. Clients' sizes are
    therefore close to their sizes in the partition, but not equal; see :attr:`Assignment.sizes`.

    With ``unit="person"``, people are drawn uniformly from the training part, each with all of
    their samples. Each person goes to the target, to another client or to no client, with
    probability 1/3 each. The client gets all samples of the person. With ``clients_per_person``
    above 1 it gets a fraction of them, like a hospital that has some of the samples of a patient
    who visits several hospitals.

    With several targets, samples are drawn separately for each, with its label distribution. Only
    these samples are a fair draw for the target. If label distributions differ, estimates for a
    target leave out the samples that were drawn for other targets.

    Args:
        dataset: Data set whose training part is drawn from; its test part is not used.
        clients: Number of clients, at least 2.
        partition: Label distribution and size of every client.
        n_fair: Fairly drawn samples, or people, per target; about a third become members.
        seed: Root seed of all random draws.
        targets: Audited clients.
        extra_other: Further audited samples of other clients, per target.
        extra_unseen: Further audited samples of no client, per target.
        background: Background samples per target; None fills a target up like other clients.
        unit: Unit of the fair draw: a "sample", or a "person" with all their samples.
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
    if unit == "person":
        _check_people(dataset, clients, clients_per_person, n_fair, extra_other + extra_unseen)
        draws = _draw_people(dataset, targets=targets, size=n_fair, seed=seed)
        audited_units = _assign_people(draws, clients, clients_per_person, seed=seed)
        target_fraction = 1 / 3 / clients_per_person
        others_fraction = 2 / 3 - target_fraction
    else:
        size = n_fair + extra_other + extra_unseen
        draws = _draw_samples(labels, quotas, targets=targets, size=size, seed=seed)
        audited_units = _assign_samples(
            draws, clients, n_fair=n_fair, n_other=extra_other, seed=seed
        )
        target_fraction = n_fair / 3 / size
        others_fraction = (n_fair / 3 + extra_other) / size
    free_positions = other_positions(len(labels), audited_units.ids)
    background_quotas = _background_quotas(
        quotas,
        draws,
        target_fraction=target_fraction,
        others_fraction=others_fraction,
        fixed_size=background,
    )
    rng = seeded_numpy(seed, "background")
    available = np.bincount(labels[free_positions], minlength=dataset.classes)
    background_positions = assign_samples(
        labels[free_positions], limit_quotas(background_quotas, available, rng=rng), rng=rng
    )
    # Ids of the training part are positions in it.
    training_ids = {
        client: np.concatenate(
            [free_positions[positions], audited_units.ids[audited_units.owner == client]]
        )
        for client, positions in enumerate(background_positions)
    }
    empty = [target for target in targets if not len(training_ids[target])]
    if empty and background == 0:
        raise BadInput(
            f"client {empty[0]} has no samples: its background (audit.background) is 0, and it "
            f"got none of the {n_fair} fairly drawn {'people' if unit == 'person' else 'samples'}; "
            "raise or omit audit.background, or draw more (audit.samples)"
        )
    return build_assignment(dataset, training_ids, audited_units, seed=seed)


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
    """Draw canaries, unusual samples, and decide by fair coins which are members.

    A model can predict a wrong label only if it was trained on it. Bounds on epsilon from one run
    are therefore tighter than with ordinary samples. Member and non-member canaries differ only in
    their coin. The canaries are divided equally among the targets. A target has as many other
    samples as in the partition.

    Args:
        dataset: Data set whose training part is drawn from; its test part is not used.
        clients: Number of clients, at least 2.
        partition: Label distribution and size of every client.
        seed: Root seed of all random draws.
        targets: Audited clients.
        count: Canaries per target; about half of them are trained on.
        kind: "mislabelled" for samples of the data set; "noise" for random normal features with
            mean 0 and the root mean square of real features, which resemble no other sample;
            "gradient" for samples whose gradients in DP-SGD are replaced by random directions with
            the clip norm.

    Raises:
        BadInput: The kind does not exist, a target or number is out of range, or there are too few
            training samples.
        Unsupported: A wrong label is needed and the task has no classes, or noise would replace
            tokens.

    Source: Steinke, Nasr and Jagielski 2023 (many canaries in one run, by fair coins); Nasr et al.
    2023, Tight Auditing of Differentially Private Machine Learning (mislabelled samples).
    Differs: Canaries are trained on in every round, as other samples are.
    """
    if count < 2:
        raise BadInput(f"the number of canaries is {count}; give at least 2 (audit.options.count)")
    if kind not in CANARY_KINDS:
        raise BadInput(
            f"the kind of canaries is {kind!r}; give 'mislabelled', 'noise' or 'gradient'"
        )
    # At first, no client trains on an audited sample.
    assignment = draw(
        dataset,
        clients=clients,
        partition=partition,
        n_fair=0,
        extra_unseen=count,
        seed=seed,
        targets=targets,
    )
    # The stream keeps its first name, so that the same seed draws the same canaries.
    rng = seeded(seed, "canary records")
    samples = assignment.audit.samples
    if kind != "gradient":
        samples = _mislabelled(samples, dataset, kind, rng)
    coin_rng = seeded_numpy(seed, "canary coins")
    fair_target = np.asarray(targets)[coin_rng.permutation(len(samples)) % len(targets)]
    owner = np.where(coin_rng.random(len(samples)) < 0.5, fair_target, NO_CLIENT)
    samples_by_client = dict(assignment.clients)
    for client in targets:
        canaries_of_client = samples.take(torch.from_numpy(owner == client))
        client_samples = Samples.concatenate(assignment.clients[client], canaries_of_client)
        order = seeded_numpy(seed, "order with canaries", client).permutation(len(client_samples))
        samples_by_client[client] = client_samples.take(torch.from_numpy(order))
    canary_audit = AuditSet(samples, owner, fair_target, assignment.audit.group)
    return replace(assignment, clients=samples_by_client, audit=canary_audit)


def _mislabelled(samples: Samples, dataset: Dataset, kind: str, rng: torch.Generator) -> Samples:
    """Return samples with wrong labels, and for the kind "noise" with random features."""
    has_classes = samples.targets.ndim == 1 and not samples.targets.is_floating_point()
    # Classes are counted from targets, because a draw by groups encodes group numbers in labels.
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
    # The shift is never a multiple of the number of classes, so every label becomes wrong.
    label_shift = torch.randint(1, classes, (len(samples),), generator=rng)
    return samples.replace(targets=(samples.targets + label_shift) % classes)


PUBLISHED_DRAWS = frozenset({"fedmia_paper", "fedmia_code", "cofedmid"})
"""Draws of papers, whose members and non-members may differ in distribution. Reports state that
membership was not drawn fairly."""

CLIENT_SAMPLE_DRAWS = PUBLISHED_DRAWS | {"sia"}
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
) -> list[_TargetDraw]:
    """Draw disjoint sets of samples for the targets, each with its target's label distribution."""
    rng = seeded_numpy(seed, "audit records")
    classes = quotas.shape[1]
    pools = shuffled_classes(labels, classes, rng)
    used_by_class = np.zeros(classes, dtype=np.int64)
    draws = []
    for target in targets:
        needed = apportion(size, quotas[target])
        _check_enough(target, needed, np.array([len(pool) for pool in pools]) - used_by_class)
        drawn_positions = [
            pool[start : start + count]
            for pool, start, count in zip(pools, used_by_class, needed, strict=True)
        ]
        draws.append(_TargetDraw(target, rng.permutation(np.concatenate(drawn_positions)), needed))
        used_by_class = used_by_class + needed
    return draws


def _draw_people(
    dataset: Dataset, *, targets: Sequence[ClientId], size: int, seed: int
) -> list[_TargetDraw]:
    """Draw disjoint sets of people for the targets, with all samples of each person.

    If the data name clients, only people whose samples all belong to a target are drawn for it.
    """
    assert dataset.person is not None
    person = dataset.person[: len(dataset.train)].numpy()
    if dataset.client is None:
        people = np.unique(person)
        if size * len(targets) > len(people):
            raise BadInput(
                f"{size} people are audited for each of {len(targets)} clients, and the training "
                f"part has samples of {len(people)}; lower {format_setting('audit.samples')}, the "
                "number of audited people"
            )
        shuffled = seeded_numpy(seed, "audit records").permutation(people)
        people_by_target = [shuffled[i * size : (i + 1) * size] for i in range(len(targets))]
    else:
        client = dataset.client[: len(dataset.train)].numpy()
        people_by_target = []
        for target in targets:
            people = np.setdiff1d(person[client == target], person[client != target])
            if size > len(people):
                raise BadInput(
                    f"{size} people of client {target} are audited, and {len(people)} have "
                    "training samples of this client alone; lower "
                    f"{format_setting('audit.samples')}, the number of audited people"
                )
            rng = seeded_numpy(seed, "audit records", target)
            people_by_target.append(rng.permutation(people)[:size])
    labels = dataset.train.labels.numpy()
    draws = []
    for target, people in zip(targets, people_by_target, strict=True):
        positions = np.flatnonzero(np.isin(person, people))
        class_counts = np.bincount(labels[positions], minlength=dataset.classes)
        draws.append(_TargetDraw(target, positions, class_counts, person[positions]))
    return draws


def _assign_people(
    draws: Sequence[_TargetDraw], clients: int, clients_per_person: int, *, seed: int
) -> AuditedIds:
    """Assign each person to clients, and each sample of a person to one of these clients."""
    owners, fair_targets, people_drawn = [], [], []
    for target, drawn, _, person in draws:
        assert person is not None
        rng = seeded_numpy(seed, "owners", target)
        owner = np.full(len(drawn), NO_CLIENT, dtype=np.int64)
        other_clients = np.delete(np.arange(clients), target)
        for positions in positions_of(person).values():
            # Make all draws for every person, so that no draw depends on an earlier outcome.
            outcome = int(rng.integers(3))
            assigned = rng.permutation(other_clients)[:clients_per_person]
            if outcome == 0:
                assigned[0] = target
            shuffled = rng.permutation(positions)
            if outcome < 2:
                owner[shuffled] = np.resize(assigned, len(shuffled))
        owners.append(owner)
        fair_targets.append(np.full(len(drawn), target))
        people_drawn.append(person)
    return AuditedIds(
        np.concatenate([drawn.positions for drawn in draws]),
        np.concatenate(owners),
        np.concatenate(fair_targets),
        np.concatenate(people_drawn),
    )


def _assign_samples(
    draws: Sequence[_TargetDraw], clients: int, *, n_fair: int, n_other: int, seed: int
) -> AuditedIds:
    """Assign an owner to each audited sample of every target."""
    owners, fair_targets, targets = [], [], []
    for drawn in draws:
        owners.append(_owners(drawn, clients, n_fair=n_fair, n_other=n_other, seed=seed))
        index = np.arange(len(drawn.positions))
        fair_targets.append(np.where(index < n_fair, drawn.target, NO_CLIENT))
        targets.append(np.full(len(index), drawn.target))
    return AuditedIds(
        np.concatenate([drawn.positions for drawn in draws]),
        np.concatenate(owners),
        np.concatenate(fair_targets),
        drawn_for=np.concatenate(targets),
    )


def _owners(
    drawn: _TargetDraw, clients: int, *, n_fair: int, n_other: int, seed: int
) -> Int[ndarray, " audited"]:
    """Draw the owners of a target's samples.

    The owners of the first ``n_fair`` samples are drawn fairly. The next ``n_other`` samples get
    other clients, and the remaining samples no client.
    """
    rng = seeded_numpy(seed, "owners", drawn.target)
    size = len(drawn.positions)
    target = np.full(size, drawn.target)
    other_client = rng.choice(np.delete(np.arange(clients), drawn.target), size=size)
    fair = np.choose(rng.integers(3, size=size), [target, other_client, NO_CLIENT])
    index = np.arange(size)
    extra = np.where(index < n_fair + n_other, other_client, NO_CLIENT)
    return np.where(index < n_fair, fair, extra)


def _background_quotas(
    quotas: Quotas,
    draws: Sequence[_TargetDraw],
    *,
    target_fraction: float,
    others_fraction: float,
    fixed_size: int | None,
) -> Quotas:
    """Return the number of background samples of each class that each client needs.

    Of the samples that are audited for a target, the target is expected to get
    ``target_fraction``, and all other clients together ``others_fraction``. If ``fixed_size`` is
    not None, it is the size of each target's background.
    """
    clients = len(quotas)
    expected: Float[ndarray, "clients classes"] = np.zeros(quotas.shape)
    for drawn in draws:
        fraction = np.full(clients, others_fraction / (clients - 1))
        fraction[drawn.target] = target_fraction
        expected += fraction[:, None] * drawn.class_counts
    sizes = np.maximum(np.rint(quotas.sum(axis=1) - expected.sum(axis=1)), 0).astype(np.int64)
    if fixed_size is not None:
        sizes[[drawn.target for drawn in draws]] = fixed_size
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
            f"({format_setting('audit.samples')} in a study)"
        )


def _check_people(
    dataset: Dataset, clients: int, clients_per_person: int, n_fair: int, n_extra: int
) -> None:
    if dataset.person is None:
        raise BadInput(
            f"people are audited, but {dataset.name!r} does not state the person of each sample; "
            f"set {format_setting('data.options.person')}, or leave audit.unit at "
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
            f"{_MIN_PEOPLE} ({format_setting('audit.samples')})"
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
            f"needed and {available[worst]} left; lower {format_setting('audit.samples')}, "
            f"the number of audited samples ({format_setting('shadow.fair')} in a shadow "
            "federation), or extra_other and extra_unseen, or make the clients' label "
            "distributions more similar (a larger beta)"
        )
