"""Assignment of data to clients: training data, audited samples, and groups of clients.

Samples that a client holds out of its training are not members.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import BadInput, Unsupported, format_setting, unknown_name
from fedaudit.core.options import check_options
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NO_CLIENT, ClientId, Samples
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Assignment, other_positions
from fedaudit.datasets.draws.fair import DRAWS
from fedaudit.datasets.partitions.schemes import Natural, Partition
from fedaudit.fl.algorithms.base import Algorithm, HoldsOut
from fedaudit.fl.hooks import Defense
from fedaudit.fl.simulate import prepare_data
from fedaudit.plan.sections import ShiftSection, Study
from fedaudit.results.runs import ALL_CLIENTS


class HoldOutRule(NamedTuple):
    """Rule that decides which samples clients hold out of training, such as validation data.

    Attributes:
        defenses: Defenses by client; functions copy them before use.
        algorithm: The federated algorithm.
        rounds: Number of rounds.
        seed: Seed of the simulated federation.
    """

    defenses: Mapping[ClientId, Defense]
    algorithm: Algorithm
    rounds: int
    seed: int


def treat_held_out_as_unseen(assignment: Assignment, rule: HoldOutRule) -> Assignment:
    """Return the assignment, in which audited samples that clients hold out count as unseen.

    Membership of such a sample follows from the hold-out rule and not from a random draw, so it
    does not belong to the fair draw. If the rule decides about each sample independently, all
    samples that any client would hold out are removed from the fair draw. Otherwise, all samples
    are removed from it. Clients keep their data, so their weights in the average do not change.
    """
    all_hold_out = isinstance(rule.algorithm, HoldsOut)
    clients = [
        client
        for client in sorted(assignment.clients)
        if all_hold_out or (client in rule.defenses and rule.defenses[client].acts_in("prepare"))
    ]
    if not clients:
        return assignment
    audit, ids = assignment.audit, assignment.audit.samples.ids.numpy()
    data = {client: assignment.clients[client] for client in clients}
    trained = _ids(training_samples(data, rule))
    held_out = {
        client: (audit.owner == client) & ~np.isin(ids, trained[client]) for client in clients
    }
    is_held_out = np.logical_or.reduce(list(held_out.values()))
    if not is_held_out.any():
        return assignment
    # Determine the samples that each client would hold out if it had all audited samples.
    trained_of_all = _ids(training_samples(dict.fromkeys(clients, audit.samples), rule))
    held_out_of_all = {client: ~np.isin(ids, trained_of_all[client]) for client in clients}
    decides_independently = all(
        (held_out_of_all[client] & (audit.owner == client) == held_out[client]).all()
        for client in clients
    )
    if decides_independently:
        is_unfair = np.logical_or.reduce(list(held_out_of_all.values()))
    else:
        is_unfair = np.ones_like(is_held_out)
    changed_audit = replace(
        audit,
        owner=np.where(is_held_out, NO_CLIENT, audit.owner),
        fair_target=np.where(is_unfair, NO_CLIENT, audit.fair_target),
    )
    return replace(assignment, audit=changed_audit)


class TrainingData(NamedTuple):
    """Samples on which clients train, and copies of the defenses that prepared the samples."""

    samples: dict[ClientId, Samples]
    defenses: dict[ClientId, Defense]


def prepare_training(data: Mapping[ClientId, Samples], rule: HoldOutRule) -> TrainingData:
    """Apply the defenses' preparation of data, and remove the samples that clients hold out."""
    defenses = deepcopy({c: rule.defenses[c] for c in data if c in rule.defenses})
    samples = prepare_data(data, defenses, rule.rounds, rule.seed)
    if isinstance(rule.algorithm, HoldsOut):
        held_out = partial(rule.algorithm.held_out, seed=rule.seed)
        samples = {c: part.take(~held_out(part.ids)) for c, part in samples.items()}
    return TrainingData(samples, defenses)


def training_samples(
    data: Mapping[ClientId, Samples], rule: HoldOutRule
) -> dict[ClientId, Samples]:
    """Return the samples on which each client trains."""
    return prepare_training(data, rule).samples


def raise_if_empty_split(data: Mapping[ClientId, Samples], rule: HoldOutRule) -> None:
    """Raise if a client would hold out all of its samples for validation, or none."""
    if not isinstance(rule.algorithm, HoldsOut):
        return
    samples = prepare_data(data, deepcopy(dict(rule.defenses)), rule.rounds, rule.seed)
    for client, part in samples.items():
        count = int(rule.algorithm.held_out(part.ids, seed=rule.seed).sum())
        if count in (0, len(part)):
            raise BadInput(
                f"client {client} has {len(part)} samples and would hold out {count} of them for "
                "validation, but it needs some for training and some for validation; give clients "
                "more samples "
                f"({format_setting('partition.samples_per_client')}; audit.background for an "
                "audited client), or change the fraction to hold out "
                f"({format_setting('algorithm.options.held_out')})"
            )


