"""IFCA-MIR: clients weigh a model's loss against the membership risk of being in it."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import AtLeastZero, Fraction, Positive, ProperShare
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.seeds import held_out, seed_for, seeded
from fedaudit.core.values import ClientId, Model, Params, Samples, plus
from fedaudit.fl.algorithms.base import Cluster, Local, OwnRisk, PreferenceName, Risk
from fedaudit.fl.algorithms.fedavg import received_update
from fedaudit.fl.algorithms.ifca import AFRESH, SERVER, Ifca, losses, remembered
from fedaudit.fl.hooks import Defense, Visit
from fedaudit.observe.round import Sent, Upload


@arguments.dataclass(frozen=True)
class Preference:
    """A client's weights of its loss and of a model's membership risk.

    Each client accepts a risk of its own, drawn from ``accepted``. With the way
    "threshold" it follows from that how much the loss counts: alpha is 0 for who accepts the
    lowest risk and 1 for who accepts the highest. With "fixed" everybody has the same alpha.
    With "hard" a client takes the least loss among the models whose risk it accepts, and the
    least risk where it accepts none.

    Attributes:
        way: One of the three.
        alpha: Weight of the loss where it is fixed, in [0, 1]; that of the risk is 1 - alpha.
        accepted: The lowest and the highest risk that some client may accept (balanced accuracy,
            0.5 is a guess).

    Source: IFCA-MIR, Algorithm 1, line 12; section 5.2.2 (thresholds between 0.5 and 0.8).
    Differs: The paper does not say how alpha follows from the threshold; the straight line is
        ours, and so is the way "hard".
    """

    way: PreferenceName = "threshold"
    alpha: Fraction = 0.5
    accepted: tuple[float, float] = (0.5, 0.8)

    def __post_init__(self) -> None:
        low, high = self.accepted
        if not 0 <= low < high <= 1:
            raise BadInput(
                "low and high are the lowest and highest risk that clients accept, 0 <= low < "
                f"high <= 1, got {low} and {high}"
            )

    def threshold(self, seed: int, client: ClientId) -> float:
        """The highest risk that a client accepts."""
        drawn = torch.rand((), generator=seeded(seed, "risk threshold", client))
        low, high = self.accepted
        return low + (high - low) * float(drawn)

    def weight(self, threshold: float) -> float:
        """alpha of a client with that threshold."""
        if self.way == "fixed":
            return self.alpha
        low, high = self.accepted
        return (threshold - low) / (high - low)

    def choose(
        self,
        loss: Float[Tensor, " models"],
        risk: Float[Tensor, " models"],
        threshold: float,
        bonus: Float[Tensor, " models"],
    ) -> int:
        """The model that a client takes, the first of equals.

        Args:
            loss: Mean loss of each model on the client's data.
            risk: Membership risk of each.
            threshold: The highest risk that the client accepts.
            bonus: Taken off each model's cost.
        """
        if self.way == "hard":
            accepted = risk <= threshold
            if not bool(accepted.any()):
                return int(risk.argmin())
            return int((loss - bonus).where(accepted, torch.inf).argmin())
        alpha = self.weight(threshold)
        return int((alpha * loss + (1 - alpha) * risk - bonus).argmin())

    def choose_without_risk(
        self,
        loss: Float[Tensor, " models"],
        threshold: float,
        bonus: Float[Tensor, " models"],
    ) -> int:
        """Return the model that a client would take if every model had the same accepted risk.

        With a weight of 0 for the loss that is the model with the least loss, as in IFCA.
        """
        alpha = 1.0 if self.way == "hard" else self.weight(threshold)
        return int((alpha * loss - bonus).argmin() if alpha else loss.argmin())


def _noted(choice: int, without: int, visit: Visit) -> int:
    """Note whether the risks of the models changed a client's choice, and return the choice."""
    visit.note("risk_decided", torch.tensor([int(choice != without)]))
    return choice


GUESS = 0.5
"""Membership risk of a model that nobody was trained into: what a guess gets right."""


def no_risk(clusters: Sequence[Cluster], *, seed: int) -> list[float]:
    """Tells everybody that every model gives away nothing."""
    return [GUESS for _ in clusters]


