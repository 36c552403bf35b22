"""Play of one point of a study of games, and the figures that follow from its outcomes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from time import monotonic
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.attacks.ami import NeuronTraining, Rules
from fedaudit.attacks.ami.game import Contest, Played, Pools, split_games
from fedaudit.attacks.ami.plant import Neurons, range_over_box
from fedaudit.core.errors import BadInput
from fedaudit.core.progress import Progress
from fedaudit.core.seeds import seeded
from fedaudit.fl.training.parallel import run_in_parallel
from fedaudit.games.mechanism import NO_MECHANISM, Given, resolve_mechanism
from fedaudit.games.records import Dealt, Drawn
from fedaudit.games.rounds import PlayedInRounds, RoundGames, decompose_noise, defense_of
from fedaudit.metrics.games import (
    BoundedMean,
    GameSuccess,
    certify,
    clipped_distance,
    game_success,
    gaussian_success,
    most_success,
    predicted_silence,
    signs_of_means,
)
from fedaudit.metrics.intervals import mean_of_units
from fedaudit.metrics.rate_limits import Share, share
from fedaudit.plan.file import Point
from fedaudit.plan.games import GameStudy
from fedaudit.results import games as figures
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import (
    DETECTED,
    InRounds,
    NeuronMean,
    PointPlayed,
    Spread,
    TargetCertificate,
    TrainingLength,
)
from fedaudit.results.text import plain

_BINS = 40
"""Number of bins of a histogram of a neuron's values."""

At = Callable[..., Estimate]
"""Function that constructs an estimate of a point."""


def play_point(point: Point[GameStudy], dealt: Dealt, *, progress: Progress) -> PointPlayed:
    """Play all games of one point, and compute its certificates."""
    begun, study = monotonic(), point.study
    mechanism = resolve_mechanism(study.mechanism, dealt.pools.clients.shape[1])
    contest = Contest(dealt.pools, rules_of(study), study.seed, mechanism.randomisers)
    estimate = partial(Estimate, topic=figures.GAMES, point=point.label)
    if study.rounds.play == "rounds":
        estimate = partial(estimate, defense=study.rounds.defense)
        parts = _in_rounds(contest, study, dealt, estimate, progress)
    else:
        estimate = partial(estimate, defense=study.mechanism.name)
        parts = _by_signs(contest, study, mechanism, estimate, progress)
    return PointPlayed(
        label=point.label,
        settings=texts_of(point.changes),
        records=dealt.words,
        mechanism=study.mechanism.name,
        shared_mask=mechanism.shared_mask,
        delta=mechanism.delta,
        targets=study.game.targets,
        batch=study.game.batch,
        estimates=parts.estimates,
        certificates=list(parts.certificates),
        spread=parts.spread,
        training=parts.training,
        rounds=parts.rounds,
        seconds=round(monotonic() - begun, 1),
    )


