"""Security games: can the server infer whether its target was in a client's batch?"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.attacks.ami import Rules
from fedaudit.attacks.ami.plant import Neurons, best_shift
from fedaudit.attacks.ami.train import Batches, Labelled, Standard, train_neurons
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_for, seeded


class Made(NamedTuple):
    """Neurons for some targets.

    Attributes:
        neurons: One for each target, with its zero placed.
        epochs: Training epochs of each.
        separated: Whether training ended because the validation records were separated.
        fit: AUC of each neuron's values on its training rows, target's against others.
        held_out: The same AUC on new copies of the target and other clients' records: what is left
            without memorisation.
    """

    neurons: Neurons
    epochs: Int[Tensor, " targets"]
    separated: Bool[Tensor, " targets"]
    fit: Float[Tensor, " targets"]
    held_out: Float[Tensor, " targets"]


class Played(NamedTuple):
    """Outcomes of games.

    Attributes:
        target: Number of the game's target.
        was_in: Whether the target was in the batch (the paper's b).
        by_target: Whether the neuron fired for the target, if it was in.
        by_others: Number of other records for which it fired.
        epochs: See :class:`Made`, as for the next three.
        separated: One for each target.
        fit: One for each target.
        held_out: One for each target.
    """

    target: Int[Tensor, " games"]
    was_in: Bool[Tensor, " games"]
    by_target: Bool[Tensor, " games"]
    by_others: Int[Tensor, " games"]
    epochs: Int[Tensor, " targets"]
    separated: Bool[Tensor, " targets"]
    fit: Float[Tensor, " targets"]
    held_out: Float[Tensor, " targets"]

    @property
    def said_in(self) -> Bool[Tensor, " games"]:
        return self.by_target | (self.by_others > 0)

    @staticmethod
    def joined(parts: Iterable["Played"]) -> "Played":
        return Played(*(torch.cat(part) for part in zip(*parts, strict=True)))


Randomiser = Callable[[Float[Tensor, "records features"], torch.Generator], Tensor]
"""Mechanism of local differential privacy by which a client perturbs records before training."""

TOGETHER = 2
"""Number of targets whose games are played together. It is small, so that an interruption takes
effect soon, and fixed, since another number may round differently."""

_USUAL = 2000
"""The server's records by which features are standardised."""


_HELD_OUT = 200
"""Fresh copies of a target, and other records, by which its neuron's fit is measured again."""


class Pools(NamedTuple):
    """Sources of records.

    Attributes:
        clients: Clients' records, for batches and targets.
        servers: The server's records of the same distribution.
    """

    clients: Float[Tensor, "records features"]
    servers: Float[Tensor, "records features"]


class GameBatches(NamedTuple):
    """Batches of some games.

    Attributes:
        was_in: Whether the target is in the batch.
        records: Indices of its records among the clients'.
    """

    was_in: Bool[Tensor, " games"]
    records: Int[Tensor, "games records"]


class Randomisers(NamedTuple):
    """Randomisers of clients' records, and those that the server trains for.

    Attributes:
        client: Applied to each batch.
        server: Applied to rows for training and validation.
    """

    client: Randomiser
    server: Randomiser


def as_it_is(records: Tensor, rng: torch.Generator) -> Tensor:
    """Return records unchanged, without a randomiser."""
    return records


NONE = Randomisers(as_it_is, as_it_is)


@dataclass(frozen=True)
class Contest:
    """Games of one server against one kind of client.

    For each target a neuron is trained and validated on the server's records. Batches are drawn
    from the clients' records with replacement, and a fair coin decides whether the target is in.
    Every record is randomised in every game.

    Attributes:
        pools: Sources of records.
        rules: Rules of the game.
        seed: Seed of every draw; a target's games do not depend on the number of targets.
        randomisers: Randomisers of records.

    Raises:
        BadInput: There are too few records.

    Source: AMI, Figs. 1 (Exp) and 3 (Exp_LDP).
    Differs: The verdict is the neuron's sign. The gradient is not zero if the neuron is positive
        for a record, except for exact cancellation. Every game has its own batch. The published
        evaluation repeats games, since its forked workers share a seed: 665 of 5,000 batches are
        distinct.
    """

    pools: Pools
    rules: Rules
    seed: int
    randomisers: Randomisers = NONE

    def __post_init__(self) -> None:
        batch, needed = self.rules.batch, self.rules.background + self.rules.validation
        clients, servers = self.pools
        if len(clients) <= batch or len(servers) < needed:
            raise BadInput(
                f"games with batches of {batch} need more clients' records than that, and {needed} "
                f"records of the server (game.background and game.validation); there are "
                f"{len(clients)} and {len(servers)}; lower these or game.batch, or give more "
                "records"
            )

    @cached_property
    def standard(self) -> Standard:
        records = self.pools.servers[:_USUAL]
        return Standard.of(self.randomisers.server(records, seeded(self.seed, "usual")))

    def play(self, *, targets: int, games: int) -> Iterator[Played]:
        """Yield the games of a few targets at a time.

        Args:
            targets: Number of targets, each with its own neuron; as many as games in the paper's
                Exp, one in its published code.
            games: Number of games, evenly distributed over targets.
        """
        for numbers in shared_out(targets, games):
            yield self.play_some(numbers)

    def play_some(self, games: Mapping[int, int]) -> Played:
        """Play the given number of games of each target."""
        trained = self.made(list(games))
        parts = [
            self._games(number, trained.neurons.at(i), count)
            for i, (number, count) in enumerate(games.items())
        ]
        was_in, by_target, by_others = (torch.cat(part) for part in zip(*parts, strict=True))
        return Played(
            target=torch.tensor(list(games)).repeat_interleave(torch.tensor(list(games.values()))),
            was_in=was_in,
            by_target=by_target,
            by_others=by_others,
            epochs=trained.epochs,
            separated=trained.separated,
            fit=trained.fit,
            held_out=trained.held_out,
        )

    def target(self, number: int) -> int:
        """Return the index of a target among the clients' records."""
        rng = seeded(self._seed(number), "record")
        return int(torch.randint(len(self.pools.clients), (), generator=rng))

    def drawn(self, number: int, count: int) -> GameBatches:
        """Draw the batches of a target's games; the target comes first if it is in."""
        target, batch = self.target(number), self.rules.batch
        rng = seeded(self._seed(number), "batches")
        was_in = torch.rand(count, generator=rng) < 0.5
        records = torch.empty(count, batch, dtype=torch.long)
        for game in range(count):
            records[game] = self.others(number, (batch,), rng)
        records[was_in, 0] = target
        return GameBatches(was_in, records)

    def others(
        self, number: int, size: tuple[int, ...], rng: torch.Generator
    ) -> Int[Tensor, "..."]:
        """Draw clients' records other than the target, independently."""
        chosen = torch.randint(len(self.pools.clients) - 1, size, generator=rng)
        return chosen + (chosen >= self.target(number)).long()

    def neurons(self, targets: Sequence[int]) -> Neurons:
        """Return a trained and validated neuron for each target."""
        return self.made(targets).neurons

    def made(self, targets: Sequence[int]) -> Made:
        """Return a trained and validated neuron for each target, with facts on its training."""
        # One at a time, each from its own seed, which is no slower: a neuron's data fit the cache.
        parts = [self._made(number) for number in targets]
        neurons, *others = zip(*parts, strict=True)
        return Made(Neurons.joined(neurons), *(torch.cat(part) for part in others))

    def _made(self, number: int) -> Made:
        training, validation = self._rows(number)
        trained = train_neurons(
            training,
            self.rules.training,
            standard=self.standard,
            rng=seeded(self._seed(number), "weights"),
            watched=validation,
        )
        neuron = trained.neurons
        if not all(bool(part.isfinite().all()) for part in neuron):
            raise BadInput(
                "training a neuron took its weights beyond all numbers; lower neuron.lr "
                f"({self.rules.training.lr:g}) or neuron.momentum "
                f"({self.rules.training.momentum:g})"
            )
        rng = seeded(self._seed(number), "held out")
        others = self.pools.clients[self.others(number, (_HELD_OUT,), rng)]
        held_out = self._labelled(number, _HELD_OUT, others, "noise of held out")
        fits = [_fit(neuron, rows) for rows in (training, held_out)]
        copies = self.rules.validation_copies
        if copies:
            values = neuron.values_alike(validation.rows)
            shift = best_shift(values[:, :copies], values[:, copies:], batch=self.rules.batch)
            neuron = neuron.shifted(shift)
        return Made(neuron, trained.epochs, trained.separated, *fits)

    def _seed(self, number: int) -> int:
        return seed_for(self.seed, "target", number)

    def _rows(self, number: int) -> "_Rows":
        """Return rows for training and validation: the target's copies and the server's records."""
        rules, count = self.rules, self.rules.background + self.rules.validation
        rng = seeded(self._seed(number), "own")
        order = torch.randperm(len(self.pools.servers), generator=rng)
        train, check = order[:count].tensor_split([rules.background])
        validation = self.pools.servers[check]
        return _Rows(
            self._training(number, train),
            self._labelled(number, rules.validation_copies, validation, "noise of validation"),
        )

    def _training(self, number: int, others: Int[Tensor, " records"]) -> Labelled | Batches:
        """Return the training rows, at once or in batches.

        The noise of a batch follows from its number, so that batches can be made separately.
        """
        rules, servers = self.rules, self.pools.servers
        others = others.repeat(rules.background_copies)
        size = rules.training.batch_size
        if not 0 < size < rules.rows:
            return self._labelled(number, rules.copies, servers[others], "noise of training")
        count = -(-rules.rows // size)
        # Copies of other records are in random order, so that a batch may contain several copies of
        # one record. Copies of the target are assigned to the batches in turn, so that the batches
        # have equally many, to within one.
        dealt = others[torch.randperm(len(others), generator=seeded(self._seed(number), "deal"))]
        order = torch.arange(rules.rows)

        def batch(place: int) -> Labelled:
            chosen = order[place::count]
            copies = int((chosen < rules.copies).sum())
            rows = servers[dealt[chosen[copies:] - rules.copies]]
            return self._labelled(number, copies, rows, "noise of training", place)

        return Batches(count, batch, targets=rules.copies, others=len(others))

    def _labelled(self, number: int, copies: int, others: Tensor, *noise: str | int) -> Labelled:
        target = self.pools.clients[self.target(number)]
        clean = torch.cat([target.expand(copies, -1), others])
        is_target = torch.arange(len(clean)) < copies
        rows = self.randomisers.server(clean, seeded(self._seed(number), *noise))
        return Labelled(rows[None], is_target[None])

    def _games(self, number: int, neuron: Neurons, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return, by game, if the target was in, if it fired, and how many others fired."""
        drawn, noise = self.drawn(number, count), seeded(self._seed(number), "noise of games")
        was_in = drawn.was_in
        fired = torch.empty(drawn.records.shape, dtype=torch.bool)
        for game, chosen in enumerate(drawn.records):
            records = self.randomisers.client(self.pools.clients[chosen], noise)
            fired[game] = neuron.fires(records[None])[0]
        by_target = fired[:, 0] & was_in
        return was_in, by_target, fired.sum(1) - by_target.long()


class _Rows(NamedTuple):
    training: Labelled | Batches
    validation: Labelled


def _fit(neuron: Neurons, data: Labelled | Batches) -> Float[Tensor, "1"]:
    """Compute the AUC of a neuron's values, target's rows against others; ties count half."""
    parts = data.in_order() if isinstance(data, Batches) else [data]
    values_and_labels = [(neuron.values_alike(rows)[0], is_target[0]) for rows, is_target in parts]
    values, is_target = (torch.cat(part) for part in zip(*values_and_labels, strict=True))
    others = values[~is_target].sort().values
    below = [torch.searchsorted(others, values[is_target], right=side) for side in (False, True)]
    return torch.stack(below).double().mean()[None] / len(others)


def shared_out(targets: int, games: int) -> Iterator[dict[int, int]]:
    """Yield the number of games of each target, for a few targets at a time."""
    for first in range(0, targets, TOGETHER):
        chosen = range(first, min(first + TOGETHER, targets))
        yield {number: games // targets + (number < games % targets) for number in chosen}
