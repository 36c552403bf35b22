"""Utility of a run's models: measured in its rounds, and kept in their notes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum, isfinite

import numpy as np
import scipy as sp
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, setting
from fedaudit.core.modules import outputs_of
from fedaudit.core.seeds import seeded
from fedaudit.core.values import ClientId, Model, Samples, Sees, chunks
from fedaudit.evaluation.truth import run_coordinates
from fedaudit.metrics import generalisation_gap, share
from fedaudit.observe.measurements import Stored
from fedaudit.observe.round import Round
from fedaudit.plan.dealing import left_to_train
from fedaudit.plan.parts import Setup
from fedaudit.results.estimate import (
    GENERALISATION_GAP,
    TEST_ACCURACY,
    TRAIN_ACCURACY,
    UPLOAD_GAP,
    Estimate,
)
from fedaudit.results.fields import LARGEST
from fedaudit.results.record import AccuracyByRound
from fedaudit.results.runs import ALL_CLIENTS

TRAIN_ACCURACY_SAMPLES = 5_000
"""Training accuracy of a model is counted on at most so many samples."""

_GAP_TRAINED, _GAP_TESTED = 500, 1_000
_AT_ONCE = 4096
"""Samples whose outputs are in memory together: those of sequences are large."""
MEAN, SPREAD = "mean", "spread"
_TEST, _TRAIN, _TOTAL, _GAP = "test_correct/", "train_correct/", "train_total/", "gap/client-"


@dataclass(frozen=True)
class EvaluationSplit:
    """Samples that models are evaluated on.

    Attributes:
        test: The test part.
        fresh: Some of it, at random: files are often in order of class.
        all_clients: Random training samples of all clients together.
        by_client: Random training samples of each client.
    """

    test: Samples
    fresh: Samples
    all_clients: Samples
    by_client: Mapping[ClientId, Samples]


def evaluation_split(run: Setup) -> EvaluationSplit:
    """Return what models of a run are evaluated on, without what clients hold out."""
    left = left_to_train(run.deal.clients, run.holdout)
    trained_on = {
        client: data if left[client] is data else data.take(torch.isin(data.ids, left[client].ids))
        for client, data in run.deal.clients.items()
    }
    return EvaluationSplit(
        run.dataset.test,
        _some(run, [run.dataset.test], _GAP_TESTED),
        _some(run, list(trained_on.values()), TRAIN_ACCURACY_SAMPLES),
        {c: _some(run, [data], _GAP_TRAINED) for c, data in trained_on.items()},
    )


def accuracy_notes(
    run: Setup,
    given: EvaluationSplit,
    round: Round,
    device: torch.device = CPU,
    *,
    means: bool = True,
) -> dict[str, str]:
    """Return counts of correct predictions by the models of a round; of other tasks the means.

    The server's models are evaluated on samples of all clients, models that clients keep on their
    client's own, and models that clients choose on samples like the client's. In the last measured
    round the models of single clients are compared on their own and on test samples.

    Args:
        run: The run.
        given: What models are tried on.
        round: As the adversary sees it.
        device: Where models are run.
        means: Whether means of tasks without accuracy are wanted: they are shown of the last
            round alone, and may cost more than all attacks.

    Source: SIA, section 4.6 (generalization error of the local models).
    Differs: The difference keeps its sign; at most 500 samples of each client and 1,000 of the
        test part are looked at, and the last measured round alone.
    """
    single = Sees.UPLOADS in run.view.offers and not run.study.audit.merge
    # Counted whatever the attacks are: they may be chosen after the run. Clustered federations have
    # hundreds of clients, and theirs are counted where they are asked for.
    is_last = round.index == run.measured_rounds[-1]
    wanted = single and is_last and (bool(run.on_source) or not round.chosen)
    gaps = _gaps(given, round, device) if wanted else {}
    if round.chosen:
        return _served(run, given, round, device) | gaps
    models: dict[str, tuple[Model, Samples]] = {
        name: (model, given.all_clients) for name, model in round.after.items()
    }
    kept = {f"client-{c}": (model, given.by_client[c]) for c, model in sorted(round.kept.items())}
    notes = dict[str, str]()
    for name, (model, trained_on) in (kept or models).items():
        if not model.architecture.task.utility.is_share:
            if means:
                notes |= _means(model, given.test, trained_on, device)
            continue
        notes |= {
            f"{_TEST}{name}": str(_correct(model, given.test, device)),
            f"{_TRAIN}{name}": str(_correct(model, trained_on, device)),
            f"{_TOTAL}{name}": str(len(trained_on)),
        }
    return notes | gaps


def counts_fit(run: Setup, notes: Mapping[str, str], *, means: bool = True) -> bool:
    """Return True if a round's counts are there, and can be; its means, if they are wanted."""
    names = _models(notes)
    utility = run.algorithm.architecture.task.utility
    if not utility.is_share:
        return not means or all(_as_number(notes.get(f"{part}{MEAN}")) for part in (_TEST, _TRAIN))
    try:
        counts = [[int(notes[f"{part}{n}"]) for part in (_TEST, _TRAIN, _TOTAL)] for n in names]
        gaps = [float(value) for key, value in notes.items() if key.startswith(_GAP)]
    except (KeyError, ValueError):
        return False
    tested = len(run.dataset.test)
    return (
        bool(counts)
        and all(0 <= test <= tested for test, _, _ in counts)
        and all(0 <= train <= total <= TRAIN_ACCURACY_SAMPLES for _, train, total in counts)
        and all(-1 <= gap <= 1 for gap in gaps)
    )


