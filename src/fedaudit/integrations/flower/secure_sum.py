"""Recording of rounds with Flower's secure aggregation, which reveals only a sum.

Secure aggregation is part of Flower's older interface.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from flwr.common import FitIns, FitRes, Parameters, Scalar, parameters_to_ndarrays
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from fedaudit.core.errors import BadInput
from fedaudit.integrations.common import delegated, warn_of_errors
from fedaudit.integrations.flower.collector import TWO_NODES, Claims
from fedaudit.integrations.flower.messages import PARTITION, client_in
from fedaudit.live.clients import ClientRef
from fedaudit.live.recorder import Recorder

Fitted: TypeAlias = list[tuple[ClientProxy, FitRes]]


class SumRecordingStrategy(Strategy):
    """Strategy for ``SecAggPlusWorkflow`` that records the sum of the uploads.

    The protocol reveals the weighted mean of the uploads, which the workflow passes to the strategy
    as the parameters of every client. Clients need :func:`client_id_mod` after ``secaggplus_mod``
    in the list of mods.
    """

    def __init__(self, inner: Strategy, recorder: Recorder) -> None:
        """Wrap a strategy.

        Args:
            inner: A strategy of ``flwr.server.strategy``.
            recorder: A recorder of :func:`fedaudit.record` with ``view="sum"``.

        Raises:
            BadInput: The recorder has another view.
        """
        if recorder.recording.view != "sum":
            raise BadInput(
                "secure aggregation reveals only a sum of uploads, and this recorder has the view "
                f"{recorder.recording.view!r}; create it with view='sum'"
            )
        self.inner, self.recorder = inner, recorder
        self._claims = Claims[str]()
        self._selected: tuple[str, ...] = ()
        self._sent: list[np.ndarray] = []

    initialize_parameters = delegated("initialize_parameters")
    configure_evaluate = delegated("configure_evaluate")
    aggregate_evaluate = delegated("aggregate_evaluate")
    evaluate = delegated("evaluate")

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Store the model, and the clients to which it is sent."""
        instructions = self.inner.configure_fit(server_round, parameters, client_manager)
        with warn_of_errors("a round is not recorded", strict=self.recorder.strict):
            self._selected, self._sent = tuple(proxy.cid for proxy, _ in instructions), []
            self._sent = list(parameters_to_ndarrays(parameters))
        return instructions

    def aggregate_fit(
        self,
        server_round: int,
        results: Fitted,
        failures: Sequence[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Pass the mean of the uploads to the recorder."""
        with warn_of_errors("a round is not recorded", strict=self.recorder.strict):
            self._record(server_round, results)
        for _, result in results:
            # Strategies may average all metrics, so the client's name is removed.
            result.metrics.pop(PARTITION, None)
        return self.inner.aggregate_fit(server_round, results, list(failures))

    def _record(self, index: int, results: Fitted) -> None:
        faults = dict[str, str]()
        for proxy, result in results:
            client = client_in(result.metrics.get(PARTITION))
            if client is not None and (error := self._claims.check(proxy.cid, client, index)):
                faults[proxy.cid] = error
        names = {cid: c for cid, c in self._claims.clients.items() if cid not in faults}
        senders = [names[proxy.cid] for proxy, _ in results if proxy.cid in names]
        selected_clients = {names[cid] for cid in self._selected if cid in names}
        unnamed = sum(cid not in names for cid in self._selected)
        fault = next(iter(faults.values()), "") or self._fault(results, senders)
        mean = list[np.ndarray]()
        try:
            mean = [] if fault else list(parameters_to_ndarrays(results[0][1].parameters))
        # Catch any error: an audit must not stop the training that it observes.
        except Exception as error:
            fault = f"the sum cannot be read: {error}"
        if fault:
            self.recorder.missed(
                index, fault, selected=selected_clients, answered={*senders}, unnamed=unnamed
            )
            return
        # Every client's upload is replaced by the mean, so that the uploads have this mean.
        self.recorder.round(
            index,
            sent=self._sent,
            uploads=dict.fromkeys(senders, mean),
            selected=selected_clients,
            unnamed=unnamed,
        )

    def _fault(self, results: Fitted, senders: Sequence[ClientRef]) -> str:
        if not results:
            return "no client answered"
        if len({id(result.parameters) for _, result in results}) > 1:
            return "clients' parameters differ, so they do not come from secure aggregation"
        if len(senders) < len(results):
            return (
                f"{len(results) - len(senders)} of {len(results)} replies do not name their "
                "client; add client_id_mod to the mods of the ClientApp, after secaggplus_mod"
            )
        repeated = sorted({client for client in senders if senders.count(client) > 1})
        return TWO_NODES.format(client=repeated[0]) if repeated else ""
