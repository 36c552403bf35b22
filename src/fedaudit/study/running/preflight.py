"""Checks before training: what a study needs, and what it can find, for every variant of a grid.

Before these checks a study is set up (:func:`fedaudit.study.build.setup`), which refuses
unknown names, missing and wrong settings, data that do not suffice, attacks that the view does not
allow, and models, defenses and algorithms that do not fit each other. ``CHECKS`` then tries what
training and the record will need, on every run and on the adversary's own federations. Nothing is
trained: steps are taken on copies, and no random stream is used up.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedaudit.core.devices import CPU, forked, refuse_several_workers, samples_on
from fedaudit.core.errors import BadInput, Unsupported, custom_code, setting
from fedaudit.core.importing import line_of
from fedaudit.core.metric_names import Origin
from fedaudit.core.modules import CHUNK, as_taken, outputs_of
from fedaudit.core.objects import canonical_repr
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import Architecture, Batch, ClientId, Samples
from fedaudit.engines.base import Counted
from fedaudit.evaluation.truth import UnitTruth, pooled, repeats, target_truth
from fedaudit.fl.accounting import FORMAL_DELTA
from fedaudit.fl.hooks import UNDEFENDED, Defense, Turn, Visit
from fedaudit.fl.simulate import prepare_data
from fedaudit.fl.training.local import try_step
from fedaudit.metrics.power import smallest_auc
from fedaudit.metrics.rate_limits import inconclusive
from fedaudit.metrics.table import CONTRASTS
from fedaudit.plan.dealing import left_to_train
from fedaudit.plan.parts import Setup
from fedaudit.plan.sections import Study
from fedaudit.study.build import refuse_misfits

POWER = 0.8


class _Compared(NamedTuple):
    """Members and non-members that figures of each attack compare.

    Attributes:
        who: The client, or all of them.
        contrast: The non-members.
        strata: Members and non-members of each client.
    """

    who: str
    contrast: str
    strata: tuple[tuple[int, int], ...]


def smallest_leaks(run: Setup) -> list[str]:
    """Return sentences on the smallest leak that is found four times in five.

    Args:
        run: The study's first run; further ones are as large, nearly.
    """
    if not run.on_membership:
        return []
    study = run.study
    audited = [target_truth(run, target).units for target in study.audit.targets]
    compared = [*_alone(run, audited), *_together(run, audited)]
    tests = len(run.on_membership) * sum(_tests(one, study.figures.fprs) for one in compared)
    found = dict[str, tuple[float, _Compared]]()
    for one in compared:
        least = smallest_auc(
            one.strata,
            tests=tests,
            rng=seeded_numpy(study.seeds[0], "smallest leak"),
            runs=len(study.seeds),
            alpha=study.figures.alpha,
            power=POWER,
        )
        if least is not None and least < found.get(one.who, (2.0, one))[0]:
            found[one.who] = least, one
    seeds = "1 seed" if len(study.seeds) == 1 else f"{len(study.seeds)} seeds"
    size = (
        f"{len(run.on_membership)} attacks on {seeds}, {tests} tests that share an error of "
        f"{study.figures.alpha:.0%} (Holm)"
    )
    if not found:
        return [
            f"no leak is large enough to be found by a study of this size ({size}); audit more "
            "samples (audit.fair) or seeds"
        ]
    ranked = sorted(found.values(), key=lambda one: one[0])
    lost = len({one.who for one in compared}) - len(found)
    ends = dict.fromkeys(f"{least:.3f} ({_sizes(one)})" for least, one in (ranked[0], ranked[-1]))
    return [
        f"smallest leak that is found four times in five: an AUC of {' to '.join(ends)}; {size}"
        + (f"; none is found at {lost} of the audited clients" if lost else "")
    ]


def _alone(run: Setup, audited: Sequence[UnitTruth]) -> Iterator[_Compared]:
    for truth in audited:
        for contrast, comparison in truth.comparisons.items():
            is_member = truth.is_member[comparison.chosen]
            sides = int(is_member.sum()), int((~is_member).sum())
            if all(sides) and not repeats(contrast, truth):
                yield _Compared(run.called(truth.target), contrast, (sides,))


def _together(run: Setup, audited: Sequence[UnitTruth]) -> Iterator[_Compared]:
    parts = [one.origin[one.fair] for one in pooled(run, audited)]
    present = set(np.concatenate(parts).tolist()) if len(parts) > 1 else set()
    for contrast, against in CONTRASTS.items():
        if present and present.issuperset(against):
            strata = tuple(
                (int((one == Origin.MEMBER).sum()), int(np.isin(one, against).sum()))
                for one in parts
            )
            yield _Compared("all audited clients together", contrast, strata)


def _tests(one: _Compared, fprs: Sequence[float]) -> int:
    """Tests of one attack: of its AUC, and of each rate that so many non-members show."""
    others = sum(others for _, others in one.strata)
    return 1 + sum(not inconclusive(fpr, others) for fpr in fprs)


def _sizes(one: _Compared) -> str:
    members, others = (sum(side) for side in zip(*one.strata, strict=True))
    kinds = {"other_client": "other clients'", "unseen": "unseen", "mixed": "other"}
    return f"{one.who}, {members} members against {others} {kinds[one.contrast]} samples"


_LARGEST_SUGGESTED = 2
"""Times the batch size up to which another one is looked for."""

_MOST_DRAWN = 2 * 10**9
"""Bytes of features that defenses draw in these checks at most; a few seconds. If all rounds need
more, some are planned, and :func:`fedaudit.fl.training.local.train` refuses what fails in others.
"""

_LEAST_DRAWN = 2**18
"""Bytes that take as long to copy as the other work of a draw takes."""


def refuse_unusable(run: Setup, device: torch.device) -> None:
    """Refuse clients, networks, defenses and servers that training itself would refuse.

    Raises:
        FedauditError: As :func:`fedaudit.fl.simulate.simulate`.
    """
    run.simulated(device=device)


def refuse_missing_accountant(run: Setup, device: torch.device) -> None:
    """Refuse defenses whose guarantee the record states and this installation cannot calculate.

    Raises:
        BadInput: A package is not installed.
    """
    if run.is_shadow:
        return
    for defense, clients in _clients_by_defense(run).items():
        if defense:
            work = replace(
                run.algorithm.workload(run.study.training.rounds, run.deal.sizes[clients[0]]),
                features=run.dataset.train.features[0].numel(),
            )
            run.defenses[clients[0]].guarantee(work, delta=FORMAL_DELTA)


def refuse_untrainable_batches(run: Setup, device: torch.device) -> None:
    """Refuse networks that cannot take a training step on the batches that clients will have.

    One step is taken on the smallest and on the largest batch of all clients with the same defense.
    Batch normalisation, for one, cannot be trained on a last batch of one sample.

    Raises:
        BadInput: A step fails; the clients with such batches are named, and what to change.
    """
    data = left_to_train(run.deal.clients, run.holdout)
    defenses = _prepared_defenses(run)
    for clients in _clients_by_defense(run).values():
        for at, net in enumerate(run.algorithm.nets):
            batches = [
                planned
                for client in clients
                for planned in _batches(run, client, defenses[client], data[client], net, device)
            ]
            for which in (min, max):
                found = which(batches, key=lambda one: one.size, default=None)
                # With networks of their own, clients train in turn on one of them each.
                if found is None or (at and which is max):
                    continue
                with custom_code(partial(_untrainable, run, net, found, batches, data)):
                    _try_batch(run, net, found, device)


def refuse_unmeasurable_batches(run: Setup, device: torch.device) -> None:
    """Refuse networks that cannot be run on as many samples as are measured together.

    Audited samples and those of the test set go through a model in parts of one size, of which the
    last can be a single sample.

    Raises:
        BadInput: A network fails on the largest or the smallest part.
    """
    tried = set[int]()
    for samples in (run.deal.audit.samples, run.dataset.test):
        for size in {min(len(samples), CHUNK), len(samples) % CHUNK} - {0} - tried:
            tried.add(size)
            for net in run.algorithm.nets:
                with custom_code(partial(_unmeasurable, run, net, size)):
                    outputs_of(net.initial(0), samples.features[:size], device)


def _unmeasurable(
    run: Setup, net: Architecture, size: int, error: Exception, described: str
) -> BadInput:
    return BadInput(
        f"{run.named_for_people}: audited and test samples go through a model in parts of up to "
        f"{CHUNK}, and the model {net.name!r} cannot be run on {size} samples in evaluation mode "
        f"({described}, {line_of(error)}); change the model so that it takes any number of "
        "samples, or take another one"
    )


def refuse_untrainable_extensions(run: Setup, device: torch.device) -> None:
    """Refuse extensions of a run that could not train what they train after it."""
    for one in run.extensions:
        one.refuse_untrainable(run)


Check = Callable[[Setup, torch.device], None]

CHECKS: tuple[Check, ...] = (
    refuse_unusable,
    refuse_missing_accountant,
    refuse_untrainable_batches,
    refuse_unmeasurable_batches,
    refuse_untrainable_extensions,
)
"""What is tried on every run, and on the adversary's own federations, once they are set up."""


