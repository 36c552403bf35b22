"""IFCA-MIR: clients weigh the loss of a model against the membership risk of being in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core import ClientId, Model, Params, Samples
from fedaudit.defenses.base import Visit
from fedaudit.errors import BadInput, Damaged
from fedaudit.fl.algorithms.fedavg import received_update
from fedaudit.fl.algorithms.ifca import AFRESH, SERVER, Ifca, losses
from fedaudit.fl.algorithms.preference import Preference
from fedaudit.observe.round import Sent, Upload
from fedaudit.seeds import seed_for

GUESS = 0.5
"""Membership risk of a model that nobody was trained into: what a guess gets right."""


class Cluster(NamedTuple):
    """A model, and how much training on how much data went into it.

    Attributes:
        model: After the round.
        samples: Of the clients that trained it in the round; 0 if nobody did.
        clients: How many these are, at least 1.
        rounds: In which the model was trained so far, at least 1.
        share: Of these clients that train it in each round, in (0, 1].
    """

    model: Model
    samples: int
    clients: int = 1
    rounds: int = 1
    share: float = 1.0


@runtime_checkable
class Risk(Protocol):
    """How a server finds out what its models give away; a frozen dataclass."""

    def __call__(self, clusters: Sequence[Cluster], *, seed: int) -> list[float]:
        """Membership risk of each model: balanced accuracy of an attack, a share.

        Args:
            clusters: The models.
            seed: Of all random choices.
        """
        ...


def no_risk(clusters: Sequence[Cluster], *, seed: int) -> list[float]:
    """Tells everybody that every model gives away nothing."""
    return [GUESS for _ in clusters]


@dataclass(frozen=True)
class IfcaMir(Ifca):
    """IFCA whose server attacks its own models and tells clients how well that went.

    With equal risks, or where only the loss counts, clients choose as in IFCA.

    Attributes:
        risk: How the server attacks.
        every: Rounds between two attacks, at least 1.
        preference: How clients weigh loss and risk.
        bonus: What a client is offered, in units of cost, to train a model that nobody trains;
            less for models with clients, nothing for one with its even share of them.

    Source: IFCA-MIR, Algorithm 1; the bonus is the balancing mechanism that section 5.7 asks for.
    Differs: A client's loss is that of all its data, as in IFCA, and not of one mini-batch. Before
        the first attack the risk is that of a guess, since untrained models know nobody. Where not
        all clients take part in a round, the attack's shadows are of those of the round.
    """

    risk: Risk = field(default=no_risk)
    every: int = 5
    preference: Preference = field(default_factory=Preference)
    bonus: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1 or not 0 <= self.bonus < float("inf"):
            raise BadInput(
                "risks are measured every 1 or more rounds and a bonus is at least 0, got every "
                f"{self.every} and {self.bonus}"
            )

    def start(self, seed: int) -> Params:
        """The models of IFCA, with no risk known and everybody's share alike."""
        return super().start(seed) | {
            f"{SERVER}risk": torch.full((self.count,), GUESS, dtype=torch.float64),
            f"{SERVER}share": torch.full((self.count,), 1 / self.count, dtype=torch.float64),
            f"{SERVER}round": torch.tensor(0),
            f"{SERVER}seed": torch.tensor(seed),
        }

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        """All models, the risk of each, and its share of the clients' data.

        Raises:
            Damaged: One of these is no share, or they are of another round.
        """
        told = {name: state[f"{SERVER}{name}"] for name in ("risk", "share")}
        shares = torch.cat(list(told.values()))
        last = int(state[f"{SERVER}round"])
        if not bool(((shares >= 0) & (shares <= 1)).all()) or last != round - 1:
            raise Damaged(
                f"what the server keeps of its models' risks ({shares.tolist()}, of round {last}) "
                f"cannot be before round {round}; {AFRESH}"
            )
        return Sent(self._models(state), told)

    def choose(self, sent: Sent, data: Samples, memory: Params, visit: Visit) -> int:
        """By the client's own weights of loss and risk."""
        threshold = self.preference.threshold(visit.seed, visit.client)
        bonus = self.bonus * shortage(sent.extra["share"])
        return self.preference.choose(
            losses(sent, data, visit), sent.extra["risk"], threshold, bonus
        )

    def fold(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """The models as in IFCA; every few rounds the server attacks them."""
        after = super().fold(state, uploads, weights)
        round, seed = int(state[f"{SERVER}round"]) + 1, int(state[f"{SERVER}seed"])
        samples = self.samples_of(uploads)
        risk = state[f"{SERVER}risk"]
        if round % self.every == 0:
            clusters = [
                Cluster(model, own, max(len(clients), 1), max(trained, 1))
                for model, own, clients, trained in zip(
                    self._models(after),
                    samples,
                    self.clusters(uploads),
                    self.rounds_trained(after).values(),
                    strict=True,
                )
            ]
            found = self.risk(clusters, seed=seed_for(seed, "risk", round))
            # A model that nobody trained has the risk that it was last found to have.
            known = [
                new if c.samples else float(old)
                for c, new, old in zip(clusters, found, risk, strict=True)
            ]
            risk = torch.tensor(known, dtype=torch.float64)
        return after | {
            f"{SERVER}risk": risk,
            f"{SERVER}share": torch.tensor(samples, dtype=torch.float64) / max(sum(samples), 1),
            f"{SERVER}round": torch.tensor(round),
            f"{SERVER}seed": torch.tensor(seed),
        }

    def samples_of(self, uploads: Mapping[ClientId, Upload]) -> list[int]:
        """For each model, how many samples the clients have that trained it."""
        return [
            sum(received_update(uploads[client]).samples for client in clients)
            for clients in self.clusters(uploads)
        ]


def shortage(share: Float[Tensor, " models"]) -> Float[Tensor, " models"]:
    """How far each model's share of the data is below an even one: 1 for none, 0 for enough."""
    return (1 - len(share) * share).clamp(min=0)
