"""The table [secure_sum]: how well the sum of a run's last round hides one client's update."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import BadInput, Unsupported, setting
from fedaudit.core.metric_names import SECURE_SUM_EPSILON, SECURE_SUM_EPSILON_IF_GAUSSIAN
from fedaudit.core.progress import Progress
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import ClientId, Samples, flat
from fedaudit.datasets.dataset import Dataset
from fedaudit.engines.local import LOCAL
from fedaudit.extensions.canaries import Canaries, client_dp_of
from fedaudit.fl.accounting import FORMAL_DELTA
from fedaudit.fl.algorithms.base import ClientTask, TurnContext, run_client
from fedaudit.fl.canary import CanaryUpload
from fedaudit.fl.hooks import Chain, Defense, Visit
from fedaudit.metrics.canaries import secure_sum_bounds
from fedaudit.metrics.epsilon import bound_method
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import write_tensors
from fedaudit.plan.parts import Conclusion, Extension, MeasuredRun, Scores, Setup
from fedaudit.plan.sections import Study
from fedaudit.results.estimate import Estimate

SUMS_FILE = "secure_sum.safetensors"
_ERROR = 0.05
_UNIT = (
    "unit: one client's update (it or zero in its place, weight and noise as they are), to whoever "
    "has the last round's sum and the model before it, knows the update, and knows of the other "
    "clients' data that they are random draws from the training samples"
)
_NOT_NORMAL = (
    "no noise is added, and the sum of a few updates need not be normal: this bound would be above "
    "the truth by any amount"
)


class SumFound(NamedTuple):
    """Bounds on the epsilon of one client's update in one round's sum.

    Attributes:
        counted: Of the counted bound.
        ceiling: What that could have been at most.
        if_gaussian: Of the bound for a normal reading.
    """

    counted: float
    ceiling: float
    if_gaussian: float


@dataclass(frozen=True)
class SecureSum(Extension):
    """Sums of the other clients' uploads in a run's last round.

    Attributes:
        draws: Of such sums.
        targets: Clients whose update is left out, one after another.
    """

    draws: int
    targets: tuple[ClientId, ...]

    table: ClassVar[str] = "secure_sum"

    @classmethod
    def added(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run, of whose last round such sums are drawn."""
        given = run.study.secure_sum
        assert given is not None
        _refuse_misfit(run, run.study)
        return run.extended(cls(given.draws, run.study.audit.targets))

    def watching(
        self, rounds: Iterator[Round], run: Setup, folder: Path, key: str, progress: Progress
    ) -> Iterator[Round]:
        """Leave the rounds as they are; bounds on the last sum go into a file of the run."""
        for round in rounds:
            if round.index == run.study.training.rounds:
                found = [self._bounds(run, round, target, progress) for target in self.targets]
                write_tensors(
                    {"bounds": torch.tensor(found).double()}, folder / SUMS_FILE, {"run": key}
                )
            yield round

    def _bounds(self, run: Setup, round: Round, target: ClientId, progress: Progress) -> SumFound:
        phase = f"seed {run.seed}: sums without client {target}"
        one, others = update_of(run, round, target).numpy(), list[Float[ndarray, " _"]]()
        progress(phase, 0, self.draws)
        for drawn in sums_of_others(run, round, target, self.draws):
            # Half the memory: a draw is as large as the model.
            others.append(drawn.float().numpy())
            progress(phase, len(others), self.draws)
        found = secure_sum_bounds(np.stack(others), one, np.zeros_like(one), delta=FORMAL_DELTA)
        return SumFound(found.counted.value, found.counted.ceiling, found.if_gaussian.value)

    def cost(self) -> str:
        """Return a sentence on how often the other clients train again."""
        return (
            f"sums of other clients: {self.draws} for each audited client, each of which takes one "
            "round of their training (secure_sum.draws)"
        )

    @classmethod
    def concluded(cls, found: Sequence[MeasuredRun], scores: Scores) -> Conclusion:
        """Return bounds of each audited client in each run, and the least of all runs.

        That is a bound for every one of them; of the largest it is not known how often it is wrong.
        """
        sums = [_read(one) for one in found]
        runs = [(one.run, bounds, one.run.seed) for one, bounds in zip(found, sums, strict=True)]
        figures = [figure for of_run in runs for figure in _figures(*of_run)]
        if len(found) > 1:
            least = {
                target: SumFound(*map(min, zip(*(bounds[target] for bounds in sums), strict=True)))
                for target in sums[0]
            }
            figures += _figures(found[0].run, least, None)
        return Conclusion(figures)


