"""Unlearning of somebody's own: the models before and after it, and one that was trained anew."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from fedaudit.core.metric_names import CANNOT_TELL, DESTROYED, FORGOTTEN, UNTOLD
from fedaudit.core.modules import outputs_of
from fedaudit.core.tasks import CLASSIFICATION, Task
from fedaudit.core.values import NOBODY
from fedaudit.live.audited import Labelled, audit_samples, labelled_samples
from fedaudit.live.network import network_of
from fedaudit.metrics.unlearning import Unlearned, require_margin, unlearned
from fedaudit.results.guessing import is_near_guessing


class UnlearnedModel(NamedTuple):
    """AUCs and verdict on the samples that were to be forgotten, and the models' utility.

    Attributes:
        figures: The AUCs of forgotten against unseen samples by minus the loss, and the verdict.
        utility: The mean over test samples of the task's measure, such as accuracy, by "before",
            "after" and "retrained"; empty without test samples.
        measure: Name of that measure.
    """

    figures: Unlearned
    utility: dict[str, float]
    measure: str

    def __str__(self) -> str:
        """The figures, a line each, the verdict, and the utility beside them."""
        if not self.utility:
            return str(self.figures)
        beside = ", ".join(f"{value:.3f} {model}" for model, value in self.utility.items())
        return f"{self.figures}\ntest {self.measure}: {beside}"


def unlearning(
    before: nn.Module,
    after: nn.Module,
    retrained: nn.Module | None = None,
    *,
    forgotten: Labelled,
    unseen: Labelled,
    test: Labelled | None = None,
    task: Task = CLASSIFICATION,
    margin: float = 0.05,
) -> UnlearnedModel:
    """Verdict on forgotten samples by their losses; see :func:`fedaudit.metrics.unlearned`.

    Forgotten and unseen samples are to differ in nothing but that the former were trained on: set
    both aside by a fair draw before training (:func:`fedaudit.fair_split`). A model that was
    retrained once without the forgotten samples is the yardstick where that is not certain.

    Args:
        before: The model before unlearning, trained on the forgotten samples.
        after: The model after it.
        retrained: One that was trained anew without them.
        forgotten: Features and targets of the samples that were to be forgotten.
        unseen: The same of samples that nobody ever trained on.
        test: Further samples, to tell how good each model is. A method that takes a classifier
            down to guessing, there or else on the unseen samples, has destroyed it and is not
            said to forget.
        task: What the models are trained for; see :mod:`fedaudit.tasks`.
        margin: Largest difference of AUCs that counts as none, in (0, 0.5).

    Raises:
        BadInput: Models that cannot be run on the samples, no samples of a kind, or a margin that
            is none.

    Examples:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(1)
        >>> features, labels = torch.randn(200, 2, generator=generator), torch.arange(200) % 2
        >>> forgotten, unseen = (features[:100], labels[:100]), (features[100:], labels[100:])
        >>> model = nn.Linear(2, 2)
        >>> result = unlearning(model, model, forgotten=forgotten, unseen=unseen)

    Source: See :func:`fedaudit.metrics.unlearned`.
    """
    require_margin(margin)
    samples = audit_samples({0: forgotten}, unseen)
    beside = None if test is None else labelled_samples(test, "test")
    models = {"before": before, "after": after}
    models |= {} if retrained is None else {"retrained": retrained}
    scores, utility, right = {}, {}, dict[str, float]()
    unseen_ones = torch.from_numpy(samples.owner == NOBODY)
    checked = samples.samples.take(unseen_ones) if beside is None else beside
    for name, module in models.items():
        net = network_of(module, samples, task)
        model, net_task = net.shape.model, net.architecture.task
        outputs = outputs_of(model, samples.samples.features)
        scores[name] = -net_task.losses(outputs, samples.samples.targets).double().numpy()
        if beside is not None:
            told = net_task.utility.of(outputs_of(model, beside.features), beside.targets)
            utility[name] = float(told.double().mean())
        if net_task.utility.name == "accuracy" and net_task.classes:
            told = net_task.utility.of(outputs_of(model, checked.features), checked.targets)
            right[name] = float(told.double().mean())
            right["guess"] = int(checked.targets.bincount().max()) / len(checked.targets)
    figures = unlearned(
        scores["before"],
        scores["after"],
        scores.get("retrained"),
        is_forgotten=samples.owner != NOBODY,
        margin=margin,
    )
    if figures.verdict in (FORGOTTEN, UNTOLD, CANNOT_TELL) and _is_destroyed(right):
        figures = figures._replace(verdict=DESTROYED)
    return UnlearnedModel(figures, utility, task.utility.name)


def _is_destroyed(right: Mapping[str, float]) -> bool:
    """Return whether a classifier that predicted before does so no more.

    Args:
        right: Accuracies "before" and "after", and "guess", that of the most frequent class; empty
            where the task is another.
    """
    if not right:
        return False
    before, after, guess = (right[name] for name in ("before", "after", "guess"))
    return is_near_guessing(after, guess) and not is_near_guessing(before, guess)
