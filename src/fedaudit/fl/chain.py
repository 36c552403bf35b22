"""Chains of defenses, which pass data, batches and uploads through one defense after another."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, takewhile

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import Batch, Model, Params, Samples, with_prefix
from fedaudit.fl.hooks import (
    UNDEFENDED,
    ClientContext,
    DataUse,
    Defense,
    Guarantee,
    Objective,
    Plan,
    TrainingContext,
    apply_upload_hook,
)
from fedaudit.observe.round import Upload

_EXCLUSIVE = {"batches": "way batches are drawn", "loss": "loss", "gradient": "gradient"}
"""Hooks that replace the default, with what they replace. Only one part of a chain may use each."""


@dataclass(frozen=True)
class Chain(Defense):
    """Sequence of defenses that are applied one after another.

    Attributes:
        parts: At least one defense. Data, batches and uploads pass through all parts in order. At
            most one part overrides each of the hooks batches, loss and gradient.
    """

    parts: tuple[Defense, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise BadInput("a chain needs at least one defense, got none; leave the chain out")
        for first, second in combinations(self.parts, 2):
            for hook, replaced in _EXCLUSIVE.items():
                if first.acts_in(hook) and second.acts_in(hook):
                    raise Unsupported(
                        f"{type(first).__name__} and {type(second).__name__} both replace the "
                        f"{replaced}; put at most one of them into a chain"
                    )
            if first.cancels and second.acts_in("upload"):
                raise Unsupported(
                    f"the noise of {type(first).__name__} cancels between clients only if nothing "
                    f"changes the upload afterwards, but {type(second).__name__} follows in the "
                    f"chain and changes it; put {type(second).__name__} before it"
                )
        # Without this check, a run with CoFedMID would fail only in the later rounds, in which it
        # needs classes.
        mixing = [part for part in self.parts if part.mixes_labels]
        with_classes = [part for part in self.parts if part.needs_class_labels]
        if mixing and with_classes:
            raise Unsupported(
                f"{type(mixing[0]).__name__} mixes labels, but {type(with_classes[0]).__name__} "
                "needs the class of each sample; put at most one of them into a chain"
            )
        upload_kinds = tuple(
            kind for kind in Defense.accepts if all(kind in part.accepts for part in self.parts)
        )
        # `accepts` depends on the parts, so an instance attribute replaces the class attribute.
        object.__setattr__(self, "accepts", upload_kinds)

    @property
    def mixes_labels(self) -> bool:
        return any(part.mixes_labels for part in self.parts)

    @property
    def needs_class_labels(self) -> bool:
        return any(part.needs_class_labels for part in self.parts)

    @property
    def cancels(self) -> bool:
        return any(part.cancels for part in self.parts)

    @property
    def acts_unconditionally(self) -> bool:
        return any(part.acts_unconditionally for part in self.parts)

    @property
    def prepares_samples_independently(self) -> bool:
        return all(part.prepares_samples_independently for part in self.parts)

    def acts_in(self, hook: str) -> bool:
        return any(part.acts_in(hook) for part in self.parts)

    def raise_if_misfit(self, plan: Plan) -> None:
        for part in self.parts:
            part.raise_if_misfit(plan)

    def prepare(self, data: Samples, client_context: ClientContext) -> Samples:
        for part in self.parts:
            data = part.prepare(data, client_context)
        return data

    def select(self, data: Samples, context: TrainingContext) -> Samples:
        for part in self.parts:
            data = part.select(data, context)
        return data

    def batches(self, data: Samples, batch_size: int, context: TrainingContext) -> Iterator[Batch]:
        return self._only("batches").batches(data, batch_size, context)

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        for part in self.parts:
            batch = part.batch(batch, context)
        return batch

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        return self._only("loss").loss(outputs, batch, context)

    def slope(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor | None:
        part = self._only("loss")
        return part.slope(outputs, batch, context) if part.slope_matches_loss else None

    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        return self._only("gradient").gradient(objective, batch, context)

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        for part in self.parts:
            upload = apply_upload_hook(part, upload, context)
        return upload

    def after(self, start: Model, end: Model, context: TrainingContext) -> None:
        for part in self.parts:
            part.after(start, end, context)

    def assigned_classes(
        self, client_context: ClientContext, *, classes: int
    ) -> Bool[Tensor, " classes"]:
        return torch.stack(
            [part.assigned_classes(client_context, classes=classes) for part in self.parts]
        ).all(0)

    def guarantee(self, data_use: DataUse, *, delta: float) -> Guarantee | None:
        """Return the smallest epsilon that a part guarantees in this chain, or None.

        Post-processing an upload does not weaken a guarantee. A guarantee for per-sample gradients
        is valid only if no other part changes data, batches or loss. For example, a mixed batch
        uses a sample twice. A guarantee for features that :meth:`prepare` changes is valid only if
        no earlier part could store the original features.
        """
        guarantees = [
            part.full_guarantee(data_use, delta=delta)
            for part in self.parts
            if not (part.acts_in("gradient") and self._others_change_samples(part))
            and not (part.acts_in("prepare") and self._earlier_parts_see_samples(part))
        ]
        return min(filter(None, guarantees), key=lambda guarantee: guarantee.epsilon, default=None)

    def full_guarantee(self, data_use: DataUse, *, delta: float) -> Guarantee | None:
        return self.guarantee(data_use, delta=delta)

    def _others_change_samples(self, part: Defense) -> bool:
        hooks = ("select", "batches", "batch", "loss")
        return any(
            not other.prepares_samples_independently or any(map(other.acts_in, hooks))
            for other in self.parts
            if other is not part
        )

    def _earlier_parts_see_samples(self, part: Defense) -> bool:
        earlier = takewhile(lambda other: other is not part, self.parts)
        return not all(other.prepares_samples_independently for other in earlier)

    def state(self) -> Params:
        return {
            f"{number}/{name}": value
            for number, part in enumerate(self.parts)
            for name, value in part.state().items()
        }

    def restore(self, state: Params) -> None:
        for number, part in enumerate(self.parts):
            part.restore(with_prefix(state, f"{number}/"))

    def _only(self, hook: str) -> Defense:
        """Return the part that acts in an exclusive hook, or the undefended default."""
        return next((part for part in self.parts if part.acts_in(hook)), UNDEFENDED)


def custom_parts(defense: Defense) -> list[Defense]:
    """Return the defense, or the parts of a chain, that are not classes of fedaudit."""
    if isinstance(defense, Chain):
        return [custom for part in defense.parts for custom in custom_parts(part)]
    return [] if type(defense).__module__.startswith("fedaudit.") else [defense]
