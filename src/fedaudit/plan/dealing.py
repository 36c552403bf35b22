"""Training data, audited samples and groups of clients, as a study's partition deals them.

Samples that clients keep out of their training are excluded from the truth about members.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from fedaudit.core.errors import BadInput, Unsupported, setting, unknown_name
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NOBODY, ClientId, Samples
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Deal, all_but
from fedaudit.datasets.draws.fair import DRAWS
from fedaudit.datasets.partitions.schemes import Partition
from fedaudit.datasets.partitions.shifts import (
    SHIFTS,
    BySide,
    Shift,
    dealt_by_side,
    like_their_side,
    of_clients,
    places,
    shifted,
    sides_of,
)
from fedaudit.fl.algorithms.base import Algorithm, HoldsOut
from fedaudit.fl.hooks import Defense
from fedaudit.fl.simulate import prepare_data
from fedaudit.plan.options import check_options
from fedaudit.plan.sections import Study
from fedaudit.results.clusters import EVERYBODY


class HoldOutRule(NamedTuple):
    """The rule that decides which of their samples clients train on.

    Attributes:
        defenses: By client; they are left as they are.
        algorithm: Some have clients hold samples out.
        rounds: Of the run.
        seed: That the federation is simulated with.
    """

    defenses: Mapping[ClientId, Defense]
    algorithm: Algorithm
    rounds: int
    seed: int


def exclude_held_out(deal: Deal, given: HoldOutRule) -> Deal:
    """The deal with the truth about samples that clients hold out of their training.

    An audited sample that its client holds out (as validation data, say) counts as unseen. Where
    samples are held out by a rule on each sample alone, the same samples leave the fair draw
    whoever owns them, so that among the rest membership stays as fair as it was drawn; where it
    does not, no sample is fair any more. Clients keep their data, and with it their weights.

    Args:
        deal: As dealt.
        given: What decides which.
    """
    everybody = isinstance(given.algorithm, HoldsOut)
    acting = [
        client
        for client in sorted(deal.clients)
        if everybody or (client in given.defenses and given.defenses[client].acts_in("prepare"))
    ]
    if not acting:
        return deal
    audit, ids = deal.audit, deal.audit.samples.ids.numpy()
    mine = {client: deal.clients[client] for client in acting}
    left = _ids(left_to_train(mine, given))
    held = {c: (audit.owner == c) & ~np.isin(ids, left[c]) for c in acting}
    anywhere = np.logical_or.reduce(list(held.values()))
    if not anywhere.any():
        return deal
    # What would be held out if every audited sample were this client's.
    would = {
        client: ~np.isin(ids, kept)
        for client, kept in _ids(left_to_train(dict.fromkeys(acting, audit.samples), given)).items()
    }
    by_sample = all((would[c] & (audit.owner == c) == held[c]).all() for c in acting)
    gone = np.logical_or.reduce(list(would.values())) if by_sample else np.ones_like(anywhere)
    changed = replace(
        audit,
        owner=np.where(anywhere, NOBODY, audit.owner),
        panel=np.where(gone, NOBODY, audit.panel),
    )
    return replace(deal, audit=changed)


def left_to_train(data: Mapping[ClientId, Samples], given: HoldOutRule) -> dict[ClientId, Samples]:
    """Clients' samples that are left to train on.

    Args:
        data: By client.
        given: What decides.
    """
    guards = {client: given.defenses[client] for client in data if client in given.defenses}
    left = prepare_data(data, deepcopy(guards), given.rounds, given.seed)
    if not isinstance(given.algorithm, HoldsOut):
        return left
    algorithm, seed = given.algorithm, given.seed
    return {c: mine.take(~algorithm.held_out(mine.ids, seed=seed)) for c, mine in left.items()}


def refuse_one_sided(data: Mapping[ClientId, Samples], given: HoldOutRule) -> None:
    """Refuses a run in which a client that is to hold samples out would keep out none, or all.

    Args:
        data: By client.
        given: What decides.

    Raises:
        BadInput: There is such a client.
    """
    if not isinstance(given.algorithm, HoldsOut):
        return
    for client, mine in prepare_data(
        data, deepcopy(dict(given.defenses)), given.rounds, given.seed
    ).items():
        apart = int(given.algorithm.held_out(mine.ids, seed=given.seed).sum())
        if apart in (0, len(mine)):
            raise BadInput(
                f"client {client} has {len(mine)} samples and would hold out {apart} of them, and "
                "it needs some on either side; give clients more samples "
                f"({setting('partition.samples_per_client')}; audit.background of an audited "
                f"client), or another share to hold out ({setting('algorithm.options.held_out')})"
            )


def _ids(data: Mapping[ClientId, Samples]) -> dict[ClientId, Int[ndarray, " _"]]:
    return {client: samples.ids.numpy() for client, samples in data.items()}


ATTRIBUTE = "attribute"
"""The kind of shift in which groups of clients have different people."""

MAJORITY_AND_MINORITY = ("majority", "minority")


def dealt(study: Study, partition: Partition, dataset: Dataset, seed: int) -> Deal:
    """Deal a data set out under one seed.

    Args:
        study: Its settings of clients, audit and shift.
        partition: How training samples are dealt.
        dataset: Whose samples are dealt.
        seed: Of the run.

    Raises:
        BadInput: A draw or setting that does not exist, or data that do not suffice.
    """
    if study.shift is None or study.shift.kind != ATTRIBUTE:
        return _dealt(study, dataset, partition, seed)
    group = of_clients(study.partition.clients, study.shift.minority)
    each = BySide(partition, tuple(group.tolist()))
    sides = sides_of(dataset, study.shift.value)
    return dealt_by_side(dataset, sides, lambda part: _dealt(study, part, each, seed))


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
            "n_fair": audit.fair,
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
    """Groups of clients with features of their own.

    Attributes:
        names: Of the groups.
        group: For each client, its group.
        place: For every sample of the data set, by id, the client whose data it is like.
    """

    names: tuple[str, ...]
    group: dict[ClientId, int]
    place: Int[ndarray, " samples"]


class GroupedData(NamedTuple):
    """A data set and a deal as the groups of clients have them."""

    dataset: Dataset
    deal: Deal
    groups: Groups


def grouped(study: Study, dataset: Dataset, deal: Deal, seed: int) -> GroupedData:
    """Shifts the samples of groups of clients, if the study has such groups.

    Raises:
        BadInput: No such shift, or samples cannot be shifted that way.
        Unsupported: Several clients are audited whose samples the shift tells apart.
    """
    if study.shift is not None and study.shift.kind not in (*SHIFTS, ATTRIBUTE):
        raise unknown_name("shift", study.shift.kind, (*SHIFTS, ATTRIBUTE))
    _refuse_different_targets(study)
    clients, given = sorted(deal.clients), study.shift
    place = places(dataset, deal, study.audit.targets, seed=seed)
    if given is None:
        return GroupedData(dataset, deal, Groups((EVERYBODY,), dict.fromkeys(clients, 0), place))
    group = of_clients(len(clients), given.minority)
    groups = Groups(MAJORITY_AND_MINORITY, dict(zip(clients, group.tolist(), strict=True)), place)
    if given.kind == ATTRIBUTE:
        sides, rng = sides_of(dataset, given.value), seeded_numpy(seed, "places by attribute")
        held = np.concatenate([samples.ids.numpy() for samples in deal.clients.values()])
        free = all_but(len(dataset), held)
        place[free] = like_their_side(sides, group, free, rng=rng)
        return GroupedData(dataset, deal, groups)
    shift = Shift(given.kind, given.minority, given.minority_range, given.majority_range)
    world = shifted(dataset, deal, shift, place, seed=seed)
    return GroupedData(world.dataset, world.deal, groups)


def _refuse_different_targets(study: Study) -> None:
    """One set of unseen samples cannot be like several clients that a shift makes different."""
    audit, given = study.audit, study.shift
    together = sorted({*audit.targets, *audit.merge})
    if given is None or len(together) < 2:
        return
    if given.kind == ATTRIBUTE:
        group = of_clients(study.partition.clients, given.minority)
        if len({int(group[c]) for c in together if c < len(group)}) < 2:
            return
    raise Unsupported(
        f"clients {together} are audited against the same samples of nobody, and a shift makes "
        "their own differ from each other's, so that the shift would pass for membership; name "
        "one client in audit.targets, none in audit.merge, and carry out a study for each"
    )
