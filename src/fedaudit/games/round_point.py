"""One point of a study of games that is played in real rounds."""

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.attacks.ami.game import Contest, shared_out
from fedaudit.core.errors import BadInput
from fedaudit.core.progress import Progress
from fedaudit.fl.training.parallel import side_by_side
from fedaudit.games.mechanism import decompose_noise
from fedaudit.games.records import Dealt
from fedaudit.games.rounds import Labels, PlayedInRounds, RoundGames, defense_of
from fedaudit.games.settings import GameStudy
from fedaudit.metrics.games import GameSuccess, clipped_distance, game_success, gaussian_success
from fedaudit.metrics.rates import Share, share
from fedaudit.results.detector import DETECTED
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import (
    COUNTED,
    DISTANCE,
    EXPECTED_SUCCESS,
    FIRES_FOR_OTHERS,
    FIRES_FOR_TARGET,
    FIT,
    GAMES,
    HELD_OUT,
    PLANTED_SHARE,
    PROVEN,
    SIGN_SUCCESS,
    SUCCESS,
    TRUE_NEGATIVES,
    TRUE_POSITIVES,
    InRounds,
    PointPlayed,
)
from fedaudit.results.text import plain

_CHUNKS_AT_ONCE = 16
"""Chunks of targets whose neurons are trained side by side before their games are played."""


def point_in_rounds(
    contest: Contest,
    study: GameStudy,
    dealt: Dealt,
    label: str,
    settings: dict[str, str],
    *,
    progress: Progress,
) -> PointPlayed:
    """All games of one point, in rounds.

    Args:
        contest: Of the point.
        study: The point's settings.
        dealt: What is played with.
        label: Of the point.
        settings: In which it differs from the study.
        progress: Called with (phase, done, total) games.

    Raises:
        BadInput: Settings that make no game, or games of one kind only.
    """
    begun, how = monotonic(), study.rounds
    labels = Labels(dealt.labels, dealt.server_labels, dealt.classes)
    games = RoundGames(contest, labels, how)
    played, fit, held_out = _played(games, study, progress)
    success = success_of(played.said_in, played.was_in)
    by_signs = success_of(played.by_signs, played.was_in).adv
    inside, total = int(played.was_in.sum()), len(played.was_in)
    met = total * contest.rules.batch * (how.clients if how.others == "planted" else 1)
    distance = _most_distance(study)
    at = partial(Estimate, topic=GAMES, point=label, defense=how.defense)
    known = {
        FIT: fit,
        HELD_OUT: held_out,
        PLANTED_SHARE: float(played.shares.mean()),
        DISTANCE: distance,
        EXPECTED_SUCCESS: _expected(played.distances),
    }
    return PointPlayed(
        label=label,
        settings=settings,
        records=dealt.words,
        mechanism=study.mechanism.name,
        shared_mask=False,
        targets=study.game.targets,
        batch=contest.rules.batch,
        estimates=[
            *success_estimates(
                success, at, 1.0 if distance is None else gaussian_success(distance)
            ),
            counted(at, FIRES_FOR_TARGET, share(int(played.by_target.sum()), inside)),
            counted(at, FIRES_FOR_OTHERS, share(int(played.by_others.sum()), met - inside)),
            at(
                metric=SIGN_SUCCESS,
                n_members=inside,
                n_nonmembers=total - inside,
                **by_signs._asdict(),
            ),
            *(at(metric=name, value=value) for name, value in known.items() if value is not None),
        ],
        seconds=round(monotonic() - begun, 1),
        rounds=InRounds(
            defense=how.defense,
            options={name: plain(str(value)) for name, value in how.options.items()},
            averaged=how.averaged,
            neurons=how.neurons,
            louder=how.louder,
            clients=how.clients,
            others=how.others,
            simulated=games.simulated,
        ),
    )


def refuse_misfit_in_rounds(study: GameStudy) -> None:
    """Refuses rounds that cannot be played, before anything is.

    Raises:
        BadInput: No such defense, or settings that cannot be.
    """
    if study.rounds.play == "rounds":
        defense_of(study.rounds)


class _All(NamedTuple):
    games: PlayedInRounds
    fit: float
    held_out: float


def _played(games: RoundGames, study: GameStudy, progress: Progress) -> _All:
    """All games; neurons side by side, rounds one after the other: they draw from one generator."""
    total, done = study.game.games, 0
    parts: list[PlayedInRounds] = []
    fits: list[Tensor] = []
    held_out: list[Tensor] = []
    chunks = list(shared_out(study.game.targets, total))
    assert games.contest.standard is not None
    for first in range(0, len(chunks), _CHUNKS_AT_ONCE):
        some = chunks[first : first + _CHUNKS_AT_ONCE]
        trained = side_by_side(lambda chunk: games.contest.made(list(chunk)), some)
        for chunk, made in zip(some, trained, strict=True):
            fits.append(made.fit)
            held_out.append(made.held_out)
            for place, (number, count) in enumerate(chunk.items()):
                progress("games", done, total)
                parts.append(games.play(number, made.neurons.at(place), count))
                done += count
    progress("games", done, total)
    together = PlayedInRounds(*(torch.cat(part) for part in zip(*parts, strict=True)))
    return _All(together, *(float(torch.cat(part).mean()) for part in (fits, held_out)))


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


def success_of(
    said_in: Bool[Tensor, " games"], was_in: Bool[Tensor, " games"], *, delta: float = 0.0
) -> GameSuccess:
    """Success rates of decisions.

    Args:
        said_in: The verdicts.
        was_in: What was so.
        delta: At which the games' own epsilon is read.

    Raises:
        BadInput: All games are of one kind.
    """
    inside, outside = int(was_in.sum()), int((~was_in).sum())
    if not (inside and outside):
        raise BadInput(
            f"of {len(said_in)} games {inside} had the target in the batch, and figures need "
            "games of both kinds; raise game.games"
        )
    right = int(said_in[was_in].sum()), int((~said_in[~was_in]).sum())
    return game_success(right[0], inside, right[1], outside, delta=delta)


At = Callable[..., Estimate]
"""Makes an estimate at a point."""


def success_estimates(success: GameSuccess, at: At, most: float) -> list[Estimate]:
    """Success, both rates and what they prove.

    Args:
        success: Of a point's games.
        at: Makes an estimate at the point.
        most: The largest success that is possible.
    """
    inside, outside = success.tpr.total, success.tnr.total
    return [
        at(
            metric=SUCCESS,
            ceiling=most,
            n_members=inside,
            n_nonmembers=outside,
            **success.adv._asdict(),
        ),
        counted(at, TRUE_POSITIVES, success.tpr),
        counted(at, TRUE_NEGATIVES, success.tnr),
        at(
            metric=PROVEN,
            value=success.epsilon.value,
            low=success.epsilon.value,
            method=success.epsilon.method,
            n_members=inside,
            n_nonmembers=outside,
        ),
    ]


def counted(at: At, metric: str, found: Share, method: str = COUNTED) -> Estimate:
    """A share as records keep it: of games with the target, or else of records that are not it."""
    of = "n_members" if metric in (TRUE_POSITIVES, FIRES_FOR_TARGET, DETECTED) else "n_nonmembers"
    limits = {"value": found.value, "low": found.low, "high": found.high}
    return at(metric=metric, method=method, **limits, **{of: found.total})
