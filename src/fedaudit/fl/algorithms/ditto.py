"""Ditto: FedAvg, and a personal model of each client that never leaves it."""

from collections.abc import Mapping

from fedaudit.core import arguments
from fedaudit.core.arguments import AtLeastZero
from fedaudit.core.values import ClientId, Model, Params, Samples, with_prefix
from fedaudit.fl.algorithms.base import LocalResult
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.hooks import UNDEFENDED, ClientContext, Defense
from fedaudit.fl.training.local import AddedTerms, train
from fedaudit.observe.round import Sent

_PERSONAL = "personal/"


@arguments.dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg, with a personal model of each client near the global model.

    In each of its rounds, a client first trains the received global model and uploads the change,
    as in FedAvg. Then it trains its personal model on the same samples, with a penalty of lam / 2
    times the squared distance from the received model. Personal models are never sent. No adversary
    sees them, and defenses do not act on their training. The utility of a study is theirs.

    Attributes:
        lam: Weight of the penalty (lambda), at least 0; 0 trains personal models only on the
            client's samples.

    Source: Li et al. 2021 ("Ditto: Fair and Robust Federated Learning Through Personalization"),
        Algorithm 1.
    Differs: A personal model is trained with the settings of the global model's local training. It
        starts from the global model of the client's first round.
    """

    lam: AtLeastZero = 0.1

    def run_client(
        self,
        sent: Sent,
        data: Samples,
        client_state: Params,
        defense: Defense,
        client_context: ClientContext,
    ) -> LocalResult:
        """Train the received model and upload the change, then train the personal model."""
        upload, _ = super().run_client(sent, data, {}, defense, client_context)
        personal = self._personal_model(client_state) if client_state else sent.model
        context = client_context.separate("personal model").with_model(personal)
        terms = AddedTerms(self.lam, centre=sent.model.params)
        trained = train(personal, data, self.training, UNDEFENDED, context, terms=terms)
        return LocalResult(upload, {f"{_PERSONAL}{n}": v for n, v in trained.tensors().items()})

    def models_of_clients(
        self, client_states: Mapping[ClientId, Params]
    ) -> Mapping[ClientId, Model]:
        """Return the personal models of all clients that have taken part in a round."""
        return {c: self._personal_model(client_states[c]) for c in sorted(client_states)}

    def _personal_model(self, client_state: Params) -> Model:
        return Model.from_tensors(self.architecture, with_prefix(client_state, _PERSONAL))
