"""Answer about one sample or person. It is personal data, and no record or pack contains it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedaudit.results.fields import (
    Count,
    Fraction,
    RecordPart,
    raise_if_lengths_differ,
    raise_if_limits_unordered,
)

OriginName = Literal["member", "other_client", "unseen"]
Contrast = Literal["unseen", "other_client"]


class AttackAnswer(RecordPart):
    """Result of one attack in one run about a unit, which is a sample or a person.

    Attributes:
        attack: Name of the attack.
        above_nonmembers: Fraction of non-members that score strictly below the unit.
        p_value: P-value of the null hypothesis that the unit is not a member, by only this attack.
        flagged: Whether ``p_value`` is at most the false-alarm rate. None if there are so few
            non-members that no score could reach it.
        chance_low: Lower 95 % limit of the posterior: the probability that a unit with at least
            this score is a member, given the prior.
        chance_high: Upper 95 % limit of the posterior.
        others_as_high: Number of other clients' audited members that score at least as high.
    """

    attack: str
    above_nonmembers: Fraction
    p_value: Fraction
    flagged: bool | None
    chance_low: Fraction
    chance_high: Fraction
    others_as_high: Count = 0

    @model_validator(mode="after")
    def _validate_numbers(self) -> "AttackAnswer":
        raise_if_limits_unordered(self.chance_low, None, self.chance_high)
        return self


class RunAnswer(RecordPart):
    """Result of all attacks in one run about a unit.

    Attributes:
        seed: Seed of the run.
        origin: True origin of the unit, which the audit knows.
        members: Number of other audited members.
        nonmembers: Number of non-members with which the unit is compared.
        others: Number of audited units of other clients.
        attacks: Results of reliable attacks; at least one.
        withdrawn: By name of an unreliable attack, the reason why it is not used.
        p_value: P-value of all attacks together.
        flagged: Whether ``p_value`` is at most the false-alarm rate; None if no score could reach
            it.
        members_flagged: Number of the other audited members that the attacks together flag.
        others_flagged: Number of other clients' units that the attacks together flag. Their
            fraction may exceed the false-alarm rate, since training by other clients also leaves
            traces.
    """

    seed: Count
    origin: OriginName
    members: Count
    nonmembers: Count
    others: Count
    attacks: Annotated[list[AttackAnswer], Field(min_length=1)]
    withdrawn: dict[str, str] = Field(default_factory=dict)
    p_value: Fraction
    flagged: bool | None
    members_flagged: Count
    others_flagged: Count


class SourceAnswer(RecordPart):
    """Posterior probability of each client, by one source attack in one run.

    Attributes:
        attack: Name of the attack.
        seed: Seed of the run.
        clients: Names of the clients.
        posterior: Posterior probabilities by the attack, for equal priors.
        by_labels: Posterior probabilities by only the clients' label distributions, for equal
            priors and without the sample itself; empty if the distributions are unknown.
        with_labels: Posterior probabilities by the attack, with ``by_labels`` as the prior; empty
            if the distributions are unknown.
    """

    attack: str
    seed: Count
    clients: Annotated[list[str], Field(min_length=2)]
    posterior: list[Fraction]
    by_labels: list[Fraction] = Field(default_factory=list)
    with_labels: list[Fraction] = Field(default_factory=list)

    @model_validator(mode="after")
    def _validate_lengths(self) -> "SourceAnswer":
        raise_if_lengths_differ(clients=self.clients, posterior=self.posterior)
        if self.by_labels:
            raise_if_lengths_differ(
                clients=self.clients, by_labels=self.by_labels, with_labels=self.with_labels
            )
        return self


class AnswerFields(RecordPart):
    """Answer to the question whether a client trained on one sample or person.

    A flag is evidence that the released models reveal membership to this adversary, not proof of
    membership. A missing flag is no proof of non-membership.

    Attributes:
        record: Name of the record.
        content_hash: Content hash of the record.
        unit: "sample" or "person".
        number: Id of the sample in the data set of the first run, or number of the person.
        row: Row of the unit in the scores of the first run, as ``Run.scores`` returns them.
        client: Name of the client under audit.
        contrast: Non-members that were compared: "unseen" (held-out samples), or "other_client" if
            no held-out sample was audited.
        false_alarm_rate: Maximum probability of flagging a non-member.
        prior: Probability of membership before the attacks.
        prior_is_assumed: True if no prior was given, so that 0.5 was assumed.
        runs: Result of each run in which the unit was audited.
        p_value: P-value over all attacks and runs (Bonferroni's correction for the runs).
        flagged: Whether ``p_value`` is at most the false-alarm rate. None if there are so few
            non-members that no score could reach it.
        sources: Posterior probabilities of clients, if the result has source attacks and
            measurements.
        caveats: Limitations of the answer.
    """

    format: Literal["fedaudit-answer"] = "fedaudit-answer"
    version: Literal[1] = 1
    record: str
    content_hash: str
    unit: Literal["sample", "person"]
    number: Count
    row: Count
    client: str
    contrast: Contrast
    false_alarm_rate: Fraction
    prior: Fraction
    prior_is_assumed: bool
    runs: Annotated[list[RunAnswer], Field(min_length=1)]
    p_value: Fraction
    flagged: bool | None
    sources: list[SourceAnswer] = Field(default_factory=list)
    caveats: list[str] = Field(default_factory=list)
