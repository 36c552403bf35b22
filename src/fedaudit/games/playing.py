"""One point of a study of games: played by signs or in rounds, counted, held against its claims."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from time import monotonic
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.attacks.ami.game import Contest, Played, Pools, Rules, shared_out
from fedaudit.attacks.ami.plant import Neurons, range_over_box
from fedaudit.attacks.ami.train import NeuronTraining
from fedaudit.core.errors import BadInput
from fedaudit.core.progress import Progress
from fedaudit.core.seeds import seeded
from fedaudit.fl.training.parallel import side_by_side
from fedaudit.games.mechanism import NO_MECHANISM, Given, given
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
"""Of a histogram of a neuron's values."""

At = Callable[..., Estimate]
"""Makes an estimate at a point."""


def play_point(point: Point[GameStudy], dealt: Dealt, *, progress: Progress) -> PointPlayed:
    """All games of one point, with its certificates.

    Args:
        point: Its label and settings.
        dealt: What is played with.
        progress: Called with (phase, done, total) games.

    Raises:
        BadInput: Settings that make no game, or games of one kind only.
    """
    begun, study = monotonic(), point.study
    mechanism = given(study.mechanism, dealt.pools.clients.shape[1])
    contest = Contest(dealt.pools, rules_of(study), study.seed, mechanism.randomisers)
    at = partial(Estimate, topic=figures.GAMES, point=point.label)
    if study.rounds.play == "rounds":
        at = partial(at, defense=study.rounds.defense)
        found = _in_rounds(contest, study, dealt, at, progress)
    else:
        at = partial(at, defense=study.mechanism.name)
        found = _by_signs(contest, study, mechanism, at, progress)
    return PointPlayed(
        label=point.label,
        settings=texts_of(point.changes),
        records=dealt.words,
        mechanism=study.mechanism.name,
        shared_mask=mechanism.shared_mask,
        delta=mechanism.delta,
        targets=study.game.targets,
        batch=study.game.batch,
        estimates=found.estimates,
        certificates=list(found.certificates),
        spread=found.spread,
        training=found.training,
        rounds=found.rounds,
        seconds=round(monotonic() - begun, 1),
    )


