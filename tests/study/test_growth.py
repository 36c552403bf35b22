"""A study grows by seeds, attacks and figures without training its runs again."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import fedaudit as fa
from fedaudit.cli.running import write_report_of
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import Lock
from fedaudit.plan.file import read_studies
from fedaudit.plan.sections import Study
from fedaudit.results.read import read_record
from fedaudit.results.record import Record, write_record
from fedaudit.study.running.folder import (
    Additions,
    find_additions,
    parse_additions,
    total_additions,
)
from fedaudit.study.running.run import run_study
from tests.study.studies import Carried, quick_study

MORE: dict[str, object] = {"loss-series": {}, "blackbox-loss": {}, "avg-cosine": {}}
FULL = {"keep": "full"}


class Trained:
    """Runs studies and lists the rounds that are trained."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def __call__(self, study: Study, out: Path, **options: object) -> Record:
        self.phases = []
        return run_study(study, out, progress=self._tick, **options)  # type: ignore[arg-type]

    def _tick(self, phase: str, done: int, total: int) -> None:
        if done and phase.endswith("training rounds"):
            self.phases.append(phase)


@pytest.fixture
def run() -> Trained:
    return Trained()


@pytest.fixture
def folder(quick: Carried, tmp_path: Path) -> Path:
    """A study's folder, with the attacks loss-series and blackbox-loss on seed 1."""
    return shutil.copytree(quick.folder, tmp_path / "study")


def same(grown: Record, fresh: Record) -> bool:
    """Whether two records say the same, apart from when they were made and that one has grown."""
    left_out = {"environment", "untested", "usage"}
    return grown.content_hash == fresh.content_hash and grown.model_dump(
        exclude=left_out
    ) == fresh.model_dump(exclude=left_out)


def test_added_seeds_give_the_record_of_a_fresh_study(
    folder: Path, run: Trained, tmp_path: Path
) -> None:
    larger = quick_study(seeds=[1, 2])
    grown = run(larger, folder)
    assert set(run.phases) == {"seed 2: training rounds"}
    assert same(grown, run(larger, tmp_path / "fresh"))
    note = "The post-hoc choice of seed 2 (added after a first result)."
    assert any(sentence.startswith(note) for sentence in grown.untested)


def test_more_attacks_on_measured_signals_train_nothing(run: Trained, tmp_path: Path) -> None:
    run(quick_study(attacks={"loss-series": {}}), tmp_path / "study")
    grown = run(quick_study(), tmp_path / "study")
    assert run.phases == []
    assert same(grown, run(quick_study(), tmp_path / "fresh"))
    assert any("post-hoc choice of attack blackbox-loss" in sentence for sentence in grown.untested)


@pytest.mark.parametrize(
    "figures",
    [
        pytest.param({"metrics": ["average-precision"]}, marks=pytest.mark.slow),
        {"fprs": [0.01, 0.001, 0.1]},
        {"most_exposed": 12},
    ],
)
def test_more_figures_train_nothing(
    figures: dict[str, object], folder: Path, run: Trained, tmp_path: Path
) -> None:
    larger = quick_study(figures=figures)
    grown = run(larger, folder)
    assert run.phases == []
    assert same(grown, run(larger, tmp_path / "fresh"))


@pytest.mark.slow
def test_signals_that_were_not_measured_are_measured_on_kept_updates(
    run: Trained, tmp_path: Path
) -> None:
    run(quick_study(audit=FULL), tmp_path / "study")
    larger = quick_study(audit=FULL, attacks=MORE)
    grown = run(larger, tmp_path / "study")
    assert run.phases == []
    fresh = run(larger, tmp_path / "fresh")
    values = [
        [f.value for f in record.findings if f.attack == "avg-cosine" and f.metric == "auc"]
        for record in (grown, fresh)
    ]
    assert values[0] == pytest.approx(values[1], abs=0.01)
    assert any("gradient-cosine" in line and "kept updates" in line for line in grown.untested)
    assert run(larger, tmp_path / "study").content_hash == grown.content_hash


def test_unmeasurable_signals_are_refused_with_the_runs_to_train_again(
    folder: Path, run: Trained
) -> None:
    before = (folder / "study.json").read_bytes()
    with pytest.raises(BadInput, match=r"gradient-cosine.*seed-1.*would have to be trained again"):
        run(quick_study(attacks=MORE), folder)
    assert (folder / "study.json").read_bytes() == before
    assert run(quick_study(), folder), "the study is as it was"


