"""What defenses keep out of training is not trained on, and the audit's truth must say so."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from fedaudit.core import NOBODY, ClientId, Samples
from fedaudit.data.deal import Deal
from fedaudit.defenses.base import Defense
from fedaudit.fl.simulate import prepared


def as_trained(deal: Deal, defenses: Mapping[ClientId, Defense], *, rounds: int, seed: int) -> Deal:
    """The deal with the truth about samples that defenses hold out of their clients' training.

    An audited sample that its owner holds out (as validation data, say) is nobody's: it counts
    as unseen. Where a defense holds samples out by a rule on each sample alone, the same samples
    leave the fair draw whoever owns them, so that among the rest membership stays as fair as it
    was drawn; where it does not, no sample is fair any more. Clients keep their data, and with
    it their weights.

    Args:
        deal: As dealt.
        defenses: By client; they are left as they are.
        rounds: Of the run.
        seed: That the federation is simulated with.
    """
    acting = {client: d for client, d in defenses.items() if d.acts_in("prepare")}
    if not acting:
        return deal
    audit, ids = deal.audit, deal.audit.samples.ids.numpy()
    mine = {client: deal.clients[client] for client in acting}
    left = _left(mine, acting, rounds, seed)
    held = {c: (audit.owner == c) & ~np.isin(ids, left[c]) for c in acting}
    anywhere = np.logical_or.reduce(list(held.values()))
    if not anywhere.any():
        return deal
    # What would be held out if every audited sample were this client's.
    would = {
        client: ~np.isin(ids, kept)
        for client, kept in _left(
            dict.fromkeys(acting, audit.samples), acting, rounds, seed
        ).items()
    }
    by_sample = all((would[c] & (audit.owner == c) == held[c]).all() for c in acting)
    gone = np.logical_or.reduce(list(would.values())) if by_sample else np.ones_like(anywhere)
    changed = replace(
        audit,
        owner=np.where(anywhere, NOBODY, audit.owner),
        panel=np.where(gone, NOBODY, audit.panel),
    )
    return replace(deal, audit=changed)


def trained_on(
    deal: Deal, defenses: Mapping[ClientId, Defense], client: ClientId, *, rounds: int, seed: int
) -> Int[ndarray, " _"]:
    """Ids of a client's samples that its defense leaves it to train on.

    Args:
        deal: As dealt.
        defenses: By client; they are left as they are.
        client: Which one.
        rounds: Of the run.
        seed: That the federation is simulated with.
    """
    acting = {client: defenses[client]} if client in defenses else {}
    return _left({client: deal.clients[client]}, acting, rounds, seed)[client]


def _left(
    data: Mapping[ClientId, Samples], defenses: Mapping[ClientId, Defense], rounds: int, seed: int
) -> dict[ClientId, Int[ndarray, " _"]]:
    """The ids that are left of each client's data."""
    kept = prepared(data, deepcopy(dict(defenses)), rounds, seed)
    return {client: samples.ids.numpy() for client, samples in kept.items()}
