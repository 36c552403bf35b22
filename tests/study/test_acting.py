"""Effects of defenses and risks, in studies and reports."""

from pathlib import Path

import pytest
import torch

from fedaudit.defenses.clip import ClientDP
from fedaudit.defenses.noise import GradientNoise
from fedaudit.defenses.relaxloss import RelaxLoss
from fedaudit.fl.algorithms.ifca_mir import Preference
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import Defense
from fedaudit.observe.round import Update
from fedaudit.report.first import idle_parts
from fedaudit.report.page import report_html
from fedaudit.results.record import Record
from fedaudit.study.running.run import run_study
from tests.defenses.turns import context
from tests.estimates import changed
from tests.report.records import record, used
from tests.report.seen import printed, words
from tests.study.studies import quick_study

NEVER = 1e-9
"""A target loss that no training reaches."""


def relaxed(target: float, folder: Path) -> Record:
    defense = {"name": "relaxloss", "options": {"target_loss": target}}
    return run_study(quick_study(defense=defense), folder)


@pytest.mark.slow
def test_a_relaxloss_that_never_acts_is_reported(
    tmp_path: Path,
) -> None:
    idle = relaxed(NEVER, tmp_path / "idle")
    assert {row.rounds_acted for row in idle.usage} == {0}
    line = "changed nothing: its condition was met in no round"
    assert any(line in sentence for sentence in idle_parts(idle))
    assert line in " ".join(printed(idle).split())
    assert line in words(report_html(idle))
    plain = run_study(quick_study(), tmp_path / "plain")
    figures = [
        [
            (estimate.attack, estimate.value)
            for estimate in record.findings
            if estimate.metric == "auc"
        ]
        for record in (idle, plain)
    ]
    assert figures[0] == figures[1]


def test_a_relaxloss_that_acted_has_its_rounds_counted_and_no_note(tmp_path: Path) -> None:
    acted = relaxed(50.0, tmp_path)
    rounds = {len([many for many in row.distinct if many]) for row in acted.usage}
    assert {row.rounds_acted for row in acted.usage} == rounds
    assert not idle_parts(acted)


def row(acted: int | None, client: int = 0, by_risk: int | None = None) -> object:
    row_of_usage = used(client, defense="relaxloss", defended=True)
    return changed(row_of_usage, rounds_acted=acted, rounds_decided_by_risk=by_risk)


@pytest.mark.parametrize(
    ("counts", "idle"),
    [((0, 0), True), ((0, 3), False), ((None, None), False), ((0, None), False), ((), False)],
)
def test_a_defense_is_idle_only_if_it_acts_at_no_client(
    counts: tuple[int | None, ...], idle: bool
) -> None:
    rows = [row(count, client) for client, count in enumerate(counts)]
    assert bool(idle_parts(changed(record(details=False), usage=rows))) is idle


def test_risks_that_changed_no_choice_are_reported() -> None:
    none = changed(record(details=False), usage=[row(None, 0, 0), row(None, 1, 0)])
    (line,) = idle_parts(none)
    assert "risks changed no client's choice" in line
    some = changed(record(details=False), usage=[row(None, 0, 0), row(None, 1, 2)])
    assert not idle_parts(some)


def test_a_clip_that_shortens_nothing_did_not_act_and_noise_always_does() -> None:
    upload = Update({"w": torch.ones(4)}, {}, samples=1)
    for clip, acted in ((100.0, [0]), (0.1, [1])):
        upload_context = context()
        ClientDP(clip, 0.0).upload(upload, upload_context)
        assert upload_context.facts["acted"].tolist() == acted
    upload_context = context()
    ClientDP(1.0, 1.0).upload(upload, upload_context)
    assert "acted" not in upload_context.facts


def test_a_chain_acts_always_if_one_of_its_parts_does() -> None:
    assert not RelaxLoss(1.0).acts_unconditionally
    assert not Chain((RelaxLoss(1.0), ClientDP(1.0, 0.0))).acts_unconditionally
    assert Chain((RelaxLoss(1.0), ClientDP(1.0, 1.0))).acts_unconditionally
    assert GradientNoise(0.1).acts_unconditionally
    assert Defense().acts_unconditionally


@pytest.mark.parametrize("way", ["fixed", "threshold", "hard"])
def test_equal_risks_change_no_choice_and_one_great_risk_does(way: str) -> None:
    preference = Preference(way)  # type: ignore[arg-type]
    loss, bonus = torch.tensor([0.5, 0.6]), torch.zeros(2)
    without = preference.choose_without_risk(loss, 0.65, bonus)
    assert without == 0
    assert preference.choose(loss, torch.tensor([0.5, 0.5]), 0.65, bonus) == without
    assert preference.choose(loss, torch.tensor([0.95, 0.5]), 0.65, bonus) != without
