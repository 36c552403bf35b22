"""Checks before training: trials of single steps, and the smallest leak that a study can detect.

:func:`fedaudit.study.build.build_setup` has already checked the settings. The functions in
``CHECKS`` try single steps of training and measurement, for every run and for its auxiliary
federations. They use copies of models and defenses and restore the random generators, so that they
do not change results.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedaudit.core.devices import CPU, fork_generators, raise_if_several_workers, samples_on
from fedaudit.core.errors import BadInput, Unsupported, custom_code, format_setting
from fedaudit.core.importing import location_of
from fedaudit.core.metric_names import Origin
from fedaudit.core.modules import CHUNK, in_model_dtype, outputs_of
from fedaudit.core.objects import canonical_repr
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import Architecture, Batch, ClientId, Samples
from fedaudit.engines.base import CountedEngine
from fedaudit.evaluation.truth import (
    UnitTruth,
    pooled_targets,
    repeats_other_contrast,
    target_truth,
)
from fedaudit.fl.accounting import FORMAL_DELTA
from fedaudit.fl.chain import custom_parts
from fedaudit.fl.hooks import UNDEFENDED, ClientContext, Defense, TrainingContext, checked_return
from fedaudit.fl.training.local import try_step
from fedaudit.metrics.catalogue import CONTRASTS
from fedaudit.metrics.power import smallest_auc, smallest_tpr
from fedaudit.metrics.rate_limits import nonmember_shortage
from fedaudit.plan.assignment import prepare_training
from fedaudit.plan.parts import Setup
from fedaudit.plan.sections import Study
from fedaudit.study.build import raise_if_misfits

POWER = 0.8
"""Power for which the smallest detectable leak is stated."""


class _SampleCounts(NamedTuple):
    """Numbers of members and non-members that every attack compares.

    Attributes:
        label: Name of the client, or a text for all audited clients.
        contrast: Kind of non-members.
        by_client: Number of members and number of non-members of each client.
    """

    label: str
    contrast: str
    by_client: tuple[tuple[int, int], ...]


def detectable_leaks(run: Setup, *, with_rates: bool = False) -> list[str]:
    """Return sentences on the smallest leak that is detected with a power of 80 %.

    Args:
        run: First run of the study. The other runs have almost the same numbers of samples.
        with_rates: Whether to state the smallest detectable TPRs.
    """
    if not run.membership_attacks:
        return []
    study = run.study
    truths = [target_truth(run, target).units for target in study.audit.targets]
    comparisons = [*_single_clients(run, truths), *_all_clients(run, truths)]
    tests_per_attack = sum(_count_tests(counts, study.figures.fprs) for counts in comparisons)
    n_tests = len(run.membership_attacks) * tests_per_attack
    smallest = dict[str, tuple[float, _SampleCounts]]()
    for counts in comparisons:
        auc = smallest_auc(
            counts.by_client,
            tests=n_tests,
            rng=seeded_numpy(study.seeds[0], "smallest leak"),
            runs=len(study.seeds),
            alpha=study.figures.alpha,
            power=POWER,
        )
        if auc is None:
            continue
        if counts.label not in smallest or auc < smallest[counts.label][0]:
            smallest[counts.label] = auc, counts
    seeds = "1 seed" if len(study.seeds) == 1 else f"{len(study.seeds)} seeds"
    size = (
        f"{len(run.membership_attacks)} attacks on {seeds}, {n_tests} tests with a "
        f"family-wise error rate of {study.figures.alpha:.0%} (Holm)"
    )
    if not smallest:
        return [
            f"a study of this size cannot detect any leak ({size}); audit more samples "
            f"({format_setting('audit.samples')}) or seeds"
        ]
    ranked = sorted(smallest.values(), key=lambda entry: entry[0])
    n_undetectable = len({counts.label for counts in comparisons}) - len(smallest)
    limits = [f"{auc:.3f} ({_describe(counts)})" for auc, counts in (ranked[0], ranked[-1])]
    auc_range = " to ".join(dict.fromkeys(limits))
    text = f"smallest leak that is detected with 80 % power: an AUC of {auc_range}"
    text += f"; {size}"
    if n_undetectable:
        text += f"; no leak of {n_undetectable} of the audited clients can be detected"
    # The tests of rates load scipy, for which the start of a study should not wait.
    return [text, *(_detectable_rates(study, comparisons, n_tests) if with_rates else ())]


def _detectable_rates(
    study: Study, comparisons: Sequence[_SampleCounts], n_tests: int
) -> Iterator[str]:
    """Yield a sentence for each rate that is tested, for the client with the most samples."""
    single = [counts for counts in comparisons if len(counts.by_client) == 1]
    largest = max(single, key=lambda counts: counts.by_client[0], default=None)
    if largest is None:
        return
    members, nonmembers = largest.by_client[0]
    for fpr in study.figures.fprs:
        if nonmember_shortage(fpr, nonmembers):
            continue
        tpr = smallest_tpr(
            members,
            nonmembers,
            fpr,
            tests=n_tests,
            rng=seeded_numpy(study.seeds[0], "smallest rate"),
            runs=len(study.seeds),
            alpha=study.figures.alpha,
            power=POWER,
        )
        rate = "none" if tpr is None else f"{tpr:.1%}"
        yield (
            f"smallest TPR at {100 * fpr:g}% FPR that is detected with 80 % power: {rate} "
            f"({_describe(largest)})"
        )


def _single_clients(run: Setup, audited: Sequence[UnitTruth]) -> Iterator[_SampleCounts]:
    """Yield the comparisons of single audited clients."""
    for truth in audited:
        for contrast, samples in truth.comparisons.items():
            is_member = truth.is_member[samples.mask]
            counts = int(is_member.sum()), int((~is_member).sum())
            if all(counts) and not repeats_other_contrast(contrast, truth):
                yield _SampleCounts(run.client_name(truth.target), contrast, (counts,))


def _all_clients(run: Setup, audited: Sequence[UnitTruth]) -> Iterator[_SampleCounts]:
    """Yield the comparisons of all audited clients together, if there are several."""
    origins = [truth.origin[truth.fair] for truth in pooled_targets(run, audited)]
    if len(origins) < 2:
        return
    present_origins = set(np.concatenate(origins).tolist())
    for contrast, non_members in CONTRASTS.items():
        if present_origins and present_origins.issuperset(non_members):
            by_client = tuple(
                (int((origin == Origin.MEMBER).sum()), int(np.isin(origin, non_members).sum()))
                for origin in origins
            )
            yield _SampleCounts("all audited clients together", contrast, by_client)


def _count_tests(counts: _SampleCounts, fprs: Sequence[float]) -> int:
    """Count an attack's tests: of its AUC, and of each rate for which non-members suffice."""
    non_members = sum(count for _, count in counts.by_client)
    return 1 + sum(not nonmember_shortage(fpr, non_members) for fpr in fprs)


