"""Settings of a study of games, every one named, with its range and its default."""

from typing import Annotated

from pydantic import Field, model_validator

from fedaudit.study.config import DataSection
from fedaudit.study.section import Count, Positive, Section, Settings


class RecordsSection(Section):
    """What a record is, and who has which.

    Attributes:
        features: "pixels" for a data set's own features, the name of an extractor, or the import
            path of one's own ("package.module:function").
        clients: Records of the training part that batches and targets are drawn from; 0 for half.
        servers: Others of it that the server knows; 0 for all the rest.
    """

    features: Annotated[str, Field(min_length=1, max_length=200)] = "pixels"
    clients: Count = 0
    servers: Count = 0


class GameSection(Section):
    """How games are played; see :class:`fedaudit.attacks.ami.game.Rules`.

    Attributes:
        games: In all.
        targets: Records that the server asks about, each with a neuron of its own; games are
            shared out among them.
        certified: Targets for which certificates are made as well.
        certificate_copies: Fresh randomised copies of each, and as many other records, that a
            certificate counts.
    """

    batch: Positive = 100
    games: Positive = 10_000
    targets: Positive = 10_000
    copies: Positive = 8
    background: Positive = 56
    validation: Count = 500
    validation_copies: Count = 50
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


class NeuronSection(Section):
    """How neurons are trained; see :class:`fedaudit.attacks.ami.training.NeuronTraining`.

    Attributes:
        check: After every so many epochs training ends if the neuron tells all validation records
            apart; 0 to go through all epochs.
    """

    hidden: Positive = 1000
    epochs: Count = 300
    lr: Annotated[float, Field(gt=0, le=1e6)] = 10.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    target_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    output: str = "one-logit"
    optimizer: str = "momentum"
    check: Count = 0


class MechanismSection(Section):
    """What clients do to their records first: "none", or a defense that perturbs features."""

    name: str = "none"
    options: Settings = Field(default_factory=dict)


class GameStudy(Section):
    """A whole study of games, or one of its points.

    Attributes:
        name: Of the study and its folder.
        about: One sentence for the reader of the report.
        hours: What it takes, as its author measured it; for people, changes nothing.
        seed: Of every draw.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=,+-]{0,199}$")]
    about: str = ""
    hours: str = ""
    seed: Count = 1
    data: DataSection = DataSection()
    records: RecordsSection = RecordsSection()
    game: GameSection = GameSection()
    neuron: NeuronSection = NeuronSection()
    mechanism: MechanismSection = MechanismSection()
