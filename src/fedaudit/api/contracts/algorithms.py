"""Contracts of algorithms and partitions."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from fedaudit.algorithms import FederatedTask
from fedaudit.api.contracts.base import GLOBAL_GENERATOR_MESSAGE, are_equal, uses_global_generator
from fedaudit.core.errors import Unsupported
from fedaudit.core.objects import canonical_repr
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, ClientId, Samples
from fedaudit.datasets.partitions.schemes import Partition
from fedaudit.fl.algorithms.base import Algorithm, Risk
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Round
from fedaudit.risk.catalog import LossThreshold

_CLASSES, _ROUNDS = 5, 3


@dataclass(frozen=True)
class AlgorithmCase:
    """Algorithm that is created anew for each run, with the clients' data."""

    create: Callable[[], Algorithm]
    clients: Mapping[ClientId, Samples]

    def run(
        self, *, seed: int = 3, reverse: bool = False, checkpoint: Path | None = None
    ) -> Iterable[Round]:
        """Yield three rounds with all clients."""
        items = list(self.clients.items())
        clients = dict(reversed(items) if reverse else items)
        return simulate(self.create(), clients, rounds=_ROUNDS, seed=seed, checkpoint=checkpoint)


def _contents(rounds: Iterable[Round]) -> dict[str, Tensor]:
    """Return all models and uploads of rounds by name."""
    tensors: dict[str, Tensor] = {}
    for round in rounds:
        for name, model in round.after.items():
            tensors |= {f"{round.index}/{name}/{n}": v for n, v in model.tensors().items()}
        for client, upload in round.uploads.items():
            tensors |= {f"{round.index}/{client}/{n}": v for n, v in upload.values.items()}
    return tensors


def settings_identify_the_algorithm(case: AlgorithmCase) -> str:
    """Equal settings give equal descriptions, by which runs are found and shared."""
    first, second = (canonical_repr(case.create()) for _ in range(2))
    return "" if first == second else "two instances differ; make it a frozen dataclass"


def runs_depend_on_the_seed(case: AlgorithmCase) -> str:
    """A run depends only on its seed."""
    if uses_global_generator(lambda: list(case.run())):
        return GLOBAL_GENERATOR_MESSAGE
    if not are_equal(_contents(case.run()), _contents(case.run())):
        return "two runs with the same seed differ; draw random numbers from the seed of the task"
    if are_equal(_contents(case.run()), _contents(case.run(seed=4))):
        return "runs with different seeds are equal; use the seed for the initial model"
    return ""


def client_order_does_not_matter(case: AlgorithmCase) -> str:
    """Results do not depend on the order in which clients are given."""
    if are_equal(_contents(case.run()), _contents(case.run(reverse=True))):
        return ""
    return "another order of the clients gives other models; sort the clients before you add up"


def stopped_runs_resume(case: AlgorithmCase) -> str:
    """A stopped run resumes with identical results."""
    with TemporaryDirectory(prefix="fedaudit-") as folder:
        path = Path(folder) / "checkpoint.safetensors"
        list(islice(case.run(checkpoint=path), 2))
        resumed = list(case.run(checkpoint=path))
    whole = [round for round in case.run() if round.index >= resumed[0].index]
    if are_equal(_contents(resumed), _contents(whole)):
        return ""
    return "a resumed run differs; the state of server and clients must be tensors that are stored"


ALGORITHM_CONTRACTS = (
    settings_identify_the_algorithm,
    runs_depend_on_the_seed,
    client_order_does_not_matter,
    stopped_runs_resume,
)
"""All contracts of algorithms."""


def algorithm_case(build: Callable[..., Algorithm], options: Mapping[str, object]) -> AlgorithmCase:
    """Return an algorithm for a small network and three clients."""
    architecture = Architecture("net", partial(_net))

    def public(name: str) -> Samples:
        raise Unsupported(f"the contracts have no public data {name!r}; check it in a study")

    task = FederatedTask(
        architecture=architecture,
        training=LocalTraining(lr=0.1, batch_size=4),
        shape=(4,),
        first_class=0,
        model=lambda name, **settings: architecture,
        public=public,
        seed=1,
        risk=_no_risk,
        own_risk=LossThreshold,
    )
    return AlgorithmCase(partial(build, task, **options), _clients())


def _no_risk() -> Risk:
    raise Unsupported("the contracts estimate no risk of models; check the algorithm in a study")


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, _CLASSES))


def _clients() -> dict[ClientId, Samples]:
    def samples(client: ClientId) -> Samples:
        rng, count = seeded(4, "samples", client), 8 + 2 * client
        labels = torch.randint(0, _CLASSES, (count,), generator=rng)
        return Samples(
            torch.randn(count, 4, generator=rng), labels, torch.arange(count) + 1000 * client
        )

    return {client: samples(client) for client in range(3)}


_COUNTS, _N_CLIENTS = np.array([40, 60, 50]), 4


def quotas_fit(scheme: Partition) -> str:
    """Clients get whole numbers of samples, and together no more than there are."""
    quotas = np.asarray(scheme.quotas(_COUNTS, _N_CLIENTS, rng=np.random.default_rng(1)))
    if quotas.shape != (_N_CLIENTS, len(_COUNTS)):
        return f"the shape is {quotas.shape} instead of {(_N_CLIENTS, len(_COUNTS))}"
    if not np.issubdtype(quotas.dtype, np.integer) or (quotas < 0).any():
        return "numbers of samples must be integers of at least 0"
    if (quotas.sum(0) > _COUNTS).any():
        return f"of a class, {quotas.sum(0).tolist()} samples are given out of {_COUNTS.tolist()}"
    return "" if (quotas.sum(1) > 0).all() else "a client has no sample"


def quotas_are_deterministic(scheme: Partition) -> str:
    """The same random generator gives the same numbers."""
    first, second = (
        np.asarray(scheme.quotas(_COUNTS, _N_CLIENTS, rng=np.random.default_rng(1)))
        for _ in range(2)
    )
    same = np.array_equal(first, second)
    return "" if same else "two calls differ; draw random numbers only from rng"


PARTITION_CONTRACTS = (quotas_fit, quotas_are_deterministic)
"""All contracts of partitions."""