def _describe(counts: _SampleCounts) -> str:
    members = sum(count for count, _ in counts.by_client)
    non_members = sum(count for _, count in counts.by_client)
    kinds = {"other_client": "other clients'", "unseen": "unseen", "mixed": "other"}
    kind = kinds[counts.contrast]
    return f"{counts.label}, {members} members against {non_members} {kind} samples"


_MAX_SUGGESTED_FACTOR = 2
"""Maximum suggested batch size, as a multiple of the study's batch size."""

_MAX_DRAWN_BYTES = 2 * 10**9
"""Maximum size of all batches that defenses draw in these checks, which takes a few seconds.

If the batches of all rounds would be larger, only some rounds are checked. An unusable batch in
another round then stops training; see :func:`fedaudit.fl.training.local.train`.
"""

_MIN_DRAW_BYTES = 2**18
"""Minimum cost of drawing a batch, in bytes: a small batch takes as long as copying these."""


def raise_if_missing_accountant(run: Setup, device: torch.device) -> None:
    """Raise if the formal guarantee of a defense cannot be computed with the installed packages."""
    if run.is_auxiliary:
        return
    for client, *_ in _clients_by_defense(run).values():
        if client in run.defenses:
            rounds, n_samples = run.study.training.rounds, run.assignment.sizes[client]
            data_use = replace(
                run.algorithm.data_use(rounds, n_samples),
                features=run.dataset.train.features[0].numel(),
            )
            run.defenses[client].full_guarantee(data_use, delta=FORMAL_DELTA)


