"""Label inference: which classes occur in the training data of each client.

The table [label_inference] of a study configures it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from numpy import ndarray
from torch import Tensor, nn

from fedaudit.core.devices import CPU
from fedaudit.core.errors import (
    BadInput,
    Damaged,
    NotVisible,
    Unsupported,
    format_setting,
    format_table,
)
from fedaudit.core.files import create_subfolder, path_without_links
from fedaudit.core.metric_names import AUC
from fedaudit.core.modules import in_model_dtype, load_module
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import Capability, ClientId, Model
from fedaudit.datasets.dataset import Dataset
from fedaudit.evaluation.truth import fields_of_run_and_view
from fedaudit.metrics.labels import PermutedAuc, label_inference_auc
from fedaudit.observe.measurements import (
    MeasuredRound,
    measured_rounds_in,
    reason_invalid,
    stacked,
    write_measured,
)
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.observe.views import View
from fedaudit.plan.assignment import training_samples
from fedaudit.plan.parts import Extension, ExtensionResults, MeasuredRun, Scores, Setup
from fedaudit.plan.sections import Study
from fedaudit.results.aggregate import average_each, correct_tests
from fedaudit.results.estimate import GUESSING, LABEL_INFERENCE, OTHER_CLIENT, Estimate, Test
from fedaudit.signals.linear_layers import LinearLayer, linear_layers

FOLDER = "label_inference"
_SIGNAL = "output-bias"
_NEEDS = Capability.UPLOADS | Capability.UPDATE
_SAMPLES_TO_COMPARE = 4
"""Number of samples on which layers are compared with the model's outputs."""


@dataclass(frozen=True)
class LabelInference(Extension):
    """Inference of the classes that each client trains on, from the update of the last layer.

    Attributes:
        permutations: Number of permutations in each test.
        layer: Layer that computes the model's logits.
        trained: Clients with training data, in ascending order.
        has_class: Whether each class occurs in the training data of each of these clients.
    """

    permutations: int
    layer: LinearLayer
    trained: tuple[ClientId, ...]
    has_class: Bool[ndarray, "clients classes"]

    table: ClassVar[str] = "label_inference"

    @classmethod
    def extend_view(cls, study: Study, view: View) -> View:
        view.raise_unless_offered(_NEEDS, format_table(cls.table))
        return view

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        section = run.study.label_inference
        assert section is not None
        # The algorithm may offer less than the view of the study.
        run.view.raise_unless_offered(_NEEDS, format_table(cls.table))
        if run.study.audit.merge:
            raise BadInput(
                f"{format_table(cls.table)} infers the classes of single clients, but audit.merge "
                f"attacks clients {list(run.study.audit.merge)} as one; leave out one of the two"
            )
        (net, *_) = run.algorithm.nets
        if net.task.name != "classification":
            raise Unsupported(
                f"{format_table(cls.table)} infers classes from the gradient of the cross-entropy, "
                f"but the task is {net.task.name!r}; use the task 'classification', or remove "
                f"{format_table(cls.table)}"
            )
        features = dataset.train.features[:_SAMPLES_TO_COMPARE]
        layer = output_layer(net.initial(0), features)
        samples = training_samples(run.assignment.clients, run.holdout)
        trained = tuple(sorted(samples))
        has_class = np.zeros((len(trained), dataset.classes), dtype=bool)
        for row, client in enumerate(trained):
            has_class[row, samples[client].labels.numpy()] = True
        if (has_class == has_class[0]).all():
            raise BadInput(
                f"{format_table(cls.table)} needs clients with different classes, but with seed "
                f"{run.seed}, all {len(trained)} clients train on the same {has_class[0].sum()} "
                f"classes, so that their updates could not reveal which; change "
                f"{format_setting('partition.scheme')}, for example to 'dirichlet'"
            )
        return run.with_extension(cls(section.permutations, layer, trained, has_class))

    def measure(
        self, run: Setup, round: Round, notes: Mapping[str, str], device: torch.device
    ) -> None:
        """Write the score of each class for each client of the round."""
        clients = tuple(client for client in self.trained if client in round.observed)
        scores = torch.stack([class_scores(round.observed[c], self.layer) for c in clients])
        bases = torch.zeros(len(clients), dtype=torch.int64)
        measured = MeasuredRound(round.index, clients, bases, {_SIGNAL: scores})
        write_measured(create_subfolder(run.folder, FOLDER), measured, {"run": notes["run"]})

    @classmethod
    def evaluate(cls, runs: Sequence[MeasuredRun], scores: Scores) -> ExtensionResults:
        """Return the AUC over pairs of a client and a class, of each run and over all runs."""
        by_run = [_estimate(measured) for measured in runs]
        alpha = runs[0].run.study.figures.alpha
        families = (by_run, average_each(by_run))
        return ExtensionResults([e for family in families for e in correct_tests(family, alpha)])

    def untested(self) -> str:
        return (
            "How many samples of a class a client has: label inference tests only which classes "
            "occur."
        )


