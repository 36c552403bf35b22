"""Accuracy (or another utility) of a run's models, which is stored in the notes of each round."""

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
from fedaudit.core.errors import BadInput, format_setting
from fedaudit.core.modules import outputs_of
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Capability, ClientId, Model, Samples, chunks
from fedaudit.evaluation.truth import fields_of_run
from fedaudit.metrics import generalisation_gap, proportion
from fedaudit.observe.measurements import StoredRound
from fedaudit.observe.round import Round
from fedaudit.plan.assignment import training_samples
from fedaudit.plan.parts import Setup
from fedaudit.results.estimate import (
    GENERALISATION_GAP,
    TEST_ACCURACY,
    TRAIN_ACCURACY,
    UPLOAD_GAP,
    Estimate,
)
from fedaudit.results.fields import MAX_NUMBER
from fedaudit.results.record import AccuracyByRound
from fedaudit.results.runs import ALL_CLIENTS

TRAIN_ACCURACY_SAMPLES = 5_000
"""Maximum number of samples on which a model's training accuracy is measured."""

_GAP_TRAIN_SAMPLES, _GAP_TEST_SAMPLES = 500, 1_000
"""Numbers of training and test samples for each client's generalisation gap."""

_BATCH_SIZE = 4096
"""Batch size of the evaluation, which limits memory, since outputs for sequences are large."""

_MEAN, _STD = "mean", "spread"
_TEST, _TRAIN, _TOTAL, _GAP = "test_correct/", "train_correct/", "train_total/", "gap/client-"
"""Prefixes of keys in a round's notes: counts by model, and generalisation gap by client."""

CountCorrect: TypeAlias = Callable[[Model, Samples, torch.device], int]


@dataclass(frozen=True)
class EvaluationSplit:
    """Samples on which models are evaluated.

    Attributes:
        test: The test set.
        small_test: Random test samples. They are not the first samples of the test set, because
            files are often sorted by class.
        all_clients: Random training samples from the pooled data of all clients.
        by_client: Random training samples of each client.
    """

    test: Samples
    small_test: Samples
    all_clients: Samples
    by_client: Mapping[ClientId, Samples]


