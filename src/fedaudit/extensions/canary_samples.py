"""Empirical lower bounds on epsilon from canary samples, compared with what a defense claims.

With audit.draw = "canaries", audited samples are canaries. Canaries of the kind "gradient" have
planted gradients, which a client adds to the clipped sums of DP-SGD.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from fedaudit.attacks.base import Attack
from fedaudit.core.errors import Unsupported
from fedaudit.core.metric_names import EPSILON_IF_GAUSSIAN, EPSILON_IF_NORMAL, FORMAL_EPSILON
from fedaudit.core.values import Batch, ClientId, Params
from fedaudit.datasets.dataset import Dataset
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.evaluation.analysis import CoinScores, bound_estimate, coin_scores
from fedaudit.evaluation.guarantees import formal_epsilons
from fedaudit.evaluation.truth import target_truth
from fedaudit.extensions.canaries import CLAIM_ERROR, claim_control
from fedaudit.fl.accounting import FORMAL_DELTA
from fedaudit.fl.algorithms.base import Participants
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import Defense, Objective, TrainingContext
from fedaudit.metrics import one_run_epsilon_from_scores
from fedaudit.metrics.canaries import sample_bounds
from fedaudit.metrics.epsilon import EpsilonBound, describe_equal_coins
from fedaudit.plan.parts import Extension, ExtensionResults, MeasuredRun, Scores, Setup
from fedaudit.plan.sections import Study
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import ControlResult
from fedaudit.signals.canary_gradients import CanaryCosine, canary_gradient
from fedaudit.signals.updates import GradientCosine

_ASSUMPTIONS = {
    EPSILON_IF_GAUSSIAN: ("one run, Gaussian", "training is at least as private as a Gaussian"),
    EPSILON_IF_NORMAL: ("mean-only normal", "scores are normal and equally spread"),
}
"""Name and assumption of each bound that needs an assumption, by metric."""


@dataclass(frozen=True)
class CanarySamples(Extension):
    """Bounds on epsilon from audited canary samples, and a control of the claimed epsilon.

    Attributes:
        planting: Defenses of the targets that plant gradients of their canaries.
    """

    planting: Mapping[ClientId, Defense] = field(default_factory=dict)

    @classmethod
    def configure_attack(cls, study: Study, attack: Attack) -> Attack:
        """Return the attack; if gradients are planted, it compares updates with these gradients."""
        if not _plants_gradients(study):
            return attack
        if any(type(signal) is not GradientCosine for signal in attack.signals):
            raise _refused_attack(attack.name)
        return replace(attack, signals=(CanaryCosine(),))

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        if not _plants_gradients(run.study):
            return run.with_extension(cls())
        for name, attack in run.attacks.items():
            if attack.signals != (CanaryCosine(),):
                raise _refused_attack(name)
        audit, planting = run.assignment.audit, {}
        for target in run.study.audit.targets:
            canaries = audit.samples.ids[audit.owner == target].tolist()
            defense, name = run.defenses.get(target), run.client_name(target)
            planting[target] = plant_gradients(defense, canaries, name)
        return run.with_extension(cls(planting))

    def extend_clients(self, clients: Participants) -> Participants:
        """Return all clients; targets plant the gradients of their canaries."""
        return clients._replace(defenses={**clients.defenses, **self.planting})

    @classmethod
    def evaluate(cls, runs: Sequence[MeasuredRun], scores: Scores) -> ExtensionResults:
        """Return bounds that need an assumption, and the control of the claimed epsilon."""
        setups = [measured.run for measured in runs]
        coins_by_attack = list(_coins_by_attack(setups, scores))
        figures = []
        for coins in coins_by_attack:
            figures += _sample_bounds(coins, len(coins_by_attack))
        claims = {claim.metric: claim.value for claim in formal_epsilons(setups)}
        claimed = claims.get(FORMAL_EPSILON)
        if claimed is None or not coins_by_attack:
            return ExtensionResults(figures)
        return ExtensionResults(figures, [_sample_control(coins_by_attack, claimed)])

    def untested(self) -> str:
        return "Ordinary samples, which leak less than the audited canary samples."


def _plants_gradients(study: Study) -> bool:
    return study.audit.options.get("kind") == "gradient"


def _refused_attack(name: str) -> Unsupported:
    return Unsupported(
        f"the attack {name!r} cannot find canaries of the kind 'gradient', because it does not "
        "compare gradients with updates; use the attack 'avg-cosine', or other canaries"
    )


def _coins_by_attack(runs: Sequence[Setup], scores: Scores) -> Iterator[CoinScores]:
    """Yield the scores of canary samples of each attack, target and run."""
    for run in runs:
        for target in run.study.audit.targets:
            truth = target_truth(run, target)
            for name in run.membership_attacks:
                attack_scores = scores.get((run.seed, target, name))
                if attack_scores is None:
                    continue
                coins = coin_scores(run, name, attack_scores, truth)
                if coins is not None:
                    yield coins


def _sample_bounds(coins: CoinScores, family: int) -> list[Estimate]:
    """Return the bounds on epsilon that need an assumption.

    Args:
        coins: Scores of one attack.
        family: Number of bounds with the same assumption, among which the study's error level is
            divided.
    """
    figures = coins.run.study.figures
    if figures.evaluation == "redraw":
        return []
    bounds = sample_bounds(
        coins.scores,
        coins.is_member,
        guesses=coins.guesses,
        delta=FORMAL_DELTA,
        alpha=figures.alpha / family,
    )
    return [
        bound_estimate(
            coins,
            metric,
            bound or bounds.refusal,
            family,
            name=name,
            delta=FORMAL_DELTA,
            note=f"lower bound if {assumption}; no certificate of a budget",
        )
        for bound, (metric, (name, assumption)) in zip(
            bounds[:2], _ASSUMPTIONS.items(), strict=True
        )
    ]


def _sample_control(coins_by_attack: Sequence[CoinScores], claimed: float) -> ControlResult:
    """Return the control that compares the largest bound of all attacks with the claim."""
    control = partial(claim_control, coins_by_attack[0].run, "canary samples", "one sample")
    bounds = []
    for coins in coins_by_attack:
        if not describe_equal_coins(coins.is_member):
            bound = one_run_epsilon_from_scores(
                coins.scores,
                coins.is_member,
                guesses=coins.guesses,
                delta=FORMAL_DELTA,
                alpha=CLAIM_ERROR / len(coins_by_attack),
            )
            bounds.append((bound, coins.attack))
    if not bounds:
        refusal = describe_equal_coins(coins_by_attack[0].is_member)
        refused = control(EpsilonBound(0.0, 0.0, ""), claimed)
        return refused.model_copy(update={"passed": None, "note": f"refused: {refusal}"})
    best_bound, attack = max(bounds, key=lambda pair: (pair[0].value, pair[1], pair[0].method))
    return control(best_bound, claimed, f"{attack}; ")


@dataclass(frozen=True)
class GradientCanaries(Chain):
    """Defenses of a client that trains on canary samples with planted gradients.

    DP-SGD draws a canary like any sample. The canary's gradient is a random vector with the clip
    norm (:func:`fedaudit.signals.canary_gradients.canary_gradient`). No sample has more influence.

    Attributes:
        canaries: Ids of the canary samples in the client's data.

    Source: Nasr et al. 2023, Tight Auditing of Differentially Private Machine Learning (gradient
        canaries).
    Differs: Vectors are nearly orthogonal, so that many canaries fit into one run.
    """

    canaries: tuple[int, ...] = ()

    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        """Return the noisy gradient with the planted gradients of the drawn canaries."""
        canaries = torch.tensor(self.canaries, dtype=batch.ids.dtype, device=batch.ids.device)
        is_canary = torch.isin(batch.ids, canaries)
        other_samples = Batch(batch.x[~is_canary], batch.y[~is_canary], batch.ids[~is_canary])
        gradient = super().gradient(objective, other_samples, context)
        sizes = [value.numel() for value in gradient.values()]
        planted = torch.zeros(sum(sizes))
        # With a multiplicity above 1, every canary has several rows.
        for sample_id in sorted(set(batch.ids[is_canary].tolist())):
            positions, values = canary_gradient(sample_id, len(planted))
            planted[positions] += values.float()
        dp_sgd = next(part for part in self.parts if isinstance(part, DPSGD))
        planted *= dp_sgd.gradient_limit
        parts = torch.split(planted, sizes)
        return {
            name: value + part.view(value.shape).to(value)
            for (name, value), part in zip(gradient.items(), parts, strict=True)
        }


def plant_gradients(
    defense: Defense | None, canaries: Sequence[int], client: str
) -> GradientCanaries:
    """Return a client's defenses with planted gradients of its canaries.

    Args:
        defense: The client's defense, or chain of defenses.
        canaries: Ids of the canary samples in the client's data.
        client: Name of the client in the error message.

    Raises:
        Unsupported: The client does not use DP-SGD, or its clip is infinite.
    """
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    if not any(isinstance(part, DPSGD) and math.isfinite(part.clip) for part in parts):
        raise Unsupported(
            f"canaries of the kind 'gradient' replace clipped gradients, but {client} does not use "
            "dp-sgd with a finite clip; use this defense, or canaries of another kind"
        )
    return GradientCanaries(tuple(part for part in parts if part is not None), tuple(canaries))
