"""Security games in which a server infers whether its target was in a client's batch."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.attacks.ami import GameRules
from fedaudit.attacks.ami.plant import Neurons, best_shift
from fedaudit.attacks.ami.train import Batches, LabelledRows, Standardisation, train_neurons
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_for, seeded


class TrainedTargets(NamedTuple):
    """Trained neurons of some targets.

    Attributes:
        neurons: One neuron for each target, with its final bias.
        epochs: Number of training epochs of each neuron.
        separated: Whether early stopping ended the training of each neuron.
        fit: AUC of each neuron's values on its training rows: target's rows compared with others.
        held_out: The same AUC on new copies of the target and new samples of clients. The
            difference is due to memorisation.
    """

    neurons: Neurons
    epochs: Int[Tensor, " targets"]
    separated: Bool[Tensor, " targets"]
    fit: Float[Tensor, " targets"]
    held_out: Float[Tensor, " targets"]


class GameOutcomes(NamedTuple):
    """Outcomes of games.

    Attributes:
        target: Number of the game's target.
        contains_target: Whether the target was in the batch (the paper's b).
        by_target: Whether the target was in the batch and the neuron fired for it.
        by_others: Number of other samples for which the neuron fired.
        epochs: Number of training epochs of each target's neuron.
        separated: Whether early stopping ended the training of each target's neuron.
        fit: AUC of each neuron's values on its training rows: target's rows compared with others.
        held_out: The same AUC on new copies of the target and new samples of clients.
    """

    target: Int[Tensor, " games"]
    contains_target: Bool[Tensor, " games"]
    by_target: Bool[Tensor, " games"]
    by_others: Int[Tensor, " games"]
    epochs: Int[Tensor, " targets"]
    separated: Bool[Tensor, " targets"]
    fit: Float[Tensor, " targets"]
    held_out: Float[Tensor, " targets"]

    @property
    def inferred_in(self) -> Bool[Tensor, " games"]:
        """True if the verdict is that the target was in the batch."""
        return self.by_target | (self.by_others > 0)

    @staticmethod
    def concatenate(parts: Iterable["GameOutcomes"]) -> "GameOutcomes":
        return GameOutcomes(*(torch.cat(part) for part in zip(*parts, strict=True)))


Randomiser = Callable[[Float[Tensor, "samples features"], torch.Generator], Tensor]
"""Mechanism of local differential privacy with which a client perturbs samples before training."""

TARGETS_PER_CHUNK = 2
"""Number of targets whose games are played together. It is small, so that a run can be interrupted
soon. It is constant, because another number may cause other rounding."""

_STANDARDISATION_SAMPLES = 2000
"""Number of the server's samples by which features are standardised."""

_HELD_OUT_ROWS = 200
"""Number of new copies of a target, and of other samples, for the AUC without memorisation."""


class SampleSources(NamedTuple):
    """Sources of samples.

    Attributes:
        clients: Clients' samples, for batches and targets.
        servers: The server's samples of the same distribution.
    """

    clients: Float[Tensor, "samples features"]
    servers: Float[Tensor, "samples features"]


class GameBatches(NamedTuple):
    """Batches of some games.

    Attributes:
        contains_target: Whether the target is in the batch.
        samples: Indices of the batch's samples among the clients' samples.
    """

    contains_target: Bool[Tensor, " games"]
    samples: Int[Tensor, "games samples"]


class Randomisers(NamedTuple):
    """Randomisers of samples.

    Attributes:
        client: Randomiser that clients apply to each batch.
        server: Randomiser that the server applies to rows for training and validation.
    """

    client: Randomiser
    server: Randomiser


def return_unchanged(samples: Tensor, rng: torch.Generator) -> Tensor:
    """Return the samples, as a client without a randomiser does."""
    return samples


NO_RANDOMISERS = Randomisers(return_unchanged, return_unchanged)


@dataclass(frozen=True)
class Contest:
    """Games between a server and a client.

    For each target, a neuron is trained and validated on the server's samples. Batches are drawn
    from the clients' samples with replacement, and a fair coin decides whether the target is in the
    batch. Every sample is randomised in every game.

    Attributes:
        pools: Sources of samples.
        rules: Rules of the game.
        seed: Seed of all random numbers; a target's games do not depend on the number of targets.
        randomisers: Randomisers of samples.

    Raises:
        BadInput: There are too few samples.

    Source: Nguyen et al. 2023 (AMI), Figs. 1 (Exp) and 3 (Exp_LDP).
    Differs: The verdict is "in" if the neuron fires for a sample. Its gradient is then not zero,
        unless gradients of several samples cancel exactly. Every game has its own batch. The
        published evaluation repeats games, as its forked workers share a seed: only 665 of 5,000
        batches are distinct.
    """

    pools: SampleSources
    rules: GameRules
    seed: int
    randomisers: Randomisers = NO_RANDOMISERS

    def __post_init__(self) -> None:
        batch, needed = self.rules.batch, self.rules.background + self.rules.validation
        clients, servers = self.pools
        if len(clients) <= batch or len(servers) < needed:
            raise BadInput(
                f"games with batches of {batch} need at least {batch + 1} samples of clients, and "
                f"{needed} samples of the server (game.background and game.validation); got "
                f"{len(clients)} and {len(servers)}; lower these settings or pass more samples"
            )

    @cached_property
    def standard(self) -> Standardisation:
        """Standardisation of rows, from the server's randomised samples."""
        samples = self.pools.servers[:_STANDARDISATION_SAMPLES]
        return Standardisation.of(self.randomisers.server(samples, seeded(self.seed, "usual")))

    def play(self, *, targets: int, games: int) -> Iterator[GameOutcomes]:
        """Yield the games of a few targets at a time.

        Args:
            targets: Number of targets, each with its own neuron. In the paper's Exp, every game has
                another target; in its published code, there is one target.
            games: Number of games, evenly distributed over targets.
        """
        for numbers in split_games(targets, games):
            yield self.play_some(numbers)

    def play_some(self, games: Mapping[int, int]) -> GameOutcomes:
        """Play the given number of games of each target."""
        trained = self.train_targets(list(games))
        outcomes = [
            self._games(number, trained.neurons.only(i), count)
            for i, (number, count) in enumerate(games.items())
        ]
        contains_target, by_target, by_others = map(torch.cat, zip(*outcomes, strict=True))
        return GameOutcomes(
            target=torch.tensor(list(games)).repeat_interleave(torch.tensor(list(games.values()))),
            contains_target=contains_target,
            by_target=by_target,
            by_others=by_others,
            epochs=trained.epochs,
            separated=trained.separated,
            fit=trained.fit,
            held_out=trained.held_out,
        )

    def target(self, number: int) -> int:
        """Return the index of a target among the clients' samples."""
        # The stream keeps its first name, so that the same seed draws the same targets.
        rng = seeded(self._seed(number), "record")
        return int(torch.randint(len(self.pools.clients), (), generator=rng))

    def draw_batches(self, number: int, count: int) -> GameBatches:
        """Draw the batches of a target's games; the target is the first sample of its batches."""
        target, batch = self.target(number), self.rules.batch
        rng = seeded(self._seed(number), "batches")
        contains_target = torch.rand(count, generator=rng) < 0.5
        samples = torch.empty(count, batch, dtype=torch.long)
        for game in range(count):
            samples[game] = self.others(number, (batch,), rng)
        samples[contains_target, 0] = target
        return GameBatches(contains_target, samples)

    def others(
        self, number: int, size: tuple[int, ...], rng: torch.Generator
    ) -> Int[Tensor, "..."]:
        """Draw clients' samples other than the target, independently."""
        indices = torch.randint(len(self.pools.clients) - 1, size, generator=rng)
        return indices + (indices >= self.target(number)).long()

    def neurons(self, targets: Sequence[int]) -> Neurons:
        """Return a trained and validated neuron for each target."""
        return self.train_targets(targets).neurons

    def train_targets(self, targets: Sequence[int]) -> TrainedTargets:
        """Return a trained and validated neuron for each target, and facts about its training."""
        # Neurons are trained one after another, each from its own seed. This is as fast as training
        # them together, since one neuron's data fit into the cache.
        trained = [self._train_target(number) for number in targets]
        neurons, *others = zip(*trained, strict=True)
        return TrainedTargets(Neurons.concatenate(neurons), *map(torch.cat, others))

    def _train_target(self, number: int) -> TrainedTargets:
        training, validation = self._rows(number)
        trained = train_neurons(
            training,
            self.rules.training,
            standardise=self.standard,
            rng=seeded(self._seed(number), "weights"),
            validation=validation,
        )
        neuron = trained.neurons
        if not all(bool(tensor.isfinite().all()) for tensor in neuron):
            raise BadInput(
                "the weights of a trained neuron are not finite; lower neuron.lr "
                f"({self.rules.training.lr:g}) or neuron.momentum "
                f"({self.rules.training.momentum:g})"
            )
        rng = seeded(self._seed(number), "held out")
        others = self.pools.clients[self.others(number, (_HELD_OUT_ROWS,), rng)]
        held_out = self._labelled_rows(number, _HELD_OUT_ROWS, others, "noise of held out")
        fits = [_training_auc(neuron, rows) for rows in (training, held_out)]
        copies = self.rules.validation_copies
        if copies:
            values = neuron.consistent_values(validation.rows)
            shift = best_shift(values[:, :copies], values[:, copies:], batch=self.rules.batch)
            neuron = neuron.shifted(shift)
        return TrainedTargets(neuron, trained.epochs, trained.separated, *fits)

    def _seed(self, number: int) -> int:
        return seed_for(self.seed, "target", number)

    def _rows(self, number: int) -> "_Rows":
        """Return rows for training and validation: the target's copies and the server's samples."""
        rules, count = self.rules, self.rules.background + self.rules.validation
        rng = seeded(self._seed(number), "own")
        order = torch.randperm(len(self.pools.servers), generator=rng)
        background, validation_samples = order[:count].tensor_split([rules.background])
        validation = self.pools.servers[validation_samples]
        return _Rows(
            self._training(number, background),
            self._labelled_rows(number, rules.validation_copies, validation, "noise of validation"),
        )

    def _training(self, number: int, others: Int[Tensor, " samples"]) -> LabelledRows | Batches:
        """Return the training rows, together or in batches.

        A batch can be created separately, as the seed of its noise depends on its number.
        """
        rules, servers = self.rules, self.pools.servers
        others = others.repeat(rules.background_copies)
        size = rules.training.batch_size
        if not 0 < size < rules.rows:
            return self._labelled_rows(number, rules.copies, servers[others], "noise of training")
        count = math.ceil(rules.rows / size)
        # Copies of other samples are shuffled, so a batch may contain several copies of a sample.
        # Rows are assigned to the batches in rotation, first all copies of the target. Therefore,
        # the numbers of target rows in two batches differ by at most one.
        shuffled = others[torch.randperm(len(others), generator=seeded(self._seed(number), "deal"))]
        order = torch.arange(rules.rows)

        def batch(index: int) -> LabelledRows:
            rows = order[index::count]
            copies = int((rows < rules.copies).sum())
            samples = servers[shuffled[rows[copies:] - rules.copies]]
            return self._labelled_rows(number, copies, samples, "noise of training", index)

        return Batches(count, batch, targets=rules.copies, others=len(others))

    def _labelled_rows(
        self, number: int, copies: int, others: Tensor, *noise: str | int
    ) -> LabelledRows:
        target = self.pools.clients[self.target(number)]
        rows_without_noise = torch.cat([target.expand(copies, -1), others])
        is_target = torch.arange(len(rows_without_noise)) < copies
        rows = self.randomisers.server(rows_without_noise, seeded(self._seed(number), *noise))
        return LabelledRows(rows[None], is_target[None])

    def _games(self, number: int, neuron: Neurons, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``contains_target``, ``by_target`` and ``by_others`` of :class:`GameOutcomes`."""
        batches = self.draw_batches(number, count)
        noise = seeded(self._seed(number), "noise of games")
        fired = torch.empty(batches.samples.shape, dtype=torch.bool)
        for game, indices in enumerate(batches.samples):
            samples = self.randomisers.client(self.pools.clients[indices], noise)
            fired[game] = neuron.fires(samples[None])[0]
        by_target = fired[:, 0] & batches.contains_target
        return batches.contains_target, by_target, fired.sum(1) - by_target.long()


class _Rows(NamedTuple):
    training: LabelledRows | Batches
    validation: LabelledRows


def _training_auc(neuron: Neurons, data: LabelledRows | Batches) -> Float[Tensor, "1"]:
    """Compute the AUC of a neuron's values, of the target's rows compared with other rows."""
    batches = data.in_order() if isinstance(data, Batches) else [data]
    values_and_labels = [
        (neuron.consistent_values(rows)[0], is_target[0]) for rows, is_target in batches
    ]
    values, is_target = map(torch.cat, zip(*values_and_labels, strict=True))
    other_values = values[~is_target].sort().values
    # Counts of smaller values, without and with ties.
    n_others_below = [
        torch.searchsorted(other_values, values[is_target], right=ties) for ties in (False, True)
    ]
    return torch.stack(n_others_below).double().mean()[None] / len(other_values)


def split_games(targets: int, games: int) -> Iterator[dict[int, int]]:
    """Yield the number of games of each target, for a few targets at a time."""
    for first in range(0, targets, TARGETS_PER_CHUNK):
        target_numbers = range(first, min(first + TARGETS_PER_CHUNK, targets))
        yield {number: games // targets + (number < games % targets) for number in target_numbers}
