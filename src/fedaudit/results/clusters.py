"""The part of a record that is about clustered learning: who trains which model, at what risk."""

from typing import Annotated

from pydantic import Field, model_validator

from fedaudit.results.estimate import Interval
from fedaudit.results.fields import Drawn, Part, Share, Whole, refuse_disorder, refuse_ragged

EVERYBODY = "everybody"
"""The group of all clients."""

ACCURACY = "accuracy"
MODEL_RISK = "risk of the model"
MODEL_ESTIMATE = "estimated risk of the model"
CLIENT_RISK = "mean risk of a client"
CLIENT_ESTIMATE = "mean estimated risk of a client"
ESTIMATE_ERROR = "error of the estimate"
VIOLATIONS = "violations"
SURE_VIOLATIONS = "sure violations"
EXPECTED_VIOLATIONS = "expected violations"
CHANCE_VIOLATIONS = "violations by chance"
OWN_MODEL = "clients with the model"
MOVED = "clients that moved"
MOVED_AT_THE_END = "clients that moved at the end"
AGREEMENT = "agreement with the groups"
"""Figures of ``ClusterMean``; fairness gaps go by the names that ``FairnessGap`` has."""


class ModelState(Part):
    """One of the federation's models after a measured round.

    Attributes:
        clients: That trained it when they last took part.
        told: Membership risk that clients were told of it before they chose; None where the
            algorithm tells them nothing.
        estimated: Risk of it after the round by the server's shadow models: balanced accuracy
            of membership inference on samples of the server's own. None if nobody trained it.
        samples: Of the clients that trained it; 0 if nobody did, and in records of versions that
            did not say.
        shadow_samples: That each of its shadow models was trained on, fewer than ``samples`` where
            the server has too few: the estimate is then of a scaled-down model; 0 likewise.
        risk: The same attack on its real members and on samples that nobody trained on; where
            clients' classes are skewed, on as many of each class. None also where an attack on
            updates had none of this model's to see.
        low: Lower limit of ``risk`` (95%).
        high: Upper limit.
        members: Real members that were asked about.
        others: Samples of nobody that were.
        loss: Mean loss on test samples like its clients'; None if nobody trained it.
        accuracy: Share of these that it classifies correctly.
    """

    clients: Whole
    told: Share | None = None
    estimated: Share | None = None
    samples: Whole = 0
    shadow_samples: Whole = 0
    risk: Share | None = None
    low: Share | None = None
    high: Share | None = None
    members: Whole = 0
    others: Whole = 0
    loss: Drawn | None = None
    accuracy: Share | None = None

    @model_validator(mode="after")
    def _possible(self) -> "ModelState":
        refuse_disorder(self.low, self.risk, self.high)
        return self


class ClusterRound(Part):
    """A measured round of clustered learning.

    Attributes:
        round: Counted from 1.
        choice: For each client, the model that it last trained; the first for one that never
            took part, whose samples are then in none.
        models: The models after the round.
    """

    round: Whole
    choice: list[Whole]
    models: list[ModelState]


class GroupAccuracy(Part):
    """Test samples like those of one group of clients, classified by these clients' models.

    Attributes:
        group: Its name.
        clients: How many there are.
        right: Samples that the model of the client whose shift they have classifies correctly.
        tested: Such samples.
        accuracy: Their share, with Clopper-Pearson limits.
    """

    group: str
    clients: Whole
    right: Whole
    tested: Whole
    accuracy: Share
    low: Share
    high: Share

    @model_validator(mode="after")
    def _possible(self) -> "GroupAccuracy":
        refuse_disorder(self.low, self.accuracy, self.high)
        return self


class FairnessGap(Part):
    """Difference in how groups are treated: absolute, 0 is equal treatment.

    Attributes:
        metric: "demographic parity", "equal opportunity" or "equalised odds"; with many classes
            the mean over classes, one against the rest.
        value: The gap at the last measured round, with bootstrap limits.
    """

    metric: str
    value: Share
    low: Share
    high: Share

    @model_validator(mode="after")
    def _possible(self) -> "FairnessGap":
        refuse_disorder(self.low, None, self.high)
        return self


