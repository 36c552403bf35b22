"""Agreement with the accountants of other libraries on ten settings."""

import importlib.util
import warnings
from typing import NamedTuple

import pytest

from fedaudit.plan.values import settings_from
from fedaudit.privacy_budget.losses import Losses
from fedaudit.privacy_budget.setup import PrivacySetup
from tests.privacy_budget.setups import client, setup


class Setting(NamedTuple):
    """Noise multiplier, sampling rate, number of releases and delta."""

    noise: float
    rate: float
    releases: int
    delta: float

    @property
    def epsilon(self) -> float:
        phase = client(noise_multiplier=self.noise, rounds=self.releases)
        if self.rate < 1:
            phase |= {"sampling": "poisson", "rate": self.rate}
        resolved = settings_from(setup(phase, delta=self.delta), PrivacySetup)
        return Losses(resolved, "client").epsilon(self.releases)


SETTINGS = [
    Setting(1.0, 0.01, 1000, 1e-5),
    Setting(0.5, 0.01, 1000, 1e-6),
    Setting(2.0, 0.05, 500, 1e-5),
    Setting(0.7, 0.02, 200, 1e-6),
    Setting(1.1, 0.0042, 14_000, 1e-5),
    Setting(4.0, 0.2, 100, 1e-5),
    Setting(0.8, 0.1, 50, 1e-6),
    Setting(1.2, 120 / 3383, 100, 1e-5),
    Setting(10.0, 1.0, 100, 1e-6),
    Setting(3.0, 1.0, 10, 1e-5),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_dp_accounting_agrees_within_a_thousandth(setting: Setting) -> None:
    dp_accounting = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    event = dp_accounting.GaussianDpEvent(setting.noise)
    if setting.rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(setting.rate, event)
    # Errors of the grid add up over releases. Their default is 1e-4.
    interval = 1e-3 if setting.releases <= 1000 else 1e-4
    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    theirs = accountant.compose(event, setting.releases).get_epsilon(setting.delta)
    assert setting.epsilon == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("setting", SETTINGS)
def test_opacus_agrees_within_one_percent(setting: Setting) -> None:
    if importlib.util.find_spec("opacus") is None:
        pytest.skip("opacus is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant, RDPAccountant

        prv, rdp = PRVAccountant(), RDPAccountant()
        for accountant in (prv, rdp):
            accountant.history = [(setting.noise, setting.rate, setting.releases)]
        # The accountant by privacy random variables returns an upper limit of its error of 0.01.
        upper = prv.get_epsilon(setting.delta)
        renyi = rdp.get_epsilon(setting.delta)
    assert setting.epsilon == pytest.approx(upper, rel=0.01, abs=0.011)
    assert upper < renyi < 1.25 * upper


@pytest.mark.parametrize("setting", SETTINGS)
def test_jax_privacy_agrees_within_a_thousandth(setting: Setting) -> None:
    accounting = pytest.importorskip("jax_privacy.accounting")
    accountant = accounting.DpsgdTrainingAccountant(
        dp_accountant_config=accounting.PldAccountantConfig()
    )
    settings = accounting.DpParams(
        noise_multipliers=setting.noise,
        num_samples=10**6,
        delta=setting.delta,
        batch_size=round(setting.rate * 10**6),
    )
    theirs = accountant.compute_epsilon(setting.releases, settings)
    assert setting.epsilon == pytest.approx(float(theirs), rel=1e-3)
