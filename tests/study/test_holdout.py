"""Membership of samples that a defense holds out."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.core.metric_names import Origin
from fedaudit.core.seeds import held_out, seed_for
from fedaudit.core.values import NO_CLIENT, Architecture, ClientId, Samples
from fedaudit.datasets.draws.audit_set import Assignment, AuditSet
from fedaudit.defenses.cofedmid import CoFedMID
from fedaudit.evaluation.accuracy import evaluation_split
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.ifca_mir import IfcaMirOfClients
from fedaudit.fl.hooks import ClientContext, Defense
from fedaudit.fl.training.local import LocalTraining
from fedaudit.plan.assignment import HoldOutRule, treat_held_out_as_unseen
from fedaudit.risk.catalog import LossThreshold
from fedaudit.study.build import build_setup
from tests.study.studies import small_study


def samples(ids: torch.Tensor) -> Samples:
    return Samples(torch.zeros(len(ids), 2), torch.zeros(len(ids)).long(), ids)


IDS = torch.arange(400)
CLIENTS = {c: samples(IDS[100 * c : 100 * c + 100]) for c in range(3)}
OWNER = np.where(IDS.numpy() < 300, IDS.numpy() // 100, NO_CLIENT)
DEAL = Assignment(CLIENTS, AuditSet(samples(IDS), OWNER, np.zeros(400, dtype=np.int64)))
PAIR = {c: CoFedMID(clients=(0, 1), start=2) for c in (0, 1)}


NOTHING_HELD_OUT = FedAvg(Architecture("none", nn.Identity), LocalTraining())


def holdout(
    defenses: Mapping[ClientId, Defense], rounds: int = 5, algorithm: Algorithm = NOTHING_HELD_OUT
) -> HoldOutRule:
    return HoldOutRule(defenses, algorithm, rounds, seed=4)


@dataclass(frozen=True)
class DropsTheFirst(Defense):
    """Holds out by place, so that being held out depends on what else the client has."""

    def prepare(self, data: Samples, client_context: ClientContext) -> Samples:
        return data.take(slice(1, None))


def test_held_out_samples_of_a_coalition_are_of_no_client() -> None:
    audit = treat_held_out_as_unseen(DEAL, holdout(PAIR)).audit
    held_out_ids = held_out(IDS, 0.1, seed=4).numpy()
    assert 20 < held_out_ids.sum() < 60
    assert (audit.owner[held_out_ids & (OWNER < 2)] == NO_CLIENT).all()
    assert (audit.owner[~held_out_ids] == OWNER[~held_out_ids]).all()
    assert (audit.owner[OWNER == 2] == 2).all()
    assert (audit.origin(0)[held_out_ids & (OWNER == 0)] == Origin.UNSEEN).all()


def test_held_out_samples_leave_the_fair_draw_for_any_owner() -> None:
    audit = treat_held_out_as_unseen(DEAL, holdout(PAIR)).audit
    assert (audit.fair_for(0) == ~held_out(IDS, 0.1, seed=4).numpy()).all()


def test_holding_out_does_not_modify_the_deal() -> None:
    changed = treat_held_out_as_unseen(DEAL, holdout(PAIR))
    assert changed.clients is DEAL.clients
    assert (DEAL.audit.owner == OWNER).all()


def test_without_held_out_samples_nothing_changes() -> None:
    assert treat_held_out_as_unseen(DEAL, holdout({})) is DEAL
    assert treat_held_out_as_unseen(DEAL, holdout({0: Defense()})) is DEAL
    assert treat_held_out_as_unseen(DEAL, holdout(PAIR, rounds=1)) is DEAL


def test_samples_held_out_by_an_algorithm_leave_the_fair_draw() -> None:
    net = Architecture("none", nn.Identity)
    algorithm = IfcaMirOfClients(net, LocalTraining(), own_risk=LossThreshold(), share=0.2)
    audit = treat_held_out_as_unseen(DEAL, holdout({}, algorithm=algorithm)).audit
    held_out_ids = held_out(IDS, 0.2, seed=4).numpy()
    assert 50 < held_out_ids.sum() < 110
    assert (audit.owner == np.where(held_out_ids, NO_CLIENT, OWNER)).all()
    assert (audit.fair_for(0) == ~held_out_ids).all()


def test_holding_out_by_a_rule_on_several_samples_prevents_a_fair_draw() -> None:
    audit = treat_held_out_as_unseen(DEAL, holdout({1: DropsTheFirst()})).audit
    assert audit.owner[100] == NO_CLIENT
    assert (audit.owner == np.where(IDS.numpy() == 100, NO_CLIENT, OWNER)).all()
    assert not audit.fair.any()


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
def test_samples_are_held_out_with_the_given_probability_by_seed(share: float) -> None:
    ids = torch.arange(20_000) * 3
    held_out_ids = held_out(ids, share, seed=1)
    assert float(held_out_ids.float().mean()) == pytest.approx(share, abs=0.015)
    assert not torch.equal(held_out_ids, held_out(ids, share, seed=2))
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    assert torch.equal(held_out(ids[order], share, seed=1), held_out_ids[order])


def test_no_sample_that_is_held_out_is_audited_as_a_member_in_a_study() -> None:
    study = small_study(defense={"name": "cofedmid", "clients": [0, 1], "options": {"start": 2}})
    defended, plain = build_setup(study, 1, None), build_setup(small_study(), 1, None)
    before = plain.assignment.audit.origin(0) == Origin.MEMBER
    after = defended.assignment.audit.origin(0) == Origin.MEMBER
    assert 0 < after.sum() < before.sum()
    assert not (after & ~before).any()
    assert torch.equal(plain.assignment.clients[0].ids, defended.assignment.clients[0].ids)


def test_training_accuracy_uses_trained_samples_only() -> None:
    plain = build_setup(small_study(), 1, None)
    pair = {"name": "cofedmid", "clients": [0, 1], "options": {"start": 2}}
    defended = build_setup(small_study(defense=pair), 1, None)
    clients = [set(data.ids.tolist()) for data in plain.assignment.clients.values()]
    counted = [set(evaluation_split(run).all_clients.ids.tolist()) for run in (plain, defended)]
    assert counted[0] == set.union(*clients)
    mine = clients[0] | clients[1]
    held_out_ids = held_out(torch.tensor(sorted(mine)), 0.1, seed=seed_for(1, "federation"))
    assert held_out_ids.any()
    dropped = {
        sample_id for sample_id, out in zip(sorted(mine), held_out_ids.tolist(), strict=True) if out
    }
    assert counted[1] == counted[0] - dropped
    assert not set(evaluation_split(defended).by_client[0].ids.tolist()) & dropped
