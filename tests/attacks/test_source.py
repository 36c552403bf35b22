import math
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.base import SourceRule
from fedaudit.attacks.rules import OneSidedLikelihood
from fedaudit.attacks.sia import SourceByProduct, SourceByTail, SourceFromLastRound, SourceOnAverage
from fedaudit.core.errors import BadInput, NotVisible, TooFewPeers
from fedaudit.core.seeds import seeded
from fedaudit.observe.measurements import Measurements

NAN = math.nan
RULES: list[SourceRule] = [
    SourceFromLastRound(),
    SourceOnAverage(),
    SourceByProduct(),
    SourceByTail(rule=OneSidedLikelihood()),
]
names = [type(rule).__name__ for rule in RULES]


def measured(values: Float[Tensor, "rounds clients samples"]) -> Measurements:
    rounds, clients, _ = values.shape
    bases = torch.zeros((rounds, clients), dtype=torch.int64)
    bases[torch.isnan(values).any(2)] = -1
    return Measurements(values, tuple(range(1, rounds + 1)), tuple(range(clients)), bases)


def random(rounds: int = 4, clients: int = 5, samples: int = 30) -> Float[Tensor, "r c s"]:
    return -torch.rand((rounds, clients, samples), generator=seeded(1, "losses")) * 3


def sizes(clients: int = 5) -> dict[int, int]:
    return {client: 10 * (client + 1) for client in range(clients)}


@pytest.mark.parametrize("rule", RULES, ids=names)
def test_a_client_that_memorised_a_sample_is_found(rule: SourceRule) -> None:
    values = random()
    owner = torch.arange(30) % 5
    values[:, owner, torch.arange(30)] = -1e-4
    posterior = rule.posterior(measured(values), sizes=sizes())
    assert posterior.argmax(0).tolist() == owner.tolist()
    torch.testing.assert_close(posterior.sum(0), torch.ones(30).double())


@pytest.mark.parametrize("rule", RULES, ids=names)
def test_identical_clients_have_equal_posteriors(rule: SourceRule) -> None:
    values = random(clients=1).expand(-1, 5, -1).clone()
    posterior = rule.posterior(measured(values), sizes=sizes())
    torch.testing.assert_close(posterior, torch.full((5, 30), 0.2).double())


@pytest.mark.parametrize("rule", RULES, ids=names)
@settings(max_examples=25)
@given(order=st.permutations(range(5)))
def test_the_posterior_is_equivariant_to_client_order(rule: SourceRule, order: list[int]) -> None:
    values = random(samples=4)
    posterior = rule.posterior(measured(values), sizes=sizes())
    renamed = rule.posterior(measured(values[:, order]), sizes=sizes())
    torch.testing.assert_close(renamed, posterior[order])


@pytest.mark.parametrize("rule", RULES, ids=names)
def test_an_unmeasured_client_has_posterior_zero(rule: SourceRule) -> None:
    values = random()
    values[:, 2] = NAN
    posterior = rule.posterior(measured(values), sizes=sizes())
    assert bool((posterior[2] == 0).all())
    torch.testing.assert_close(posterior.sum(0), torch.ones(30).double())


@pytest.mark.parametrize("rule", RULES[:3], ids=names[:3])
def test_posteriors_without_any_measurement_raise(rule: SourceRule) -> None:
    with pytest.raises(NotVisible, match="measure more rounds"):
        rule.posterior(measured(torch.full((2, 3, 1), NAN)), sizes=sizes())


def test_a_single_round_follows_bayes_rule() -> None:
    # Losses log 2 and log 4 are likelihoods 1/2 and 1/4, so the posterior is 2/3 and 1/3.
    m = measured(torch.tensor([[[-math.log(2)], [-math.log(4)]]], dtype=torch.float64))
    posterior = SourceFromLastRound().posterior(m, sizes={0: 1, 1: 2})
    assert posterior[:, 0].tolist() == pytest.approx([2 / 3, 1 / 3])
    # Twice as much data compensates for half the likelihood.
    by_size = SourceFromLastRound(prior="size").posterior(m, sizes={0: 1, 1: 2})
    assert by_size[:, 0].tolist() == pytest.approx([1 / 2, 1 / 2])
    # Temperature 0.5 squares the likelihoods.
    surer = SourceFromLastRound(temperature=0.5).posterior(m, sizes={0: 1, 1: 2})
    assert surer[:, 0].tolist() == pytest.approx([4 / 5, 1 / 5])


