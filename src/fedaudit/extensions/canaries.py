"""Empirical lower bounds on epsilon from canary clients, compared with what a defense claims.

The table [canaries] of a study adds canary clients.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from fedaudit.core.errors import BadInput, Unsupported, format_setting, format_table
from fedaudit.core.metric_names import (
    CLAIMED_CLIENT_EPSILON,
    CLAIMED_CLIENT_EPSILON_WITHOUT_CANARIES,
    CLIENT_EPSILON,
    CLIENT_EPSILON_IF_GAUSSIAN,
)
from fedaudit.core.progress import Progress
from fedaudit.core.seeds import seed_for, seeded_numpy
from fedaudit.core.values import ClientId, Params
from fedaudit.datasets.dataset import Dataset
from fedaudit.evaluation.guarantees import formal_epsilon
from fedaudit.fl.accounting import FORMAL_DELTA, gaussian_mechanism_epsilon
from fedaudit.fl.algorithms.base import Participants, draw_cohort
from fedaudit.fl.canary import CANARIES_FILE, CanaryUpload, canary_direction, record_canaries
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import Defense
from fedaudit.metrics.canaries import canary_bounds
from fedaudit.metrics.epsilon import EpsilonBound
from fedaudit.observe.round import Round
from fedaudit.plan.optional import CanariesSection
from fedaudit.plan.parts import Extension, ExtensionResults, MeasuredRun, Scores, Setup
from fedaudit.plan.sections import Study
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import ControlResult

if TYPE_CHECKING:
    from fedaudit.defenses.clip import ClientDP

CLAIM_ERROR = 0.01
"""Error probability of the control of a claimed epsilon, over all attacks, targets and runs."""

_ONE_UPDATE = (
    "unit: one client's whole contribution (its updates, or zeros with the same weight and noise); "
    "the adversary has the first and the last global model"
)


@dataclass(frozen=True)
class Canaries(Extension):
    """Canary clients of one run, which take part in addition to the clients with data.

    Attributes:
        numbers: Client number of each canary.
        sends: Whether each canary sends its direction, as decided by a fair coin. The other
            canaries send zeros, with the same weight and noise.
        length: Norm of the canaries' updates.
        seed: Seed of the directions.
        size: Number of samples of the largest client. It determines a canary's weight in the
            average.
        claimed: Client-level epsilon that the defense claims for the released models, with the
            canaries' noise; None if it claims none.
        claimed_without: Claimed epsilon of the federation without canaries, which has less noise.
        unclaimed: Reason why the defense claims no epsilon; empty otherwise.
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
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        assert run.study.canaries is not None
        extended = run.with_extension(_create_canaries(run, run.study.canaries))
        for index in range(1, run.study.training.rounds + 1):
            if not set(extended.cohort(index)) & run.assignment.clients.keys():
                raise BadInput(
                    f"in round {index} of seed {run.seed}, only canary clients would participate; "
                    f"raise {format_setting('training.participation')}, or lower canaries.count"
                )
        return extended

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return self.numbers

    def direction(self, like: Params, number: int) -> Params:
        """Return the direction of one canary, with norm 1, in the shapes of a model."""
        return canary_direction(like, self.seed, number)

    def extend_clients(self, clients: Participants) -> Participants:
        """Return all clients including the canary clients, which use the common defense."""
        # A canary's weight follows from its number of samples. The samples are never used, so they
        # are views of one sample, which need no memory.
        sample = next(iter(clients.data.values())).take(slice(0, 1))
        samples = sample.each(lambda part: part.expand(self.size, *part.shape[1:]))
        common = next(iter(clients.defenses.values()), None)
        defenses: dict[ClientId, Defense] = {}
        for number, (client, sends) in enumerate(zip(self.numbers, self.sends, strict=True)):
            upload = CanaryUpload(self.seed, number, self.length if sends else 0.0)
            defenses[client] = Chain((upload, common)) if common is not None else upload
        return clients._replace(
            data={**clients.data, **dict.fromkeys(self.numbers, samples)},
            defenses={**clients.defenses, **defenses},
        )

    def watch(
        self, rounds: Iterator[Round], run: Setup, key: str, progress: Progress
    ) -> Iterator[Round]:
        """Yield the rounds without the canaries' updates, and write their statistics to a file."""
        seed = seed_for(run.federation_seed, "initial model")
        (start,) = run.algorithm.models(run.algorithm.start(seed)).values()
        return record_canaries(
            rounds,
            self.numbers,
            self.direction,
            start.params,
            last=run.study.training.rounds,
            folder=run.folder,
            run=key,
        )

    def cost(self) -> str:
        return (
            f"canary clients: {len(self.numbers)} in addition to the study's clients, each of "
            "which sends an update in every round in which it participates (canaries.count)"
        )

    @classmethod
    def evaluate(cls, runs: Sequence[MeasuredRun], scores: Scores) -> ExtensionResults:
        """Return lower bounds on the client-level epsilon, the claimed epsilon, and its control.

        There is a bound for each run, and a bound from the canaries of all runs together. The
        largest bound of single runs is not used, since with five bounds at 95 %, it would be wrong
        with a probability of up to 23 %.
        """
        statistics = [_read(measured) for measured in runs]
        figures = []
        for one_run in statistics:
            figures += _estimates([one_run], one_run.run.seed)
        if len(statistics) > 1:
            figures += _estimates(statistics, None)
        claims = [one_run.canaries.claimed for one_run in statistics]
        finite_claims = [claim for claim in claims if claim is not None and math.isfinite(claim)]
        if not finite_claims:
            return ExtensionResults(figures)
        bounds = _bounds(statistics, CLAIM_ERROR)
        if len(bounds) > 1:
            # Bonferroni correction, since the largest bound is compared with the claim.
            bounds = _bounds(statistics, CLAIM_ERROR / len(bounds))
        control = claim_control(
            runs[0].run,
            "canary clients",
            "one client's whole contribution",
            max(bounds.values(), key=lambda bound: bound.value),
            max(finite_claims),
        )
        return ExtensionResults(figures, [control])

    def untested(self) -> str:
        return "The federation without its canary clients, which add noise to every model."


