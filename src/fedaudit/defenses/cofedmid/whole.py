"""CoFedMID as a whole: its three modules in one defense."""

from dataclasses import dataclass

from fedaudit.defenses.cofedmid.compensation import Compensation
from fedaudit.defenses.cofedmid.neutral import NeutralNoise


@dataclass(frozen=True)
class CoFedMID(NeutralNoise, Compensation):
    """A coalition trains on few classes each, brings some samples back, and adds cancelling noise.

    Class-guided partition and utility-aware compensation act on what is trained on and on the
    loss, aggregation-neutral noise on the upload. Every module can be turned off: m_max and
    m_min at the number of classes, recycle at 0, sigma at 0. Settings are those of the modules.

    Source: CoFedMID, section 4 and algorithm 4.
    Differs: See the modules: class-guided, compensation and neutral-noise.
    """

    def __post_init__(self) -> None:
        Compensation.__post_init__(self)
        NeutralNoise.__post_init__(self)
