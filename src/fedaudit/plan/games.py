"""Settings of a study of games, every one named, with its range and its default."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedaudit.attacks.ami import NeuronTraining, Rules
from fedaudit.core.arguments import Decay, ProperShare, documented_by
from fedaudit.plan.base import Count, DefenseName, Digest, Positive, Section, Settings, public
from fedaudit.plan.optional import COALITION
from fedaudit.plan.sections import DataSection, Study
from fedaudit.plan.values import settings_from


class RecordsSection(Section):
    """Records, and their owners.

    Attributes:
        features: "pixels" for a data set's own features, the name of an extractor, or the import
            path of one's own ("package.module:function").
        clients: Records of the training part that batches and targets are drawn from; 0 for half.
        servers: Others of it that the server knows; 0 for all the rest.
    """

    features: Annotated[str, Field(min_length=1, max_length=200)] = "pixels"
    clients: Count = 0
    servers: Count = 0


@documented_by(Rules)
@public
class GameSection(Section):
    """Rules of games.

    Attributes:
        games: Number of games in all.
        targets: Records that the server asks about, each with a neuron of its own; games are
            shared out among them.
        certified: Targets for which certificates are made as well.
        certificate_copies: Fresh randomised copies of each, and as many other records, that a
            certificate counts.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Game(games=2000, targets=25, batch=50).batch
        50
    """

    batch: Positive = 100
    games: Positive = 10_000
    targets: Positive = 10_000
    copies: Positive = 8
    background: Positive = 56
    validation: Count = 500
    validation_copies: Count = 50
    background_copies: Positive = 1
    certified: Count = 3
    certificate_copies: Positive = 4000

    @model_validator(mode="after")
    def _games_for_each(self) -> "GameSection":
        if self.targets > self.games:
            raise ValueError(
                f"games are shared out among targets: {self.games} games are too few for "
                f"{self.targets} targets"
            )
        return self


@documented_by(NeuronTraining)
@public
class NeuronSection(Section):
    """Training of neurons.

    Attributes:
        check: After every so many epochs training ends if the neuron tells all validation records
            apart; 0 to go through all epochs.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Neuron(hidden=100).hidden
        100
    """

    hidden: Positive = 1000
    epochs: Count = 300
    lr: Annotated[float, Field(gt=0, le=1e6)] = 10.0
    momentum: Decay = 0.9
    target_share: ProperShare = 0.5
    output: str = "one-logit"
    optimizer: str = "momentum"
    check: Count = 0
    batch_size: Count = 0


class MechanismSection(Section):
    """Mechanism on clients' records: "none", or a defense that perturbs features."""

    set_elsewhere = COALITION

    name: DefenseName = "none"
    options: Settings = Field(default_factory=dict)


@public
class DetectorSection(Section):
    """Detection of planted models by a client; measured once a study, on its own federations.

    Attributes:
        runs: Federations, each with a deal, a first model and targets of its own; 0 for none,
            else at least 10, half of which choose the threshold that the others are judged at.
        rounds: Of each federation.
        looks: Rounds from the second on, evenly apart, whose models are looked at.
        clients: Of each federation, with equally many records; the first one looks.
        units: Of the first hidden layer; 0 for twice those that the neuron reads.
        rows: Of the second.
        algorithm: "fedsgd", whose uploads show whether a neuron fired, or "fedavg".
        lr: Learning rate of the federation.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Detector(runs=20).runs
        20
    """

    runs: Count = 0
    rounds: Annotated[int, Field(ge=2, le=10**6, strict=True)] = 20
    looks: Positive = 4
    clients: Annotated[int, Field(ge=2, le=10**6, strict=True)] = 5
    units: Count = 0
    rows: Positive = 10
    algorithm: Literal["fedsgd", "fedavg"] = "fedsgd"
    lr: Annotated[float, Field(gt=0, le=1e6)] = 0.5

    @model_validator(mode="after")
    def _enough_runs(self) -> "DetectorSection":
        if 0 < self.runs < 10:
            raise ValueError(
                f"figures over runs need 10 of them or more, got {self.runs}; 0 for no detector"
            )
        return self


