"""The page on an audit: its words before the end, and names that strangers chose."""

import json
import re
from pathlib import Path
from typing import get_args

from fedaudit.core.files import RECORDING_FILE
from fedaudit.report.evidence import Status
from fedaudit.report.page import page_css
from fedaudit.results.ladder import Auc, read_ladder
from fedaudit.watch.folder import state_of
from fedaudit.watch.index_page import index_page
from fedaudit.watch.ladder import place_on_leak_ladder
from fedaudit.watch.page import state_event, watch_page
from fedaudit.watch.state import Participation, RoundEstimates, RunState, WatchState
from fedaudit.watch.text import PROVISIONAL, View, view_of
from tests.report.records import HOSTILE, HOSTILE_LINK, HOSTILE_TAG
from tests.watch.small import at_round, finished, study
from tests.watch.test_recording import record_rounds

BAD = HOSTILE + HOSTILE_TAG + HOSTILE_LINK + "\x1b[2J\u202e\n\nevent: state\ndata: {}"


def test_a_running_study_is_shown_as_provisional(tmp_path: Path) -> None:
    page = watch_page(view_of(state_of(at_round(tmp_path / "small", {1: 3})))).html
    assert f"{PROVISIONAL} The result follows at the end." in page
    assert "Round 3 of 4, seed 1 (1 of 2)" in page
    assert "left" in page


def test_pages_have_the_whole_style_sheet(tmp_path: Path) -> None:
    running = watch_page(view_of(state_of(at_round(tmp_path / "small", {1: 3})))).html
    for page in (running, index_page(tmp_path, [], links=[]).html):
        assert page_css() in page


def test_no_verdict_is_shown_before_the_end(tmp_path: Path) -> None:
    text = state_event(view_of(state_of(at_round(tmp_path / "small", {1: 4, 2: 4})))).lower()
    for status in get_args(Status):
        assert status not in text
    assert "safe" not in text


def test_a_finished_study_shows_its_verdict_and_its_report() -> None:
    state = state_of(finished())
    page = watch_page(view_of(state)).html
    assert state.result is not None
    assert f">{state.result.status}<" in page
    assert 'href="report"' in page
    assert PROVISIONAL not in page


def test_an_attack_at_chance_level_is_no_result() -> None:
    run = RunState("seed 1", 1, 5, (RoundEstimates(1, state_of(finished()).estimates.aucs),))  # type: ignore[union-attr]
    lowered = [auc.__class__(0.5, 0.4, 0.6, auc.attack) for auc in run.estimates[0].aucs]
    run = run._replace(estimates=(RoundEstimates(1, tuple(lowered)),))
    view = view_of(WatchState("small", "study", "training", runs=(run,), current=0))
    assert "That is no result yet." in view.detail
    assert view.tiles[0].tone == ""


def test_a_leak_is_stated_only_after_a_correction_for_the_number_of_attacks() -> None:
    def view(count: int) -> View:
        # The lower limit is 2.3 standard errors below the AUC: p = 0.011 for a single attack.
        aucs = [Auc(0.6, 0.515, 0.68, "loss-series")]
        aucs += [Auc(0.5, 0.41, 0.59, f"attack-{n}") for n in range(1, count)]
        run = RunState("seed 1", 1, 5, (RoundEstimates(1, tuple(aucs)),))
        return view_of(WatchState("small", "study", "training", runs=(run,), current=0))

    assert "this training leaks" in view(1).detail
    assert view(1).tiles[0].tone
    assert "no attack is clearly better than guessing after a correction for 12 attacks" in (
        view(12).detail
    )
    assert view(12).tiles[0].tone == ""


def test_names_of_strangers_are_escaped_everywhere() -> None:
    aucs = state_of(finished()).runs[0].estimates[-1].aucs
    figures = RoundEstimates(1, aucs, ((BAD, aucs[0]), ("other", aucs[1])), 0.3)
    state = WatchState(
        name=BAD,
        kind="recording",
        phase="recording",
        runs=(RunState(BAD, 1, None, (figures,), (BAD,)), RunState("two", 0, None)),
        current=0,
        clients=Participation(1, 1, 2, (BAD,)),
        notes=(BAD,),
        problems=(BAD,),
    )
    view = view_of(state)
    event = state_event(view)
    assert event.count("\n") == 3, "one event"
    html = json.loads(event.splitlines()[1].removeprefix("data: "))["html"]
    for text in (html, re.sub(r"(?s)<script>.*?</script>", "", watch_page(view).html)):
        assert "<script" not in text
        assert "<img" not in text
        assert '<a href="https' not in text
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_a_hostile_client_name_in_a_recording_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    record_rounds(folder, absent=1)
    settings = json.loads((folder / RECORDING_FILE).read_text(encoding="utf-8"))
    settings |= {"names": {"1": BAD[:200]}, "unaudited": {BAD[:300]: BAD}}
    (folder / RECORDING_FILE).write_text(json.dumps(settings), encoding="utf-8")
    state = state_of(folder)
    assert state.problems == ()
    html = state_event(view_of(state))
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script" in html


def test_a_gap_beyond_the_ladder_is_stated() -> None:
    rule = read_ladder().uploads
    inside, outside = (rule.smallest_gap + rule.largest_gap) / 2, 3 * rule.largest_gap
    sentence, expected = place_on_leak_ladder(study(), [RoundEstimates(1, gap=inside)])
    assert expected == rule.range_at(inside)
    assert f"{expected[0]:.2f} to {expected[1]:.2f}" in sentence
    sentence, expected = place_on_leak_ladder(study(), [RoundEstimates(1, gap=outside)])
    assert expected is None
    assert "larger than in all federations of the leak ladder" in sentence
    assert place_on_leak_ladder(study(audit={"view": "final", "samples": 60}), []) == ("", None)
