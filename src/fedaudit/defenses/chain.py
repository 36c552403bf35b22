"""Several defenses of one client, one after another."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, takewhile

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import Batch, Model, Params, Samples
from fedaudit.fl.hooks import (
    UNDEFENDED,
    Defense,
    Guarantee,
    Objective,
    Plan,
    Turn,
    Visit,
    Workload,
)
from fedaudit.observe.round import Upload

EXCLUSIVE = ("batches", "loss", "gradient")
"""Hooks that give the whole answer, so that two of them cannot be had at once."""


@dataclass(frozen=True)
class Chain(Defense):
    """Applies several defenses in order, each to what the one before it has left.

    Attributes:
        parts: At least one. What is done to data, batches and uploads is done in this order; how
            batches are drawn, what is minimised and which direction is taken is said by the one
            part that says it.
    """

    parts: tuple[Defense, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise BadInput("a chain has at least one defense; leave it out for none")
        for first, second in combinations(self.parts, 2):
            for hook in EXCLUSIVE:
                if first.acts_in(hook) and second.acts_in(hook):
                    raise Unsupported(
                        f"{type(first).__name__} and {type(second).__name__} both replace the "
                        f"{_MEANING[hook]}; put at most one of them into a chain"
                    )
            if first.cancels and second.acts_in("upload"):
                raise Unsupported(
                    f"the noise of {type(first).__name__} cancels between clients only where "
                    f"nothing changes the upload any more, and {type(second).__name__} does so "
                    f"after it; put {type(second).__name__} before it"
                )
        self._refuse_mixed_labels()
        kinds = tuple(
            kind for kind in Defense.accepts if all(kind in part.accepts for part in self.parts)
        )
        # What a chain accepts depends on its parts, and "accepts" is a class's elsewhere.
        object.__setattr__(self, "accepts", kinds)

    def _refuse_mixed_labels(self) -> None:
        # Here and not in the loss: CoFedMID asks for classes only after rounds of training.
        mixing = [part for part in self.parts if part.mixes_labels]
        asking = [part for part in self.parts if part.needs_classes]
        if mixing and asking:
            mixer, asker = type(mixing[0]).__name__, type(asking[0]).__name__
            raise Unsupported(
                f"{mixer} mixes labels, and {asker} needs to know each sample's class; put at "
                "most one of them into a chain"
            )

    @property
    def mixes_labels(self) -> bool:
        """True if any part does."""
        return any(part.mixes_labels for part in self.parts)

    @property
    def needs_classes(self) -> bool:
        """True if any part does."""
        return any(part.needs_classes for part in self.parts)

    @property
    def cancels(self) -> bool:
        """True if any part does."""
        return any(part.cancels for part in self.parts)

    @property
    def always_acts(self) -> bool:
        """True if any part does."""
        return any(part.always_acts for part in self.parts)

    @property
    def prepares_apart(self) -> bool:
        """True if every part does."""
        return all(part.prepares_apart for part in self.parts)

    def acts_in(self, hook: str) -> bool:
        """True if any part does."""
        return any(part.acts_in(hook) for part in self.parts)

    def refuse_misfit(self, plan: Plan) -> None:
        """Before anything is trained: for every part."""
        for part in self.parts:
            part.refuse_misfit(plan)

    def prepare(self, data: Samples, visit: Visit) -> Samples:
        """Once: by every part in order."""
        for part in self.parts:
            data = part.prepare(data, visit)
        return data

    def select(self, data: Samples, turn: Turn) -> Samples:
        """Each round: by every part in order."""
        for part in self.parts:
            data = part.select(data, turn)
        return data

    def batches(self, data: Samples, batch_size: int, turn: Turn) -> Iterator[Batch]:
        """Each epoch: by the one part that draws in its own way."""
        return self._only("batches").batches(data, batch_size, turn)

    def batch(self, batch: Batch, turn: Turn) -> Batch:
        """Each step: by every part in order."""
        for part in self.parts:
            batch = part.batch(batch, turn)
        return batch

    def loss(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor:
        """Each step: by the one part that has its own."""
        return self._only("loss").loss(outputs, batch, turn)

    def slope(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor | None:
        """Each step: of the one part that has a loss of its own."""
        only = self._only("loss")
        return only.slope(outputs, batch, turn) if only.knows_its_slope else None

    def gradient(self, objective: Objective, batch: Batch, turn: Turn) -> Params:
        """Each step: by the one part that has its own."""
        return self._only("gradient").gradient(objective, batch, turn)

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round: by every part in order."""
        for part in self.parts:
            upload = part.upload(upload, turn)
        return upload

    def after(self, start: Model, end: Model, turn: Turn) -> None:
        """Each round: to every part."""
        for part in self.parts:
            part.after(start, end, turn)

    def dealt(self, visit: Visit, *, classes: int) -> Bool[Tensor, " classes"]:
        """Each round: those that every part leaves the client."""
        return torch.stack([part.dealt(visit, classes=classes) for part in self.parts]).all(0)

    def guarantee(self, work: Workload, *, delta: float) -> Guarantee | None:
        """The strongest that a part gives and that holds in company; None for none.

        What happens to an upload after a part has protected it takes nothing away. A guarantee on
        single samples' gradients counts only where no other part touches data, batches or loss:
        a mixed batch, for one, shows a sample twice. One that is given to features in
        :meth:`prepare` counts only where no part before it has seen them and may keep some.
        """
        proven = [
            part.guarantee(work, delta=delta)
            for part in self.parts
            if not (part.acts_in("gradient") and self._others_touch_samples(part))
            and not (part.acts_in("prepare") and self._others_saw_samples(part))
        ]
        known = [guarantee for guarantee in proven if guarantee is not None]
        return min(known, key=lambda guarantee: guarantee.epsilon, default=None)

    def _others_touch_samples(self, part: Defense) -> bool:
        hooks = ("select", "batches", "batch", "loss")
        others = [other for other in self.parts if other is not part]
        return any(
            not other.prepares_apart or any(other.acts_in(hook) for hook in hooks)
            for other in others
        )

    def _others_saw_samples(self, part: Defense) -> bool:
        before = takewhile(lambda other: other is not part, self.parts)
        return not all(other.prepares_apart for other in before)

    def state(self) -> Params:
        """Every part's, under its place in the chain."""
        return {
            f"{place}/{name}": value
            for place, part in enumerate(self.parts)
            for name, value in part.state().items()
        }

    def restore(self, state: Params) -> None:
        """Gives every part its own back."""
        for place, part in enumerate(self.parts):
            mine = f"{place}/"
            part.restore(
                {k.removeprefix(mine): value for k, value in state.items() if k.startswith(mine)}
            )

    def _only(self, hook: str) -> Defense:
        return next((part for part in self.parts if part.acts_in(hook)), UNDEFENDED)


_MEANING = {
    "batches": "way batches are drawn",
    "loss": "loss",
    "gradient": "gradient",
}