def check_run(run: Setup, device: torch.device = CPU) -> None:
    """Refuse a run, or a federation of its adversary, that could not be trained or recorded.

    Args:
        run: The run.
        device: Where clients are going to train.

    Raises:
        FedauditError: As the ``CHECKS``.
    """
    for one in (run, *run.own_federations):
        with _without_a_trace():
            for check in CHECKS:
                check(one, device)


def check_grid(
    studies: Iterable[Study],
    data_dir: Path | None = None,
    device: torch.device = CPU,
    log: Callable[[str], None] = lambda text: None,
) -> None:
    """Refuse studies that cannot work, all before any is trained, and state what they can find.

    Args:
        studies: That are to be carried out one after another.
        data_dir: Where their data lie.
        device: Where clients are going to train.
        log: Takes lines of text for the user.

    Raises:
        FedauditError: A study is refused; all such studies are named with the reason.
    """
    first: dict[str, Setup] = {}

    def check(run: Setup) -> None:
        check_run(run, device)
        first.setdefault(run.study.name, run)

    refuse_misfits(studies, data_dir, check)
    for name, run in first.items():
        for line in detectable_leaks(run):
            log(f"{name}: {line}")


@contextmanager
def _without_a_trace() -> Iterator[None]:
    """Inside, the global random generators of torch and numpy may be used; they are put back."""
    drawn = np.random.get_state()  # noqa: NPY002
    try:
        with forked(CPU):
            yield
    finally:
        np.random.set_state(drawn)  # noqa: NPY002


