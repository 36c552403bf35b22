"""Test uploads for a guard: one with a planted leak, and one without a leak."""

import time
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedaudit.core.devices import device_named
from fedaudit.core.seeds import seeded
from fedaudit.core.task_catalogue import task_named
from fedaudit.core.tasks import OutputKind
from fedaudit.core.values import Architecture, Model, Params, Samples
from fedaudit.datasets.dataset import prepare_samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.guard.site import Site
from fedaudit.live.network import network_of

_ROUNDS = 20
_TRAINING = LocalTraining(epochs=5, batch_size=16, lr=3e-3, optimizer="adam")
"""Training between two checks of the loss and of the elapsed time."""

_MEMORISED = 0.1
"""Training ends when the members' loss falls below this fraction of its initial value."""

_NOISE = 1e-3
"""Standard deviation of the noise in the upload without a leak, relative to the parameters."""

_BATCH = 256
_PURPOSE = "test of a guard"


class ExampleUpload(NamedTuple):
    """Upload with which a guard is tested.

    Attributes:
        received: Parameters and buffers that a client received.
        upload: Parameters and buffers that the client would send.
        loss: Mean loss of the members after training, as a fraction of the initial loss.
    """

    received: Params
    upload: Params
    loss: float = 1.0


def with_permuted_targets(audit: AuditSet, task: str) -> AuditSet:
    """Return the audit set with randomly permuted targets.

    Features then do not predict targets, so a network can fit the members only by memorising them.
    Sequences of tokens are not changed, since their targets are their own next tokens.
    """
    if OutputKind.TOKENS in task_named(task, {}).output_kinds:
        return audit
    order = torch.randperm(len(audit), generator=seeded(1, _PURPOSE, "targets"))
    samples = audit.samples
    permuted = samples.replace(targets=samples.targets[order], labels=samples.labels[order])
    return replace(audit, samples=permuted)


def upload_of_noise(site: Site, audit: AuditSet) -> ExampleUpload:
    """Return an upload without a leak: an untrained network with noise on its parameters."""
    architecture, _ = _architecture_and_members(site, audit)
    received, draw = architecture.initial(1), seeded(1, _PURPOSE, "noise")

    def with_noise(values: Tensor) -> Tensor:
        # The standard deviation of a layer of zeros, such as new biases, is 0.
        scale = _NOISE * max(float(values.std(correction=0)), _NOISE)
        return values + scale * torch.randn(values.shape, generator=draw).to(values)

    params = {name: with_noise(values) for name, values in received.params.items()}
    return ExampleUpload(_state(received), {**params, **received.buffers})


def upload_of_memorised_members(site: Site, audit: AuditSet, *, seconds: float) -> ExampleUpload:
    """Return an upload with a leak: the site's network, trained until it memorised the members.

    Args:
        site: The site.
        audit: Audit set, from :func:`with_permuted_targets`.
        seconds: Time after which training ends, even if the members are not memorised yet.

    Raises:
        BadInput: The network cannot be trained on the members.
    """
    architecture, members = _architecture_and_members(site, audit)
    training = _TRAINING
    # Avoid a last batch with a single sample, on which batch normalisation fails.
    while len(members) % training.batch_size == 1:
        training = replace(training, batch_size=training.batch_size + 1)
    rounds = simulate(
        FedAvg(architecture, training),
        {0: members},
        rounds=_ROUNDS,
        seed=1,
        device=device_named(site.policy.device),
    )
    end, result = time.monotonic() + seconds, None
    for round in rounds:
        received, trained = round.observed[0].base, round.observed[0].local
        assert received is not None
        assert trained is not None
        if result is None:
            first_loss = _mean_loss(received, members)
            result = ExampleUpload(_state(received), {})
        fraction = _mean_loss(trained, members) / max(first_loss, 1e-30)
        result = result._replace(upload=_state(trained), loss=fraction)
        if fraction < _MEMORISED or time.monotonic() > end:
            break
    assert result is not None
    return result


def _architecture_and_members(site: Site, audit: AuditSet) -> tuple[Architecture, Samples]:
    task = task_named(site.policy.task, {})
    audit = replace(audit, samples=prepare_samples(audit.samples, task))
    net = network_of(site.model(), audit, task, site.policy.not_uploaded)
    return net.architecture, audit.samples.take(torch.from_numpy(audit.owner >= 0))


def _state(model: Model) -> Params:
    return {**model.params, **model.buffers}


def _mean_loss(model: Model, samples: Samples) -> float:
    task, module, total = model.architecture.task, model.module(), 0.0
    with torch.no_grad():
        for start in range(0, len(samples), _BATCH):
            batch = samples.take(slice(start, start + _BATCH))
            losses = task.losses(task.outputs(module, batch.features), batch.targets)
            total += float(losses.double().sum())
    return total / len(samples)
