"""FedSGD: clients send a gradient over all of their data, and the server takes a step."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import nn

from fedaudit.core import arguments
from fedaudit.core.devices import CPU, by_kind, computing_on, params_on, samples_on
from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.modules import load_module
from fedaudit.core.values import (
    Batch,
    ClientId,
    Model,
    Params,
    Samples,
    add_scaled,
    chunks,
    scaled,
    weighted_sum,
)
from fedaudit.fl.algorithms.base import LocalResult, SingleModelServer
from fedaudit.fl.algorithms.fedavg import reconstruct
from fedaudit.fl.hooks import (
    ClientContext,
    DataUse,
    Defense,
    Objective,
    TrainingContext,
    apply_upload_hook,
)
from fedaudit.fl.training.local import LocalTraining, objective_of, seeded_dropout
from fedaudit.observe.round import Gradient, ObservedModels, Sent, Update, Upload, map_clients

_CHUNK_SIZE = 512
_CHUNK_SIZE_ON_GPU = 4096


def full_gradient(
    model: Model, data: Samples, defense: Defense, context: TrainingContext
) -> Gradient:
    """Compute the gradient of a client's mean loss over all its data, with the defense's hooks.

    All samples are one batch. To limit memory, gradients of chunks of the batch are computed and
    summed. Batch normalisation, and defenses that override the loss or the gradient, need the whole
    batch at once.

    Raises:
        BadInput: The gradient is not finite.

    Source: Hu et al. 2024 (SIA), Algorithm 1 (ClientUpdate); McMahan et al. 2017, section 2
        (FedSGD).
    """
    with computing_on(context.device), seeded_dropout(context):
        module = load_module(model, "training", context.device).train()
        selected = defense.select(samples_on(data, context.device), context)
        objective = objective_of(module, defense, context)
        gradients = [
            _batch_gradient(objective, defense.batch(batch, context), defense, context)
            for batch in _batches(defense, selected, context)
        ]
        values = params_on(_mean(gradients), CPU)
        after = Model.of(model.architecture, module)
    if not all(bool(value.isfinite().all()) for value in values.values()):
        raise BadInput(
            f"client {context.client}'s gradient is not finite in round {context.round}; lower the "
            "learning rate or check the features"
        )
    # The forward passes have updated buffers, such as the statistics of batch normalisation.
    return Gradient(values, params_on(after.buffers, CPU), samples=len(data))


def _batches(defense: Defense, selected: Samples, context: TrainingContext) -> list[Batch]:
    """Return one batch of all samples, or a defense's batches, and note the ids of the samples."""
    batches = list(defense.batches(selected, len(selected), context))
    for batch in batches:
        context.note("used", batch.ids)
    return batches


def _mean(gradients: list[Params]) -> Params:
    total = gradients[0]
    for gradient in gradients[1:]:
        total = add_scaled(total, gradient)
    return scaled(total, 1 / len(gradients)) if len(gradients) > 1 else total


def _batch_gradient(
    objective: Objective, batch: Batch, defense: Defense, context: TrainingContext
) -> Params:
    is_mean_over_samples = objective.per_sample is not None and not defense.acts_in("gradient")
    batch_norm = nn.modules.batchnorm._BatchNorm
    has_batch_norm = any(isinstance(layer, batch_norm) for layer in objective.module.modules())
    if not is_mean_over_samples or has_batch_norm or not len(batch):
        return defense.gradient(objective, batch, context)
    params = objective.params
    total = {name: torch.zeros_like(param) for name, param in params.items()}
    size = by_kind(context.device, cpu=_CHUNK_SIZE, gpu=_CHUNK_SIZE_ON_GPU)
    for rows in chunks(len(batch), size):
        chunk = Batch(batch.x[rows], batch.y[rows], batch.ids[rows])
        gradient = defense.gradient(objective, chunk, context)
        total = add_scaled(total, gradient, len(chunk) / len(batch))
    return total


@arguments.dataclass(frozen=True)
class FedSGD(SingleModelServer):
    """Gradient descent by the server along the clients' gradients, without local training.

    Attributes:
        architecture: Architecture of the global model.
        training: Learning rate of the server's steps, and weight decay, which the server applies.
            Epochs, batches, schedule and momentum do not apply.
        together: "mean" weights gradients by data size; "sum" adds them up.

    Source: McMahan et al. 2017, section 2 (FederatedSGD); Hu et al. 2024 (SIA), Algorithm 1.
    Differs: By default gradients are averaged, as in McMahan et al. and in SIA's text; line 10 of
        SIA's Algorithm 1 has a sum. The published code of SIA trains one local epoch in
        mini-batches. This is FedAvg with ``epochs = 1``, called "legacy-fedsgd" in the catalogue.
    """

    training: LocalTraining
    together: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        training = self.training
        settings = (training.epochs, training.momentum, training.optimizer, training.schedule)
        if settings != (1, 0.0, "sgd", "constant"):
            raise BadInput(
                "FedSGD takes one step per round without local training, so it needs epochs 1, "
                "momentum 0, optimizer sgd and schedule constant, got "
                f"{', '.join(map(str, settings))}; use fedavg for local training"
            )

    @property
    def upload_kind(self) -> type[Upload]:
        return Gradient

    def run_client(
        self,
        sent: Sent,
        data: Samples,
        client_state: Params,
        defense: Defense,
        client_context: ClientContext,
    ) -> LocalResult:
        """Upload the gradient of the mean loss over all data at the received model."""
        context = client_context.with_model(sent.model)
        gradient = full_gradient(sent.model, data, defense, context)
        return LocalResult(apply_upload_hook(defense, gradient, context), client_state)

    def aggregate(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Take one step along the mean or the sum of the gradients."""
        clients = sorted(uploads)
        client_weights = [weights[client] for client in clients]
        gradients = map_clients(uploads, lambda client, upload: as_gradient(upload))
        factors = client_weights if self.together == "mean" else [1.0] * len(clients)
        before = Model.from_tensors(self.architecture, state)
        gradient = weighted_sum((gradients[client].values for client in clients), factors)
        buffers = (gradients[client].buffers for client in clients)
        return self.apply_step(before, self._step(before, gradient), buffers, client_weights)

    def reconstruct_models(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, ObservedModels]:
        """Reconstruct each client's model by one step with only this client's gradient.

        Source: Hu et al. 2024 (SIA), Algorithm 1, line 6.
        """

        def observed(client: ClientId, upload: Upload) -> ObservedModels:
            base, gradient = sent[client].model, as_gradient(upload)
            update = Update(self._step(base, gradient.values), gradient.buffers)
            scale = gradient.samples / self.training.lr if gradient.samples else None
            return reconstruct(base, update, scale)

        return map_clients(uploads, observed)

    def data_use(self, rounds: int, samples: int) -> DataUse:
        """Count one step over all samples in every round."""
        return DataUse(rounds=rounds, epochs=1, batch_size=samples, samples=samples)

    def _step(self, base: Model, gradient: Params) -> Params:
        decayed = add_scaled(gradient, base.params, self.training.weight_decay)
        return scaled(decayed, -self.training.lr)


def as_gradient(upload: Upload) -> Gradient:
    """Return an upload after a check that it is a gradient.

    Raises:
        TypeError: The upload is of another type.
    """
    if not isinstance(upload, Gradient):
        raise TypeError(f"FedSGD steps along gradients, got {type_of(upload)}")
    return upload
