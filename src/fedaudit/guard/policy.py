"""Policy of a guard: the attacks that it runs on an upload, and the limit of their AUCs."""

from bisect import bisect_left
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from scipy.special import ndtri

from fedaudit.attacks import catalogue_spellings, resolve_attack
from fedaudit.attacks.base import Attack
from fedaudit.attacks.rules import Slope
from fedaudit.core.errors import BadInput
from fedaudit.core.values import Capability
from fedaudit.live.decisions import value_to_compare
from fedaudit.metrics import auc_interval
from fedaudit.results.fields import SMALLEST_GROUP
from fedaudit.results.guessing import STRONG_LEAK
from fedaudit.results.runs import DecideBy

ATTACKS = ("blackbox-loss", "loss-series", "avg-cosine", "avg-projres", "fta-l")
"""Default attacks of a guard. Each uses only losses or gradients at the client's own uploads."""

_MAX_SEARCHED = 10**5
"""Largest number of members, and of held-out samples, that an error advises."""

_MAX_SHIFT = 8.0
"""Distance of two normal distributions of standard deviation 1 that do not overlap."""
_SHIFT_PRECISION = 1e-3
"""Precision of such a distance. The error of the AUC is less than a third of it."""


def _raise_if_repeated(names: tuple[str, ...]) -> tuple[str, ...]:
    if len({*names}) < len(names):
        raise ValueError("an attack is named twice; name it once")
    return names


