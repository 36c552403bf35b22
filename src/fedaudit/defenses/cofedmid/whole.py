"""CoFedMID as a whole, and its modules as defenses of their own."""

from dataclasses import dataclass
from typing import ClassVar

from fedaudit.core import ClientId
from fedaudit.defenses.base import Turn
from fedaudit.defenses.cofedmid.compensation import Compensation
from fedaudit.defenses.cofedmid.neutral import NeutralNoise
from fedaudit.defenses.cofedmid.partition import ClassGuided
from fedaudit.observe.round import Gradient, Update, Upload


@dataclass
class CoFedMID(Compensation):
    """Class-guided partition, utility-aware compensation and aggregation-neutral noise.

    Attributes:
        noise: What is added to uploads.

    Source: CoFedMID, algorithm 4.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update, Gradient)

    noise: NeutralNoise | None = None

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round: noise on the last parameters."""
        return upload if self.noise is None else self.noise.upload(upload, turn)


def cofedmid(
    *,
    coalition: tuple[ClientId, ...],
    m_max: int = 0,
    m_min: int = 0,
    decay: str = "linear",
    assignment: str = "bounded",
    start: int = 10,
    intervals: int = 10,
    recycle: float = 0.1,
    recycling: str = "exp3",
    regularise: bool = True,
    mu: float = 0.005,
    validation: float = 0.1,
    sigma: float = 0.1,
    ratio: float = 0.2,
    noise: str = "vector",
) -> CoFedMID:
    """A coalition trains on few classes each, brings some samples back, and adds cancelling noise.

    Every module can be turned off: m_max and m_min at the number of classes, recycle at 0, sigma
    at 0.

    Args:
        coalition: The clients that defend together.
        m_max: Classes a client in the first round; 0 to choose from the coalition's size.
        m_min: Classes a client in the last round; 0 for a fifth of all.
        decay: linear, cosine, exponential or polynomial.
        assignment: "bounded", or "random" for the paper's ablation.
        start: First round in which samples come back.
        intervals: Of losses, among which is chosen.
        recycle: Largest share of a client's samples that comes back in a round; 0 for none.
        recycling: "exp3", or "random" or "sequential" for the paper's ablations.
        regularise: Whether confidence on samples that came back is held down.
        mu: Weight of the entropy in that.
        validation: About which share of a client's samples is held out to learn which interval
            helps; these samples are no members.
        sigma: Standard deviation of the noise before the projection; 0 for none.
        ratio: Share of the parameters, counted from the last, that get noise.
        noise: "vector", or "scalar" for one number a client as the paper prints it.

    Source: CoFedMID, section 4 and algorithm 4.
    Differs: See the modules: class-guided, compensation and neutral-noise.
    """
    return CoFedMID(
        partition=ClassGuided(coalition, m_max, m_min, decay, assignment),
        start=start,
        intervals=intervals,
        recycle=recycle,
        recycling=recycling,
        regularise=regularise,
        mu=mu,
        validation=validation,
        noise=NeutralNoise(coalition, sigma, ratio, noise),
    )


def compensation(
    *,
    coalition: tuple[ClientId, ...],
    m_max: int = 0,
    m_min: int = 0,
    decay: str = "linear",
    assignment: str = "bounded",
    start: int = 10,
    intervals: int = 10,
    recycle: float = 0.1,
    recycling: str = "exp3",
    regularise: bool = True,
    mu: float = 0.005,
    validation: float = 0.1,
) -> Compensation:
    """CoFedMID without its noise: few classes each, and some of the samples left out come back.

    Compensation gives back what partition takes, so that it is nothing without it.

    Args:
        coalition: The clients that share the classes out.
        m_max: Classes a client in the first round; 0 to choose from the coalition's size.
        m_min: Classes a client in the last round; 0 for a fifth of all.
        decay: linear, cosine, exponential or polynomial.
        assignment: "bounded", or "random" for the paper's ablation.
        start: First round in which samples come back.
        intervals: Of losses, among which is chosen.
        recycle: Largest share of a client's samples that comes back in a round; 0 for none.
        recycling: "exp3", or "random" or "sequential" for the paper's ablations.
        regularise: Whether confidence on samples that came back is held down.
        mu: Weight of the entropy in that.
        validation: About which share of a client's samples is held out to learn which interval
            helps; these samples are no members.

    Source: CoFedMID, section 4.2 and algorithm 2.
    Differs: See ``fedaudit.defenses.cofedmid.compensation``.
    """
    return Compensation(
        partition=ClassGuided(coalition, m_max, m_min, decay, assignment),
        start=start,
        intervals=intervals,
        recycle=recycle,
        recycling=recycling,
        regularise=regularise,
        mu=mu,
        validation=validation,
    )
