"""Comparison of a record with that of the last release."""

import json
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from fedaudit.core.errors import BadInput
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.verdict import Check, Verdict
from fedaudit.metrics import auc_interval
from fedaudit.pack.packing import write_pack
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record, ViewRow, write_record
from tests.gate.parts import auc, control, policy, record_of, tpr, worst_of
from tests.programs import exit_code

LOOSE = """
name = "tests"
[membership]
auc = 1.0
contrasts = ["unseen"]
"""


def compared(new: Record, old: Record, rules: str = "") -> Verdict:
    return evaluate_policy(new, policy(f"{LOOSE}{rules}"), old)


def only(verdict: Verdict) -> Check:
    (check,) = [check for check in verdict.checks if check.section == "baseline"]
    return check


def rule(text: str) -> str:
    return f"[baseline]\n{text}\n"


OLD = record_of(auc(0.58, 0.62))


@pytest.mark.parametrize(
    ("new", "rules", "expected"),
    [
        (auc(0.58, 0.62), "", Outcome.PASS),
        (auc(0.38, 0.42), "", Outcome.PASS),
        (auc(0.60, 0.64), "", Outcome.PASS),
        (auc(0.68, 0.72), "", Outcome.FAIL),
        (auc(0.68, 0.72), rule("allow = 0.11\nrelevant = 0.2"), Outcome.PASS),
        (auc(0.48, 0.72), "", Outcome.INCONCLUSIVE),
        (auc(0.48, 0.72), rule("relevant = 0.25"), Outcome.PASS),
        (auc(0.58, 0.62), rule("relevant = 0.03"), Outcome.INCONCLUSIVE),
        # A figure that cannot be compared never passes.
        (auc(0.58, 0.62, method=""), "", Outcome.INCONCLUSIVE),
        (auc(0.58, 0.62, value=None, low=None, high=None), "", Outcome.INCONCLUSIVE),
        (auc(0.58, 0.62, target=1), "", Outcome.INCONCLUSIVE),
    ],
)
def test_only_a_clear_increase_fails(new: Estimate, rules: str, expected: Outcome) -> None:
    assert only(compared(record_of(new), OLD, rules)).outcome is expected


def test_the_verdict_states_increase_limits_and_baseline() -> None:
    verdict = compared(record_of(auc(0.68, 0.72)), OLD)
    worst = worst_of(only(verdict))
    half_width = 0.02 * 2**0.5
    assert (worst.value, worst.low, worst.high) == pytest.approx(
        (0.1, 0.1 - half_width, 0.1 + half_width), abs=1e-3
    )
    assert verdict.outcome is Outcome.FAIL
    assert verdict.baseline == OLD.content_hash
    assert "from 0.600 to 0.700, more than noise" in verdict.reason
    assert "error probability of 5%" in verdict.limits


def test_an_inconclusive_comparison_states_which_audits_would_be_enough() -> None:
    wide, narrow = auc(0.5, 0.7, n_members=100, n_nonmembers=100), rule("relevant = 0.05")
    verdict = compared(record_of(wide), record_of(wide), narrow)
    worst = worst_of(only(verdict))
    assert worst.more is not None
    factor = (200 + worst.more.count) / 200
    low, high = 0.6 - 0.1 / factor**0.5, 0.6 + 0.1 / factor**0.5
    larger = auc(low, high)
    assert only(compared(record_of(larger), record_of(larger), narrow)).outcome is Outcome.PASS
    assert "in both audits" in verdict.reason


def test_increases_are_corrected_for_the_number_of_figures() -> None:
    attacks = [f"attack-{number}" for number in range(20)]
    new = auc(0.62, 0.66, attack=attacks[0])
    alone = compared(record_of(new), record_of(auc(0.58, 0.62, attack=attacks[0])))
    assert only(alone).outcome is Outcome.FAIL
    old = [auc(0.58, 0.62, attack=name) for name in attacks]
    many = compared(record_of(new, *old[1:]), record_of(*old))
    assert only(many).outcome is Outcome.PASS


def test_figures_over_all_clients_are_compared_unless_each_client_is_requested() -> None:
    def audit(leak: float) -> Record:
        clients = [auc(leak - 0.02, leak + 0.02), auc(0.48, 0.52, target=1)]
        return record_of(auc(0.54, 0.56, target=None, within="client"), *clients)

    assert only(compared(audit(0.7), audit(0.6))).outcome is Outcome.PASS
    each = only(compared(audit(0.7), audit(0.6), rule('clients = "each"')))
    assert (each.outcome, each.figures) == (Outcome.FAIL, 2)


def test_means_over_runs_are_compared_and_not_single_runs() -> None:
    def audit(value: float, *seeds: int) -> Record:
        runs = [auc(0.3, 0.9, seed=seed) for seed in seeds]
        mean = auc(value - 0.02, value + 0.02, seed=None)
        return record_of(*runs, mean, seeds=list(seeds))

    check = only(compared(audit(0.7, 3, 4), audit(0.6, 1, 2)))
    assert (check.outcome, check.figures) == (Outcome.FAIL, 1)
    assert "over all seeds" in worst_of(check).what


def test_a_rate_is_compared_on_request() -> None:
    old, new = record_of(tpr(10, members=4000)), record_of(tpr(400, members=4000))
    rules = rule('metrics = ["tpr@0.01"]')
    assert only(compared(new, old, rules)).outcome is Outcome.FAIL
    assert only(compared(old, new, rules)).outcome is Outcome.PASS


