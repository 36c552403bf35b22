"""Answers to the question whether a sample, or a person's data, were used for training.

A unit is what is asked about: one audited sample, or one person with all of their audited samples.
``contrast`` is the group of non-members with which a unit is compared: held-out samples
("unseen") or samples of other clients ("other_client").
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray

from fedaudit.attacks.base import Attack
from fedaudit.core.metric_names import Origin
from fedaudit.core.values import ClientId
from fedaudit.evaluation.sample_scores import SampleScores
from fedaudit.metrics.individual import (
    combined_p_values,
    individual_test,
    membership_posterior_limits,
)
from fedaudit.observe.measurements import MeasuredRound, stacked
from fedaudit.results.answer import AttackAnswer, Contrast, OriginName, RunAnswer

_ORIGINS: Mapping[Origin, OriginName] = {
    Origin.MEMBER: "member",
    Origin.OTHER_CLIENT: "other_client",
    Origin.UNSEEN: "unseen",
}
_ORIGIN_OF_CONTRAST = {"unseen": Origin.UNSEEN, "other_client": Origin.OTHER_CLIENT}


def choose_nonmember_group(samples: SampleScores) -> Contrast:
    """Return the group of non-members to compare with: held-out samples if any were audited."""
    return "unseen" if (samples.origin == Origin.UNSEEN).any() else "other_client"


def reason_against_comparison(samples: SampleScores, row: int, contrast: Contrast) -> str:
    """Return the reason why a unit cannot be compared with others; empty if it can."""
    other_origins = np.delete(samples.origin, row)
    for group, origin in (
        ("members", Origin.MEMBER),
        ("non-members", _ORIGIN_OF_CONTRAST[contrast]),
    ):
        if not (other_origins == origin).any():
            return f"there are no other audited {group}"
    return ""


def evaluate_membership_of_unit(
    seed: int,
    samples: SampleScores,
    row: int,
    attacks: Sequence[str],
    contrast: Contrast,
    *,
    prior: float,
    false_alarm_rate: float,
    excluded: Mapping[str, str] | None = None,
) -> RunAnswer:
    """Return the answers of one run's attacks about a unit.

    P-values compare the unit's scores with those of the non-members in the group ``contrast``.
    The posterior compares them with these non-members and with all other members.

    Args:
        seed: Seed of the run.
        samples: The scores of one target.
        row: Row of the unit.
        attacks: Attacks to use, without the excluded attacks.
        contrast: Group of non-members with which the unit is compared.
        prior: Probability of membership before the attacks, in (0, 1).
        false_alarm_rate: Largest probability with which a non-member is flagged, in (0, 1).
        excluded: Attacks that are not used, each with the reason: a failed control, or scores
            with the wrong sign.
    """
    scores = np.stack([samples.by_attack[name] for name in attacks], axis=1)
    is_other = np.arange(len(scores)) != row
    members = scores[is_other & (samples.origin == Origin.MEMBER)]
    nonmembers = scores[is_other & (samples.origin == _ORIGIN_OF_CONTRAST[contrast])]
    other_client_scores = scores[is_other & (samples.origin == Origin.OTHER_CLIENT)]
    test = individual_test(scores[row], nonmembers)
    smallest_p_value = 1 / (1 + len(nonmembers))
    answers = []
    for column, name in enumerate(attacks):
        score, p_value = scores[row, column], test.p_values[column]
        answers.append(
            AttackAnswer(
                attack=name,
                # Fraction of the non-members that score below the unit.
                above_nonmembers=float((nonmembers[:, column] < score).mean()),
                p_value=p_value,
                flagged=is_flagged(p_value, smallest_p_value, false_alarm_rate),
                **_posterior_limits(score, members[:, column], nonmembers[:, column], prior),
                others_as_high=int((other_client_scores[:, column] >= score).sum()),
            )
        )

    def count_flagged(units: Float[ndarray, "units attacks"]) -> int:
        return int((combined_p_values(units, nonmembers) <= false_alarm_rate).sum())

    return RunAnswer(
        seed=seed,
        origin=_ORIGINS[Origin(int(samples.origin[row]))],
        members=len(members),
        nonmembers=len(nonmembers),
        others=len(other_client_scores),
        attacks=answers,
        withdrawn=dict(excluded or {}),
        p_value=test.combined,
        flagged=is_flagged(test.combined, smallest_p_value, false_alarm_rate),
        members_flagged=count_flagged(members),
        others_flagged=count_flagged(other_client_scores),
    )


def is_flagged(p_value: float, smallest_p_value: float, false_alarm_rate: float) -> bool | None:
    """Return whether a unit is flagged as a member; None if no p-value would be small enough.

    Args:
        p_value: P-value of the unit.
        smallest_p_value: Smallest p-value possible, 1 / (1 + number of non-members).
        false_alarm_rate: Largest probability with which a non-member is flagged.
    """
    return None if smallest_p_value > false_alarm_rate else p_value <= false_alarm_rate


def p_value_over_runs(runs: Sequence[RunAnswer]) -> float:
    """Return a Bonferroni-corrected p-value for the null hypothesis "non-member in all runs".

    Args:
        runs: Answers of the runs.
    """
    return min(1.0, len(runs) * min(run.p_value for run in runs))


def smallest_p_value_over_runs(runs: Sequence[RunAnswer]) -> float:
    """Return the smallest p-value that :func:`p_value_over_runs` can return for these runs."""
    return len(runs) / (1 + max(run.nonmembers for run in runs))


def _posterior_limits(
    score: float,
    members: Float[ndarray, " members"],
    nonmembers: Float[ndarray, " nonmembers"],
    prior: float,
) -> dict[str, float]:
    """Return limits of the posterior probability of membership, as fields of the answer."""
    scores = np.concatenate([members, nonmembers])
    is_member: Bool[ndarray, " units"] = np.arange(len(scores)) < len(members)
    limits = membership_posterior_limits(score, scores, is_member, prior=prior)
    return {"chance_low": limits.low, "chance_high": limits.high}


def source_posterior(
    attack: Attack,
    rounds: Sequence[MeasuredRound],
    position: int,
    sizes: Mapping[ClientId, int],
) -> dict[ClientId, float]:
    """Return the posterior of a source attack over the measured clients, for one sample.

    Args:
        attack: The attack.
        rounds: All measured rounds of a run.
        position: Position of the sample among the measured samples.
        sizes: Number of training samples of each client.

    Raises:
        BadInput: A signal that the attack needs was not measured.
        NotVisible: No client was measured.
    """
    # Select the sample. The axes of a signal are rounds, clients and samples.
    measured = {
        name: values.on_samples(torch.tensor([position]))
        for name, values in stacked(rounds).items()
    }
    posterior = attack.posterior(measured, sizes)[:, 0].tolist()
    return dict(zip(measured[attack.signals[0].name].clients, posterior, strict=True))


def label_posterior(
    counts: Mapping[ClientId, Sequence[int]], label: int, owner: ClientId
) -> dict[ClientId, float]:
    """Return the posterior over clients from label distributions alone, with equal priors.

    The sample itself is not counted, since it would raise the probability of its owner.

    Args:
        counts: Training samples of each class, for each client.
        label: Class of the sample.
        owner: Client that trains on the sample; -1 for a held-out sample.

    Returns:
        Probability of each client. All are equal if no client has another sample of the class.
    """
    frequencies = {}
    for client, classes in counts.items():
        is_owner = int(client == owner)
        total = sum(classes) - is_owner
        count = (classes[label] if 0 <= label < len(classes) else 0) - is_owner
        frequencies[client] = max(count, 0) / total if total > 0 else 0.0
    return normalise(frequencies)


def normalise(weights: Mapping[ClientId, float]) -> dict[ClientId, float]:
    """Return weights divided by their sum; equal weights if all are 0."""
    total = sum(weights.values())
    return {
        client: weight / total if total > 0 else 1 / len(weights)
        for client, weight in weights.items()
    }
