"""FedMD: clients train private networks and share their outputs on a public data set."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from fedaudit.core import arguments
from fedaudit.core.arguments import AboveZero, Positive
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, Unsupported, format_setting
from fedaudit.core.modules import load_module, outputs_of
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import (
    Architecture,
    Batch,
    ClientId,
    Model,
    Params,
    Samples,
    chunks,
    weighted_sum,
)
from fedaudit.fl.algorithms.base import LocalResult
from fedaudit.fl.hooks import (
    UNDEFENDED,
    ClientContext,
    DataUse,
    Defense,
    TrainingContext,
    apply_upload_hook,
)
from fedaudit.fl.training.local import Adam, LocalTraining, train
from fedaudit.fl.training.manual_backprop import manual_steps
from fedaudit.fl.training.parallel import run_in_parallel, uses_global_rng
from fedaudit.observe.round import Logits, ObservedModels, Sent, Upload


@arguments.dataclass(frozen=True)
class Distillation:
    """Settings of a student's training: Adam on the mean absolute difference of the outputs.

    Attributes:
        epochs: Epochs over the public samples, at least 1.
        batch_size: Samples per step, at least 1.
        lr: Learning rate, above 0.

    Source: Hu et al. 2024 (SIA), Algorithm 3, line 12; settings of its published code.
    """

    epochs: Positive = 30
    batch_size: Positive = 64
    lr: AboveZero = 1e-3


def distill(
    student: Model,
    features: Shaped[Tensor, "samples ..."],
    outputs: Mapping[ClientId, Float[Tensor, "samples outputs"]],
    settings: Distillation,
    *,
    rng: torch.Generator,
    device: torch.device = CPU,
) -> dict[ClientId, Model]:
    """Train a student model for each client to reproduce the client's outputs.

    All students have the same initial parameters and the same order of samples. Students are
    trained in parallel, one per processor core. The number of cores does not change results.

    Args:
        student: Initial model of all students.
        features: Public samples.
        outputs: Outputs of each client's model on the public samples.
        settings: Epochs, batches and learning rate.
        rng: Draws the order of the samples.
        device: Device to train on; a GPU trains one student after another.

    Raises:
        Unsupported: The student uses torch's global random generator (dropout), or may use it
            (a custom class). Parallel training would then not be reproducible.
    """
    _raise_if_random(student)
    orders = [torch.randperm(len(features), generator=rng) for _ in range(settings.epochs)]
    train_student = partial(
        _train_student, student, features.to(device), settings=settings, orders=orders
    )
    clients = sorted(outputs)
    targets = [outputs[client].to(device) for client in clients]
    models = run_in_parallel(train_student, targets, device=device)
    return dict(zip(clients, models, strict=True))


def _raise_if_random(student: Model) -> None:
    if uses_global_rng(student):
        raise Unsupported(
            "a student with dropout or of a custom class cannot be distilled; set dropout to 0, or "
            f"name a network of the catalogue in {format_setting('algorithm.options.student')}"
        )


def _train_student(
    start: Model,
    features: Tensor,
    targets: Tensor,
    *,
    settings: Distillation,
    orders: list[Int[Tensor, " samples"]],
) -> Model:
    module = load_module(start, "student", features.device).train()
    optimizer = Adam(lr=settings.lr)
    params = _trainable_params(module)
    for order in orders:
        shuffled, shuffled_targets = features[order], targets[order]
        for rows in chunks(len(order), settings.batch_size):
            output_gradient = partial(_output_gradient, targets=shuffled_targets[rows])
            optimizer.step(params, _gradients(module, shuffled[rows], output_gradient))
    return Model.of(start.architecture, module)


def _gradients(module: nn.Module, x: Tensor, output_gradient: "partial[Tensor]") -> list[Tensor]:
    manual_backprop = manual_steps(module)
    if manual_backprop is not None:
        return manual_backprop.gradients(x, output_gradient)
    outputs = module(x)
    gradients = torch.autograd.grad(
        outputs,
        _trainable_params(module),
        output_gradient(outputs) / len(x),
        allow_unused=True,
        materialize_grads=True,
    )
    return list(gradients)


def _trainable_params(module: nn.Module) -> list[nn.Parameter]:
    return [value for value in module.parameters() if value.requires_grad]


def _output_gradient(
    outputs: Float[Tensor, "samples outputs"], targets: Float[Tensor, "samples outputs"]
) -> Float[Tensor, "samples outputs"]:
    """Return the gradient, with respect to the outputs, of the sum of the samples' losses."""
    return (outputs.detach() - targets).sign() / outputs.shape[1]


