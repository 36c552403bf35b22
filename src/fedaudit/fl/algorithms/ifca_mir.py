"""IFCA-MIR: clients choose a model by its loss and its membership inference risk."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import AtLeastZero, Fraction, Positive, ProperFraction
from fedaudit.core.errors import BadInput, Damaged, format_setting
from fedaudit.core.seeds import held_out, seed_for, seeded
from fedaudit.core.values import ClientId, Model, Params, Samples, add_scaled
from fedaudit.fl.algorithms.base import Cluster, LocalResult, OwnRisk, PreferenceName, Risk
from fedaudit.fl.algorithms.fedavg import as_update
from fedaudit.fl.algorithms.ifca import (
    HOW_TO_RESTART,
    SERVER_PREFIX,
    Ifca,
    losses,
    scalar_of_client_state,
)
from fedaudit.fl.hooks import ClientContext, Defense
from fedaudit.observe.round import Sent, Upload


@arguments.dataclass(frozen=True)
class Preference:
    """Weights of the loss and of the membership risk in a client's choice of a model.

    A client chooses the model with the smallest alpha x loss + (1 - alpha) x risk. Each client has
    a risk threshold, drawn uniformly from ``accepted``.

    Attributes:
        way: How a client weighs loss against risk. "threshold": alpha grows linearly with the
            client's threshold, from 0 at the lowest to 1 at the highest. "fixed": alpha is the same
            for all clients. "hard": the client chooses the smallest loss among the models with a
            risk up to its threshold, or the smallest risk if all risks are above it.
        alpha: Weight of the loss for "fixed", in [0, 1]; the weight of the risk is 1 - alpha.
        accepted: Range of the risk thresholds (balanced accuracy of an attack; 0.5 is chance
            level).

    Source: Jung et al. 2025 (IFCA-MIR), Algorithm 1, line 12; section 5.2.2 (thresholds between 0.5
        and 0.8).
    Differs: The paper does not specify how alpha depends on the threshold. The linear dependence
        and "hard" are additions of this toolkit.
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
        """Draw a client's risk threshold."""
        uniform = torch.rand((), generator=seeded(seed, "risk threshold", client))
        low, high = self.accepted
        return low + (high - low) * float(uniform)

    def weight(self, threshold: float) -> float:
        """Return the weight alpha of the loss for a client with this threshold."""
        if self.way == "fixed":
            return self.alpha
        low, high = self.accepted
        return (threshold - low) / (high - low)

    def choose_for(
        self,
        client_context: ClientContext,
        loss: Float[Tensor, " models"],
        risk: Float[Tensor, " models"],
        bonus: Float[Tensor, " models"],
    ) -> int:
        """Return a client's choice, and note whether it would differ if all risks were equal."""
        threshold = self.threshold(client_context.seed, client_context.client)
        choice = self.choose(loss, risk, threshold, bonus)
        without_risk = self.choose_without_risk(loss, threshold, bonus)
        client_context.note("risk_decided", torch.tensor([int(choice != without_risk)]))
        return choice

    def choose(
        self,
        loss: Float[Tensor, " models"],
        risk: Float[Tensor, " models"],
        threshold: float,
        bonus: Float[Tensor, " models"],
    ) -> int:
        """Return the number of the model that a client chooses; the first in case of a tie.

        Args:
            loss: Mean loss of each model on the client's data.
            risk: Membership risk of each model.
            threshold: The highest risk that the client accepts.
            bonus: Amount that is subtracted from each model's cost.
        """
        if self.way == "hard":
            is_accepted = risk <= threshold
            if not bool(is_accepted.any()):
                return int(risk.argmin())
            return int((loss - bonus).where(is_accepted, torch.inf).argmin())
        alpha = self.weight(threshold)
        return int((alpha * loss + (1 - alpha) * risk - bonus).argmin())

    def choose_without_risk(
        self,
        loss: Float[Tensor, " models"],
        threshold: float,
        bonus: Float[Tensor, " models"],
    ) -> int:
        """Return the number of the model that a client would choose if all risks were equal.

        If the weight of the loss is 0, the smallest loss decides, as in IFCA.
        """
        alpha = 1.0 if self.way == "hard" else self.weight(threshold)
        return int((alpha * loss - bonus).argmin() if alpha else loss.argmin())


