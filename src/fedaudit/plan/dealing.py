"""The deal of a run: clients' training data, audited samples, and groups of clients.

Samples that clients hold out of their training are not members.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import BadInput, Unsupported, setting, unknown_name
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NOBODY, ClientId, Samples
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Deal, other_positions
from fedaudit.datasets.draws.fair import DRAWS
from fedaudit.datasets.partitions.schemes import Natural, Partition
from fedaudit.datasets.partitions.shifts import (
    ATTRIBUTE,
    KINDS,
    BySide,
    Shift,
    apply_shift,
    assign_by_side,
    deal_by_code,
    deal_by_side,
    minority_groups,
    shift_clients,
    split_by_attribute,
)
from fedaudit.fl.algorithms.base import Algorithm, HoldsOut
from fedaudit.fl.hooks import Defense
from fedaudit.fl.simulate import prepare_data
from fedaudit.plan.named import check_options
from fedaudit.plan.sections import Study
from fedaudit.results.runs import ALL_CLIENTS


class HoldOutRule(NamedTuple):
    """What decides which of their samples clients hold out of training.

    Attributes:
        defenses: Defenses by client, which are not changed.
        algorithm: The federated algorithm.
        rounds: Number of rounds.
        seed: Seed of the simulated federation.
    """

    defenses: Mapping[ClientId, Defense]
    algorithm: Algorithm
    rounds: int
    seed: int


def exclude_held_out(deal: Deal, rule: HoldOutRule) -> Deal:
    """Return the deal in which audited samples that their client holds out count as unseen.

    Clients may hold samples out as validation data, for example. If this is decided for each sample
    alone, the samples that any client would hold out leave the fair draw, whoever owns them. The
    membership of the other samples is then as fair as before. Otherwise, no sample stays in the
    fair draw. Clients keep their data, and thus their weights in the average.
    """
    everyone_holds_out = isinstance(rule.algorithm, HoldsOut)
    acting = [
        client
        for client in sorted(deal.clients)
        if everyone_holds_out
        or (client in rule.defenses and rule.defenses[client].acts_in("prepare"))
    ]
    if not acting:
        return deal
    audit, ids = deal.audit, deal.audit.samples.ids.numpy()
    data = {client: deal.clients[client] for client in acting}
    trained = _ids(left_to_train(data, rule))
    held_out = {c: (audit.owner == c) & ~np.isin(ids, trained[c]) for c in acting}
    is_held_out = np.logical_or.reduce(list(held_out.values()))
    if not is_held_out.any():
        return deal
    # What each client would hold out if it owned every audited sample.
    if_owned = {
        client: ~np.isin(ids, trained_ids)
        for client, trained_ids in _ids(
            left_to_train(dict.fromkeys(acting, audit.samples), rule)
        ).items()
    }
    by_sample = all((if_owned[c] & (audit.owner == c) == held_out[c]).all() for c in acting)
    if by_sample:
        unfair = np.logical_or.reduce(list(if_owned.values()))
    else:
        unfair = np.ones_like(is_held_out)
    changed = replace(
        audit,
        owner=np.where(is_held_out, NOBODY, audit.owner),
        panel=np.where(unfair, NOBODY, audit.panel),
    )
    return replace(deal, audit=changed)


class TrainingData(NamedTuple):
    """The samples that clients train on, and copies of defenses that have prepared them."""

    samples: dict[ClientId, Samples]
    defenses: dict[ClientId, Defense]


def prepared_to_train(data: Mapping[ClientId, Samples], rule: HoldOutRule) -> TrainingData:
    """Return the samples of each client that it trains on, and the defenses after preparation."""
    defenses = deepcopy({c: rule.defenses[c] for c in data if c in rule.defenses})
    samples = prepare_data(data, defenses, rule.rounds, rule.seed)
    if isinstance(rule.algorithm, HoldsOut):
        held_out = partial(rule.algorithm.held_out, seed=rule.seed)
        samples = {c: part.take(~held_out(part.ids)) for c, part in samples.items()}
    return TrainingData(samples, defenses)


def left_to_train(data: Mapping[ClientId, Samples], rule: HoldOutRule) -> dict[ClientId, Samples]:
    """Return the samples of each client that it trains on."""
    return prepared_to_train(data, rule).samples


def refuse_one_sided(data: Mapping[ClientId, Samples], rule: HoldOutRule) -> None:
    """Raise if a client would hold out all of its samples, or none although it should."""
    if not isinstance(rule.algorithm, HoldsOut):
        return
    samples = prepare_data(data, deepcopy(dict(rule.defenses)), rule.rounds, rule.seed)
    for client, part in samples.items():
        count = int(rule.algorithm.held_out(part.ids, seed=rule.seed).sum())
        if count in (0, len(part)):
            raise BadInput(
                f"client {client} has {len(part)} samples and would hold out {count} of them, but "
                "it needs samples for training and for validation; give clients more samples "
                f"({setting('partition.samples_per_client')}; audit.background of an audited "
                f"client), or another share to hold out ({setting('algorithm.options.held_out')})"
            )


def _ids(data: Mapping[ClientId, Samples]) -> dict[ClientId, Int[ndarray, " _"]]:
    return {client: samples.ids.numpy() for client, samples in data.items()}


MAJORITY_AND_MINORITY = ("majority", "minority")


def dealt(study: Study, partition: Partition, dataset: Dataset, seed: int) -> Deal:
    """Draw the audited samples of a data set and give samples to clients.

    Raises:
        BadInput: The draw or an option does not exist, or there are too few data.
    """
    if dataset.client is not None or isinstance(partition, Natural):
        client = _named_clients(study, partition, dataset)
        return deal_by_code(
            dataset,
            client,
            study.partition.clients,
            lambda part: _dealt(study, part, partition, seed),
        )
    if study.shift is None or study.shift.kind != ATTRIBUTE:
        return _dealt(study, dataset, partition, seed)
    group = minority_groups(study.partition.clients, study.shift.minority)
    by_side = BySide(partition, tuple(group.tolist()))
    sides = split_by_attribute(dataset, study.shift.value)
    return deal_by_side(dataset, sides, lambda part: _dealt(study, part, by_side, seed))


def _named_clients(study: Study, partition: Partition, dataset: Dataset) -> Int[Tensor, " samples"]:
    """Return the client of each sample.

    Raises:
        BadInput: The data name no clients or another number of them, or the study divides the
            samples in another way.
        Unsupported: A shift divides the clients too.
    """
    names = dataset.client_names
    if dataset.client is None:
        raise BadInput(
            f"{setting('partition.scheme')} is 'natural', but {dataset.name!r} names no client of "
            f"its samples; set {setting('data.options.client')} to the column of a table, or use "
            "another partition"
        )
    if not isinstance(partition, Natural):
        raise BadInput(
            f"{dataset.name!r} names the client of each sample, but {setting('partition.scheme')} "
            f"is {study.partition.scheme!r}, which would mix them; use 'natural' "
            f"(fedaudit.partitions.Natural({len(names)})), or leave client out of the data"
        )
    if len(names) != study.partition.clients:
        raise BadInput(
            f"{dataset.name!r} names {len(names)} clients, but {setting('partition.clients')} is "
            f"{study.partition.clients}; set it to {len(names)}"
        )
    _refuse_small_targets(study, dataset, dataset.client)
    if study.shift is not None:
        raise Unsupported(
            f"{dataset.name!r} names the clients, which may differ already, and a shift divides "
            "them again; leave out one of them"
        )
    return dataset.client


def _refuse_small_targets(study: Study, dataset: Dataset, client: Int[Tensor, " samples"]) -> None:
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
            f"{setting('audit.samples')}, the number of audited samples, or audit another client"
        )


def _dealt(study: Study, dataset: Dataset, partition: Partition, seed: int) -> Deal:
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
        place: For every sample of the data set, by id, a client whose features it resembles.
    """

    names: tuple[str, ...]
    group: dict[ClientId, int]
    place: Int[ndarray, " samples"]


