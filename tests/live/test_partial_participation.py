"""Recordings with partial participation."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import DEFAULT_POLICY, policy_from
from fedaudit.live.attack import attack_recording
from fedaudit.live.audited import Split, fair_split
from fedaudit.live.record import record
from fedaudit.report.deciding.membership import pooled_over
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.record import Record
from tests.live.federation import POLICY, data, network, rounds
from tests.programs import exit_code
from tests.study.studies import SMALL

pytestmark = pytest.mark.filterwarnings("ignore:fedaudit")
FIGURES: Mapping[str, object] = {**SMALL["figures"], "blind_classifier": False}
ATTACKS = ("blackbox-loss", "avg-cosine", "fedmia-1", "fta-l", "loss-series", "sia")


@cache
def split(clients: int, *, with_names: bool = False) -> Split:
    rng = np.random.default_rng(1)
    names = [f"site-{c}" if with_names else c for c in range(clients)]
    parts: dict[Any, Any] = {
        c: (rng.random((60, 4), dtype=np.float32), rng.integers(0, 2, 60)) for c in names
    }
    return fair_split(parts, audited=40)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def record_rounds(
    folder: Path,
    cohorts: list[list[Any]],
    *,
    clients: int,
    with_names: bool = False,
    **settings: Any,
) -> Path:
    """A recording of rounds in which these clients took part; training is stood in for by noise."""
    audit = split(clients, with_names=with_names).audit
    how = {"attacks": ATTACKS, "strict": True, "log": lambda text: None, **settings}
    with record(folder, linear, audit, **how) as recorder:
        model = linear()
        for index, cohort in enumerate(cohorts, 1):
            torch.manual_seed(index)
            uploads: dict[Any, Any] = {
                c: {n: v + 0.1 * torch.randn_like(v) for n, v in model.state_dict().items()}
                for c in cohort
            }
            recorder.round(index, sent=model, uploads=uploads)
    return folder


def attacked(folder: Path, **how: Any) -> Record:
    return attack_recording(folder, (), folder / "attacked", figures=FIGURES, **how)


def evidence(record: Record) -> dict[str, str]:
    """Demands on the evidence that are not met, with their reason."""
    verdict = evaluate_policy(record, policy_from(POLICY))
    return {check.name: check.reason for check in verdict.checks if check.outcome.value != "pass"}


@pytest.mark.slow
def test_recordings_with_partial_participation_can_be_attacked(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    cohorts = [sorted(rng.choice(20, 5, replace=False).tolist()) for _ in range(6)]
    present = sorted({c for cohort in cohorts for c in cohort})
    absent = sorted({*range(20)} - {*present})
    assert absent, "the case at issue"
    record = attacked(record_rounds(tmp_path, cohorts, clients=20))
    assert sorted({f.target for f in record.findings if f.target is not None}) == present
    assert record.coverage is not None
    assert record.coverage.is_whole
    assert record.coverage.never_measured == absent
    (sentence,) = [line for line in record.untested if "never took part" in line]
    assert sentence.startswith(f"Clients {', '.join(map(str, absent))}: never")
    assert "no failed attack" not in evidence(record)


def test_a_client_with_one_round_has_no_slope_estimates(tmp_path: Path) -> None:
    record = attacked(record_rounds(tmp_path, [[0, 1], [0, 1], [0, 1, 2], [0, 1]], clients=3))
    attacked_targets = {(f.attack, f.target) for f in record.findings}
    assert ("fta-l", 0) in attacked_targets
    assert ("fta-l", 2) not in attacked_targets
    assert ("blackbox-loss", 2) in attacked_targets
    (row,) = [row for row in record.attacks if row.name == "fta-l"]
    assert row.uncovered.startswith("client 2: a slope needs at least 2 measured rounds")
    assert any(row.uncovered in line for line in record.untested)
    assert "no failed attack" not in evidence(record)


@pytest.mark.slow
@pytest.mark.parametrize("with_names", [True, False])
def test_the_default_gate_lists_clients_with_one_round(with_names: bool, tmp_path: Path) -> None:
    a, b, c = (f"site-{n}" if with_names else n for n in range(3))
    cohorts = [[a, b], [a, b], [a, b, c], [a, b]]
    record = attacked(record_rounds(tmp_path, cohorts, clients=3, with_names=with_names))
    verdict = evaluate_policy(record, policy_from(DEFAULT_POLICY))
    open_results = [result for check in verdict.checks for result in check.open]
    last = "site-2" if with_names else "client 2"
    assert f"fta-l on {last} in seed 1" not in [result.what for result in open_results]
    (line,) = [line for line in verdict.unjudged if "a slope needs" in line]
    assert line.startswith(f"Loss trend (fta-l) on some clients: {last}: ")


def test_the_default_gate_lists_clients_without_rounds(
    tmp_path: Path,
) -> None:
    record, last = attacked(record_rounds(tmp_path, [[0, 1], [0, 1]], clients=3)), "client 2"
    verdict = evaluate_policy(record, policy_from(DEFAULT_POLICY))
    assert not [
        result.what for check in verdict.checks for result in check.open if last in result.what
    ]
    assert f"{last}: never took part in a measured round" in verdict.unjudged
    strict = DEFAULT_POLICY.replace('clients = "pooled"', 'clients = "each"')
    verdict = evaluate_policy(record, policy_from(strict))
    reasons = {
        result.reason for check in verdict.checks for result in check.open if last in result.what
    }
    assert reasons == {"never took part in a measured round"}


def test_a_per_client_policy_states_why_an_estimate_is_missing(tmp_path: Path) -> None:
    record = attacked(record_rounds(tmp_path, [[0, 1], [0, 1], [0, 1, 2]], clients=3))
    verdict = evaluate_policy(record, policy_from(POLICY))
    (check,) = [check for check in verdict.checks if check.metric == "auc"]
    (missing,) = [result for result in check.open if "(fta-l) on client 2" in result.what]
    assert "a slope needs at least 2 measured rounds" in missing.reason


def test_an_attack_that_no_client_allows_is_skipped(tmp_path: Path) -> None:
    record = attacked(record_rounds(tmp_path, [[0], [1], [2]], clients=3))
    assert not [f for f in record.findings if f.attack == "fta-l"]
    assert "no failed attack" in evidence(record)


@pytest.mark.parametrize("clients", [2, 3])
def test_the_tail_rule_is_refused_only_if_the_federation_has_two_clients(
    clients: int, tmp_path: Path
) -> None:
    folder = record_rounds(
        tmp_path, [[0, 1]] * 2 + [[2]] * (clients - 2), clients=clients, attacks=("sia-likelihood",)
    )
    record = attacked(folder)
    (row,) = record.attacks
    assert row.status == ("refused" if clients == 2 else "failed")
    assert ("no failed attack" in evidence(record)) == (clients == 3)


@pytest.mark.slow
@pytest.mark.parametrize("with_names", [True, False])
def test_audited_clients_are_chosen_by_name_or_number(with_names: bool, tmp_path: Path) -> None:
    a, b, c = (f"site-{n}" if with_names else n for n in range(3))
    folder = record_rounds(tmp_path, [[a, b, c]] * 3, clients=3, with_names=with_names)
    record = attack_recording(folder, (), tmp_path / "two", figures=FIGURES, targets=[c, a])
    targets = {f.target for f in record.findings if f.target is not None}
    assert len(targets) == 2
    assert exit_code("attack", folder, "blackbox-loss", "--targets", f"{a}, {b}") == 0
    assert exit_code("attack", folder, "blackbox-loss", "--targets", "nobody") == 2
    with pytest.raises(BadInput, match="client 'nobody' is not audited; audited are"):
        attack_recording(folder, (), tmp_path / "x", targets=["nobody"])


@pytest.mark.slow
def test_target_names_with_commas_are_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["Smith, Jones", "b", 'the "north"']
    rng = np.random.default_rng(1)
    parts: dict[Any, Any] = {
        name: (rng.random((60, 4), dtype=np.float32), rng.integers(0, 2, 60)) for name in names
    }
    audit = fair_split(parts, audited=40).audit
    with record(tmp_path / "r", linear, audit, attacks=ATTACKS, log=lambda text: None) as recorder:
        recorder.round(1, sent=linear(), uploads=dict.fromkeys(names, linear()))
    for i, targets in enumerate(['"Smith, Jones",b', 'b, "Smith, Jones",', 'the "north"']):
        out = tmp_path / f"out-{i}"
        how = ("--targets", targets, "--out", out)
        assert exit_code("attack", tmp_path / "r", ATTACKS[0], *how) == 0
        clients = json.loads((out / "record.json").read_text())["coverage"]["clients"]
        assert len(clients) == (1 if i == 2 else 2)
    for empty_targets in ("", " ", ",", '""'):
        assert exit_code("attack", tmp_path / "r", ATTACKS[0], "--targets", empty_targets) == 2
        assert "names no client; give names or numbers" in capsys.readouterr().err
    assert exit_code("attack", tmp_path / "r", ATTACKS[0], "--targets", "north\nsouth") == 2
    assert "give one line with commas between the entries" in capsys.readouterr().err
    assert not (tmp_path / "r" / "attacked").exists()


def test_report_and_gate_agree_on_pooled_clients(tmp_path: Path) -> None:
    record = attacked(record_rounds(tmp_path, [[0, 1], [0, 1], [0, 1], [0, 1]], clients=3))
    assert pooled_over(record)("blackbox-loss") == "over 2 of 3 audited clients"
    verdict = evaluate_policy(record, policy_from(DEFAULT_POLICY))
    results = [
        result for check in verdict.checks for result in (*check.open, check.worst) if result
    ]
    descriptions = {result.what for result in results}
    assert any("over 2 of 3 audited clients" in description for description in descriptions)
    assert not any("over all" in description for description in descriptions)


def test_a_recording_without_audited_uploads_raises(tmp_path: Path) -> None:
    folder = record_rounds(tmp_path, [[7, 8]] * 2, clients=3, strict=False)
    with pytest.raises(BadInput, match=r"audited client \(0, 1, 2\) was measured, only of 7, 8"):
        attacked(folder)


@pytest.mark.slow
def test_a_recording_of_one_client_has_membership_estimates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record_rounds(tmp_path, [[0]] * 4, clients=1)
    record = attacked(folder)
    assert {f.attack for f in record.findings} >= {"blackbox-loss", "loss-series"}
    (row,) = [row for row in record.attacks if row.name == "sia"]
    assert row.status == "refused"
    assert "at least two clients" in row.note
    assert "no failed attack" not in evidence(record)
    assert exit_code("attack", folder, "--out", tmp_path / "out") == 0
    with pytest.raises(BadInput, match=r"'sia' .*at least two clients"):
        attack_recording(folder, ("sia",), tmp_path / "named", figures=FIGURES)


def test_only_participating_audited_clients_have_membership_estimates(tmp_path: Path) -> None:
    record = attacked(record_rounds(tmp_path, [[0]] * 4, clients=2))
    assert {f.target for f in record.findings if f.target is not None} == {0}
    (row,) = [row for row in record.attacks if row.name == "sia"]
    assert row.status == "refused"


def test_unaudited_clients_prevent_only_source_inference(tmp_path: Path) -> None:
    record = attacked(record_rounds(tmp_path, [[0, 1, 2, 3]] * 3, clients=3))
    (row,) = [row for row in record.attacks if row.name == "sia"]
    assert row.status == "refused"
    assert "client 3 has no audited sample" in row.note
    assert "no failed attack" not in evidence(record)


def test_a_client_that_leaves_is_measured_in_its_earlier_rounds(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    with record(folder, network, data().split.audit, attacks=("blackbox-loss",)) as recorder:
        for live_round in rounds():
            uploads = {
                c: u for c, u in live_round.uploads.items() if c < 2 or live_round.number < 3
            }
            recorder.round(live_round.number, sent=live_round.sent, uploads=uploads)
    result = attacked(folder)
    assert result.coverage is not None
    assert [c.last for c in result.coverage.clients] == [4, 4, 2]
    assert result.coverage.is_whole


@pytest.mark.slow
def test_omitted_audited_clients_are_listed_and_no_gate_passes(tmp_path: Path) -> None:
    folder = record_rounds(tmp_path, [[0, 1, 2]] * 2, clients=3)
    record = attack_recording(folder, (), tmp_path / "one", figures=FIGURES, targets=["client 1"])
    assert record.coverage is not None
    assert record.coverage.unattacked == [0, 2]
    assert "Not attacked, by choice: clients 0 and 2" in summarise_verdict(record).headline
    assert "clients 0 and 2 were not attacked" in evidence(record)["all planned measurements"]
    policy = policy_from(POLICY.replace("auc = 1.0", "auc = 1.0\ntargets = [1]"))
    demands = {check.name: check.outcome.value for check in evaluate_policy(record, policy).checks}
    assert demands["all planned measurements"] == "pass"
    assert "all planned measurements" not in evidence(attacked(folder))
