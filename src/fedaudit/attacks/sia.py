"""Source inference attacks: rules that give a posterior over the clients for each sample."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.base import Rule
from fedaudit.core import arguments
from fedaudit.core.arguments import Range
from fedaudit.core.errors import NotVisible
from fedaudit.core.values import ClientId, Sees
from fedaudit.observe.measurements import Measurements


@arguments.dataclass(frozen=True)
class Bayes:
    """Base of source rules: Bayes' rule over clients, from an evidence that the rules define.

    Attributes:
        temperature: Divisor of the evidence (the paper's gamma), from 1e-6 to 1e6. A smaller one
            sharpens the posterior, and does not change the order of clients under equal priors.
        prior: "equal" for the same prior probability of every client (the paper's 1/K), "size"
            for one in proportion to its number of samples.
    """

    # Outside this range, posteriors round to equal ones, or their logarithms to infinity.
    temperature: Annotated[float, Range(ge=1e-6, le=1e6)] = 1.0
    prior: Literal["equal", "size"] = "equal"

    over_clients = "arg max"
    needs = Sees.UPLOADS

    @abstractmethod
    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        """Return the evidence for each client to have each sample, in nats; NaN if unmeasured."""

    def posterior(
        self, *measurements: Measurements, sizes: Mapping[ClientId, int]
    ) -> Float[Tensor, "clients samples"]:
        """Return the probability of each client to have each sample.

        Raises:
            NotVisible: No client was measured.

        Source: SIA, Eq. (14), as a softmax over the clients; see :class:`SourceAtLast`.
        """
        (m,) = measurements
        evidence = self.evidence(m).double()
        unseen = torch.isnan(evidence).any(1)
        if bool(unseen.all()):
            raise NotVisible(
                "source inference needs the uploads of single clients in at least one measured "
                "round, and none was measured; measure more rounds"
            )
        log_prior = torch.zeros(len(m.clients), dtype=torch.float64)
        if self.prior == "size":
            log_prior = torch.tensor([float(sizes[c]) for c in m.clients]).double().log()
        log_weight = evidence / self.temperature + log_prior[:, None]
        return log_weight.masked_fill(unseen[:, None], -torch.inf).softmax(0)


@arguments.dataclass(frozen=True)
class SourceAtLast(Bayes):
    """Source inference by the smallest loss in each client's last measured round (SIA).

    Source: SIA, Algorithm 2 (one round) and Eqs. (14)-(17). The models of Eq. (15), which were not
        trained on the sample, are those of the other clients, each with its share of the prior.
        The result is a softmax over the clients.
    """

    over_rounds = "last"

    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        latest = torch.full_like(m.values[0], torch.nan)
        for values in m.values:
            latest = torch.where(torch.isnan(values), latest, values)
        return latest


@arguments.dataclass(frozen=True)
class SourceOnAverage(Bayes):
    """Source inference by the smallest mean loss over each client's measured rounds.

    If all clients take part in all rounds, the product of the rounds' likelihoods gives the same
    client. Its posterior is this one with the temperature divided by the number of rounds.

    Source: SIA, section 5 (several rounds, left for future work).
    """

    over_rounds = "mean"
    needs = Sees.UPLOADS | Sees.ROUNDS

    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        return m.values.double().nanmean(0)


@arguments.dataclass(frozen=True)
class SourceByProduct(Bayes):
    """Source inference by the product of the rounds' posteriors.

    A round's losses are compared among the clients that took part in it. A client that took part
    only in early rounds, when all losses were high, is therefore at no disadvantage.

    Source: SIA, section 5 (several rounds, left for future work).
    """

    over_rounds = "product"
    needs = Sees.UPLOADS | Sees.ROUNDS

    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        values = m.values.double()
        took_part = ~torch.isnan(values).any(2)
        alone = values.masked_fill(torch.isnan(values), -torch.inf).log_softmax(1)
        # Relative to chance, since a round of two clients is less informative than one of ten.
        gain = alone + took_part.sum(1).log()[:, None, None]
        total = gain.where(took_part[:, :, None], 0.0).sum(0)
        total[~took_part.any(0)] = torch.nan
        return total


@arguments.dataclass(frozen=True, kw_only=True)
class SourceByTail(Bayes):
    """Source inference by a membership rule that is applied to each client as the target.

    The evidence for a client is minus the logarithm of the rule's tail probability: the probability
    that a client without the sample has a signal at least as large.

    Attributes:
        rule: Membership rule with minus a tail probability as its score, such as that of FedMIA.

    Source: FedMIA, Eqs. (9)-(12), read as a source posterior.
    """

    rule: Rule

    over_clients = "one-sided likelihood, then arg max"
    over_rounds = "mean"
    needs = Sees.UPLOADS | Sees.ROUNDS

    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        evidence = torch.full(m.values.shape[1:], torch.nan, dtype=torch.float64)
        for row, client in enumerate(m.clients):
            if not bool(torch.isnan(m.of(client)).any(1).all()):
                # Tails below the smallest positive number are 0 in 64 bits.
                least = torch.finfo(torch.float64).tiny
                evidence[row] = -(-self._scores(m, client)).clamp_min(least).log()
        return evidence

    def _scores(self, m: Measurements, client: ClientId) -> Float[Tensor, " samples"]:
        try:
            return self.rule(m, target=client)
        except NotVisible as refusal:
            raise NotVisible(
                f"client {client} cannot be compared with others: it needs two of them that were "
                "sent the same model in a measured round; use sia, sia-mean or sia-product"
            ) from refusal
