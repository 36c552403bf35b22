"""Audits of canary clients and of unlearning, which need models but no recording."""

import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool
from numpy import ndarray
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.metric_names import DESTROYED, FORGOTTEN, INCONCLUSIVE, NO_LEAK_BEFORE
from fedaudit.core.modules import outputs_of
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.tasks import CLASSIFICATION, Task
from fedaudit.core.values import NO_CLIENT, Params
from fedaudit.fl.accounting import FORMAL_DELTA
from fedaudit.fl.canary import canary_direction, canary_statistics
from fedaudit.live.audited import Labelled, audit_samples, labelled_samples
from fedaudit.live.network import network_of
from fedaudit.live.weights import Array, as_cpu_tensor
from fedaudit.metrics.canaries import FEWEST_CANARIES, CanaryBounds, canary_bounds
from fedaudit.metrics.unlearning import UnlearningResult, evaluate_unlearning, require_margin
from fedaudit.plan.optional import MAX_CANARY_NORM
from fedaudit.results.guessing import is_near_guessing

Weights: TypeAlias = nn.Module | Mapping[str, Array] | Sequence[Array]


_MIN_CHANGE = 1e-6
"""Change of one value by a canary whose coin is tails, as a fraction of the length."""


class CanaryClients:
    """Clients whose random updates measure how well one client's update is hidden.

    A canary client tosses a fair coin. If the coin is heads, it moves the received model in a
    random direction, by the length to which clients' updates are clipped. Otherwise it returns the
    received model. The server must treat a canary like any other client: clip its update, weight it
    and add noise.

    Attributes:
        sends: Whether each canary moves the model. Keep this and the seed secret.
        seed: Seed of directions and coins.

    Examples:
        >>> import fedaudit as fa
        >>> from torch import nn
        >>> canaries = fa.CanaryClients(nn.Linear(2, 2), count=40, length=1.0, seed=1)
        >>> len(canaries.sends)
        40
    """

    sends: Bool[ndarray, " canaries"]

    def __init__(
        self, model: nn.Module, *, count: int = 100, length: float, seed: int | None = None
    ) -> None:
        """Draw directions and coins.

        Args:
            model: The network, for names and shapes.
            count: Number of canary clients, at least 20; about half of them move the model.
            length: Euclidean norm of the move, such as the clipping norm; at most a million.
            seed: Secret seed of directions and coins, from which the same canaries can be created
                again; random by default.

        Raises:
            BadInput: Too few canaries, an invalid length, or a model without trained parameters.
        """
        if not isinstance(model, nn.Module):
            raise BadInput(f"model is {type_of(model)}; give the network, a torch.nn.Module")
        are_numbers = isinstance(count, int) and isinstance(length, int | float)
        if not are_numbers or count < FEWEST_CANARIES or not 0 < length <= MAX_CANARY_NORM:
            raise BadInput(
                f"got {count!r} canary clients of norm {length!r}; give at least "
                f"{FEWEST_CANARIES}, with a norm above 0 and at most {MAX_CANARY_NORM:g}"
            )
        self._like: Params = {
            name: value.detach().cpu()
            for name, value in model.named_parameters()
            if value.requires_grad
        }
        if not self._like:
            raise BadInput(
                "no parameter of the model is trained, so clients send nothing; enable gradients"
            )
        self.seed = secrets.randbits(62) if seed is None else seed
        self._order, self._length = tuple(model.state_dict()), length
        self.sends = seeded_numpy(self.seed, "canary coins").random(count) < 0.5

    def upload(self, number: int, sent: Weights) -> dict[str, Tensor] | list[ndarray]:
        """Return a canary's upload: the received model, moved if its coin is heads.

        If the coin is tails, one value changes by a millionth of the length, or in its last bits.

        Args:
            number: The canary's number, from 0.
            sent: The model, a state dict, or arrays in the order of the state dict (or only those
                of trainable parameters).

        Returns:
            A state dict, or arrays if arrays were sent.

        Raises:
            BadInput: There is no such canary, or the model has other names or shapes.
        """
        if number not in range(len(self.sends)):
            raise BadInput(f"canaries are numbered 0 to {len(self.sends) - 1}, got {number!r}")
        sent_params = self._named(sent, "the model that was sent")
        moved = {
            name: value.clone() if name in self._like else value
            for name, value in sent_params.items()
        }
        if self.sends[number]:
            direction = self._direction(self._like, number)
            for name, values in direction.items():
                step = self._length * values
                moved[name] = (moved[name] + step).to(sent_params[name].dtype)
        else:
            # A tiny update instead of zeros, since Flower's fixed clipping divides by the norm.
            entry = moved[next(iter(self._like))].view(-1)[:1]
            rounding = 2 * torch.finfo(entry.dtype).eps * entry.abs()
            entry += rounding.clamp_min(_MIN_CHANGE * self._length)
        if isinstance(sent, nn.Module | Mapping):
            return moved
        return [value.numpy() for value in moved.values()]

    def _direction(self, template: Params, number: int) -> Params:
        return canary_direction(template, self.seed, number)

    def bounds(
        self,
        first: Weights,
        last: Weights,
        *,
        delta: float = FORMAL_DELTA,
        alpha: float = 0.05,
        every_round: bool = True,
    ) -> CanaryBounds:
        """Compute lower bounds on the epsilon of one client's update.

        Args:
            first: The global model before the first round in which canaries were selected.
            last: The global model after the last such round.
            delta: The delta of (epsilon, delta).
            alpha: Probability that a bound is wrong, for each bound.
            every_round: Whether all canaries were selected in every round in between. If not, only
                the bound from coins is computed.

        Raises:
            BadInput: The models have other names or shapes, or did not change.
        """
        before = self._named(first, "the first model")
        after = self._named(last, "the last model")
        movement = {name: after[name] - before[name] for name in self._like}
        z = canary_statistics(movement, len(self.sends), self._direction).numpy()
        return canary_bounds(z, self.sends, delta=delta, alpha=alpha, every_round=every_round)

    def _named(self, weights: Weights, subject: str) -> Params:
        if isinstance(weights, nn.Module):
            weights = weights.state_dict()
        if isinstance(weights, Mapping):
            pairs = list(weights.items())
        elif isinstance(weights, Sequence):
            order = self._order if len(weights) == len(self._order) else tuple(self._like)
            if len(weights) != len(order):
                raise BadInput(
                    f"{subject} has {len(weights)} arrays, and the network {len(self._order)}, of "
                    f"which {len(self._like)} are trained"
                )
            pairs = list(zip(order, weights, strict=True))
        else:
            raise BadInput(
                f"{subject} is {type_of(weights)}; give a module, a state dict or arrays"
            )
        tensors = {name: as_cpu_tensor(value, f"{name} of {subject}") for name, value in pairs}
        for name, like in self._like.items():
            if name not in tensors or tensors[name].shape != like.shape:
                has = f"has shape {tuple(tensors[name].shape)}" if name in tensors else "is missing"
                raise BadInput(
                    f"{name} of {subject} {has}, and the network's is {tuple(like.shape)}"
                )
        return tensors