def _create_canaries(run: Setup, section: CanariesSection) -> Canaries:
    study, seed, sizes = run.study, run.seed, run.assignment.sizes
    run.raise_if_several_models("canaries")
    if study.audit.merge:
        raise Unsupported(
            f"{format_table('canaries')} measures how well single clients are hidden, but "
            f"audit.merge attacks clients {list(study.audit.merge)} as one; leave out one of the "
            "two"
        )
    defense = client_dp_of(run.defenses)
    if run.defenses and (defense is None or len(run.defenses) != len(sizes)):
        raise Unsupported(
            f"{format_table('canaries')} measures clipping and noise that all clients use; set the "
            'defense "client-dp" for all clients, or no defense'
        )
    length = section.length or (defense.clip if defense else 0.0)
    if not 0 < length < math.inf:
        raise BadInput(
            f"canaries.length is {section.length:g}, and there is no defense whose clipping norm "
            "could be used instead; set canaries.length to a positive norm"
        )
    if defense is not None and length < defense.clip:
        raise BadInput(
            f"canaries.length is {length:g}, which is less than the clipping norm "
            f"{defense.clip:g}, so canaries would not test the largest updates; leave out "
            "canaries.length to use the clipping norm"
        )
    sends = seeded_numpy(seed, "canary coins").random(section.count) < 0.5
    if sends.all() or not sends.any():
        raise BadInput(
            f"with seed {seed}, {'all' if sends.all() else 'none'} of the {section.count} canaries "
            "send their direction, so there is nothing to compare; raise canaries.count, or use "
            "another seed"
        )
    size = max(sizes.values())
    first = study.partition.clients
    numbers = tuple(range(first, first + section.count))
    canaries = Canaries(numbers, sends, length, seed_for(seed, "canaries"), size)
    if defense is None:
        return canaries
    if any(net.initial(0).buffers for net in run.algorithm.nets):
        return replace(
            canaries,
            unclaimed="the network has buffers (batch normalisation), which clients send unclipped "
            "and without noise",
        )
    all_sizes = {**sizes, **dict.fromkeys(numbers, size)}
    return replace(
        canaries,
        claimed=_claimed_epsilon(study, seed, all_sizes, defense),
        claimed_without=_claimed_epsilon(study, seed, sizes, defense),
    )


def client_dp_of(defenses: Mapping[ClientId, Defense]) -> "ClientDP | None":
    """Return the "client-dp" defense if all defended clients use the same; otherwise None."""
    if not defenses:
        return None
    # Imported here, since this import loads all defenses.
    from fedaudit.defenses.clip import ClientDP

    first = next(iter(defenses.values()))
    are_equal = all(defense == first for defense in defenses.values())
    return first if are_equal and isinstance(first, ClientDP) else None


