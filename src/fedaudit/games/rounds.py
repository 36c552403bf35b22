"""Games in real rounds: a tampering server sends planted models and scores the uploads."""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from inspect import signature
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.attacks.ami.game import Contest
from fedaudit.attacks.ami.plant import (
    NeuronReading,
    Neurons,
    Planted,
    average_uploads,
    best_shift,
    plant,
    reading,
    repeat_neurons,
    scale_first_layer,
    silence_other_neurons,
    silence_planted_neurons,
)
from fedaudit.core.errors import BadInput, setting
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.defenses import create_defense, defense_named
from fedaudit.defenses.clip import ClientDP
from fedaudit.defenses.cofedmid.partition import CoalitionDefense
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.defenses.ldp import LocalDP
from fedaudit.defenses.noise import GradientNoise
from fedaudit.fl.algorithms.base import Tampering
from fedaudit.fl.algorithms.fedsgd import FedSGD, as_gradient
from fedaudit.fl.hooks import Defense
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.games.records import Labels
from fedaudit.models import MLP
from fedaudit.plan.games import RoundsSection
from fedaudit.plan.named import check_options


def defense_of(section: RoundsSection) -> Defense:
    """Return one client's instance of the defense that a study names."""
    name = section.defense
    make = defense_named(name)
    if isinstance(make, type) and issubclass(make, LocalDP):
        raise BadInput(
            f"{name!r} perturbs records before training, but neurons must be trained for it; "
            f'name it as {setting("mechanism.name")}, with rounds.play = "signs"'
        )
    is_joint = isinstance(make, type) and issubclass(make, CoalitionDefense)
    if is_joint or "coalition" in signature(make).parameters:
        raise BadInput(
            f"{name!r} is for a coalition of clients, but the game is about one client; name "
            "another defense for games in rounds"
        )
    check_options("defense", name, make, section.options, section="rounds")
    return create_defense(name, section.options, coalition=())


class NoiseDecomposition(NamedTuple):
    """A defense as a deterministic one plus normal noise on every entry.

    Attributes:
        deterministic: The defense without noise.
        std: Standard deviation of the noise; 0 without noise.
        record_clip: Clipping length of one record's gradient; infinite for none, None if the upload
            is clipped as a whole.
        noise_multiplier: Noise in units of the clipping length; 0 without clipping.
    """

    deterministic: Defense
    std: float
    record_clip: float | None
    noise_multiplier: float


def decompose_noise(defense: Defense, batch: int) -> NoiseDecomposition | None:
    """Split a defense of one FedSGD gradient over ``batch`` records; None if unknown."""
    kind = type(defense)
    if kind is Defense:
        return NoiseDecomposition(defense, 0.0, math.inf, 0.0)
    if isinstance(defense, GradientNoise) and kind is GradientNoise:
        return NoiseDecomposition(GradientNoise(0.0), defense.sigma, math.inf, 0.0)
    if isinstance(defense, ClientDP) and kind is ClientDP:
        multiplier = defense.noise_multiplier
        std = multiplier * defense.clip if multiplier else 0.0
        return NoiseDecomposition(ClientDP(defense.clip, 0.0), std, None, multiplier)
    # DP-SGD with augmentation draws other copies of an image in every round.
    if isinstance(defense, DPSGD) and kind is DPSGD and defense.multiplicity == 1:
        multiplier = defense.noise_multiplier
        std = multiplier * defense.clip / batch if multiplier else 0.0
        return NoiseDecomposition(
            replace(defense, noise_multiplier=0.0), std, defense.clip, multiplier
        )
    return None


class PlayedInRounds(NamedTuple):
    """Outcomes of games, and facts on each target.

    Attributes:
        was_in: Whether the target was in the batch.
        said_in: The verdict: the score is above the server's threshold.
        by_signs: The verdict of the neuron's sign on all records that met a planted model.
        by_target: Whether the neuron fires for the target, if it was in.
        by_others: Number of other records that met a planted model and fire the neuron.
        shares: Share of each target's gradient in the planted rows.
        distances: Distance by which the target moves the mean score, in standard deviations of its
            noise, if the neuron is silent for all others; NaN if unknown.
    """

    was_in: Bool[Tensor, " games"]
    said_in: Bool[Tensor, " games"]
    by_signs: Bool[Tensor, " games"]
    by_target: Bool[Tensor, " games"]
    by_others: Int[Tensor, " games"]
    shares: Float[Tensor, " targets"]
    distances: Float[Tensor, " targets"]


