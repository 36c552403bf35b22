"""Certificates of a point's games, by values that nothing was decided by."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.ami.game import Contest, Played
from fedaudit.attacks.ami.plant import Neurons
from fedaudit.attacks.ami.score import range_over_box
from fedaudit.core.seeds import seeded
from fedaudit.games.mechanism import NO_MECHANISM, Given
from fedaudit.games.settings import GameStudy
from fedaudit.metrics.games import BoundedMean, certify, signs_of_means
from fedaudit.results.games import NeuronMean, Spread, TargetCertificate

_BINS = 40


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
