"""Source inference: which client has a sample, as a posterior over the clients."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.base import Rule
from fedaudit.core.errors import BadInput, NotVisible, unknown_name
from fedaudit.core.values import ClientId, Sees
from fedaudit.observe.measurements import Measurements

PRIORS = ("equal", "size")
_COLDEST, _HOTTEST = 1e-6, 1e6


@dataclass(frozen=True)
class Bayes:
    """Bayes' rule over clients; rules differ in the evidence.

    Attributes:
        temperature: gamma, from 1e-6 to 1e6: divides the evidence. The smaller, the surer; it
            changes no ranking of the clients under equal priors.
        prior: "equal" gives every client the same chance beforehand (the paper's 1/K), "size"
            one in proportion to its data.
    """

    temperature: float = 1.0
    prior: str = "equal"

    over_clients = "arg max"
    needs = Sees.UPLOADS

    def __post_init__(self) -> None:
        # Beyond, chances round to equal ones or their logarithms to infinite ones.
        if not _COLDEST <= self.temperature <= _HOTTEST:
            raise BadInput(
                f"temperature lies between {_COLDEST:g} and {_HOTTEST:g}, got {self.temperature}; "
                "at 1 losses in nats count as they are"
            )
        if self.prior not in PRIORS:
            raise unknown_name("prior", self.prior, PRIORS)

    @abstractmethod
    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        """Evidence for each client to have each sample, in nats; NaN where nothing is known."""

    def posterior(
        self, *measurements: Measurements, sizes: Mapping[ClientId, int]
    ) -> Float[Tensor, "clients samples"]:
        """See :class:`fedaudit.attacks.base.SourceRule`.

        Raises:
            NotVisible: No client was measured.

        Source: SIA, Eq. (14), as a softmax over the clients; see :class:`SourceAtLast`.
        """
        (m,) = measurements
        evidence = self.evidence(m).double()
        unseen = torch.isnan(evidence).any(1)
        if bool(unseen.all()):
            raise NotVisible(
                "source inference needs what single clients sent in at least one measured round, "
                "and none was measured; measure more rounds"
            )
        log_prior = torch.zeros(len(m.clients), dtype=torch.float64)
        if self.prior == "size":
            log_prior = torch.tensor([float(sizes[c]) for c in m.clients]).double().log()
        log_weight = evidence / self.temperature + log_prior[:, None]
        return log_weight.masked_fill(unseen[:, None], -torch.inf).softmax(0)


@dataclass(frozen=True)
class SourceAtLast(Bayes):
    """The client whose model has the least loss in the last round in which it was measured.

    Source: SIA, Algorithm 2 (one round) and Eqs. (14)-(17). The models of Eq. (15), which were not
        trained on the sample, are the other clients', each with its share of the prior; what
        comes out is a softmax over the clients.
    """

    over_rounds = "last"

    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        latest = torch.full_like(m.values[0], torch.nan)
        for values in m.values:
            latest = torch.where(torch.isnan(values), latest, values)
        return latest


@dataclass(frozen=True)
class SourceOnAverage(Bayes):
    """The client whose models have the least loss on average over its measured rounds.

    The mean rather than the product of the rounds' likelihoods: where all clients take part in
    all rounds, the product names the same client. Its posterior equals this one at a temperature
    divided by the number of rounds.

    Source: SIA, section 5 (several rounds, left for future work).
    """

    over_rounds = "mean"
    needs = Sees.UPLOADS | Sees.ROUNDS

    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        return m.values.double().nanmean(0)


@dataclass(frozen=True)
class SourceByProduct(Bayes):
    """The client that is likeliest by the product of the rounds' posteriors.

    Each round's losses are seen against those of the clients that took part in it, so that a
    client is not blamed for having been asked in early rounds only, when all losses were high.

    Source: SIA, section 5 (several rounds, left for future work).
    """

    over_rounds = "product"
    needs = Sees.UPLOADS | Sees.ROUNDS

    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        values = m.values.double()
        took_part = ~torch.isnan(values).any(2)
        alone = values.masked_fill(torch.isnan(values), -torch.inf).log_softmax(1)
        # Against chance among those who took part: a round of two says less than one of ten.
        gain = alone + took_part.sum(1).log()[:, None, None]
        total = gain.where(took_part[:, :, None], 0.0).sum(0)
        total[~took_part.any(0)] = torch.nan
        return total


@dataclass(frozen=True, kw_only=True)
class SourceByTail(Bayes):
    """The client for which a membership rule finds the sample least like a non-member's.

    The evidence for a client is minus the logarithm of the rule's tail probability with that
    client as the target: the probability that a client without the sample deviates as much.

    Attributes:
        rule: Scores are minus such a probability, as FedMIA's are.

    Source: FedMIA, Eqs. (9)-(12), read as a source posterior.
    """

    rule: Rule

    over_clients = "one-sided likelihood, then arg max"
    over_rounds = "mean"
    needs = Sees.UPLOADS | Sees.ROUNDS

    def evidence(self, m: Measurements) -> Float[Tensor, "clients samples"]:
        """See :class:`Bayes`.

        Raises:
            NotVisible: Too few other clients were measured to judge one of the clients.
        """
        evidence = torch.full(m.values.shape[1:], torch.nan, dtype=torch.float64)
        for row, client in enumerate(m.clients):
            if not bool(torch.isnan(m.of(client)).any(1).all()):
                # The smallest positive number, where the tail is 0 in 64 bits.
                least = torch.finfo(torch.float64).tiny
                evidence[row] = -(-self._scores(m, client)).clamp_min(least).log()
        return evidence

    def _scores(self, m: Measurements, client: ClientId) -> Float[Tensor, " samples"]:
        try:
            return self.rule(m, target=client)
        except NotVisible as refusal:
            raise NotVisible(
                f"client {client} cannot be judged beside others: it needs two of them that were "
                "sent the same model in a measured round; use sia, sia-mean or sia-product"
            ) from refusal
