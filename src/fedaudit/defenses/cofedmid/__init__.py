"""CoFedMID: a coalition of clients protects its members' training data together.

The modules of the method are separate defenses: the classes that each client trains on
(``partition``), the omitted samples that are returned to training (``compensation``), and noise
that cancels in the average (``neutral``). :class:`CoFedMID` combines them.

Source: Bai et al., "United We Defend: Collaborative Membership Inference Defenses in Federated
    Learning" (CoFedMID).
"""

from fedaudit.core.arguments import dataclass
from fedaudit.defenses.cofedmid.compensation import Compensation
from fedaudit.defenses.cofedmid.neutral import NeutralNoise


@dataclass(frozen=True)
class CoFedMID(NeutralNoise, Compensation):
    """Class-guided partition, utility-aware compensation and aggregation-neutral noise together.

    Partition and compensation act on the training samples and the loss, noise on the upload. Every
    module can be turned off: m_max and m_min at the number of classes, recycle at 0, sigma at 0.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.CoFedMID(members=[0, 1], sigma=0.1).coalition
        (0, 1)

    Source: CoFedMID, section 4 and algorithm 4.
    Differs: As in the modules class-guided, compensation and neutral-noise.
    """
