"""Federated embeddings (FedEmbedding), averaged concept by concept."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.core.values import ClientId, Model, Params
from fedaudit.fl.algorithms.fedavg import FedAvg, received_update
from fedaudit.observe.round import Upload


@dataclass(frozen=True)
class FedEmbedding(FedAvg):
    """Averages embeddings row by row, each over the clients that have changed it.

    Whatever asks for a gradient is trained, uploaded and averaged: embeddings of concepts in front
    of a frozen diffusion model, or a prompt in front of a frozen language model. A client without
    samples of a concept leaves its row as it was sent, and does not count there; in FedAvg it would
    hold the row back. What changes every row in every client, such as weight decay or noise added
    for privacy, makes it the plain mean.

    Attributes:
        architecture: Of a model whose trained parameters have a row (first axis) a concept.
        training: Each client's local training.

    Source: FedMIA section 3.1 and table 3 (FedEmbedding, after Liang et al. 2024, "Diffusion-Driven
        Data Replay").
    Differs: Neither says how rows are weighed that only some clients have; where all clients have
        samples of all concepts it is the mean by data size, as there.
    """

    def fold(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Every row plus the mean of its changes, weighed by data size."""
        clients = sorted(uploads)
        shares = torch.tensor([weights[client] for client in clients], dtype=torch.float64)
        before = Model.from_tensors(self.architecture, state)
        step = {}
        for name in before.params:
            changes = torch.stack([uploads[client].values[name] for client in clients])
            counted = _changed(changes).double() * shares.view(-1, *[1] * (changes.ndim - 1))
            mean = (changes * counted).sum(0) / counted.sum(0).clamp_min(1e-30)
            step[name] = mean.to(changes.dtype)
        buffers = (received_update(uploads[client]).buffers for client in clients)
        return self.moved(before, step, buffers, shares.tolist())


def _changed(changes: Tensor) -> Bool[Tensor, "clients ..."]:
    """Which rows each client has changed at all."""
    further = tuple(range(2, changes.ndim))
    there = changes != 0
    return there.any(further, keepdim=True) if further else there