class MatchOutputs(Defense):
    """Loss without labels: mean absolute difference from given outputs.

    It is written as a defense, because defenses have a hook for the loss. The id of a sample is its
    row in the given outputs.
    """

    def __init__(self, outputs: Tensor) -> None:
        self._outputs = outputs

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        return (outputs - self._outputs.to(outputs.device)[batch.ids]).abs().mean()


@dataclass(frozen=True)
class FedMD:
    """Federated distillation between clients of different architectures through a public data set.

    In its first round, a client trains on the labelled public samples and then on its own samples
    (transfer learning). In each later round, it trains towards the clients' mean outputs on the
    public set ("digest"), and then on its own samples ("revisit"). In every round, it sends only
    its outputs on the public set.

    An adversary who sees these outputs trains a student for each client, and attacks the student.

    Attributes:
        nets: Architectures of the clients: client k has architecture k modulo their number.
        public: Samples that all clients have, with labels; the ids are 0, 1, ...
        first_public: Training on the public samples in the first round.
        first_private: Training on the client's own samples in the first round.
        digest: Training towards the mean outputs.
        revisit: Training on the client's own samples.
        student: Architecture of the adversary's students.
        distillation: Training of the students.

    Source: Li & Wang 2019 ("FedMD"), Algorithm 1; Hu et al. 2024 (SIA), Algorithm 3 and its
        published code.
    Differs: The exchange before SIA's first round is round 1 here. The mean over clients is
        unweighted, as in both papers. Optimizers are reset in each round; the published code resets
        them in each epoch. The first training and the exchange use the same public samples. The
        published code first trains on all public training samples in batches of 128, and exchanges
        outputs on 5,000 of these samples, the same ones in every round.
    """

    nets: tuple[Architecture, ...]
    public: Samples
    first_public: LocalTraining
    first_private: LocalTraining
    digest: LocalTraining
    revisit: LocalTraining
    student: Architecture
    distillation: Distillation

    def __post_init__(self) -> None:
        if not self.nets or not len(self.public):
            raise BadInput("FedMD needs at least one client architecture and one public sample")
        if not torch.equal(self.public.ids, torch.arange(len(self.public))):
            raise BadInput("the ids of public samples must be their row numbers 0, 1, ...")
        _raise_if_random(self.student.initial(0))

    @property
    def architecture(self) -> Architecture:
        """Architecture of the student, which is what an adversary can reconstruct of a client."""
        return self.student

    @property
    def upload_kind(self) -> type[Upload]:
        return Logits

    def start(self, seed: int) -> Params:
        """Return zeros as mean outputs, which no client uses in the first round."""
        outputs = outputs_of(self.nets[0].initial(0), self.public.features[:1])
        return {"outputs": torch.zeros(len(self.public), outputs.shape[1])}

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        return Sent(extra=state)

    def run_client(
        self,
        sent: Sent,
        data: Samples,
        client_state: Params,
        defense: Defense,
        client_context: ClientContext,
    ) -> LocalResult:
        """Train on public and own samples, upload outputs, and keep the network as the state."""
        net = self.nets[client_context.client % len(self.nets)]
        if client_state:
            received = Model.from_tensors(net, client_state)
            loss: Defense = MatchOutputs(sent.extra["outputs"])
            public_training, private_training = self.digest, self.revisit
        else:
            received = net.initial(seed_for(client_context.seed, "net", client_context.client))
            loss = UNDEFENDED
            public_training, private_training = self.first_public, self.first_private
        model = self._train_on_public(received, public_training, loss, client_context)
        context = client_context.with_model(model)
        trained = train(model, data, private_training, defense, context)
        outputs = outputs_of(trained, self.public.features, client_context.device)
        upload = apply_upload_hook(defense, Logits({"outputs": outputs}), context)
        return LocalResult(upload, trained.tensors())

    def aggregate(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        outputs = (uploads[client].values for client in sorted(uploads))
        return weighted_sum(outputs, [1 / len(uploads)] * len(uploads))

    def reconstruct_models(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, ObservedModels]:
        """Return a student for each client; students are trained at the first access."""
        return Students(self, uploads, seed)

    def models(self, state: Params) -> Mapping[str, Model]:
        """Return no models, because there is no global model."""
        return {}

    def data_use(self, rounds: int, samples: int) -> DataUse:
        """Count the first training on a client's own samples, and every revisit."""
        epochs = self.first_private.epochs + (rounds - 1) * self.revisit.epochs
        return DataUse(rounds=1, epochs=epochs, batch_size=self.revisit.batch_size, samples=samples)

    def models_of_clients(
        self, client_states: Mapping[ClientId, Params]
    ) -> Mapping[ClientId, Model]:
        return {
            client: Model.from_tensors(self.nets[client % len(self.nets)], client_state)
            for client, client_state in sorted(client_states.items())
        }

    def _train_on_public(
        self, model: Model, settings: LocalTraining, loss: Defense, client_context: ClientContext
    ) -> Model:
        context = client_context.on_public_data().with_model(model)
        return train(model, self.public, settings, loss, context)


class Students(Mapping[ClientId, ObservedModels]):
    """Students of the clients, which an observer trains at the first access.

    Args:
        algorithm: The algorithm, with the student's architecture and the public set.
        uploads: The clients' outputs on the public set.
        seed: Root seed of the run. All students of all rounds have the same initial parameters.
    """

    def __init__(self, algorithm: FedMD, uploads: Mapping[ClientId, Upload], seed: int) -> None:
        self._algorithm, self._uploads, self._seed = algorithm, uploads, seed

    def __getitem__(self, client: ClientId) -> ObservedModels:
        return self._students[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(sorted(self._uploads))

    def __len__(self) -> int:
        return len(self._uploads)

    @cached_property
    def _students(self) -> dict[ClientId, ObservedModels]:
        algorithm = self._algorithm
        models = distill(
            algorithm.student.initial(seed_for(self._seed, "student")),
            algorithm.public.features,
            {client: upload.values["outputs"] for client, upload in self._uploads.items()},
            algorithm.distillation,
            rng=seeded(self._seed, "students' order"),
        )
        return {client: ObservedModels(local=model) for client, model in models.items()}


def cnns(channels: str, model: Callable[..., Architecture]) -> tuple[Architecture, ...]:
    """Return CNNs with 3x3 kernels, one for each list of channels, such as "16,32; 16,16,32"."""
    lists = [text.strip() for text in channels.split(";") if text.strip()]
    return tuple(model("cnn", channels=text, kernel=3, padding=1) for text in lists)


def public_samples(
    samples: Samples, count: int, *, name: str, shape: tuple[int, ...], first_class: int, seed: int
) -> Samples:
    """Draw random samples of a public data set, with their row numbers as ids.

    Raises:
        BadInput: The samples have another shape than the clients', classes of the clients, or are
            too few.
    """
    public_shape, classes = tuple(samples.features.shape[1:]), int(samples.labels.max()) + 1
    if public_shape != shape:
        raise BadInput(
            f"the public set {name!r} has samples of shape {public_shape}, but clients' samples "
            f"have shape {shape}; choose a public set with samples of this shape"
        )
    if first_class < classes:
        raise BadInput(
            f"the public set {name!r} has the classes 0 to {classes - 1}, but the first class of "
            f"clients is {first_class}; set {format_setting('data.first_class')} to {classes}"
        )
    if not 1 <= count <= len(samples):
        raise BadInput(
            f"public_samples must be between 1 and {len(samples)}, the number of training samples "
            f"of {name!r}, got {count}"
        )
    positions = torch.randperm(len(samples), generator=seeded(seed, "public"))[:count]
    selected_samples = samples.take(positions.sort().values)
    return Samples(selected_samples.features, selected_samples.labels, torch.arange(count))
