"""A strategy of Flower's with a recorder beside it."""

from collections.abc import Callable, Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedaudit.errors import BadInput
from fedaudit.integrations.flower.ledger import Ledger
from fedaudit.integrations.flower.nodes import Nodes
from fedaudit.live.recorder import Recorder


class RecordingStrategy(Strategy):
    """Does what a strategy does, and tells a recorder what clients were sent and sent back.

    It goes around any strategy of the message interface (``flwr.serverapp.strategy``), Flower's or
    your own, and around wrappers such as those for differential privacy: what is recorded is what
    came from the clients, before the server clips or adds noise, and the model that the round
    ended with. Attributes of the inner strategy can be read as if it were not wrapped.
    """

    def __init__(
        self,
        inner: Strategy,
        recorder: Recorder,
        *,
        nodes: int | None = None,
        patience: float = 60.0,
    ) -> None:
        """Wraps a strategy.

        Args:
            inner: The strategy.
            recorder: Of :func:`fedaudit.record`; it is closed when :meth:`start` ends.
            nodes: How many nodes there are to be, which are waited for; as many as clients are
                audited by default.
            patience: Seconds for which nodes are waited for. Then it is warned of, and goes on
                with those that are there; a strict recording stops.

        Raises:
            BadInput: Fewer nodes than audited clients, or a strategy of another interface.
        """
        _refuse_older(inner)
        self.inner, self.recorder = inner, recorder
        self._configure, self._aggregate = inner.configure_train, inner.aggregate_train
        self._nodes = Nodes(recorder, nodes, patience)
        key = getattr(inner, "weighted_by_key", "num-examples")
        self._ledger = Ledger(recorder, weighted_by=key)

    def __getattr__(self, name: str) -> object:
        if name == "inner":  # not there yet while an instance is copied or unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the inner strategy, once all nodes are there; notes who is sent what."""
        self._nodes.await_all(grid)
        messages = list(self._configure(server_round, arrays, config, grid))
        self._ledger.ask(server_round, messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As the inner strategy; notes who answered what, and what became of it."""
        heard = list(replies)
        # Before the inner strategy, which may clip replies where they are.
        self._ledger.hear(heard)
        arrays, metrics = self._aggregate(server_round, heard)
        self._ledger.close(arrays)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the inner strategy."""
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the inner strategy."""
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """As the inner strategy."""
        self.inner.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: int | float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """As the inner strategy, whose own way of running rounds is kept where it has one."""
        inner = self.inner
        # Its start calls its own hooks; for as long as it runs, these are the recording ones.
        vars(inner).update(
            configure_train=self.configure_train, aggregate_train=self.aggregate_train
        )
        try:
            return inner.start(
                grid,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                evaluate_fn,
            )
        finally:
            for hook in ("configure_train", "aggregate_train"):
                vars(inner).pop(hook, None)
            if self._ledger.heard:  # the inner strategy could make nothing of the replies
                self._ledger.close()
            self.recorder.close()


def _refuse_older(inner: object) -> None:
    """Refuses what is no strategy of the message interface, such as one of ``flwr.server``."""
    if isinstance(inner, Strategy):
        return
    older = "a strategy of Flower's older interface" if hasattr(inner, "configure_fit") else "none"
    raise BadInput(
        f"RecordingStrategy goes around a strategy of flwr.serverapp.strategy, and "
        f"{type(inner).__name__} is {older}; record it through the grid: run its workflow or its "
        "ServerApp with RecordingGrid(grid, recorder) in place of the grid, or behind SecAgg+ with "
        "SumRecordingStrategy"
    )
