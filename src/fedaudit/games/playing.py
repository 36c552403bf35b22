"""Games of one point of a study, and the estimates that are computed from their outcomes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from time import monotonic
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.attacks.ami import GameRules, NeuronTraining
from fedaudit.attacks.ami.game import Contest, GameOutcomes, SampleSources, split_games
from fedaudit.attacks.ami.plant import Neurons, range_over_box
from fedaudit.core.errors import BadInput
from fedaudit.core.progress import Progress
from fedaudit.core.seeds import seeded
from fedaudit.fl.training.parallel import run_in_parallel
from fedaudit.games.mechanism import NO_MECHANISM, GameMechanism, resolve_mechanism
from fedaudit.games.rounds import PlayedInRounds, RoundGames, decompose_noise, defense_of
from fedaudit.games.samples import DrawnSamples, GameSamples
from fedaudit.metrics.games import (
    BoundedMean,
    GameSuccess,
    certify,
    clipped_distance,
    game_success,
    gaussian_success,
    max_success_rate,
    predict_tnr,
    signs_of_means,
)
from fedaudit.metrics.intervals import mean_of_units
from fedaudit.metrics.rate_limits import Proportion, proportion
from fedaudit.plan.file import Point
from fedaudit.plan.games import GameStudy
from fedaudit.results import games as figures
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import (
    DETECTION_RATE,
    InRounds,
    NeuronMean,
    PointPlayed,
    Spread,
    TargetCertificate,
    TrainingLength,
)
from fedaudit.results.text import clean_text

_N_BINS = 40
"""Number of bins of a histogram of a neuron's values."""

MakeEstimate = Callable[..., Estimate]
"""Constructor of an estimate, with the fields that all estimates of a point have in common."""


def play_point(point: Point[GameStudy], samples: GameSamples, *, progress: Progress) -> PointPlayed:
    """Play all games of one point, and compute its certificates."""
    start, study = monotonic(), point.study
    mechanism = resolve_mechanism(study.mechanism, samples.pools.clients.shape[1])
    contest = Contest(samples.pools, rules_of(study), study.seed, mechanism.randomisers)
    estimate = partial(Estimate, topic=figures.GAMES, point=point.label)
    if study.rounds.play == "rounds":
        estimate = partial(estimate, defense=study.rounds.defense)
        results = _play_in_rounds(contest, study, samples, estimate, progress)
    else:
        estimate = partial(estimate, defense=study.mechanism.name)
        results = _play_by_signs(contest, study, mechanism, estimate, progress)
    return PointPlayed(
        label=point.label,
        settings=settings_as_text(point.changes),
        samples=samples.description,
        mechanism=study.mechanism.name,
        shared_mask=mechanism.shared_mask,
        delta=mechanism.delta,
        targets=study.game.targets,
        batch=study.game.batch,
        estimates=results.estimates,
        certificates=list(results.certificates),
        spread=results.spread,
        training=results.training,
        rounds=results.rounds,
        seconds=round(monotonic() - start, 1),
    )


def settings_as_text(settings: Mapping[str, object]) -> dict[str, str]:
    """Convert the values of settings to text, for a record."""
    return {name: clean_text(str(value)) for name, value in settings.items()}


class _GameResults(NamedTuple):
    """Fields of :class:`PointPlayed` that depend on how the games are played."""

    estimates: list[Estimate]
    certificates: Sequence[TargetCertificate] = ()
    spread: Spread | None = None
    training: TrainingLength | None = None
    rounds: InRounds | None = None


