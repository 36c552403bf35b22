"""Scoring rules that are fitted on a shadow run: a recurrent network, and a linear classifier."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.attacks.base import measured_rounds
from fedaudit.core import arguments
from fedaudit.core.arguments import AboveZero, AtLeastZero, Count, Positive
from fedaudit.core.errors import BadInput, TooFewPeers
from fedaudit.core.seeds import seeded, seeded_numpy
from fedaudit.core.values import Capability, ClientId, chunks
from fedaudit.engines.local import one_thread
from fedaudit.observe.measurements import Measurements

LR_DECAY_EPOCHS = 10
LR_DECAY = 0.9
MIN_LR = 5e-4
"""Every ten epochs, the learning rate is multiplied by 0.9 while it is above the minimum."""

SCORING_BATCH = 1024

PUBLISHED_EPOCHS = 150
FOLDS = 4
"""Number of folds of the shadow samples, and of networks with early stopping."""

PATIENCE = 20
"""Number of epochs without a lower loss after which training stops."""


class _Scaling(NamedTuple):
    """Mean and standard deviation of each signal over the shadow samples and rounds."""

    mean: Float[Tensor, " signals"]
    std: Float[Tensor, " signals"]


class _SequenceNetwork(nn.Module):
    """LSTM, attention of its last state over all states by inner products, and a linear layer."""

    def __init__(self, signals: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(signals, hidden, batch_first=True)
        self.decide = nn.Linear(2 * hidden, 2)

    def forward(
        self, sequences: Float[Tensor, "samples rounds signals"]
    ) -> Float[Tensor, "samples 2"]:
        states, (last, _) = self.lstm(sequences)
        last_state = last[0]
        attention = (states * last_state[:, None]).sum(2).softmax(1)
        context = (attention[:, :, None] * states).sum(1)
        logits: Tensor = self.decide(torch.cat([last_state, context], 1))
        return logits


class _Unfitted:
    """Base class of rules that compute scores only after they are fitted."""

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        raise BadInput(
            "this attack is not fitted; call Attack.fitted with measurements of samples of known "
            "membership, or add the attack to a study, which fits it"
        )


@arguments.dataclass(frozen=True)
class SequenceReader(_Unfitted):
    """Recurrent network that classifies samples by the sequence of their signals over the rounds.

    It is trained on the samples of a shadow run, of which the adversary knows the members.

    For each sample, the input of an LSTM is the sequence of the target's signals in the measured
    rounds, standardised by the shadow samples. The LSTM's last state attends to all states by inner
    products. A linear layer computes two logits from the last state and the attended states. The
    score is the logit of "member" minus that of "non-member".

    By default, four networks are trained with early stopping. Shadow samples are divided into four
    folds with equal fractions of members, and each network holds one fold out. Training stops after
    20 epochs without a lower held-out loss, and the weights with the lowest loss are used. The
    score is the mean over the four networks.

    Attributes:
        hidden: Size of the LSTM's state.
        epochs: Number of epochs of a single network; 0 for four networks with early stopping, of at
            most 150 epochs. The published code uses a single network and 150 epochs, in which it
            memorises a few hundred shadow samples.
        batch_size: Number of shadow samples per step.
        lr: Learning rate of Adam, which is multiplied by 0.9 every ten epochs while it is above
            5e-4.
        weight_decay: Weight decay of weights; biases have none.

    Source: Li et al. 2024 (SeqMIA), section 4; Bai et al. 2026 (CoFedMID), appendix D, for
        federations.
    Differs: There is no distillation: the sequence consists of the target client's models in the
        measured rounds. The published code scores by only the logit of "member", which is not
        monotone in the probability, and computes signals with dropout switched on. The membership
        labels are those of a shadow run, never of the audited run; CoFedMID does not specify them.
        By default, epochs are chosen by early stopping, and four networks are averaged.
    """

    hidden: Positive = 50
    epochs: Count = 0
    batch_size: Positive = 100
    lr: AboveZero = 0.01
    weight_decay: AtLeastZero = 1e-4

    client_aggregation = "target only"
    round_aggregation = "learned"
    needs = Capability.ROUNDS | Capability.AUXILIARY_DATA

    def fitted(
        self,
        *measurements: Measurements,
        is_member: Bool[Tensor, " samples"],
        target: ClientId,
        seed: int,
    ) -> "FittedReader":
        raw = _sequences(measurements, target)
        scaling = _scaling(raw)
        sequences = ((raw - scaling.mean) / scaling.std).float()
        labels = is_member.long()
        with one_thread():
            if self.epochs:
                *_, last_weights = islice(self._train_epochs(sequences, labels, seed), self.epochs)
                state_dicts = [last_weights]
            else:
                folds = _assign_folds(is_member, seed)
                state_dicts = [
                    self._train_with_early_stopping(sequences, labels, folds == fold, seed)
                    for fold in range(int(folds.max()) + 1)
                ]
        # Scores are computed in double precision.
        double_precision = tuple(
            {name: value.double() for name, value in state_dict.items()}
            for state_dict in state_dicts
        )
        return FittedReader(self.hidden, double_precision, scaling)

    def _train_with_early_stopping(
        self,
        sequences: Float[Tensor, "samples rounds signals"],
        labels: Int[Tensor, " samples"],
        is_held_out: Bool[Tensor, " samples"],
        seed: int,
    ) -> dict[str, Tensor]:
        """Return the weights of the epoch with the lowest loss on held-out samples."""
        network = _initial_network(sequences.shape[2], self.hidden, seed)
        held_out, held_out_labels = sequences[is_held_out], labels[is_held_out]
        best_weights: dict[str, Tensor] = {}
        lowest_loss, epochs_without_improvement = float("inf"), 0
        epochs = self._train_epochs(sequences[~is_held_out], labels[~is_held_out], seed)
        for weights in islice(epochs, PUBLISHED_EPOCHS):
            network.load_state_dict(weights)
            with torch.no_grad():
                loss = float(functional.cross_entropy(network(held_out), held_out_labels))
            epochs_without_improvement += 1
            if loss < lowest_loss or not best_weights:
                lowest_loss, best_weights = loss, {name: v.clone() for name, v in weights.items()}
                epochs_without_improvement = 0
            if epochs_without_improvement == PATIENCE:
                break
        return best_weights

    def _train_epochs(
        self,
        sequences: Float[Tensor, "samples rounds signals"],
        labels: Int[Tensor, " samples"],
        seed: int,
    ) -> Iterator[dict[str, Tensor]]:
        """Yield the weights after each epoch; the next epoch changes them in place."""
        network = _initial_network(sequences.shape[2], self.hidden, seed)
        weights = [p for name, p in network.named_parameters() if "bias" not in name]
        biases = [p for name, p in network.named_parameters() if "bias" in name]
        groups = [
            {"params": weights, "weight_decay": self.weight_decay},
            {"params": biases, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.Adam(groups, lr=self.lr)
        rng = seeded(seed, "order")
        rate = self.lr
        for epoch in count(1):
            order = torch.randperm(len(labels), generator=rng)
            for step in chunks(len(labels), self.batch_size):
                batch = order[step]
                loss = functional.cross_entropy(network(sequences[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if epoch % LR_DECAY_EPOCHS == 0 and rate > MIN_LR:
                rate *= LR_DECAY
                for group in optimizer.param_groups:
                    group["lr"] = rate
            yield network.state_dict()


@dataclass(frozen=True, eq=False)
class FittedReader:
    """A fitted :class:`SequenceReader`.

    Attributes:
        hidden: Size of the LSTM's state.
        weights: State dict of each network; the scores of the networks are averaged.
        scaling: Standardisation by the shadow samples.
    """

    hidden: int
    weights: tuple[dict[str, Tensor], ...]
    scaling: _Scaling

    client_aggregation = SequenceReader.client_aggregation
    round_aggregation = SequenceReader.round_aggregation
    needs = SequenceReader.needs

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        sequences = (_sequences(measurements, target) - self.scaling.mean) / self.scaling.std
        network = _initial_network(sequences.shape[2], self.hidden, 0).double()
        scores = torch.zeros(len(sequences), dtype=torch.float64)
        with one_thread(), torch.no_grad():
            for weights in self.weights:
                network.load_state_dict(weights)
                logits = torch.cat(
                    [network(sequences[c]) for c in chunks(len(sequences), SCORING_BATCH)]
                )
                scores += (logits[:, 1] - logits[:, 0]) / len(self.weights)
        # Rounding to float32 removes the last bits, which depend on the other samples of a batch.
        return scores.float().double()


def _assign_folds(is_member: Bool[Tensor, " samples"], seed: int) -> Int[Tensor, " samples"]:
    """Return the fold of each sample; all folds have equal fractions of members."""
    members, nonmembers = is_member.nonzero().flatten(), (~is_member).nonzero().flatten()
    if min(len(members), len(nonmembers)) < 2:
        raise BadInput(
            f"an attack with early stopping needs at least two members and two non-members, got "
            f"{len(members)} and {len(nonmembers)}; pass more, or set the attack's epochs"
        )
    rng = seeded(seed, "held back")
    folds = torch.empty(len(is_member), dtype=torch.int64)
    for positions in (members, nonmembers):
        order = torch.randperm(len(positions), generator=rng)
        folds[positions[order]] = torch.arange(len(positions)) % FOLDS
    return folds


def _initial_network(signals: int, hidden: int, seed: int) -> _SequenceNetwork:
    """Return a network with torch's initialisation, drawn from a seeded generator."""
    with torch.random.fork_rng(devices=[]):
        network = _SequenceNetwork(signals, hidden)
    rng = seeded(seed, "weights")
    with torch.no_grad():
        for name, value in network.named_parameters():
            bound = 1 / sqrt(hidden if name.startswith("lstm") else 2 * hidden)
            value.uniform_(-bound, bound, generator=rng)
    return network