def utility(run: Setup, stored: Sequence[Stored]) -> list[Estimate]:
    """Return accuracies of the run's models, the mean of several; of other tasks their measure."""
    tested, notes = len(run.dataset.test), stored[-1].notes
    measure = run.algorithm.architecture.task.utility
    figure = partial(Estimate, topic="utility", **run_coordinates(run))
    if not measure.is_share:
        mean, spread = float(notes[f"{_TEST}{MEAN}"]), float(notes[f"{_TEST}{SPREAD}"])
        half = float(sp.special.ndtri(0.975)) * spread / tested**0.5
        limits = {"low": mean - half, "high": mean + half}
        name, value = f"train {measure.name}", float(notes[f"{_TRAIN}{MEAN}"])
        method = "normal 95%"
        return [
            figure(
                metric=f"test {measure.name}", value=mean, samples=tested, method=method, **limits
            ),
            figure(metric=name, value=value),
        ]
    test = share(round(_mean_count(notes, _TEST)), tested)
    right, total = (
        sum(int(notes[f"{part}{name}"]) for name in _models(notes)) for part in (_TRAIN, _TOTAL)
    )
    train = share(right, total)
    found = {TRAIN_ACCURACY: train.value, GENERALISATION_GAP: generalisation_gap(train, test).value}
    gaps = [float(value) for key, value in notes.items() if key.startswith(_GAP)]
    if gaps:
        # The sum is exact, so that the order of the notes cannot change the last digit.
        found[UPLOAD_GAP] = fsum(gaps) / len(gaps)
    return [
        figure(
            metric=TEST_ACCURACY,
            value=test.value,
            low=test.low,
            high=test.high,
            method="Clopper-Pearson 95%",
            samples=tested,
        ),
        *(figure(metric=metric, value=value) for metric, value in found.items()),
    ]


def accuracy_by_round(run: Setup, stored: Sequence[Stored]) -> AccuracyByRound:
    """Return test accuracy after each measured round, the mean of several models.

    Empty for tasks without accuracy.
    """
    tested = len(run.dataset.test)
    if not run.algorithm.architecture.task.utility.is_share:
        stored = []
    return AccuracyByRound(
        **run_coordinates(run),
        rounds=[one.measured.index for one in stored],
        accuracy=[_mean_count(one.notes, _TEST) / tested for one in stored],
    )


def overfitting(notes: Mapping[str, str], clients: Sequence[ClientId]) -> list[float]:
    """Return training less test accuracy of each client's model; empty if it was not counted."""
    named = [f"{_GAP}{client}" for client in clients]
    return [float(notes[name]) for name in named] if all(n in notes for n in named) else []


def _models(notes: Mapping[str, str]) -> list[str]:
    return sorted(name.removeprefix(_TEST) for name in notes if name.startswith(_TEST))


def _mean_count(notes: Mapping[str, str], part: str) -> float:
    return float(np.mean([int(notes[f"{part}{name}"]) for name in _models(notes)]))


def _served(
    run: Setup, given: EvaluationSplit, round: Round, device: torch.device
) -> dict[str, str]:
    """Return counts of correct predictions by the models that clients chose."""
    right = {
        part: int((outputs.argmax(1) == samples.labels).sum())
        for part, samples in ((_TEST, given.test), (_TRAIN, given.all_clients))
        for outputs in [outputs_served(round, samples, run.groups.place, device)]
    }
    counts = {**right, _TOTAL: len(given.all_clients)}
    return {f"{part}{ALL_CLIENTS}": str(count) for part, count in counts.items()}


