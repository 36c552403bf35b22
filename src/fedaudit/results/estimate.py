"""An estimate: one number, how sure it is, and where it stands."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Literal

from pydantic import Field, PrivateAttr, model_validator

from fedaudit.results.fields import Drawn, Limits, Part, Share, Whole, refuse_disorder
from fedaudit.results.metrics import Range, range_of

NO_DEFENSE = "none"
"""Name of the defense in force where there is none."""
AT_THRESHOLD = "at the threshold used"
"""Of limits that take a rate's threshold as given; no verdict rests on them."""
PEOPLE_IGNORED = "people ignored"
"""End of the method of limits that take several samples of one person as independent."""
GUESSING = "guessing"
"""Null hypothesis: the attack does as well as a guess."""
BOOTSTRAP = "bootstrap"
"""How the method of limits from resampled data begins."""

_FIGURES = "figures"
_OWN = ("metric", "value")
"""Never shared, so that a short file cannot stand for millions of figures."""


class Coordinates(Part):
    """The place of an estimate: what does not apply is left at its default.

    Attributes:
        topic: What was asked: "membership", "source", "clusters", "utility".
        algorithm: By which clients choose between models; empty elsewhere.
        attack: Catalogue name of the attack; empty for a figure of the run itself.
        defense: Name of the defense in force, "none" without.
        view: What the adversary saw.
        contrast: Members against "other_client", "unseen" or "mixed" non-members. Of source
            inference, the samples that were asked about: "own", random ones of each client's
            training data, or "fair", those of a fair draw with its target's label distribution.
        unit: Whose membership was asked for: that of single samples, or of people with all of
            their samples.
        target: The client under audit; None for a figure over all audited clients together.
        within: What members and non-members that are compared have in common: their "class", or
            the "client" whose coin decided about them; empty for all pairs.
        by: What the samples of one group have in common: their "class", or the "client" that
            holds them.
        group: Name of that group, or of a group of clients.
        point: Label of a point of a sweep, as in a study of games.
        seed: Root seed of the run; None for a figure over the runs of a study.
    """

    topic: str = "membership"
    algorithm: str = ""
    attack: str = ""
    defense: str = NO_DEFENSE
    view: str = "uploads"
    contrast: str = "mixed"
    unit: Literal["sample", "person"] = "sample"
    target: Whole | None = None
    within: Literal["", "class", "client"] = ""
    by: Literal["", "class", "client"] = ""
    group: str = ""
    point: str = ""
    seed: Whole | None = None


class Interval(Limits[Drawn]):
    """Limits of a figure.

    Attributes:
        method: How the limits were made, with their level, or why there are none.
    """

    method: str = ""


class Test(Part):
    """A test that a figure is above what its null hypothesis gives.

    Attributes:
        null: What would explain the figure: "guessing", ...
        level: The figure to be expected under the null hypothesis.
        high: Upper 95% quantile of the figure under it.
        p_value: Not corrected; over runs, theirs combined by Fisher's method. None in records that
            state the outcome alone.
        two_sided: True for a p-value of a figure that is other than the level, either way.
        adjusted: The smallest error over the family at which it is significant (Holm).
        significant: Whether it is at the study's own error, corrected over the study's family;
            None of a test that is in no family, as that of one run of several.
    """

    null: str = GUESSING
    level: Drawn | None = None
    high: Drawn | None = None
    p_value: Share | None = None
    two_sided: bool = False
    adjusted: Share | None = None
    significant: bool | None = None


