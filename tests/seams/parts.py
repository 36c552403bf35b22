"""Short versions of published algorithms, servers and defenses, written against the interfaces.

They show what one more of each costs; that they fit on a page is part of what is tested.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedaudit.core.modules import loaded
from fedaudit.core.params import difference, norm, plus, scaled, weighted_sum
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import Architecture, Batch, ClientId, Model, Params, Samples, chunks
from fedaudit.defenses.base import UNDEFENDED, Defense, Objective, Turn, Visit, Workload
from fedaudit.fl.algorithms.base import Local, Server
from fedaudit.fl.algorithms.fedavg import FedAvg, rebuilt, received_update
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.observe.round import Exposed, Gradient, Logits, Sent, Update, Upload

FEATURES, CLASSES = 6, 3


def net(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def tiny(hidden: int = 5) -> Architecture:
    return Architecture("tiny", partial(net, hidden), (("hidden", hidden),))


@dataclass(frozen=True)
class FedSGD:
    """Clients send the gradient of all their data at the global model."""

    architecture: Architecture
    lr: float
    upload_kind = Gradient

    @property
    def nets(self) -> tuple[Architecture, ...]:
        return (self.architecture,)

    def start(self, seed: int) -> Params:
        return self.architecture.initial(seed).tensors()

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        return Sent((Model.from_tensors(self.architecture, state),))

    def local(
        self, sent: Sent, data: Samples, memory: Params, defense: Defense, visit: Visit
    ) -> Local:
        turn = visit.at(sent.model)
        module = loaded(sent.model, "training").train()
        objective = Objective(module, lambda outputs, batch: defense.loss(outputs, batch, turn))
        (whole,) = defense.batches(defense.select(data, turn), len(data), turn)
        values = defense.gradient(objective, defense.batch(whole, turn), turn)
        buffers = Model.of(self.architecture, module).buffers
        return Local(defense.upload(Gradient(values, buffers), turn), memory)

    def fold(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        clients = sorted(uploads)
        mean = weighted_sum([uploads[c].values for c in clients], [weights[c] for c in clients])
        before = Model.from_tensors(self.architecture, state)
        return Model(self.architecture, plus(before.params, mean, -self.lr), {}).tensors()

    def expose(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, Exposed]:
        return {
            client: rebuilt(sent[client].model, Update(scaled(upload.values, -self.lr)), None)
            for client, upload in sorted(uploads.items())
        }

    def models(self, state: Params) -> Mapping[str, Model]:
        return {"global": Model.from_tensors(self.architecture, state)}

    def workload(self, rounds: int, samples: int) -> Workload:
        return Workload(rounds=rounds, epochs=1, batch_size=samples, samples=samples)


class Follow(Defense):
    """Trains towards given outputs instead of labels (distillation)."""

    def __init__(self, outputs: Float[Tensor, "samples classes"]) -> None:
        self.outputs = outputs

    def loss(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor:
        return (outputs - self.outputs[batch.ids]).abs().mean()


@dataclass(frozen=True)
class FedMD:
    """Clients keep nets of their own and send outputs on a public set (ids 0, 1, ...)."""

    own: Mapping[ClientId, Architecture]
    student: Architecture
    public: Samples
    training: LocalTraining
    upload_kind = Logits

    def start(self, seed: int) -> Params:
        return {"consensus": torch.zeros(len(self.public), CLASSES)}

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        return Sent(extra=state)

    def local(
        self, sent: Sent, data: Samples, memory: Params, defense: Defense, visit: Visit
    ) -> Local:
        mine = self.own[visit.client]
        own = Model.from_tensors(mine, memory) if memory else mine.initial(visit.client)
        turn = visit.at(own)
        digest = Follow(sent.extra["consensus"]) if visit.round > 1 else UNDEFENDED
        digested = train(own, self.public, self.training, digest, turn)
        trained = train(digested, data, self.training, defense, turn)
        with torch.no_grad():
            logits = loaded(trained, "evaluation").eval()(self.public.features)
        return Local(defense.upload(Logits({"logits": logits}), turn), trained.tensors())

    def fold(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        clients = sorted(uploads)
        logits = [uploads[client].values for client in clients]
        return {"consensus": weighted_sum(logits, [weights[c] for c in clients])["logits"]}

    def expose(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, Exposed]:
        blank = self.student.initial(seed_for(seed, "student"))
        exposed = {}
        for client, upload in sorted(uploads.items()):
            visit = Visit(
                round=round, rounds=rounds, client=client, cohort=(), weights={}, seed=seed
            )
            follow = Follow(upload.values["logits"])
            student = train(blank, self.public, self.training, follow, visit.at(blank))
            exposed[client] = Exposed(local=student)
        return exposed

    def models(self, state: Params) -> Mapping[str, Model]:
        return {}

    @property
    def architecture(self) -> Architecture:
        return self.student

    @property
    def nets(self) -> tuple[Architecture, ...]:
        return tuple(self.own.values())

    def workload(self, rounds: int, samples: int) -> Workload:
        return Workload(rounds=rounds, epochs=1, batch_size=8, samples=samples)


@dataclass(frozen=True)
class IFCA:
    """Several global models; each client trains the one with the least loss on its data."""

    one: FedAvg
    clusters: int = 2
    upload_kind = Update

    def start(self, seed: int) -> Params:
        return {
            f"{cluster}/{name}": value
            for cluster in range(self.clusters)
            for name, value in self.one.start(seed_for(seed, cluster)).items()
        }

    def _state_of(self, state: Params, cluster: int) -> Params:
        start = f"{cluster}/"
        return {k.removeprefix(start): v for k, v in state.items() if k.startswith(start)}

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        return Sent(tuple(self.models(state).values()))

    def local(
        self, sent: Sent, data: Samples, memory: Params, defense: Defense, visit: Visit
    ) -> Local:
        losses = [float(visit.at(model).evaluate(data).mean()) for model in sent.models]
        choice = losses.index(min(losses))
        turn = visit.at(sent.models[choice])
        trained = train(turn.received, data, self.one.training, defense, turn)
        update = Update(difference(trained.params, turn.received.params), {}, choice)
        return Local(defense.upload(update, turn), memory)

    def fold(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        after = dict(state)
        for cluster in range(self.clusters):
            its = {c: u for c, u in uploads.items() if received_update(u).choice == cluster}
            total = sum(weights[client] for client in its)
            shares = {client: weights[client] / total for client in its}
            if its:
                folded = self.one.fold(self._state_of(state, cluster), its, shares)
                after |= {f"{cluster}/{name}": value for name, value in folded.items()}
        return after

    def expose(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, Exposed]:
        updates = {client: received_update(upload) for client, upload in sorted(uploads.items())}
        return {c: rebuilt(sent[c].models[u.choice], u, None) for c, u in updates.items()}

    @property
    def architecture(self) -> Architecture:
        return self.one.architecture

    @property
    def nets(self) -> tuple[Architecture, ...]:
        return self.one.nets

    def workload(self, rounds: int, samples: int) -> Workload:
        return self.one.workload(rounds, samples)

    def models(self, state: Params) -> Mapping[str, Model]:
        return {
            str(cluster): Model.from_tensors(self.one.architecture, self._state_of(state, cluster))
            for cluster in range(self.clusters)
        }


@dataclass(frozen=True)
class Tampering(Server):
    """Sends one client another model than the rest."""

    victim: ClientId
    shift: float = 0.5

    def tamper(self, sent: Sent, client: ClientId, round: int) -> Sent:
        if client != self.victim:
            return sent
        shifted = {name: value + self.shift for name, value in sent.model.params.items()}
        return replace(sent, models=(replace(sent.model, params=shifted),))


@dataclass(frozen=True)
class PerExample(Defense):
    """DP-SGD: Poisson batches, each sample's gradient clipped, noise on the sum."""

    rate: float = 0.3
    clip: float = 1.0
    noise: float = 0.5

    def batches(self, data: Samples, batch_size: int, turn: Turn) -> Iterator[Batch]:
        for _ in range(max(1, round(1 / self.rate))):
            drawn = torch.rand(len(data), generator=turn.rng("poisson")) < self.rate
            some = data.take(drawn)
            yield Batch(some.features, some.labels, some.ids)

    def gradient(self, objective: Objective, batch: Batch, turn: Turn) -> Params:
        total = {name: torch.zeros_like(param) for name, param in objective.params.items()}
        for row in chunks(len(batch), 1):
            one = super().gradient(
                objective, Batch(batch.x[row], batch.y[row], batch.ids[row]), turn
            )
            total = plus(total, one, min(1.0, self.clip / norm(one)))
        rng, spread = turn.rng("noise"), self.noise * self.clip
        return {
            name: (value + spread * torch.randn(value.shape, generator=rng)) / max(len(batch), 1)
            for name, value in total.items()
        }


@dataclass(frozen=True)
class Apart(Defense):
    """Treats some samples apart: they count with another weight in the loss."""

    ids: tuple[int, ...]
    weight: float = 0.1

    def loss(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor:
        listed = torch.isin(batch.ids, torch.tensor(self.ids))
        weights = torch.where(listed, self.weight, 1.0)
        return (weights * turn.received.architecture.loss(outputs, batch.y)).mean()


@dataclass
class Learning(Defense):
    """Learns over rounds: scales uploads by what it has seen of the loss so far."""

    scale: float = 1.0
    memory: list[float] = field(default_factory=list)

    def select(self, data: Samples, turn: Turn) -> Samples:
        self.memory.append(float(turn.evaluate(data).mean()))
        return data

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        return replace(upload, values=scaled(upload.values, self.scale))

    def after(self, start: Model, end: Model, turn: Turn) -> None:
        self.scale *= 0.9 + 0.1 * self.memory[-1] / sum(self.memory)

    def state(self) -> Params:
        return {"scale": torch.tensor(self.scale).double(), "memory": torch.tensor(self.memory)}

    def restore(self, state: Params) -> None:
        self.scale, self.memory = float(state["scale"]), state["memory"].tolist()