def _ids(data: Mapping[ClientId, Samples]) -> dict[ClientId, Int[ndarray, " _"]]:
    return {client: samples.ids.numpy() for client, samples in data.items()}


MAJORITY_AND_MINORITY = ("majority", "minority")


def draw_assignment(study: Study, partition: Partition, dataset: Dataset, seed: int) -> Assignment:
    """Draw the audited samples of a data set, and divide training samples among clients.

    Raises:
        BadInput: The draw or an option does not exist, or there are too few samples.
    """
    if study.shift is None and dataset.client is None and not isinstance(partition, Natural):
        return _draw_assignment(study, dataset, partition, seed)
    from fedaudit.datasets.partitions import shifts  # Few studies have groups of clients.

    if dataset.client is not None or isinstance(partition, Natural):
        client = _named_clients(study, partition, dataset)
        return shifts.draw_by_code(
            dataset,
            client,
            study.partition.clients,
            lambda part: _draw_assignment(study, part, partition, seed),
        )
    if study.shift is None or study.shift.kind != shifts.ATTRIBUTE:
        return _draw_assignment(study, dataset, partition, seed)
    group = shifts.minority_groups(study.partition.clients, study.shift.minority)
    by_attribute = shifts.PartitionByAttribute(partition, tuple(group.tolist()))
    split = shifts.split_by_attribute(dataset, study.shift.value)
    return shifts.draw_by_code(
        dataset,
        split.is_minority.long(),
        2,
        lambda part: _draw_assignment(study, part, by_attribute, seed),
    )


def _named_clients(study: Study, partition: Partition, dataset: Dataset) -> Int[Tensor, " samples"]:
    """Return the client of each sample.

    Raises:
        BadInput: The data do not name clients, or another number of clients than the study, or the
            study has another partition.
        Unsupported: The study also has a shift.
    """
    names = dataset.client_names
    if dataset.client is None:
        raise BadInput(
            f"{format_setting('partition.scheme')} is 'natural', but {dataset.name!r} does not "
            f"name the client of each sample; set {format_setting('data.options.client')} to the "
            "column of a table, or use another partition"
        )
    if not isinstance(partition, Natural):
        raise BadInput(
            f"{dataset.name!r} names the client of each sample, but "
            f"{format_setting('partition.scheme')} is {study.partition.scheme!r}, which assigns "
            f"samples to other clients; use 'natural' (fedaudit.partitions.Natural({len(names)})), "
            "or remove the option client of the data"
        )
    if len(names) != study.partition.clients:
        raise BadInput(
            f"{dataset.name!r} names {len(names)} clients, but "
            f"{format_setting('partition.clients')} is {study.partition.clients}; set it to "
            f"{len(names)}"
        )
    _raise_if_small_targets(study, dataset, dataset.client)
    if study.shift is not None:
        raise Unsupported(
            f"{dataset.name!r} names the client of each sample, which cannot be combined with a "
            "shift, since the clients' features may already differ; remove the option client of "
            "the data, or the shift"
        )
    return dataset.client


def _raise_if_small_targets(
    study: Study, dataset: Dataset, client: Int[Tensor, " samples"]
) -> None:
    """Raise if an audited client has fewer training samples than its audit needs."""
    audit, counts = study.audit, torch.bincount(client[: len(dataset.train)]).tolist()
    if audit.draw != "fair" or audit.unit != "sample":
        return
    needed = audit.samples + audit.extra_other + audit.extra_unseen
    small = [target for target in audit.targets if target < len(counts) and counts[target] < needed]
    if small:
        raise BadInput(
            f"the audit of client {small[0]} ({dataset.client_names[small[0]]!r}) needs {needed} "
            f"of its training samples, but it has {counts[small[0]]}; lower "
            f"{format_setting('audit.samples')}, the number of audited samples, or audit another "
            "client"
        )


def _draw_assignment(study: Study, dataset: Dataset, partition: Partition, seed: int) -> Assignment:
    audit = study.audit
    if audit.draw not in DRAWS:
        raise unknown_name("draw", audit.draw, DRAWS)
    settings: dict[str, object] = {
        "clients": study.partition.clients,
        "partition": partition,
        "seed": seed,
        "targets": audit.targets,
    }
    if audit.draw == "fair":
        settings |= {
            "n_fair": audit.samples,
            "extra_other": audit.extra_other,
            "extra_unseen": audit.extra_unseen,
            "background": audit.background,
            "unit": audit.unit,
            "clients_per_person": audit.clients_per_person,
        }
    if audit.options:
        check_options(
            "draw",
            audit.draw,
            DRAWS[audit.draw],
            audit.options,
            complete=False,
            set_elsewhere=audit.set_elsewhere,
        )
    return DRAWS[audit.draw](dataset, **settings, **audit.options)