def _sequences(
    measurements: tuple[Measurements, ...], target: ClientId
) -> Float[Tensor, "samples rounds signals"]:
    signals = [m.of(target) for m in measurements]
    was_measured = measured_rounds(signals[0], target)
    by_round = torch.stack([values[was_measured].double() for values in signals], 2)
    return by_round.transpose(0, 1).contiguous()


def _scaling(sequences: Float[Tensor, "samples rounds signals"]) -> _Scaling:
    flat = sequences.flatten(0, 1)
    std = flat.std(0, correction=0)
    # A constant signal has no information; dividing by 1 avoids a division by zero.
    return _Scaling(flat.mean(0), std.where(std > 0, 1.0))


Features = Float[Tensor, "samples features"]


@arguments.dataclass(frozen=True)
class Stacked(_Unfitted):
    """Logistic regression on several signals, trained on shadow samples of known membership.

    Each signal gives three features: the last value, the mean over the rounds, and the mean
    distance from the other clients' values, in their standard deviations. Threshold attacks use the
    first two features, and FedMIA uses the third. The score is the mean log-odds of regressions on
    several bootstrap samples.

    Attributes:
        penalty: L2 penalty: 1 / C of scikit-learn's ``LogisticRegression``.
        bags: Number of bootstrap samples.

    Source: None; the features are those of Yeom et al. 2018, Li et al. 2022 and Zhu et al. 2024
        (FedMIA), Eqs. (5) to (12), combined as a shadow attack (Shokri et al. 2017; Nasr et al.
        2019).
    """

    penalty: AboveZero = 1.0
    bags: Positive = 10

    client_aggregation = "learned"
    needs_other_clients = True
    round_aggregation = "learned"
    needs = Capability.UPLOADS | Capability.ROUNDS | Capability.AUXILIARY_DATA

    def fitted(
        self,
        *measurements: Measurements,
        is_member: Bool[Tensor, " samples"],
        target: ClientId,
        seed: int,
    ) -> "FittedStack":
        from sklearn.linear_model import LogisticRegression

        raw = _features(measurements, target)
        mean, std = raw.mean(0), raw.std(0, correction=0)
        # A constant feature has no information; dividing by 1 avoids a division by zero.
        std = std.where(std > 0, 1.0)
        standardised, truth = ((raw - mean) / std).numpy(), is_member.numpy()
        rng, weights = seeded_numpy(seed, "bags"), []
        members, nonmembers = np.flatnonzero(truth), np.flatnonzero(~truth)
        for _ in range(self.bags):
            bag = np.concatenate([rng.choice(group, len(group)) for group in (members, nonmembers)])
            regression = LogisticRegression(C=1 / self.penalty, max_iter=1000)
            regression.fit(standardised[bag], truth[bag])
            weights.append(np.append(regression.coef_[0], regression.intercept_))
        return FittedStack(mean, std, torch.from_numpy(np.mean(weights, axis=0)))