@arguments.dataclass(frozen=True)
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
    every: Positive = 5
    preference: Preference = field(default_factory=Preference)
    bonus: AtLeastZero = 0.0

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
        loss = losses(sent, data, visit)
        choice = self.preference.choose(loss, sent.extra["risk"], threshold, bonus)
        return _noted(choice, self.preference.choose_without_risk(loss, threshold, bonus), visit)

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
    """Shortage of each model's share of the data below an even one: 1 for none, 0 for enough."""
    return (1 - len(share) * share).clamp(min=0)


LINE = "line"
"""What a client remembers: the loss up to which it takes samples for members."""


class _Sides(NamedTuple):
    """A client's samples."""

    trained: Samples
    held_out: Samples


@arguments.dataclass(frozen=True)
class IfcaMirOfClients(Ifca):
    """IFCA-MIR whose clients attack the models that they are sent, each on its own data.

    A client keeps some samples out of training. From its own model of the last round it learns
    which losses tell them from the others, and what is told by that of a model it is sent is that
    model's risk. In its first round it knows of no risk.

    Attributes:
        own_risk: How a client attacks.
        share: About how many of their samples clients hold out, in (0, 1).
        preference: How clients weigh loss and risk.

    Source: IFCA-MIR, section 5.7 (clients' own evaluation, without shadow models).
    Differs: The paper gives the idea only; holding samples out is ours, because without samples
        that were not trained on there is nothing to tell members from.
    """

    own_risk: OwnRisk = field(kw_only=True)
    share: ProperShare = 0.1
    preference: Preference = field(default_factory=Preference)

    def held_out(self, ids: Int[Tensor, " samples"], *, seed: int) -> Bool[Tensor, " samples"]:
        """Which samples no client ever trains on."""
        return held_out(ids, self.share, seed=seed)

    def trained_on(self, data: Samples, visit: Visit) -> Samples:
        """The part of its data that a client trains on: all but the held-out samples."""
        return self._sides(data, visit).trained

    def choose(self, sent: Sent, data: Samples, memory: Params, visit: Visit) -> int:
        """By the client's own weights of loss and of what its own attack finds."""
        sides = self._sides(data, visit)
        known = remembered(memory, LINE, torch.float64, visit.client)
        risks = [
            GUESS if known is None else self._risk(visit, model, sides, float(known))
            for model in sent.models
        ]
        threshold = self.preference.threshold(visit.seed, visit.client)
        loss, risk = losses(sent, sides.trained, visit), torch.tensor(risks, dtype=torch.float64)
        no_bonus = torch.zeros_like(risk)
        choice = self.preference.choose(loss, risk, threshold, no_bonus)
        return _noted(choice, self.preference.choose_without_risk(loss, threshold, no_bonus), visit)

    def local(
        self, sent: Sent, data: Samples, memory: Params, defense: Defense, visit: Visit
    ) -> Local:
        """As in IFCA; then the client learns from its own model what gives samples away."""
        local = super().local(sent, data, memory, defense, visit)
        update = received_update(local.upload)
        start = sent.models[update.choice]
        own = Model(start.architecture, plus(start.params, update.values), update.buffers)
        line = self.own_risk.line(*self._losses(visit, own, self._sides(data, visit)))
        return Local(update, {**local.memory, LINE: torch.tensor(line, dtype=torch.float64)})

    def _sides(self, data: Samples, visit: Visit) -> _Sides:
        apart = self.held_out(data.ids, seed=visit.seed)
        sides = _Sides(data.take(~apart), data.take(apart))
        if not (len(sides.trained) and len(sides.held_out)):
            raise BadInput(
                f"client {visit.client} has {len(data)} samples and holds out "
                f"{len(sides.held_out)}, so that it cannot find out what models give away; give "
                "clients more samples, or another share to hold out"
            )
        return sides

    def _risk(self, visit: Visit, model: Model, sides: _Sides, line: float) -> float:
        return self.own_risk.risk(*self._losses(visit, model, sides), line)

    def _losses(self, visit: Visit, model: Model, sides: _Sides) -> tuple[Tensor, Tensor]:
        of_model = visit.at(model).evaluate
        return of_model(sides.trained), of_model(sides.held_out)
