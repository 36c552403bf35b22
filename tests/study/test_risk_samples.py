"""Samples for the actual risk of a model."""

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.core.seeds import seeded
from fedaudit.evaluation.clusters import RiskSamples, risk_samples
from fedaudit.plan.parts import Setup
from fedaudit.study.build import build_setup
from tests.study.studies import small_study

SKEWED = {"scheme": "dirichlet", "options": {"beta": 0.2}, "clients": 4, "samples_per_client": 80}


def run(**partition: object) -> Setup:
    changes = {"partition": {"clients": 4, "samples_per_client": 80} | partition}
    return build_setup(small_study(algorithm={"name": "ifca"}, **changes), 1, None)


def risk_samples_of(resolved: Setup, like: Bool[Tensor, " samples"]) -> RiskSamples:
    trained = [resolved.assignment.clients[client] for client in (0, 1)]
    return risk_samples(resolved, trained, like, rng=seeded(1, "asked"))


def all_test_samples(resolved: Setup) -> Bool[Tensor, " samples"]:
    return torch.ones(len(resolved.dataset.test), dtype=torch.bool)


def test_members_and_nonmembers_of_skewed_clients_are_class_matched() -> None:
    resolved = run(**SKEWED)
    members, others = risk_samples_of(resolved, all_test_samples(resolved))
    mine = torch.cat([resolved.assignment.clients[client].labels for client in (0, 1)])
    classes = resolved.dataset.classes
    counts_of_members, counts_of_others = (
        torch.bincount(labels, minlength=classes) for labels in (mine, resolved.dataset.test.labels)
    )
    assert not torch.equal(counts_of_members, counts_of_others)
    counts = [torch.bincount(side.labels, minlength=classes) for side in (members, others)]
    assert torch.equal(counts[0], counts[1])
    assert torch.equal(counts[0], torch.minimum(counts_of_members, counts_of_others))


def test_risk_samples_are_client_members_and_matched_nonmembers() -> None:
    for resolved in (run(), run(**SKEWED)):
        like = all_test_samples(resolved)
        like[::2] = False
        members, others = risk_samples_of(resolved, like)
        mine = {int(i) for client in (0, 1) for i in resolved.assignment.clients[client].ids}
        assert set(members.ids.tolist()) <= mine
        assert set(others.ids.tolist()) <= set(resolved.dataset.test.ids[like].tolist())
        assert len(set(members.ids.tolist())) == len(members)


def test_with_equal_classes_all_samples_are_used() -> None:
    resolved = run()
    members, others = risk_samples_of(resolved, all_test_samples(resolved))
    assert len(members) == sum(len(resolved.assignment.clients[client]) for client in (0, 1))
    assert len(others) == len(resolved.dataset.test)


def test_with_skewed_classes_unmatched_samples_are_skipped() -> None:
    resolved = run(**SKEWED)
    members, others = risk_samples_of(resolved, ~all_test_samples(resolved))
    assert (len(members), len(others)) == (0, 0)
