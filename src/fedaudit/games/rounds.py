"""Games in rounds of training: a malicious server sends planted models and scores the uploads."""

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
    Neurons,
    PlantedModel,
    TargetGradient,
    average_uploads,
    best_shift,
    plant,
    repeat_neurons,
    scale_first_layer,
    silence_other_neurons,
    silence_planted_neurons,
    target_gradient,
)
from fedaudit.core.errors import BadInput, format_setting
from fedaudit.core.options import check_options
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
from fedaudit.games.samples import Labels
from fedaudit.models import MLP
from fedaudit.plan.games import RoundsSection


def defense_of(section: RoundsSection) -> Defense:
    """Return one client's instance of the defense that a study names."""
    name = section.defense
    make = defense_named(name)
    if isinstance(make, type) and issubclass(make, LocalDP):
        raise BadInput(
            f"{name!r} perturbs samples before training, so the neurons must be trained on "
            f"perturbed samples; set it as {format_setting('mechanism.name')}, "
            'with rounds.play = "signs"'
        )
    is_for_coalition = isinstance(make, type) and issubclass(make, CoalitionDefense)
    if is_for_coalition or "coalition" in signature(make).parameters:
        raise BadInput(
            f"{name!r} is for a coalition of clients, but a game has a single client; set "
            "rounds.defense to another defense"
        )
    check_options("defense", name, make, section.options, section="rounds")
    return create_defense(name, section.options, coalition=())


class NoiseDecomposition(NamedTuple):
    """Defense that is split into a deterministic defense and normal noise on every parameter.

    Attributes:
        deterministic: The defense without noise.
        std: Standard deviation of the noise; 0 without noise.
        sample_clip: Clipping norm of one sample's gradient; infinite without clipping, None if the
            upload is clipped instead of samples' gradients.
        noise_multiplier: Noise in units of the clipping norm; 0 without clipping.
    """

    deterministic: Defense
    std: float
    sample_clip: float | None
    noise_multiplier: float


def decompose_noise(defense: Defense, batch: int) -> NoiseDecomposition | None:
    """Split a defense of a FedSGD gradient over ``batch`` samples; None if it cannot be split."""
    kind = type(defense)
    if kind is Defense:
        return NoiseDecomposition(defense, 0.0, math.inf, 0.0)
    if isinstance(defense, GradientNoise) and kind is GradientNoise:
        return NoiseDecomposition(GradientNoise(0.0), defense.sigma, math.inf, 0.0)
    if isinstance(defense, ClientDP) and kind is ClientDP:
        multiplier = defense.noise_multiplier
        std = multiplier * defense.clip if multiplier else 0.0
        return NoiseDecomposition(ClientDP(defense.clip, 0.0), std, None, multiplier)
    # DP-SGD with augmentation cannot be split, because it draws new copies of an image each round.
    if isinstance(defense, DPSGD) and kind is DPSGD and defense.multiplicity == 1:
        multiplier = defense.noise_multiplier
        std = multiplier * defense.clip / batch if multiplier else 0.0
        return NoiseDecomposition(
            replace(defense, noise_multiplier=0.0), std, defense.clip, multiplier
        )
    return None


class PlayedInRounds(NamedTuple):
    """Outcomes of games, and properties of each target.

    Attributes:
        contains_target: Whether the target was in the batch.
        inferred_in: Verdict of the server: True if the score is above the threshold.
        by_signs: Verdict by the neuron's sign: True if it fires for any sample in a batch on which
            a planted model is trained.
        by_target: Whether the target was in the batch and the neuron fires for it.
        by_others: Number of other samples in the same batches for which the neuron fires.
        shares: Fraction of the norm of each target's gradient that lies in the planted rows.
        distances: Distance by which the target changes the mean score, in standard deviations of
            the score's noise, if the neuron fires for no other sample; NaN if unknown.
    """

    contains_target: Bool[Tensor, " games"]
    inferred_in: Bool[Tensor, " games"]
    by_signs: Bool[Tensor, " games"]
    by_target: Bool[Tensor, " games"]
    by_others: Int[Tensor, " games"]
    shares: Float[Tensor, " targets"]
    distances: Float[Tensor, " targets"]


class SentModels(NamedTuple):
    """Models that the server sends to clients in every round.

    Attributes:
        target_client: Model with the planted neurons, for the client under attack.
        others: Model for the other clients of a sum.
    """

    target_client: PlantedModel
    others: Model


class ClientBatches(NamedTuple):
    """Data of the clients of some games.

    Attributes:
        features: Features of each client's samples. If the target is in the batch, it is the first
            sample of the first client.
        labels: Labels of these samples.
    """

    features: Float[Tensor, "games clients samples features"]
    labels: Int[Tensor, "games clients samples"]


