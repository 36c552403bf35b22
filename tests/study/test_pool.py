"""The pool of runs that studies share."""

import json
import math
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.plan.sections import Study
from fedaudit.results.record import Record
from fedaudit.study.running.pool import RUN_FILE, RUNS_FILE, lock_run, run_folder
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study


class CountedEngine:
    """Runs studies in one pool and counts the rounds that are trained."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.rounds = 0

    def __call__(self, name: str, study: Study, **options: object) -> Record:
        self.rounds = 0
        return run_study(
            study,
            self.place / name,
            pool=self.place / "pool",
            progress=self._tick,
            **options,  # type: ignore[arg-type]
        )

    def _tick(self, phase: str, done: int, total: int) -> None:
        self.rounds += done > 0 and phase.endswith("training rounds")

    @property
    def pooled(self) -> int:
        return len(list((self.place / "pool").glob(f"*/{RUN_FILE}")))


@pytest.fixture
def run(tmp_path: Path) -> CountedEngine:
    return CountedEngine(tmp_path)


@pytest.fixture(scope="module")
def pool_with_run(tmp_path_factory: pytest.TempPathFactory) -> CountedEngine:
    """A pool with the run of the usual study."""
    run = CountedEngine(tmp_path_factory.mktemp("pooled"))
    run("a", quick_study())
    return run


def test_two_studies_of_the_same_settings_train_once_and_find_the_same(run: CountedEngine) -> None:
    first = run("a", quick_study(seeds=[1, 2]))
    assert run.rounds == 8
    second = run("b", quick_study(seeds=[2]))
    assert run.rounds == 0
    alone = run_study(quick_study(seeds=[2]), run.place / "alone")
    assert second.content_hash == alone.content_hash != first.content_hash
    assert not (run.place / "a" / "seed-1").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"rounds": 6}},
        {"defense": {"name": "gradient-noise", "options": {"sigma": 0.1}}},
        {"audit": {"fair": 60}},
        {"model": {"name": "mlp", "options": {"hidden": 16}}},
        {"seeds": [3]},
    ],
)
def test_a_changed_setting_never_gets_a_stale_result(
    changes: dict[str, object], pool_with_run: CountedEngine, tmp_path: Path
) -> None:
    changed = pool_with_run(tmp_path.name, quick_study(**changes))
    assert pool_with_run.rounds > 0
    fresh = run_study(quick_study(**changes), tmp_path)
    assert changed.content_hash == fresh.content_hash


def test_figures_and_attacks_do_not_need_another_run(
    pool_with_run: CountedEngine, tmp_path: Path
) -> None:
    fewer = quick_study(attacks={"loss-series": {}}, figures={"fprs": [0.05]})
    record = pool_with_run("fewer", fewer)
    assert pool_with_run.rounds == 0
    assert record.content_hash == run_study(fewer, tmp_path).content_hash


@pytest.mark.slow
def test_a_run_that_lacks_a_signal_is_not_taken_for_one_that_has_it(run: CountedEngine) -> None:
    run("a", quick_study())
    two_attacks = quick_study(attacks={"loss-series": {}, "avg-cosine": {}})
    record_of_both = run("b", two_attacks)
    assert run.rounds == 4
    assert record_of_both.content_hash == run_study(two_attacks, run.place / "alone").content_hash
    run("c", quick_study(attacks={"avg-cosine": {}}))
    assert run.rounds == 0
    assert run.pooled == 2


class Pretrained(nn.Module):
    """A frozen layer from a file, and a head that clients train."""

    def __init__(self, shape: tuple[int, ...], classes: int, file: str) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(math.prod(shape), 8), nn.Linear(8, classes)
        self.base.load_state_dict(torch.load(file))
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.base(x.flatten(1)).relu())
        return out


@pytest.mark.slow
def test_a_changed_pretrained_file_changes_the_run_key(run: CountedEngine, tmp_path: Path) -> None:
    file = run.place / "base.pt"
    name = f"{__name__}:Pretrained"
    study = quick_study(model={"name": name, "options": {"file": str(file)}})

    def save(value: float) -> None:
        torch.save({"weight": torch.full((8, 64), value), "bias": torch.zeros(8)}, file)

    for number, (value, rounds) in enumerate([(0.1, 4), (0.1, 0), (0.2, 4)]):
        save(value)
        run(f"{number}", study)
        assert run.rounds == rounds
    assert run.pooled == 2
    run_study(study, tmp_path / "own")
    save(0.3)
    with pytest.raises(BadInput, match="belongs to a run with other settings"):
        run_study(study, tmp_path / "own")


def test_data_changed_in_place_change_the_run_key(run: CountedEngine) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.random((800, 8), dtype=np.float32), np.arange(800) % 4
    file = run.place / "mine.npz"
    np.savez(file, x=x, y=y)
    study = quick_study(data={"name": "mine"})
    run("a", study, data_dir=run.place)
    x[5] += 1
    np.savez(file, x=x, y=y)
    run("b", study, data_dir=run.place)
    assert run.rounds == 4
    assert run.pooled == 2


def test_a_stopped_run_resumes_in_the_pool(run: CountedEngine) -> None:
    class Stopped(Exception):
        pass

    def stop(phase: str, done: int, total: int) -> None:
        if done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        run_study(quick_study(), run.place / "a", pool=run.place / "pool", progress=stop)
    record = run("b", quick_study())
    assert 0 < run.rounds < 4
    assert record.content_hash == run_study(quick_study(), run.place / "alone").content_hash


def test_attacks_find_pooled_runs_after_moving_folders(run: CountedEngine) -> None:
    record = run("a", quick_study())
    moved = run.place / "elsewhere"
    moved.mkdir()
    for part in ("a", "pool"):
        shutil.move(run.place / part, moved / part)
    result = reattack(moved / "a", [], moved / "again")
    assert result.content_hash == record.content_hash
    shutil.move(moved / "pool", moved / "lost")
    with pytest.raises(BadInput, match="which does not exist; copy that folder"):
        reattack(moved / "a", [], moved / "again")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"1": 3}', "{" * 100_000])
def test_an_unreadable_list_of_runs_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / RUNS_FILE).write_text(text)
    with pytest.raises(Damaged, match=r"cannot be read|written by fedaudit|has no path"):
        run_folder(tmp_path, 1)


NEWER = '{"run": "x", "data": "y", "signals": {}, "fedaudit": "9", "more": 1}'


def test_folders_without_runs_are_ignored(run: CountedEngine) -> None:
    texts = ("", "[]", '{"run": "x"}', '{"run": 1, "other": 2}', NEWER)
    for number, text in enumerate(texts):
        stranger = run.place / "pool" / f"stranger-{number}"
        stranger.mkdir(parents=True)
        (stranger / RUN_FILE).write_text(text)
    run("a", quick_study())
    assert run.rounds == 4


def test_runs_in_the_folder_of_a_study_stay_there(run: CountedEngine) -> None:
    run_study(quick_study(), run.place / "a")
    run("a", quick_study())
    assert (run.rounds, run.pooled) == (0, 0)


def test_two_studies_at_once_train_a_shared_run_once(run: CountedEngine) -> None:
    ticks: list[int] = []

    def progress(phase: str, done: int, total: int) -> None:
        if done and phase.endswith("training rounds"):
            ticks.append(done)

    def started(name: str) -> None:
        run_study(
            quick_study(),
            run.place / name,
            pool=run.place / "pool",
            progress=progress,
        )

    threads = [threading.Thread(target=started, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ticks) == [1, 2, 3, 4]
    hashes = [
        json.loads((run.place / name / "record.json").read_text())["content_hash"]
        for name in ("a", "b")
    ]
    assert hashes[0] == hashes[1]


def test_waiting_for_a_run_is_logged(tmp_path: Path) -> None:
    lines: list[str] = []
    inside = threading.Event()

    def second() -> None:
        with lock_run(tmp_path, lines.append):
            inside.set()

    with lock_run(tmp_path, print):
        thread = threading.Thread(target=second)
        thread.start()
        assert not inside.wait(0.3)
    thread.join(5)
    assert inside.is_set()
    assert lines == [f"waiting for another study that is training the run in {tmp_path}"]
