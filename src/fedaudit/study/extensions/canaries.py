"""The table [canaries]: clients that show how well one client's update is hidden."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.metric_names import (
    CLAIMED_CLIENT_EPSILON,
    CLAIMED_CLIENT_EPSILON_ALONE,
    CLIENT_EPSILON,
    CLIENT_EPSILON_IF_GAUSSIAN,
)
from fedaudit.core.progress import Progress
from fedaudit.core.seeds import seed_for, seeded_numpy
from fedaudit.core.values import ClientId, Params
from fedaudit.datasets.dataset import Dataset
from fedaudit.fl.accounting import FORMAL_DELTA, gaussian_epsilon
from fedaudit.fl.algorithms.base import ChoosesModels, TurnContext, cohort_of
from fedaudit.fl.canary import CANARIES_FILE, CanaryUpload, canary_direction, keeping_canaries
from fedaudit.fl.hooks import Chain, Defense
from fedaudit.metrics.canaries import CanaryBounds, canary_bounds
from fedaudit.observe.round import Round, Update
from fedaudit.results.estimate import Estimate
from fedaudit.study.settings.optional import CanariesSection
from fedaudit.study.settings.sections import Study
from fedaudit.study.setup.parts import Conclusion, Extension, MeasuredRun, Scores, Setup

if TYPE_CHECKING:
    from fedaudit.defenses.clip import ClientDP
    from fedaudit.results.record import ControlResult


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
        """The run with its canary clients.

        Raises:
            BadInput: Coins that all fall on one side, no length that canaries could have, or rounds
                in which only canaries would take part.
            Unsupported: An algorithm or a defense under which a canary would not be what a client
                is.
        """
        if run.study.canaries is None:
            return run
        found = run.extended(_canaries(run, run.study.canaries))
        for index in range(1, run.study.training.rounds + 1):
            if not set(found.cohort(index)) & run.deal.clients.keys():
                raise BadInput(
                    f"in round {index} of seed {run.seed} only canary clients would take part; "
                    "raise training.participation, or take fewer canaries"
                )
        return found

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The canaries."""
        return self.numbers

    def direction(self, like: Params, number: int) -> Params:
        """Of one canary, at length 1, in the shapes of a model's parameters."""
        return canary_direction(like, self.seed, number)

    def joined(self, everybody: TurnContext) -> TurnContext:
        """All clients, with canaries among them under the defense that the others share.

        They are counted with data of the others' size: a sample of some client's, which none reads.
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
        """The rounds without the canaries, whose statistics go into a file of the run's folder."""
        seed = seed_for(seed_for(run.seed, "federation"), "initial model")
        (start,) = run.algorithm.models(run.algorithm.start(seed)).values()
        return keeping_canaries(
            rounds,
            self.numbers,
            self.direction,
            start.params,
            last=run.study.training.rounds,
            folder=folder,
            run=key,
        )

    def cost(self) -> str:
        """A sentence on what the canaries add to every round."""
        return (
            f"canary clients: {len(self.numbers)} beside those of the study, each of which sends a "
            "model of its own in every round in which it is asked (canaries.count)"
        )

    @classmethod
    def concluded(cls, found: Sequence[MeasuredRun], scores: Scores) -> Conclusion:
        """Bounds on the epsilon of one client's update, what is claimed, and whether it holds.

        Of each run, and of all canaries of several runs together: each is a coin of its own, and of
        five bounds at 95 % one in four times one is wrong.
        """
        runs = [_measured(one) for one in found]
        figures = [figure for one in runs for figure in _one_update([one], one.run.seed)]
        whole = _one_update(runs, None) if len(runs) > 1 else []
        return Conclusion([*figures, *whole], _claim_checked(runs))

    def untested(self) -> str:
        """A sentence on what was not tested because of the canaries."""
        return "The federation without its canary clients, whose noise lies in every model."


