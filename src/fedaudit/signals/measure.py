"""One pass over rounds for all signals."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core import Samples
from fedaudit.devices import CPU
from fedaudit.engines.local import one_thread
from fedaudit.errors import BadInput
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.round import Round
from fedaudit.signals.base import Seen, Signal


def measure_round(
    round: Round,
    signals: Sequence[Signal],
    samples: Samples,
    *,
    workers: int = 1,
    device: torch.device = CPU,
) -> MeasuredRound:
    """Every signal of one round, for every client in it and every sample.

    Args:
        round: As the adversary sees it.
        signals: What to measure; work that several need is done once.
        samples: The audited samples, the same for all rounds.
        workers: Threads for the gradient signals; changes no result.
        device: Where models are run; a GPU takes one worker.

    Raises:
        NotVisible: A signal needs what the round does not show.
        BadInput: A signal came out infinite or as not-a-number.
    """
    # The clients' own models are in a round for whoever asks how good they are.
    seen = Seen(replace(round, kept={}), samples, workers, device)
    with one_thread():
        values = {signal.name: _checked(signal, signal(seen), round) for signal in signals}
        return MeasuredRound(round.index, seen.clients, seen.bases, values, round.stands_for)


def measure(
    rounds: Iterable[Round],
    signals: Sequence[Signal],
    samples: Samples,
    *,
    workers: int = 1,
    device: torch.device = CPU,
) -> Iterator[MeasuredRound]:
    """Measures a stream of rounds; nothing of a round is kept once it is measured."""
    for round in rounds:
        yield measure_round(round, signals, samples, workers=workers, device=device)


def _checked(
    signal: Signal, values: Float[Tensor, "clients samples"], round: Round
) -> Float[Tensor, "clients samples"]:
    broken = int((~values.isfinite()).sum())
    if broken:
        raise BadInput(
            f"the signal {signal.name!r} is not finite for {broken} of {values.numel()} "
            f"(client, sample) pairs in round {round.index}; check the features and the model"
        )
    return values