def texts_of(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as texts for a record."""
    return {name: plain(str(value)) for name, value in settings.items()}


class _Found(NamedTuple):
    """Parts of :class:`PointPlayed` that depend on how its games are played."""

    estimates: list[Estimate]
    certificates: Sequence[TargetCertificate] = ()
    spread: Spread | None = None
    training: TrainingLength | None = None
    rounds: InRounds | None = None


def _by_signs(
    contest: Contest, study: GameStudy, mechanism: Given, estimate: At, progress: Progress
) -> _Found:
    parts, done = list[Played](), 0
    for chunks in _chunks_of_targets(contest, study, 32):
        progress("games", done, study.game.games)
        parts += run_in_parallel(contest.play_some, chunks)
        done += sum(sum(chunk.values()) for chunk in chunks)
    progress("games", done, study.game.games)
    played, batch = Played.joined(parts), study.game.batch
    fresh = _values_on_fresh_copies(contest, study, mechanism)
    success = _success_of(played.said_in, played.was_in, delta=mechanism.delta)
    by_target = share(int(played.by_target.sum()), int(played.was_in.sum()))
    claimed, actual = mechanism.nominal_epsilon, mechanism.actual_epsilon
    epochs, training = _training(estimate, played) if study.neuron.check else ([], None)
    exact = {
        figures.PREDICTED_NEGATIVES: _predicted(played, batch),
        figures.CLAIMED: claimed,
        figures.CLAIMED_SUCCESS: None
        if claimed is None
        else most_success(claimed, mechanism.delta),
        figures.FIT: float(played.fit.mean()),
        figures.HELD_OUT: float(played.held_out.mean()),
    }
    return _Found(
        [
            *success_estimates(success, estimate, most_success(actual, mechanism.delta)),
            share_estimate(estimate, figures.FIRES_FOR_TARGET, by_target),
            _by_others(estimate, played, batch, mechanism.shared_mask),
            _actual(estimate, actual if math.isfinite(actual) else None, mechanism.delta),
            *_without_limits(estimate, exact),
            *epochs,
        ],
        [_certificate(values, mechanism, played, batch) for values in fresh],
        _spread_of(fresh[0]) if fresh else None,
        training,
    )


def _in_rounds(
    contest: Contest, study: GameStudy, dealt: Dealt, estimate: At, progress: Progress
) -> _Found:
    how, total, done = study.rounds, study.game.games, 0
    games = RoundGames(contest, dealt.labels, how)
    parts, fits, held_out = list[PlayedInRounds](), list[Tensor](), list[Tensor]()
    for chunks in _chunks_of_targets(contest, study, 16):
        # Neurons are trained in parallel, but rounds are played one by one: they share a generator.
        trained = run_in_parallel(lambda chunk: contest.train_targets(list(chunk)), chunks)
        for chunk, trained_chunk in zip(chunks, trained, strict=True):
            fits.append(trained_chunk.fit)
            held_out.append(trained_chunk.held_out)
            for place, (number, count) in enumerate(chunk.items()):
                progress("games", done, total)
                parts.append(games.play(number, trained_chunk.neurons.at(place), count))
                done += count
    progress("games", done, total)
    played = PlayedInRounds(*(torch.cat(part) for part in zip(*parts, strict=True)))
    success = _success_of(played.said_in, played.was_in)
    by_signs = _success_of(played.by_signs, played.was_in).adv
    n_with_target = int(played.was_in.sum())
    met = total * study.game.batch * (how.clients if how.others == "planted" else 1)
    distance = _most_distance(study)
    exact = {
        figures.FIT: float(torch.cat(fits).mean()),
        figures.HELD_OUT: float(torch.cat(held_out).mean()),
        figures.PLANTED_SHARE: float(played.shares.mean()),
        figures.DISTANCE: distance,
        figures.EXPECTED_SUCCESS: _expected(played.distances),
    }
    signs = estimate(
        metric=figures.SIGN_SUCCESS,
        n_members=n_with_target,
        n_nonmembers=total - n_with_target,
        **asdict(by_signs),
    )
    largest = 1.0 if distance is None else gaussian_success(distance)
    by_target = share(int(played.by_target.sum()), n_with_target)
    by_others = share(int(played.by_others.sum()), met - n_with_target)
    rounds = how.model_dump(include=InRounds.model_fields.keys() - {"options"})
    return _Found(
        [
            *success_estimates(success, estimate, largest),
            share_estimate(estimate, figures.FIRES_FOR_TARGET, by_target),
            share_estimate(estimate, figures.FIRES_FOR_OTHERS, by_others),
            signs,
            *_without_limits(estimate, exact),
        ],
        rounds=InRounds(**rounds, options=texts_of(how.options), simulated=games.simulated),
    )


def _chunks_of_targets(
    contest: Contest, study: GameStudy, chunks: int
) -> Iterator[Sequence[Mapping[int, int]]]:
    """Yield games of each target in chunks, whose size does not depend on the number of cores."""
    games_by_target = list(split_games(study.game.targets, study.game.games))
    # Access computes the cached property once, before threads use it.
    assert contest.standard is not None
    for first in range(0, len(games_by_target), chunks):
        yield games_by_target[first : first + chunks]


def _without_limits(estimate: At, values: Mapping[str, float | None]) -> list[Estimate]:
    return [
        estimate(metric=name, value=value) for name, value in values.items() if value is not None
    ]


def _actual(estimate: At, actual: float | None, delta: float) -> Estimate:
    """Return the exact epsilon, computed from the probabilities of the mechanism."""
    if actual is None:
        return estimate(metric=figures.ACTUAL, value=None, note="there is no bound")
    method = f"of the mechanism itself, delta {delta:g}"
    return estimate(metric=figures.ACTUAL, value=actual, high=actual, method=method)


def refuse_misfit(study: GameStudy) -> None:
    """Raise if the settings do not define a playable game."""
    resolve_mechanism(study.mechanism, 1)
    rules_of(study)
    if study.rounds.play == "rounds":
        defense_of(study.rounds)


def refuse_too_few(study: GameStudy, drawn: Drawn) -> None:
    """Raise if the games need more records than were drawn."""
    flat = drawn.samples.features.flatten(1)
    Contest(Pools(flat[: drawn.clients], flat[drawn.clients :]), rules_of(study), study.seed)


def rules_of(study: GameStudy) -> Rules:
    """Return the rules of games that a study sets."""
    game, without = study.game, study.mechanism.name == NO_MECHANISM
    # Without noise all copies are equal, so one is enough. Each batch needs a copy, however.
    copies = 1 if without and not study.neuron.batch_size else game.copies
    return Rules(
        batch=game.batch,
        copies=copies,
        background=game.background,
        background_copies=1 if without else game.background_copies,
        validation=game.validation,
        validation_copies=min(1, game.validation_copies) if without else game.validation_copies,
        training=NeuronTraining(**study.neuron.model_dump()),
    )


def _training(estimate: At, played: Played) -> tuple[list[Estimate], TrainingLength]:
    epochs = played.epochs.tolist()
    if len(epochs) > 1:
        mean = mean_of_units([float(n) for n in epochs], units="targets", within=(0.0, math.inf))
        limits: dict[str, object] = {"low": mean.low, "high": mean.high, "method": mean.method}
        value = mean.value
    else:
        value, limits = float(epochs[0]), {}
    length = TrainingLength(
        least=min(epochs), most=max(epochs), stopped=int(played.separated.sum())
    )
    return [estimate(metric=figures.EPOCHS, value=value, samples=len(epochs), **limits)], length


def _by_others(estimate: At, played: Played, batch: int, shared_mask: bool) -> Estimate:
    """Compute how often neurons fire for other records.

    If the records of a batch share a noise mask, neurons fire for all of them or for none, so
    games are the independent units.
    """
    fired = int(played.by_others.sum())
    rate = share(fired, len(played.was_in) * batch - int(played.was_in.sum()))
    if not shared_mask:
        return share_estimate(estimate, figures.FIRES_FOR_OTHERS, rate)
    shares = played.by_others / (batch - played.was_in.long()).clamp(min=1)
    games = mean_of_units(shares.tolist(), units="games", within=(0.0, 1.0))
    low, high = (rate.value if end is None else end for end in (games.low, games.high))
    rate = replace(rate, low=min(low, rate.low), high=max(high, rate.high))
    return share_estimate(estimate, figures.FIRES_FOR_OTHERS, rate, figures.SHARED_MASK_METHOD)


def _predicted(played: Played, batch: int) -> float | None:
    """Predict the TNR from records other than the target, target by target."""
    games = torch.bincount(played.target)
    fired = torch.bincount(played.target, played.by_others.double()).long()
    records = games * batch - torch.bincount(played.target[played.was_in], minlength=len(games))
    return predicted_silence(fired.tolist(), records.tolist(), batch=batch)


class _Fresh(NamedTuple):
    """Values of a target's neuron on new randomised records."""

    target: int
    neuron: Neurons
    of_target: Float[Tensor, " copies"]
    of_others: Float[Tensor, " records"]


def _values_on_fresh_copies(contest: Contest, study: GameStudy, mechanism: Given) -> list[_Fresh]:
    """Return values for certificates; none without noise, or if records share it."""
    if study.mechanism.name == NO_MECHANISM or mechanism.shared_mask:
        return []
    count, clients = study.game.certificate_copies, contest.pools.clients
    fresh = []
    for number in range(min(study.game.certified, study.game.targets)):
        neuron, target = contest.neurons([number]), contest.target(number)
        rng = seeded(study.seed, "certificate", number)
        chosen = contest.others(number, (count,), rng)
        values = [
            neuron.values(mechanism.randomisers.server(records, rng)[None])[0]
            for records in (clients[target].expand(count, -1), clients[chosen])
        ]
        fresh.append(_Fresh(number, neuron, *values))
    return fresh


def _certificate(fresh: _Fresh, mechanism: Given, played: Played, batch: int) -> TargetCertificate:
    """Return the certificate of one target's games, with their outcomes."""
    sound_width = None
    if math.isfinite(mechanism.largest):
        end = torch.tensor(mechanism.largest)
        sound_width = float(range_over_box(fresh.neuron, -end, end).width)
    means = [_mean(values, sound_width) for values in (fresh.of_target, fresh.of_others)]
    printed = signs_of_means(*(BoundedMean(m.value, m.values, m.sample_width) for m in means))
    sound = None
    if sound_width is not None:
        sound = signs_of_means(*(BoundedMean(m.value, m.values, sound_width) for m in means))
    fired = [int((values > 0).sum()) for values in (fresh.of_target, fresh.of_others)]
    game = certify(fired[0], means[0].values, fired[1], means[1].values, batch=batch)
    return TargetCertificate(
        delta_sound=sound.delta if sound else None,
        failure_sound=sound.failure if sound else None,
        delta_sample=printed.delta,
        low=game.low,
        high=game.high,
        played=_adv_of(played, fresh.target),
        of_target=means[0],
        of_others=means[1],
    )


def _mean(values: Tensor, sound_width: float | None) -> NeuronMean:
    exact = values.double()
    return NeuronMean(
        value=float(exact.mean()),
        values=len(exact),
        sample_width=float(exact.max() - exact.min()),
        sound_width=sound_width,
    )


def _adv_of(played: Played, target: int) -> float | None:
    mine = played.target == target
    right = [
        (played.said_in[mine & side] == kind).double().mean()
        for kind, side in ((True, played.was_in), (False, ~played.was_in))
    ]
    adv = float(torch.stack(right).mean())
    return None if math.isnan(adv) else adv


def _spread_of(fresh: _Fresh) -> Spread:
    """Compute histograms of the values of a target and of others, with common edges."""
    both = torch.cat([fresh.of_target, fresh.of_others]).double()
    edges = torch.linspace(float(both.min()), float(both.max()) + 1e-9, _BINS + 1).double()
    target, others = (
        torch.histogram(values.double(), edges).hist.long().tolist()
        for values in (fresh.of_target, fresh.of_others)
    )
    return Spread(edges=edges.tolist(), of_target=target, of_others=others)


def _most_distance(study: GameStudy) -> float | None:
    """Bound the distance by which one record moves the server's sum; None if unproven.

    Replacing a record moves a sum of clipped gradients, or an upload that is clipped as a whole, by
    two clips. A sum has the noise of all its clients.
    """
    decomposed = decompose_noise(defense_of(study.rounds), study.game.batch)
    if decomposed is None or not decomposed.noise_multiplier:
        return None
    return clipped_distance(
        decomposed.noise_multiplier, rounds=study.rounds.averaged, summed=study.rounds.clients
    )


def _expected(distances: Tensor) -> float | None:
    """Compute the mean success that noise allows if neurons fire for targets alone."""
    if bool(distances.isnan().any()):
        return None
    each = [gaussian_success(float(distance)) for distance in distances]
    return sum(each) / len(each)


def _success_of(
    said_in: Bool[Tensor, " games"], was_in: Bool[Tensor, " games"], *, delta: float = 0.0
) -> GameSuccess:
    n_with_target, n_without_target = int(was_in.sum()), int((~was_in).sum())
    if not (n_with_target and n_without_target):
        raise BadInput(
            f"of {len(said_in)} games, {n_with_target} had the target in the batch, but figures "
            "need games of both kinds; raise game.games"
        )
    right = int(said_in[was_in].sum()), int((~said_in[~was_in]).sum())
    return game_success(right[0], n_with_target, right[1], n_without_target, delta=delta)


def success_estimates(success: GameSuccess, estimate: At, largest: float) -> list[Estimate]:
    """Return success, both rates and the epsilon that they prove."""
    of_both = partial(estimate, n_members=success.tpr.total, n_nonmembers=success.tnr.total)
    proven, method = success.epsilon.value, success.epsilon.method
    return [
        of_both(metric=figures.SUCCESS, ceiling=largest, **asdict(success.adv)),
        share_estimate(estimate, figures.TRUE_POSITIVES, success.tpr),
        share_estimate(estimate, figures.TRUE_NEGATIVES, success.tnr),
        of_both(metric=figures.PROVEN, value=proven, low=proven, method=method),
    ]


def share_estimate(
    estimate: At, metric: str, share: Share, method: str = figures.EXACT_METHOD
) -> Estimate:
    """Return a share as an estimate, with its count of games or records."""
    size = (
        "n_members"
        if metric in (figures.TRUE_POSITIVES, figures.FIRES_FOR_TARGET, DETECTED)
        else "n_nonmembers"
    )
    limits = {"value": share.value, "low": share.low, "high": share.high}
    return estimate(metric=metric, method=method, **limits, **{size: share.total})
