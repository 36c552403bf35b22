"""Active membership inference (AMI) by planted neurons: settings of its games.

The settings are kept here, so that a study's settings can be read without the games' code.
"""

from dataclasses import dataclass, field
from typing import Literal

from fedaudit.core import arguments
from fedaudit.core.errors import BadInput


@arguments.dataclass(frozen=True)
class NeuronTraining:
    """Settings for training a neuron that fires for its target only.

    Rows are standardised to a mean squared length of 1, so that one step size fits all data. The
    standardisation is folded into the first layer afterwards.

    Attributes:
        hidden: Units of the first layer that the neuron reads (the paper's r).
        epochs: Passes over all rows, with one step for each batch.
        lr: Learning rate of the first layer. With the optimizer "momentum", that of the second
            layer is ``lr / hidden``.
        momentum: Momentum of the optimizer "momentum".
        optimizer: "momentum", or "adam" as in the published code, which is about ten times slower.
        target_share: Total weight of the target's rows; all rows together weigh 1.
        output: "one-logit" with binary cross-entropy. "two-sigmoids", as in the published code: two
            sigmoid outputs, which cross-entropy takes as logits; only the first is planted.
        check: Interval of epochs after which training ends if the neuron is larger for all watched
            rows of its target than for any other; 0 to train for all epochs.
        batch_size: Rows per step; 0 for all. Batches are fixed and come in a new order in each
            epoch. Their numbers of target rows differ by at most one.

    Source: AMI, Eq. (6), Figs. 2 and 4; r = 1000.
    Differs: The published code trains two sigmoid outputs with Adam for up to a million epochs, all
        rows in each step. Momentum has an exact form in the rows' inner products, and one logit is
        what the paper prints. The published code stops when all records of the games are on the
        right side of zero; here other records are checked, and any separating zero is enough, as
        it is placed afterwards.
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
class Rules:
    """Rules of a game.

    Attributes:
        batch: Number of records in a client's batch (the paper's n).
        copies: Number of randomised copies of the target for training (the paper's l); 1 is enough
            without a randomiser.
        background: Number of the server's records for training.
        background_copies: Number of randomised copies of each background record.
        validation: Number of further records of the server that set the neuron's threshold; 0 for
            the threshold from training.
        validation_copies: Number of randomised copies of the target for validation.
        training: Training of the neuron.

    Raises:
        BadInput: Only one of both sides of validation, or an early stop without validation.

    Source: AMI, Figs. 1 to 4.
    Differs: The paper labels clean records 0 (Fig. 4), its code and this one randomised records:
        clean ones differ from the target's copies by the noise alone. The published code has 4,000
        copies of the target and 50,000 other records, one copy each.
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
                "validation needs at least one of the server's records and one copy of the target, "
                f"or neither; got {self.validation} and {self.validation_copies}"
            )
        if self.training.check and not self.validation:
            raise BadInput(
                "early stopping of a neuron needs validation records; raise game.validation, or "
                "set neuron.check to 0"
            )

    @property
    def rows(self) -> int:
        return self.copies + self.background * self.background_copies