def test_a_failed_control_of_either_audit_makes_the_comparison_inconclusive() -> None:
    failed = control("permuted members", False, attack="fedmia-2", target=0, seed=1)
    doubtful = record_of(auc(0.68, 0.72), controls=[failed])
    for new, old in ((doubtful, OLD), (OLD, doubtful)):
        check = only(compared(new, old))
        assert check.outcome is Outcome.INCONCLUSIVE
        assert "permuted" in worst_of(check).reason


def test_a_policy_may_have_only_a_baseline() -> None:
    alone = policy('name = "tests"\n[baseline]\n')
    new, old = (record_of(*two, auc(0.58, 0.62)) for two in ((), ()))
    assert evaluate_policy(new, alone, old).outcome is Outcome.INCONCLUSIVE, "other_client missing"
    with pytest.raises(BadInput, match="has no ceiling for a study"):
        evaluate_policy(new, alone)


def test_a_comparison_that_was_not_made_is_listed() -> None:
    verdict = evaluate_policy(OLD, policy(LOOSE + rule("")))
    assert verdict.outcome is Outcome.PASS
    assert any("no baseline was given" in text for text in verdict.unjudged)


def changed(**changes: object) -> Record:
    return OLD.model_copy(update=changes)


def setting(table: str, **values: object) -> Record:
    return changed(config={**OLD.config, table: values})


@pytest.mark.parametrize(
    ("old", "difference"),
    [
        (setting("audit", fair=123), "audit.samples is"),
        (setting("data", name="mnist"), "data is"),
        (setting("figures", evaluation="redraw"), "figures.evaluation is"),
        (changed(attacks=[]), "attacks.fedmia-2 is"),
        (
            changed(view=ViewRow(name="sum", sees=[], description="")),
            "adversary's view is 'uploads' instead of 'sum'",
        ),
        (
            changed(environment=OLD.environment.model_copy(update={"versions": {"fedaudit": "0"}})),
            "version of fedaudit is",
        ),
        (changed(watched=True), "live recording is False instead of True"),
    ],
)
def test_an_audit_of_another_question_is_refused(old: Record, difference: str) -> None:
    with pytest.raises(BadInput, match="cannot be compared") as error:
        compared(OLD, old)
    assert difference in str(error.value)


def test_model_training_defense_and_seeds_may_differ() -> None:
    old = setting("training", epochs=77, lr=0.5)
    config = {**old.config, "defense": {"name": "clip"}, "model": {"name": "cnn"}, "seeds": [9]}
    assert only(compared(OLD, changed(config=config))).outcome is Outcome.PASS


def audit(shift: float, rng: np.random.Generator, clients: int = 2) -> Record:
    """A record of attacks with simulated scores, whose errors are correlated over attacks."""
    figures, size = [], 100
    is_member = np.arange(2 * size) < size
    for client in range(clients):
        scores = rng.normal(size=2 * size) + shift * is_member
        for attack in ("fedmia-1", "fedmia-2"):
            limited = auc_interval(scores + rng.normal(size=2 * size), is_member)
            limits = {"value": limited.value, "target": client, "attack": attack}
            figures.append(auc(limited.low, limited.high, **limits))
    return record_of(*figures)


def test_equal_audits_are_rarely_stopped_and_leaking_ones_nearly_always() -> None:
    rng, rules = np.random.default_rng(3), rule("relevant = 1.0")

    def stopped(old: float, new: float, pairs: int) -> float:
        verdicts = [compared(audit(new, rng), audit(old, rng), rules) for _ in range(pairs)]
        return fmean(only(verdict).outcome is Outcome.FAIL for verdict in verdicts)

    # Three standard errors of 150 simulated pairs above 5 %.
    assert stopped(0.5, 0.5, pairs=150) <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5
    assert stopped(0.2, 1.5, pairs=40) >= 0.95


def test_the_command_compares_with_a_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "policy.toml"
    rules.write_text(LOOSE)
    for name, figure in (
        ("old", auc(0.58, 0.62)),
        ("same", auc(0.59, 0.63)),
        ("new", auc(0.7, 0.74)),
    ):
        (tmp_path / name).mkdir()
        write_record(record_of(figure), tmp_path / name / "record.json")
    gate = ("gate", "--policy", rules, "--baseline", tmp_path / "old")
    assert exit_code(*gate, tmp_path / "same", "--json", tmp_path / "verdict.json") == 0
    assert json.loads((tmp_path / "verdict.json").read_text())["baseline"]
    assert exit_code(*gate, tmp_path / "new") == 1
    assert "Increase of AUC since the baseline" in capsys.readouterr().out
    assert exit_code(*gate[:3], "--baseline", tmp_path / "no-record", tmp_path / "new") == 2


def test_a_pack_whose_record_was_replaced_is_no_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules, packed = tmp_path / "policy.toml", tmp_path / "pack" / "record.json"
    rules.write_text(LOOSE)
    for name, figure in (("old", auc(0.58, 0.62)), ("new", auc(0.7, 0.74))):
        (tmp_path / name).mkdir()
        write_record(record_of(figure), tmp_path / name / "record.json")
    write_pack(tmp_path / "old" / "record.json", rules, packed.parent)
    gate = ("gate", "--policy", rules, "--baseline", packed.parent, tmp_path / "new")
    assert exit_code(*gate) == 1, "the sound pack shows the increase"
    # The larger AUC would hide the increase. The digest within the record is valid.
    packed.write_bytes((tmp_path / "new" / "record.json").read_bytes())
    assert exit_code(*gate) == 2
    assert "is not the pack that was written: record.json" in capsys.readouterr().err
    packed.with_name("manifest.json").write_text("{}")
    assert exit_code(*gate) == 2
