"""Settings of a study of security games, with their ranges and defaults."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fedaudit.attacks.ami import GameRules, NeuronTraining
from fedaudit.core.arguments import Decay, ProperFraction, documented_by
from fedaudit.plan.base import (
    Count,
    DefenseName,
    Digest,
    Positive,
    Section,
    Settings,
    with_public_name,
)
from fedaudit.plan.optional import COALITION
from fedaudit.plan.sections import DataSection, Study
from fedaudit.plan.values import settings_from


class SamplesSection(Section):
    """Features of the samples, and the division of samples between clients and server.

    Attributes:
        features: "pixels" for the features of the data set, the name of an extractor, or a custom
            extractor as "package.module:function".
        clients: Number of training samples of clients, from which batches and targets are drawn; 0
            for half of all samples.
        servers: Number of other training samples, which the server knows; 0 for all others.
    """

    features: Annotated[str, Field(min_length=1, max_length=200)] = "pixels"
    clients: Count = 0
    servers: Count = 0


@documented_by(GameRules)
@with_public_name
class GameSection(Section):
    """Rules of games.

    Attributes:
        games: Total number of games.
        targets: Number of target samples. A neuron is trained for each target, and games are
            divided equally among the targets.
        certified: Number of targets for which a certificate of epsilon is also computed.
        certificate_copies: Number of newly perturbed copies of a target, and of other samples, from
            which the target's certificate is computed.

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
    def _check_targets(self) -> "GameSection":
        if self.targets > self.games:
            raise ValueError(
                f"each target needs at least one game, but there are {self.games} games for "
                f"{self.targets} targets; raise games, or lower targets"
            )
        return self


@documented_by(NeuronTraining)
@with_public_name
class NeuronSection(Section):
    """Training of neurons.

    Attributes:
        check: Number of epochs between checks, at which training stops if the neuron separates the
            target from all validation samples; 0 to train for all epochs.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Neuron(hidden=100).hidden
        100
    """

    hidden: Positive = 1000
    epochs: Count = 300
    lr: Annotated[float, Field(gt=0, le=1e6)] = 10.0
    momentum: Decay = 0.9
    target_share: ProperFraction = 0.5
    output: str = "one-logit"
    optimizer: str = "momentum"
    check: Count = 0
    batch_size: Count = 0


class MechanismSection(Section):
    """The mechanism that perturbs clients' samples: "none", or a defense that perturbs features."""

    set_elsewhere = COALITION

    name: DefenseName = "none"
    options: Settings = Field(default_factory=dict)


@with_public_name
class DetectorSection(Section):
    """Detection of planted models by a client, measured once per study on separate federations.

    Attributes:
        runs: Number of federations, at least 10, or 0 for no detector. Each has a separate
            partition, initial model and targets. Half of the federations determine the detection
            threshold, and the other half test it.
        rounds: Number of rounds of each federation.
        looks: Number of rounds in which the client inspects the model, evenly spaced from the
            second to the last round.
        clients: Number of clients of each federation, with equal numbers of samples. The first
            client inspects models.
        units: Number of units of the first hidden layer; 0 for twice as many as the planted neuron
            takes as input.
        rows: Number of units of the second hidden layer.
        algorithm: "fedsgd", whose updates show whether a neuron fired, or "fedavg".
        lr: Learning rate of the federations.

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
    def _check_runs(self) -> "DetectorSection":
        if 0 < self.runs < 10:
            raise ValueError(
                f"runs is {self.runs}, but detection is measured on at least 10 runs; "
                "raise it, or set it to 0 for no detector"
            )
        return self


@with_public_name
class RoundsSection(Section):
    """Games in rounds of training, and the defense of clients' updates.

    Attributes:
        play: What the server observes. With "signs", it is the sign of each neuron's value. With
            "rounds", the server sends the planted model to a client and scores the client's
            gradient.
        defense: Defense of every client, by catalogue name.
        options: Options of the defense.
        averaged: Number of rounds with the same batch whose scores are averaged (P in the paper).
        neurons: Number of planted copies of the target's neuron (K in the paper).
        louder: Factor by which the neuron's first-layer weights are multiplied and its second-layer
            weights are divided. This increases the neuron's gradient without changing its output.
            With a factor above 1, other neurons of the layer have zero gradient, so a clipped
            gradient of the target consists almost only of the neuron's row. 1 plants the neuron as
            trained.
        clients: Number of clients in the sum of updates that the server sees; 1 for single updates.
        others: Model that the other clients of a sum receive: the "honest" model, the "planted"
            model (the target may then be in any client's batch), or a model with "dead" neurons.
        own_games: Number of games with the server's own samples that determine each threshold.
        every_round: True to simulate every averaged round. False to simulate only one round and to
            sample the noise of the averaged score directly, if the defense ends with Gaussian
            noise.

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
    """Settings of a study of games, or of one point of its grid.

    Attributes:
        name: Name of the study and of its folder.
        about: One sentence about the study for readers of the report.
        hours: Run time that the author measured, as a text for readers; it does not affect results.
        seed: Seed of all random choices.
        code: SHA-256 of the source code of each custom part, which a run fills in.
    """

    former_names: ClassVar[Mapping[str, str]] = {"records": "samples"}

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=,+-]{0,199}$")]
    about: str = ""
    hours: str = ""
    seed: Count = 1
    data: DataSection = DataSection.model_construct()
    samples: SamplesSection = SamplesSection.model_construct()
    game: GameSection = GameSection.model_construct()
    neuron: NeuronSection = NeuronSection.model_construct()
    mechanism: MechanismSection = MechanismSection.model_construct()
    detector: DetectorSection = DetectorSection.model_construct()
    rounds: RoundsSection = RoundsSection.model_construct()
    code: dict[str, Digest] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_units(self) -> "GameStudy":
        if 0 < self.detector.units < self.neuron.hidden:
            raise ValueError(
                f"detector.units is {self.detector.units}, but a neuron takes neuron.hidden = "
                f"{self.neuron.hidden} units as input; raise it, or set it to 0 for twice as many"
            )
        return self

    @model_validator(mode="after")
    def _check_play(self) -> "GameStudy":
        if self.rounds.play == "rounds" and self.mechanism.name != "none":
            raise ValueError(
                'with rounds.play = "rounds", samples cannot be perturbed, but mechanism.name is '
                f'{self.mechanism.name!r}; remove mechanism, or set rounds.play = "signs"'
            )
        if self.rounds.play == "signs" and self.rounds != RoundsSection():
            raise ValueError(
                'rounds.play is "signs", which uses no other setting of [rounds]; remove the '
                'others, or set rounds.play = "rounds"'
            )
        return self


AnyStudy = Study | GameStudy
"""Settings of a study of federations or of a study of games."""


def kind_of(values: Mapping[str, object]) -> type[GameStudy] | type[Study]:
    """Return the class of study to which these tables belong; Study if both classes have them."""
    game_tables = GameStudy.model_fields.keys() | GameStudy.former_names.keys()
    games_only = values.keys() & (game_tables - Study.model_fields.keys())
    training_only = values.keys() & (Study.model_fields.keys() - GameStudy.model_fields.keys())
    # "seed" together with settings of training is a misspelt "seeds".
    return GameStudy if games_only - {"seed"} or (games_only and not training_only) else Study


def any_study_from(values: dict[str, object], *, source: str) -> AnyStudy:
    """Return a checked study of federations or games; see :func:`settings_from`."""
    return settings_from(values, kind_of(values), source=source)
