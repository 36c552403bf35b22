"""One point of a study of games: played, counted, and held against its claims."""

import math
from functools import partial
from time import monotonic
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.ami.game import Contest, Played, Pools, shared_out
from fedaudit.attacks.ami.plant import Neurons
from fedaudit.attacks.ami.rules import Rules
from fedaudit.attacks.ami.score import range_over_box
from fedaudit.attacks.ami.train import NeuronTraining
from fedaudit.core.progress import Progress
from fedaudit.core.seeds import seeded
from fedaudit.fl.training.parallel import side_by_side
from fedaudit.games.mechanism import NO_MECHANISM, Given, given
from fedaudit.games.records import Dealt, Drawn
from fedaudit.games.round_point import (
    At,
    counted,
    point_in_rounds,
    refuse_misfit_in_rounds,
    success_estimates,
    success_of,
)
from fedaudit.games.settings import GameStudy
from fedaudit.metrics.games import (
    BoundedMean,
    certify,
    most_success,
    predicted_silence,
    signs_of_means,
)
from fedaudit.metrics.intervals import mean_of_units
from fedaudit.metrics.rates import share
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import (
    ACTUAL,
    CLAIMED,
    CLAIMED_SUCCESS,
    EPOCHS,
    FIRES_FOR_OTHERS,
    FIRES_FOR_TARGET,
    FIT,
    GAMES,
    HELD_OUT,
    PREDICTED_NEGATIVES,
    SHARED_MASK,
    NeuronMean,
    PointPlayed,
    Spread,
    TargetCertificate,
    TrainingLength,
)

_CHUNKS_AT_ONCE = 32
"""Chunks of targets that are shared out among the cores before progress is shown."""
_BINS = 40
"""Of a histogram of a neuron's values."""


def play_point(
    study: GameStudy, dealt: Dealt, label: str, settings: dict[str, str], *, progress: Progress
) -> PointPlayed:
    """All games of one point, with its certificates.

    Args:
        study: The point's settings.
        dealt: What is played with.
        label: Of the point.
        settings: In which it differs from the study.
        progress: Called with (phase, done, total) games.

    Raises:
        BadInput: Settings that make no game, or games of one kind only.
    """
    begun = monotonic()
    mechanism = given(study.mechanism, dealt.pools.clients.shape[1])
    contest = Contest(dealt.pools, rules_of(study), study.seed, mechanism.randomisers)
    if study.rounds.play == "rounds":
        return point_in_rounds(contest, study, dealt, label, settings, progress=progress)
    played = _played(contest, study, progress)
    fresh = fresh_values(contest, study, mechanism)
    success = success_of(played.said_in, played.was_in, delta=mechanism.delta)
    at = partial(Estimate, topic=GAMES, point=label, defense=study.mechanism.name)
    by_target = share(int(played.by_target.sum()), int(played.was_in.sum()))
    claimed, actual = mechanism.nominal_epsilon, mechanism.true_epsilon
    epochs, training = _training(at, played) if study.neuron.check else ([], None)
    known = {
        PREDICTED_NEGATIVES: _predicted(played, study.game.batch),
        CLAIMED: claimed,
        CLAIMED_SUCCESS: None if claimed is None else most_success(claimed, mechanism.delta),
        FIT: float(played.fit.mean()),
        HELD_OUT: float(played.held_out.mean()),
    }
    return PointPlayed(
        label=label,
        settings=settings,
        records=dealt.words,
        mechanism=study.mechanism.name,
        shared_mask=mechanism.shared_mask,
        delta=mechanism.delta,
        targets=study.game.targets,
        batch=study.game.batch,
        estimates=[
            *success_estimates(success, at, most_success(actual, mechanism.delta)),
            counted(at, FIRES_FOR_TARGET, by_target),
            _by_others(at, played, study.game.batch, mechanism.shared_mask),
            actual_estimate(at, actual if math.isfinite(actual) else None, mechanism.delta),
            *(at(metric=name, value=value) for name, value in known.items() if value is not None),
            *epochs,
        ],
        certificates=[certificate(one, mechanism, played, study.game.batch) for one in fresh],
        spread=spread_of(fresh[0]) if fresh else None,
        training=training,
        seconds=round(monotonic() - begun, 1),
    )


def actual_estimate(at: At, actual: float | None, delta: float) -> Estimate:
    """The estimate that a mechanism's probabilities give; known, not estimated."""
    if actual is None:
        return at(metric=ACTUAL, value=None, note="there is no bound")
    method = f"of the mechanism itself, delta {delta:g}"
    return at(metric=ACTUAL, value=actual, high=actual, method=method)