def raise_if_failing_hooks(run: Setup, device: torch.device) -> None:
    """Raise if a hook of a custom defense fails, or returns a value of the wrong type."""
    for client, *_ in _clients_by_defense(run).values():
        for part in custom_parts(run.defenses.get(client, UNDEFENDED)):
            with custom_code(partial(_hook_error, part)):
                _try_hooks(run, client, deepcopy(part), device)


def _hook_error(defense: Defense, error: Exception, described: str) -> BadInput:
    return BadInput(
        f"the defense {type(defense).__name__} fails on the first batch of a client "
        f"({described}, {location_of(error)}); correct its hooks"
    )


def _try_hooks(run: Setup, client: ClientId, defense: Defense, device: torch.device) -> None:
    context = _training_context(run, client, run.algorithm.nets[0], 1, device)

    data = defense.prepare(run.assignment.clients[client], replace(context, round=0))
    data = checked_return(
        defense, "select", defense.select(samples_on(data, device), context), Samples
    )
    batch_size = run.algorithm.data_use(run.study.training.rounds, len(data)).batch_size
    batches = defense.batches(data, batch_size, context)
    for batch in islice(checked_return(defense, "batches", batches, Iterable), 1):
        checked_return(defense, "batches", batch, Batch)
        checked_return(defense, "batch", defense.batch(batch, context), Batch)


def raise_if_untrainable_batches(run: Setup, device: torch.device) -> None:
    """Raise if a network cannot take a training step on the clients' batches.

    A step is tried on the smallest and on the largest batch of all clients with the same defense.
    Batch normalisation, for example, cannot be trained on a batch of one sample.
    """
    data, defenses = prepare_training(run.assignment.clients, run.holdout)
    for clients in _clients_by_defense(run).values():
        for index, net in enumerate(run.algorithm.nets):
            batches = [
                batch
                for client in clients
                for batch in _batches(
                    run, client, defenses.get(client, UNDEFENDED), data[client], net, device
                )
            ]
            for extreme in (min, max):
                batch = extreme(batches, key=lambda batch: batch.size, default=None)
                # The largest batch is tried only with the first network, to save time.
                if batch is None or (index and extreme is max):
                    continue
                with custom_code(partial(_batch_error, run, net, batch, batches, data, device)):
                    _try_batch(run, net, batch, device)


def raise_if_unmeasurable_batches(run: Setup, device: torch.device) -> None:
    """Raise if a network cannot be run on the batches of audited and test samples.

    All batches have the same size, except the last one, which may have a single sample.
    """
    tried_sizes = set[int]()
    for samples in (run.assignment.audit.samples, run.dataset.test):
        for size in {min(len(samples), CHUNK), len(samples) % CHUNK} - {0} - tried_sizes:
            tried_sizes.add(size)
            for net in run.algorithm.nets:
                with custom_code(partial(_measurement_error, run, net, size)):
                    outputs_of(net.initial(0), samples.features[:size], device)


def _measurement_error(
    run: Setup, net: Architecture, size: int, error: Exception, described: str
) -> BadInput:
    return BadInput(
        f"{run.display_name}: audited and test samples are measured in batches of up to {CHUNK}, "
        f"but the model {net.name!r} cannot be run on {size} samples in evaluation mode "
        f"({described}, {location_of(error)}); change the model so that it accepts any number of "
        "samples, or use another model"
    )


def raise_if_untrainable_extensions(run: Setup, device: torch.device) -> None:
    """Raise if an extension could not train the models that it trains after the run."""
    for extension in run.extensions:
        extension.raise_if_untrainable(run)


def raise_if_too_few_clients(run: Setup) -> None:
    """Raise if a study has results only of attacks that need three clients, and has fewer clients.

    Raises:
        Unsupported: All attacks compare clients, the federation has fewer than three clients, and
            no extension, such as label inference, gives other results.
    """
    attacks = run.membership_attacks | run.source_attacks
    # The adversary sees merged clients as one.
    clients = run.study.partition.clients - max(len(run.study.audit.merge) - 1, 0)
    if clients > 2 or run.extensions:
        return
    if attacks and all(a.needs_other_clients for a in attacks.values()):
        raise Unsupported(
            f"{', '.join(attacks)}: scores are comparisons with at least 2 other clients, but the "
            f"adversary sees only {clients} clients; use more clients, or add an attack that needs "
            "only the target, such as loss-series or avg-cosine"
        )