def _refuse_misfit(run: Setup, study: Study) -> None:
    if run.view.name != "sum" or study.audit.merge or study.training.participation < 1:
        raise BadInput(
            "[secure_sum] is asked for whoever sees one round's sum and nothing else, of single "
            'clients that take part in every round; use audit.view = "sum", without audit.merge '
            f"and with {setting('training.participation')} = 1"
        )
    run.refuse_several_models("secure_sum")
    private = client_dp_of(run.defenses)
    if run.extension(Canaries) is not None or (
        run.defenses and (private is None or len(run.defenses) != len(run.deal.clients))
    ):
        raise Unsupported(
            "[secure_sum] draws what every client sends anew, with its own clipping and noise; use "
            'the defense "client-dp" for all clients, or none, and leave [canaries] out'
        )
    for target in study.audit.targets:
        needed = sum(size for client, size in run.deal.sizes.items() if client != target)
        there = len(others_pool(run, target))
        if there < needed:
            raise BadInput(
                f"[secure_sum] draws {needed} samples for the clients beside {target} from "
                f"training samples that are not its own, and there are {there}; lower "
                f"{setting('partition.samples_per_client')} or {setting('partition.clients')}"
            )


def others_pool(run: Setup, target: ClientId) -> Samples:
    """Return the training samples that are not the target's, to draw the others' from."""
    train = run.dataset.train
    return train.take(~torch.isin(train.ids, run.deal.clients[target].ids))


def sums_of_others(
    run: Setup, round: Round, target: ClientId, draws: int
) -> Iterator[Float[Tensor, " _"]]:
    """Yield weighted sums of all other clients' updates, each of data drawn independently.

    The noise that the target's own defense adds is in them: it hides its update as theirs do.

    Args:
        run: That the round is of.
        round: Whose models the clients train from.
        target: Whose update is left out.
        draws: How many.
    """
    pool, sizes = others_pool(run, target), run.deal.sizes
    own: dict[ClientId, Samples] = {}
    defenses = dict(run.defenses)
    if defenses:
        own[target] = run.deal.clients[target]
        defenses[target] = Chain((CanaryUpload(0, 0, 0.0), run.defenses[target]))
    asked = [client for client in round.asked if client != target]
    ends = torch.tensor([sizes[client] for client in asked]).cumsum(0)
    for draw in range(draws):
        seed = seed_for(run.seed, "sum of others", target, draw)
        order = torch.randperm(len(pool), generator=seeded(seed, "data"))
        parts = torch.tensor_split(order, ends)
        data = {client: pool.take(part) for client, part in zip(asked, parts, strict=False)}
        yield _weighted(run, round, data | own, defenses, seed)


def update_of(run: Setup, round: Round, target: ClientId) -> Float[Tensor, " _"]:
    """Return the target's own update as it goes into the sum, clipped and without noise."""
    private = client_dp_of(run.defenses)
    bare: Mapping[ClientId, Defense] = (
        {target: replace(private, noise_multiplier=0.0)} if private else {}
    )
    data = {target: run.deal.clients[target]}
    return _weighted(run, round, data, bare, run.federation_seed)


def _weighted(
    run: Setup,
    round: Round,
    data: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
    seed: int,
) -> Float[Tensor, " _"]:
    """Return the weighted sum of what some clients send in a round of another seed."""
    jobs = [
        ClientTask(
            round.sent[client],
            {},
            {},
            Visit(
                round=round.index,
                rounds=run.study.training.rounds,
                client=client,
                cohort=round.asked,
                weights=round.weights,
                seed=seed,
            ),
        )
        for client in data
    ]
    total: Tensor | None = None
    with LOCAL.session(run_client, TurnContext(run.algorithm, data, defenses)) as work:
        for client, done in zip(data, work(jobs), strict=True):
            share = flat(done.upload.values).double() * round.weights[client]
            total = share if total is None else total + share
    assert total is not None
    return total


def _read(one: MeasuredRun) -> dict[ClientId, SumFound]:
    """Return the bounds that a run has left, by audited client."""
    targets = one.run.study.audit.targets
    left = one.left(SUMS_FILE, {"bounds": (len(targets), len(SumFound._fields))})
    rows = zip(targets, left["bounds"].tolist(), strict=True)
    return {target: SumFound(*row) for target, row in rows}


def _figures(run: Setup, found: Mapping[ClientId, SumFound], seed: int | None) -> list[Estimate]:
    assert run.study.secure_sum is not None
    private = client_dp_of(run.defenses)
    noisy = private is not None and private.noise_multiplier > 0
    unit = _UNIT if seed is not None else f"{_UNIT}; the least of all runs"
    figures = []
    for target, bounds in found.items():
        figure = partial(
            Estimate,
            defense=run.study.defense.label,
            view=run.view.name,
            contrast="unseen",
            target=target,
            seed=seed,
            samples=run.study.secure_sum.draws,
        )
        counted = bound_method("linear test, Clopper-Pearson", FORMAL_DELTA, _ERROR)
        figures.append(
            figure(
                note=unit,
                metric=SECURE_SUM_EPSILON,
                value=bounds.counted,
                ceiling=bounds.ceiling,
                method=counted,
            )
        )
        figures.append(
            figure(
                note=unit if noisy else _NOT_NORMAL,
                metric=SECURE_SUM_EPSILON_IF_GAUSSIAN,
                value=bounds.if_gaussian if noisy else None,
                method=bound_method("linear test, Gaussian", FORMAL_DELTA, _ERROR),
            )
        )
    return figures
