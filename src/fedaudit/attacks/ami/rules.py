"""Rules of a security game."""

from dataclasses import dataclass, field

from fedaudit.attacks.ami.train import NeuronTraining
from fedaudit.core.errors import BadInput


@dataclass(frozen=True)
class Rules:
    """Rules of a game.

    Attributes:
        batch: Records that the client computes its gradient on (the paper's n).
        copies: Randomised copies of the target that a neuron is trained on (its l); without a
            randomiser they are all the same, and one is enough.
        background: Records of the server's own that it is trained on.
        background_copies: Randomised copies of each of these.
        validation: More of the server's own, by which its zero is placed; 0 to leave it where
            training did.
        validation_copies: Copies of the target for the same.
        training: Of the neuron.

    Raises:
        BadInput: A number is too small.

    Source: AMI, Figs. 1 to 4.
    Differs: the paper labels clean records 0 (Fig. 4), its code randomised ones, as here: clean
        ones are told from the target's copies by the noise alone. The published code has 4,000
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
        placed = (self.validation, self.validation_copies)
        needed = (self.batch, self.copies, self.background, self.background_copies)
        if min(needed) < 1 or min(placed) < (max(placed) > 0):
            raise BadInput(
                "a game needs a batch, copies of the target, records of the server's own and "
                "copies of these, at least one each, and records and copies for validation or none "
                f"of either; got {', '.join(map(str, needed))}, and {placed[0]} and {placed[1]}"
            )
        if self.training.check and not self.validation:
            raise BadInput(
                "a neuron that is to stop early is checked by records for validation; raise "
                "game.validation, or set neuron.check to 0"
            )

    @property
    def rows(self) -> int:
        """Rows that a neuron is trained on: copies of the target, and of other records."""
        return self.copies + self.background * self.background_copies
