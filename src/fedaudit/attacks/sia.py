"""Source inference attacks: rules that compute a posterior over the clients for each sample."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.base import Rule
from fedaudit.core import arguments
from fedaudit.core.arguments import Range
from fedaudit.core.errors import NotVisible, TooFewPeers
from fedaudit.core.values import Capability, ClientId
from fedaudit.observe.measurements import Measurements


@arguments.dataclass(frozen=True)
class Bayes:
    """Base class of source rules: Bayes' rule over clients. Subclasses define the evidence.

    Attributes:
        temperature: Divisor of the evidence for each client, such as the negative loss (the paper's
            gamma), from 1e-6 to 1e6. A smaller value sharpens the posterior. With equal priors, it
            does not change the order of clients.
        prior: Prior probability of each client. "equal" is the same for every client (the paper's
            1/K); "size" is proportional to the client's number of samples.
    """

    # Outside this range, rounding makes all posteriors equal, or their logarithms infinite.
    temperature: Annotated[float, Range(ge=1e-6, le=1e6)] = 1.0
    prior: Literal["equal", "size"] = "equal"

    client_aggregation = "arg max"
    needs = Capability.UPLOADS

    @abstractmethod
    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        """Return the evidence that each client owns each sample, in nats; NaN if not measured."""

    def posterior(
        self, *measurements: Measurements, sizes: Mapping[ClientId, int]
    ) -> Float[Tensor, "clients samples"]:
        """Return the probability that each client owns each sample.

        Raises:
            NotVisible: No client was measured.

        Source: Hu et al. 2024 (SIA), Eq. (14), as a softmax over the clients; see
            :class:`SourceFromLastRound`.
        """
        (m,) = measurements
        evidence = self.evidence(m).double()
        is_missing = torch.isnan(evidence).any(1)
        if bool(is_missing.all()):
            raise NotVisible(
                "source inference needs the uploads of single clients in at least one measured "
                "round, but none were measured; measure more rounds"
            )
        log_prior = torch.zeros(len(m.clients), dtype=torch.float64)
        if self.prior == "size":
            log_prior = torch.tensor([float(sizes[c]) for c in m.clients]).double().log()
        log_weight = evidence / self.temperature + log_prior[:, None]
        return log_weight.masked_fill(is_missing[:, None], -torch.inf).softmax(0)


@arguments.dataclass(frozen=True)
class SourceFromLastRound(Bayes):
    """Source inference by the smallest loss in each client's last measured round (SIA).

    Source: Hu et al. 2024 (SIA), Algorithm 2 (one round) and Eqs. (14)-(17). The models of the
        other clients, weighted by the prior, are taken as the non-member models of Eq. (15). The
        posterior is then a softmax over the clients.
    """

    round_aggregation = "last"

    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        last_values = torch.full_like(m.values[0], torch.nan)
        for values in m.values:
            last_values = torch.where(torch.isnan(values), last_values, values)
        return last_values


@arguments.dataclass(frozen=True)
class SourceOnAverage(Bayes):
    """Source inference by the smallest mean loss over each client's measured rounds.

    If all clients take part in all rounds, the product of the rounds' likelihoods infers the same
    client. Its posterior is that of this rule with the temperature divided by the number of rounds.

    Source: Hu et al. 2024 (SIA), section 5 (several rounds, left for future work).
    """

    round_aggregation = "mean"
    needs = Capability.UPLOADS | Capability.ROUNDS

    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        return m.values.double().nanmean(0)


@arguments.dataclass(frozen=True)
class SourceByProduct(Bayes):
    """Source inference by the product of the rounds' posteriors.

    Each round's losses are compared among the clients that took part in the round. Therefore, a
    client that took part only in early rounds, when all losses were high, has no disadvantage.

    Source: Hu et al. 2024 (SIA), section 5 (several rounds, left for future work).
    """

    round_aggregation = "product"
    needs = Capability.UPLOADS | Capability.ROUNDS

    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        values = m.values.double()
        took_part = ~torch.isnan(values).any(2)
        log_posterior = values.masked_fill(torch.isnan(values), -torch.inf).log_softmax(1)
        # The chance level of a round is 1 / its number of clients. Without dividing by it, a client
        # would lose more in rounds with many clients.
        gain = log_posterior + took_part.sum(1).log()[:, None, None]
        total = gain.where(took_part[:, :, None], 0.0).sum(0)
        total[~took_part.any(0)] = torch.nan
        return total


@arguments.dataclass(frozen=True, kw_only=True)
class SourceByTail(Bayes):
    """Source inference by a membership rule that is applied to each client as the target.

    The evidence for a client is minus the logarithm of the rule's tail probability: the probability
    that a client without the sample has a signal at least as large.

    Attributes:
        rule: Membership rule, such as that of FedMIA, whose score is minus a tail probability.

    Source: Zhu et al. 2024 (FedMIA), Eqs. (9)-(12), used as evidence for a source posterior.
    """

    rule: Rule

    client_aggregation = "one-sided likelihood, then arg max"
    needs_other_clients = True
    round_aggregation = "mean"
    needs = Capability.UPLOADS | Capability.ROUNDS

    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        evidence = torch.full(m.values.shape[1:], torch.nan, dtype=torch.float64)
        for row, client in enumerate(m.clients):
            if not bool(torch.isnan(m.of(client)).any(1).all()):
                # A tail probability may round to 0, whose logarithm is infinite.
                smallest = torch.finfo(torch.float64).tiny
                evidence[row] = -(-self._scores(m, client)).clamp_min(smallest).log()
        return evidence

    def _scores(self, m: Measurements, client: ClientId) -> Float[Tensor, " samples"]:
        try:
            return self.rule(m, target=client)
        except NotVisible as error:
            # With two clients, no adversary can run this rule. With more, other rounds may suffice.
            kind = TooFewPeers if len(m.clients) < 3 else NotVisible
            raise kind(
                f"client {client} cannot be compared with other clients, because fewer than two of "
                "them were sent the same model in a measured round; use sia, sia-mean or "
                "sia-product"
            ) from error
