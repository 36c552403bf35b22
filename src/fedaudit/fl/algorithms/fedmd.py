"""FedMD: clients keep nets of their own and share these nets' outputs on a public set."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from fedaudit.core import arguments
from fedaudit.core.arguments import AboveZero, Positive
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, Unsupported, setting
from fedaudit.core.modules import loaded, outputs_of
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
from fedaudit.fl.algorithms.base import Local
from fedaudit.fl.hooks import UNDEFENDED, Defense, Turn, Visit, Workload
from fedaudit.fl.training.local import Adam, LocalTraining, train
from fedaudit.fl.training.manual_backprop import written_out
from fedaudit.fl.training.parallel import draws_as_it_trains, side_by_side
from fedaudit.observe.round import Exposed, Logits, Sent, Upload


@arguments.dataclass(frozen=True)
class Distillation:
    """Training of a student: Adam on the mean absolute difference of the outputs.

    Attributes:
        epochs: Passes over the public samples, at least 1.
        batch_size: Samples a step, at least 1.
        lr: Learning rate, above 0.

    Source: SIA, Algorithm 3, line 12; settings of its published code.
    """

    epochs: Positive = 30
    batch_size: Positive = 64
    lr: AboveZero = 1e-3


def distilled(
    student: Model,
    features: Shaped[Tensor, "samples ..."],
    outputs: Mapping[ClientId, Float[Tensor, "samples outputs"]],
    how: Distillation,
    *,
    rng: torch.Generator,
    device: torch.device = CPU,
) -> dict[ClientId, Model]:
    """For each client a student of its outputs; all begin alike and see samples in one order.

    Students have nothing to do with each other, and are trained side by side, one a processor
    core; how many there are changes no result.

    Args:
        student: Where all of them begin.
        features: Public samples.
        outputs: What each client's model gave for them.
        how: Epochs, batches and learning rate.
        rng: Decides the order of the samples.
        device: Where to calculate; a GPU trains one student after another.

    Raises:
        Unsupported: The student draws at random as it trains (dropout), or may do so (a class of
            the user's own), which cannot be done side by side.
    """
    _refuse_random(student)
    orders = [torch.randperm(len(features), generator=rng) for _ in range(how.epochs)]
    learn = partial(_student, student, features.to(device), how=how, orders=orders)
    clients = sorted(outputs)
    taught = [outputs[client].to(device) for client in clients]
    models = side_by_side(learn, taught, device=device)
    return dict(zip(clients, models, strict=True))


def _refuse_random(student: Model) -> None:
    if draws_as_it_trains(student):
        raise Unsupported(
            "a student with dropout cannot be distilled, nor one of a class of its own; set "
            "dropout to 0, or name a network of the catalogue in "
            f"{setting('algorithm.options.student')}"
        )


def _student(
    start: Model,
    features: Tensor,
    targets: Tensor,
    *,
    how: Distillation,
    orders: list[Int[Tensor, " samples"]],
) -> Model:
    module = loaded(start, "student", features.device).train()
    optimizer = Adam(lr=how.lr)
    params = _trained(module)
    for order in orders:
        shuffled, wanted = features[order], targets[order]
        for part in chunks(len(order), how.batch_size):
            slope = partial(_toward, targets=wanted[part])
            optimizer.step(params, _gradients(module, shuffled[part], slope))
    return Model.of(start.architecture, module)


def _gradients(module: nn.Module, x: Tensor, slope: "partial[Tensor]") -> list[Tensor]:
    written = written_out(module)
    if written is not None:
        return written.gradients(x, slope)
    outputs = module(x)
    found = torch.autograd.grad(
        outputs,
        _trained(module),
        slope(outputs) / len(x),
        allow_unused=True,
        materialize_grads=True,
    )
    return list(found)


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [value for value in module.parameters() if value.requires_grad]


def _toward(
    outputs: Float[Tensor, "samples outputs"], targets: Float[Tensor, "samples outputs"]
) -> Float[Tensor, "samples outputs"]:
    """The derivative of the sum over samples of the mean absolute difference."""
    return (outputs.detach() - targets).sign() / outputs.shape[1]


class TowardOutputs(Defense):
    """Trains towards given outputs instead of labels: the mean absolute difference.

    It is no defense; it uses the hook for a loss of one's own. Samples' ids are their rows.
    """

    def __init__(self, outputs: Tensor) -> None:
        self._outputs = outputs

    def loss(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor:
        """The mean absolute difference of the outputs."""
        return (outputs - self._outputs.to(outputs.device)[batch.ids]).abs().mean()


@dataclass(frozen=True)
class FedMD:
    """Clients of different architectures learn from each other through a public set.

    A client's first round is FedMD's transfer learning: some epochs on the public samples with
    their labels, some on its own. In each later round it trains towards the clients' mean
    outputs on the public set ("digest"), then on its own samples ("revisit"). In all of them it
    sends its outputs on the public set, the only thing that anybody else gets to see.

    An adversary who sees them trains a student for each client, and looks at that.

    Attributes:
        nets: Architectures of the clients, dealt in turn: client k has number k modulo how many
            there are.
        public: Samples that everybody has, with labels; their ids are 0, 1, ...
        first_public: Training on the public samples before the first exchange.
        first_private: Training on the client's own samples after that.
        digest: Training towards the mean outputs.
        revisit: Training on the client's own samples.
        student: Architecture of the adversary's students.
        distillation: How these are trained.

    Source: Li & Wang 2019 ("FedMD"), Algorithm 1; SIA, Algorithm 3 and its published code.
    Differs: The exchange before SIA's first round is round 1 here. The mean over clients is plain,
        as in both papers, whatever their data sizes. Optimizers start afresh each round, where
        the published code starts them afresh each epoch. One fixed set of public samples serves
        the first training and the exchange alike, where the published code first trains on all of
        the public training part, in batches of 128 and not of the study's size, and exchanges
        outputs on 5,000 of it, the same ones in every round.
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
            raise BadInput("the public samples' ids are their rows: 0, 1, ...")
        _refuse_random(self.student.initial(0))

    @property
    def architecture(self) -> Architecture:
        """Of what an adversary can rebuild of a client: the student."""
        return self.student

    @property
    def upload_kind(self) -> type[Upload]:
        """Clients send outputs on the public set."""
        return Logits

    def start(self, seed: int) -> Params:
        """No outputs yet: zeros, which nobody trains towards."""
        outputs = outputs_of(self.nets[0].initial(0), self.public.features[:1])
        return {"outputs": torch.zeros(len(self.public), outputs.shape[1])}

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        """The clients' mean outputs of the round before."""
        return Sent(extra=state)

    def local(
        self, sent: Sent, data: Samples, memory: Params, defense: Defense, visit: Visit
    ) -> Local:
        """Digests and revisits; the client's net stays with it."""
        net = self.nets[visit.client % len(self.nets)]
        if memory:
            consensus = sent.extra["outputs"]
            own = Model.from_tensors(net, memory)
            own = self._publicly(own, self.digest, TowardOutputs(consensus), visit)
            training = self.revisit
        else:
            own = net.initial(seed_for(visit.seed, "net", visit.client))
            own = self._publicly(own, self.first_public, UNDEFENDED, visit)
            training = self.first_private
        turn = visit.at(own)
        trained = train(own, data, training, defense, turn)
        outputs = outputs_of(trained, self.public.features, visit.device)
        return Local(defense.upload(Logits({"outputs": outputs}), turn), trained.tensors())

    def fold(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """The plain mean of the outputs that came back."""
        parts = (uploads[client].values for client in sorted(uploads))
        return weighted_sum(parts, [1 / len(uploads)] * len(uploads))

    def expose(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, Exposed]:
        """A student for each client, trained when one is looked at."""
        return Students(self, uploads, seed)

    def models(self, state: Params) -> Mapping[str, Model]:
        """None: there is no model that everybody has."""
        return {}

    def workload(self, rounds: int, samples: int) -> Workload:
        """The first training on a client's own samples, and every revisit."""
        epochs = self.first_private.epochs + (rounds - 1) * self.revisit.epochs
        return Workload(
            rounds=1, epochs=epochs, batch_size=self.revisit.batch_size, samples=samples
        )

    def models_of_clients(self, memories: Mapping[ClientId, Params]) -> Mapping[ClientId, Model]:
        """The clients' own nets."""
        return {
            client: Model.from_tensors(self.nets[client % len(self.nets)], memory)
            for client, memory in sorted(memories.items())
        }

    def _publicly(self, model: Model, how: LocalTraining, loss: Defense, visit: Visit) -> Model:
        return train(model, self.public, how, loss, visit.aside("public").at(model))


class Students(Mapping[ClientId, Exposed]):
    """An observer's student of each client; all are trained at the first look.

    Args:
        algorithm: Knows student and public set.
        uploads: The clients' outputs on it.
        seed: Root seed of the run. All students of all rounds begin alike.
    """

    def __init__(self, algorithm: FedMD, uploads: Mapping[ClientId, Upload], seed: int) -> None:
        self._algorithm, self._uploads, self._seed = algorithm, uploads, seed

    def __getitem__(self, client: ClientId) -> Exposed:
        return self._all[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(sorted(self._uploads))

    def __len__(self) -> int:
        return len(self._uploads)

    @cached_property
    def _all(self) -> dict[ClientId, Exposed]:
        algorithm = self._algorithm
        models = distilled(
            algorithm.student.initial(seed_for(self._seed, "student")),
            algorithm.public.features,
            {client: upload.values["outputs"] for client, upload in self._uploads.items()},
            algorithm.distillation,
            rng=seeded(self._seed, "students' order"),
        )
        return {client: Exposed(local=model) for client, model in models.items()}


def networks(channels: str, model: Callable[..., Architecture]) -> tuple[Architecture, ...]:
    """CNNs with 3x3 windows, by their channels.

    Args:
        channels: Such as "16,32; 16,16,32", a network each; empty for none.
        model: Builds a model of the catalogue, by name and settings.
    """
    each = [part.strip() for part in channels.split(";") if part.strip()]
    return tuple(model("cnn", channels=part, kernel=3, padding=1) for part in each)


def public_samples(
    samples: Samples, count: int, *, name: str, shape: tuple[int, ...], first_class: int, seed: int
) -> Samples:
    """Some samples of a public set, drawn at random, with their rows as ids.

    Args:
        samples: The whole set.
        count: How many are drawn.
        name: Of the set, for refusals.
        shape: Of the clients' samples.
        first_class: Number of the first class that clients have samples of.
        seed: Of the draw.

    Raises:
        BadInput: The set does not fit the clients' samples, or has too few.
    """
    its_shape, classes = tuple(samples.features.shape[1:]), int(samples.labels.max()) + 1
    if its_shape != shape:
        raise BadInput(
            f"the public set {name!r} has samples of shape {its_shape} and the clients' have "
            f"{shape}; take one of the same shape"
        )
    if first_class < classes:
        raise BadInput(
            f"the public set {name!r} has the classes 0 to {classes - 1}, and the clients' own "
            f"begin at {first_class}; set {setting('data.first_class')} to {classes}"
        )
    if not 1 <= count <= len(samples):
        raise BadInput(
            f"public_samples lies between 1 and the {len(samples)} training samples of {name!r}, "
            f"got {count}"
        )
    drawn = torch.randperm(len(samples), generator=seeded(seed, "public"))[:count]
    some = samples.take(drawn.sort().values)
    return Samples(some.features, some.labels, torch.arange(count))
