"""Samples that clients keep out of training, which the audit's truth must exclude."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.core.values import NOBODY, ClientId, Samples
from fedaudit.datasets.draws.audit_set import Deal
from fedaudit.fl.algorithms.base import Algorithm, HoldsOut
from fedaudit.fl.hooks import Defense
from fedaudit.fl.simulate import prepared


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
    left = prepared(data, deepcopy(guards), given.rounds, given.seed)
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
    for client, mine in prepared(
        data, deepcopy(dict(given.defenses)), given.rounds, given.seed
    ).items():
        apart = int(given.algorithm.held_out(mine.ids, seed=given.seed).sum())
        if apart in (0, len(mine)):
            raise BadInput(
                f"client {client} has {len(mine)} samples and would hold out {apart} of them, and "
                "it needs some on either side; give clients more samples "
                "(partition.samples_per_client; audit.background of an audited client), or another "
                "share to hold out (algorithm.options.held_out)"
            )


def _ids(data: Mapping[ClientId, Samples]) -> dict[ClientId, Int[ndarray, " _"]]:
    return {client: samples.ids.numpy() for client, samples in data.items()}
