"""Records with few estimates and policies for tests of the gate."""

from collections.abc import Sequence

import numpy as np

from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.policy import Policy, policy_from
from fedaudit.gate.sample_size import RequiredSamples
from fedaudit.gate.verdict import Check, FigureCheck, Verdict
from fedaudit.metrics import tpr_limits
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import AttackRow, ControlResult, Record
from tests.estimates import estimate
from tests.report.records import record

KINDS = ("permuted members", "untrained model", "blind classifier", "planted leak")

POLICY = """
name = "tests"
[membership]
auc = 0.6
contrasts = ["unseen"]
"""


def policy(text: str = POLICY) -> Policy:
    return policy_from(text)


def verdict(record: Record, text: str = POLICY) -> Verdict:
    return evaluate_policy(record, policy(text))


def outcome(record: Record, text: str = POLICY) -> Outcome:
    return verdict(record, text).outcome


def worst_of(check: Check) -> FigureCheck:
    """The figure that decides a check."""
    assert check.worst is not None
    return check.worst


def needed_by(check: Check) -> RequiredSamples:
    """What would settle the figure that decides a check."""
    required = worst_of(check).more
    assert required is not None
    return required


def auc(least: float, largest: float, **changes: object) -> Estimate:
    """An AUC of one attack on client 0 in seed 1 against unseen samples, in the middle."""
    settings: dict[str, object] = {
        "attack": "fedmia-2",
        "contrast": "unseen",
        "target": 0,
        "seed": 1,
        "metric": "auc",
        "value": (least + largest) / 2,
        "low": least,
        "high": largest,
        "method": "DeLong 95%",
        "n_members": 500,
        "n_nonmembers": 500,
        "significant": least > 0.5,
        **changes,
    }
    return estimate(settings)


def tpr(hits: int, members: int = 500, nonmembers: int = 0, **changes: object) -> Estimate:
    """A rate at 1%, by default of as many non-members; members lie above or below them all."""
    others = nonmembers or members
    scores = np.concatenate([np.full(hits, 2.0), np.full(members - hits, -1.0)])
    scores = np.concatenate([scores, np.linspace(0, 1, others)])
    limits = tpr_limits(scores, np.arange(members + others) < members, 0.01)
    settings = {"metric": "tpr@0.01", "value": hits / members, "high": limits.high}
    settings["low"] = None if limits.needs else limits.low
    settings |= {"n_members": members, "n_nonmembers": others, "method": limits.method}
    return auc(0.0, 1.0, **{**settings, "significant": True, **changes})


def bound(value: float, **changes: object) -> Estimate:
    """A lower bound on epsilon."""
    method = "one run 99.5%, delta 0; error shared by 10 bounds"
    settings = {"metric": "epsilon", "value": value, "high": None, "method": method, "ceiling": 3.4}
    return auc(value, value, **{**settings, "significant": None, **changes})


def control(kind: str, passed: bool | None = True, **changes: object) -> ControlResult:
    settings = {"control": kind, "expected": "soundness", "value": 0.5, "passed": passed, **changes}
    return ControlResult.model_validate(settings)


def record_of(*figures: Estimate, groups: Sequence[Estimate] = (), **changes: object) -> Record:
    """A record of these figures whose controls all hold."""
    names = dict.fromkeys(figure.attack for figure in figures if figure.attack)
    seeds: Sequence[int] = sorted({f.seed for f in figures if f.seed is not None}) or [1]
    base = record(details=False, defenses=(("none", 1.0),), strengths=(1.0,), name="of-tests")
    update: dict[str, object] = {
        "estimates": [*figures, *groups, *base.where(topic="utility")],
        "seeds": list(seeds),
        "attacks": [ran(name) for name in names],
        "controls": [control(kind) for kind in KINDS],
        **changes,
    }
    return base.model_copy(update=update)


def ran(name: str, status: str = "run", note: str = "") -> AttackRow:
    settings: dict[str, object] = {
        "name": name,
        "signals": [],
        "over_clients": "",
        "over_rounds": "",
    }
    return AttackRow.model_validate(
        {**settings, "needs": [], "source": "", "status": status, "note": note}
    )