def texts_of(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as a record has them."""
    return {name: plain(str(value)) for name, value in settings.items()}


class _Found(NamedTuple):
    """Parts of :class:`PointPlayed` that depend on how its games are played."""

    estimates: list[Estimate]
    certificates: Sequence[TargetCertificate] = ()
    spread: Spread | None = None
    training: TrainingLength | None = None
    rounds: InRounds | None = None


def _by_signs(
    contest: Contest, study: GameStudy, mechanism: Given, at: At, progress: Progress
) -> _Found:
    parts, done = list[Played](), 0
    for chunks in _some_targets(contest, study, 32):
        progress("games", done, study.game.games)
        parts += side_by_side(contest.play_some, chunks)
        done += sum(sum(chunk.values()) for chunk in chunks)
    progress("games", done, study.game.games)
    played, batch = Played.joined(parts), study.game.batch
    fresh = _fresh_values(contest, study, mechanism)
    success = _success_of(played.said_in, played.was_in, delta=mechanism.delta)
    by_target = share(int(played.by_target.sum()), int(played.was_in.sum()))
    claimed, actual = mechanism.nominal_epsilon, mechanism.actual_epsilon
    epochs, training = _training(at, played) if study.neuron.check else ([], None)
    known = {
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
            *success_estimates(success, at, most_success(actual, mechanism.delta)),
            counted(at, figures.FIRES_FOR_TARGET, by_target),
            _by_others(at, played, batch, mechanism.shared_mask),
            _actual(at, actual if math.isfinite(actual) else None, mechanism.delta),
            *_known(at, known),
            *epochs,
        ],
        [_certificate(one, mechanism, played, batch) for one in fresh],
        _spread_of(fresh[0]) if fresh else None,
        training,
    )


def _in_rounds(
    contest: Contest, study: GameStudy, dealt: Dealt, at: At, progress: Progress
) -> _Found:
    how, total, done = study.rounds, study.game.games, 0
    games = RoundGames(contest, dealt.labels, how)
    parts, fits, held_out = list[PlayedInRounds](), list[Tensor](), list[Tensor]()
    for chunks in _some_targets(contest, study, 16):
        # Neurons side by side, rounds one after the other: they draw from one generator.
        trained = side_by_side(lambda chunk: contest.made(list(chunk)), chunks)
        for chunk, made in zip(chunks, trained, strict=True):
            fits.append(made.fit)
            held_out.append(made.held_out)
            for place, (number, count) in enumerate(chunk.items()):
                progress("games", done, total)
                parts.append(games.play(number, made.neurons.at(place), count))
                done += count
    progress("games", done, total)
    played = PlayedInRounds(*(torch.cat(part) for part in zip(*parts, strict=True)))
    success = _success_of(played.said_in, played.was_in)
    by_signs = _success_of(played.by_signs, played.was_in).adv
    inside = int(played.was_in.sum())
    met = total * study.game.batch * (how.clients if how.others == "planted" else 1)
    distance = _most_distance(study)
    known = {
        figures.FIT: float(torch.cat(fits).mean()),
        figures.HELD_OUT: float(torch.cat(held_out).mean()),
        figures.PLANTED_SHARE: float(played.shares.mean()),
        figures.DISTANCE: distance,
        figures.EXPECTED_SUCCESS: _expected(played.distances),
    }
    signs = at(
        metric=figures.SIGN_SUCCESS,
        n_members=inside,
        n_nonmembers=total - inside,
        **asdict(by_signs),
    )
    most = 1.0 if distance is None else gaussian_success(distance)
    by_target = share(int(played.by_target.sum()), inside)
    by_others = share(int(played.by_others.sum()), met - inside)
    rounds = how.model_dump(include=InRounds.model_fields.keys() - {"options"})
    return _Found(
        [
            *success_estimates(success, at, most),
            counted(at, figures.FIRES_FOR_TARGET, by_target),
            counted(at, figures.FIRES_FOR_OTHERS, by_others),
            signs,
            *_known(at, known),
        ],
        rounds=InRounds(**rounds, options=texts_of(how.options), simulated=games.simulated),
    )


def _some_targets(
    contest: Contest, study: GameStudy, chunks: int
) -> Iterator[Sequence[Mapping[int, int]]]:
    """Games of each target, some targets at once; how many cores there are changes nothing."""
    all_of_them = list(shared_out(study.game.targets, study.game.games))
    # Worked out here, and not by every thread anew.
    assert contest.standard is not None
    for first in range(0, len(all_of_them), chunks):
        yield all_of_them[first : first + chunks]


def _known(at: At, values: Mapping[str, float | None]) -> list[Estimate]:
    """Figures without limits; none where there is nothing to say."""
    return [at(metric=name, value=value) for name, value in values.items() if value is not None]


def _actual(at: At, actual: float | None, delta: float) -> Estimate:
    """The estimate that a mechanism's probabilities give; known, not estimated."""
    if actual is None:
        return at(metric=figures.ACTUAL, value=None, note="there is no bound")
    method = f"of the mechanism itself, delta {delta:g}"
    return at(metric=figures.ACTUAL, value=actual, high=actual, method=method)


def refuse_misfit(study: GameStudy) -> None:
    """Refuses settings that make no game, before anything is played.

    Raises:
        BadInput: No such mechanism or defense, or settings that cannot be.
    """
    given(study.mechanism, 1)
    rules_of(study)
    if study.rounds.play == "rounds":
        defense_of(study.rounds)


def refuse_too_few(study: GameStudy, drawn: Drawn) -> None:
    """Refuses games that need more records than there are, before any is played.

    Raises:
        BadInput: There are too few of the clients or of the server.
    """
    flat = drawn.samples.features.flatten(1)
    Contest(Pools(flat[: drawn.clients], flat[drawn.clients :]), rules_of(study), study.seed)


def rules_of(study: GameStudy) -> Rules:
    """The rules of games that a study asks for."""
    asked, without = study.game, study.mechanism.name == NO_MECHANISM
    # Copies that are all the same teach no more than one; of batches each needs some.
    copies = 1 if without and not study.neuron.batch_size else asked.copies
    return Rules(
        batch=asked.batch,
        copies=copies,
        background=asked.background,
        background_copies=1 if without else asked.background_copies,
        validation=asked.validation,
        validation_copies=min(1, asked.validation_copies) if without else asked.validation_copies,
        training=NeuronTraining(**study.neuron.model_dump()),
    )


def _training(at: At, played: Played) -> tuple[list[Estimate], TrainingLength]:
    taken = played.epochs.tolist()
    if len(taken) > 1:
        found = mean_of_units([float(n) for n in taken], units="targets", within=(0.0, math.inf))
        limits: dict[str, object] = {"low": found.low, "high": found.high, "method": found.method}
        value = found.value
    else:
        value, limits = float(taken[0]), {}
    length = TrainingLength(least=min(taken), most=max(taken), stopped=int(played.told_apart.sum()))
    return [at(metric=figures.EPOCHS, value=value, samples=len(taken), **limits)], length


def _by_others(at: At, played: Played, batch: int, shared_mask: bool) -> Estimate:
    """Rate at which neurons fire for other records; with one mask a batch fires together."""
    fired = int(played.by_others.sum())
    found = share(fired, len(played.was_in) * batch - int(played.was_in.sum()))
    if not shared_mask:
        return counted(at, figures.FIRES_FOR_OTHERS, found)
    shares = played.by_others / (batch - played.was_in.long()).clamp(min=1)
    games = mean_of_units(shares.tolist(), units="games", within=(0.0, 1.0))
    low, high = (found.value if end is None else end for end in (games.low, games.high))
    found = replace(found, low=min(low, found.low), high=max(high, found.high))
    return counted(at, figures.FIRES_FOR_OTHERS, found, figures.SHARED_MASK)


def _predicted(played: Played, batch: int) -> float | None:
    """TNR as the records other than the target predict it, target by target."""
    games = torch.bincount(played.target)
    fired = torch.bincount(played.target, played.by_others.double()).long()
    records = games * batch - torch.bincount(played.target[played.was_in], minlength=len(games))
    return predicted_silence(fired.tolist(), records.tolist(), batch=batch)


class _Fresh(NamedTuple):
    """Values of a target's neuron on randomised records that nothing was decided by.

    Attributes:
        target: Its number.
        neuron: The target's own.
        of_target: Values for copies of the target.
        of_others: Values for other records of the clients.
    """

    target: int
    neuron: Neurons
    of_target: Float[Tensor, " copies"]
    of_others: Float[Tensor, " records"]


def _fresh_values(contest: Contest, study: GameStudy, mechanism: Given) -> list[_Fresh]:
    """Values for certificates: none without noise, or where records share theirs.

    Then copies of the target are all the same, or records of a batch are not independent.
    """
    if study.mechanism.name == NO_MECHANISM or mechanism.shared_mask:
        return []
    count, clients = study.game.certificate_copies, contest.pools.clients
    found = []
    for number in range(min(study.game.certified, study.game.targets)):
        neuron, target = contest.neurons([number]), contest.target(number)
        rng = seeded(study.seed, "certificate", number)
        chosen = contest.others(number, (count,), rng)
        values = [
            neuron.values(mechanism.randomisers.server(records, rng)[None])[0]
            for records in (clients[target].expand(count, -1), clients[chosen])
        ]
        found.append(_Fresh(number, neuron, *values))
    return found


def _certificate(fresh: _Fresh, mechanism: Given, played: Played, batch: int) -> TargetCertificate:
    """Certificate of one target's games, beside their outcome."""
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
    """Share of a target's own games that was won."""
    mine = played.target == target
    right = [
        (played.said_in[mine & side] == kind).double().mean()
        for kind, side in ((True, played.was_in), (False, ~played.was_in))
    ]
    adv = float(torch.stack(right).mean())
    return None if math.isnan(adv) else adv


def _spread_of(fresh: _Fresh) -> Spread:
    """Histogram of the values of a target and of others, between common edges."""
    both = torch.cat([fresh.of_target, fresh.of_others]).double()
    edges = torch.linspace(float(both.min()), float(both.max()) + 1e-9, _BINS + 1).double()
    target, others = (
        torch.histogram(values.double(), edges).hist.long().tolist()
        for values in (fresh.of_target, fresh.of_others)
    )
    return Spread(edges=edges.tolist(), of_target=target, of_others=others)


def _most_distance(study: GameStudy) -> float | None:
    """Sensitivity of the server's sum to one record; None where nothing is proven.

    A record that replaces another moves a sum of clipped gradients by two clips, and so does it
    an upload that is clipped as a whole. Of a sum the noise of all its clients is seen.
    """
    apart = decompose_noise(defense_of(study.rounds), study.game.batch)
    if apart is None or not apart.noise_multiplier:
        return None
    return clipped_distance(
        apart.noise_multiplier, rounds=study.rounds.averaged, summed=study.rounds.clients
    )


def _expected(distances: Tensor) -> float | None:
    """Success that the noise leaves, were neurons silent for all others; the mean over targets."""
    if bool(distances.isnan().any()):
        return None
    each = [gaussian_success(float(distance)) for distance in distances]
    return sum(each) / len(each)


def _success_of(
    said_in: Bool[Tensor, " games"], was_in: Bool[Tensor, " games"], *, delta: float = 0.0
) -> GameSuccess:
    """Success rates of decisions."""
    inside, outside = int(was_in.sum()), int((~was_in).sum())
    if not (inside and outside):
        raise BadInput(
            f"of {len(said_in)} games {inside} had the target in the batch, and figures need "
            "games of both kinds; raise game.games"
        )
    right = int(said_in[was_in].sum()), int((~said_in[~was_in]).sum())
    return game_success(right[0], inside, right[1], outside, delta=delta)


def success_estimates(success: GameSuccess, at: At, most: float) -> list[Estimate]:
    """Success, both rates and what they prove.

    Args:
        success: Of a point's games.
        at: Makes an estimate at the point.
        most: The largest success that is possible.
    """
    of_both = partial(at, n_members=success.tpr.total, n_nonmembers=success.tnr.total)
    proven, method = success.epsilon.value, success.epsilon.method
    return [
        of_both(metric=figures.SUCCESS, ceiling=most, **asdict(success.adv)),
        counted(at, figures.TRUE_POSITIVES, success.tpr),
        counted(at, figures.TRUE_NEGATIVES, success.tnr),
        of_both(metric=figures.PROVEN, value=proven, low=proven, method=method),
    ]


def counted(at: At, metric: str, found: Share, method: str = figures.COUNTED) -> Estimate:
    """A share as records keep it: of games with the target, or else of records that are not it."""
    of = (
        "n_members"
        if metric in (figures.TRUE_POSITIVES, figures.FIRES_FOR_TARGET, DETECTED)
        else "n_nonmembers"
    )
    limits = {"value": found.value, "low": found.low, "high": found.high}
    return at(metric=metric, method=method, **limits, **{of: found.total})
