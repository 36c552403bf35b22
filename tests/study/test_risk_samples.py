"""Samples for the actual risk of a model."""

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.core.seeds import seeded
from fedaudit.evaluation.clusters import RiskSamples, risk_samples
from fedaudit.plan.parts import Setup
from fedaudit.study.build import setup
from tests.study.studies import small_study

SKEWED = {"scheme": "dirichlet", "options": {"beta": 0.2}, "clients": 4, "samples_per_client": 80}


def run(**partition: object) -> Setup:
    changes = {"partition": {"clients": 4, "samples_per_client": 80} | partition}
    return setup(small_study(algorithm={"name": "ifca"}, **changes), 1, None)


def asked(given: Setup, like: Bool[Tensor, " samples"]) -> RiskSamples:
    trained = [given.assignment.clients[client] for client in (0, 1)]
    return risk_samples(given, trained, like, rng=seeded(1, "asked"))


def everything(given: Setup) -> Bool[Tensor, " samples"]:
    return torch.ones(len(given.dataset.test), dtype=torch.bool)


def test_members_and_nonmembers_of_skewed_clients_are_class_matched() -> None:
    given = run(**SKEWED)
    members, others = asked(given, everything(given))
    mine = torch.cat([given.assignment.clients[client].labels for client in (0, 1)])
    classes = given.dataset.classes
    have, there = (
        torch.bincount(labels, minlength=classes) for labels in (mine, given.dataset.test.labels)
    )
    assert not torch.equal(have, there)
    counts = [torch.bincount(side.labels, minlength=classes) for side in (members, others)]
    assert torch.equal(counts[0], counts[1])
    assert torch.equal(counts[0], torch.minimum(have, there))


def test_risk_samples_are_client_members_and_matched_nonmembers() -> None:
    for given in (run(), run(**SKEWED)):
        like = everything(given)
        like[::2] = False
        members, others = asked(given, like)
        mine = {int(i) for client in (0, 1) for i in given.assignment.clients[client].ids}
        assert set(members.ids.tolist()) <= mine
        assert set(others.ids.tolist()) <= set(given.dataset.test.ids[like].tolist())
        assert len(set(members.ids.tolist())) == len(members)


def test_with_equal_classes_all_samples_are_used() -> None:
    given = run()
    members, others = asked(given, everything(given))
    assert len(members) == sum(len(given.assignment.clients[client]) for client in (0, 1))
    assert len(others) == len(given.dataset.test)


def test_with_skewed_classes_unmatched_samples_are_skipped() -> None:
    given = run(**SKEWED)
    members, others = asked(given, ~everything(given))
    assert (len(members), len(others)) == (0, 0)
