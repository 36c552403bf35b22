"""Canary clients in custom federations."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import fedaudit
from fedaudit.core.errors import BadInput
from fedaudit.metrics.canaries import CanaryBounds
from fedaudit.metrics.epsilon import gaussian_budget

LENGTH, ROUNDS, CLIENTS = 1.0, 4, 10


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 5))


def train(model: nn.Module, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """A client's model: a random change of length at most one."""
    state = copy.deepcopy(model.state_dict())
    names = [name for name, _ in model.named_parameters()]
    drawn = {name: torch.randn(state[name].shape, generator=rng) for name in names}
    total = torch.cat([value.flatten() for value in drawn.values()]).norm()
    return {n: v + drawn[n] / total if n in drawn else v for n, v in state.items()}


def federated(noise: float, seed: int) -> CanaryBounds:
    """A loop as people write it: the mean of clipped updates, and noise from the server."""
    model = network()
    canaries = fedaudit.CanaryClients(model, count=60, length=LENGTH, seed=seed)
    first = copy.deepcopy(model)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(ROUNDS):
        sent = copy.deepcopy(model)
        uploads = [train(sent, rng) for _ in range(CLIENTS)]
        for number in range(60):
            upload = canaries.upload(number, sent)
            assert isinstance(upload, dict)
            uploads.append(upload)
        state = model.state_dict()
        for name, _ in model.named_parameters():
            updates = [upload[name] - sent.state_dict()[name] for upload in uploads]
            std = noise * LENGTH
            total = sum(updates) + std * torch.randn(state[name].shape, generator=rng)
            state[name] = sent.state_dict()[name] + total / len(uploads)
        model.load_state_dict(state)
    return canaries.bounds(first, model)


@pytest.mark.slow
def test_canary_bounds_accept_server_noise_and_reject_missing_noise() -> None:
    claimed = gaussian_budget(ROUNDS**0.5 / 2.0, 1e-5)
    bounds = [federated(2.0, seed).mean_only for seed in range(1, 9)]
    values = [bound.value for bound in bounds if bound is not None]
    assert sum(value > claimed for value in values) <= 1
    assert np.median(values) > claimed / 5
    bare = federated(0.0, 1)
    assert bare.mean_only is not None
    assert bare.mean_only.value > claimed
    assert bare.one_run.value > 1


def test_canaries_change_only_trained_parameters_by_their_norm() -> None:
    model = network()
    canaries = fedaudit.CanaryClients(model, count=20, length=0.25, seed=3)
    number = int(canaries.sends.argmax())
    upload = canaries.upload(number, model)
    assert isinstance(upload, dict)
    trained = dict(model.named_parameters())
    state = model.state_dict()
    assert upload.keys() == state.keys()
    moved = torch.cat([(upload[name] - state[name]).flatten() for name in trained])
    assert float(moved.detach().norm()) == pytest.approx(0.25, rel=1e-4)
    assert all(torch.equal(upload[n], state[n]) for n in state if n not in trained)


def test_canaries_return_lists_of_arrays_for_lists_of_arrays() -> None:
    model = network()
    canaries = fedaudit.CanaryClients(model, count=40, length=0.25, seed=5)
    number = int(canaries.sends.argmax())
    by_name = canaries.upload(number, model)
    assert isinstance(by_name, dict)
    state_arrays = [value.numpy() for value in model.state_dict().values()]
    trained = [value.detach().numpy() for value in model.parameters()]
    for arrays, names in (
        (state_arrays, list(by_name)),
        (trained, [name for name, _ in model.named_parameters()]),
    ):
        upload = canaries.upload(number, arrays)
        assert isinstance(upload, list)
        for array, name in zip(upload, names, strict=True):
            np.testing.assert_array_equal(array, by_name[name].numpy())
    from_arrays = canaries.bounds(trained, canaries.upload(number, trained))
    assert from_arrays == canaries.bounds(model, by_name)


@pytest.mark.parametrize("weight", [0.0, 0.5, 300.0])
def test_canaries_with_zero_updates_return_almost_the_model(weight: float) -> None:
    model = network()
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = weight
    canaries = fedaudit.CanaryClients(model, count=20, length=0.1, seed=1)
    upload = canaries.upload(int((~canaries.sends).argmax()), model)
    assert isinstance(upload, dict)
    state = model.state_dict()
    moved = torch.cat([(upload[name] - state[name]).flatten() for name in state])
    # Not nothing, even once it is squared: there are servers that divide by an update's length.
    assert 0 < float(moved.square().sum()) < 1e-8
    assert int((moved != 0).sum()) == 1


def test_canary_uploads_have_the_dtypes_of_the_model() -> None:
    model = network().half()
    canaries = fedaudit.CanaryClients(model, count=20, length=1.0, seed=1)
    upload = canaries.upload(int((~canaries.sends).argmax()), model)
    moved = canaries.upload(int(canaries.sends.argmax()), model)
    assert isinstance(upload, dict)
    assert isinstance(moved, dict)
    state = model.state_dict()
    assert all(torch.allclose(upload[name], state[name], atol=1e-3) for name in state)
    assert all(upload[name].dtype == state[name].dtype for name in state)
    assert all(moved[name].dtype == state[name].dtype for name in state)


def test_canaries_without_seed_are_random_and_reproducible() -> None:
    model = network()
    first, second = (fedaudit.CanaryClients(model, count=40, length=1.0) for _ in range(2))
    assert first.seed != second.seed
    repeated = fedaudit.CanaryClients(model, count=40, length=1.0, seed=first.seed)
    assert (repeated.sends == first.sends).all()


def test_unknown_canaries_and_other_networks_raise() -> None:
    model = network()
    canaries = fedaudit.CanaryClients(model, count=20, length=1.0)
    for number in (20, -1):
        with pytest.raises(BadInput, match="numbered 0 to 19"):
            canaries.upload(number, model)
    with pytest.raises(BadInput, match="has 3 arrays, and the network 9, of which 6"):
        canaries.upload(0, [np.zeros(3)] * 3)
    with pytest.raises(BadInput, match=r"0\.weight of the model that was sent"):
        canaries.upload(0, {"0.weight": np.zeros((2, 2))})
    with pytest.raises(BadInput, match="equals the first"):
        canaries.bounds(model, model)
    with pytest.raises(BadInput, match="at least 20"):
        fedaudit.CanaryClients(model, count=19, length=1.0)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(BadInput, match="no parameter of the model is trained"):
        fedaudit.CanaryClients(model, length=1.0)