def test_in_a_pool_new_signals_are_measured_on_kept_updates_too(
    run: Trained, tmp_path: Path
) -> None:
    pool = tmp_path / "pool"
    run(quick_study(audit=FULL), tmp_path / "study", pool=pool)
    grown = run(quick_study(audit=FULL, attacks=MORE), tmp_path / "study", pool=pool)
    assert run.phases == []
    assert {row.name for row in grown.attacks} == set(MORE)
    run(quick_study(audit=FULL, seeds=[1, 2]), tmp_path / "other", pool=pool)
    assert set(run.phases) == {"seed 2: training rounds"}


class Stop(Exception):
    pass


def stopping(stage: str) -> Callable[[str, int, int], None]:
    def progress(phase: str, done: int, total: int) -> None:
        if done == 3 and phase == stage:
            raise Stop

    return progress


@pytest.mark.slow
def test_a_study_that_is_stopped_while_it_grows_resumes(
    folder: Path, run: Trained, tmp_path: Path
) -> None:
    larger = quick_study(seeds=[1, 2])
    with pytest.raises(Stop):
        run_study(larger, folder, progress=stopping("seed 2: training rounds"))
    with pytest.raises(BadInput, match=r"has this study with additions \(seed 2\)"):
        run(quick_study(), folder)
    grown = run(larger, folder)
    assert 0 < len(run.phases) < 4
    assert same(grown, run(larger, tmp_path / "fresh"))
    assert any("post-hoc choice of seed 2" in sentence for sentence in grown.untested)


@pytest.mark.slow
def test_a_study_that_was_stopped_in_its_first_run_grows(run: Trained, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run_study(
            quick_study(audit=FULL), tmp_path / "a", progress=stopping("seed 1: training rounds")
        )
    larger = quick_study(audit=FULL, attacks=MORE, seeds=[1, 2])
    grown = run(larger, tmp_path / "a")
    assert {f.attack for f in grown.findings} == set(MORE)
    assert any("of seed 1: they were measured on kept" in sentence for sentence in grown.untested)
    assert not any("post-hoc choice" in sentence for sentence in grown.untested), "no record"


@pytest.mark.parametrize(
    "changes",
    [
        {"attacks": {"loss-series": {}}},
        {"figures": {"fprs": [0.01]}},
        {"figures": {"most_exposed": 3}},
    ],
)
def test_removing_seeds_or_attacks_is_refused_with_advice(
    changes: dict[str, object], folder: Path
) -> None:
    with pytest.raises(
        BadInput, match=r"has this study with additions.*add .* to the study, or choose"
    ):
        run_study(quick_study(**changes), folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"audit": {"targets": [0, 1]}},
        {"training": {"rounds": 6}},
        {"attacks": {"blackbox-loss": {}, "fedmia-1": {}}},
        {"figures": {"alpha": 0.01}},
        {"figures": {"evaluation": "redraw"}},
    ],
)
def test_changes_beyond_growth_raise_as_another_study(
    changes: dict[str, object], folder: Path
) -> None:
    with pytest.raises(BadInput, match="has a study with other settings"):
        run_study(quick_study(**changes), folder)


def test_attacks_of_a_set_are_the_same_as_by_their_names() -> None:
    whole_set, by_names = quick_study(attacks={}), quick_study()
    growth = find_additions(by_names, whole_set)
    assert growth is not None
    assert "fedmia-1" in growth.attacks
    assert "loss-series" not in growth.attacks
    assert find_additions(whole_set, by_names) is None


@pytest.mark.slow
def test_in_python_an_audit_grows_in_its_folder(tmp_path: Path) -> None:
    federation = fa.Federation(
        fa.datasets.digits(), clients=4, algorithm=fa.algorithms.FedAvg(rounds=2, batch_size=20)
    )
    two_attacks = ["loss-series", "blackbox-loss"]

    def audited(seeds: list[int], attacks: list[str], out: Path) -> Record:
        return fa.audit(
            federation,
            seeds=seeds,
            attacks=attacks,
            audit=fa.Audit(samples=60, background=0),
            figures=fa.Figures(blind_classifier=False, permutations=20),
            out=out,
        ).record

    folder = tmp_path / "one" / "study"
    audited([1], two_attacks[:1], folder)
    grown = audited([1, 2], two_attacks, folder)
    assert same(grown, audited([1, 2], two_attacks, tmp_path / "two" / "study"))
    text = json.loads((folder / "study.json").read_text())
    assert text["growth"] == {"seeds": ["2"], "attacks": ["blackbox-loss"], "figures": []}


@pytest.mark.slow
def test_added_source_inference_uses_the_samples_that_were_set_aside(
    run: Trained, tmp_path: Path
) -> None:
    uneven: dict[str, object] = {
        "partition": {"scheme": "dirichlet", "options": {"beta": 1.0}, "samples_per_client": 0}
    }
    attacks: dict[str, object] = {"loss-series": {}, "sia": {}}
    run(quick_study(attacks={"loss-series": {}}, **uneven), tmp_path / "study")
    grown = run(quick_study(attacks=attacks, **uneven), tmp_path / "study")
    assert run.phases == []
    assert [row.status for row in grown.attacks] == ["run", "run"]
    none_aside = quick_study(attacks=attacks, audit={"sources": 0}, **uneven)
    assert same(grown, run(none_aside, tmp_path / "fresh"))


