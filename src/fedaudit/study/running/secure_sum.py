"""Bounds on one client's update in the sum of a run's last round, and the file that keeps them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import Damaged
from fedaudit.core.params import flat
from fedaudit.core.progress import Progress
from fedaudit.core.seeds import seed_for, seeded
from fedaudit.core.values import ClientId, Samples
from fedaudit.defenses.accounting import FORMAL_DELTA
from fedaudit.defenses.base import Defense, Visit
from fedaudit.defenses.canary import CanaryUpload
from fedaudit.defenses.chain import Chain
from fedaudit.engines.local import LOCAL
from fedaudit.fl.visits import Job, TurnContext, visited
from fedaudit.metrics.secure_sum import secure_sum_bounds
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.study.figures.secure_sum import SumFound
from fedaudit.study.setup.canaries import client_dp_of
from fedaudit.study.setup.parts import Setup
from fedaudit.study.setup.secure_sum import others_pool

SUMS_FILE = "secure_sum.safetensors"


def keeping_sums(
    rounds: Iterable[Round], run: Setup, folder: Path, key: str, progress: Progress
) -> Iterator[Round]:
    """The rounds as they are; bounds on the sum of the last go into a file of the run's folder.

    Args:
        rounds: As they were, before any view.
        run: That they are of.
        folder: Its own.
        key: Names it.
        progress: Told of the draws.
    """
    for round in rounds:
        if round.index == run.study.training.rounds:
            found = [_bounds(run, round, target, progress) for target in run.study.audit.targets]
            write_tensors(
                {"bounds": torch.tensor(found).double()}, folder / SUMS_FILE, {"run": key}
            )
        yield round


def read_sums(run: Setup, folder: Path, key: str) -> dict[ClientId, SumFound]:
    """What :func:`keeping_sums` found, by audited client.

    Raises:
        Damaged: The file is another run's, or holds something else.
    """
    tensors, notes = read_tensors(folder / SUMS_FILE)
    bounds, targets = tensors.get("bounds"), run.study.audit.targets
    whole = bounds is not None and tuple(bounds.shape) == (len(targets), len(SumFound._fields))
    if notes.get("run") != key or bounds is None or not whole:
        raise Damaged(
            f"{folder / SUMS_FILE} is not what this run left; delete {folder} and run the study "
            "again"
        )
    return {target: SumFound(*row) for target, row in zip(targets, bounds.tolist(), strict=True)}


def _bounds(run: Setup, round: Round, target: ClientId, progress: Progress) -> SumFound:
    assert run.study.secure_sum is not None
    draws, phase = run.study.secure_sum.draws, f"seed {run.seed}: sums without client {target}"
    one, others = update_of(run, round, target).numpy(), list[Float[ndarray, " _"]]()
    progress(phase, 0, draws)
    for drawn in sums_of_others(run, round, target):
        # Half the memory: a draw is as large as the model.
        others.append(drawn.float().numpy())
        progress(phase, len(others), draws)
    found = secure_sum_bounds(np.stack(others), one, np.zeros_like(one), delta=FORMAL_DELTA)
    return SumFound(found.counted.value, found.counted.ceiling, found.if_gaussian.value)


def sums_of_others(run: Setup, round: Round, target: ClientId) -> Iterator[Float[Tensor, " _"]]:
    """Weighted sums of all other clients' updates, each of data drawn anew and independently.

    The noise that the target's own defense adds is in them: it hides its update as theirs do.

    Args:
        run: Its settings give the number of draws.
        round: Whose models the clients train from.
        target: Whose update is left out.
    """
    assert run.study.secure_sum is not None
    pool, sizes = others_pool(run, target), run.deal.sizes
    own: list[ClientId] = [target] if run.defenses else []
    defenses: dict[ClientId, Defense] = dict(run.defenses)
    if own:
        defenses[target] = Chain((CanaryUpload(0, 0, 0.0), run.defenses[target]))
    asked = [client for client in round.asked if client != target]
    for draw in range(run.study.secure_sum.draws):
        seed = seed_for(run.seed, "sum of others", target, draw)
        order, start, data = torch.randperm(len(pool), generator=seeded(seed, "data")), 0, {}
        for client in asked:
            data[client] = pool.take(order[start : start + sizes[client]])
            start += sizes[client]
        data |= {client: run.deal.clients[client] for client in own}
        yield _weighted(run, round, data, defenses, seed)


def update_of(run: Setup, round: Round, target: ClientId) -> Float[Tensor, " _"]:
    """The target's own update as it goes into the sum, clipped and without noise."""
    private = client_dp_of(run.defenses)
    bare: Mapping[ClientId, Defense] = (
        {target: replace(private, noise_multiplier=0.0)} if private else {}
    )
    data = {target: run.deal.clients[target]}
    return _weighted(run, round, data, bare, seed_for(run.seed, "federation"))


def _weighted(
    run: Setup,
    round: Round,
    data: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
    seed: int,
) -> Float[Tensor, " _"]:
    """The weighted sum of what some clients send, by their data, in a round of another seed."""
    jobs = [
        Job(
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
    with LOCAL.session(visited, TurnContext(run.algorithm, data, defenses)) as work:
        for client, done in zip(data, work(jobs), strict=True):
            share = flat(done.upload.values).double() * round.weights[client]
            total = share if total is None else total + share
    assert total is not None
    return total