def refuse_place(device: torch.device, workers: int, engine: Counted | None) -> None:
    """Refuse a device, a number of workers and an engine that do not go together.

    Args:
        device: Where clients are going to train.
        workers: Processes to train in.
        engine: That trains in their place, if any.

    Raises:
        Unsupported: Several workers are to share a GPU, or an engine computes on CPUs only.
    """
    refuse_several_workers(device, workers)
    if engine is not None and device.type != "cpu":
        raise Unsupported(
            f"{type(engine).__name__} computes on CPUs, and the device is {device}; leave the "
            "engine or the device away"
        )


class _Planned(NamedTuple):
    """A batch that a client will train on.

    Attributes:
        client: The client.
        size: Number of samples.
        round: Of the batch.
        samples: The client's samples, of which the first are as good as any.
        defense: A copy of the client's, which has chosen the batch if it chooses any.
        batch: The batch that the defense chose; None if it chooses none.
    """

    client: ClientId
    size: int
    round: int
    samples: Samples
    defense: Defense
    batch: Batch | None = None


def _clients_by_defense(run: Setup) -> dict[str, list[ClientId]]:
    """Clients with an equal defense together, under its settings as text; "" for none."""
    found = dict[str, list[ClientId]]()
    for client in sorted(run.deal.clients):
        defense = run.defenses.get(client)
        found.setdefault("" if defense is None else canonical_repr(defense), []).append(client)
    return found


def _prepared_defenses(run: Setup) -> dict[ClientId, Defense]:
    """Return copies of all clients' defenses, with what they keep of their clients' data."""
    defenses = {
        client: deepcopy(run.defenses.get(client, UNDEFENDED)) for client in run.deal.clients
    }
    stateful = {
        client: run.deal.clients[client]
        for client, defense in defenses.items()
        if not defense.prepares_apart
    }
    prepare_data(stateful, defenses, run.study.training.rounds, run.federation_seed)
    return defenses


def _batches(
    run: Setup,
    client: ClientId,
    defense: Defense,
    data: Samples,
    net: Architecture,
    device: torch.device,
) -> Iterator[_Planned]:
    """Return the smallest and the largest batches of a client, over the rounds."""
    planned = dict[int, _Planned]()
    most = run.algorithm.workload(run.study.training.rounds, len(data)).batch_size
    if not _draws(defense):
        for size in {min(most, len(data)), len(data) % most or most} - {0}:
            yield _Planned(client, min(size, len(data)), 1, data, deepcopy(defense))
        return
    defense, data = deepcopy(defense), samples_on(data, device)
    for round in _planned_rounds(run, data):
        if client not in run.cohort(round):
            continue
        turn = _turn(run, client, net, round, device)
        chosen = defense.select(data, turn)
        for _ in range(run.study.training.epochs):
            drawn = [one for one in defense.batches(chosen, most, turn) if len(one)]
            for batch in (min(drawn, key=len), max(drawn, key=len)) if drawn else ():
                # The copy is of this moment: what a defense remembers of its round belongs to
                # the batch.
                if not planned or not min(planned) <= len(batch) <= max(planned):
                    planned[len(batch)] = _Planned(
                        client, len(batch), round, data, deepcopy(defense), batch
                    )
    for size in {min(planned), max(planned)} if planned else ():
        yield planned[size]


