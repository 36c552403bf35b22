"""The state of a study while it is running, from the files that it has written so far."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import AUC
from fedaudit.watch.folder import AuditFolder, state_of
from fedaudit.watch.state import Participation, WatchState
from tests.watch.small import (
    OLD,
    ROUNDS,
    SECONDS,
    SEEDS,
    at_round,
    change_study,
    finished,
    record,
    round_file,
    set_times,
)


def state_at(folder: Path, after: float = 1.0) -> WatchState:
    """The state some seconds after the last change."""
    latest = max(path.lstat().st_mtime for path in folder.rglob("*"))
    return AuditFolder(folder, clock=lambda: latest + after).state()


def aucs_of_record(seed: int) -> dict[str, float]:
    """Mean over audited clients of each AUC against held-out samples."""
    found: dict[str, list[float]] = {}
    for figure in record().findings:
        if (figure.metric, figure.contrast, figure.seed) == (AUC, "unseen", seed):
            assert figure.value is not None
            if figure.target is not None:
                found.setdefault(figure.attack, []).append(figure.value)
    return {attack: sum(values) / len(values) for attack, values in found.items()}


def test_after_the_last_round_figures_are_those_of_the_record() -> None:
    state = state_of(finished())
    assert state.phase == "finished"
    assert state.problems == ()
    assert [run.done for run in state.runs] == [ROUNDS] * len(SEEDS)
    for run, seed in zip(state.runs, SEEDS, strict=True):
        last = run.estimates[-1]
        assert {a.attack: a.value for a in last.aucs} == pytest.approx(aucs_of_record(seed))
        assert [figures.round for figures in run.estimates] == [1, 2, 3, 4]


def test_a_finished_study_has_the_verdict_of_its_report() -> None:
    from fedaudit.report.text.verdict import summarise_verdict

    state = state_of(finished())
    assert state.result is not None
    assert state.result.status == summarise_verdict(record()).badge


def test_figures_of_a_round_use_no_later_round(tmp_path: Path) -> None:
    earlier = state_at(at_round(tmp_path / "small", {1: 2}))
    complete = state_of(finished())
    assert earlier.runs[0].estimates == complete.runs[0].estimates[:2]


def test_a_running_study_has_no_verdict_and_states_the_time_left(tmp_path: Path) -> None:
    state = state_at(at_round(tmp_path / "small", {1: 3}))
    assert state.phase == "training"
    assert state.result is None
    assert not state.has_report
    assert not state.is_silent
    assert state.current == 0
    assert state.seconds_per_round == pytest.approx(SECONDS)
    assert state.seconds_left == pytest.approx(SECONDS * (1 + ROUNDS))


def test_time_left_counts_rounds_between_measured_rounds(tmp_path: Path) -> None:
    folder = at_round(tmp_path / "small", {1: 4})
    for index in (1, 3):
        round_file(folder, index).unlink()
    state = state_at(folder)
    assert state.seconds_per_round == pytest.approx(SECONDS)


def test_the_second_seed_is_shown_while_it_is_trained(tmp_path: Path) -> None:
    state = state_at(at_round(tmp_path / "small", {1: ROUNDS, 2: 1}))
    assert state.current == 1
    assert state.seconds_left == pytest.approx(SECONDS * (ROUNDS - 1))


def test_a_seed_that_has_just_begun_has_the_speed_of_the_seed_before(tmp_path: Path) -> None:
    folder = at_round(tmp_path / "small", {1: ROUNDS, 2: 0})
    begun = OLD + SECONDS * ROUNDS + 1
    os.utime(folder / "seed-2" / "audit.safetensors", (begun, begun))
    state = state_at(folder)
    assert state.current == 1
    assert state.estimates is None
    assert state.seconds_per_round == pytest.approx(SECONDS)
    assert state.seconds_left == pytest.approx(SECONDS * ROUNDS)


def test_attacks_that_need_more_rounds_appear_later(tmp_path: Path) -> None:
    state = state_at(at_round(tmp_path / "small", {1: 2}))
    first, second = ({auc.attack for auc in row.aucs} for row in state.runs[0].estimates)
    assert second - first == {"fta-l"}, "a slope needs two rounds"


def test_before_the_first_round_the_study_is_waiting(tmp_path: Path) -> None:
    state = state_at(at_round(tmp_path / "small", {}))
    assert state.phase == "waiting"
    assert state.estimates is None
    assert state.seconds_left is None


def test_between_training_and_record_attacks_are_evaluated(tmp_path: Path) -> None:
    state = state_at(at_round(tmp_path / "small", dict.fromkeys(SEEDS, ROUNDS)), after=7200)
    assert state.phase == "evaluating"
    assert state.result is None
    assert not state.is_silent, "no file is written meanwhile"


def test_a_study_without_news_for_long_is_silent(tmp_path: Path) -> None:
    folder = at_round(tmp_path / "small", {1: 3})
    assert not state_at(folder, after=5 * SECONDS).is_silent
    assert state_at(folder, after=20 * SECONDS).is_silent


def test_a_study_with_an_added_seed_is_running_again(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(finished(), folder)
    change_study(folder, seeds=[*SEEDS, 3])
    state = state_at(folder)
    assert state.phase == "training"
    assert state.result is None, "the verdict is of fewer seeds"
    assert any("earlier result" in note for note in state.notes)


def test_a_study_with_an_added_attack_is_evaluated_again(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(finished(), folder)
    change_study(folder, attacks={"loss-series": {}, "fedmia-1": {}, "fta-l": {}, "sia": {}})
    assert state_at(folder).phase == "evaluating"


def test_federations_of_the_adversary_count_for_the_time_left(tmp_path: Path) -> None:
    folder = at_round(tmp_path / "small", dict.fromkeys(SEEDS, ROUNDS))
    change_study(folder, attacks={"rmia": {}}, references={"count": 2})
    shutil.copytree(folder / "seed-1", folder / "shadow" / "seed-77")
    set_times(folder)
    state = state_at(folder)
    assert state.phase == "adversary"
    assert [run.done for run in state.additional] == [ROUNDS, 0, 0, 0], "two for each seed"
    assert state.seconds_left == pytest.approx(3 * ROUNDS * SECONDS)


def test_runs_in_a_pool_are_found(tmp_path: Path) -> None:
    folder = at_round(tmp_path / "small", {1: ROUNDS, 2: 1})
    pool = tmp_path / "pool"
    pool.mkdir()
    shutil.copytree(folder / "seed-1", pool / "shadow")
    names = {"1": "../pool/a", "2": "../pool/b", "77": "../pool/shadow"}
    for seed in SEEDS:
        (folder / f"seed-{seed}").rename(tmp_path / "small" / names[str(seed)])
    (folder / "runs.json").write_text(json.dumps(names), encoding="utf-8")
    state = state_at(folder)
    assert [run.done for run in state.runs] == [ROUNDS, 1]
    assert [run.done for run in state.additional] == [ROUNDS]
    shutil.rmtree(pool / "a")
    (problem,) = state_at(folder, after=60).problems
    assert "does not exist" in problem


def test_the_clients_of_the_last_round_are_counted(tmp_path: Path) -> None:
    state = state_at(at_round(tmp_path / "small", {1: 2}))
    assert state.clients == Participation(round=2, n_received=3, expected=3, missing=())


def test_rounds_of_a_study_with_other_clients_are_refused(tmp_path: Path) -> None:
    folder = at_round(tmp_path / "small", {1: 2})
    change_study(folder, partition={"scheme": "iid", "clients": 4, "samples_per_client": 0})
    problems = state_at(folder, after=60).problems
    assert len(problems) == 2
    assert all("belongs to another run" in problem for problem in problems)


@pytest.mark.parametrize("content", [b"", b"half of a file", None])
def test_a_damaged_round_is_named_and_the_others_are_used(
    tmp_path: Path, content: bytes | None
) -> None:
    folder = at_round(tmp_path / "small", {1: 3})
    path = round_file(folder, 2)
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    state = state_at(folder, after=60)
    assert [row.round for row in state.runs[0].estimates] == [1, 3]
    assert len(state.problems) == 1
    assert str(path) in state.problems[0]


def test_a_round_that_is_being_written_is_read_later(tmp_path: Path) -> None:
    folder = at_round(tmp_path / "small", {1: 3})
    path = round_file(folder, 3)
    whole = path.read_bytes()
    now = OLD + 3 * SECONDS
    watched = AuditFolder(folder, clock=lambda: now + 1)
    path.write_bytes(whole[:1000])
    os.utime(path, (now, now))
    state = watched.state()
    assert state.problems == ()
    assert [row.round for row in state.runs[0].estimates] == [1, 2]
    path.write_bytes(whole)
    os.utime(path, (now + 1, now + 1))
    assert [row.round for row in watched.state().runs[0].estimates] == [1, 2, 3]


def test_a_repaired_round_is_read_again(tmp_path: Path) -> None:
    folder = at_round(tmp_path / "small", {1: 3})
    path, watched = round_file(folder, 1), AuditFolder(folder, clock=lambda: OLD + 10**6)
    whole = path.read_bytes()
    path.write_bytes(b"damaged")
    os.utime(path, (OLD, OLD))
    for _ in range(2):
        assert len(watched.state().problems) == 1
    path.write_bytes(whole)
    os.utime(path, (OLD + 1, OLD + 1))
    state = watched.state()
    assert state.problems == ()
    assert state.runs[0].estimates == state_of(finished()).runs[0].estimates[:3]


def test_a_round_of_another_seed_is_refused(tmp_path: Path) -> None:
    folder = at_round(tmp_path / "small", {1: 2})
    shutil.copy(round_file(finished(), 3, seed=2), round_file(folder, 3))
    (problem,) = state_at(folder, after=60).problems
    assert "belongs to another run" in problem


def test_a_damaged_record_is_named_and_gives_no_verdict(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(finished(), folder)
    (folder / "record.json").write_text("{", encoding="utf-8")
    state = state_at(folder, after=60)
    assert state.result is None
    assert "record.json" in state.problems[0]


def test_figures_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = at_round(tmp_path / "small", {1: 3})
    watched = AuditFolder(folder)
    first = watched.state()

    def no_reading(path: Path, index: int) -> None:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr("fedaudit.watch.reading.read_round", no_reading)
    assert watched.state() == first


def test_watching_changes_no_file(tmp_path: Path) -> None:
    folder = at_round(tmp_path / "small", {1: 3})

    def files() -> Iterator[tuple[Path, int, int]]:
        for path in sorted(folder.rglob("*")):
            yield path, path.lstat().st_mtime_ns, path.lstat().st_size

    before = [*files()]
    state_of(folder)
    assert [*files()] == before


def test_custom_code_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = at_round(tmp_path / "small", {1: 2})
    attack = "hostile_code:attack"
    (tmp_path / "hostile_code.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    change_study(folder, attacks={"loss-series": {}, attack: {}}, code={})
    monkeypatch.chdir(tmp_path)
    state = state_at(folder, after=60)
    assert state.runs[0].done == 2


def test_redrawn_figures_are_not_shown(tmp_path: Path) -> None:
    folder = at_round(tmp_path / "small", {1: 2})
    change_study(folder, figures={"evaluation": "redraw"})
    state = state_at(folder)
    assert state.estimates is None
    assert any("nothing about leakage" in note for note in state.notes)


def test_a_folder_without_an_audit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no study\.json, recording\.json or record\.json"):
        state_of(tmp_path)
    with pytest.raises(BadInput, match="does not exist"):
        state_of(tmp_path / "missing")


def test_a_record_alone_is_finished(tmp_path: Path) -> None:
    shutil.copy(finished() / "record.json", tmp_path)
    state = state_of(tmp_path)
    assert (state.kind, state.phase) == ("result", "finished")
    assert state.result is not None
