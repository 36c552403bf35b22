"""Measurement of all signals in one pass over the rounds."""

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
from fedaudit.signals.base import Seen, Signal
from fedaudit.signals.outputs import OutputSignal
from fedaudit.signals.received import Received

BLOCK = 256
"""Blocks of samples are multiples of this. Models on a CPU process batches of a power of two of
at most this size, so blocks split no batch and change no bit."""

Measuring: TypeAlias = Callable[[Round], MeasuredRound]


class NotFinite(BadInput):
    """Error for a signal that is infinite or not a number.

    Attributes:
        clients: Clients whose values are not finite, with the reason.
    """

    # With a default, since exceptions of worker processes are recreated from the message alone.
    def __init__(self, message: str, clients: Mapping[ClientId, str] | None = None) -> None:
        super().__init__(message)
        self.clients = dict(clients or {})


class _Job(NamedTuple):
    """Inputs of all blocks."""

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
    received: Received | None = None,
) -> MeasuredRound:
    """Measure every signal of one round, for every client in it and every sample.

    Args:
        round: The round as the adversary sees it.
        signals: Signals to measure; computations that several signals share are done once.
        samples: The audited samples, the same for all rounds.
        workers: Threads for the gradient signals; they do not change results.
        device: Device on which models run; a GPU takes one worker.
        received: Results for these samples that were computed before, on a CPU.

    Raises:
        NotVisible: A signal needs something that the round does not show.
        NotFinite: A signal is infinite or not a number.
    """
    # Signals never need the models that clients keep, which serve to measure utility.
    seen = Seen(replace(round, kept={}), samples, workers, device, received)
    of_outputs = [signal for signal in signals if isinstance(signal, OutputSignal)]
    with one_thread():
        measured = _by_clients(of_outputs, seen)
        for signal in signals:
            if signal.name not in measured:
                measured[signal.name] = signal(seen)
        values = {signal.name: measured[signal.name] for signal in signals}
        _refuse_not_finite(values, seen)
        return MeasuredRound(round.index, seen.clients, seen.bases, values, round.stands_for)


_CLIENTS = 64
"""Number of clients whose models are in memory together while their outputs are measured."""


def _by_clients(
    signals: Sequence[OutputSignal], seen: Seen
) -> dict[str, Float[Tensor, "clients samples"]]:
    """Measure signals of outputs for some clients at a time, as each depends on one model alone."""
    if isinstance(seen.round.exposed, dict) or len(seen.clients) <= _CLIENTS or not signals:
        return _by_blocks(signals, seen)
    parts = list[dict[str, Tensor]]()
    for part in chunks(len(seen.clients), _CLIENTS):
        exposed = {client: seen.round.exposed[client] for client in seen.clients[part]}
        parts.append(_by_blocks(signals, replace(seen, round=replace(seen.round, exposed=exposed))))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _by_blocks(
    signals: Sequence[OutputSignal], seen: Seen
) -> dict[str, Float[Tensor, "clients samples"]]:
    """Measure signals of outputs for some samples at a time, as outputs of sequences are large."""
    parts: dict[str, list[Tensor]] = {signal.name: [] for signal in signals}
    for part in chunks(len(seen.samples), by_kind(seen.device, cpu=BLOCK, gpu=4 * BLOCK)):
        block = replace(seen, samples=seen.samples.take(part))
        for signal in signals:
            parts[signal.name].append(signal(block))
    return {name: torch.cat(values, dim=1) for name, values in parts.items() if values}


def measure_by_block(
    round: Round,
    signals: Sequence[Signal],
    samples: Samples,
    *,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda completed, total: None,
) -> MeasuredRound:
    """Measure a round block by block on a CPU, with progress and the bits of :func:`measure_round`.

    ``progress`` is called with (completed samples, all samples), first with 0 and then after each
    block.
    """
    parts = list[MeasuredRound]()
    progress(0, len(samples))
    for part in chunks(len(samples), BLOCK):
        parts.append(measure_round(round, signals, samples.take(part), workers=workers))
        progress(min(len(parts) * BLOCK, len(samples)), len(samples))
    return _join(parts)


def measure(
    rounds: Iterable[Round],
    signals: Sequence[Signal],
    samples: Samples,
    *,
    workers: int = 1,
    device: torch.device = CPU,
) -> Iterator[MeasuredRound]:
    """Yield the signals of each round, on every sample. No round is kept once it is measured.

    Args:
        rounds: Rounds of a federation, as :func:`fedaudit.simulate` or
            :func:`fedaudit.seen_from` yield them.
        signals: What to compute, such as ``fedaudit.signals.outputs.Loss()``.
        samples: The audited samples.
        workers: Threads to compute with.
        device: Where to compute.

    Raises:
        NotVisible: A signal needs what the view of the rounds hides.

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
def measuring_on(
    engine: Engine, signals: Sequence[Signal], samples: Samples, *, count: int
) -> Iterator[Measuring]:
    """Return a function that measures rounds on an engine, with the bits of :func:`measure_round`.

    Every worker measures all signals on one of ``count`` blocks of the samples. A signal scores
    each sample independently of the others.
    """
    size = BLOCK * max(1, -(-len(samples) // (BLOCK * count)))
    parts = [samples.take(part) for part in chunks(len(samples), size)] or [samples]
    blocks = SharedByKey(enumerate(parts))
    with engine.session(_measure_block, _Job(signals, blocks)) as run:

        def measure(round: Round) -> MeasuredRound:
            # Signals need neither clients' facts nor their kept models, so workers get none.
            visible = replace(round, kept={}, facts={})
            return _join(list(run([_Block(visible, number) for number in blocks])))

        yield measure


def _measure_block(job: _Job, block: _Block) -> MeasuredRound:
    """Measure one block of samples; an engine runs this function."""
    return measure_round(block.round, job.signals, job.blocks[block.number])


def _join(parts: Sequence[MeasuredRound]) -> MeasuredRound:
    first = parts[0]
    signals = {
        name: torch.cat([part.signals[name] for part in parts], dim=1) for name in first.signals
    }
    return replace(first, signals=signals)


def _refuse_not_finite(values: Mapping[str, Float[Tensor, "clients samples"]], seen: Seen) -> None:
    """Raise if a signal is not finite, naming every client with such values."""
    clients = dict[ClientId, str]()
    messages = list[str]()
    for name, of_clients in values.items():
        broken = (~of_clients.isfinite()).sum(1).tolist()
        for client, count in zip(seen.clients, broken, strict=True):
            if count:
                clients.setdefault(client, f"its signal {name!r} is not finite")
        if any(broken):
            messages.append(
                f"the signal {name!r} is not finite for {sum(broken)} of {of_clients.numel()} "
                f"(client, sample) pairs in round {seen.round.index}; check the features and the "
                "model"
            )
    if clients:
        raise NotFinite(messages[0], clients)
