"""The security games: does the server tell whether its target was in a client's batch?"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.attacks.ami.neuron import Neurons
from fedaudit.attacks.ami.threshold import best_shift
from fedaudit.attacks.ami.training import NeuronTraining, Standard, train_neurons
from fedaudit.errors import BadInput
from fedaudit.seeds import seed_for, seeded

Randomiser = Callable[[Float[Tensor, "records features"], torch.Generator], Tensor]
"""What a client does to its records before it trains: a mechanism of local differential privacy."""

_TOGETHER = 8
"""Neurons prepared at once; fixed, since another number may round differently."""

_USUAL = 2000
"""The server's records by which features are standardised."""


@dataclass(frozen=True)
class Rules:
    """How a game is played.

    Attributes:
        batch: Records that the client computes its gradient on (the paper's n).
        copies: Randomised copies of the target that a neuron is trained on (its l); without a
            randomiser they are all the same, and one is enough.
        background: Records of the server's own that it is trained on.
        validation: More of the server's own, by which its zero is placed; 0 to leave it where
            training did.
        validation_copies: Copies of the target for the same.
        training: Of the neuron.

    Raises:
        BadInput: A number is too small.

    Source: AMI, Figs. 1 to 4.
    Differs: the paper labels clean records 0 (Fig. 4), its code randomised ones, as here: clean
        ones are told from the target's copies by the noise alone.
    """

    batch: int = 100
    copies: int = 8
    background: int = 56
    validation: int = 500
    validation_copies: int = 50
    training: NeuronTraining = field(default_factory=NeuronTraining)

    def __post_init__(self) -> None:
        placed = (self.validation, self.validation_copies)
        if min(self.batch, self.copies, self.background) < 1 or min(placed) < (max(placed) > 0):
            raise BadInput(
                "a game needs a batch, copies of the target and records of the server's own, at "
                "least one each, and records and copies for validation or none of either; got "
                f"{self.batch}, {self.copies}, {self.background}, and {placed[0]} and {placed[1]}"
            )


class Pools(NamedTuple):
    """Where records come from.

    Attributes:
        clients: Batches and targets.
        servers: What the server knows of the same distribution; none of the clients'.
    """

    clients: Float[Tensor, "records features"]
    servers: Float[Tensor, "records features"]


class Played(NamedTuple):
    """What happened in each game.

    Attributes:
        target: Number of the game's target.
        was_in: Whether the target was in the batch (the paper's b).
        by_target: Whether the neuron fired for the target, where it was in.
        by_others: For how many other records it fired.
    """

    target: Int[Tensor, " games"]
    was_in: Bool[Tensor, " games"]
    by_target: Bool[Tensor, " games"]
    by_others: Int[Tensor, " games"]

    @property
    def said_in(self) -> Bool[Tensor, " games"]:
        """The verdict b': the neuron's gradient is not zero."""
        return self.by_target | (self.by_others > 0)


