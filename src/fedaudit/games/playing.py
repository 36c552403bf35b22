"""One point of a study of games: played, counted, and held against its claims."""

import math
from time import monotonic

import torch

from fedaudit.attacks.ami.game import Contest, Played, Pools, shared_out
from fedaudit.attacks.ami.rules import Rules
from fedaudit.attacks.ami.train import NeuronTraining
from fedaudit.core.progress import Progress
from fedaudit.fl.training.parallel import side_by_side
from fedaudit.games.certifying import certificate, fresh_values, spread_of
from fedaudit.games.mechanism import NO_MECHANISM, given
from fedaudit.games.records import Dealt, Drawn
from fedaudit.games.round_point import point_in_rounds, rate, refuse_misfit_in_rounds, success_of
from fedaudit.games.settings import GameStudy
from fedaudit.metrics.games import (
    most_success,
    predicted_silence,
)
from fedaudit.metrics.intervals import mean_of_units
from fedaudit.metrics.rates import share
from fedaudit.results.games import Epochs, PointPlayed, Rate, Success

_BINS = 40

_CHUNKS_AT_ONCE = 32
"""Chunks of targets that are shared out among the cores before progress is shown."""


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
    by_target = share(int(played.by_target.sum()), int(played.was_in.sum()))
    nominal, true = mechanism.nominal_epsilon, mechanism.true_epsilon
    return PointPlayed(
        label=label,
        settings=settings,
        records=dealt.words,
        mechanism=study.mechanism.name,
        shared_mask=mechanism.shared_mask,
        nominal_epsilon=nominal,
        true_epsilon=true if math.isfinite(true) else None,
        delta=mechanism.delta,
        targets=study.game.targets,
        batch=study.game.batch,
        tpr=rate(success.tpr),
        tnr=rate(success.tnr),
        adv=Success(**success.adv._asdict()),
        by_target=rate(by_target),
        by_others=_by_others(played, study.game.batch, mechanism.shared_mask),
        predicted_tnr=_predicted(played, study.game.batch),
        most=most_success(true, mechanism.delta),
        most_nominal=None if nominal is None else most_success(nominal, mechanism.delta),
        proven_epsilon=success.epsilon.value,
        certificates=[certificate(one, mechanism, played, study.game.batch) for one in fresh],
        spread=spread_of(fresh[0]) if fresh else None,
        fit=float(played.fit.mean()),
        held_out=float(played.held_out.mean()),
        epochs=_epochs(played) if study.neuron.check else None,
        seconds=round(monotonic() - begun, 1),
    )


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


def _epochs(played: Played) -> Epochs:
    taken = played.epochs.tolist()
    if len(taken) > 1:
        value, low, high, *_ = mean_of_units(
            [float(n) for n in taken], units="targets", within=(0.0, math.inf)
        )
    else:
        value, low, high = float(taken[0]), None, None
    return Epochs(
        value=value,
        low=low,
        high=high,
        least=min(taken),
        most=max(taken),
        stopped=int(played.told_apart.sum()),
        targets=len(taken),
    )


def _by_others(played: Played, batch: int, shared_mask: bool) -> Rate:
    """Rate at which neurons fire for other records; with one mask a batch fires together."""
    fired = int(played.by_others.sum())
    found = share(fired, len(played.was_in) * batch - int(played.was_in.sum()))
    if not shared_mask:
        return rate(found)
    shares = played.by_others / (batch - played.was_in.long()).clamp(min=1)
    games = mean_of_units(shares.tolist(), units="games", within=(0.0, 1.0))
    low, high = (found.value if end is None else end for end in (games.low, games.high))
    return rate(found._replace(low=min(low, found.low), high=max(high, found.high)))


def _predicted(played: Played, batch: int) -> float | None:
    """TNR as the records other than the target predict it, target by target."""
    games = torch.bincount(played.target)
    fired = torch.bincount(played.target, played.by_others.double()).long()
    records = games * batch - torch.bincount(played.target[played.was_in], minlength=len(games))
    return predicted_silence(fired.tolist(), records.tolist(), batch=batch)