class GroupedData(NamedTuple):
    """A data set, a deal, and the groups of clients."""

    dataset: Dataset
    deal: Deal
    groups: Groups


def shifted_groups(study: Study, dataset: Dataset, deal: Deal, seed: int) -> GroupedData:
    """Return the data with shifted features, if the study has a shift.

    Raises:
        BadInput: The shift does not exist or does not apply to the data.
        Unsupported: The shift makes audited clients differ from each other.
    """
    if study.shift is not None and study.shift.kind not in KINDS:
        raise unknown_name("shift", study.shift.kind, KINDS)
    _refuse_different_targets(study)
    clients, section = sorted(deal.clients), study.shift
    place = shift_clients(dataset, deal, study.audit.targets, seed=seed)
    if dataset.client is not None:
        place = np.where(_is_dealt(dataset, deal), place, dataset.client.numpy())
    if section is None:
        return GroupedData(dataset, deal, Groups((ALL_CLIENTS,), dict.fromkeys(clients, 0), place))
    group = minority_groups(len(clients), section.minority)
    groups = Groups(MAJORITY_AND_MINORITY, dict(zip(clients, group.tolist(), strict=True)), place)
    if section.kind == ATTRIBUTE:
        sides = split_by_attribute(dataset, section.value)
        rng = seeded_numpy(seed, "places by attribute")
        assigned = np.concatenate([samples.ids.numpy() for samples in deal.clients.values()])
        unassigned = other_positions(len(dataset), assigned)
        place[unassigned] = assign_by_side(sides, group, unassigned, rng=rng)
        return GroupedData(dataset, deal, groups)
    shift = Shift(section.kind, section.minority, section.minority_range, section.majority_range)
    data = apply_shift(dataset, deal, shift, place, seed=seed)
    return GroupedData(data.dataset, data.deal, groups)


def _is_dealt(dataset: Dataset, deal: Deal) -> Bool[ndarray, " samples"]:
    """Return a mask of the samples that a client trains on, by id."""
    ids = np.concatenate([samples.ids.numpy() for samples in deal.clients.values()])
    return np.isin(np.arange(len(dataset)), ids)


def _refuse_different_targets(study: Study) -> None:
    # All targets are compared with the same non-members, which can resemble one of them only.
    audit, section = study.audit, study.shift
    clients = sorted({*audit.targets, *audit.merge})
    if section is None or len(clients) < 2:
        return
    if section.kind == ATTRIBUTE:
        group = minority_groups(study.partition.clients, section.minority)
        if len({int(group[c]) for c in clients if c < len(group)}) < 2:
            return
    raise Unsupported(
        f"clients {clients} are compared with the same non-members, but a shift makes their "
        "samples differ from each other, which attacks would mistake for membership; name "
        "one client in audit.targets, none in audit.merge, and run a study for each client"
    )