def _planned_rounds(run: Setup, data: Samples) -> list[int]:
    """All rounds if drawing in them is cheap, else some of them with the first and the last."""
    rounds, epochs = run.study.training.rounds, run.study.training.epochs
    draws = epochs * len(run.deal.clients) * len(run.algorithm.nets)
    count = max(2, min(rounds, _MOST_DRAWN // (draws * max(_LEAST_DRAWN, data.features.nbytes))))
    return sorted({int(one) for one in np.linspace(1, rounds, count).round()})


def _turn(
    run: Setup, client: ClientId, net: Architecture, round: int, device: torch.device
) -> Turn:
    """A client's turn at an untrained model, as in the run that is to come."""
    cohort = run.cohort(round)
    if client not in cohort:
        cohort = tuple(sorted(run.deal.clients))
    visit = Visit(
        round=round,
        rounds=run.study.training.rounds,
        client=client,
        cohort=cohort,
        weights=dict.fromkeys(cohort, 1 / len(cohort)),
        seed=run.federation_seed,
        device=device,
    )
    return visit.at(net.initial(0))


def _try_batch(run: Setup, net: Architecture, planned: _Planned, device: torch.device) -> None:
    turn = _turn(run, planned.client, net, planned.round, device)
    batch = planned.batch
    if batch is None:
        few = samples_on(planned.samples.take(slice(0, planned.size)), device)
        batch = Batch(few.features, few.targets, few.ids)
    batch = replace(batch, x=as_taken(batch.x, turn.received))
    how = run.study.training.local()
    try_step(turn.received, batch, how, planned.defense, turn)


def _untrainable(
    run: Setup,
    net: Architecture,
    failed: _Planned,
    batches: Sequence[_Planned],
    data: dict[ClientId, Samples],
    error: Exception,
    described: str,
) -> BadInput:
    """Return the refusal of a network that cannot be trained on batches of a size."""
    size = failed.size
    clients = sorted({one.client for one in batches if one.size == size})
    named = ", ".join(run.called(client) for client in clients[:5])
    more = f" and {len(clients) - 5} more" if len(clients) > 5 else ""
    counts = sorted({len(data[client]) for client in clients})
    own = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    most = run.study.training.batch_size
    better = None
    # What defenses choose of their clients' samples has other sizes in every round.
    if not any(_draws(one) for one in run.defenses.values()):
        better = _better_batch_size([len(one) for one in data.values()], most, size)
    batch_size = setting("training.batch_size")
    instead = f"{batch_size} = {better}" if better else f"another {batch_size}"
    when = f" of round {failed.round}" if failed.batch is not None else ""
    return BadInput(
        f"{run.named_for_people}, {named}{more}: of {own} samples in batches of {most}, one "
        f"batch{when} has {size}, and the model {net.name!r} cannot take a training step on it "
        f"({described}); set {instead}, give clients other numbers of samples "
        f"({setting('partition.samples_per_client')}), or take another model (batch normalisation "
        "needs several samples)"
    )


def _draws(defense: Defense) -> bool:
    """True if a defense chooses samples or batches itself."""
    return defense.acts_in("select") or defense.acts_in("batches")


def _better_batch_size(sizes: Sequence[int], most: int, failing: int) -> int | None:
    """The nearest other batch size with which no last batch is as small as one that failed."""
    others = sorted(
        {*range(2, _LARGEST_SUGGESTED * most + 1)} - {most}, key=lambda one: abs(one - most)
    )
    fitting = (
        one for one in others if all(size % one == 0 or size % one > failing for size in sizes)
    )
    return next(fitting, None) if failing < most else None


def detectable_leaks(run: Setup) -> list[str]:
    """Return sentences on the smallest leak that a study of this size finds.

    Args:
        run: The study's first run.
    """

    return smallest_leaks(run)