def _canaries(run: Setup, given: CanariesSection) -> Canaries:
    study, seed, sizes = run.study, run.seed, run.deal.sizes
    algorithm, defenses = run.algorithm, run.defenses
    if algorithm.upload_kind is not Update or isinstance(algorithm, ChoosesModels):
        raise Unsupported(
            f"canary clients send an update of the one model that all train, and "
            f"{type(algorithm).__name__} has no such; use fedavg, or leave [canaries] out"
        )
    if study.audit.merge:
        raise Unsupported(
            "canary clients are clients of their own; leave audit.merge or [canaries] out"
        )
    private = client_dp_of(defenses)
    if len(defenses) not in (0, len(sizes)) or (defenses and private is None):
        raise Unsupported(
            "canary clients tell what every client's own clipping and noise do for its update; "
            'use defense.name = "client-dp" for all clients, or none'
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
    found = Canaries(
        tuple(range(study.partition.clients, study.partition.clients + given.count)),
        sends,
        length,
        seed_for(seed, "canaries"),
        size,
    )
    if private is None:
        return found
    if any(net.initial(0).buffers for net in algorithm.nets):
        return replace(
            found,
            unclaimed="the network has buffers (batch normalisation), which clients send unclipped "
            "and without noise",
        )
    everybody = {**sizes, **dict.fromkeys(found.numbers, size)}
    return replace(
        found,
        claimed=_claimed(study, seed, everybody, private),
        claimed_without=_claimed(study, seed, sizes, private),
    )


def client_dp_of(defenses: Mapping[ClientId, Defense]) -> "ClientDP | None":
    """The one defense of all clients that bounds what a client contributes; None for another."""
    if not defenses:
        return None
    from fedaudit.defenses.clip import ClientDP  # with all other defenses

    one = next(iter(defenses.values()))
    alike = all(other == one for other in defenses.values())
    return one if alike and isinstance(one, ClientDP) else None


def _claimed(study: Study, seed: int, sizes: Mapping[ClientId, int], private: "ClientDP") -> float:
    """Epsilon of one client's update to who sees every global model, without amplification.

    Adjacency: the update or zero in its place, while the client's weight and noise stay. Each
    client's noise goes into the average with the client's share. The least noise of all rounds
    counts, beside the largest share of a client.
    """
    largest, least = max(sizes.values()), math.inf
    share, root = study.training.participation, seed_for(seed, "federation")
    for index in range(1, study.training.rounds + 1):
        asked = cohort_of(sorted(sizes), share, root, index)
        least = min(least, math.sqrt(sum(sizes[client] ** 2 for client in asked)) / largest)
    return gaussian_epsilon(
        private.noise_multiplier * least, study.training.rounds, delta=FORMAL_DELTA
    )


class _Measured(NamedTuple):
    """A run's canary clients, as they were measured.

    Attributes:
        run: The run.
        canaries: Its own.
        z: The statistic of each; see :func:`fedaudit.fl.canary.canary_statistics`.
    """

    run: Setup
    canaries: Canaries
    z: Float[ndarray, " canaries"]


def _measured(one: MeasuredRun) -> _Measured:
    canaries = one.extension(Canaries)
    left = one.left(CANARIES_FILE, {"z": (len(canaries.numbers),)})
    return _Measured(one.run, canaries, left["z"].numpy())


def _together(found: Sequence[_Measured], alpha: float) -> CanaryBounds:
    return canary_bounds(
        np.concatenate([one.z for one in found]),
        np.concatenate([one.canaries.sends for one in found]),
        delta=FORMAL_DELTA,
        alpha=alpha,
        every_round=found[0].run.study.training.participation == 1,
    )


_ONE_UPDATE = (
    "unit: one client's whole contribution (its updates or zeros, weight and noise as they are), "
    "to whoever has the first and the last global model"
)


def _one_update(found: Sequence[_Measured], seed: int | None) -> list[Estimate]:
    first, bounds = found[0].run, _together(found, 0.05)
    canaries = [one.canaries for one in found]
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
        figure(
            metric=name, value=one.value, ceiling=one.ceiling, method=one.method, note=_ONE_UPDATE
        )
        for name, one in (
            (CLIENT_EPSILON, bounds.one_run),
            (CLIENT_EPSILON_IF_GAUSSIAN, bounds.mean_only),
        )
        if one is not None
    ]
    claims = {
        CLAIMED_CLIENT_EPSILON: [one.claimed for one in canaries],
        CLAIMED_CLIENT_EPSILON_ALONE: [one.claimed_without for one in canaries],
    }
    for metric, values in claims.items():
        whole = [value for value in values if value is not None]
        if not whole and not canaries[0].unclaimed:
            continue
        finite = bool(whole) and math.isfinite(max(whole))
        nothing = canaries[0].unclaimed or "without noise there is no guarantee"
        measured.append(
            figure(
                metric=metric,
                value=max(whole) if finite else None,
                method=f"Renyi accountant, delta {FORMAL_DELTA:g}",
                note=f"{_ONE_UPDATE}; the noise of all clients in the average, no amplification by "
                "sampling"
                if finite
                else nothing,
            )
        )
    return measured


_CLAIM_ERROR = 0.01
"""How often a sound claim may be called refuted."""


def _claim_checked(found: Sequence[_Measured]) -> "list[ControlResult]":
    """The control that all canaries together do not refute the claim; none without a claim."""
    from fedaudit.results.record import ControlResult

    claims = [one.canaries.claimed for one in found]
    known = [claim for claim in claims if claim is not None and math.isfinite(claim)]
    if not known:
        return []
    bounds, claimed = _together(found, _CLAIM_ERROR), max(known)
    best = max(
        (one for one in (bounds.one_run, bounds.mean_only) if one is not None),
        key=lambda one: one.value,
    )
    return [
        ControlResult(
            control="claimed epsilon",
            defense=found[0].run.study.defense.label,
            expected="canary clients do not refute what the defense claims for one client's update",
            value=None,
            passed=best.value <= claimed,
            note=f"epsilon at least {best.value:.3f} ({best.method}), claimed {claimed:.3f}",
        )
    ]
