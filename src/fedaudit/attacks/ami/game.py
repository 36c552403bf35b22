"""Security games: does the server tell whether its target was in a client's batch?"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.attacks.ami.plant import Neurons, best_shift
from fedaudit.attacks.ami.train import Batches, Labelled, NeuronTraining, Standard, train_neurons
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_for, seeded


@dataclass(frozen=True)
class Rules:
    """Rules of a game.

    Attributes:
        batch: Records that the client computes its gradient on (the paper's n).
        copies: Randomised copies of the target that a neuron is trained on (its l); without a
            randomiser they are all the same, and one is enough.
        background: Records of the server's own that it is trained on.
        background_copies: Randomised copies of each of these.
        validation: More of the server's own, by which its zero is placed; 0 to leave it where
            training did.
        validation_copies: Copies of the target for the same.
        training: Of the neuron.

    Raises:
        BadInput: A number is too small.

    Source: AMI, Figs. 1 to 4.
    Differs: the paper labels clean records 0 (Fig. 4), its code randomised ones, as here: clean
        ones are told from the target's copies by the noise alone. The published code has 4,000
        copies of the target and 50,000 other records, one copy each.
    """

    batch: int = 100
    copies: int = 8
    background: int = 56
    validation: int = 500
    validation_copies: int = 50
    background_copies: int = 1
    training: NeuronTraining = field(default_factory=NeuronTraining)

    def __post_init__(self) -> None:
        placed = (self.validation, self.validation_copies)
        needed = (self.batch, self.copies, self.background, self.background_copies)
        if min(needed) < 1 or min(placed) < (max(placed) > 0):
            raise BadInput(
                "a game needs a batch, copies of the target, records of the server's own and "
                "copies of these, at least one each, and records and copies for validation or none "
                f"of either; got {', '.join(map(str, needed))}, and {placed[0]} and {placed[1]}"
            )
        if self.training.check and not self.validation:
            raise BadInput(
                "a neuron that is to stop early is checked by records for validation; raise "
                "game.validation, or set neuron.check to 0"
            )

    @property
    def rows(self) -> int:
        """Rows that a neuron is trained on: copies of the target, and of other records."""
        return self.copies + self.background * self.background_copies


class Made(NamedTuple):
    """Neurons for some targets.

    Attributes:
        neurons: One for each, its zero placed.
        epochs: That each was trained for.
        told_apart: Whether training ended because it told its validation records apart.
        fit: How well each tells the rows apart that it was trained on: the share of pairs of a
            target's row and another in which it is larger for the target's, its AUC.
        held_out: The same of fresh copies of the target and of other records of the clients, that
            nothing was decided by: how much of that is more than learned by heart.
    """

    neurons: Neurons
    epochs: Int[Tensor, " targets"]
    told_apart: Bool[Tensor, " targets"]
    fit: Float[Tensor, " targets"]
    held_out: Float[Tensor, " targets"]


class Played(NamedTuple):
    """Outcome of each game.

    Attributes:
        target: Number of the game's target.
        was_in: Whether the target was in the batch (the paper's b).
        by_target: Whether the neuron fired for the target, where it was in.
        by_others: For how many other records it fired.
        epochs: Of each target, in their order: see :class:`Made`.
        told_apart: Of each target.
        fit: Of each target.
        held_out: Of each target.
    """

    target: Int[Tensor, " games"]
    was_in: Bool[Tensor, " games"]
    by_target: Bool[Tensor, " games"]
    by_others: Int[Tensor, " games"]
    epochs: Int[Tensor, " targets"]
    told_apart: Bool[Tensor, " targets"]
    fit: Float[Tensor, " targets"]
    held_out: Float[Tensor, " targets"]

    @property
    def said_in(self) -> Bool[Tensor, " games"]:
        """The verdict b': the neuron's gradient is not zero."""
        return self.by_target | (self.by_others > 0)

    @staticmethod
    def joined(parts: Iterable["Played"]) -> "Played":
        """All games of several parts."""
        return Played(*(torch.cat(part) for part in zip(*parts, strict=True)))


Randomiser = Callable[[Float[Tensor, "records features"], torch.Generator], Tensor]
"""What a client does to its records before it trains: a mechanism of local differential privacy."""

TOGETHER = 2
"""Targets whose games are played at once: few, so that stopping is not waited for; fixed, since
another number may round differently."""

_USUAL = 2000
"""The server's records by which features are standardised."""


_HELD_OUT = 200
"""Fresh copies of a target, and other records, by which its neuron's fit is measured again."""


class Pools(NamedTuple):
    """Sources of records.

    Attributes:
        clients: Batches and targets.
        servers: What the server knows of the same distribution; none of the clients'.
    """

    clients: Float[Tensor, "records features"]
    servers: Float[Tensor, "records features"]


class GameBatches(NamedTuple):
    """Batches of some games.

    Attributes:
        was_in: Whether the target is in the batch.
        records: Which of the clients' records it holds.
    """

    was_in: Bool[Tensor, " games"]
    records: Int[Tensor, "games records"]


class Randomisers(NamedTuple):
    """Randomisers of clients' records, and those that the server trains for.

    Attributes:
        client: Applied to each batch.
        server: Applied to what neurons are trained and validated on.
    """

    client: Randomiser
    server: Randomiser


def as_it_is(records: Tensor, rng: torch.Generator) -> Tensor:
    """No randomiser: records stay what they are."""
    return records


NONE = Randomisers(as_it_is, as_it_is)


@dataclass(frozen=True)
class Contest:
    """Games of one server against one kind of client.

    For each target a neuron is trained on records of the server's own and validated on others of
    them. Then batches are drawn from the clients' records, each record by itself (so that one
    may stand twice in a batch), with the target among them by the toss of a coin, and everything
    is randomised anew.

    Attributes:
        pools: Where records come from.
        rules: Of the game.
        seed: Of every draw; a target's games do not depend on how many targets there are.
        randomisers: What is done to records.

    Raises:
        BadInput: There are too few records.

    Source: AMI, Figs. 1 (Exp) and 3 (Exp_LDP).
    Differs: the verdict is read off the neuron's sign instead of its gradient, which is not zero
        where the neuron is positive for a record (but for the chance of exact cancellation). Every
        game has its own batch. The published evaluation repeats its games, since its forked
        workers share a seed: 665 of 5,000 batches are distinct.
    """

    pools: Pools
    rules: Rules
    seed: int
    randomisers: Randomisers = NONE

    def __post_init__(self) -> None:
        batch, wanted = self.rules.batch, self.rules.background + self.rules.validation
        clients, servers = self.pools
        if len(clients) <= batch or len(servers) < wanted:
            raise BadInput(
                f"games with batches of {batch} need more clients' records than that, and the "
                f"server {wanted} of its own (game.background and game.validation); there are "
                f"{len(clients)} and {len(servers)}; lower these or game.batch, or give more "
                "records"
            )

    @cached_property
    def standard(self) -> Standard:
        """Standardisation of records as the server knows it."""
        some = self.pools.servers[:_USUAL]
        return Standard.of(self.randomisers.server(some, seeded(self.seed, "usual")))

    def play(self, *, targets: int, games: int) -> Iterator[Played]:
        """Plays target after target; yields the games of a few targets at once.

        Args:
            targets: How many, each drawn with a neuron of its own; as many as games gives the
                paper's Exp, one its published code.
            games: In all, shared out among the targets evenly.

        Raises:
            BadInput: There are fewer games than targets, or no targets.
        """
        for numbers in shared_out(targets, games):
            yield self.play_some(numbers)

    def play_some(self, games: Mapping[int, int]) -> Played:
        """Plays the games of some targets.

        Args:
            games: How many, by number of the target.
        """
        made = self.made(list(games))
        parts = [
            self._games(number, made.neurons.at(i), count)
            for i, (number, count) in enumerate(games.items())
        ]
        was_in, by_target, by_others = (torch.cat(part) for part in zip(*parts, strict=True))
        return Played(
            target=torch.tensor(list(games)).repeat_interleave(torch.tensor(list(games.values()))),
            was_in=was_in,
            by_target=by_target,
            by_others=by_others,
            epochs=made.epochs,
            told_apart=made.told_apart,
            fit=made.fit,
            held_out=made.held_out,
        )

    def target(self, number: int) -> int:
        """Which of the clients' records is the target of that number."""
        rng = seeded(self._seed(number), "record")
        return int(torch.randint(len(self.pools.clients), (), generator=rng))

    def drawn(self, number: int, count: int) -> GameBatches:
        """The batches of a target's games: the target stands first where it is in.

        Args:
            number: Of the target.
            count: How many games.
        """
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
        """Records of the clients other than the target, each drawn by itself.

        Args:
            number: Of the target.
            size: How many, and in what shape.
            rng: To draw with.
        """
        chosen = torch.randint(len(self.pools.clients) - 1, size, generator=rng)
        return chosen + (chosen >= self.target(number)).long()

    def neurons(self, targets: Sequence[int]) -> Neurons:
        """A trained and validated neuron for each target.

        Args:
            targets: Their numbers.
        """
        return self.made(targets).neurons

    def made(self, targets: Sequence[int]) -> Made:
        """The same, with how training went.

        Args:
            targets: Their numbers.
        """
        # One at a time: begun by its own seed, and no slower (what is trained fits the cache).
        parts = [self._made(number) for number in targets]
        neurons, *rest = zip(*parts, strict=True)
        return Made(Neurons.joined(neurons), *(torch.cat(part) for part in rest))

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
        fits = [_fit(neuron, some) for some in (training, self._fresh(number))]
        copies = self.rules.validation_copies
        if copies:
            values = neuron.values_alike(validation.rows)
            shift = best_shift(values[:, :copies], values[:, copies:], batch=self.rules.batch)
            neuron = neuron.shifted(shift)
        return Made(neuron, trained.epochs, trained.told_apart, *fits)

    def _seed(self, number: int) -> int:
        return seed_for(self.seed, "target", number)

    def _rows(self, number: int) -> "_Rows":
        """Records that a neuron is trained and validated on: the target's copies, the server's."""
        rules, wanted = self.rules, self.rules.background + self.rules.validation
        rng = seeded(self._seed(number), "own")
        order = torch.randperm(len(self.pools.servers), generator=rng)
        train, check = order[:wanted].tensor_split([rules.background])
        validation = self.pools.servers[check]
        return _Rows(
            self._training(number, train),
            self._labelled(number, rules.validation_copies, validation, "noise of validation"),
        )

    def _training(self, number: int, others: Int[Tensor, " records"]) -> Labelled | Batches:
        """The target's copies and those of the server's records, at once or in batches.

        Batches have their own noise, so that none needs the others' rows: it is drawn from the
        batch's number.
        """
        rules, servers = self.rules, self.pools.servers
        others = others.repeat(rules.background_copies)
        size = rules.training.batch_size
        if not 0 < size < rules.rows:
            return self._labelled(number, rules.copies, servers[others], "noise of training")
        count = -(-rules.rows // size)
        # In a random order, so that copies of one record may lie in the same batch. The target's
        # copies come first and are dealt like cards: each batch has as many, to within one.
        dealt = others[torch.randperm(len(others), generator=seeded(self._seed(number), "deal"))]
        order = torch.arange(rules.rows)

        def batch(place: int) -> Labelled:
            chosen = order[place::count]
            copies = int((chosen < rules.copies).sum())
            rows = servers[dealt[chosen[copies:] - rules.copies]]
            return self._labelled(number, copies, rows, "noise of training", place)

        return Batches(count, batch, targets=rules.copies, others=len(others))

    def _fresh(self, number: int) -> Labelled:
        """Copies of the target and other records of the clients, for measuring alone."""
        rng = seeded(self._seed(number), "held out")
        others = self.pools.clients[self.others(number, (_HELD_OUT,), rng)]
        return self._labelled(number, _HELD_OUT, others, "noise of held out")

    def _labelled(self, number: int, copies: int, others: Tensor, *noise: str | int) -> Labelled:
        target = self.pools.clients[self.target(number)]
        clean = torch.cat([target.expand(copies, -1), others])
        is_target = torch.arange(len(clean)) < copies
        rows = self.randomisers.server(clean, seeded(self._seed(number), *noise))
        return Labelled(rows[None], is_target[None])

    def _games(self, number: int, neuron: Neurons, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """All games of one target: was it in, fired the neuron for it, for how many others."""
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


def _fit(neuron: Neurons, given: Labelled | Batches) -> Float[Tensor, "1"]:
    """The share of pairs of a target's row and another of which the first has more; ties half."""
    parts = given.in_order() if isinstance(given, Batches) else [given]
    found = [(neuron.values_alike(rows)[0], is_target[0]) for rows, is_target in parts]
    values, is_target = (torch.cat(part) for part in zip(*found, strict=True))
    others = values[~is_target].sort().values
    below = [torch.searchsorted(others, values[is_target], right=side) for side in (False, True)]
    return torch.stack(below).double().mean()[None] / len(others)


def shared_out(targets: int, games: int) -> Iterator[dict[int, int]]:
    """Number of games of each target, a few targets at once.

    Raises:
        BadInput: There are fewer games than targets, or no targets.
    """
    if not 1 <= targets <= games:
        raise BadInput(f"games are shared out among targets: {games} games, {targets} targets")
    for first in range(0, targets, TOGETHER):
        chosen = range(first, min(first + TOGETHER, targets))
        yield {number: games // targets + (number < games % targets) for number in chosen}
