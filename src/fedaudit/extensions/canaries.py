"""Canaries: clients that test how well one client's update is hidden, and planted records.

The table [canaries] adds canary clients. The draw "canaries" audits canary records. Either gives
bounds on epsilon and checks what a defense claims.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from fedaudit.core.errors import BadInput, Unsupported, setting
from fedaudit.core.metric_names import (
    CLAIMED_CLIENT_EPSILON,
    CLAIMED_CLIENT_EPSILON_ALONE,
    CLIENT_EPSILON,
    CLIENT_EPSILON_IF_GAUSSIAN,
    EPSILON_IF_GAUSSIAN,
    EPSILON_IF_NORMAL,
    FORMAL_EPSILON,
)
from fedaudit.core.progress import Progress
from fedaudit.core.seeds import seed_for, seeded_numpy
from fedaudit.core.values import ClientId, Params
from fedaudit.datasets.dataset import Dataset
from fedaudit.evaluation.analysis import CoinScores, bound_figure, coin_scores
from fedaudit.evaluation.guarantees import accounted, formal_epsilons
from fedaudit.evaluation.truth import target_truth
from fedaudit.fl.accounting import FORMAL_DELTA, gaussian_epsilon
from fedaudit.fl.algorithms.base import TurnContext, draw_cohort
from fedaudit.fl.canary import CANARIES_FILE, CanaryUpload, canary_direction, record_canaries
from fedaudit.fl.hooks import Chain, Defense
from fedaudit.metrics import one_run_epsilon
from fedaudit.metrics.canaries import canary_bounds, record_bounds
from fedaudit.metrics.epsilon import EpsilonBound, one_sided_coins
from fedaudit.observe.round import Round
from fedaudit.plan.optional import CanariesSection
from fedaudit.plan.parts import Conclusion, Extension, MeasuredRun, Scores, Setup
from fedaudit.plan.sections import Study
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import ControlResult

if TYPE_CHECKING:
    from fedaudit.defenses.clip import ClientDP
    from fedaudit.results.record import ControlResult

_CLAIM_ERROR = 0.01
"""How often a sound claim may be called refuted, by any attack, target or run."""

_ONE_UPDATE = (
    "unit: one client's whole contribution (its updates or zeros, weight and noise as they are), "
    "to whoever has the first and the last global model"
)


@dataclass(frozen=True)
class Canaries(Extension):
    """The canary clients of one run; no part of the deal.

    Attributes:
        numbers: The number of each as a client.
        sends: Whether each sends its direction, as a fair coin decided; the others send zeros, with
            the same weight and noise.
        length: Of what is sent.
        seed: Of their directions.
        size: Samples that each is counted with in the average, as many as other clients have.
        claimed: Epsilon of one client's update that the defense claims for the released models, the
            canaries' noise among that of all; None where it claims none.
        claimed_without: The same of the federation without canaries, whose noise is less.
        unclaimed: Reason why there is no claim; empty where there is one, or no defense.
    """

    numbers: tuple[ClientId, ...]
    sends: Bool[ndarray, " canaries"]
    length: float
    seed: int
    size: int
    claimed: float | None = None
    claimed_without: float | None = None
    unclaimed: str = ""

    table: ClassVar[str] = "canaries"

    @classmethod
    def added(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run with its canary clients."""
        assert run.study.canaries is not None
        found = run.extended(_canaries(run, run.study.canaries))
        for index in range(1, run.study.training.rounds + 1):
            if not set(found.cohort(index)) & run.deal.clients.keys():
                raise BadInput(
                    f"in round {index} of seed {run.seed} only canary clients would take part; "
                    f"raise {setting('training.participation')}, or take fewer canaries"
                )
        return found

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The canaries."""
        return self.numbers

    def direction(self, like: Params, number: int) -> Params:
        """Return the direction of one canary, at length 1, in the shapes of a model."""
        return canary_direction(like, self.seed, number)

    def joined(self, everybody: TurnContext) -> TurnContext:
        """Add the canaries, under the defense that the others share.

        They are counted with data of the others' size: copies of one sample, which are never read.
        """
        one = next(iter(everybody.data.values())).take(slice(0, 1))
        held = one.each(lambda part: part.expand(self.size, *part.shape[1:]))
        shared = next(iter(everybody.defenses.values()), None)
        defenses: dict[ClientId, Defense] = {}
        for number, (client, sends) in enumerate(zip(self.numbers, self.sends, strict=True)):
            own = CanaryUpload(self.seed, number, self.length if sends else 0.0)
            defenses[client] = Chain((own, shared)) if shared is not None else own
        return everybody._replace(
            data={**everybody.data, **dict.fromkeys(self.numbers, held)},
            defenses={**everybody.defenses, **defenses},
        )

    def watching(
        self, rounds: Iterator[Round], run: Setup, folder: Path, key: str, progress: Progress
    ) -> Iterator[Round]:
        """Hide the canaries, whose statistics go into a file of the run's folder."""
        seed = seed_for(run.federation_seed, "initial model")
        (start,) = run.algorithm.models(run.algorithm.start(seed)).values()
        return record_canaries(
            rounds,
            self.numbers,
            self.direction,
            start.params,
            last=run.study.training.rounds,
            folder=folder,
            run=key,
        )

    def cost(self) -> str:
        """Return a sentence on what the canaries add to every round."""
        return (
            f"canary clients: {len(self.numbers)} beside those of the study, each of which sends a "
            "model of its own in every round in which it is asked (canaries.count)"
        )

    @classmethod
    def concluded(cls, found: Sequence[MeasuredRun], scores: Scores) -> Conclusion:
        """Return bounds on the epsilon of one client's update, the claim, and whether it holds.

        The bounds are those of each run, and of all canaries of several runs together: coins are
        independent, and of five bounds at 95 % one in four times one is wrong.
        """
        runs = [_measured(one) for one in found]
        figures = [figure for one in runs for figure in _one_update([one], one.run.seed)]
        whole = _one_update(runs, None) if len(runs) > 1 else []
        claims = [one.canaries.claimed for one in runs]
        known = [claim for claim in claims if claim is not None and math.isfinite(claim)]
        checks = []
        if known:
            best = max(_bounds(runs, _CLAIM_ERROR).values(), key=lambda one: one.value)
            checks.append(
                _claim_control(
                    found[0].run,
                    "canary clients",
                    "one client's whole contribution",
                    best,
                    max(known),
                )
            )
        return Conclusion([*figures, *whole], checks)

    def untested(self) -> str:
        """Return a sentence on the federation without canaries."""
        return "The federation without its canary clients, whose noise lies in every model."