def play(
    pools: Pools,
    rules: Rules,
    *,
    targets: int,
    games: int,
    seed: int,
    randomiser: Randomiser | None = None,
) -> Iterator[Played]:
    """Plays target after target; yields the games of a few targets at once.

    For each target a neuron is trained on records of the server's own and validated on others of
    them. Then batches are drawn from the clients' records without replacement, with the target
    among them by the toss of a coin, and everything is randomised anew.

    Args:
        pools: Where records come from.
        rules: Of the game.
        targets: How many, each drawn with a neuron of its own; as many as games gives the
            paper's Exp, one its published code.
        games: In all, shared out among the targets evenly.
        seed: Of every draw; a target's games do not depend on how many targets there are.
        randomiser: What the client does to its records; None for nothing.

    Raises:
        BadInput: There are too few records, or fewer games than targets.

    Source: AMI, Figs. 1 (Exp) and 3 (Exp_LDP).
    Differs: the verdict is read off the neuron's sign instead of its gradient, which is not zero
        where the neuron is positive for a record (but for the chance of exact cancellation).
    """
    if not 1 <= targets <= games:
        raise BadInput(f"games are shared out among targets: {games} games, {targets} targets")
    _refuse_few(pools, rules)
    standard = Standard.of(_randomised(pools.servers[:_USUAL], randomiser, seeded(seed, "usual")))
    for first in range(0, targets, _TOGETHER):
        chosen = range(first, min(first + _TOGETHER, targets))
        of_each = [games // targets + (number < games % targets) for number in chosen]
        seeds = [seed_for(seed, "target", number) for number in chosen]
        neurons = planted(pools, rules, seeds, standard, randomiser)
        parts = [
            _games(pools, rules.batch, neurons.at(i), count, seeds[i], randomiser)
            for i, count in enumerate(of_each)
        ]
        numbers = torch.repeat_interleave(torch.tensor(list(chosen)), torch.tensor(of_each))
        yield Played(numbers, *(torch.cat(part) for part in zip(*parts, strict=True)))


def planted(
    pools: Pools,
    rules: Rules,
    seeds: Sequence[int],
    standard: Standard,
    randomiser: Randomiser | None = None,
) -> Neurons:
    """A trained and validated neuron for each seed's target.

    Args:
        pools: Where records come from.
        rules: Of the game.
        seeds: One a target.
        standard: Of records as clients send them through the model.
        randomiser: What clients do to their records.
    """
    prepared = [_prepared(pools, rules, seed, randomiser) for seed in seeds]
    training = torch.stack([one.training for one in prepared])
    is_target = (torch.arange(training.shape[1]) < rules.copies).expand(len(seeds), -1)
    neurons = [
        # One at a time: begun by its own seed, and no slower (what is trained fits the cache).
        train_neurons(
            training[i : i + 1],
            is_target[i : i + 1],
            rules.training,
            standard=standard,
            rng=seeded(seed, "weights"),
        )
        for i, seed in enumerate(seeds)
    ]
    together = Neurons(*(torch.cat(part) for part in zip(*neurons, strict=True)))
    if not rules.validation:
        return together
    values = together.values(torch.stack([one.validation for one in prepared]))
    copies = rules.validation_copies
    return together.shifted(best_shift(values[:, :copies], values[:, copies:], batch=rules.batch))


def target_of(pools: Pools, seed: int) -> int:
    """Which of the clients' records is the target of the games of that seed."""
    return int(torch.randint(len(pools.clients), (), generator=seeded(seed, "record")))


class _Prepared(NamedTuple):
    training: Float[Tensor, "rows features"]
    validation: Float[Tensor, "rows features"]


def _prepared(pools: Pools, rules: Rules, seed: int, randomiser: Randomiser | None) -> _Prepared:
    """Rows to train and to validate on: copies of the target first, then the server's records."""
    target = pools.clients[target_of(pools, seed)]
    wanted = rules.background + rules.validation
    chosen = torch.randperm(len(pools.servers), generator=seeded(seed, "own"))[:wanted]
    own = pools.servers[chosen]

    def rows(copies: int, records: Tensor) -> Tensor:
        return torch.cat([target.expand(copies, -1), records])

    train = rows(rules.copies, own[: rules.background])
    check = rows(rules.validation_copies, own[rules.background :])
    return _Prepared(
        _randomised(train, randomiser, seeded(seed, "noise of training")),
        _randomised(check, randomiser, seeded(seed, "noise of validation")),
    )


def _randomised(records: Tensor, randomiser: Randomiser | None, rng: torch.Generator) -> Tensor:
    return records if randomiser is None else randomiser(records, rng)


def _games(
    pools: Pools,
    batch: int,
    neuron: Neurons,
    count: int,
    seed: int,
    randomiser: Randomiser | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Whether the target was in, whether it fired, and how many others did, of one target."""
    target = target_of(pools, seed)
    draws, noise = seeded(seed, "batches"), seeded(seed, "noise of games")
    was_in = torch.rand(count, generator=draws) < 0.5
    fired = torch.empty(count, batch, dtype=torch.bool)
    for game in range(count):
        chosen = torch.randperm(len(pools.clients) - 1, generator=draws)[:batch]
        chosen += chosen >= target
        if was_in[game]:
            chosen[0] = target
        records = _randomised(pools.clients[chosen], randomiser, noise)
        fired[game] = neuron.fires(records[None])[0]
    by_target = fired[:, 0] & was_in
    return was_in, by_target, fired.sum(1) - by_target.long()


def _refuse_few(pools: Pools, rules: Rules) -> None:
    wanted = rules.background + rules.validation
    if len(pools.clients) <= rules.batch or len(pools.servers) < wanted:
        raise BadInput(
            f"games with batches of {rules.batch} need more clients' records than that, and the "
            f"server {wanted} of its own; there are {len(pools.clients)} and {len(pools.servers)}"
        )