CHECKS: tuple[Callable[[Setup, torch.device], object], ...] = (
    lambda run, device: run.simulate(device=device),
    raise_if_missing_accountant,
    raise_if_failing_hooks,
    raise_if_untrainable_batches,
    raise_if_unmeasurable_batches,
    raise_if_untrainable_extensions,
)
"""Checks for every run and for its auxiliary federations."""


def check_run(run: Setup, device: torch.device = CPU) -> None:
    """Raise if a run, or one of its auxiliary federations, could not be trained or measured."""
    raise_if_too_few_clients(run)
    for federation in (run, *run.additional_federations):
        with _restored_generators():
            for check in CHECKS:
                check(federation, device)


def check_grid(
    studies: Iterable[Study],
    data_dir: Path | None = None,
    device: torch.device = CPU,
    log: Callable[[str], None] = lambda text: None,
) -> None:
    """Raise if any of several studies cannot run, and log each study's smallest detectable leak."""
    first_runs: dict[str, Setup] = {}

    def check(run: Setup) -> None:
        check_run(run, device)
        first_runs.setdefault(run.study.name, run)

    raise_if_misfits(studies, data_dir, check)
    for name, run in first_runs.items():
        for line in detectable_leaks(run):
            log(f"{name}: {line}")


@contextmanager
def _restored_generators() -> Iterator[None]:
    """Restore the global random generators of torch and numpy at the end of the context."""
    state = np.random.get_state()  # noqa: NPY002
    try:
        with fork_generators(CPU):
            yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def raise_if_unsupported_device(
    device: torch.device, workers: int, engine: CountedEngine | None
) -> None:
    """Raise if a device, a number of workers and an engine cannot be combined."""
    raise_if_several_workers(device, workers)
    if engine is not None and device.type != "cpu":
        raise Unsupported(
            f"{type(engine).__name__} computes on CPUs, but the device is {device}; leave out the "
            "engine or the device"
        )


class _PlannedBatch(NamedTuple):
    """Batch on which a client will train.

    Attributes:
        client: The client.
        size: Number of samples in the batch.
        round: Round in which the client trains on the batch.
        samples: All samples of the client. If the defense does not choose batches, a step is tried
            on the first ``size`` samples.
        defense: Copy of the client's defense, after it has chosen the batch.
        batch: Batch that the defense chose; None if it does not choose batches.
    """

    client: ClientId
    size: int
    round: int
    samples: Samples
    defense: Defense
    batch: Batch | None = None


def _clients_by_defense(run: Setup) -> dict[str, list[ClientId]]:
    """Group the clients by the canonical text of their defense; "" for no defense."""
    groups = dict[str, list[ClientId]]()
    for client in sorted(run.assignment.clients):
        defense = run.defenses.get(client)
        groups.setdefault("" if defense is None else canonical_repr(defense), []).append(client)
    return groups


def _batches(
    run: Setup,
    client: ClientId,
    defense: Defense,
    data: Samples,
    net: Architecture,
    device: torch.device,
) -> Iterator[_PlannedBatch]:
    """Yield the smallest and the largest batch of a client over all rounds."""
    by_size = dict[int, _PlannedBatch]()
    batch_size = run.algorithm.data_use(run.study.training.rounds, len(data)).batch_size
    if not _chooses_batches(defense):
        for size in {min(batch_size, len(data)), len(data) % batch_size or batch_size} - {0}:
            yield _PlannedBatch(client, min(size, len(data)), 1, data, deepcopy(defense))
        return
    defense, data = deepcopy(defense), samples_on(data, device)
    for round in _checked_rounds(run, data):
        if client not in run.cohort(round):
            continue
        context = _training_context(run, client, net, round, device)
        selected = defense.select(data, context)
        for _ in range(run.study.training.epochs):
            batches = [b for b in defense.batches(selected, batch_size, context) if len(b)]
            for batch in (min(batches, key=len), max(batches, key=len)) if batches else ():
                # The defense is copied here, because a training step on the batch needs the state
                # that the defense has in this round.
                if not by_size or not min(by_size) <= len(batch) <= max(by_size):
                    by_size[len(batch)] = _PlannedBatch(
                        client, len(batch), round, data, deepcopy(defense), batch
                    )
    for size in {min(by_size), max(by_size)} if by_size else ():
        yield by_size[size]


