"""Settings of games of active membership inference by planted neurons (AMI, Nguyen et al. 2023).

The settings are separate from the games, so that reading a study does not import the games.
"""

from dataclasses import dataclass, field
from typing import Literal

from fedaudit.core import arguments
from fedaudit.core.errors import BadInput


@arguments.dataclass(frozen=True)
class NeuronTraining:
    """Settings for training a neuron that fires only for its target.

    A row is a sample, possibly with noise of local differential privacy. Features are centred and
    scaled so that rows have a mean squared norm of about 1, and the same learning rate is suitable
    for all data. After training, this scaling is folded into weights and biases of the first layer.

    Attributes:
        hidden: Number of units of the first layer that the neuron uses as inputs (the paper's r).
        epochs: Number of passes over all rows, with one step for each batch.
        lr: Learning rate of the first layer. With the optimizer "momentum", the learning rate of
            the second layer is ``lr / hidden``.
        momentum: Momentum of the optimizer "momentum".
        optimizer: "momentum", or "adam" as in the published code, which is about ten times slower.
        target_share: Total weight of the target's rows in the loss; all rows together have weight
            1.
        output: "one-logit" is one output with binary cross-entropy. "two-sigmoids", as in the
            published code, is two sigmoid outputs, which cross-entropy treats as logits. Only the
            first output is planted.
        check: Number of epochs between two tests for early stopping; 0 for no early
            stopping. Training ends if the neuron's value is larger for all validation rows of its
            target than for any other validation row.
        batch_size: Number of rows per step; 0 for all. Batches have the same rows in all epochs,
            but a new order in each epoch. Their numbers of target rows differ by at most one.

    Source: Nguyen et al. 2023 (AMI), Eq. (6), Figs. 2 and 4; r = 1000.
    Differs: The published code trains two sigmoid outputs with Adam for up to a million epochs,
        with all rows in each step. Here, the default is one logit, as in the paper's text, and
        SGD with momentum, whose steps can be computed exactly from inner products of rows. The
        published code stops when values of all samples of the games have the correct sign. Here,
        other samples are checked, and any threshold between both groups is sufficient, as the bias
        is set afterwards.
    """

    hidden: int = 1000
    epochs: int = 300
    lr: float = 10.0
    momentum: float = 0.9
    target_share: float = 0.5
    output: Literal["one-logit", "two-sigmoids"] = "one-logit"
    optimizer: Literal["momentum", "adam"] = "momentum"
    check: int = 0
    batch_size: int = 0


@dataclass(frozen=True)
class GameRules:
    """Rules of a game.

    Attributes:
        batch: Number of samples in a client's batch (the paper's n).
        copies: Number of randomised copies of the target for training (the paper's l); 1 is enough
            without a randomiser.
        background: Number of the server's samples for training.
        background_copies: Number of randomised copies of each background sample.
        validation: Number of further samples of the server, which determine the neuron's threshold;
            0 keeps the threshold learned in training.
        validation_copies: Number of randomised copies of the target for validation.
        training: Training of the neuron.

    Raises:
        BadInput: Exactly one of validation samples and validation copies is 0, or there is early
            stopping without validation.

    Source: Nguyen et al. 2023 (AMI), Figs. 1 to 4.
    Differs: In the paper, the training samples with label 0 are clean (Fig. 4). In its code and
        here, they are randomised, as clean samples differ from the target's copies by the absence
        of noise. The published code has 4,000 copies of the target and 50,000 other samples, with
        one copy of each.
    """

    batch: int = 100
    copies: int = 8
    background: int = 56
    validation: int = 500
    validation_copies: int = 50
    background_copies: int = 1
    training: NeuronTraining = field(default_factory=NeuronTraining)

    def __post_init__(self) -> None:
        if bool(self.validation) != bool(self.validation_copies):
            raise BadInput(
                "validation needs at least one of the server's samples and one copy of the target, "
                f"or neither; got {self.validation} and {self.validation_copies}"
            )
        if self.training.check and not self.validation:
            raise BadInput(
                "early stopping of a neuron needs validation samples; raise game.validation, or "
                "set neuron.check to 0"
            )

    @property
    def rows(self) -> int:
        """Number of training rows."""
        return self.copies + self.background * self.background_copies