def _canaries(run: Setup, given: CanariesSection) -> Canaries:
    study, seed, sizes = run.study, run.seed, run.deal.sizes
    algorithm, defenses = run.algorithm, run.defenses
    run.refuse_several_models("canaries")
    if study.audit.merge:
        raise Unsupported(
            "canary clients are clients of their own; leave audit.merge or [canaries] out"
        )
    private = client_dp_of(defenses)
    if len(defenses) not in (0, len(sizes)) or (defenses and private is None):
        raise Unsupported(
            "canary clients tell what every client's own clipping and noise do for its update; "
            'use the defense "client-dp" for all clients, or none'
        )
    length = given.length or (private.clip if private else 0.0)
    if not 0 < length < math.inf:
        raise BadInput(
            "canaries.length is what each canary's upload is long; give it where no clip of a "
            "defense says so"
        )
    if private is not None and length < private.clip:
        raise BadInput(
            f"canaries.length is {length:g} and the clip {private.clip:g}: what a shorter "
            "direction moves says nothing of what an update may; leave it out, or give the clip"
        )
    sends = seeded_numpy(seed, "canary coins").random(given.count) < 0.5
    if sends.all() or not sends.any():
        raise BadInput(
            f"with seed {seed} the coins of all {given.count} canaries fall on one side; raise "
            "canaries.count, or take another seed"
        )
    size = max(sizes.values())
    numbers = tuple(range(study.partition.clients, study.partition.clients + given.count))
    found = Canaries(numbers, sends, length, seed_for(seed, "canaries"), size)
    if private is None:
        return found
    if any(net.initial(0).buffers for net in algorithm.nets):
        return replace(
            found,
            unclaimed="the network has buffers (batch normalisation), which clients send unclipped "
            "and without noise",
        )
    everybody = {**sizes, **dict.fromkeys(numbers, size)}
    return replace(
        found,
        claimed=_claimed(study, seed, everybody, private),
        claimed_without=_claimed(study, seed, sizes, private),
    )


