"""The benchmark of a GPU in its quick form on a CPU."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from fedaudit.core.errors import BadInput


def run(folder: Path, *words: str) -> int:
    return gpu.main(["--out", str(folder), "--device", "cpu", "--quick", "--turns", "1", *words])


@pytest.mark.slow
def test_the_quick_form_measures_all_parts_and_resumes(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        assert run(tmp_path, "--parts", "kernels") == gpu.COMPLETE
        before = json.loads((tmp_path / gpu.RESULTS).read_text())
        assert len(before["kernels"]) == len(gpu.WORK) * len(gpu.QUICK_MODELS)
        assert all(row["equal"] and row["repeatable"] for row in before["bits"])
        assert not before["training"]
        assert run(tmp_path, "--parts", "training", "--minutes", "0.02") == gpu.OUT_OF_TIME
        stopped = json.loads((tmp_path / gpu.RESULTS).read_text())
        assert not stopped["training"]["complete"]
        assert run(tmp_path) == gpu.COMPLETE
    finally:
        torch.set_num_threads(threads)
    after = json.loads((tmp_path / gpu.RESULTS).read_text())
    # Parts that were complete are not measured again.
    assert after["kernels"] == before["kernels"]
    training = after["training"]
    assert training["complete"]
    assert training["seconds"] > stopped["training"]["seconds"]
    assert training["last_measured_round"] == training["rounds"] == 20
    assert {figure["contrast"] for figure in training["auc"]} == {"other_client", "unseen", "mixed"}
    page = (tmp_path / gpu.PAGE).read_text()
    assert "| gradient signals | alexnet |" in page
    assert "This is the quick form" in page
    with pytest.raises(BadInput, match="results of a GPU only"):
        gpu.published_page(tmp_path / gpu.RESULTS)
    with pytest.raises(BadInput, match="results of another device, version or setting"):
        gpu.Results(gpu.arguments(["--out", str(tmp_path)]), torch.device("cpu"))


@pytest.mark.parametrize(
    ("device", "code", "reason"),
    [("cuda", gpu.NO_CUDA, "finds none on this machine"), ("cpu", gpu.REFUSED, "add --quick")],
)
def test_machines_without_a_gpu_are_refused_in_one_sentence(
    device: str,
    code: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "out"), "--device", device]) == code
    printed = capsys.readouterr().err
    assert reason in printed
    assert len(printed.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_refused_work_has_a_row_without_times() -> None:
    row = {"work": "DP-SGD", "model": "minilm", "refused": "no per-sample gradients"}
    timed = {"work": "losses", "model": "mlp", "samples": 10, "cpu": 2.0, "cpu_floor": 1.0}
    timed |= {"device": 0.5, "device_floor": 0.25}
    about = {"device": "a card", "torch": "2", "commit": "", "quick": False}
    differing = {"work": "losses", "model": "mlp", "equal": False, "repeatable": True}
    bits = [row, {**differing, "relative_to_largest": 1e-6}]
    page = gpu.page({"about": about, "kernels": [row, timed], "bits": bits, "training": {}})
    assert "| DP-SGD | minilm | refused |" in page
    assert "| losses | mlp | 200 | 2.00 | 50 | 2.00 | 4.00 |" in page
    assert "| losses | mlp | no | 1.0e-06 | yes |" in page
    assert "Not run yet." in page


def test_a_folder_that_cannot_be_written_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "folder"):
        assert run(folder, "--parts", "training", "--minutes", "0.02") == gpu.REFUSED
        assert "cannot be written" in capsys.readouterr().err


def test_ctrl_c_ends_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "train_study", interrupted)
    assert run(tmp_path, "--parts", "training") == gpu.INTERRUPTED == 130
    assert "run the same command to continue" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", "{"])
def test_damaged_results_are_refused_in_one_sentence(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / gpu.RESULTS).write_text(text)
    assert run(tmp_path) == gpu.REFUSED
    assert "gpu.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--minutes", "nan"], ["--minutes", "-1"], ["--turns", "0"]])
def test_impossible_numbers_are_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(tmp_path, *words)
    assert ended.value.code == gpu.REFUSED
    assert "is not a finite number above 0" in capsys.readouterr().err
