"""Audit of secure aggregation: lower bounds on the epsilon of one update in the last round's sum.

The table [secure_sum] of a study configures it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import BadInput, Unsupported, format_setting, format_table
from fedaudit.core.metric_names import SECURE_SUM_EPSILON, SECURE_SUM_EPSILON_IF_GAUSSIAN
from fedaudit.core.progress import Progress
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import ClientId, Samples, flat
from fedaudit.datasets.dataset import Dataset
from fedaudit.engines.local import LOCAL
from fedaudit.extensions.canaries import Canaries, client_dp_of
from fedaudit.fl.accounting import FORMAL_DELTA
from fedaudit.fl.algorithms.base import ClientTask, CorrectsDrift, Participants, run_client
from fedaudit.fl.canary import CanaryUpload
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import ClientContext, Defense
from fedaudit.metrics.canaries import secure_sum_bounds
from fedaudit.metrics.epsilon import bound_method
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import write_tensors
from fedaudit.plan.parts import Extension, ExtensionResults, MeasuredRun, Scores, Setup
from fedaudit.results.estimate import Estimate

SUMS_FILE = "secure_sum.safetensors"
_ERROR = 0.05
"""Largest probability that a bound exceeds the true epsilon."""
_UNIT = (
    "unit: one client's update, or zeros with the same weight and noise; the adversary knows this "
    "update, the last round's sum and the model before it, and that the other "
    "clients' data are random draws from the training samples"
)
_NOT_NORMAL = (
    "no noise is added, and the sum of a few updates may not be normally distributed, so this "
    "bound could far exceed the true epsilon"
)


class SumBounds(NamedTuple):
    """Lower bounds on the epsilon of one client's update in one round's sum.

    Attributes:
        counted: Bound from the error counts of a test, without an assumption on the distribution.
        ceiling: Value that ``counted`` would have if the test made no errors.
        if_gaussian: Bound under the assumption that sums are normally distributed.
    """

    counted: float
    ceiling: float
    if_gaussian: float


@dataclass(frozen=True)
class SecureSum(Extension):
    """Simulated sums of the other clients' updates in the last round of a run.

    Attributes:
        draws: Number of simulated sums for each target.
        targets: Audited clients; bounds are computed for the update of each.
    """

    draws: int
    targets: tuple[ClientId, ...]

    table: ClassVar[str] = "secure_sum"

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        section = run.study.secure_sum
        assert section is not None
        _raise_if_unsupported(run)
        return run.with_extension(cls(section.draws, run.study.audit.targets))

    def watch(
        self, rounds: Iterator[Round], run: Setup, key: str, progress: Progress
    ) -> Iterator[Round]:
        """Yield the rounds unchanged, and write bounds for the last round's sum to a file.

        The file states the run's key, so that it is never read for another run.
        """
        for round in rounds:
            if round.index == run.study.training.rounds:
                bounds = [self._bounds(run, round, target, progress) for target in self.targets]
                tensors = {"bounds": torch.tensor(bounds).double()}
                write_tensors(tensors, run.folder / SUMS_FILE, {"run": key})
            yield round

    def _bounds(self, run: Setup, round: Round, target: ClientId, progress: Progress) -> SumBounds:
        phase = f"seed {run.seed}: sums without client {target}"
        update = update_of(run, round, target).numpy()
        sums: list[Float[ndarray, " _"]] = []
        progress(phase, 0, self.draws)
        for total in sums_of_others(run, round, target, self.draws):
            # Single precision saves memory, since all sums are kept and each is as large as the
            # model.
            sums.append(total.float().numpy())
            progress(phase, len(sums), self.draws)
        no_update = np.zeros_like(update)
        bounds = secure_sum_bounds(np.stack(sums), update, no_update, delta=FORMAL_DELTA)
        return SumBounds(bounds.counted.value, bounds.counted.ceiling, bounds.if_gaussian.value)

    def cost(self) -> str:
        return (
            f"sums of other clients' updates: {self.draws} for each audited client, each of which "
            "takes one round of training (secure_sum.draws)"
        )

    @classmethod
    def evaluate(cls, runs: Sequence[MeasuredRun], scores: Scores) -> ExtensionResults:
        """Return the bounds of each audited client in each run, and the minimum over runs.

        The minimum is a valid bound for every run. The maximum would exceed the true epsilon with a
        higher probability than the error level.
        """
        bounds_by_run = [_read(measured) for measured in runs]
        figures = []
        for measured, bounds in zip(runs, bounds_by_run, strict=True):
            figures += _estimates(measured.run, bounds, measured.run.seed)
        if len(runs) > 1:
            smallest = {}
            for target in bounds_by_run[0]:
                columns = zip(*(bounds[target] for bounds in bounds_by_run), strict=True)
                smallest[target] = SumBounds(*map(min, columns))
            figures += _estimates(runs[0].run, smallest, None)
        return ExtensionResults(figures)


def _raise_if_unsupported(run: Setup) -> None:
    study = run.study
    if run.view.name != "sum" or study.audit.merge or study.training.participation < 1:
        raise BadInput(
            f"{format_table('secure_sum')} needs an adversary that sees only sums of updates, and "
            'clients that participate in every round; set audit.view = "sum" and '
            f"{format_setting('training.participation')} = 1, and leave out audit.merge, which "
            "attacks several clients as one"
        )
    run.raise_if_several_models("secure_sum")
    if isinstance(run.algorithm, CorrectsDrift):
        raise Unsupported(
            f"{format_table('secure_sum')} simulates one round without the clients' state from "
            f"earlier rounds, but clients of {type(run.algorithm).__name__} keep tensors between "
            "rounds; use fedavg"
        )
    all_defended = len(run.defenses) == len(run.assignment.clients)
    all_use_client_dp = all_defended and client_dp_of(run.defenses) is not None
    if run.extension(Canaries) is not None or (run.defenses and not all_use_client_dp):
        raise Unsupported(
            f"{format_table('secure_sum')} simulates every client's update with its clipping and "
            'noise; use the defense "client-dp" for all clients, or none, and leave out '
            f"{format_table('canaries')}"
        )
    for target in study.audit.targets:
        needed = sum(size for client, size in run.assignment.sizes.items() if client != target)
        available = len(others_pool(run, target))
        if available < needed:
            raise BadInput(
                f"{format_table('secure_sum')} needs {needed} training samples without those of "
                f"client {target}, but there are only {available}; lower "
                f"{format_setting('partition.samples_per_client')} or "
                f"{format_setting('partition.clients')}"
            )


def others_pool(run: Setup, target: ClientId) -> Samples:
    """Return all training samples except the target's; other clients' data are drawn from these."""
    train = run.dataset.train
    return train.take(~torch.isin(train.ids, run.assignment.clients[target].ids))


def sums_of_others(
    run: Setup, round: Round, target: ClientId, draws: int
) -> Iterator[Float[Tensor, " _"]]:
    """Yield weighted sums of all other clients' updates, with newly drawn data for each sum.

    The sums include the noise of the target's defense, because it also hides the target's update.
    """
    pool, sizes = others_pool(run, target), run.assignment.sizes
    defenses = dict(run.defenses)
    noise_only: dict[ClientId, Samples] = {}
    if defenses:
        # A canary of norm 0 replaces the target's update by zeros; the noise is still added.
        noise_only[target] = run.assignment.clients[target]
        defenses[target] = Chain((CanaryUpload(seed=0, number=0, length=0.0), run.defenses[target]))
    other_clients = [client for client in round.selected if client != target]
    ends = torch.tensor([sizes[client] for client in other_clients]).cumsum(0)
    for draw in range(draws):
        seed = seed_for(run.seed, "sum of others", target, draw)
        order = torch.randperm(len(pool), generator=seeded(seed, "data"))
        # There is one more chunk than clients; the last chunk has the remaining samples.
        *chunks, _ = torch.tensor_split(order, ends)
        data = {
            client: pool.take(chunk) for client, chunk in zip(other_clients, chunks, strict=True)
        }
        yield _weighted_sum(run, round, data | noise_only, defenses, seed)


def update_of(run: Setup, round: Round, target: ClientId) -> Float[Tensor, " _"]:
    """Return the target's weighted update, clipped and without noise."""
    defense = client_dp_of(run.defenses)
    defenses = {target: replace(defense, noise_multiplier=0.0)} if defense else {}
    data = {target: run.assignment.clients[target]}
    # The federation's own seed repeats the training of the audited run. The sums of others use new
    # seeds, because they are new draws.
    return _weighted_sum(run, round, data, defenses, run.federation_seed)


