"""CoFedMID: several clients hide their members together.

The modules of the method are defenses of their own: which classes each client trains on
(``partition``), which of the samples left out come back (``compensation``), and noise that
cancels in the average (``neutral``). :class:`CoFedMID` puts them together.

Source: Bai et al., "United We Defend: Collaborative Membership Inference Defenses in Federated
    Learning" (CoFedMID).
"""

from fedaudit.core.arguments import dataclass
from fedaudit.defenses.cofedmid.compensation import Compensation
from fedaudit.defenses.cofedmid.neutral import NeutralNoise


@dataclass(frozen=True)
class CoFedMID(NeutralNoise, Compensation):
    """A coalition trains on few classes each, brings some samples back, and adds cancelling noise.

    Class-guided partition and utility-aware compensation act on what is trained on and on the
    loss, aggregation-neutral noise on the upload. Every module can be turned off: m_max and
    m_min at the number of classes, recycle at 0, sigma at 0.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.CoFedMID(members=[0, 1], sigma=0.1).coalition
        (0, 1)

    Source: CoFedMID, section 4 and algorithm 4.
    Differs: See the modules: class-guided, compensation and neutral-noise.
    """
