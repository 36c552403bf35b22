"""Detection of planted models in a record: signs as estimates, and how they were measured.

A sign's figures stand at the topic "detector": ``attack`` is the kind of server, ``group`` the
sign. At a threshold that was chosen on other runs, one model of each run is judged.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, model_validator

from fedaudit.results.estimate import Estimate
from fedaudit.results.fields import Drawn, Part, Seconds, Whole

DETECTOR = "detector"
"""Topic of its figures."""

SIGN_AUC = "auc"
"""Chance that a planted model looks more suspicious than an honest one, of any runs."""
OWN_AUC = "own_auc"
"""The same where the target is among the client's own records."""
OTHERS_AUC = "others_auc"
"""The same where it is not."""
DETECTED = "detection_rate"
"""Planted models found at the threshold."""
FALSE_ALARMS = "false_alarm_rate"
"""Honest models taken for planted at it."""
SERVER_SUCCESS = "attack_success_rate"
"""How often a kind of server would be right (Adv) with such neurons, by the records that they fire
for."""
HONEST_ACCURACY = "accuracy"
"""Of the honest models of last rounds on the server's records."""

_OF_A_SIGN = (SIGN_AUC, OWN_AUC, OTHERS_AUC, DETECTED, FALSE_ALARMS)


class Outline(Part):
    """Counts of weights in each bin.

    Attributes:
        server: How neurons were planted; empty for weights of honest models.
        counts: One a bin.
    """

    server: Annotated[str, Field(max_length=60)]
    counts: Annotated[list[Whole], Field(max_length=200)]


class WeightSpread(Part):
    """Weights of first layers' units that a server takes, before and after.

    Attributes:
        edges: Of the bins, ascending; weights beyond the ends are in the outer bins.
        outlines: For the honest models, and for each kind of server.
    """

    edges: Annotated[list[Drawn], Field(min_length=2, max_length=201)]
    outlines: Annotated[list[Outline], Field(max_length=10)]

    @model_validator(mode="after")
    def _bins(self) -> "WeightSpread":
        if any(len(one.counts) != len(self.edges) - 1 for one in self.outlines):
            raise ValueError("bins lie between the edges")
        if sorted(self.edges) != self.edges:
            raise ValueError("edges ascend")
        return self


class Detector(Part):
    """Detection of planted models by a client, measured on real federations.

    Attributes:
        federation: How the federations were trained, in words.
        runs: Of them.
        judged: Runs that figures at a threshold are from; it was chosen on the others.
        honest: Honest models in all.
        planted: Models with a neuron, for each kind of server.
        own: Records of the client's own that it looks at models with.
        weights: How weights are spread.
        seconds: That this took.
    """

    federation: Annotated[str, Field(max_length=400)]
    runs: Whole
    judged: Whole
    honest: Whole
    planted: Whole
    own: Whole
    weights: WeightSpread | None = None
    seconds: Seconds = 0.0


class Detection(Detector):
    """A detector with its figures.

    Attributes:
        estimates: On its topic alone.
    """

    estimates: list[Estimate]

    @model_validator(mode="after")
    def _possible(self) -> "Detection":
        self.refuse_impossible()
        return self

    def refuse_impossible(self) -> None:
        """Refuses signs without a figure that every sign has, or without any sign.

        Raises:
            ValueError: Which.
        """
        signs = self.signs
        if not signs or len(self.estimates) > _MOST_FIGURES:
            raise ValueError(f"a detector has from one sign to {_MOST_FIGURES} figures")
        for (server, sign), found in signs.items():
            for metric in _OF_A_SIGN:
                if metric not in found or found[metric].value is None:
                    raise ValueError(f"sign {sign[:60]!r} of {server[:60]!r} has no {metric}")

    @property
    def signs(self) -> Mapping[tuple[str, str], Mapping[str, Estimate]]:
        """Figures by server and sign, by their metric."""
        found: dict[tuple[str, str], dict[str, Estimate]] = {}
        for one in self.estimates:
            if one.group:
                found.setdefault((one.attack, one.group), {})[one.metric] = one
        return found

    def success(self, server: str) -> float | None:
        """Success rate for a kind of server; None where it was not measured."""
        return next(
            (
                one.value
                for one in self.estimates
                if (one.metric, one.attack, one.group) == (SERVER_SUCCESS, server, "")
            ),
            None,
        )


_MOST_FIGURES = 2000


def detection(detector: Detector | None, estimates: Sequence[Estimate]) -> Detection | None:
    """A record's detector with its figures; None where it has none."""
    if detector is None:
        return None
    own = [one for one in estimates if one.topic == DETECTOR]
    return Detection.model_construct(**dict(detector), estimates=own)
