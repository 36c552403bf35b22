"""Audits of models alone, without a recording: canary clients, and unlearning."""

import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool
from numpy import ndarray
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.metric_names import CANNOT_TELL, DESTROYED, FORGOTTEN, UNTOLD
from fedaudit.core.modules import outputs_of
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.tasks import CLASSIFICATION, Task
from fedaudit.core.values import NOBODY, Params
from fedaudit.fl.accounting import FORMAL_DELTA
from fedaudit.fl.canary import canary_direction, canary_statistics
from fedaudit.live.audited import Labelled, audit_samples, labelled_samples
from fedaudit.live.network import network_of
from fedaudit.live.weights import tensor_of
from fedaudit.metrics.canaries import FEWEST_CANARIES, CanaryBounds, canary_bounds
from fedaudit.metrics.unlearning import Unlearned, require_margin, unlearned
from fedaudit.plan.optional import LONGEST_CANARY
from fedaudit.results.guessing import is_near_guessing

Array: TypeAlias = Tensor | ndarray
Weights: TypeAlias = nn.Module | Mapping[str, Array] | Sequence[Array]


_NEXT_TO_NOTHING = 1e-6


class CanaryClients:
    """Clients that show how well one client's update is hidden in what a federation releases.

    Each sends, in every round in which it is asked, the model that it was sent, and half of them,
    by a fair coin each, move it by a random direction of the length to which clients' updates are
    clipped. All must be treated as any other client: clipped, weighted, and hidden in noise.

    Attributes:
        sends: Whether each moves the model. Whoever attacks must not know it, nor the seed.
        seed: Of directions and coins.

    Examples:
        >>> canaries = CanaryClients(nn.Linear(2, 2), count=40, length=1.0, seed=1)
        >>> len(canaries.sends)
        40
    """

    sends: Bool[ndarray, " canaries"]

    def __init__(
        self, model: nn.Module, *, count: int = 100, length: float, seed: int | None = None
    ) -> None:
        """Tosses the coins.

        Args:
            model: The network, for names and shapes.
            count: Canary clients, at least 20; about half of them move the model.
            length: By how much, such as the clipping norm; at most a million.
            seed: Of directions and coins, a secret of whoever audits; drawn if left out. Keep it to
                make the same canaries again.

        Raises:
            BadInput: Too few canaries, a length that is none, or a model that nothing trains.
        """
        if not isinstance(model, nn.Module):
            raise BadInput(f"model is {type_of(model)}; give the network, a torch.nn.Module")
        sound = isinstance(count, int) and isinstance(length, int | float)
        if not sound or count < FEWEST_CANARIES or not 0 < length <= LONGEST_CANARY:
            raise BadInput(
                f"canary clients are at least {FEWEST_CANARIES}, each of a length above 0 and at "
                f"most {LONGEST_CANARY:g}; got {count!r} of length {length!r}"
            )
        self._like: Params = {
            name: value.detach().cpu()
            for name, value in model.named_parameters()
            if value.requires_grad
        }
        if not self._like:
            raise BadInput("no parameter of the model is trained, so that clients send nothing")
        self.seed = secrets.randbits(62) if seed is None else seed
        self._order, self._length = tuple(model.state_dict()), length
        self.sends = seeded_numpy(self.seed, "canary coins").random(count) < 0.5

    def upload(self, number: int, sent: Weights) -> dict[str, Tensor] | list[ndarray]:
        """A canary's answer: the model that it was sent, moved if its coin says so.

        Without a move one number differs by a millionth of the length, or its last bits.

        Args:
            number: Of the canary, from 0.
            sent: The model, a state dict, or arrays in its order (or of trainable parameters).

        Returns:
            A state dict; arrays where arrays were sent.

        Raises:
            BadInput: There is no such canary, or the model is another.
        """
        if number not in range(len(self.sends)):
            raise BadInput(f"canaries are numbered 0 to {len(self.sends) - 1}, got {number!r}")
        named = self._named(sent, "the model that was sent")
        moved = {
            name: value.clone() if name in self._like else value for name, value in named.items()
        }
        if self.sends[number]:
            direction = self._direction(self._like, number)
            for name, values in direction.items():
                step = self._length * values
                moved[name] = (moved[name] + step).to(named[name].dtype)
        else:
            # Next to nothing, and not nothing: what clips an update may divide by its length, as
            # Flower's fixed clipping does.
            one = moved[next(iter(self._like))].view(-1)[:1]
            least = 2 * torch.finfo(one.dtype).eps * one.abs()
            one += least.clamp_min(_NEXT_TO_NOTHING * self._length)
        if isinstance(sent, nn.Module | Mapping):
            return moved
        return [value.numpy() for value in moved.values()]

    def _direction(self, like: Params, number: int) -> Params:
        return canary_direction(like, self.seed, number)

    def bounds(
        self,
        first: Weights,
        last: Weights,
        *,
        delta: float = FORMAL_DELTA,
        alpha: float = 0.05,
        every_round: bool = True,
    ) -> CanaryBounds:
        """Lower bounds on the epsilon of one client's update in the released models.

        Args:
            first: The global model before the first round in which canaries were asked.
            last: That after the last.
            delta: At which epsilon is stated.
            alpha: Probability that a bound is wrong, each for itself.
            every_round: Whether all canaries were asked in every round in between; where rounds
                draw their clients, there is the bound from coins alone.

        Raises:
            BadInput: The models are others, or nothing moved.
        """
        before, after = (
            self._named(given, whose)
            for given, whose in ((first, "the first model"), (last, "the last model"))
        )
        movement = {name: after[name] - before[name] for name in self._like}
        z = canary_statistics(movement, len(self.sends), self._direction).numpy()
        return canary_bounds(z, self.sends, delta=delta, alpha=alpha, every_round=every_round)

    def _named(self, given: Weights, whose: str) -> Params:
        if isinstance(given, nn.Module):
            given = given.state_dict()
        if isinstance(given, Mapping):
            pairs = list(given.items())
        elif isinstance(given, Sequence):
            order = self._order if len(given) == len(self._order) else tuple(self._like)
            if len(given) != len(order):
                raise BadInput(
                    f"{whose} has {len(given)} arrays, and the network {len(self._order)}, of "
                    f"which {len(self._like)} are trained"
                )
            pairs = list(zip(order, given, strict=True))
        else:
            raise BadInput(f"{whose} is {type_of(given)}; give a module, a state dict or arrays")
        found = {name: tensor_of(value, f"{name} of {whose}") for name, value in pairs}
        for name, like in self._like.items():
            if name not in found or found[name].shape != like.shape:
                has = f"has shape {tuple(found[name].shape)}" if name in found else "is not there"
                raise BadInput(f"{name} of {whose} {has}, and the network's is {tuple(like.shape)}")
        return found


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
    """Return whether a classifier that predicted before does so no more; False of other tasks."""
    if not right:
        return False
    before, after, guess = (right[name] for name in ("before", "after", "guess"))
    return is_near_guessing(after, guess) and not is_near_guessing(before, guess)
