"""Correct answers of a round's model on audited samples, from the outputs that signals read."""

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
    """Utility of the client's model on each sample, computed with the signals and not stored."""

    kind = "utility"

    def of(self, model: Model, outputs: Outputs, targets: Targets) -> Values:
        return model.architecture.task.utility.per_sample(outputs, targets).double()


_UTILITY = _Utility()


class KnownAnswers:
    """Correct answers that are known without another pass, as evaluation samples are audited.

    In a round with one upload, the model after the round is the uploaded one. Its outputs on the
    audited samples serve for signals and accuracy. Batches differ from those of a separate pass,
    which can change the last bits of outputs, and so a count only if two outputs are tied.
    """

    def __init__(self, split: EvaluationSplit, audit: AuditSet) -> None:
        self._split, self._audit = split, audit

    def with_utility(self, signals: Sequence[Signal], round: Round) -> Sequence[Signal]:
        """Add the utility of the only client's model, if a signal reads its outputs anyway."""
        reads_outputs = any(
            isinstance(signal, OutputSignal) and signal.snapshot == "local" for signal in signals
        )
        exposed = [*round.exposed.values()]
        local = exposed[0].local if len(exposed) == 1 else None
        is_share = local is not None and local.architecture.task.utility.is_share
        return [*signals, _UTILITY] if reads_outputs and is_share else signals

    def taken_from(self, measured: MeasuredRound, round: Round) -> tuple[MeasuredRound, "Counter"]:
        """Return the signals that are stored, and a counter of correct answers.

        Args:
            measured: Signals, possibly with the utility.
            round: The round, with its models.
        """
        signals = dict(measured.signals)
        utilities = signals.pop(_UTILITY.name, None)
        if utilities is None:
            return measured, Counter(None, {})
        (exposed,) = round.exposed.values()
        known = {key: utilities[0, place] for key, place in self._positions.items()}
        return replace(measured, signals=signals), Counter(exposed.local, known)

    @cached_property
    def _positions(self) -> dict[int, Int[Tensor, " samples"]]:
        """Positions of evaluation samples among the audited ones, by the samples' identity."""
        test, trained = self._split.test, self._split.all_clients
        by_id = {number: place for place, number in enumerate(self._audit.samples.ids.tolist())}
        # The test set has ids of its own.
        positions = {
            id(test): torch.from_numpy(self._audit.owner < 0).nonzero().flatten(),
            id(trained): torch.tensor([by_id.get(number, 0) for number in trained.ids.tolist()]),
        }
        return {
            id(samples): positions[id(samples)]
            for samples in (test, trained)
            if _are(samples, self._audit.samples.take(positions[id(samples)]))
        }


class Counter:
    """Counter of a model's correct answers, some of which are known."""

    def __init__(self, model: Model | None, known: dict[int, Float[Tensor, " samples"]]) -> None:
        """Store the answers of a model, by the identity of the samples."""
        self._model, self._known = model, known

    def __call__(self, model: Model, samples: Samples, device: torch.device) -> int:
        """Return the number of correct answers, as :func:`count_correct` does."""
        known = self._known.get(id(samples))
        if known is None or self._model is None or not _equal(model, self._model):
            return count_correct(model, samples, device)
        return int(known.sum())


def _are(samples: Samples, others: Samples) -> bool:
    return torch.equal(samples.features, others.features) and torch.equal(
        samples.targets, others.targets
    )


def _equal(left: Model, right: Model) -> bool:
    if left is right:
        return True
    tensors, others = left.tensors(), right.tensors()
    return tensors.keys() == others.keys() and all(
        torch.equal(value, others[name]) for name, value in tensors.items()
    )