POST_HOC = "post-hoc choice of"


def lines_of(record: Record) -> list[str]:
    return [sentence for sentence in record.untested if POST_HOC in sentence]


def test_growth_is_reported_even_if_files_were_deleted(folder: Path, run: Trained) -> None:
    (folder / "record.json").unlink()
    (folder / "scores.safetensors").unlink()
    grown = run(quick_study(seeds=[1, 2]), folder)
    assert lines_of(grown)[0].startswith("The post-hoc choice of seed 2 ")
    (folder / "record.json").unlink()
    (folder / "scores.safetensors").unlink()
    repeated = run(quick_study(seeds=[1, 2], figures={"most_exposed": 12}), folder)
    assert lines_of(repeated)[0].startswith(
        "The post-hoc choice of seed 2 and setting figures.most_exposed "
    )


def test_a_record_without_a_study_file_has_no_growth(folder: Path, run: Trained) -> None:
    (folder / "study.json").unlink()
    assert lines_of(run(quick_study(figures={"most_exposed": 12}), folder))
    (folder / "study.json").unlink()
    with pytest.raises(BadInput, match=r"with additions, but no study\.json that lists"):
        run(quick_study(figures={"most_exposed": 12}), folder)


@pytest.mark.parametrize(
    "growth",
    [
        [],
        "seeds",
        {"seeds": ["2"]},
        {"seeds": "2", "attacks": [], "figures": []},
        {"seeds": [2], "attacks": [], "figures": []},
        {"seeds": [""], "attacks": [], "figures": []},
        {"seeds": [], "attacks": ["\x1b[2Jfedmia-2"], "figures": []},
        {"seeds": [], "attacks": ["fedmia-2\nPASS: all"], "figures": []},
        {"seeds": [], "attacks": ["x" * 501], "figures": []},
        {"seeds": [], "attacks": [], "figures": [], "more": []},
    ],
)
def test_growth_that_is_not_as_the_program_writes_it_is_refused(
    growth: object, folder: Path
) -> None:
    path = folder / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "growth": growth}))
    with pytest.raises(Damaged, match=r"additions to the study in .*study\.json is damaged"):
        run_study(quick_study(), folder)


def test_names_of_any_form_are_kept_so_that_they_can_be_read_again() -> None:
    added = Additions(["2"], ["own\x1b[2J:\u2028attack" + "x" * 600], [])
    additions = total_additions(Additions([], [], []), added)
    assert (
        parse_additions(json.loads(json.dumps(additions.file_values())), "study.json") == additions
    )
    assert total_additions(additions, added) == additions


def test_the_file_of_a_study_that_grew_is_a_study(folder: Path, run: Trained) -> None:
    grown = quick_study(figures={"most_exposed": 12})
    run(grown, folder)
    (read,) = read_studies(folder / "study.json", {})
    assert read.figures.most_exposed == 12


def test_no_record_is_written_if_another_process_extended_the_study(
    run: Trained, tmp_path: Path
) -> None:
    out, larger = tmp_path / "study", quick_study(figures={"most_exposed": 12})
    records = list[Record]()

    def log(text: str) -> None:
        if text == "seed 1: controls":
            records.append(run(larger, out))

    with pytest.raises(BadInput, match=r"has this study with additions \(setting figures"):
        run_study(quick_study(), out, log=log)
    assert read_record(out / "record.json") == records[0]
    assert lines_of(records[0]) == []


@pytest.mark.parametrize("name", ["write_record", "write_scores"])
def test_all_files_of_a_record_are_written_under_the_lock(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_states = list[bool]()

    def look(*arguments: object) -> None:
        with closing(Lock(folder)) as lock:
            lock_states.append(lock.acquire())

    monkeypatch.setattr(f"fedaudit.study.running.record.{name}", look)
    run_study(quick_study(), folder)
    with closing(Lock(folder)) as lock:
        assert [*lock_states, lock.acquire()] == [False, True]


def test_no_report_is_written_next_to_the_record_of_another_process(folder: Path) -> None:
    record = read_record(folder / "record.json")
    (folder / "report.html").unlink(missing_ok=True)
    write_report_of(folder, record)
    assert (folder / "report.html").stat().st_size > 1000
    (folder / "report.html").unlink()
    write_record(record.model_copy(update={"seeds": [1, 2]}), folder / "record.json")
    with pytest.raises(BadInput, match="another process has replaced"):
        write_report_of(folder, record)
    assert not (folder / "report.html").exists()
