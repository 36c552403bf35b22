"""Answer about one sample or person, which holds personal data and belongs to no record or pack."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedaudit.results.fields import Count, Part, Share, refuse_disorder, refuse_ragged

OriginName = Literal["member", "other_client", "unseen"]
Contrast = Literal["unseen", "other_client"]


class AttackAnswer(Part):
    """What one attack in one run shows of a unit, which is a sample or a person.

    Attributes:
        attack: Name of the attack.
        above_nonmembers: Share of non-members that score strictly below the unit.
        p_value: P-value of "the unit is not a member", by this attack alone.
        flagged: Whether ``p_value`` is at most the false-alarm rate; None if no score could reach
            it with so few non-members.
        chance_low: Lower 95 % limit of the chance of membership at the prior, among units that
            score at least as high.
        chance_high: Its upper 95 % limit.
        others_as_high: Audited members of other clients that score at least as high.
    """

    attack: str
    above_nonmembers: Share
    p_value: Share
    flagged: bool | None
    chance_low: Share
    chance_high: Share
    others_as_high: Count = 0

    @model_validator(mode="after")
    def _possible(self) -> "AttackAnswer":
        refuse_disorder(self.chance_low, None, self.chance_high)
        return self


class RunAnswer(Part):
    """What the attacks in one run show of a unit.

    Attributes:
        seed: Seed of the run.
        origin: Where the unit comes from, as the audit knows.
        members: Number of other audited members.
        nonmembers: Number of non-members that it is compared with.
        others: Number of audited units of other clients.
        attacks: The attacks that are relied on; at least one.
        withdrawn: Reason for each attack that is not relied on, by name.
        p_value: P-value of all attacks together.
        flagged: Whether it is at most the false-alarm rate; None if none could be.
        members_flagged: Number of the other audited members that the attacks together flag.
        others_flagged: Number of the other clients' units that they flag, which may exceed the
            false-alarm rate, since others' training also leaves traces.
    """

    seed: Count
    origin: OriginName
    members: Count
    nonmembers: Count
    others: Count
    attacks: Annotated[list[AttackAnswer], Field(min_length=1)]
    withdrawn: dict[str, str] = Field(default_factory=dict)
    p_value: Share
    flagged: bool | None
    members_flagged: Count
    others_flagged: Count


class SourceAnswer(Part):
    """Posterior over clients of one source attack in one run.

    Attributes:
        attack: Name of the attack.
        seed: Seed of the run.
        clients: Names of the clients.
        posterior: The attack's posterior.
        by_labels: Posterior by the clients' label distributions alone, for equal priors and without
            the sample itself; empty if they are unknown.
        with_labels: The attack's posterior with that as its prior; empty likewise.
    """

    attack: str
    seed: Count
    clients: Annotated[list[str], Field(min_length=2)]
    posterior: list[Share]
    by_labels: list[Share] = Field(default_factory=list)
    with_labels: list[Share] = Field(default_factory=list)

    @model_validator(mode="after")
    def _even(self) -> "SourceAnswer":
        refuse_ragged(clients=self.clients, posterior=self.posterior)
        if self.by_labels:
            refuse_ragged(
                clients=self.clients, by_labels=self.by_labels, with_labels=self.with_labels
            )
        return self


class AnswerFields(Part):
    """Answer to the question whether a client trained on one sample or person.

    A flag is evidence that the released models reveal membership to this adversary, not proof of
    membership. A missing flag is no proof of non-membership.

    Attributes:
        record: Name of the record.
        content_hash: Its content hash.
        unit: "sample" or "person".
        number: Id of the sample in the data set of the first run, or number of the person.
        row: Row of the unit in the scores of the first run, as ``Run.scores`` returns them.
        client: Name of the client under audit.
        contrast: Non-members: "unseen", or "other_client" if no held-out sample was audited.
        false_alarm_rate: Largest probability with which a non-member is flagged.
        prior: Probability of membership before the attacks.
        prior_is_assumed: True if the asker stated no prior, so that 0.5 was assumed.
        runs: Answer of each run in which the unit was audited.
        p_value: P-value over all attacks and runs (Bonferroni's correction for the runs).
        flagged: Whether it is at most the false-alarm rate; None if no scores could reach it with
            so few non-members.
        sources: Posteriors over clients, if the result has source attacks and measurements.
        caveats: What limits the answer.
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
    false_alarm_rate: Share
    prior: Share
    prior_is_assumed: bool
    runs: Annotated[list[RunAnswer], Field(min_length=1)]
    p_value: Share
    flagged: bool | None
    sources: list[SourceAnswer] = Field(default_factory=list)
    caveats: list[str] = Field(default_factory=list)
