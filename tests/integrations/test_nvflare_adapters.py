"""Adapter uploads of NVFlare sites."""

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import fedaudit as fa
from fedaudit.integrations.nvflare.collector import NvflareRoundCollector, Upload
from fedaudit.live.attack import attack_recording
from fedaudit.live.recording import read_round_log
from tests.live.federation import data

JOB = Path(__file__).parents[2] / "examples" / "nvflare" / "adapters" / "job.py"
Arrays = dict[str, np.ndarray]


@pytest.mark.slow
def test_a_simulated_job_with_peft_adapters_is_recorded_and_attacked(tmp_path: Path) -> None:
    for needed, extra in (("nvflare", "nvflare"), ("peft", "text")):
        pytest.importorskip(needed, reason=f"pip install 'fedaudit[{extra}]'")
    folder = tmp_path / "recording"
    settings = {
        "NVFLARE_SIMULATOR_WORKSPACE_ROOT": str(tmp_path / "simulator"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, str(JOB), "--rounds", "2", "--recording", str(folder)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    every = (1, 2, 3)
    rounds = [(entry.round, entry.measured, entry.answered) for entry in read_round_log(folder)]
    assert rounds == [(1, True, every), (2, True, every)]
    record = attack_recording(folder, ("avg-cosine",), tmp_path / "out")
    cosine = record.where(topic="membership", metric="auc", contrast="mixed")
    aucs = [estimate.value for estimate in cosine if estimate.value is not None]
    assert max(aucs) > 0.6, "adapters reveal the samples of their site"


def tuned() -> nn.Module:
    frozen = nn.Linear(64, 8).requires_grad_(False)
    return nn.Sequential(frozen, nn.ReLU(), nn.Linear(8, 10))


SENT_NOTE = {n: value.detach().numpy() for n, value in tuned().named_parameters() if n[0] == "2"}


def without(name: str) -> Callable[[int], Arrays]:
    """Return uploads by site, of which only the first site's lacks a parameter."""
    return lambda site: {n: v for n, v in SENT_NOTE.items() if site or n != name}


def with_(changed: Mapping[str, np.ndarray]) -> Callable[[int], Arrays]:
    return lambda site: {**SENT_NOTE, **changed}


def test_a_site_with_a_missing_parameter_is_excluded(tmp_path: Path) -> None:
    recorder = fa.record(tmp_path, tuned(), data().split.audit, attacks=["avg-cosine"])
    collector = NvflareRoundCollector(recorder)
    for site in range(3):
        collector.add_task(1, f"{site}", f"site-{site}", SENT_NOTE)
    for site in range(3):
        collector.add_result(f"{site}", Upload(without("2.bias")(site)))
    with pytest.warns(RuntimeWarning, match=r"without client 0: its upload lacks 2\.bias"):
        collector.end()
    assert [list(entry.excluded) for entry in read_round_log(tmp_path)] == [[0]]


@pytest.mark.parametrize(
    ("upload", "message"),
    [
        (with_({"2.lora": np.zeros(2)}), "has '2.lora', which the model .* lacks; it has 2.we"),
        (with_({"2.bias": np.zeros(9)}), r"has '2.bias' of shape \(9,\), .* recorder \(10,\)"),
        (lambda site: {"0.bias": np.zeros(8)}, "no array has the shape of one that they"),
    ],
)
def test_mismatched_uploads_warn_once(
    upload: Callable[[int], Arrays], message: str, tmp_path: Path
) -> None:
    with (
        fa.record(tmp_path, tuned(), data().split.audit, attacks=["avg-cosine"]) as recorder,
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        collector = NvflareRoundCollector(recorder)
        for index in (1, 2, 3):
            for site in range(3):
                collector.add_task(index, f"{index} {site}", f"site-{site}", SENT_NOTE)
            for site in range(3):
                collector.add_result(f"{index} {site}", Upload(upload(site)))
        collector.end()
        recorder.close()
    first, last = (str(warning.message) for warning in warned)
    assert re.search(f"round 1 is not recorded: .*{message}", first)
    assert "3 of 3 rounds are not recorded" in last
    assert not any(entry.measured for entry in read_round_log(tmp_path))
