"""Utility of a run's models, measured in each round and stored in the round's notes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum, isfinite
from typing import TypeAlias

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
"""Largest number of samples for the training accuracy of a model."""

_GAP_TRAINED, _GAP_TESTED = 500, 1_000
_AT_ONCE = 4096
"""Number of samples whose outputs are in memory together; outputs of sequences are large."""
MEAN, SPREAD = "mean", "spread"
_TEST, _TRAIN, _TOTAL, _GAP = "test_correct/", "train_correct/", "train_total/", "gap/client-"

CountCorrect: TypeAlias = Callable[[Model, Samples, torch.device], int]


@dataclass(frozen=True)
class EvaluationSplit:
    """Samples that models are evaluated on.

    Attributes:
        test: The test set.
        fresh: Random part of the test set, as files are often sorted by class.
        all_clients: Random training samples of all clients together.
        by_client: Random training samples of each client.
    """

    test: Samples
    fresh: Samples
    all_clients: Samples
    by_client: Mapping[ClientId, Samples]


def evaluation_split(run: Setup) -> EvaluationSplit:
    """Return the evaluation samples of a run, without samples that clients hold out."""
    trained = left_to_train(run.deal.clients, run.holdout)
    # A defense may change samples, which are evaluated as they were.
    trained_on = {
        client: data
        if trained[client] is data
        else data.take(torch.isin(data.ids, trained[client].ids))
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
    split: EvaluationSplit,
    round: Round,
    device: torch.device = CPU,
    *,
    means: bool = True,
    count: CountCorrect | None = None,
) -> dict[str, str]:
    """Return counts of correct predictions of a round's models, or means for other tasks.

    The server's models are evaluated on samples of all clients. A model that a client keeps is
    evaluated on that client's samples, and chosen models on samples like those of their clients. In
    the last measured round, models of single clients are compared on training and test samples.

    Args:
        run: The run.
        split: Evaluation samples.
        round: The round in the adversary's view.
        device: Device for models.
        means: Whether to compute means for tasks without accuracy. Reports show those of the last
            round only, and they may cost more than all attacks.

    Source: SIA, section 4.6 (generalization error of the local models).
    Differs: The difference keeps its sign. It is measured in the last measured round only, on at
        most 500 samples of each client and 1,000 test samples.
    """
    sees_clients = Sees.UPLOADS in run.view.offers and not run.study.audit.merge
    # Gaps are measured whatever the attacks are, as attacks may be chosen after the run. Clustered
    # federations have hundreds of clients, and are measured only if an attack uses the gaps.
    is_last = round.index == run.measured_rounds[-1]
    measures_gaps = sees_clients and is_last and (bool(run.on_source) or not round.chosen)
    gaps = _gaps(split, round, device) if measures_gaps else {}
    if round.chosen:
        return _count_chosen(run, split, round, device) | gaps
    models: dict[str, tuple[Model, Samples]] = {
        name: (model, split.all_clients) for name, model in round.after.items()
    }
    by_client = {
        f"client-{c}": (model, split.by_client[c]) for c, model in sorted(round.kept.items())
    }
    notes, count = dict[str, str](), count or count_correct
    for name, (model, trained_on) in (by_client or models).items():
        if not model.architecture.task.utility.is_share:
            if means:
                notes |= _means(model, split.test, trained_on, device)
            continue
        notes |= {
            f"{_TEST}{name}": str(count(model, split.test, device)),
            f"{_TRAIN}{name}": str(count(model, trained_on, device)),
            f"{_TOTAL}{name}": str(len(trained_on)),
        }
    return notes | gaps


def counts_fit(run: Setup, notes: Mapping[str, str], *, means: bool = True) -> bool:
    """Return True if a round's notes have possible counts, or means if ``means`` asks for them."""
    if _has_no_models(run):
        return True
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
    """Return accuracies of the run's models (the mean over several), or another task's utility."""
    if _has_no_models(run):
        return []
    tested, notes = len(run.dataset.test), stored[-1].notes
    measure = run.algorithm.architecture.task.utility
    figure = partial(Estimate, topic="utility", **run_coordinates(run))
    if not measure.is_share:
        mean, std = float(notes[f"{_TEST}{MEAN}"]), float(notes[f"{_TEST}{SPREAD}"])
        half = float(sp.special.ndtri(0.975)) * std / tested**0.5
        return [
            figure(
                metric=f"test {measure.name}",
                value=mean,
                samples=tested,
                method="normal 95%",
                low=mean - half,
                high=mean + half,
            ),
            figure(metric=f"train {measure.name}", value=float(notes[f"{_TRAIN}{MEAN}"])),
        ]
    test = share(round(_mean_correct(notes)), tested)
    correct, total = (
        sum(int(notes[f"{part}{name}"]) for name in _models(notes)) for part in (_TRAIN, _TOTAL)
    )
    train = share(correct, total)
    gap = generalisation_gap(train, test).value
    values = {TRAIN_ACCURACY: train.value, GENERALISATION_GAP: gap}
    gaps = [float(value) for key, value in notes.items() if key.startswith(_GAP)]
    if gaps:
        # The sum is exact, so that the order of the notes cannot change the last digit.
        values[UPLOAD_GAP] = fsum(gaps) / len(gaps)
    return [
        figure(
            metric=TEST_ACCURACY,
            value=test.value,
            low=test.low,
            high=test.high,
            method="Clopper-Pearson 95%",
            samples=tested,
        ),
        *(figure(metric=metric, value=value) for metric, value in values.items()),
    ]