class Models(NamedTuple):
    """Models that clients are sent, in every round.

    Attributes:
        asked: Model with the neurons, for the client that is asked about.
        others: Model for the other clients of a sum.
    """

    asked: Planted
    others: Model


class Batches(NamedTuple):
    """Data of the clients of some games.

    Attributes:
        features: Features of each client's records; the target may be the first client's first.
        labels: Labels of these records.
    """

    features: Float[Tensor, "games clients records features"]
    labels: Int[Tensor, "games clients records"]


_SPARE = 8
"""Neurons of the second layer that nothing is planted over, as an honest model has them."""

_DRAWS = 64
"""Draws of noise for each of the server's own games, where noise costs nothing."""


@dataclass(frozen=True)
class RoundGames:
    """Games of a server that scores uploads instead of reading a neuron's sign.

    Neurons are trained and batches drawn as in :class:`Contest`. A client of a FedSGD federation
    computes the gradient of its batch with its defense, at a model that the server tampered with.
    The server scores uploads by the target's gradient, averages the scores of all rounds (same
    batch, fresh noise) and says "in" above a threshold. It chooses the threshold by simulated games
    with its own records and the same defense.

    All games of a target are clients of one federation, since an upload does not depend on other
    clients. The normal noise of all rounds is drawn once for the averaged score; see
    :func:`decompose_noise`.

    Attributes:
        contest: Records, rules and seed; without randomisers.
        labels: Classes of the contest's records.
        how: Defense, aggregation and models.

    Source: AMI, Figs. 1 and 2 and appendix E.
    """

    contest: Contest
    labels: Labels
    how: RoundsSection

    @cached_property
    def decomposed(self) -> NoiseDecomposition | None:
        """The decomposed defense; None if every round has to be simulated."""
        batch = self.contest.rules.batch
        return None if self.how.every_round else decompose_noise(defense_of(self.how), batch)

    @property
    def simulated(self) -> int:
        """Number of simulated rounds per game."""
        return self.how.averaged if self.decomposed is None else 1

    def play(self, number: int, neuron: Neurons, count: int) -> PlayedInRounds:
        """Play ``count`` games of one target with its neuron."""
        models = self.models(number, neuron)
        looked_for = reading(models.asked, self.target(number))
        threshold = self._threshold(number, models, looked_for)
        was_in, batches = self.batches(number, count)
        scores = self.scores(models, looked_for, batches, seed_for(self._seed(number), "games"))
        noisy = scores + self._noise(looked_for, (count,), seeded(self._seed(number), "noise"))
        fired = self._fired(neuron, batches)
        by_target = fired[:, 0] & was_in
        return PlayedInRounds(
            was_in=was_in,
            said_in=noisy > threshold,
            by_signs=fired.any(1),
            by_target=by_target,
            by_others=fired.sum(1) - by_target.long(),
            shares=torch.tensor([looked_for.share]).double(),
            distances=torch.tensor([self._distance(looked_for)]).double(),
        )

    def models(self, number: int, neuron: Neurons) -> Models:
        """Return the models to send: the target's neuron, repeated and scaled as asked for."""
        honest = self._honest(number, neuron)
        scaled = scale_first_layer(neuron, self.how.louder)
        planted = plant(honest, repeat_neurons(scaled, self.how.neurons))
        if self.how.louder != 1:
            planted = silence_other_neurons(planted)
        silent = silence_planted_neurons(planted)
        others = {"honest": honest, "planted": planted.model, "dead": silent}
        return Models(planted, others[self.how.others])

    def target(self, number: int) -> Samples:
        """Return the target with its label."""
        place = self.contest.target(number)
        return _samples(self.contest.pools.clients[[place]], self.labels.clients[[place]])

    def scores(
        self, models: Models, looked_for: NeuronReading, batches: Batches, seed: int
    ) -> Float[Tensor, " games"]:
        """Score each game: the mean over its simulated rounds."""
        games, clients = batches.labels.shape[:2]
        flat = zip(batches.features.flatten(0, 1), batches.labels.flatten(0, 1), strict=True)
        data = {client: _samples(*batch) for client, batch in enumerate(flat)}
        # The same models in every round, so the scores of rounds measure one signal.
        sent = {c: models.others if c % clients else models.asked.model for c in data}
        server = Tampering({client: partial(_always, model) for client, model in sent.items()})
        rounds = simulate(
            FedSGD(models.others.architecture, LocalTraining()),
            data,
            rounds=self.simulated,
            seed=seed,
            defenses={client: self._quiet() for client in data},
            server=server,
        )
        total = torch.zeros(games, dtype=torch.float64)
        for round in rounds:
            got = [as_gradient(round.uploads[client]) for client in data]
            total += torch.tensor(
                [
                    looked_for.score(average_uploads(got[first : first + clients]))
                    for first in range(0, len(got), clients)
                ],
                dtype=torch.float64,
            )
        return total / self.simulated

    def _threshold(self, number: int, models: Models, looked_for: NeuronReading) -> float:
        """Choose the threshold by games with the server's own records."""
        seed, how, servers = self._seed(number), self.how, self.contest.pools.servers
        size = (how.own_games, how.clients, self.contest.rules.batch)
        chosen = torch.randint(len(servers), size, generator=seeded(seed, "own"))
        features, labels = servers[chosen], self.labels.servers[chosen]
        has_target = torch.arange(how.own_games) % 2 == 0
        target = self.target(number)
        features[has_target, 0, 0], labels[has_target, 0, 0] = target.features[0], target.labels[0]
        batches = Batches(features, labels)
        scores = self.scores(models, looked_for, batches, seed_for(seed, "own games"))
        draws = _DRAWS if self.decomposed and self.decomposed.std else 1
        noise = self._noise(looked_for, (how.own_games, draws), seeded(seed, "own noise"))
        noisy = scores[:, None] + noise
        shift = best_shift(
            noisy[has_target].flatten()[None], noisy[~has_target].flatten()[None], batch=1
        )
        return -float(shift)

    def batches(self, number: int, count: int) -> tuple[Tensor, Batches]:
        """Return the target's membership, and the clients' data, for its games."""
        drawn = self.contest.draw_batches(number, count)
        size = (count, self.how.clients - 1, drawn.records.shape[1])
        others = self.contest.others(number, size, seeded(self._seed(number), "others"))
        chosen = torch.cat([drawn.records[:, None], others], dim=1)
        return drawn.was_in, Batches(
            self.contest.pools.clients[chosen], self.labels.clients[chosen]
        )

    def _fired(self, neuron: Neurons, batches: Batches) -> Bool[Tensor, "games records"]:
        """Return for which records that met a planted model the neuron fires."""
        features = batches.features if self.how.others == "planted" else batches.features[:, :1]
        return neuron.fires(features.flatten(0, 2)[None])[0].view(len(features), -1)

    def _noise(
        self, looked_for: NeuronReading, size: tuple[int, ...], rng: torch.Generator
    ) -> Float[Tensor, "..."]:
        """Draw the effect of the noise of all rounds and clients on averaged scores."""
        std = self._score_std if bool(looked_for.direction.any()) else 0.0
        return std * torch.randn(size, generator=rng, dtype=torch.float64)

    @property
    def _score_std(self) -> float:
        """Standard deviation of an averaged score's noise, in any direction."""
        std = self.decomposed.std if self.decomposed else 0.0
        return float(std / (self.how.averaged * self.how.clients) ** 0.5)

    def _distance(self, looked_for: NeuronReading) -> float:
        """Return the distance of mean scores with and without the target, in deviations."""
        decomposed, how = self.decomposed, self.how
        buried = how.clients > 1 and how.others == "honest"
        if decomposed is None or not decomposed.std or decomposed.record_clip is None or buried:
            return float("nan")
        shift = looked_for.share * min(looked_for.length, decomposed.record_clip)
        return shift / (self.contest.rules.batch * how.clients) / self._score_std

    def _quiet(self) -> Defense:
        """Return a client's defense without the noise that is drawn separately."""
        defense = defense_of(self.how)
        decomposed = decompose_noise(defense, self.contest.rules.batch) if self.decomposed else None
        return decomposed.deterministic if decomposed else defense

    def _honest(self, number: int, neuron: Neurons) -> Model:
        """Return an honest server's model: a fresh network with room for the neurons."""
        units, features = neuron.first.shape[1:]
        copies = self.how.neurons
        model = MLP(hidden=f"{units * copies},{copies + _SPARE}")
        net = Architecture("mlp", model.for_samples((features,), self.labels.classes))
        return net.initial(seed_for(self._seed(number), "model"))

    def _seed(self, number: int) -> int:
        return seed_for(self.contest.seed, "rounds", number)


def _samples(features: Tensor, labels: Tensor) -> Samples:
    return Samples(features, labels, torch.arange(len(labels)))


def _always(model: Model, honest: Model) -> Model:
    return model
