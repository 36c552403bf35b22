"""Measurement of the signals of rounds, in blocks of samples and on several workers."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.devices import CPU, by_kind
from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId, Samples, chunks
from fedaudit.engines.base import Engine, SharedByKey
from fedaudit.engines.local import one_thread
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.round import Round
from fedaudit.signals.base import ReceivedModelCache, Signal, VisibleRound
from fedaudit.signals.outputs import OutputSignal

BLOCK = 256
"""Number of samples in a block; larger blocks are multiples. On a CPU, models process batches whose
size is a power of two and at most this number. Blocks therefore split no batch, and results are
bitwise equal."""

MeasureRound: TypeAlias = Callable[[Round], MeasuredRound]


class NotFinite(BadInput):
    """Error for a signal that is infinite or not a number.

    Attributes:
        clients: Clients with values that are not finite, each with a reason.
    """

    # ``clients`` has a default, since exceptions of worker processes are recreated only from the
    # message.
    def __init__(self, message: str, clients: Mapping[ClientId, str] | None = None) -> None:
        super().__init__(message)
        self.clients = dict(clients or {})


class _BlockInputs(NamedTuple):
    signals: Sequence[Signal]
    blocks: SharedByKey[int, Samples]


class _Block(NamedTuple):
    round: Round
    number: int


def measure_round(
    round: Round,
    signals: Sequence[Signal],
    samples: Samples,
    *,
    workers: int = 1,
    device: torch.device = CPU,
    received: ReceivedModelCache | None = None,
) -> MeasuredRound:
    """Measure every signal of one round, for every client in it and every sample.

    Args:
        round: The round as the adversary sees it.
        signals: Signals to measure; computations that several signals share are done once.
        samples: The audited samples, the same for all rounds.
        workers: Threads for the gradient signals; they do not change results.
        device: Device on which models run; a GPU takes one worker.
        received: Results for these samples that were computed on a CPU before the round ended.

    Raises:
        NotVisible: A signal needs data that the round does not show.
        NotFinite: A signal is infinite or not a number.
    """
    # Signals do not use the models that clients keep, which are only evaluated for utility.
    visible = VisibleRound(replace(round, private_models={}), samples, workers, device, received)
    output_signals = [signal for signal in signals if isinstance(signal, OutputSignal)]
    with one_thread():
        measured = _measure_by_client(output_signals, visible)
        for signal in signals:
            if signal.name not in measured:
                measured[signal.name] = signal(visible)
        values = {signal.name: measured[signal.name] for signal in signals}
        _raise_if_not_finite(values, visible)
        return MeasuredRound(round.index, visible.clients, visible.bases, values, round.group_of)


_CLIENTS_IN_MEMORY = 64
"""Number of clients whose models are in memory together while their outputs are measured."""


def _measure_by_client(
    signals: Sequence[OutputSignal], visible: VisibleRound
) -> dict[str, Float[Tensor, "clients samples"]]:
    """Measure signals from outputs for a few clients at a time to limit the memory for models."""
    is_in_memory = isinstance(visible.round.observed, dict)
    if is_in_memory or len(visible.clients) <= _CLIENTS_IN_MEMORY or not signals:
        return _measure_by_block(signals, visible)
    parts = list[dict[str, Tensor]]()
    for rows in chunks(len(visible.clients), _CLIENTS_IN_MEMORY):
        observed = {client: visible.round.observed[client] for client in visible.clients[rows]}
        round = replace(visible.round, observed=observed)
        parts.append(_measure_by_block(signals, replace(visible, round=round)))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _measure_by_block(
    signals: Sequence[OutputSignal], visible: VisibleRound
) -> dict[str, Float[Tensor, "clients samples"]]:
    """Measure signals from outputs for a few samples at a time, because outputs may be large."""
    blocks: dict[str, list[Tensor]] = {signal.name: [] for signal in signals}
    for rows in chunks(len(visible.samples), by_kind(visible.device, cpu=BLOCK, gpu=4 * BLOCK)):
        block = replace(visible, samples=visible.samples.take(rows))
        for signal in signals:
            blocks[signal.name].append(signal(block))
    return {name: torch.cat(values, dim=1) for name, values in blocks.items() if values}


def measure_by_block(
    round: Round,
    signals: Sequence[Signal],
    samples: Samples,
    *,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda completed, total: None,
) -> MeasuredRound:
    """Measure a round in blocks of samples on a CPU, and report progress.

    The results are bitwise those of :func:`measure_round`. ``progress`` is called with the numbers
    of measured samples and of all samples, at the beginning and after each block.
    """
    blocks = list[MeasuredRound]()
    progress(0, len(samples))
    for rows in chunks(len(samples), BLOCK):
        blocks.append(measure_round(round, signals, samples.take(rows), workers=workers))
        progress(min(len(blocks) * BLOCK, len(samples)), len(samples))
    return _join(blocks)


def measure(
    rounds: Iterable[Round],
    signals: Sequence[Signal],
    samples: Samples,
    *,
    workers: int = 1,
    device: torch.device = CPU,
) -> Iterator[MeasuredRound]:
    """Yield the measured signals of each round, for every client and sample.

    Only one round is in memory at a time.

    Args:
        rounds: Rounds of a federation, as :func:`fedaudit.simulate` or
            :func:`fedaudit.seen_from` yield them.
        signals: Signals to measure, such as ``fedaudit.signals.outputs.Loss()``.
        samples: The audited samples.
        workers: Number of threads.
        device: Device on which models run.

    Raises:
        NotVisible: A signal needs data that the view hides.

    Examples:
        >>> import fedaudit as fa
        >>> from fedaudit.fl.algorithms.fedavg import FedAvg
        >>> from fedaudit.fl.training.local import LocalTraining
        >>> from fedaudit.signals.outputs import Loss
        >>> mlp = fa.models.architecture("mlp", shape=(2,), classes=2)
        >>> algorithm = FedAvg(mlp, LocalTraining())
        >>> samples = fa.Samples([[0.0, 1.0], [1.0, 0.0]], [0, 1])
        >>> rounds = fa.simulate(algorithm, {0: samples}, rounds=2, seed=1)
        >>> [measured.clients for measured in fa.measure(rounds, [Loss()], samples)]
        [(0,), (0,)]
    """
    for round in rounds:
        yield measure_round(round, signals, samples, workers=workers, device=device)


@contextmanager
def measure_on_engine(
    engine: Engine, signals: Sequence[Signal], samples: Samples, *, count: int
) -> Iterator[MeasureRound]:
    """Provide a function that measures rounds on an engine, while the context is open.

    The samples are split into at most ``count`` blocks, which workers measure in parallel. This is
    possible because a signal's value for a sample does not depend on other samples. The results are
    bitwise those of :func:`measure_round`.
    """
    size = BLOCK * max(1, math.ceil(len(samples) / (BLOCK * count)))
    split = [samples.take(rows) for rows in chunks(len(samples), size)] or [samples]
    blocks = SharedByKey(enumerate(split))
    with engine.session(_measure_block, _BlockInputs(signals, blocks)) as run:

        def measure(round: Round) -> MeasuredRound:
            # Signals use neither the clients' notes nor the models that clients keep, so these are
            # not sent to workers.
            visible = replace(round, private_models={}, client_notes={})
            return _join(list(run([_Block(visible, number) for number in blocks])))

        yield measure


def _measure_block(inputs: _BlockInputs, block: _Block) -> MeasuredRound:
    return measure_round(block.round, inputs.signals, inputs.blocks[block.number])


def _join(blocks: Sequence[MeasuredRound]) -> MeasuredRound:
    first = blocks[0]
    signals = {
        name: torch.cat([block.signals[name] for block in blocks], dim=1) for name in first.signals
    }
    return replace(first, signals=signals)


def _raise_if_not_finite(
    values: Mapping[str, Float[Tensor, "clients samples"]], visible: VisibleRound
) -> None:
    """Raise if a signal is not finite, and list the clients with such values."""
    clients = dict[ClientId, str]()
    messages = list[str]()
    for name, signal in values.items():
        counts = (~signal.isfinite()).sum(1).tolist()
        for client, count in zip(visible.clients, counts, strict=True):
            if count:
                clients.setdefault(client, f"its signal {name!r} is not finite")
        if any(counts):
            messages.append(
                f"the signal {name!r} is not finite for {sum(counts)} of {signal.numel()} "
                f"(client, sample) pairs in round {visible.round.index}; check the features and "
                "the model"
            )
    if clients:
        raise NotFinite(messages[0], clients)
