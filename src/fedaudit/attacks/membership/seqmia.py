"""Attack by a recurrent network that reads several signals over the rounds."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from math import sqrt
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.attacks.base import measured_rounds, nothing_learned
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
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
    """Mean and standard deviation of each signal over the training samples and rounds."""

    mean: Float[Tensor, " signals"]
    spread: Float[Tensor, " signals"]


class _Reader(nn.Module):
    """LSTM with dot-product attention of its last state over all its states, and a linear layer."""

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
    """Recurrent network that learned on a shadow run how members' signals evolve.

    The target's signals over the measured rounds form one short sequence for each sample. An LSTM
    reads it, and its last state attends to all its states by inner products. A linear layer on the
    last state and the attended one decides. Signals are standardised with the mean and standard
    deviation of the shadow samples. The score is the logit of "member" minus that of "non-member".

    The number of epochs is chosen on held-out shadow samples. These are dealt into four parts, each
    with the same share of members. Each of four networks omits one part, and keeps the weights of
    the epoch with the smallest loss on it, until twenty more epochs have not lowered it. The score
    is the mean of the four.

    Attributes:
        hidden: Size of the LSTM's state.
        epochs: Passes over the shadow samples; 0 chooses at most 150 by held-out samples. The
            published form is 150 epochs of one network, which memorises some hundreds of shadow
            samples.
        batch_size: Shadow samples of a step.
        lr: Learning rate of Adam, times 0.9 after every ten epochs while above 5e-4.
        weight_decay: Weight decay of weights, not of biases.

    Source: SeqMIA (Li et al., CCS 2024), section 4; CoFedMID appendix D, for federations.
    Differs: No distillation: the sequence is the target client's models of the measured rounds. The
    published code scores by the logit of "member" alone, which is not monotone in the probability,
    and leaves dropout on while it measures; neither is done here. Labels come from a shadow run,
    never from the audited one: CoFedMID does not say. Epochs are chosen by default, and four
    networks decide.
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
        """Raise, as the rule must be fitted first.

        Raises:
            BadInput: Always.
        """
        raise nothing_learned()

    def fitted(
        self,
        *measurements: Measurements,
        is_member: Bool[Tensor, " samples"],
        target: ClientId,
        seed: int,
    ) -> "FittedReader":
        """Return the network that learned from samples of known membership.

        Raises:
            BadInput: Too few members or non-members to hold some of them out.
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
        held_out: Bool[Tensor, " samples"],
        seed: int,
    ) -> dict[str, Tensor]:
        """Return the weights of the epoch with the smallest loss on the held-out samples."""
        evaluator = _initial(sequences.shape[2], self.hidden, seed)
        best_weights: dict[str, Tensor] = {}
        least, since = float("inf"), 0
        epochs = self._epochs(sequences[~held_out], labels[~held_out], seed)
        for weights in islice(epochs, PUBLISHED_EPOCHS):
            evaluator.load_state_dict(weights)
            with torch.no_grad():
                loss = float(
                    functional.cross_entropy(evaluator(sequences[held_out]), labels[held_out])
                )
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
        """Yield the weights after each epoch, which the next epoch overwrites."""
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
    """Fitted :class:`SequenceReader`.

    Attributes:
        hidden: Size of the LSTM's state.
        weights: Weights of each network; the scores of networks are averaged.
        scaling: Mean and standard deviation of the signals that it learned from.
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
        # The last of 64 bits depend on the other samples of a batch; the first 32 do not.
        return scores.float().double()


def _parts(is_member: Bool[Tensor, " samples"], seed: int) -> Int[Tensor, " samples"]:
    """Return the number of each sample's part, with members and non-members dealt out evenly."""
    kinds = [kind.nonzero().flatten() for kind in (is_member, ~is_member)]
    if min(len(kind) for kind in kinds) < 2:
        raise BadInput(
            f"an attack that holds out shadow samples needs at least two members and two "
            f"non-members, got {len(kinds[0])} and {len(kinds[1])}; give more, or set its epochs"
        )
    rng = seeded(seed, "held back")
    parts = torch.empty(len(is_member), dtype=torch.int64)
    for kind in kinds:
        order = torch.randperm(len(kind), generator=rng)
        parts[kind[order]] = torch.arange(len(kind)) % PARTS
    return parts


def _initial(signals: int, hidden: int, seed: int) -> _Reader:
    """Return a network with torch's ranges of initial weights, drawn from a seeded generator."""
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
    # A constant signal carries no information, so any divisor will do.
    return _Scaling(flat.mean(0), spread.where(spread > 0, 1.0))