def _means(
    model: Model, test: Samples, trained_on: Samples, device: torch.device
) -> dict[str, str]:
    """Return mean and spread of the utility of a model whose task has no accuracy."""
    values = [_utilities(model, samples, device) for samples in (test, trained_on)]
    return {
        f"{_TEST}{MEAN}": repr(float(values[0].mean())),
        f"{_TEST}{SPREAD}": repr(float(values[0].std())),
        f"{_TRAIN}{MEAN}": repr(float(values[1].mean())),
    }


def _as_number(text: str | None) -> bool:
    try:
        return text is not None and isfinite(float(text))
    except ValueError:
        return False


def _gaps(given: EvaluationSplit, round: Round, device: torch.device) -> dict[str, str]:
    found = {}
    for client, exposed in round.exposed.items():
        if exposed.local and not exposed.local.architecture.task.utility.is_share:
            return {}
        # FedMD exposes an adversary's student, which is not what the client has overfitted.
        model = round.kept.get(client, exposed.local)
        if model is not None:
            own = given.by_client[client]
            trained = _correct(model, own, device) / len(own)
            tested = _correct(model, given.fresh, device) / len(given.fresh)
            found[f"{_GAP}{client}"] = repr(trained - tested)
    return found


def _correct(model: Model, samples: Samples, device: torch.device) -> int:
    return int(_utilities(model, samples, device).sum())


def _utilities(model: Model, samples: Samples, device: torch.device) -> Float[Tensor, " samples"]:
    """Return the utility of a model on each sample, by its task's measure.

    Raises:
        BadInput: Predictions are too far off for any figure.
    """
    values: list[Tensor] = []
    for part in chunks(len(samples), _AT_ONCE):
        outputs = outputs_of(model, samples.features[part], device)
        values.append(model.architecture.task.utility.of(outputs, samples.targets[part]))
    utilities = torch.cat(values).double()
    if not bool((utilities.abs() <= LARGEST).all()):
        raise BadInput(
            f"training has diverged: predictions are infinite or more than {LARGEST:g} off; lower "
            f"{setting('training.lr')}"
        )
    return utilities


def _some(run: Setup, parts: Sequence[Samples], most: int) -> Samples:
    """Return the samples, or the random part of them that all rounds of a run use."""
    if len(parts) == 1 and len(parts[0]) <= most:
        return parts[0]
    return some_of(parts, most, seeded(run.seed, "training accuracy"))


def some_of(parts: Sequence[Samples], most: int, rng: torch.Generator) -> Samples:
    """Return a random part of all samples, in their order.

    They are not joined first: all samples of a federation are as large as its data set.

    Args:
        parts: One after another.
        most: Samples to return, at most.
        rng: Draws them.
    """
    sizes = [len(part) for part in parts]
    chosen = torch.zeros(sum(sizes), dtype=torch.bool)
    chosen[torch.randperm(len(chosen), generator=rng)[:most]] = True
    of_parts = zip(parts, torch.split(chosen, sizes), strict=True)
    return Samples.joined(*(part.take(mine) for part, mine in of_parts))


def model_of_each(round: Round, clients: Sequence[ClientId]) -> dict[ClientId, str]:
    """Return the name of every client's model; the first for one that was never asked."""
    first = next(iter(round.after))
    return {client: round.chosen.get(client, first) for client in clients}


def outputs_served(
    round: Round, samples: Samples, place: Int[ndarray, " all"], device: torch.device = CPU
) -> Float[Tensor, "samples outputs"]:
    """Return outputs for each sample of the model that the client uses whose data it is like.

    Args:
        round: With several models after it.
        samples: To try them on.
        place: For every sample of the data set, by id, a client.
        device: Where models are run.
    """
    theirs = torch.from_numpy(place)[samples.ids]
    used = model_of_each(round, sorted(set(theirs.tolist())))
    found: Tensor | None = None
    for name, model in round.after.items():
        clients = [client for client, chosen in used.items() if chosen == name]
        mine = torch.isin(theirs, torch.tensor(clients, dtype=torch.int64))
        if bool(mine.any()):
            outputs = outputs_of(model, samples.features[mine], device)
            if found is None:
                found = outputs.new_empty((len(samples), *outputs.shape[1:]))
            found[mine] = outputs
    return torch.empty(0, 1) if found is None else found