@dataclass(frozen=True, eq=False)
class FittedStack:
    """A fitted :class:`Stacked`.

    Attributes:
        mean: Mean of each feature over the shadow samples.
        std: Standard deviation of each feature over the shadow samples.
        weights: Weight of each feature, and the intercept.
    """

    mean: Float[Tensor, " features"]
    std: Float[Tensor, " features"]
    weights: Float[Tensor, " features_and_1"]

    client_aggregation = Stacked.client_aggregation
    round_aggregation = Stacked.round_aggregation
    needs = Stacked.needs

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        features = (_features(measurements, target) - self.mean) / self.std
        # Features far outside the range of the shadow samples are clipped.
        clipped = features.clamp(-_LARGEST_FEATURE, _LARGEST_FEATURE)
        return (clipped * self.weights[:-1]).sum(1) + self.weights[-1]


_LARGEST_FEATURE = 6.0
"""Largest absolute value of a standardised feature."""


def _features(measurements: tuple[Measurements, ...], target: ClientId) -> Features:
    return torch.stack(
        [features for m in measurements for features in _features_of_signal(m, target)], dim=1
    )


def _features_of_signal(m: Measurements, target: ClientId) -> list[Float[Tensor, " samples"]]:
    """Return last value, mean, and mean standardised difference from the other clients."""
    target_values = m.of(target).double()
    was_measured = measured_rounds(target_values, target)
    differences = []
    for values, peers, is_measured in zip(
        target_values, m.peers(target), was_measured, strict=True
    ):
        if is_measured and len(peers) >= 2:
            differences.append(_standardised_difference(values, peers.double()))
    if not differences:
        raise TooFewPeers(
            "this attack needs at least 2 other clients that were sent the same model as the "
            "target in the same round; use an attack that needs only the "
            "target's signal, such as loss-series"
        )
    measured_values = target_values[was_measured]
    return [measured_values[-1], measured_values.mean(0), torch.stack(differences).mean(0)]


def _standardised_difference(
    values: Float[Tensor, " samples"], peers: Float[Tensor, "peers samples"]
) -> Float[Tensor, " samples"]:
    difference = values - peers.mean(0)
    std = peers.std(0, correction=0)
    # If all peers have the same value, only the sign of the difference is used.
    return torch.where(std > 0, difference / std.where(std > 0, 1.0), difference.sign())
