"""Rules that are fitted on a shadow run: a recurrent network, and a linear classifier."""

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

from fedaudit.attacks.base import measured_rounds, nothing_learned
from fedaudit.core.errors import BadInput, TooFewPeers
from fedaudit.core.seeds import seeded, seeded_numpy
from fedaudit.core.values import ClientId, Sees, chunks
from fedaudit.engines.local import one_thread
from fedaudit.observe.measurements import Measurements

LR_STEP = 10
LR_DECAY = 0.9
LR_LOWEST = 5e-4
SCORED_AT_ONCE = 1024

PUBLISHED_EPOCHS = 150
PARTS = 4
PATIENCE = 20


class _Scaling(NamedTuple):
    """Mean and spread of each signal over the samples and rounds that were learned from."""

    mean: Float[Tensor, " signals"]
    spread: Float[Tensor, " signals"]


class _Reader(nn.Module):
    """LSTM, dot-product attention of its last state over all its states, and a linear layer."""

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
        decided: Tensor = self.decide(torch.cat([last_state, context], 1))
        return decided


@dataclass(frozen=True)
class SequenceReader:
    """A recurrent network that has learned, on a shadow run, how members' signals move.

    The target's signals over the measured rounds are one short sequence a sample. An LSTM reads
    it; its last state attends to all its states by inner products; a linear layer on the last
    state and what it attended to decides. Signals are standardised with the mean and spread of
    the shadow samples. The score is the logit of "member" minus that of "non-member".

    How long to learn is chosen on shadow samples that are held back. These are dealt into four
    parts, each with its share of members; four networks leave one part each out, and keep the
    weights of the epoch in which their loss on it is least, once twenty more have not lowered
    it. The score is the mean of the four.

    Attributes:
        hidden: Size of the LSTM's state.
        epochs: Passes over the shadow samples; 0 for as many as held-back samples call for, at
            most 150. The published form is 150, of one network, which learns some hundreds of
            shadow samples by heart.
        batch_size: Shadow samples a step.
        lr: Learning rate of Adam, times 0.9 after every ten epochs while above 5e-4.
        weight_decay: On weights, not on biases.

    Source: SeqMIA (Li et al., CCS 2024), section 4; CoFedMID appendix D, for federations.
    Differs: No distillation: the sequence is the target client's models of the measured rounds.
        The published code scores by the logit of "member" alone, which is not monotone in the
        probability, and leaves dropout on while it measures; neither is done here. Labels come
        from a shadow run, never from the audited one: CoFedMID does not say. Epochs are chosen
        by default, and four networks decide.
    """

    hidden: int = 50
    epochs: int = 0
    batch_size: int = 100
    lr: float = 0.01
    weight_decay: float = 1e-4

    over_clients = "target only"
    over_rounds = "learned"
    needs = Sees.ROUNDS | Sees.AUXILIARY_DATA

    def __post_init__(self) -> None:
        if min(self.hidden, self.batch_size) < 1 or self.epochs < 0:
            raise BadInput(
                "hidden and batch_size must be at least 1 and epochs at least 0, got "
                f"{self.hidden}, {self.batch_size} and {self.epochs}"
            )
        if not (self.lr > 0 and self.weight_decay >= 0):
            raise BadInput(
                "lr must be above 0 and weight_decay at least 0, got "
                f"{self.lr} and {self.weight_decay}"
            )

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """See :class:`fedaudit.attacks.base.Rule`.

        Raises:
            BadInput: Always: nothing has been learned yet.
        """
        raise nothing_learned()

    def fitted(
        self,
        *measurements: Measurements,
        is_member: Bool[Tensor, " samples"],
        target: ClientId,
        seed: int,
    ) -> "FittedReader":
        """See :class:`fedaudit.attacks.base.LearnedRule`.

        Raises:
            BadInput: Too few members or non-members to hold some of them back.
        """
        raw = _sequences(measurements, target)
        scaling = _scaling(raw)
        sequences = ((raw - scaling.mean) / scaling.spread).float()
        with one_thread():
            if self.epochs:
                *_, weights = islice(self._epochs(sequences, is_member.long(), seed), self.epochs)
                weights_by_part = [weights]
            else:
                parts = _parts(is_member, seed)
                weights_by_part = [
                    self._stopped(sequences, is_member.long(), parts == part, seed)
                    for part in range(int(parts.max()) + 1)
                ]
        return FittedReader(
            self.hidden,
            tuple(
                {n: v.double() for n, v in part_weights.items()} for part_weights in weights_by_part
            ),
            scaling,
        )

    def _stopped(
        self,
        sequences: Float[Tensor, "samples rounds signals"],
        labels: Int[Tensor, " samples"],
        held: Bool[Tensor, " samples"],
        seed: int,
    ) -> dict[str, Tensor]:
        """The weights of the epoch with the least loss on what is held back."""
        judge = _initial(sequences.shape[2], self.hidden, seed)
        best_weights: dict[str, Tensor] = {}
        least, since = float("inf"), 0
        epochs = self._epochs(sequences[~held], labels[~held], seed)
        for weights in islice(epochs, PUBLISHED_EPOCHS):
            judge.load_state_dict(weights)
            with torch.no_grad():
                loss = float(functional.cross_entropy(judge(sequences[held]), labels[held]))
            since += 1
            if loss < least or not best_weights:
                least, best_weights, since = loss, {n: v.clone() for n, v in weights.items()}, 0
            if since == PATIENCE:
                break
        return best_weights

    def _epochs(
        self,
        sequences: Float[Tensor, "samples rounds signals"],
        labels: Int[Tensor, " samples"],
        seed: int,
    ) -> Iterator[dict[str, Tensor]]:
        """The weights after each epoch, which the next one changes."""
        reader = _initial(sequences.shape[2], self.hidden, seed)
        groups = [
            {"params": [p for n, p in reader.named_parameters() if ("bias" in n) == bias]}
            | {"weight_decay": 0.0 if bias else self.weight_decay}
            for bias in (False, True)
        ]
        optimizer = torch.optim.Adam(groups, lr=self.lr)
        rng = seeded(seed, "order")
        rate = self.lr
        for epoch in count(1):
            order = torch.randperm(len(labels), generator=rng)
            for step in chunks(len(labels), self.batch_size):
                batch = order[step]
                loss = functional.cross_entropy(reader(sequences[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if epoch % LR_STEP == 0 and rate > LR_LOWEST:
                rate *= LR_DECAY
                for group in optimizer.param_groups:
                    group["lr"] = rate
            yield reader.state_dict()


@dataclass(frozen=True, eq=False)
class FittedReader:
    """A :class:`SequenceReader` that has learned.

    Attributes:
        hidden: Size of the LSTM's state.
        weights: Of each network; their scores are averaged.
        scaling: Mean and spread of the signals that it learned from.
    """

    hidden: int
    weights: tuple[dict[str, Tensor], ...]
    scaling: _Scaling

    over_clients = SequenceReader.over_clients
    over_rounds = SequenceReader.over_rounds
    needs = SequenceReader.needs

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        sequences = (_sequences(measurements, target) - self.scaling.mean) / self.scaling.spread
        reader = _initial(sequences.shape[2], self.hidden, 0).double()
        scores = torch.zeros(len(sequences), dtype=torch.float64)
        with one_thread(), torch.no_grad():
            for weights in self.weights:
                reader.load_state_dict(weights)
                logits = torch.cat(
                    [reader(sequences[c]) for c in chunks(len(sequences), SCORED_AT_ONCE)]
                )
                scores += (logits[:, 1] - logits[:, 0]) / len(self.weights)
        # The last of 64 bits depend on what else is scored at once; the first 32 do not.
        return scores.float().double()


def _parts(is_member: Bool[Tensor, " samples"], seed: int) -> Int[Tensor, " samples"]:
    """The number of each sample's part: members, and others, are dealt out evenly."""
    kinds = [kind.nonzero().flatten() for kind in (is_member, ~is_member)]
    if min(len(kind) for kind in kinds) < 2:
        raise BadInput(
            f"an attack that holds shadow samples back needs two members and two non-members at "
            f"least, got {len(kinds[0])} and {len(kinds[1])}; give more, or set its epochs"
        )
    rng = seeded(seed, "held back")
    parts = torch.empty(len(is_member), dtype=torch.int64)
    for kind in kinds:
        order = torch.randperm(len(kind), generator=rng)
        parts[kind[order]] = torch.arange(len(kind)) % PARTS
    return parts


def _initial(signals: int, hidden: int, seed: int) -> _Reader:
    """Torch's own ranges of initial weights, from a generator of ours."""
    with torch.random.fork_rng(devices=[]):
        reader = _Reader(signals, hidden)
    rng = seeded(seed, "weights")
    with torch.no_grad():
        for name, value in reader.named_parameters():
            bound = 1 / sqrt(hidden if name.startswith("lstm") else 2 * hidden)
            value.uniform_(-bound, bound, generator=rng)
    return reader


def _sequences(
    measurements: tuple[Measurements, ...], target: ClientId
) -> Float[Tensor, "samples rounds signals"]:
    each = [m.of(target) for m in measurements]
    was_measured = measured_rounds(each[0], target)
    return (
        torch.stack([values[was_measured].double() for values in each], 2)
        .transpose(0, 1)
        .contiguous()
    )


def _scaling(sequences: Float[Tensor, "samples rounds signals"]) -> _Scaling:
    flat = sequences.flatten(0, 1)
    spread = flat.std(0, correction=0)
    # A constant signal carries no information, whatever it is divided by.
    return _Scaling(flat.mean(0), spread.where(spread > 0, 1.0))


Evidence = Float[Tensor, "samples evidence"]


@dataclass(frozen=True)
class Stacked:
    """Weighs what single attacks look at, by samples whose membership is known.

    Evidence of each signal are its last value, its mean over the rounds, and the mean over the
    rounds of its distance from the other clients' in their standard deviations: what threshold
    attacks look at, and FedMIA's comparison. A logistic regression weighs them, fitted on each of
    several bootstrap samples; its mean log-odds are the score.

    Attributes:
        penalty: Weight of the squared coefficients, in samples.
        bags: Bootstrap samples.

    Source: None; the evidence is that of Yeom et al. 2018, Li et al. 2022 and FedMIA, Eqs. (5) to
        (12), put together as a shadow attack (Shokri et al. 2017; Nasr et al. 2019).
    """

    penalty: float = 1.0
    bags: int = 10

    over_clients = "learned"
    over_rounds = "learned"
    needs = Sees.UPLOADS | Sees.ROUNDS | Sees.AUXILIARY_DATA

    def __post_init__(self) -> None:
        if not (self.penalty > 0 and self.bags >= 1):
            raise BadInput(
                f"penalty is above 0 and bags at least 1, got {self.penalty} and {self.bags}"
            )

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """See :class:`fedaudit.attacks.base.Rule`.

        Raises:
            BadInput: Always: nothing has been learned yet.
        """
        raise nothing_learned()

    def fitted(
        self,
        *measurements: Measurements,
        is_member: Bool[Tensor, " samples"],
        target: ClientId,
        seed: int,
    ) -> "FittedStack":
        """See :class:`fedaudit.attacks.base.LearnedRule`.

        Raises:
            NotVisible: In no round are there two other clients to compare with.
        """
        from sklearn.linear_model import LogisticRegression

        raw = _evidence(measurements, target)
        mean, spread = raw.mean(0), raw.std(0, correction=0)
        # Constant evidence carries no information, whatever it is divided by.
        spread = spread.where(spread > 0, 1.0)
        standardised, truth = ((raw - mean) / spread).numpy(), is_member.numpy()
        rng, weights = seeded_numpy(seed, "bags"), []
        members, others = np.flatnonzero(truth), np.flatnonzero(~truth)
        for _ in range(self.bags):
            drawn = np.concatenate([rng.choice(part, len(part)) for part in (members, others)])
            regression = LogisticRegression(C=1 / self.penalty, max_iter=1000)
            regression.fit(standardised[drawn], truth[drawn])
            weights.append(np.append(regression.coef_[0], regression.intercept_))
        return FittedStack(mean, spread, torch.from_numpy(np.mean(weights, axis=0)))


@dataclass(frozen=True, eq=False)
class FittedStack:
    """A :class:`Stacked` that has learned.

    Attributes:
        mean: Of each piece of evidence, where it learned.
        spread: Likewise.
        weights: Of each, and of 1.
    """

    mean: Float[Tensor, " evidence"]
    spread: Float[Tensor, " evidence"]
    weights: Float[Tensor, " evidence_and_1"]

    over_clients = Stacked.over_clients
    over_rounds = Stacked.over_rounds
    needs = Stacked.needs

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """See :class:`fedaudit.attacks.base.Rule`.

        Raises:
            NotVisible: In no round are there two other clients to compare with.
        """
        seen = (_evidence(measurements, target) - self.mean) / self.spread
        # Beyond what it has learned from, evidence counts no more than there.
        return (seen.clamp(-_FURTHEST, _FURTHEST) * self.weights[:-1]).sum(1) + self.weights[-1]


_FURTHEST = 6.0


def _evidence(measurements: tuple[Measurements, ...], target: ClientId) -> Evidence:
    return torch.stack(
        [evidence for m in measurements for evidence in _of_signal(m, target)], dim=1
    )


def _of_signal(m: Measurements, target: ClientId) -> list[Float[Tensor, " samples"]]:
    """Last value, mean, and mean distance from the other clients' in their deviations."""
    values_of_target = m.of(target).double()
    was_measured = measured_rounds(values_of_target, target)
    apart = [
        _distance(values, peers.double())
        for values, peers, seen in zip(values_of_target, m.peers(target), was_measured, strict=True)
        if seen and len(peers) >= 2
    ]
    if not apart:
        raise TooFewPeers(
            "this attack compares the target with at least 2 clients besides the target that were "
            "sent the same model in the same round, and there are fewer; use one that looks at the "
            "target alone, such as loss-series"
        )
    return [
        values_of_target[was_measured][-1],
        values_of_target[was_measured].mean(0),
        torch.stack(apart).mean(0),
    ]


def _distance(
    values: Float[Tensor, " samples"], peers: Float[Tensor, "peers samples"]
) -> Float[Tensor, " samples"]:
    above = values - peers.mean(0)
    spread = peers.std(0, correction=0)
    # Peers that agree exactly leave no unit to measure in: only the direction is known.
    return torch.where(spread > 0, above / spread.where(spread > 0, 1.0), above.sign())