@public
class RoundsSection(Section):
    """Games in real rounds, and what stands between upload and server.

    Attributes:
        play: "signs" reads each neuron's sign; "rounds" sends the planted model to a client, whose
            gradient is scored.
        defense: Of every client, by its name in the catalogue.
        options: Settings of the defense.
        averaged: Rounds of the same batch whose scores are averaged (the paper's P).
        neurons: Copies of the target's neuron that are planted (the paper's K).
        louder: Factor on the neuron's first layer that its value does not show but its gradient,
            so that a clip leaves of the target's gradient what is in the neuron's row; neurons
            beside it are then silent. 1 plants it as it was trained.
        clients: Of how many clients the server sees the sum; 1 for a client's own upload.
        others: What the other clients of a sum are sent: the "honest" model, the "planted" one
            (the target is then in anyone's batch), or one whose neurons are "dead".
        own_games: Games with records of its own by which the server places each threshold.
        every_round: Simulate every round that is averaged, also where the defense only adds normal
            noise, which is otherwise drawn for the score alone.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Rounds(play="rounds", neurons=2).neurons
        2
    """

    set_elsewhere = COALITION

    play: Literal["signs", "rounds"] = "signs"
    defense: DefenseName = "none"
    options: Settings = Field(default_factory=dict)
    averaged: Annotated[int, Field(ge=1, le=10**6, strict=True)] = 1
    neurons: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    louder: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    clients: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    others: Literal["honest", "planted", "dead"] = "honest"
    own_games: Annotated[int, Field(ge=2, le=10**6, strict=True)] = 40
    every_round: bool = False


class GameStudy(Section):
    """A whole study of games, or one of its points.

    Attributes:
        name: Of the study and its folder.
        about: One sentence for the reader of the report.
        hours: What it takes, as its author measured it; for people, changes nothing.
        seed: Of every draw.
        code: SHA-256 of the source that defines each part of the user's own, filled in when the
            games are played.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=,+-]{0,199}$")]
    about: str = ""
    hours: str = ""
    seed: Count = 1
    data: DataSection = DataSection.model_construct()
    records: RecordsSection = RecordsSection.model_construct()
    game: GameSection = GameSection.model_construct()
    neuron: NeuronSection = NeuronSection.model_construct()
    mechanism: MechanismSection = MechanismSection.model_construct()
    detector: DetectorSection = DetectorSection.model_construct()
    rounds: RoundsSection = RoundsSection.model_construct()
    code: dict[str, Digest] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _room_for_a_neuron(self) -> "GameStudy":
        if 0 < self.detector.units < self.neuron.hidden:
            raise ValueError(
                f"detector.units is {self.detector.units}, and a neuron reads neuron.hidden "
                f"{self.neuron.hidden}; raise it, or set it to 0 for twice as many"
            )
        return self

    @model_validator(mode="after")
    def _one_defense(self) -> "GameStudy":
        if self.rounds.play == "rounds" and self.mechanism.name != "none":
            raise ValueError(
                "games in rounds are behind a defense of gradients, and those behind a mechanism "
                "are "
                'played by signs; leave mechanism out, or set rounds.play to "signs"'
            )
        if self.rounds.play == "signs" and self.rounds != RoundsSection():
            raise ValueError(
                'games by signs take no other setting of rounds; set rounds.play to "rounds"'
            )
        return self


Plan = Study | GameStudy
"""What is carried out in one go: studies of both kinds."""


def kind_of(values: Mapping[str, object]) -> type[GameStudy] | type[Study]:
    """The kind of study that tables are of; one that trains where they could be of either."""
    of_games = values.keys() & (GameStudy.model_fields.keys() - Study.model_fields.keys())
    trains = values.keys() & (Study.model_fields.keys() - GameStudy.model_fields.keys())
    # Beside settings of training, "seed" is a slip for "seeds".
    return GameStudy if of_games - {"seed"} or (of_games and not trains) else Study


def plan_from(values: dict[str, object], *, source: str) -> Plan:
    """A checked study of either kind; see :func:`settings_from`."""
    return settings_from(values, kind_of(values), source=source)