def refuse_misfit(study: GameStudy) -> None:
    """Refuses settings that make no game, before anything is played.

    Raises:
        BadInput: No such mechanism, or settings that cannot be.
    """
    given(study.mechanism, 1)
    rules_of(study)
    refuse_misfit_in_rounds(study)


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
    return Rules(
        batch=asked.batch,
        # Copies that are all the same teach no more than one.
        copies=1 if without else asked.copies,
        background=asked.background,
        validation=asked.validation,
        validation_copies=min(1, asked.validation_copies) if without else asked.validation_copies,
        training=NeuronTraining(**study.neuron.model_dump()),
    )


def _played(contest: Contest, study: GameStudy, progress: Progress) -> Played:
    """All games; how many cores there are changes nothing."""
    total, done = study.game.games, 0
    parts: list[Played] = []
    chunks = list(shared_out(study.game.targets, total))
    # Worked out here, and not by every thread anew.
    assert contest.standard is not None
    for first in range(0, len(chunks), _CHUNKS_AT_ONCE):
        progress("games", done, total)
        some = chunks[first : first + _CHUNKS_AT_ONCE]
        parts += side_by_side(contest.play_some, some)
        done += sum(sum(chunk.values()) for chunk in some)
    progress("games", done, total)
    return Played.joined(parts)


def _training(at: At, played: Played) -> tuple[list[Estimate], TrainingLength]:
    taken = played.epochs.tolist()
    if len(taken) > 1:
        found = mean_of_units([float(n) for n in taken], units="targets", within=(0.0, math.inf))
        limits: dict[str, object] = {"low": found.low, "high": found.high, "method": found.method}
        value = found.value
    else:
        value, limits = float(taken[0]), {}
    length = TrainingLength(least=min(taken), most=max(taken), stopped=int(played.told_apart.sum()))
    return [at(metric=EPOCHS, value=value, samples=len(taken), **limits)], length


def _by_others(at: At, played: Played, batch: int, shared_mask: bool) -> Estimate:
    """Rate at which neurons fire for other records; with one mask a batch fires together."""
    fired = int(played.by_others.sum())
    found = share(fired, len(played.was_in) * batch - int(played.was_in.sum()))
    if not shared_mask:
        return counted(at, FIRES_FOR_OTHERS, found)
    shares = played.by_others / (batch - played.was_in.long()).clamp(min=1)
    games = mean_of_units(shares.tolist(), units="games", within=(0.0, 1.0))
    low, high = (found.value if end is None else end for end in (games.low, games.high))
    found = found._replace(low=min(low, found.low), high=max(high, found.high))
    return counted(at, FIRES_FOR_OTHERS, found, SHARED_MASK)


def _predicted(played: Played, batch: int) -> float | None:
    """TNR as the records other than the target predict it, target by target."""
    games = torch.bincount(played.target)
    fired = torch.bincount(played.target, played.by_others.double()).long()
    records = games * batch - torch.bincount(played.target[played.was_in], minlength=len(games))
    return predicted_silence(fired.tolist(), records.tolist(), batch=batch)


class Fresh(NamedTuple):
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


def fresh_values(contest: Contest, study: GameStudy, mechanism: Given) -> list[Fresh]:
    """Values for certificates: none without noise, or where records share theirs.

    Then copies of the target are all the same, or records of a batch are not independent.

    Args:
        contest: Whose neurons are certified.
        study: How many targets, by how many values each.
        mechanism: What records go through.
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
        found.append(Fresh(number, neuron, *values))
    return found


def certificate(fresh: Fresh, mechanism: Given, played: Played, batch: int) -> TargetCertificate:
    """Certificate of one target's games, beside their outcome.

    Args:
        fresh: The target's values.
        mechanism: By which they were randomised; its range bounds the neuron's.
        played: All games.
        batch: Records of a batch.
    """
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


def spread_of(fresh: Fresh) -> Spread:
    """Histogram of the values of a target and of others, between common edges.

    Args:
        fresh: The target's values.
    """
    both = torch.cat([fresh.of_target, fresh.of_others]).double()
    edges = torch.linspace(float(both.min()), float(both.max()) + 1e-9, _BINS + 1).double()
    target, others = (
        torch.histogram(values.double(), edges).hist.long().tolist()
        for values in (fresh.of_target, fresh.of_others)
    )
    return Spread(edges=edges.tolist(), of_target=target, of_others=others)
