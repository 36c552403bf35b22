"""How a study measures the membership risk of a federation's models."""

import torch

from fedaudit.core import Samples
from fedaudit.data.shadow import untouched
from fedaudit.errors import BadInput
from fedaudit.risk.catalog import measure_named
from fedaudit.risk.server import ServerRisk
from fedaudit.risk.shadow_models import ShadowTraining
from fedaudit.seeds import seeded
from fedaudit.study.config import Study
from fedaudit.study.groups import Grouped
from fedaudit.study.training import local_training

FEWEST = 100
"""With fewer samples of its own a server says nothing of any use."""


def server_risk(study: Study, world: Grouped, seed: int) -> ServerRisk:
    """The server's shadow models, and what it makes of them.

    Args:
        study: Its settings.
        world: Who trains on what, and what is audited: nothing of this is the server's.
        seed: Of the run.

    Raises:
        BadInput: No such measure, or too few samples are left for the server.
    """
    given = study.risk
    return ServerRisk(
        samples=_samples(world, given.samples, seed),
        shadows=ShadowTraining(local_training(study), count=given.shadows, epochs=given.epochs),
        measure=measure_named(given.measure),
    )


def _samples(world: Grouped, count: int, seed: int) -> Samples:
    """Training samples that nobody trains on and nobody audits."""
    left = untouched(world.dataset, world.deal)
    wanted = count or len(left)
    if not FEWEST <= wanted <= len(left):
        raise BadInput(
            f"the server is to measure membership risk on {wanted} samples of its own; it takes at "
            f"least {FEWEST}, and there are {len(left)} that nobody trains on or audits; set "
            "risk.samples to a number between these, or give clients less "
            "(partition.samples_per_client)"
        )
    order = torch.randperm(len(left), generator=seeded(seed, "server samples"))
    return world.dataset.samples(left[order[:wanted].sort().values])