def _play_by_signs(
    contest: Contest,
    study: GameStudy,
    mechanism: GameMechanism,
    estimate: MakeEstimate,
    progress: Progress,
) -> _GameResults:
    """Play games in which the server reads the sign of the neuron's value."""
    played_chunks, done = list[GameOutcomes](), 0
    for chunks in _chunks_of_targets(contest, study, 32):
        progress("games", done, study.game.games)
        played_chunks += run_in_parallel(contest.play_some, chunks)
        done += sum(sum(chunk.values()) for chunk in chunks)
    progress("games", done, study.game.games)
    played, batch = GameOutcomes.concatenate(played_chunks), study.game.batch
    success = _success_of(played.inferred_in, played.contains_target, delta=mechanism.delta)
    max_success = max_success_rate(mechanism.actual_epsilon, mechanism.delta)
    fires_for_target = proportion(int(played.by_target.sum()), int(played.contains_target.sum()))
    claimed = mechanism.nominal_epsilon
    claimed_success = None if claimed is None else max_success_rate(claimed, mechanism.delta)
    without_limits = {
        figures.PREDICTED_NEGATIVES: _predicted_tnr(played, batch),
        figures.CLAIMED_EPSILON: claimed,
        figures.CLAIMED_SUCCESS: claimed_success,
        figures.FIT_AUC: float(played.fit.mean()),
        figures.HELD_OUT: float(played.held_out.mean()),
    }
    estimates = [
        *success_estimates(success, estimate, max_success),
        rate_estimate(estimate, figures.FIRES_FOR_TARGET, fires_for_target),
        _fires_for_others(estimate, played, batch, mechanism.shared_mask),
        _actual_epsilon(estimate, mechanism),
        *_estimates_without_limits(estimate, without_limits),
    ]
    training = None
    if study.neuron.check:
        epochs, training = _training_length(estimate, played)
        estimates.append(epochs)
    new_values = _values_on_new_copies(contest, study, mechanism)
    return _GameResults(
        estimates,
        [_certificate(values, mechanism, played, batch) for values in new_values],
        _spread_of(new_values[0]) if new_values else None,
        training,
    )


def _play_in_rounds(
    contest: Contest,
    study: GameStudy,
    samples: GameSamples,
    estimate: MakeEstimate,
    progress: Progress,
) -> _GameResults:
    """Play games in which the server sends planted models and scores uploads."""
    settings, total, done = study.rounds, study.game.games, 0
    games = RoundGames(contest, samples.labels, settings)
    played_targets, fits, held_out = list[PlayedInRounds](), list[Tensor](), list[Tensor]()
    for chunks in _chunks_of_targets(contest, study, 16):
        # Neurons are trained in parallel. Rounds are played one after the other, because they use
        # torch's global generator.
        trained_chunks = run_in_parallel(lambda chunk: contest.train_targets(list(chunk)), chunks)
        for chunk, trained in zip(chunks, trained_chunks, strict=True):
            fits.append(trained.fit)
            held_out.append(trained.held_out)
            for index, (number, count) in enumerate(chunk.items()):
                progress("games", done, total)
                played_targets.append(games.play(number, trained.neurons.only(index), count))
                done += count
    progress("games", done, total)
    played = PlayedInRounds(*map(torch.cat, zip(*played_targets, strict=True)))
    success = _success_of(played.inferred_in, played.contains_target)
    sign_success = _success_of(played.by_signs, played.contains_target).adv
    n_with_target = int(played.contains_target.sum())
    n_planted_clients = settings.clients if settings.others == "planted" else 1
    n_samples = total * study.game.batch * n_planted_clients
    distance = _max_distance(study)
    without_limits = {
        figures.FIT_AUC: float(torch.cat(fits).mean()),
        figures.HELD_OUT: float(torch.cat(held_out).mean()),
        figures.PLANTED_SHARE: float(played.shares.mean()),
        figures.DISTANCE: distance,
        figures.EXPECTED_SUCCESS: _expected_success(played.distances),
    }
    sign_estimate = estimate(
        metric=figures.SIGN_SUCCESS,
        n_members=n_with_target,
        n_nonmembers=total - n_with_target,
        **asdict(sign_success),
    )
    max_success = 1.0 if distance is None else gaussian_success(distance)
    fires_for_target = proportion(int(played.by_target.sum()), n_with_target)
    fires_for_others = proportion(int(played.by_others.sum()), n_samples - n_with_target)
    rounds = settings.model_dump(include=InRounds.model_fields.keys() - {"options"})
    return _GameResults(
        [
            *success_estimates(success, estimate, max_success),
            rate_estimate(estimate, figures.FIRES_FOR_TARGET, fires_for_target),
            rate_estimate(estimate, figures.FIRES_FOR_OTHERS, fires_for_others),
            sign_estimate,
            *_estimates_without_limits(estimate, without_limits),
        ],
        rounds=InRounds(
            **rounds, options=settings_as_text(settings.options), simulated=games.simulated
        ),
    )