def evaluation_split(run: Setup) -> EvaluationSplit:
    """Return the evaluation samples of a run, without samples that clients hold out."""
    used_samples = training_samples(run.assignment.clients, run.holdout)
    # A defense may change samples, so select the original samples by id.
    training_data = {
        client: data
        if used_samples[client] is data
        else data.take(torch.isin(data.ids, used_samples[client].ids))
        for client, data in run.assignment.clients.items()
    }
    return EvaluationSplit(
        run.dataset.test,
        _random_samples(run, [run.dataset.test], _GAP_TEST_SAMPLES),
        _random_samples(run, list(training_data.values()), TRAIN_ACCURACY_SAMPLES),
        {c: _random_samples(run, [data], _GAP_TRAIN_SAMPLES) for c, data in training_data.items()},
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
    """Return notes on the utility of a round's models.

    For classification, these are counts of correct predictions; for other tasks, mean utilities.
    The server's models are evaluated on samples of all clients. A model that stays at a client is
    evaluated on this client's samples. If clients choose among models, each sample is classified by
    the model of a client with similar features. In the last measured round, the notes also contain
    the generalisation gap (training minus test accuracy) of each client's model.

    Args:
        run: The run.
        split: Evaluation samples.
        round: The round in the adversary's view.
        device: Device for models.
        means: Whether to compute mean utilities for tasks without accuracy. They may take longer
            than all attacks, and reports show them only for the last round.
        count: Function that counts correct predictions; :func:`count_correct` by default.

    Source: Hu et al. 2024 (SIA), section 4.6 (generalization error of the local models).
    Differs: The gap keeps its sign. It is computed only in the last measured round, on at most 500
        samples of each client and 1,000 test samples.
    """
    sees_clients = Capability.UPLOADS in run.view.offers and not run.study.audit.merge
    # Gaps are needed only for source attacks. They are always computed, because attacks may be
    # added after the run, except in clustered federations, where hundreds of clients make it slow.
    is_last = round.index == run.measured_rounds[-1]
    measures_gaps = sees_clients and is_last and (bool(run.source_attacks) or not round.chosen)
    gaps = _gaps(split, round, device) if measures_gaps else {}
    if round.chosen:
        return _count_chosen(run, split, round, device) | gaps
    models: dict[str, tuple[Model, Samples]] = {
        f"client-{c}": (model, split.by_client[c])
        for c, model in sorted(round.private_models.items())
    }
    if not models:
        models = {name: (model, split.all_clients) for name, model in round.after.items()}
    notes, count = dict[str, str](), count or count_correct
    for name, (model, trained_on) in models.items():
        if not model.architecture.task.utility.is_accuracy:
            if means:
                notes |= _means(model, split.test, trained_on, device)
            continue
        notes |= {
            f"{_TEST}{name}": str(count(model, split.test, device)),
            f"{_TRAIN}{name}": str(count(model, trained_on, device)),
            f"{_TOTAL}{name}": str(len(trained_on)),
        }
    return notes | gaps


def are_notes_valid(run: Setup, notes: Mapping[str, str], *, means: bool = True) -> bool:
    """Return True if notes of :func:`accuracy_notes` are complete and within valid ranges."""
    if _has_no_models(run):
        return True
    names = _model_names(notes)
    utility = run.algorithm.architecture.task.utility
    if not utility.is_accuracy:
        keys = (f"{_TEST}{_MEAN}", f"{_TRAIN}{_MEAN}")
        return not means or all(_is_finite_number(notes.get(key)) for key in keys)
    try:
        counts = [[int(notes[f"{key}{name}"]) for key in (_TEST, _TRAIN, _TOTAL)] for name in names]
        gaps = [float(value) for key, value in notes.items() if key.startswith(_GAP)]
    except (KeyError, ValueError):
        return False
    test_size = len(run.dataset.test)
    return (
        bool(counts)
        and all(0 <= test <= test_size for test, _, _ in counts)
        and all(0 <= train <= total <= TRAIN_ACCURACY_SAMPLES for _, train, total in counts)
        and all(-1 <= gap <= 1 for gap in gaps)
    )


def utility_estimates(run: Setup, stored: Sequence[StoredRound]) -> list[Estimate]:
    """Return estimates of the utility of the run's models after the last measured round.

    Accuracies are averaged if there are several models. The result is empty if a recording has no
    models.
    """
    if _has_no_models(run):
        return []
    test_size, notes = len(run.dataset.test), stored[-1].notes
    measure = run.algorithm.architecture.task.utility
    estimate = partial(Estimate, topic="utility", **fields_of_run(run))
    if not measure.is_accuracy:
        mean, std = float(notes[f"{_TEST}{_MEAN}"]), float(notes[f"{_TEST}{_STD}"])
        half_width = float(sp.special.ndtri(0.975)) * std / test_size**0.5
        return [
            estimate(
                metric=f"test {measure.name}",
                value=mean,
                samples=test_size,
                method="normal 95%",
                low=mean - half_width,
                high=mean + half_width,
            ),
            estimate(metric=f"train {measure.name}", value=float(notes[f"{_TRAIN}{_MEAN}"])),
        ]
    test = proportion(round(_mean_correct(notes)), test_size)
    correct = sum(int(notes[f"{_TRAIN}{name}"]) for name in _model_names(notes))
    train = proportion(correct, sum(int(notes[f"{_TOTAL}{name}"]) for name in _model_names(notes)))
    gap = generalisation_gap(train, test).value
    values = {TRAIN_ACCURACY: train.value, GENERALISATION_GAP: gap}
    client_gaps = [float(value) for key, value in notes.items() if key.startswith(_GAP)]
    if client_gaps:
        # fsum is exact, so the order of the notes does not affect the last digit.
        values[UPLOAD_GAP] = fsum(client_gaps) / len(client_gaps)
    return [
        estimate(
            metric=TEST_ACCURACY,
            value=test.value,
            low=test.low,
            high=test.high,
            method="Clopper-Pearson 95%",
            samples=test_size,
        ),
        *(estimate(metric=metric, value=value) for metric, value in values.items()),
    ]


def accuracy_by_round(run: Setup, stored: Sequence[StoredRound]) -> AccuracyByRound:
    """Return test accuracy after each measured round, averaged if there are several models.

    The result has no rounds if the task has no accuracy or a recording has no models.
    """
    test_size = len(run.dataset.test)
    if _has_no_models(run) or not run.algorithm.architecture.task.utility.is_accuracy:
        stored = []
    return AccuracyByRound(
        **fields_of_run(run),
        rounds=[measurement.measured.index for measurement in stored],
        accuracy=[_mean_correct(measurement.notes) / test_size for measurement in stored],
    )


def _has_no_models(run: Setup) -> bool:
    return run.recording_info is not None and not run.recording_info.has_models


def generalisation_gaps(notes: Mapping[str, str], clients: Sequence[ClientId]) -> list[float]:
    """Return the generalisation gap of each client's model; empty if it was not measured."""
    keys = [f"{_GAP}{client}" for client in clients]
    return [float(notes[key]) for key in keys] if all(key in notes for key in keys) else []


def _model_names(notes: Mapping[str, str]) -> list[str]:
    return sorted(name.removeprefix(_TEST) for name in notes if name.startswith(_TEST))


def _mean_correct(notes: Mapping[str, str]) -> float:
    return float(np.mean([int(notes[f"{_TEST}{name}"]) for name in _model_names(notes)]))


def _count_chosen(
    run: Setup, split: EvaluationSplit, round: Round, device: torch.device
) -> dict[str, str]:
    """Return counts of correct predictions of the models that clients chose."""
    counts = dict[str, int]()
    for prefix, samples in ((_TEST, split.test), (_TRAIN, split.all_clients)):
        outputs = outputs_of_chosen_models(round, samples, run.groups.similar_client, device)
        counts[prefix] = int((outputs.argmax(1) == samples.labels).sum())
    counts[_TOTAL] = len(split.all_clients)
    return {f"{prefix}{ALL_CLIENTS}": str(count) for prefix, count in counts.items()}


def _means(
    model: Model, test_samples: Samples, training_samples: Samples, device: torch.device
) -> dict[str, str]:
    """Return mean and standard deviation of the utility of a model without accuracy."""
    test = _utilities(model, test_samples, device)
    train = _utilities(model, training_samples, device)
    return {
        f"{_TEST}{_MEAN}": repr(float(test.mean())),
        f"{_TEST}{_STD}": repr(float(test.std())),
        f"{_TRAIN}{_MEAN}": repr(float(train.mean())),
    }


def _is_finite_number(text: str | None) -> bool:
    try:
        return text is not None and isfinite(float(text))
    except ValueError:
        return False


def _gaps(split: EvaluationSplit, round: Round, device: torch.device) -> dict[str, str]:
    """Return notes with the generalisation gap of each client's model."""
    notes = {}
    for client, observed in round.observed.items():
        if observed.local and not observed.local.architecture.task.utility.is_accuracy:
            return {}
        # In FedMD, the observed model is the adversary's student. The private model is the one that
        # overfits.
        model = round.private_models.get(client, observed.local)
        if model is not None:
            samples = split.by_client[client]
            train = count_correct(model, samples, device) / len(samples)
            test = count_correct(model, split.small_test, device) / len(split.small_test)
            notes[f"{_GAP}{client}"] = repr(train - test)
    return notes


def count_correct(model: Model, samples: Samples, device: torch.device) -> int:
    """Return the number of samples that a model classifies correctly."""
    return int(_utilities(model, samples, device).sum())


def _utilities(model: Model, samples: Samples, device: torch.device) -> Float[Tensor, " samples"]:
    """Return the utility of a model on each sample.

    Raises:
        BadInput: A utility is infinite or huge because training has diverged.
    """
    values: list[Tensor] = []
    for batch in chunks(len(samples), _BATCH_SIZE):
        outputs = outputs_of(model, samples.features[batch], device)
        values.append(model.architecture.task.utility.per_sample(outputs, samples.targets[batch]))
    utilities = torch.cat(values).double()
    if not bool((utilities.abs() <= MAX_NUMBER).all()):
        raise BadInput(
            f"training has diverged: predictions are infinite, or differ from targets by more than "
            f"{MAX_NUMBER:g}; lower {format_setting('training.lr')}"
        )
    return utilities


def _random_samples(run: Setup, datasets: Sequence[Samples], count: int) -> Samples:
    """Return at most ``count`` random samples, which are the same in all rounds of a run."""
    if len(datasets) == 1 and len(datasets[0]) <= count:
        return datasets[0]
    return random_samples(datasets, count, seeded(run.seed, "training accuracy"))


def random_samples(datasets: Sequence[Samples], count: int, rng: torch.Generator) -> Samples:
    """Return at most ``count`` random samples of several data sets, in their original order."""
    # Draw samples before joining the data sets, which together may be as large as the training set.
    sizes = [len(samples) for samples in datasets]
    is_chosen = torch.zeros(sum(sizes), dtype=torch.bool)
    is_chosen[torch.randperm(len(is_chosen), generator=rng)[:count]] = True
    masks = torch.split(is_chosen, sizes)
    return Samples.concatenate(
        *(samples.take(mask) for samples, mask in zip(datasets, masks, strict=True))
    )


def chosen_models(round: Round, clients: Sequence[ClientId]) -> dict[ClientId, str]:
    """Return the name of each client's model; the first model for clients that never took part."""
    first = next(iter(round.after))
    return {client: round.chosen.get(client, first) for client in clients}


def outputs_of_chosen_models(
    round: Round, samples: Samples, similar_client: Int[ndarray, " all"], device: torch.device = CPU
) -> Float[Tensor, "samples outputs"]:
    """Return the output for each sample, computed by the model of a client with similar features.

    Args:
        round: The round.
        samples: Samples of the data set.
        similar_client: For each id of the data set, a client with features like this sample's.
        device: Device for models.
    """
    client_of = torch.from_numpy(similar_client)[samples.ids]
    model_by_client = chosen_models(round, sorted(set(client_of.tolist())))
    outputs: Tensor | None = None
    for name, model in round.after.items():
        clients = [client for client, choice in model_by_client.items() if choice == name]
        mask = torch.isin(client_of, torch.tensor(clients, dtype=torch.int64))
        if bool(mask.any()):
            model_outputs = outputs_of(model, samples.features[mask], device)
            if outputs is None:
                outputs = model_outputs.new_empty((len(samples), *model_outputs.shape[1:]))
            outputs[mask] = model_outputs
    return torch.empty(0, 1) if outputs is None else outputs