def _weighted_sum(
    run: Setup,
    round: Round,
    data: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
    seed: int,
) -> Float[Tensor, " _"]:
    """Train some clients on a round's models with a new seed, and return their weighted sum."""
    tasks = []
    for client in data:
        context = ClientContext(
            round=round.index,
            rounds=run.study.training.rounds,
            client=client,
            cohort=round.selected,
            weights=round.weights,
            seed=seed,
        )
        # Neither the client nor its defense has state from earlier rounds.
        task = ClientTask(
            sent=round.sent[client], client_state={}, defense={}, client_context=context
        )
        tasks.append(task)
    with LOCAL.session(run_client, Participants(run.algorithm, data, defenses)) as train:
        weighted_updates = (
            flat(result.upload.values).double() * round.weights[client]
            for client, result in zip(data, train(tasks), strict=True)
        )
        return reduce(torch.add, weighted_updates)


def _read(measured: MeasuredRun) -> dict[ClientId, SumBounds]:
    targets = measured.run.study.audit.targets
    shape = (len(targets), len(SumBounds._fields))
    rows = measured.load_tensors(SUMS_FILE, {"bounds": shape})["bounds"].tolist()
    return {target: SumBounds(*row) for target, row in zip(targets, rows, strict=True)}


def _estimates(
    run: Setup, by_target: Mapping[ClientId, SumBounds], seed: int | None
) -> list[Estimate]:
    """Return the estimates of one run, or of all runs together if ``seed`` is None."""
    assert run.study.secure_sum is not None
    defense = client_dp_of(run.defenses)
    is_noisy = defense is not None and defense.noise_multiplier > 0
    unit = _UNIT if seed is not None else f"{_UNIT}; the smallest over all runs"
    estimates = []
    for target, bounds in by_target.items():
        counted = Estimate(
            defense=run.study.defense.label,
            view=run.view.name,
            # Bounds on epsilon have this contrast. No samples are compared here: the adversary
            # distinguishes the update from a zero update.
            contrast="unseen",
            target=target,
            seed=seed,
            samples=run.study.secure_sum.draws,
            note=unit,
            metric=SECURE_SUM_EPSILON,
            value=bounds.counted,
            ceiling=bounds.ceiling,
            method=bound_method("linear test, Clopper-Pearson", FORMAL_DELTA, _ERROR),
        )
        if_gaussian = counted.model_copy(
            update={
                "note": unit if is_noisy else _NOT_NORMAL,
                "metric": SECURE_SUM_EPSILON_IF_GAUSSIAN,
                "value": bounds.if_gaussian if is_noisy else None,
                "ceiling": None,
                "method": bound_method("linear test, Gaussian", FORMAL_DELTA, _ERROR),
            }
        )
        estimates += [counted, if_gaussian]
    return estimates