def _chunks_of_targets(
    contest: Contest, study: GameStudy, n_chunks: int
) -> Iterator[Sequence[Mapping[int, int]]]:
    """Yield lists of up to ``n_chunks`` chunks, each of which maps targets to numbers of games.

    The chunks do not depend on the number of cores, so that results do not depend on it either.
    """
    games_by_target = list(split_games(study.game.targets, study.game.games))
    # This access computes the cached property once, before threads use it.
    assert contest.standard is not None
    for first in range(0, len(games_by_target), n_chunks):
        yield games_by_target[first : first + n_chunks]


def _estimates_without_limits(
    estimate: MakeEstimate, values: Mapping[str, float | None]
) -> list[Estimate]:
    return [
        estimate(metric=name, value=value) for name, value in values.items() if value is not None
    ]


def _actual_epsilon(estimate: MakeEstimate, mechanism: GameMechanism) -> Estimate:
    """Return the exact epsilon, which is computed from the probabilities of the mechanism."""
    actual = mechanism.actual_epsilon
    if math.isinf(actual):
        return estimate(metric=figures.ACTUAL_EPSILON, value=None, note="there is no bound")
    method = f"of the mechanism itself, delta {mechanism.delta:g}"
    return estimate(metric=figures.ACTUAL_EPSILON, value=actual, high=actual, method=method)


def raise_if_invalid_settings(study: GameStudy) -> None:
    """Raise if no games can be played with these settings."""
    resolve_mechanism(study.mechanism, 1)
    rules_of(study)
    if study.rounds.play == "rounds":
        defense_of(study.rounds)


def raise_if_too_few_samples(study: GameStudy, draw: DrawnSamples) -> None:
    """Raise if the games need more samples than were drawn."""
    features = draw.samples.features.flatten(1)
    pools = SampleSources(features[: draw.n_clients], features[draw.n_clients :])
    Contest(pools, rules_of(study), study.seed)


def rules_of(study: GameStudy) -> GameRules:
    """Return the rules of games that a study sets."""
    game = study.game
    copies, background_copies = game.copies, game.background_copies
    validation_copies = game.validation_copies
    if study.mechanism.name == NO_MECHANISM:
        # Without noise, all copies are equal, so one copy is enough, unless batches need more.
        copies = copies if study.neuron.batch_size else 1
        background_copies, validation_copies = 1, min(1, validation_copies)
    return GameRules(
        batch=game.batch,
        copies=copies,
        background=game.background,
        background_copies=background_copies,
        validation=game.validation,
        validation_copies=validation_copies,
        training=NeuronTraining(**study.neuron.model_dump()),
    )


def _training_length(
    estimate: MakeEstimate, played: GameOutcomes
) -> tuple[Estimate, TrainingLength]:
    """Return the mean number of epochs over targets, and its range."""
    epochs = played.epochs.tolist()
    epochs_estimate = partial(estimate, metric=figures.EPOCHS, samples=len(epochs))
    length = TrainingLength(
        least=min(epochs), most=max(epochs), stopped=int(played.separated.sum())
    )
    if len(epochs) == 1:
        return epochs_estimate(value=float(epochs[0])), length
    mean = mean_of_units([float(n) for n in epochs], units="targets", within=(0.0, math.inf))
    limits = {"low": mean.low, "high": mean.high, "method": mean.method}
    return epochs_estimate(value=mean.value, **limits), length


