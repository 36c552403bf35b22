"""Checks before training that a defense fits the run."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.task_catalogue import binary, regression
from fedaudit.core.values import Architecture, Setting
from fedaudit.defenses import create_defense
from fedaudit.defenses.cofedmid import CoFedMID
from fedaudit.defenses.cofedmid.compensation import Compensation
from fedaudit.defenses.cofedmid.partition import ClassGuided
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.defenses.noise import GradientNoise
from fedaudit.defenses.soft_labels import class_count
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import ClientContext, Plan
from fedaudit.models import architecture


def plan(name: str = "resnet18", shape: tuple[int, ...] = (3, 8, 8), **settings: Setting) -> Plan:
    net = architecture(name, shape=shape, classes=10, **settings)
    return Plan(architecture=net, shape=shape, classes=10, rounds=4)


BATCH_NORM = plan(width=32, norm="batch")
GROUP_NORM = plan(width=32, norm="group")


def own_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 10)).eval()


OWN = Plan(
    architecture=Architecture("own", partial(own_net)), shape=(3, 2, 2), classes=10, rounds=4
)


@pytest.mark.parametrize(
    "plan_given", [BATCH_NORM, OWN], ids=lambda algorithm: algorithm.architecture.name
)
def test_dp_sgd_on_batch_normalisation_is_refused_in_a_chain_too(plan_given: Plan) -> None:
    alone = DPSGD(1.0, 1.0)
    for defense in (alone, Chain((GradientNoise(0.1), alone))):
        with pytest.raises(Unsupported, match=r"BatchNorm.d, whose statistics mix the samples"):
            defense.raise_if_misfit(plan_given)


def test_dp_sgd_accepts_group_norm_and_neutral_settings() -> None:
    before = torch.get_rng_state()
    DPSGD(1.0, 1.0).raise_if_misfit(GROUP_NORM)
    DPSGD(float("inf"), 0.0).raise_if_misfit(BATCH_NORM)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("shape", "padding"), [((6,), 0), ((1, 4, 8), 4)])
def test_dp_sgd_copies_require_large_images(shape: tuple[int, ...], padding: int) -> None:
    plan_given = plan("mlp", shape, hidden="")
    DPSGD(1.0, 1.0).raise_if_misfit(plan_given)
    with pytest.raises(BadInput, match=f"got samples of shape {'x'.join(map(str, shape))};"):
        DPSGD(1.0, 1.0, multiplicity=2, padding=padding).raise_if_misfit(plan_given)


@pytest.mark.parametrize("kind", [ClassGuided, Compensation, CoFedMID])
def test_too_many_classes_per_client_raise(kind: type[ClassGuided]) -> None:
    for m_max, m_min, message in (
        (11, 0, "m_max is a number of classes from 1 to 10 here"),
        (0, 11, "m_min is a number of classes from 1 to 10 here"),
        (3, 4, "m_max is 3 and m_min is 4"),
        (1, 0, "m_max is 1 and m_min is 2"),
    ):
        with pytest.raises(BadInput, match=message):
            kind(clients=(0, 1), m_max=m_max, m_min=m_min).raise_if_misfit(GROUP_NORM)
    kind(clients=(0, 1), m_max=10, m_min=2).raise_if_misfit(GROUP_NORM)
    kind(clients=(0, 1)).raise_if_misfit(GROUP_NORM)


@pytest.mark.parametrize("name", ["class-guided", "compensation", "cofedmid", "neutral-noise"])
def test_empty_coalitions_and_duplicate_members_raise(name: str) -> None:
    for coalition in ((0, 0), (), (2, 0, 2)):
        with pytest.raises(BadInput, match="at least one and each only once"):
            create_defense(name, {}, coalition=coalition)


def test_class_guided_partition_needs_a_classification_task() -> None:
    net = replace(GROUP_NORM.architecture, task=regression())
    deals = ClassGuided(clients=(0, 1))
    deals.raise_if_misfit(GROUP_NORM)
    with pytest.raises(Unsupported, match="assigns classes, which the task 'regression'"):
        deals.raise_if_misfit(replace(GROUP_NORM, architecture=net))


def test_a_single_logit_counts_as_two_classes() -> None:
    net = Architecture("one", partial(nn.Linear, 3, 1), (("classes", 1),), task=binary())
    client_context = ClientContext(
        round=1, rounds=1, client=0, cohort=(0,), weights={0: 1.0}, seed=1
    )
    assert class_count(client_context.with_model(net.initial(0)), torch.zeros(2, 3)) == 2


@pytest.mark.parametrize("name", ["mixup", "ldp-laplace"])
def test_defenses_on_features_refuse_integers(name: str) -> None:
    settings: dict[str, Setting] = (
        {"alpha": 1.0} if name == "mixup" else {"epsilon": 1.0, "clip": 1.0}
    )
    defense = create_defense(name, settings, coalition=(0,))
    defense.raise_if_misfit(GROUP_NORM)
    with pytest.raises(BadInput, match="whole numbers, such as tokens or classes"):
        defense.raise_if_misfit(replace(GROUP_NORM, has_integer_features=True))