def _claimed_epsilon(
    study: Study, seed: int, sizes: Mapping[ClientId, int], defense: "ClientDP"
) -> float:
    """Return the client-level epsilon for an adversary that sees every global model.

    Two federations are adjacent if one client's updates are zero in one of them, with the same
    weight and noise. Amplification by sampling is not used. The sensitivity is that of the largest
    client, and the noise is that of the round with the least noise, where each client's noise is
    scaled by its weight.
    """
    largest, least_noise = max(sizes.values()), math.inf
    participation, federation_seed = study.training.participation, seed_for(seed, "federation")
    for index in range(1, study.training.rounds + 1):
        cohort = draw_cohort(sorted(sizes), participation, federation_seed, index)
        noise = math.sqrt(sum(sizes[client] ** 2 for client in cohort)) / largest
        least_noise = min(least_noise, noise)
    return gaussian_mechanism_epsilon(
        defense.noise_multiplier * least_noise, study.training.rounds, delta=FORMAL_DELTA
    )


class _RunStatistics(NamedTuple):
    """Canary clients of a run, and the statistic of each canary."""

    run: Setup
    canaries: Canaries
    statistics: Float[ndarray, " canaries"]


def _read(measured: MeasuredRun) -> _RunStatistics:
    canaries = measured.extension(Canaries)
    tensors = measured.load_tensors(CANARIES_FILE, {"z": (len(canaries.numbers),)})
    return _RunStatistics(measured.run, canaries, tensors["z"].numpy())


def _bounds(runs: Sequence[_RunStatistics], alpha: float) -> dict[str, EpsilonBound]:
    """Return the bounds from the canaries of all runs together, by metric."""
    distribution_free, if_gaussian = canary_bounds(
        np.concatenate([run.statistics for run in runs]),
        np.concatenate([run.canaries.sends for run in runs]),
        delta=FORMAL_DELTA,
        alpha=alpha,
        every_round=runs[0].run.study.training.participation == 1,
    )
    bounds = {CLIENT_EPSILON: distribution_free}
    if if_gaussian is not None:
        bounds[CLIENT_EPSILON_IF_GAUSSIAN] = if_gaussian
    return bounds


def _estimates(runs: Sequence[_RunStatistics], seed: int | None) -> list[Estimate]:
    """Return the estimates of one run, or of all runs together if ``seed`` is None."""
    setup, canaries = runs[0].run, [run.canaries for run in runs]
    n_members = sum(int(c.sends.sum()) for c in canaries)
    estimate = partial(
        Estimate,
        defense=setup.study.defense.label,
        view=setup.view.name,
        contrast="unseen",
        seed=seed,
        n_members=n_members,
        n_nonmembers=sum(len(c.numbers) for c in canaries) - n_members,
    )
    estimates = [
        estimate(metric=name, **bound._asdict(), note=_ONE_UPDATE)
        for name, bound in _bounds(runs, 0.05).items()
    ]
    claims = {
        CLAIMED_CLIENT_EPSILON: [c.claimed for c in canaries],
        CLAIMED_CLIENT_EPSILON_WITHOUT_CANARIES: [c.claimed_without for c in canaries],
    }
    note = f"{_ONE_UPDATE}; the noise of all clients in the average, no amplification by sampling"
    unclaimed = canaries[0].unclaimed
    for metric, values in claims.items():
        claimed = [value for value in values if value is not None]
        if claimed or unclaimed:
            largest = max(claimed, default=math.inf)
            claim = formal_epsilon(partial(estimate, metric=metric), largest, note, unclaimed)
            estimates.append(claim)
    return estimates


def claim_control(
    run: Setup, canaries: str, unit: str, best_bound: EpsilonBound, claimed: float, attack: str = ""
) -> ControlResult:
    """Return the control that fails if a lower bound exceeds the claimed epsilon."""
    return ControlResult(
        control="claimed epsilon",
        defense=run.study.defense.label,
        expected=f"{canaries} do not refute what the defense claims for {unit}",
        value=None,
        passed=best_bound.value <= claimed,
        note=f"epsilon at least {best_bound.value:.3f} ({attack}{best_bound.method}), "
        f"claimed {claimed:.3f}",
    )