def _fires_for_others(
    estimate: MakeEstimate, played: GameOutcomes, batch: int, shared_mask: bool
) -> Estimate:
    """Compute the fraction of other samples for which neurons fire.

    If the samples of a batch share a noise mask, a neuron fires for all of them or for none. The
    limits then treat games, and not samples, as independent.
    """
    n_fired = int(played.by_others.sum())
    rate = proportion(
        n_fired, len(played.contains_target) * batch - int(played.contains_target.sum())
    )
    if not shared_mask:
        return rate_estimate(estimate, figures.FIRES_FOR_OTHERS, rate)
    fractions = played.by_others / (batch - played.contains_target.long()).clamp(min=1)
    mean = mean_of_units(fractions.tolist(), units="games", within=(0.0, 1.0))
    if mean.low is not None and mean.high is not None:
        rate = replace(rate, low=min(mean.low, rate.low), high=max(mean.high, rate.high))
    return rate_estimate(estimate, figures.FIRES_FOR_OTHERS, rate, figures.SHARED_MASK_METHOD)


def _predicted_tnr(played: GameOutcomes, batch: int) -> float | None:
    """Predict the TNR from how often each target's neuron fires for other samples."""
    n_games = torch.bincount(played.target)
    n_fired = torch.bincount(played.target, played.by_others.double()).long()
    n_targets = torch.bincount(played.target[played.contains_target], minlength=len(n_games))
    n_others = n_games * batch - n_targets
    return predict_tnr(n_fired.tolist(), n_others.tolist(), batch=batch)


class _NewValues(NamedTuple):
    """Values of a target's neuron on new randomised samples."""

    target: int
    neuron: Neurons
    of_target: Float[Tensor, " copies"]
    of_others: Float[Tensor, " samples"]


def _values_on_new_copies(
    contest: Contest, study: GameStudy, mechanism: GameMechanism
) -> list[_NewValues]:
    """Return values for certificates; empty if samples have no noise, or share one noise mask."""
    if study.mechanism.name == NO_MECHANISM or mechanism.shared_mask:
        return []
    count, clients = study.game.certificate_copies, contest.pools.clients
    new_values = []
    for number in range(min(study.game.certified, study.game.targets)):
        neuron = contest.neurons([number])
        rng = seeded(study.seed, "certificate", number)
        other_samples = clients[contest.others(number, (count,), rng)]
        copies_of_target = clients[contest.target(number)].expand(count, -1)
        values = [
            neuron.values(mechanism.randomisers.server(samples, rng)[None])[0]
            for samples in (copies_of_target, other_samples)
        ]
        new_values.append(_NewValues(number, neuron, *values))
    return new_values


def _certificate(
    new_values: _NewValues, mechanism: GameMechanism, played: GameOutcomes, batch: int
) -> TargetCertificate:
    """Return the certificate of one target's games, with their outcomes."""
    sound_width = None
    if math.isfinite(mechanism.largest):
        limit = torch.tensor(mechanism.largest)
        sound_width = float(range_over_box(new_values.neuron, -limit, limit).width)
    of_target, of_others = new_values.of_target, new_values.of_others
    target_mean, others_mean = _mean(of_target, sound_width), _mean(of_others, sound_width)
    # The published certificate uses the range of the observed values, which is not a proof.
    published = signs_of_means(
        BoundedMean(target_mean.value, len(of_target), target_mean.observed_width),
        BoundedMean(others_mean.value, len(of_others), others_mean.observed_width),
    )
    sound = None
    if sound_width is not None:
        sound = signs_of_means(
            BoundedMean(target_mean.value, len(of_target), sound_width),
            BoundedMean(others_mean.value, len(of_others), sound_width),
        )
    game = certify(
        int((of_target > 0).sum()),
        len(of_target),
        int((of_others > 0).sum()),
        len(of_others),
        batch=batch,
    )
    return TargetCertificate(
        delta_sound=sound.delta if sound else None,
        failure_sound=sound.failure if sound else None,
        delta_observed=published.delta,
        low=game.low,
        high=game.high,
        played=_success_for(played, new_values.target),
        of_target=target_mean,
        of_others=others_mean,
    )


def _mean(values: Tensor, sound_width: float | None) -> NeuronMean:
    values = values.double()
    return NeuronMean(
        value=float(values.mean()),
        values=len(values),
        observed_width=float(values.max() - values.min()),
        sound_width=sound_width,
    )


