"""CoFedMID: a coalition of clients protects the training data of its clients together.

The method consists of three separate defenses: clients train on different classes (``partition``),
some samples of other classes are returned to training (``compensation``), and noise cancels in the
average (``neutral``). :class:`CoFedMID` combines them.

Source: Bai et al. 2026, "United We Defend: Collaborative Membership Inference Defenses in Federated
    Learning" (CoFedMID).
"""

from fedaudit.core.arguments import dataclass
from fedaudit.defenses.cofedmid.compensation import Compensation
from fedaudit.defenses.cofedmid.neutral import NeutralNoise


@dataclass(frozen=True)
class CoFedMID(NeutralNoise, Compensation):
    """Combination of class-guided partition, compensation and noise that cancels in the average.

    Partition and compensation change the training samples and the loss, noise changes the upload.
    To turn off partition, set m_max and m_min to the number of classes; to turn off compensation,
    set recycle to 0; to turn off noise, set sigma to 0.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.CoFedMID(clients=[0, 1], sigma=0.1).coalition
        (0, 1)

    Source: Bai et al. 2026 (CoFedMID), section 4 and algorithm 4.
    Differs: As in the modules class-guided, compensation and neutral-noise.
    """