class UnlearnedModel(NamedTuple):
    """AUCs, verdict and utility of a model after unlearning.

    Attributes:
        figures: The verdict, and AUCs that compare deleted with held-out samples. Scores are
            negative losses.
        utility: Mean of the task's measure, such as accuracy, over test samples, by "before",
            "after" and "retrained"; empty without test samples.
        measure: Name of that measure.
    """

    figures: UnlearningResult
    utility: dict[str, float]
    measure: str

    def __str__(self) -> str:
        """Format AUCs, verdict and utility, each on a line."""
        if not self.utility:
            return str(self.figures)
        utility_texts = ", ".join(f"{value:.3f} {model}" for model, value in self.utility.items())
        return f"{self.figures}\ntest {self.measure}: {utility_texts}"


def unlearning(
    before: nn.Module,
    after: nn.Module,
    retrained: nn.Module | None = None,
    *,
    deleted: Labelled,
    held_out: Labelled,
    test: Labelled | None = None,
    task: Task = CLASSIFICATION,
    margin: float = 0.05,
) -> UnlearnedModel:
    """Judge by losses whether a model has forgotten samples.

    Deleted and held-out samples must have the same distribution: draw both before training
    (:func:`fedaudit.fair_split`). If they have not, pass a model that was retrained without the
    deleted samples, with which the model is then compared.

    Args:
        before: The model before unlearning, trained on the deleted samples.
        after: The model after unlearning.
        retrained: A model that was trained from scratch without the deleted samples.
        deleted: Features and targets of the samples that the model should have forgotten.
        held_out: Features and targets of held-out samples, on which no client ever trained.
        test: Further samples for the utility; by default the held-out samples. A classifier whose
            accuracy on them falls to chance level is destroyed, which does not count as forgetting.
        task: The task of the models; see :mod:`fedaudit.tasks`.
        margin: Largest difference of AUCs that counts as equal, in (0, 0.5).

    Raises:
        BadInput: A model cannot be run on the samples, there are no samples of a kind, or the
            margin is invalid.

    Examples:
        >>> import fedaudit as fa
        >>> from torch import nn
        >>> import torch
        >>> generator = torch.Generator().manual_seed(1)
        >>> features, labels = torch.randn(200, 2, generator=generator), torch.arange(200) % 2
        >>> deleted, held_out = (features[:100], labels[:100]), (features[100:], labels[100:])
        >>> model = nn.Linear(2, 2)
        >>> result = fa.unlearning(model, model, deleted=deleted, held_out=held_out)

    Source: See :func:`fedaudit.metrics.evaluate_unlearning`.
    """
    require_margin(margin)
    samples = audit_samples({0: deleted}, held_out)
    test_samples = None if test is None else labelled_samples(test, "test")
    models = {"before": before, "after": after}
    if retrained is not None:
        models["retrained"] = retrained
    scores, utility, accuracy = {}, {}, dict[str, float]()
    is_held_out = torch.from_numpy(samples.owner == NO_CLIENT)
    tested = samples.samples.take(is_held_out) if test_samples is None else test_samples
    for name, module in models.items():
        net = network_of(module, samples, task)
        model, net_task = net.layout.model, net.architecture.task
        outputs = outputs_of(model, samples.samples.features)
        scores[name] = -net_task.losses(outputs, samples.samples.targets).double().numpy()
        is_classifier = net_task.utility.name == "accuracy" and net_task.classes
        if test_samples is None and not is_classifier:
            continue
        values = net_task.utility.per_sample(outputs_of(model, tested.features), tested.targets)
        mean = float(values.double().mean())
        if test_samples is not None:
            utility[name] = mean
        if is_classifier:
            accuracy[name] = mean
            accuracy["chance"] = int(tested.targets.bincount().max()) / len(tested.targets)
    figures = evaluate_unlearning(
        scores["before"],
        scores["after"],
        scores.get("retrained"),
        is_deleted=samples.owner != NO_CLIENT,
        margin=margin,
    )
    if figures.verdict in (FORGOTTEN, NO_LEAK_BEFORE, INCONCLUSIVE) and _is_destroyed(accuracy):
        figures = figures._replace(verdict=DESTROYED)
    return UnlearnedModel(figures, utility, task.utility.name)


def _is_destroyed(accuracy: Mapping[str, float]) -> bool:
    """Return True if a classifier's accuracy fell from above chance level to near chance level."""
    if not accuracy:
        return False
    before, after, chance = (accuracy[name] for name in ("before", "after", "chance"))
    return is_near_guessing(after, chance) and not is_near_guessing(before, chance)