def client_dp_of(defenses: Mapping[ClientId, Defense]) -> "ClientDP | None":
    """Return the one defense of all clients that bounds contributions; None for another."""
    if not defenses:
        return None
    from fedaudit.defenses.clip import ClientDP  # with all other defenses

    one = next(iter(defenses.values()))
    alike = all(other == one for other in defenses.values())
    return one if alike and isinstance(one, ClientDP) else None


def _claimed(study: Study, seed: int, sizes: Mapping[ClientId, int], private: "ClientDP") -> float:
    """Return epsilon of one client's update for an adversary that sees every global model.

    There is no amplification by sampling. Adjacency: the update or zero in its place, while the
    client's weight and noise stay. Each client's noise goes into the average with the client's
    share. The least noise of all rounds counts, and the largest share of a client.
    """
    largest, least = max(sizes.values()), math.inf
    share, root = study.training.participation, seed_for(seed, "federation")
    for index in range(1, study.training.rounds + 1):
        asked = draw_cohort(sorted(sizes), share, root, index)
        least = min(least, math.sqrt(sum(sizes[client] ** 2 for client in asked)) / largest)
    return gaussian_epsilon(
        private.noise_multiplier * least, study.training.rounds, delta=FORMAL_DELTA
    )


class _Measured(NamedTuple):
    """A run's canary clients, and the statistic of each as it was measured."""

    run: Setup
    canaries: Canaries
    statistics: Float[ndarray, " canaries"]


def _measured(one: MeasuredRun) -> _Measured:
    canaries = one.extension(Canaries)
    left = one.left(CANARIES_FILE, {"z": (len(canaries.numbers),)})
    return _Measured(one.run, canaries, left["z"].numpy())


def _bounds(found: Sequence[_Measured], alpha: float) -> dict[str, EpsilonBound]:
    """Return the bounds from all canaries together, by metric."""
    one_run, mean_only = canary_bounds(
        np.concatenate([one.statistics for one in found]),
        np.concatenate([one.canaries.sends for one in found]),
        delta=FORMAL_DELTA,
        alpha=alpha,
        every_round=found[0].run.study.training.participation == 1,
    )
    return {CLIENT_EPSILON: one_run} | (
        {} if mean_only is None else {CLIENT_EPSILON_IF_GAUSSIAN: mean_only}
    )


def _one_update(found: Sequence[_Measured], seed: int | None) -> list[Estimate]:
    first, canaries = found[0].run, [one.canaries for one in found]
    inside = sum(int(one.sends.sum()) for one in canaries)
    figure = partial(
        Estimate,
        defense=first.study.defense.label,
        view=first.view.name,
        contrast="unseen",
        seed=seed,
        n_members=inside,
        n_nonmembers=sum(len(one.numbers) for one in canaries) - inside,
    )
    measured = [
        figure(metric=name, **bound._asdict(), note=_ONE_UPDATE)
        for name, bound in _bounds(found, 0.05).items()
    ]
    claims = {
        CLAIMED_CLIENT_EPSILON: [one.claimed for one in canaries],
        CLAIMED_CLIENT_EPSILON_ALONE: [one.claimed_without for one in canaries],
    }
    for metric, values in claims.items():
        whole = [value for value in values if value is not None]
        if whole or canaries[0].unclaimed:
            measured.append(
                accounted(
                    partial(figure, metric=metric),
                    max(whole, default=math.inf),
                    f"{_ONE_UPDATE}; the noise of all clients in the average, no amplification by "
                    "sampling",
                    canaries[0].unclaimed,
                )
            )
    return measured