def accuracy_by_round(run: Setup, stored: Sequence[Stored]) -> AccuracyByRound:
    """Return test accuracy after each measured round (the mean over several models).

    It is empty for tasks without accuracy.
    """
    tested = len(run.dataset.test)
    if _has_no_models(run) or not run.algorithm.architecture.task.utility.is_share:
        stored = []
    return AccuracyByRound(
        **run_coordinates(run),
        rounds=[measurement.measured.index for measurement in stored],
        accuracy=[_mean_correct(measurement.notes) / tested for measurement in stored],
    )


def _has_no_models(run: Setup) -> bool:
    return run.recorded is not None and not run.recorded.has_models


def overfitting(notes: Mapping[str, str], clients: Sequence[ClientId]) -> list[float]:
    """Return training minus test accuracy of each client's model; empty if it was not measured."""
    keys = [f"{_GAP}{client}" for client in clients]
    return [float(notes[key]) for key in keys] if all(key in notes for key in keys) else []


def _models(notes: Mapping[str, str]) -> list[str]:
    return sorted(name.removeprefix(_TEST) for name in notes if name.startswith(_TEST))


def _mean_correct(notes: Mapping[str, str]) -> float:
    return float(np.mean([int(notes[f"{_TEST}{name}"]) for name in _models(notes)]))


def _count_chosen(
    run: Setup, split: EvaluationSplit, round: Round, device: torch.device
) -> dict[str, str]:
    """Return counts of correct predictions of the models that clients chose."""
    counts = dict[str, int]()
    for part, samples in ((_TEST, split.test), (_TRAIN, split.all_clients)):
        outputs = outputs_served(round, samples, run.groups.place, device)
        counts[part] = int((outputs.argmax(1) == samples.labels).sum())
    counts[_TOTAL] = len(split.all_clients)
    return {f"{part}{ALL_CLIENTS}": str(count) for part, count in counts.items()}


def _means(
    model: Model, test: Samples, trained_on: Samples, device: torch.device
) -> dict[str, str]:
    """Return mean and standard deviation of the utility of a model without accuracy."""
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


def _gaps(split: EvaluationSplit, round: Round, device: torch.device) -> dict[str, str]:
    notes = {}
    for client, exposed in round.exposed.items():
        if exposed.local and not exposed.local.architecture.task.utility.is_share:
            return {}
        # FedMD exposes an adversary's student, which is not the model that overfits.
        model = round.kept.get(client, exposed.local)
        if model is not None:
            samples = split.by_client[client]
            trained = count_correct(model, samples, device) / len(samples)
            tested = count_correct(model, split.fresh, device) / len(split.fresh)
            notes[f"{_GAP}{client}"] = repr(trained - tested)
    return notes


def count_correct(model: Model, samples: Samples, device: torch.device) -> int:
    """Return the number of samples that a model answers correctly."""
    return int(_utilities(model, samples, device).sum())


def _utilities(model: Model, samples: Samples, device: torch.device) -> Float[Tensor, " samples"]:
    """Return the utility of a model on each sample.

    Raises:
        BadInput: A prediction is infinite or too far off.
    """
    values: list[Tensor] = []
    for part in chunks(len(samples), _AT_ONCE):
        outputs = outputs_of(model, samples.features[part], device)
        values.append(model.architecture.task.utility.per_sample(outputs, samples.targets[part]))
    utilities = torch.cat(values).double()
    if not bool((utilities.abs() <= LARGEST).all()):
        raise BadInput(
            f"training has diverged: predictions are infinite or more than {LARGEST:g} off; lower "
            f"{setting('training.lr')}"
        )
    return utilities


def _some(run: Setup, parts: Sequence[Samples], count: int) -> Samples:
    """Return the samples, or a random part of them that is the same in all rounds of a run."""
    if len(parts) == 1 and len(parts[0]) <= count:
        return parts[0]
    return some_of(parts, count, seeded(run.seed, "training accuracy"))


def some_of(parts: Sequence[Samples], count: int, rng: torch.Generator) -> Samples:
    """Return a random part of all samples, at most ``count``, in their order."""
    # The parts are not joined first, as they may be as large as the whole data set.
    sizes = [len(part) for part in parts]
    chosen = torch.zeros(sum(sizes), dtype=torch.bool)
    chosen[torch.randperm(len(chosen), generator=rng)[:count]] = True
    masks = torch.split(chosen, sizes)
    return Samples.joined(*(part.take(mask) for part, mask in zip(parts, masks, strict=True)))


def model_of_each(round: Round, clients: Sequence[ClientId]) -> dict[ClientId, str]:
    """Return the name of every client's model; the first model if a client never participated."""
    first = next(iter(round.after))
    return {client: round.chosen.get(client, first) for client in clients}


def outputs_served(
    round: Round, samples: Samples, place: Int[ndarray, " all"], device: torch.device = CPU
) -> Float[Tensor, "samples outputs"]:
    """Return the outputs for each sample of the model that a client with such data uses.

    ``place`` is, for every sample of the data set by id, a client whose features it resembles.
    """
    client_of = torch.from_numpy(place)[samples.ids]
    chosen = model_of_each(round, sorted(set(client_of.tolist())))
    outputs: Tensor | None = None
    for name, model in round.after.items():
        clients = [client for client, choice in chosen.items() if choice == name]
        mask = torch.isin(client_of, torch.tensor(clients, dtype=torch.int64))
        if bool(mask.any()):
            part = outputs_of(model, samples.features[mask], device)
            if outputs is None:
                outputs = part.new_empty((len(samples), *part.shape[1:]))
            outputs[mask] = part
    return torch.empty(0, 1) if outputs is None else outputs