def _estimate(measured: MeasuredRun) -> Estimate:
    run, extension = measured.run, measured.extension(LabelInference)
    rounds = _read_rounds(measured, extension)
    values = stacked(rounds)[_SIGNAL]
    scores = values.values.nanmean(0).numpy()
    rows = np.searchsorted(extension.trained, values.clients)
    result = label_inference_auc(
        scores,
        extension.has_class[rows],
        permutations=extension.permutations,
        rng=seeded_numpy(run.seed, "label inference"),
    )
    n_members, n_pairs = int(extension.has_class[rows].sum()), scores.size
    return Estimate(
        **fields_of_run_and_view(run),
        topic=LABEL_INFERENCE,
        metric=AUC,
        value=result.value,
        low=result.low,
        high=result.high,
        method=result.method,
        tests=[
            _test(GUESSING, result.permuted_classes),
            _test(OTHER_CLIENT, result.permuted_clients),
        ],
        n_members=n_members,
        n_nonmembers=n_pairs - n_members,
        fair=False,
        note=f"unit: a client and a class; {len(rows)} clients, {scores.shape[1]} classes",
    )


def _test(null: str, permuted: PermutedAuc) -> Test:
    chance_level, upper_quantile, p_value = permuted
    return Test(null=null, level=chance_level, high=upper_quantile, p_value=p_value)


def _read_rounds(measured: MeasuredRun, extension: LabelInference) -> list[MeasuredRound]:
    run = measured.run
    stored = measured_rounds_in(path_without_links(run.folder, FOLDER))
    indices = tuple(round.measured.index for round in stored)
    faults = [
        reason_invalid(round.measured, extension.trained, extension.has_class.shape[1])
        for round in stored
    ]
    is_of_run = {round.notes.get("run") for round in stored} == {measured.key}
    if indices != run.measured_rounds or not is_of_run or any(faults):
        raise Damaged(
            f"{run.folder / FOLDER} is missing, damaged or from another run; delete {run.folder} "
            "and run the study again"
        )
    return [round.measured for round in stored]


def output_layer(model: Model, features: Shaped[Tensor, "samples ..."]) -> LinearLayer:
    """Return the trained linear layer with a bias whose outputs are the model's logits.

    Args:
        model: Model of a classification task.
        features: Some samples, on which outputs of layers are compared with the model's outputs.

    Raises:
        Unsupported: The model does not end with such a layer.
    """
    layers = {layer.path: layer for layer in linear_layers(model, CPU)}
    outputs_of = dict[str, Tensor]()
    module = load_module(model, "evaluation").eval()
    handles = [
        module.get_submodule(path).register_forward_hook(_recorder(outputs_of, path))
        for path in layers
    ]
    try:
        with torch.no_grad():
            logits = model.architecture.task.outputs(module, in_model_dtype(features, model))
    finally:
        for handle in handles:
            handle.remove()
    for path, layer in layers.items():
        outputs = outputs_of.get(path)
        if layer.bias in model.params and outputs is not None and torch.equal(outputs, logits):
            return layer
    raise Unsupported(
        f"model {model.architecture.name!r} does not end with a trained linear layer with a bias, "
        "from whose update label inference computes the classes of a client; use another model, "
        "such as mlp or cnn"
    )


def _recorder(
    outputs_of: dict[str, Tensor], path: str
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def record(module: nn.Module, args: tuple[Tensor, ...], outputs: Tensor) -> None:
        outputs_of[path] = outputs.clone()

    return record


def class_scores(observed: ObservedModels, layer: LinearLayer) -> Float[Tensor, " classes"]:
    """Return the relative change of each logit's bias, which is larger for classes of the client.

    For one step on one batch, the gradient of the cross-entropy with respect to the bias of a class
    is the mean probability of the class minus its fraction of the batch. It is negative, and the
    bias grows, only if the class occurs in the batch. Each change is divided by the norm of all
    changes, so that clients with different step sizes are comparable. Without any change, all
    scores are 0.

    Raises:
        NotVisible: The view hides the client's update.

    Source: Zhao, Mopuri and Bilen 2020, iDLG: Improved Deep Leakage from Gradients (the sign for
        one sample); Wainakh et al. 2022, User-Level Label Leakage from Gradients in Federated
        Learning (batches and local training).
    Differs: The papers use rows of the weights and determine labels of single samples, or how often
        each label occurs. Here, the update of all local steps scores which classes occur at all.
    """
    if observed.update is None:
        raise NotVisible("this view hides the clients' updates, from which labels are inferred")
    change = observed.update[layer.bias].detach().double().cpu()
    scores: Tensor = change / change.norm().clamp_min(torch.finfo(torch.float64).tiny)
    return scores