def _claim_control(
    run: Setup, canaries: str, unit: str, best: EpsilonBound, claimed: float, attack: str = ""
) -> ControlResult:
    """Return the control that canaries do not refute what the defense claims."""
    return ControlResult(
        control="claimed epsilon",
        defense=run.study.defense.label,
        expected=f"{canaries} do not refute what the defense claims for {unit}",
        value=None,
        passed=best.value <= claimed,
        note=f"epsilon at least {best.value:.3f} ({attack}{best.method}), claimed {claimed:.3f}",
    )


class CanaryRecords(Extension):
    """Audited samples that are canary records."""

    @classmethod
    def added(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run with the check of its defense's claim."""
        return run.extended(cls())

    @classmethod
    def concluded(cls, found: Sequence[MeasuredRun], scores: Scores) -> Conclusion:
        """Return bounds that rest on a hypothesis, and whether coins refute a claim."""
        runs = [one.run for one in found]
        attacked = list(_attacked(runs, scores))
        claims = {one.metric: one.value for one in formal_epsilons(runs)}
        claimed = claims.get(FORMAL_EPSILON)
        return Conclusion(
            figures=[figure for one in attacked for figure in _record_bounds(one, len(attacked))],
            checks=[] if claimed is None or not attacked else [_records_checked(attacked, claimed)],
        )

    def untested(self) -> str:
        """Return a sentence on ordinary samples."""
        return "Ordinary samples, which leak less: the audited ones are canary records."


def _attacked(runs: Sequence[Setup], scores: Scores) -> Iterator[CoinScores]:
    for run in runs:
        for target in run.study.audit.targets:
            truth = target_truth(run, target)
            for name in run.on_membership:
                given = scores.get((run.seed, target, name))
                found = None if given is None else coin_scores(run, name, given, truth)
                if found is not None:
                    yield found


_HYPOTHESES = {
    EPSILON_IF_GAUSSIAN: ("one run, Gaussian", "training is at least as private as a Gaussian"),
    EPSILON_IF_NORMAL: ("mean-only normal", "scores are normal and equally spread"),
}
"""Names of bounds that rest on a hypothesis, and the hypothesis."""


def _record_bounds(one: CoinScores, family: int) -> list[Estimate]:
    """Return the bounds on epsilon that rest on a hypothesis, each with an error for itself."""
    figures = one.run.study.figures
    if figures.evaluation == "redraw":
        return []
    bounds = record_bounds(
        one.scores,
        one.is_member,
        guesses=one.guesses,
        delta=FORMAL_DELTA,
        alpha=figures.alpha / family,
    )
    return [
        bound_figure(
            one,
            metric,
            bound or bounds.refusal,
            family,
            name=name,
            delta=FORMAL_DELTA,
            note=f"lower bound if {hypothesis}; it certifies no budget",
        )
        for bound, (metric, (name, hypothesis)) in zip(bounds[:2], _HYPOTHESES.items(), strict=True)
    ]


def _records_checked(attacked: Sequence[CoinScores], claimed: float) -> ControlResult:
    control = partial(_claim_control, attacked[0].run, "canary records", "one sample")
    refusals = [one_sided_coins(one.is_member) for one in attacked]
    tossed = [one for one, refusal in zip(attacked, refusals, strict=True) if not refusal]
    if not tossed:
        refused = control(EpsilonBound(0.0, 0.0, ""), claimed)
        return refused.model_copy(update={"passed": None, "note": f"refused: {refusals[0]}"})
    error = {"delta": FORMAL_DELTA, "alpha": _CLAIM_ERROR / len(attacked)}
    found = [
        (one_run_epsilon(one.scores, one.is_member, guesses=one.guesses, **error), one.attack)
        for one in tossed
    ]
    best, attack = max(found, key=lambda pair: (pair[0].value, pair[1], pair[0].method))
    return control(best, claimed, f"{attack}; ")