@given(
    losses=st.lists(st.floats(0, 20), min_size=2, max_size=6),
    temperature=st.floats(0.1, 10),
    prior=st.sampled_from(["equal", "size"]),
)
def test_the_posterior_is_the_sigmoid_of_the_paper(
    losses: list[float], temperature: float, prior: Literal["equal", "size"]
) -> None:
    count = len(losses)
    weights = [client + 1 if prior == "size" else 1 for client in range(count)]
    shares = [weight / sum(weights) for weight in weights]
    m = measured(-torch.tensor(losses, dtype=torch.float64)[None, :, None])
    rule = SourceFromLastRound(temperature=temperature, prior=prior)
    posterior = rule.posterior(m, sizes=sizes(count))[:, 0].tolist()
    for client in range(count):
        # Eq. (15) with a mean over models not trained on the sample, then Eqs. (17) and (14).
        others = sum(
            shares[other] / (1 - shares[client]) * math.exp(-losses[other] / temperature)
            for other in range(count)
            if other != client
        )
        reference = -temperature * math.log(others)
        gap = (reference - losses[client]) / temperature
        log_odds = gap + math.log(shares[client] / (1 - shares[client]))
        assert posterior[client] == pytest.approx(1 / (1 + math.exp(-log_odds)), rel=1e-6)


def test_the_last_round_is_chosen_per_client() -> None:
    values = torch.tensor([[[-5.0], [-1.0]], [[-2.0], [NAN]]])
    posterior = SourceFromLastRound().posterior(measured(values), sizes={0: 1, 1: 1})
    assert posterior[0, 0] == pytest.approx(math.exp(-2) / (math.exp(-2) + math.exp(-1)))


def test_mean_and_product_agree_with_full_participation() -> None:
    m = measured(random(rounds=3))
    product = SourceByProduct().posterior(m, sizes=sizes())
    mean = SourceOnAverage(temperature=1 / 3).posterior(m, sizes=sizes())
    torch.testing.assert_close(product, mean)


def test_the_product_rule_corrects_for_early_participation() -> None:
    # Client 0 has the smallest loss of an early round, in which all losses are high.
    values = torch.tensor([[[-5.0], [NAN], [-9.0]], [[NAN], [-2.0], [-2.0]]])
    m = measured(values)
    assert SourceByProduct().posterior(m, sizes=sizes(3)).argmax(0).item() == 0
    assert SourceOnAverage().posterior(m, sizes=sizes(3)).argmax(0).item() == 1


def test_the_product_rule_does_not_depend_on_participation_counts() -> None:
    # All losses are equal. Three, two and one clients participate in the three rounds.
    values = torch.full((3, 3, 1), -1.0)
    values[1, 2] = values[2, 1] = values[2, 2] = NAN
    posterior = SourceByProduct().posterior(measured(values), sizes=sizes(3))
    torch.testing.assert_close(posterior, torch.full((3, 1), 1 / 3).double())


def test_the_tail_rule_picks_the_largest_fedmia_score() -> None:
    m = measured(random())
    posterior = SourceByTail(rule=OneSidedLikelihood()).posterior(m, sizes=sizes())
    scores = torch.stack([OneSidedLikelihood()(m, target=client) for client in range(5)])
    assert posterior.argmax(0).tolist() == scores.argmax(0).tolist()


def test_the_tail_rule_raises_for_two_clients_and_suggests_another() -> None:
    with pytest.raises(TooFewPeers, match=r"client 0 cannot be compared .* use sia, sia-mean"):
        SourceByTail(rule=OneSidedLikelihood()).posterior(
            measured(random(clients=2)), sizes=sizes(2)
        )


@pytest.mark.parametrize("temperature", [1e-6, 1.0, 1e6])
def test_the_temperature_does_not_change_the_most_likely_client(temperature: float) -> None:
    m = measured(random())
    most_likely = SourceFromLastRound().posterior(m, sizes=sizes()).argmax(0)
    posterior = SourceFromLastRound(temperature=temperature).posterior(m, sizes=sizes())
    assert torch.equal(posterior.argmax(0), most_likely)
    torch.testing.assert_close(posterior.sum(0), torch.ones(30).double())


@pytest.mark.parametrize("temperature", [0.0, -1.0, 1e-320, 1e18, math.inf, NAN])
def test_an_invalid_temperature_raises(temperature: float) -> None:
    with pytest.raises(BadInput, match="temperature"):
        SourceFromLastRound(temperature=temperature)


def test_an_unknown_prior_raises_and_suggests_the_nearest() -> None:
    with pytest.raises(BadInput, match="size"):
        SourceFromLastRound(prior="sizes")  # type: ignore[arg-type]
