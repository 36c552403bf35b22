"""Figures of a live recording for trackers such as MLflow, after each measured round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedaudit.core.errors import FedauditError
from fedaudit.core.values import ClientId
from fedaudit.live.aucs import ClientAucs
from fedaudit.live.background import RoundOutcome
from fedaudit.live.open_recording import RecorderWarnings
from fedaudit.live.recording import Recording, RoundEntry
from fedaudit.observe.measurements import (
    MeasuredRound,
    Measurements,
    measured_round_in,
    measured_rounds_in,
    stacked,
)
from fedaudit.plan.parts import Setup
from fedaudit.results.text import clean_text
from fedaudit.sinks import open_sinks
from fedaudit.sinks.base import Sink, SinkLike, flush
from fedaudit.sinks.records import path_of


def open_or_warn(
    to: SinkLike | Sequence[SinkLike], name: str, folder: Path, log: Callable[[str], None]
) -> Sink | None:
    """Open sinks; warn and return None if they cannot be reached, as in a server's failure.

    Raises:
        BadInput: There is no such sink.
        Unsupported: Its library is not installed.
    """
    try:
        return open_sinks(to, name, folder)
    except FedauditError:
        raise
    except Exception as error:
        RecorderWarnings(strict=False, log=log).warn(_failure_text(error), "sink")
        return None


def _failure_text(error: Exception) -> str:
    reason = f"{type(error).__name__}: {clean_text(str(error))[:300]}"
    return f"no figures are sent to the sink from now on ({reason}); the recording continues"


class RoundSender:
    """Sends the figures of measured rounds to a sink. A sink that fails is not used any more.

    Attacks are run on the rounds that are measured so far. Attacks that learn from other samples,
    or that cannot be run yet, are left out.
    """

    def __init__(
        self, sink: Sink, folder: Path, recording: Recording, run: Setup, log: Callable[[str], None]
    ) -> None:
        self._sink: Sink | None = sink
        self._folder, self._recording = folder, recording
        self._warnings = RecorderWarnings(strict=False, log=log)
        self._attacks = {
            name: attack
            for name, attack in run.membership_attacks.items()
            if not attack.needs_side_information
        }
        self._aucs = {client: ClientAucs(run, client) for client in recording.targets}
        self._measured: dict[int, MeasuredRound] = {}
        with self._unless_failed():
            for name in ("name", "key", "view", "model"):
                if value := str(getattr(recording, name)):
                    sink.text("recording" if name == "name" else name, value)

    def send(self, outcome: RoundOutcome, entry: RoundEntry | None) -> None:
        """Send the AUC of each attack on each client, and numbers of uploads."""
        with self._unless_failed():
            for name, value in self._figures(outcome, entry):
                if self._sink is not None:
                    self._sink.metric(name, value, outcome.round)
            if self._sink is not None:
                flush(self._sink)

    def close(self) -> None:
        """Close the sink."""
        with self._unless_failed():
            if self._sink is not None:
                self._sink.close()
        self._sink = None

    def _figures(
        self, outcome: RoundOutcome, entry: RoundEntry | None
    ) -> Iterator[tuple[str, float]]:
        if entry is not None:
            yield "round/uploads", float(len(entry.answered))
            yield "round/missing_uploads", float(len({*entry.selected} - {*entry.answered}))
        yield "round/unmeasured_uploads", float(len(outcome.excluded))
        yield "round/measuring_seconds", outcome.seconds
        if outcome.error:
            return
        if not self._measured:
            # The recording may continue one of an earlier session.
            stored = measured_rounds_in(self._folder)
            self._measured = {entry.measured.index: entry.measured for entry in stored}
        elif outcome.round not in self._measured:
            self._measured[outcome.round] = measured_round_in(self._folder, outcome.round)
        rounds = [m for index, m in sorted(self._measured.items()) if index <= outcome.round]
        # Attacks that compare clients need the measurements of all clients.
        measurements = stacked(rounds)
        for client in self._aucs:
            yield from self._client_figures(client, measurements)

    def _client_figures(
        self, client: ClientId, measurements: Mapping[str, Measurements]
    ) -> Iterator[tuple[str, float]]:
        selected = self._aucs[client].select(measurements)
        for name, attack in self._attacks.items():
            try:
                auc = self._aucs[client].auc_of(name, attack, selected)
            except FedauditError:
                continue
            if auc is not None:
                path = path_of("membership", name, "unseen", self._client_name(client), "auc")
                yield path, auc.value
                yield f"{path}_low", auc.low
                yield f"{path}_high", auc.high

    def _client_name(self, client: ClientId) -> str:
        return clean_text(self._recording.names.get(client, f"client {client}"))

    @contextmanager
    def _unless_failed(self) -> Iterator[None]:
        """Warn once if the sink fails, since an audit must not stop the training it observes."""
        try:
            yield
        except Exception as error:
            self._sink = None
            self._warnings.warn(_failure_text(error), "sink")