_N_HONEST_UNITS = 8
"""Number of units of the second layer that the server does not replace."""

_N_NOISE_DRAWS = 64
"""Number of noise draws for each simulated game of the server, if noise is drawn separately."""


@dataclass(frozen=True)
class RoundGames:
    """Games of a server that scores uploads instead of reading a neuron's sign.

    Neurons are trained and batches drawn as in :class:`Contest`. A client of a FedSGD federation
    receives a planted model, and computes the gradient of its batch with its defense. The server
    scores uploads by the target's gradient, and averages the scores of all rounds. The batch is the
    same in all rounds, but the noise is new. The server infers that the target is in the batch if
    the mean score is above a threshold. It chooses the threshold from simulated games with its
    samples and the same defense.

    All games of a target are simulated as clients of one federation, because an upload does not
    depend on other clients. The normal noise of all rounds is drawn once for the averaged score;
    see :func:`decompose_noise`.

    Attributes:
        contest: Samples, rules and seed; without randomisers.
        labels: Classes of the contest's samples.
        settings: Defense, aggregation and models.

    Source: Nguyen et al. 2023 (AMI), Figs. 1 and 2 and appendix E.
    """

    contest: Contest
    labels: Labels
    settings: RoundsSection

    @cached_property
    def decomposed(self) -> NoiseDecomposition | None:
        """The decomposed defense; None if every round has to be simulated."""
        if self.settings.every_round:
            return None
        return decompose_noise(defense_of(self.settings), self.contest.rules.batch)

    @property
    def simulated(self) -> int:
        """Number of simulated rounds per game."""
        return self.settings.averaged if self.decomposed is None else 1

    def play(self, number: int, neuron: Neurons, count: int) -> PlayedInRounds:
        """Play ``count`` games of one target with its neuron."""
        models = self.models(number, neuron)
        neuron_reading = target_gradient(models.target_client, self.target(number))
        threshold = self._threshold(number, models, neuron_reading)
        contains_target, batches = self.batches(number, count)
        seed = self._seed(number)
        scores = self.scores(models, neuron_reading, batches, seed_for(seed, "games"))
        noisy_scores = scores + self._noise(neuron_reading, (count,), seeded(seed, "noise"))
        fires = self._fires(neuron, batches)
        by_target = fires[:, 0] & contains_target
        return PlayedInRounds(
            contains_target=contains_target,
            inferred_in=noisy_scores > threshold,
            by_signs=fires.any(1),
            by_target=by_target,
            by_others=fires.sum(1) - by_target.long(),
            shares=torch.tensor([neuron_reading.share]).double(),
            distances=torch.tensor([self._distance(neuron_reading)]).double(),
        )

    def models(self, number: int, neuron: Neurons) -> SentModels:
        """Return the models to send, with the target's neuron repeated and scaled."""
        honest = self._honest_model(number, neuron)
        scaled = scale_first_layer(neuron, self.settings.louder)
        planted = plant(honest, repeat_neurons(scaled, self.settings.neurons))
        if self.settings.louder != 1:
            planted = silence_other_neurons(planted)
        model_of_others = {
            "honest": honest,
            "planted": planted.model,
            "dead": silence_planted_neurons(planted),
        }[self.settings.others]
        return SentModels(planted, model_of_others)

    def target(self, number: int) -> Samples:
        """Return the target with its label."""
        index = self.contest.target(number)
        return _samples(self.contest.pools.clients[[index]], self.labels.clients[[index]])

    def scores(
        self, models: SentModels, neuron_reading: TargetGradient, batches: ClientBatches, seed: int
    ) -> Float[Tensor, " games"]:
        """Return the mean score of each game over its simulated rounds."""
        n_games, n_clients = batches.labels.shape[:2]
        features, labels = batches.features.flatten(0, 1), batches.labels.flatten(0, 1)
        data = {c: _samples(features[c], labels[c]) for c in range(n_games * n_clients)}
        # All rounds have the same models, so that their scores can be averaged.
        planted = models.target_client.model
        sent = {client: models.others if client % n_clients else planted for client in data}
        server = Tampering({client: partial(_constant, model) for client, model in sent.items()})
        rounds = simulate(
            FedSGD(models.others.architecture, LocalTraining()),
            data,
            rounds=self.simulated,
            seed=seed,
            defenses={client: self._defense_without_noise() for client in data},
            server=server,
        )
        total = torch.zeros(n_games, dtype=torch.float64)
        for round in rounds:
            gradients = [as_gradient(round.uploads[client]) for client in data]
            for game in range(n_games):
                game_gradients = gradients[game * n_clients : (game + 1) * n_clients]
                total[game] += neuron_reading.score(average_uploads(game_gradients))
        return total / self.simulated

    def _threshold(self, number: int, models: SentModels, neuron_reading: TargetGradient) -> float:
        """Choose the threshold from games with the server's samples."""
        seed, n_games = self._seed(number), self.settings.own_games
        servers = self.contest.pools.servers
        size = (n_games, self.settings.clients, self.contest.rules.batch)
        positions = torch.randint(len(servers), size, generator=seeded(seed, "own"))
        features, labels = servers[positions], self.labels.servers[positions]
        has_target = torch.arange(n_games) % 2 == 0
        target = self.target(number)
        features[has_target, 0, 0], labels[has_target, 0, 0] = target.features[0], target.labels[0]
        batches = ClientBatches(features, labels)
        scores = self.scores(models, neuron_reading, batches, seed_for(seed, "own games"))
        n_draws = _N_NOISE_DRAWS if self.decomposed and self.decomposed.std else 1
        noise = self._noise(neuron_reading, (n_games, n_draws), seeded(seed, "own noise"))
        noisy_scores = scores[:, None] + noise
        shift = best_shift(
            noisy_scores[has_target].flatten()[None],
            noisy_scores[~has_target].flatten()[None],
            batch=1,
        )
        return -float(shift)

    def batches(self, number: int, count: int) -> tuple[Tensor, ClientBatches]:
        """Return whether each game's batch has the target, and the data of all clients."""
        drawn_batches = self.contest.draw_batches(number, count)
        size = (count, self.settings.clients - 1, drawn_batches.samples.shape[1])
        others = self.contest.others(number, size, seeded(self._seed(number), "others"))
        chosen = torch.cat([drawn_batches.samples[:, None], others], dim=1)
        return drawn_batches.contains_target, ClientBatches(
            self.contest.pools.clients[chosen], self.labels.clients[chosen]
        )

    def _fires(self, neuron: Neurons, batches: ClientBatches) -> Bool[Tensor, "games samples"]:
        """Return whether the neuron fires, for all samples on which a planted model is trained."""
        all_planted = self.settings.others == "planted"
        features = batches.features if all_planted else batches.features[:, :1]
        return neuron.fires(features.flatten(0, 2)[None])[0].view(len(features), -1)

    def _noise(
        self, neuron_reading: TargetGradient, size: tuple[int, ...], rng: torch.Generator
    ) -> Float[Tensor, "..."]:
        """Draw the effect of the noise of all rounds and clients on averaged scores."""
        std = self._score_std if bool(neuron_reading.direction.any()) else 0.0
        return std * torch.randn(size, generator=rng, dtype=torch.float64)

    @property
    def _score_std(self) -> float:
        """Standard deviation of an averaged score's noise; it is the same in any direction."""
        std = self.decomposed.std if self.decomposed else 0.0
        return float(std / (self.settings.averaged * self.settings.clients) ** 0.5)

    def _distance(self, neuron_reading: TargetGradient) -> float:
        """Return the difference of mean scores with and without the target, in deviations."""
        decomposed, settings = self.decomposed, self.settings
        if decomposed is None or not decomposed.std or decomposed.sample_clip is None:
            return float("nan")
        if settings.clients > 1 and settings.others == "honest":
            # Updates of honest models change the scores by unknown amounts.
            return float("nan")
        shift = neuron_reading.share * min(neuron_reading.length, decomposed.sample_clip)
        return shift / (self.contest.rules.batch * settings.clients) / self._score_std

    def _defense_without_noise(self) -> Defense:
        """Return a client's defense without the noise that is drawn separately."""
        # Each client needs its own instance, so the defense is not taken from ``decomposed``.
        defense = defense_of(self.settings)
        decomposed = decompose_noise(defense, self.contest.rules.batch) if self.decomposed else None
        return decomposed.deterministic if decomposed else defense

    def _honest_model(self, number: int, neuron: Neurons) -> Model:
        """Return an untrained network that has units for the neurons."""
        units, features = neuron.first_weights.shape[1:]
        copies = self.settings.neurons
        model = MLP(hidden=f"{units * copies},{copies + _N_HONEST_UNITS}")
        net = Architecture("mlp", model.for_samples((features,), self.labels.classes))
        return net.initial(seed_for(self._seed(number), "model"))

    def _seed(self, number: int) -> int:
        return seed_for(self.contest.seed, "rounds", number)


def _samples(features: Tensor, labels: Tensor) -> Samples:
    return Samples(features, labels, torch.arange(len(labels)))


def _constant(model: Model, honest: Model) -> Model:
    return model