class Groups(NamedTuple):
    """Groups of clients whose features differ between groups.

    Attributes:
        names: Names of the groups.
        group: Index of the group of each client.
        similar_client: For every sample of the data set, by id, a client with similar features.
    """

    names: tuple[str, ...]
    group: dict[ClientId, int]
    similar_client: Int[ndarray, " samples"]


class GroupedData(NamedTuple):
    """Data set, assignment, and groups of clients."""

    dataset: Dataset
    assignment: Assignment
    groups: Groups


def similar_clients(
    dataset: Dataset, assignment: Assignment, targets: Sequence[ClientId], *, seed: int
) -> Int[ndarray, " samples"]:
    """Return, for every sample of a data set, the client whose shift it gets.

    - Training samples get the shift of their client.
    - Audited held-out samples are divided equally among the targets, so that no shift distinguishes
      them from members.
    - All other samples, including the test part, are divided equally among all clients.
    """
    clients, rng = np.array(sorted(assignment.clients)), seeded_numpy(seed, "places")
    client_of_sample = np.empty(len(dataset), dtype=np.int64)
    for part in (dataset.train.ids.numpy(), dataset.test.ids.numpy()):
        client_of_sample[rng.permutation(part)] = np.resize(clients, len(part))
    client_of_sample[assignment.audit.samples.ids.numpy()] = np.resize(
        np.array(targets), len(assignment.audit)
    )
    for client, samples in assignment.clients.items():
        client_of_sample[samples.ids.numpy()] = client
    return client_of_sample


def shifted_groups(
    study: Study, dataset: Dataset, assignment: Assignment, seed: int
) -> GroupedData:
    """Return the data with shifted features, if the study has a shift.

    Raises:
        BadInput: The shift does not exist or does not apply to the data.
        Unsupported: The shift makes audited clients differ from each other.
    """
    if study.shift is not None:
        _raise_if_unfit_shift(study, study.shift)
    clients, section = sorted(assignment.clients), study.shift
    similar_client = similar_clients(dataset, assignment, study.audit.targets, seed=seed)
    if dataset.client is not None:
        is_assigned = _is_assigned(dataset, assignment)
        similar_client = np.where(is_assigned, similar_client, dataset.client.numpy())
    if section is None:
        one_group = Groups((ALL_CLIENTS,), dict.fromkeys(clients, 0), similar_client)
        return GroupedData(dataset, assignment, one_group)
    from fedaudit.datasets.partitions import shifts

    group = shifts.minority_groups(len(clients), section.minority)
    group_of_client = dict(zip(clients, group.tolist(), strict=True))
    groups = Groups(MAJORITY_AND_MINORITY, group_of_client, similar_client)
    if section.kind == shifts.ATTRIBUTE:
        split = shifts.split_by_attribute(dataset, section.value)
        rng = seeded_numpy(seed, "places by attribute")
        assigned = np.concatenate([samples.ids.numpy() for samples in assignment.clients.values()])
        unassigned = other_positions(len(dataset), assigned)
        similar_client[unassigned] = shifts.assign_held_out(split, group, unassigned, rng=rng)
        return GroupedData(dataset, assignment, groups)
    shift = shifts.Shift(
        section.kind, section.minority, section.minority_range, section.majority_range
    )
    data = shifts.apply_shift(dataset, assignment, shift, similar_client, seed=seed)
    return GroupedData(data.dataset, data.assignment, groups)


def _is_assigned(dataset: Dataset, assignment: Assignment) -> Bool[ndarray, " samples"]:
    """Return a mask by sample id of the samples that are assigned to any client."""
    ids = np.concatenate([samples.ids.numpy() for samples in assignment.clients.values()])
    return np.isin(np.arange(len(dataset)), ids)


def _raise_if_unfit_shift(study: Study, section: ShiftSection) -> None:
    from fedaudit.datasets.partitions import shifts

    if section.kind not in shifts.SHIFT_KINDS:
        raise unknown_name("shift", section.kind, shifts.SHIFT_KINDS)
    # All targets are compared with the same non-members, whose features can match only one target.
    clients = sorted({*study.audit.targets, *study.audit.merge})
    if len(clients) < 2:
        return
    if section.kind == shifts.ATTRIBUTE:
        group = shifts.minority_groups(study.partition.clients, section.minority)
        if len({int(group[c]) for c in clients if c < len(group)}) < 2:
            return
    raise Unsupported(
        f"clients {clients} would be compared with the same non-members, but with a shift, their "
        "features differ, which attacks would mistake for membership; give one client in "
        "audit.targets and none in audit.merge, and run a study for each client"
    )