class Estimate(Interval, Coordinates):
    """One number with its intervals and tests, at its coordinates.

    Attributes:
        metric: "auc", "tpr@0.01", "balanced_accuracy", "epsilon", "formal_epsilon", ...
        against: For a difference, what the figure is less: the null hypothesis of one of its tests.
        value: The figure; None where it was refused.
        low: Lower limit for these runs; None for a figure without one, as for a rate with too few
            non-members for any.
        at_threshold: For a rate, limits of the share of members above the threshold that was used,
            whatever its true false-positive rate.
        further: For a figure over several runs, what further runs of the same procedure would
            give: runs as units, from five on. A verdict never rests on it.
        tests: Against what would explain the figure, corrected over the study's family.
        n_members: Members behind the figure.
        n_nonmembers: Non-members behind it.
        samples: Samples behind a figure that does not divide them into these.
        fair: True if one draw decided between members and non-members, so that they differ in
            nothing but membership. Where it is False, differences between clients or pools of
            samples may be part of the figure; no headline or gate rests on it if there is a fair
            one.
        labels_alone: AUC of the best score that sees labels and no model, learned on one half of
            the samples and judged on the other; None where it was not computed.
        realised_fpr: False-positive rate really reached at the threshold, for rates at one.
        ceiling: The most this figure could have been with a perfect attack; of numbers of clients
            how many there are.
        note: Why a figure is refused or what to bear in mind ("inconclusive: needs ...").
    """

    metric: str
    against: str = ""
    value: float | None
    at_threshold: Interval | None = None
    further: Interval | None = None
    tests: list[Test] = Field(default_factory=list)
    n_members: Whole = 0
    n_nonmembers: Whole = 0
    samples: Whole = 0
    fair: bool = True
    labels_alone: Share | None = None
    realised_fpr: Share | None = None
    ceiling: float | None = None
    note: str = ""
    _doubt: str = PrivateAttr("")

    @model_validator(mode="after")
    def _possible(self) -> "Estimate":
        least, most = self.range
        for number in (self.value, self.low, self.high, self.ceiling):
            if number is not None and not least <= number <= most:
                raise ValueError(f"{number:g} is not in [{least:g}, {most:g}]")
        # A bootstrap of an absolute difference may leave out the difference itself.
        resampled = self.method.startswith(BOOTSTRAP)
        refuse_disorder(self.low, None if resampled else self.value, self.high)
        for limits in (self.at_threshold, self.further):
            if limits is not None:
                refuse_disorder(limits.low, self.value, limits.high)
        return self

    @property
    def doubt(self) -> str:
        """The failed control that takes this figure back; empty without one.

        It follows from the controls of a record, and is no part of the record.
        """
        return self._doubt

    def doubted(self, doubt: str) -> "Estimate":
        """Return the figure with the failed control that takes it back."""
        copy = self.model_copy()
        copy._doubt = doubt
        return copy

    @property
    def number(self) -> float:
        """The value of a figure that was not refused.

        Raises:
            ValueError: It was.
        """
        if self.value is None:
            raise ValueError(f"{self.metric} was refused: {self.note}")
        return self.value

    @property
    def range(self) -> Range:
        """The range that the figure lies in."""
        least, most = range_of(self.metric)
        return Range(least - most, most) if self.against else Range(least, most)

    def test(self, null: str = "") -> Test | None:
        """The test of a null hypothesis; the figure's own, by default. None without that test."""
        asked = null or self.against or GUESSING
        return next((test for test in self.tests if test.null == asked), None)

    @property
    def significant(self) -> bool | None:
        """The answer of its own corrected test; None if untested."""
        test = self.test()
        return None if test is None else test.significant

    @property
    def level(self) -> float | None:
        """The figure to be expected under its null hypothesis; None where no test states it."""
        test = self.test()
        return None if test is None else test.level


def tests_of(significant: bool | None) -> list[Test]:
    """The test against guessing with this outcome; none where it is None."""
    return [] if significant is None else [Test(significant=significant)]


_AT = tuple(Coordinates.model_fields)


def compact(estimates: Sequence[Estimate]) -> list[dict[str, object]]:
    """Neighbours at the same coordinates as one entry: what they share, and their figures."""
    return [
        _together([one.model_dump(mode="json", exclude_defaults=True) for one in same])
        for _, same in groupby(estimates, key=_coordinates)
    ]


def expanded(given: object) -> object:
    """One entry a figure; what is no such list is given back for the format to refuse."""
    if not isinstance(given, list):
        return given
    found: list[object] = []
    for entry in given:
        figures = entry.get(_FIGURES) if isinstance(entry, Mapping) else None
        if not isinstance(figures, list):
            found.append(entry)
            continue
        shared = {name: value for name, value in entry.items() if name not in (_FIGURES, *_OWN)}
        found += [{**shared, **one} if isinstance(one, Mapping) else one for one in figures]
    return found


def _coordinates(one: Estimate) -> tuple[object, ...]:
    return tuple(getattr(one, name) for name in _AT)


def _together(entries: Sequence[dict[str, object]]) -> dict[str, object]:
    first, *others = entries
    if not others:
        return first
    shared = {
        name: value
        for name, value in first.items()
        if name not in _OWN and all(name in one and one[name] == value for one in others)
    }
    figures = [{k: v for k, v in one.items() if k not in shared} for one in entries]
    return {**shared, _FIGURES: figures}