def _checked_rounds(run: Setup, data: Samples) -> list[int]:
    """Return all rounds, or some of them including the first and the last if drawing is slow."""
    rounds, epochs = run.study.training.rounds, run.study.training.epochs
    draws = epochs * len(run.assignment.clients) * len(run.algorithm.nets)
    draw_bytes = max(_MIN_DRAW_BYTES, data.features.nbytes)
    count = max(2, min(rounds, _MAX_DRAWN_BYTES // (draws * draw_bytes)))
    return sorted({int(index) for index in np.linspace(1, rounds, count).round()})


def _training_context(
    run: Setup, client: ClientId, net: Architecture, round: int, device: torch.device
) -> TrainingContext:
    """Return the context of a client that trains an untrained model in a round."""
    cohort = run.cohort(round)
    if client not in cohort:
        cohort = tuple(sorted(run.assignment.clients))
    client_context = ClientContext(
        round=round,
        rounds=run.study.training.rounds,
        client=client,
        cohort=cohort,
        weights=dict.fromkeys(cohort, 1 / len(cohort)),
        seed=run.federation_seed,
        device=device,
    )
    return client_context.with_model(net.initial(0))


def _try_batch(run: Setup, net: Architecture, planned: _PlannedBatch, device: torch.device) -> None:
    context = _training_context(run, planned.client, net, planned.round, device)
    batch = planned.batch
    if batch is None:
        samples = samples_on(planned.samples.take(slice(0, planned.size)), device)
        batch = Batch(samples.features, samples.targets, samples.ids)
    batch = replace(batch, x=in_model_dtype(batch.x, context.received))
    training = run.study.training.local()
    try_step(context.received, batch, training, planned.defense, context)


def _batch_error(
    run: Setup,
    net: Architecture,
    failed: _PlannedBatch,
    batches: Sequence[_PlannedBatch],
    data: dict[ClientId, Samples],
    device: torch.device,
    error: Exception,
    described: str,
) -> BadInput:
    """Return the error for a network that cannot be trained on a batch of this size."""
    custom = [type(part).__name__ for part in custom_parts(failed.defense)]
    if custom:
        with suppress(Exception):
            _try_batch(run, net, failed._replace(defense=UNDEFENDED, batch=None), device)
            return BadInput(
                f"the defense {' and '.join(custom)} fails in a training step ({described}, "
                f"{location_of(error)}), which succeeds without the defense; correct its hooks"
            )
    size = failed.size
    clients = sorted({batch.client for batch in batches if batch.size == size})
    names = ", ".join(run.client_name(client) for client in clients[:5])
    names += f" and {len(clients) - 5} more" if len(clients) > 5 else ""
    counts = sorted({len(data[client]) for client in clients})
    samples = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    batch_size = run.study.training.batch_size
    suggested = None
    # No batch size can be suggested if defenses choose batches, since their sizes differ by round.
    if not any(_chooses_batches(defense) for defense in run.defenses.values()):
        client_sizes = [len(part) for part in data.values()]
        suggested = _suggest_batch_size(client_sizes, batch_size, size)
    option = format_setting("training.batch_size")
    remedy = f"{option} = {suggested}" if suggested else f"another {option}"
    in_round = f" of round {failed.round}" if failed.batch is not None else ""
    return BadInput(
        f"{run.display_name}, {names}: with {samples} samples in batches of "
        f"{batch_size}, one batch{in_round} has {size}, and the model {net.name!r} cannot take a "
        f"training step on it ({described}); set {remedy}, give clients other numbers of samples "
        f"({format_setting('partition.samples_per_client')}), or use another model (batch "
        "normalisation needs several samples)"
    )


def _chooses_batches(defense: Defense) -> bool:
    return defense.acts_in("select") or defense.acts_in("batches")


def _suggest_batch_size(sizes: Sequence[int], batch_size: int, failed_size: int) -> int | None:
    """Return the nearest batch size with which all batches are larger than a batch that failed."""
    candidates = sorted(
        {*range(2, _MAX_SUGGESTED_FACTOR * batch_size + 1)} - {batch_size},
        key=lambda candidate: abs(candidate - batch_size),
    )
    usable = (
        candidate
        for candidate in candidates
        if all(size % candidate == 0 or size % candidate > failed_size for size in sizes)
    )
    return next(usable, None) if failed_size < batch_size else None