class GuardPolicy(BaseModel):
    """Rules by which a guard decides whether an upload is sent.

    Attributes:
        limit: Largest AUC that an attack may reach; 0.5 is chance level. An AUC below 0.5 counts as
            1 minus the AUC, because an adversary can reverse the scores. A limit of 1 is refused
            because it allows every upload. With ``decide_by = "lower"``, a limit is refused as too
            high if even a perfect attack's lower confidence limit would not exceed it. With
            "upper", it is refused as too low if a chance-level attack's upper confidence limit
            would exceed it. A guard warns if it may send an upload with an AUC above 0.7, from
            which reports call a leak strong.
        decide_by: Value that is compared with the limit. With "upper", an upload is sent only if
            the upper confidence limit of every attack is at most the limit, so with few audited
            samples, nothing is sent. "estimate" compares the AUC, so an upload whose true AUC
            equals the limit is sent half of the time. With "lower", an upload is withheld only if a
            lower confidence limit is above the limit, so with few audited samples, almost
            everything is sent.
        attacks: Names of the attacks. Each must use only signals of this client.
        confidence: Two-sided confidence level. With "lower", the error probability (1 minus the
            confidence) is divided among the attacks (Bonferroni). With "upper", it is not, because
            every attack must pass.
        smallest_audit: Smallest allowed number of members, and of held-out samples.
        most_uploads: Largest number of uploads that are measured in a run. The error probability is
            divided among these uploads (Bonferroni), so that the confidence holds for the run, and
            later uploads are withheld. An upload that is filtered is measured before and after
            filtering, and counts twice. By default, the number is not limited, and the confidence
            holds for each upload.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    limit: Annotated[float, Field(gt=0.5, lt=1, strict=True)]
    decide_by: DecideBy = "upper"
    attacks: Annotated[
        tuple[Annotated[str, Field(max_length=100)], ...],
        Field(min_length=1, max_length=100),
        AfterValidator(_raise_if_repeated),
    ] = ATTACKS
    confidence: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.95
    smallest_audit: Annotated[int, Field(ge=SMALLEST_GROUP, le=10**9, strict=True)] = 50
    most_uploads: Annotated[int | None, Field(ge=1, le=10**6, strict=True)] = None

    @model_validator(mode="after")
    def _raise_if_no_error_to_divide(self) -> "GuardPolicy":
        if self.most_uploads is not None and self.decide_by == "estimate":
            raise ValueError(
                "most_uploads divides the error probability of confidence limits, but decide_by "
                '"estimate" uses no confidence limits; set decide_by to "upper" or "lower"'
            )
        return self

    @property
    def level(self) -> float:
        """Two-sided confidence level of each attack's limits, after Bonferroni's correction."""
        n_attacks = len(self.attacks) if self.decide_by == "lower" else 1
        n_uploads = self.most_uploads or 1
        return 1 - (1 - self.confidence) / (n_attacks * n_uploads)

    def catalogue(self) -> dict[str, Attack]:
        """Return the attacks by name.

        Raises:
            BadInput: An attack is unknown, or needs more than the client's own uploads, or all
                attacks need uploads of several rounds.
        """
        attacks = {name: resolve_attack(name) for name in catalogue_spellings(self.attacks)}
        for name, attack in attacks.items():
            learns = attack.learns or attack.needs_references or attack.needs_side_information
            if attack.infers_source or attack.compares_clients or learns:
                raise BadInput(
                    f"the attack {name!r} needs more than the uploads of one client, which is all "
                    "that a guard measures; name attacks on a client's own signals, such as "
                    f"{', '.join(ATTACKS)}"
                )
            if attack.settings().get("snapshot") == "global":
                raise BadInput(
                    f"the attack {name!r} uses global models, but a guard measures only what its "
                    "client sends; omit it"
                )
            if attack.needs & Capability.CONTROL_VARIATES:
                raise BadInput(
                    f"the attack {name!r} uses control variates, but a guard measures only updates "
                    "of models; omit it"
                )
            if attack.needs & (
                Capability.REFERENCE_MODELS | Capability.CHOOSES_UPLOAD | Capability.CHOOSES_MODEL
            ):
                raise BadInput(
                    f"the attack {name!r} needs a stronger adversary than a server that follows "
                    "the protocol; omit it"
                )
        if all(isinstance(attack.rule, Slope) for attack in attacks.values()):
            raise BadInput(
                f"the attacks {', '.join(attacks)} compare uploads of several rounds, so that no "
                "first upload could be measured and sent; add an attack that needs one round, such "
                "as blackbox-loss"
            )
        return attacks

    def exceeds(self, value: float, low: float | None, high: float | None) -> bool:
        """Return True if an AUC is above the limit; a missing confidence limit counts as above.

        Args:
            value: AUC.
            low: Lower confidence limit of the AUC at :attr:`level`; None without an interval.
            high: Upper confidence limit of the AUC.
        """
        if low is None or high is None:
            return (
                self.decide_by != "estimate"
                or not value_to_compare("estimate", value, 0.0, 1.0) <= self.limit
            )
        return not value_to_compare(self.decide_by, value, low, high) <= self.limit

    def raise_if_audit_too_small(self, members: int, held_out: int) -> None:
        """Raise if an audit is too small for this policy to decide anything.

        Args:
            members: Number of members.
            held_out: Number of held-out samples.

        Raises:
            BadInput: There are fewer members or held-out samples than :attr:`smallest_audit`. With
                "upper", an upload without a leak would be withheld. With "lower", an upload that
                leaks all members would be sent.
        """
        if min(members, held_out) < self.smallest_audit:
            raise BadInput(
                f"the audit has {members} members and {held_out} held-out samples, and the policy "
                f"requires {self.smallest_audit} of each; audit more samples (fair_split's "
                "audited), or lower smallest_audit"
            )
        if self.decide_by == "upper" and self._exceeds(*_chance_level_scores(members, held_out)):
            needed, advice = self._smallest_sufficient_audit(), ""
            if needed is not None:
                advice = (
                    f"audit about {4 * needed} samples (then, for each attack, more than half of "
                    "the uploads that do not leak pass), "
                )
            raise BadInput(
                f"with {members} members and {held_out} held-out samples, the upper confidence "
                f"limit of an attack that guesses is above {self.limit:g}, so that every upload "
                f"would be withheld; {advice}raise the limit, or decide by 'estimate'"
            )
        if self.decide_by == "lower" and not self._exceeds(*_perfect_scores(members, held_out)):
            raise BadInput(
                f"with {members} members and {held_out} held-out samples, the lower confidence "
                f"limit of an attack that finds every member is at most {self.limit:g}, so that "
                "nothing would be withheld; audit more samples, lower the limit, or decide by "
                "'estimate'"
            )

    def smallest_withheld_auc(self, members: int, held_out: int) -> float:
        """Compute the AUC from which an attack exceeds the limit.

        The scores are evenly spaced quantiles of two normal distributions.

        Args:
            members: Number of members.
            held_out: Number of held-out samples.
        """
        if self.decide_by == "estimate":
            return self.limit
        member_scores, scores = map(ndtri, _chance_level_scores(members, held_out))
        low, high = 0.0, _MAX_SHIFT
        while high - low > _SHIFT_PRECISION:
            middle = (low + high) / 2
            if self._exceeds(member_scores + middle, scores):
                high = middle
            else:
                low = middle
        return auc_interval(*_labelled(member_scores + high, scores)).value

    def warning(self, members: int, held_out: int) -> str:
        """Return a warning if uploads with a strong leak are sent; else "".

        With "upper" and "estimate", these are uploads with an AUC up to the limit. With "lower",
        the AUC is larger than the limit, and depends on the audit.

        Args:
            members: Number of members.
            held_out: Number of held-out samples.
        """
        largest, advice = self.limit, "lower the limit"
        if self.decide_by == "lower":
            largest = self.smallest_withheld_auc(members, held_out)
            advice = "lower the limit, audit more samples, or decide by 'upper'"
        if largest <= STRONG_LEAK:
            return ""
        return (
            f"the policy may send uploads with an AUC of up to {largest:.3g}, and reports call a "
            f"leak strong from {STRONG_LEAK}; {advice}, unless you accept strong leaks"
        )

    def _smallest_sufficient_audit(self) -> int | None:
        """Return the smallest number of members, and of held-out samples, that is sufficient.

        With fewer, even an attack at chance level exceeds the limit. None if more than
        :data:`_MAX_SEARCHED` are needed.
        """

        def is_sufficient(size: int) -> bool:
            return not self._exceeds(*_chance_level_scores(size, size))

        # The interval at chance level narrows with each sample, so the sizes are sorted. Large
        # sizes take longest, so the upper end is doubled from below.
        high = SMALLEST_GROUP
        while not is_sufficient(high):
            high *= 2
            if high > _MAX_SEARCHED:
                return None
        return bisect_left(range(high), True, lo=SMALLEST_GROUP, key=is_sufficient)

    def _exceeds(self, members: np.ndarray, held_out: np.ndarray) -> bool:
        """Return whether an attack with these scores exceeds the limit."""
        interval = auc_interval(*_labelled(members, held_out), confidence=self.level)
        return self.exceeds(interval.value, interval.low, interval.high)


def _labelled(members: np.ndarray, held_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all scores, and whether each is of a member."""
    scores = np.concatenate([members, held_out])
    return scores, np.arange(len(scores)) < len(members)


def _chance_level_scores(members: int, held_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of members and held-out samples with an AUC of 0.5, evenly spaced."""
    return (np.arange(members) + 0.5) / members, (np.arange(held_out) + 0.5) / held_out


def _perfect_scores(members: int, held_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of members and held-out samples with an AUC of 1."""
    return 1.0 + np.arange(members), -1.0 - np.arange(held_out)