class ClusterResult(Part):
    """Models of one run: their clients, their membership risk, and how well they serve these.

    Attributes:
        algorithm: Its name in the catalogue.
        defense: Name of the defense in force, "none" without.
        seed: Root seed of the run.
        measure: How risk is measured.
        clients: In the order of ``group``, ``thresholds`` and every ``choice``.
        group_names: Of the groups of clients; "everybody" where there are none.
        group: For each client, its group.
        thresholds: For each client, the highest membership risk that it accepts.
        rounds: The measured rounds.
        joined: For each client the first round that it took part in, None where there was none;
            empty where all clients did from the first.
        violations: Clients whose model's risk is above their threshold at the end; never one that
            took no part, whose samples are in no model.
        sure_violations: Those of them whose threshold lies below the lower limit of that risk.
        expected_violations: As the server's estimates have it.
        accuracy: Group by group, and of "everybody" last where there are several.
        fairness: Gaps between the groups; empty with one group.
        fairness_note: Why there are none.
    """

    algorithm: str
    defense: str = "none"
    seed: Whole
    measure: str
    clients: Annotated[list[Whole], Field(min_length=2)]
    group_names: Annotated[list[str], Field(min_length=1)]
    group: list[Whole]
    thresholds: list[Share]
    rounds: Annotated[list[ClusterRound], Field(min_length=1)]
    joined: list[Whole | None] = Field(default_factory=list)
    violations: Whole
    sure_violations: Whole
    expected_violations: Whole
    accuracy: Annotated[list[GroupAccuracy], Field(min_length=1)]
    fairness: list[FairnessGap] = Field(default_factory=list)
    fairness_note: str = ""

    @model_validator(mode="after")
    def _possible(self) -> "ClusterResult":
        refuse_ragged(clients=self.clients, group=self.group, thresholds=self.thresholds)
        if self.joined:
            refuse_ragged(clients=self.clients, joined=self.joined)
        models = self.rounds[0].models
        for one in self.rounds:
            refuse_ragged(clients=self.clients, choice=one.choice)
            refuse_ragged(models=models, others=one.models)
            if max(one.choice) >= len(models):
                raise ValueError(f"model {max(one.choice)} of {len(models)}")
        if max(self.group) >= len(self.group_names):
            raise ValueError(f"group {max(self.group)} of {len(self.group_names)}")
        if max(self.violations, self.expected_violations) > len(self.clients):
            raise ValueError(f"more violations than the {len(self.clients)} clients")
        return self


class ClusterMean(Part):
    """A figure of clustered learning over the runs of a study.

    Attributes:
        algorithm: Its name in the catalogue.
        defense: Name of the defense in force, "none" without.
        figure: What it is: one of the names at the top of this file, or a fairness metric.
        group: Of clients; "everybody" for all of them.
        seeds: Root seeds of the runs that have this figure.
        values: One a seed.
        value: Their mean.
        low: Lower limit for these runs. None where nothing makes an interval, and for numbers of
            clients, which are counted in these runs.
        high: Upper limit; None likewise.
        method: How the interval was made.
        further: What further runs would give; None of one run, and in older records.
        note: What to bear in mind, such as runs without this figure.
    """

    algorithm: str
    defense: str = "none"
    figure: str
    group: str
    seeds: Annotated[list[Whole], Field(min_length=1)]
    values: list[Drawn]
    value: Drawn
    low: Drawn | None = None
    high: Drawn | None = None
    method: str = ""
    note: str = ""
    further: Interval | None = None

    @model_validator(mode="after")
    def _possible(self) -> "ClusterMean":
        refuse_ragged(seeds=self.seeds, values=self.values)
        # A bootstrap of an absolute gap may leave out the gap itself.
        refuse_disorder(self.low, None, self.high)
        return self
