"""Correct predictions on audited samples, counted from outputs that signals need anyway."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core.values import Model, Samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.evaluation.accuracy import EvaluationSplit, count_correct
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.round import Round
from fedaudit.signals.base import Signal
from fedaudit.signals.outputs import Outputs, OutputSignal, Targets, Values


@dataclass(frozen=True)
class _Utility(OutputSignal):
    """Utility of the client's model on each sample, which is measured but not stored."""

    kind = "utility"

    def of(self, model: Model, outputs: Outputs, targets: Targets) -> Values:
        return model.architecture.task.utility.per_sample(outputs, targets).double()


_UTILITY = _Utility()


class ReusedPredictions:
    """Correct predictions on audited samples that are also evaluation samples.

    In a round with one upload, the model after the round is the uploaded model. Signals and
    accuracy then need the same outputs, which are computed once. Batches differ from those of a
    separate pass. This can change the last bits of outputs, and a count only if outputs are tied.
    """

    def __init__(self, split: EvaluationSplit, audit: AuditSet) -> None:
        self._split, self._audit = split, audit

    def with_utility(self, signals: Sequence[Signal], round: Round) -> Sequence[Signal]:
        """Add the utility of the only client's model, if a signal needs its outputs anyway."""
        reads_outputs = any(
            isinstance(signal, OutputSignal) and signal.snapshot == "local" for signal in signals
        )
        observed = [*round.observed.values()]
        local = observed[0].local if len(observed) == 1 else None
        is_accuracy = local is not None and local.architecture.task.utility.is_accuracy
        return [*signals, _UTILITY] if reads_outputs and is_accuracy else signals

    def without_utility(
        self, measured: MeasuredRound, round: Round
    ) -> tuple[MeasuredRound, "CorrectCounter"]:
        """Return the signals without the utility, and a counter of correct predictions."""
        signals = dict(measured.signals)
        utilities = signals.pop(_UTILITY.name, None)
        if utilities is None:
            return measured, CorrectCounter(None, {})
        (observed,) = round.observed.values()
        utility_by_key = {
            key: utilities[0, positions] for key, positions in self._positions.items()
        }
        return replace(measured, signals=signals), CorrectCounter(observed.local, utility_by_key)

    @cached_property
    def _positions(self) -> dict[int, Int[Tensor, " samples"]]:
        """Positions of evaluation samples among the audited samples, by ``id`` of the object."""
        test, trained = self._split.test, self._split.all_clients
        ids = self._audit.samples.ids.tolist()
        position_of = {sample_id: position for position, sample_id in enumerate(ids)}
        # Sample ids of the test set are not those of the audit set, so take held-out samples.
        positions = {
            id(test): torch.from_numpy(self._audit.owner < 0).nonzero().flatten(),
            id(trained): torch.tensor([position_of.get(n, 0) for n in trained.ids.tolist()]),
        }
        return {
            id(samples): positions[id(samples)]
            for samples in (test, trained)
            if _equal_samples(samples, self._audit.samples.take(positions[id(samples)]))
        }


class CorrectCounter:
    """Counter of correct predictions, which are already known for one model.

    Args:
        model: The model whose predictions are known; None if no predictions are known.
        known: Whether each prediction is correct, by ``id`` of the samples.
    """

    def __init__(self, model: Model | None, known: dict[int, Float[Tensor, " samples"]]) -> None:
        self._model, self._known = model, known

    def __call__(self, model: Model, samples: Samples, device: torch.device) -> int:
        """Return the number of correct predictions, as :func:`count_correct` does."""
        known = self._known.get(id(samples))
        if known is None or self._model is None or not _equal_models(model, self._model):
            return count_correct(model, samples, device)
        return int(known.sum())


def _equal_samples(first: Samples, second: Samples) -> bool:
    return torch.equal(first.features, second.features) and torch.equal(
        first.targets, second.targets
    )


def _equal_models(first: Model, second: Model) -> bool:
    tensors, second_tensors = first.tensors(), second.tensors()
    return tensors.keys() == second_tensors.keys() and all(
        torch.equal(value, second_tensors[name]) for name, value in tensors.items()
    )