def _success_for(played: GameOutcomes, target: int) -> float | None:
    """Return the server's success (Adv) in the games of one target; None without both outcomes."""
    is_game = played.target == target
    true_positives = played.inferred_in[is_game & played.contains_target]
    true_negatives = ~played.inferred_in[is_game & ~played.contains_target]
    if not (len(true_positives) and len(true_negatives)):
        return None
    rates = [true_positives.double().mean(), true_negatives.double().mean()]
    return float(torch.stack(rates).mean())


def _spread_of(new_values: _NewValues) -> Spread:
    """Compute histograms of the values of a target and of other samples, with common edges."""
    both_values = (new_values.of_target.double(), new_values.of_others.double())
    lowest, highest = (float(value) for value in torch.cat(both_values).aminmax())
    edges = torch.linspace(lowest, highest + 1e-9, _N_BINS + 1).double()
    target, other_counts = (
        torch.histogram(values, edges).hist.long().tolist() for values in both_values
    )
    return Spread(edges=edges.tolist(), of_target=target, of_others=other_counts)


def _max_distance(study: GameStudy) -> float | None:
    """Bound the distance by which one sample can change the server's sum; None if unbounded.

    If a sample is replaced, a sum of clipped gradients changes by at most two clipping norms. The
    same holds for an upload that is clipped as a whole. The noise of a sum is that of all its
    clients.
    """
    decomposed = decompose_noise(defense_of(study.rounds), study.game.batch)
    if decomposed is None or not decomposed.noise_multiplier:
        return None
    return clipped_distance(
        decomposed.noise_multiplier, rounds=study.rounds.averaged, clients=study.rounds.clients
    )


def _expected_success(distances: Tensor) -> float | None:
    """Compute the mean success that noise allows if neurons fire only for targets."""
    if bool(distances.isnan().any()):
        return None
    successes = [gaussian_success(float(distance)) for distance in distances]
    return sum(successes) / len(successes)


def _success_of(
    inferred_in: Bool[Tensor, " games"],
    contains_target: Bool[Tensor, " games"],
    *,
    delta: float = 0.0,
) -> GameSuccess:
    n_with_target, n_without_target = int(contains_target.sum()), int((~contains_target).sum())
    if not (n_with_target and n_without_target):
        raise BadInput(
            f"of {len(inferred_in)} games, {n_with_target} had the target in the batch, but "
            "estimates need games with and without it; raise game.games"
        )
    true_positives, true_negatives = (
        int(inferred_in[contains_target].sum()),
        int((~inferred_in[~contains_target]).sum()),
    )
    return game_success(
        true_positives, n_with_target, true_negatives, n_without_target, delta=delta
    )


def success_estimates(
    success: GameSuccess, estimate: MakeEstimate, max_success: float
) -> list[Estimate]:
    """Return estimates of the success, of both rates, and of the epsilon that both rates prove."""
    over_all_games = partial(estimate, n_members=success.tpr.total, n_nonmembers=success.tnr.total)
    proven, method = success.epsilon.value, success.epsilon.method
    return [
        over_all_games(metric=figures.SUCCESS, ceiling=max_success, **asdict(success.adv)),
        rate_estimate(estimate, figures.TRUE_POSITIVES, success.tpr),
        rate_estimate(estimate, figures.TRUE_NEGATIVES, success.tnr),
        over_all_games(metric=figures.PROVEN_EPSILON, value=proven, low=proven, method=method),
    ]


def rate_estimate(
    estimate: MakeEstimate, metric: str, rate: Proportion, method: str = figures.EXACT_METHOD
) -> Estimate:
    """Return a rate as an estimate, with its number of games or samples."""
    counts_members = metric in (figures.TRUE_POSITIVES, figures.FIRES_FOR_TARGET, DETECTION_RATE)
    size = {"n_members" if counts_members else "n_nonmembers": rate.total}
    limits = {"value": rate.value, "low": rate.low, "high": rate.high}
    return estimate(metric=metric, method=method, **limits, **size)
