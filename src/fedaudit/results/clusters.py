"""The part of a record that is about clustered learning: who trains which model, at what risk."""

from typing import Annotated

from pydantic import Field, model_validator

from fedaudit.results.fields import Drawn, Part, Share, Whole, refuse_disorder, refuse_ragged

EVERYBODY = "everybody"
"""The group of all clients."""


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


class ClusterResult(Part):
    """Choices of models in one run, and the membership risk of each model.

    The figures of the run are estimates (``fedaudit.study.figures.cluster_results``).

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
        fairness_note: Why there are no fairness gaps between the groups.
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
        return self
