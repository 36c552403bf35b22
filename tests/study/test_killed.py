"""A study killed at any moment goes on, and ends as if nothing had happened."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedaudit.core.errors import Damaged
from fedaudit.observe.tensors import read_tensors
from fedaudit.study.running.run import run_study
from fedaudit.study.settings.file import read_studies

STUDY = """
name = "killed"
seeds = [1, 2]

[partition]
clients = 4
samples_per_client = 60

[training]
rounds = 40
epochs = 2
batch_size = 8

[audit]
fair = 50
every = 6

[attacks.loss-series]
[attacks.fedmia-2]
[attacks.sia]

[figures]
permutations = 20
blind_classifier = false
"""
KILLS = 3


def started(study: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedaudit", "run", str(study), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--workers", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def rounds_done(out: Path) -> int:
    """Whole rounds of all seeds, as their checkpoints say; 0 while one is being replaced."""
    paths = [out / f"seed-{seed}" / "checkpoint.safetensors" for seed in (1, 2)]
    try:
        return sum(int(read_tensors(path)[1]["round"]) for path in paths if path.exists())
    except Damaged:
        return 0


def content_hash(out: Path) -> str:
    record = json.loads((out / "record.json").read_text())
    found: str = record["content_hash"]
    return found


@pytest.mark.slow
def test_a_study_killed_three_times_ends_with_the_same_content_hash(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    undisturbed = run_study(read_studies(study)[0], whole)

    rng = np.random.default_rng(int(time.time()))
    moments = sorted(rng.choice(np.arange(1, 78), KILLS, replace=False).tolist())
    for moment in moments:
        run = started(study, broken)
        while run.poll() is None and rounds_done(broken) < moment:
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0, 0.05)))
        run.send_signal(signal.SIGKILL)
        run.communicate(timeout=60)
    last = started(study, broken)
    _, error = last.communicate(timeout=200)
    assert last.returncode == 0, error.decode()
    assert content_hash(broken) == undisturbed.content_hash, f"killed after rounds {moments}"
