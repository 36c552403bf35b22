"""The part of a record that says what each source attack found over all runs, and what it shows."""

from typing import Annotated

from pydantic import Field, model_validator

from fedaudit.results.estimate import Interval
from fedaudit.results.fields import Change, Part, Share, Whole, refuse_disorder, without


class Mean(Part):
    """A share, or a difference of shares, over the runs of a study.

    Attributes:
        value: That of the one run, or the mean.
        low: Lower limit for these runs; None where nothing makes an interval.
        high: Upper limit; None likewise.
        method: How the interval was made, with its level.
        further: What further runs would give; None of one run, and in older records.
    """

    value: Change
    low: Change | None
    high: Change | None
    method: str
    further: Interval | None = None

    @model_validator(mode="after")
    def _possible(self) -> "Mean":
        refuse_disorder(self.low, self.value, self.high)
        if self.further is not None:
            refuse_disorder(self.further.low, self.value, self.further.high)
        return self

    def above(self, level: float) -> bool:
        """True if the interval lies above a level; the value alone where there is none."""
        return (self.value if self.low is None else self.low) > level


class Tested(Part):
    """A test of the attack success rate against something that knows no model.

    Attributes:
        p_value: One-sided; the runs' combined by Fisher's method, not corrected.
        adjusted: The smallest error over all source attacks of the study at which it would be
            significant (Holm).
        significant: Whether it is at the study's own error.
    """

    p_value: Share
    adjusted: Share
    significant: bool


class SourceFigure(Part):
    """One attack on sources under one defense and view, over the runs of a study.

    Each attack answers once a run: from the round, or the rounds, that it says beforehand. These
    answers are what is tested. Success in single rounds is in the runs' own results, untested.

    Attributes:
        attack: Catalogue name.
        defense: Name of the defense in force, "none" without.
        view: What the adversary saw.
        seeds: Root seeds of the runs.
        chance: Success of a guess.
        success: Share of samples whose owner is named.
        null_high: 95% quantile of the success when owners are shuffled among the samples, mean.
        mixes: Success when owners are shuffled within each class, mean.
        excess: Success less that, run by run.
        label_baseline: Success of naming the client of whose data the sample's class is the
            largest share, mean; None in records of a version that took the largest count.
        over_label_baseline: Success less that, run by run; None likewise.
        guessing: Against shuffled owners.
        class_mixes: Against owners shuffled within each class.
        label_baseline_test: Against the label-distribution baseline on the same samples; None
            where a run was not tested.
        above_guessing: By test and interval.
        above_mixes: By test and interval, and above guessing too.
        above_label_baseline: Likewise; of one run, which has no such interval, by the test. None
            where the test is.
    """

    attack: str
    defense: str = "none"
    view: str = "uploads"
    seeds: Annotated[list[Whole], Field(min_length=1)]
    chance: Share
    success: Mean
    null_high: Share
    mixes: Share
    excess: Mean
    label_baseline: Share | None = None
    over_label_baseline: Mean | None = None
    guessing: Tested
    class_mixes: Tested
    label_baseline_test: Tested | None = None
    above_guessing: bool
    above_mixes: bool
    above_label_baseline: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_counts(cls, given: object) -> object:
        return without(given, "blind", "over_blind", "blind_guess", "above_blind")