CHANCE_LEVEL = 0.5
"""Membership risk of an untrained model: balanced accuracy of random guessing."""


def no_risk(clusters: Sequence[Cluster], *, seed: int) -> list[float]:
    """Return the chance level as the risk of every model."""
    return [CHANCE_LEVEL for _ in clusters]


@arguments.dataclass(frozen=True)
class IfcaMir(Ifca):
    """IFCA whose server attacks its own models and sends their membership risk to the clients.

    With equal risks, or if only the loss has weight, clients choose as in IFCA.

    Attributes:
        risk: Function that estimates the models' membership risk.
        every: Rounds from one attack to the next, at least 1.
        preference: Weights of loss and risk in the clients' choices.
        bonus: Amount that is subtracted from the cost of a model without clients. For other models,
            it decreases linearly with the model's fraction of all training samples. It is 0 from
            an equal fraction on.

    Source: Jung et al. 2025 (IFCA-MIR), Algorithm 1; the bonus is the balancing mechanism that
        section 5.7 calls for.
    Differs: The loss is computed on all data of a client, as in IFCA, instead of one mini-batch.
        Before the first attack, the risk is at chance level, because untrained models have no
        members. With partial participation, shadow models have as much data as the participating
        clients.
    """

    risk: Risk = field(default=no_risk)
    every: Positive = 5
    preference: Preference = field(default_factory=Preference)
    bonus: AtLeastZero = 0.0

    def start(self, seed: int) -> Params:
        """Return the initial models of IFCA, with risks at chance level and equal data shares."""
        return super().start(seed) | {
            f"{SERVER_PREFIX}risk": torch.full((self.count,), CHANCE_LEVEL, dtype=torch.float64),
            f"{SERVER_PREFIX}share": torch.full((self.count,), 1 / self.count, dtype=torch.float64),
            f"{SERVER_PREFIX}round": torch.tensor(0),
            f"{SERVER_PREFIX}seed": torch.tensor(seed),
        }

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        """Send all models, with the risk of each and its share of the clients' data.

        Raises:
            Damaged: A risk or share is out of range, or the state belongs to another round.
        """
        extra = {name: state[f"{SERVER_PREFIX}{name}"] for name in ("risk", "share")}
        values = torch.cat(list(extra.values()))
        last = int(state[f"{SERVER_PREFIX}round"])
        if not bool(((values >= 0) & (values <= 1)).all()) or last != round - 1:
            raise Damaged(
                f"the server's state of its models' risks ({values.tolist()}, of round {last}) "
                f"is invalid before round {round}; {HOW_TO_RESTART}"
            )
        return Sent(self._models(state), extra)

    def choose(
        self, sent: Sent, data: Samples, client_state: Params, client_context: ClientContext
    ) -> int:
        bonus = self.bonus * shortage(sent.extra["share"])
        loss = losses(sent, data, client_context)
        return self.preference.choose_for(client_context, loss, sent.extra["risk"], bonus)

    def aggregate(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Aggregate the models as in IFCA, and attack them every few rounds."""
        after = super().aggregate(state, uploads, weights)
        round, seed = int(state[f"{SERVER_PREFIX}round"]) + 1, int(state[f"{SERVER_PREFIX}seed"])
        samples = self.samples_of(uploads)
        risk = state[f"{SERVER_PREFIX}risk"]
        if round % self.every == 0:
            clients, rounds = self.clusters(uploads), [*self.rounds_trained(after).values()]
            clusters = [
                Cluster(model, samples[j], max(len(clients[j]), 1), max(rounds[j], 1))
                for j, model in enumerate(self._models(after))
            ]
            estimates = self.risk(clusters, seed=seed_for(seed, "risk", round))
            # A model that no client trained in this round keeps its last risk.
            risks = [
                new if size else float(old)
                for size, new, old in zip(samples, estimates, risk, strict=True)
            ]
            risk = torch.tensor(risks, dtype=torch.float64)
        return after | {
            f"{SERVER_PREFIX}risk": risk,
            f"{SERVER_PREFIX}share": torch.tensor(samples, dtype=torch.float64)
            / max(sum(samples), 1),
            f"{SERVER_PREFIX}round": torch.tensor(round),
            f"{SERVER_PREFIX}seed": torch.tensor(seed),
        }

    def samples_of(self, uploads: Mapping[ClientId, Upload]) -> list[int]:
        """Return, for each model, the number of samples of the clients that trained it."""
        return [
            sum(as_update(uploads[client]).samples for client in clients)
            for clients in self.clusters(uploads)
        ]


def shortage(share: Float[Tensor, " models"]) -> Float[Tensor, " models"]:
    """Return by how much each model is trained on less than an equal share of the data.

    For one of n models with a share s, this is max(0, 1 - n s): 1 without data, and 0 for a share
    of 1 / n or more.
    """
    return (1 - len(share) * share).clamp(min=0)


THRESHOLD_KEY = "line"
"""Key of the loss threshold in a client's state. Checkpoints of older versions contain it."""


class _SplitSamples(NamedTuple):
    members: Samples
    held_out: Samples


@arguments.dataclass(frozen=True)
class IfcaMirOfClients(Ifca):
    """IFCA-MIR in which each client attacks the received models on its own data.

    A client holds some samples out of training. After local training, it chooses the loss threshold
    that best separates members from held-out samples in its trained model. In its next round, the
    risk of a received model is the balanced accuracy at this threshold. In a client's first round,
    all risks are at chance level.

    Attributes:
        own_risk: Method by which clients estimate the risk.
        share: Expected fraction of samples that clients hold out, in (0, 1).
        preference: Weights of loss and risk in the clients' choices.

    Source: Jung et al. 2025 (IFCA-MIR), section 5.7 (clients' own evaluation, without shadow
        models).
    Differs: The paper describes only the idea. Clients hold samples out here, because an attack
        needs non-members.
    """

    own_risk: OwnRisk = field(kw_only=True)
    share: ProperFraction = 0.1
    preference: Preference = field(default_factory=Preference)

    def held_out(self, ids: Int[Tensor, " samples"], *, seed: int) -> Bool[Tensor, " samples"]:
        return held_out(ids, self.share, seed=seed)

    def trained_on(self, data: Samples, client_context: ClientContext) -> Samples:
        return self._split(data, client_context).members

    def choose(
        self, sent: Sent, data: Samples, client_state: Params, client_context: ClientContext
    ) -> int:
        split = self._split(data, client_context)
        threshold = scalar_of_client_state(
            client_state, THRESHOLD_KEY, torch.float64, client_context.client
        )
        risks = [CHANCE_LEVEL] * len(sent.models)
        if threshold is not None:
            risks = [
                self.own_risk.risk(*self._losses(client_context, model, split), float(threshold))
                for model in sent.models
            ]
        risk = torch.tensor(risks, dtype=torch.float64)
        loss = losses(sent, split.members, client_context)
        return self.preference.choose_for(client_context, loss, risk, torch.zeros_like(risk))

    def run_client(
        self,
        sent: Sent,
        data: Samples,
        client_state: Params,
        defense: Defense,
        client_context: ClientContext,
    ) -> LocalResult:
        """Train as in IFCA, then choose the loss threshold in the client's trained model."""
        local = super().run_client(sent, data, client_state, defense, client_context)
        update = as_update(local.upload)
        start = sent.models[update.choice]
        trained = Model(start.architecture, add_scaled(start.params, update.values), update.buffers)
        split = self._split(data, client_context)
        threshold = self.own_risk.threshold(*self._losses(client_context, trained, split))
        stored = torch.tensor(threshold, dtype=torch.float64)
        return LocalResult(update, {**local.client_state, THRESHOLD_KEY: stored})

    def _split(self, data: Samples, client_context: ClientContext) -> _SplitSamples:
        is_held_out = self.held_out(data.ids, seed=client_context.seed)
        split = _SplitSamples(data.take(~is_held_out), data.take(is_held_out))
        if not (len(split.members) and len(split.held_out)):
            raise BadInput(
                f"client {client_context.client} has {len(data)} samples and holds out "
                f"{len(split.held_out)}, but needs members and held-out samples to measure the "
                f"risk of models; raise {format_setting('partition.samples_per_client')}, or "
                "change the share to hold out"
            )
        return split

    def _losses(
        self, client_context: ClientContext, model: Model, split: _SplitSamples
    ) -> tuple[Tensor, Tensor]:
        evaluate = client_context.with_model(model).evaluate
        return evaluate(split.members), evaluate(split.held_out)
