"""Guards from a data holder's file."""

import os
from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.guard.site import read_site_policy, site_guard
from fedaudit.live.decisions import read_decisions
from tests.guard.client import data, honest, initial, memorising

CODE = """
import torch
from torch import nn

def network():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def noisy(update):
    noise = torch.Generator().manual_seed(7)
    return {n: v + 5.0 * torch.randn(v.shape, generator=noise) for n, v in update.items()}

broken = 5
"""
POLICY = """
limit = 0.6
folder = "guards"
audit = "part.safetensors"
model = "site.py:network"
"""


REFUSED: list[tuple[tuple[str, str], str]] = [
    (("limit = 0.6", "limit = 0.4"), "limit in .*: it should be greater than 0.5"),
    (("limit = 0.6", ""), "limit"),
    (("limit = 0.6", 'limit = 0.6\nfiltre = ""'), "did you mean 'filter'"),
    (("site.py:network", "site:network"), "model"),
    (("site.py:network", "other.py:network"), "cannot be loaded"),
    (("site.py:network", "site.py:absent"), "cannot be loaded"),
    (("site.py:network", "site.py:broken"), "is not a function"),
    (("part.safetensors", "absent.safetensors"), "absent.safetensors"),
]
"""Changes of the policy, each with a part of the error."""


def site(folder: Path, policy: str = POLICY) -> Path:
    data().split.save(folder / "part.safetensors")
    (folder / "site.py").write_text(CODE)
    (folder / "guard.toml").write_text(policy)
    return folder / "guard.toml"


def test_a_guard_from_a_policy_file_decides_like_one_from_python(tmp_path: Path) -> None:
    path = site(tmp_path, f'{POLICY}filter = "site.py:noisy"\n')
    with site_guard(path, "job-1", log=lambda line: None) as opened:
        assert opened.check(1, sent=initial(), upload=honest()) is not None
        assert opened.check(2, sent=initial(), upload=memorising()) is not None
    stored = read_decisions(tmp_path / "guards" / "job-1")
    assert [decision.outcome for decision in stored] == ["sent", "filtered"]


def test_another_run_has_another_guard(tmp_path: Path) -> None:
    path = site(tmp_path)
    with (
        site_guard(path, "job-1", log=lambda line: None) as first,
        site_guard(path, "job-2", log=lambda line: None) as second,
    ):
        assert first.decisions == second.decisions == ()


def test_modules_of_the_working_folder_do_not_replace_the_sites_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, own_folder = tmp_path / "job", tmp_path / "here"
    job.mkdir()
    own_folder.mkdir()
    (job / "site.py").write_text("raise RuntimeError('code of a job')")
    (job / "fedaudit_site_site.py").write_text("raise RuntimeError('code of a job')")
    monkeypatch.chdir(job)
    monkeypatch.syspath_prepend(job)
    with site_guard(site(own_folder), "job-1", log=lambda line: None) as opened:
        assert opened.policy.limit == 0.6


@pytest.mark.parametrize(("change", "says"), REFUSED)
def test_a_wrong_policy_is_refused(change: tuple[str, str], says: str, tmp_path: Path) -> None:
    path = site(tmp_path, POLICY.replace(*change))
    with pytest.raises((BadInput, Damaged), match=says):
        site_guard(path, "job-1", log=lambda line: None)


@pytest.mark.parametrize("place", ["module", "network", "filter"])
def test_an_exit_of_the_sites_code_does_not_end_the_process(place: str, tmp_path: Path) -> None:
    path = site(tmp_path, f'{POLICY}filter = "site.py:noisy"\n')
    exits = {
        "module": "\nraise SystemExit(0)\n",
        "network": "\ndef network():\n    raise SystemExit(0)\n",
        "filter": "\ndef noisy(update):\n    raise SystemExit(0)\n",
    }
    (tmp_path / "site.py").write_text(CODE + exits[place])
    if place == "filter":
        with site_guard(path, "job-1", log=lambda line: None) as opened:
            assert opened.check(1, sent=initial(), upload=memorising()) is None
        assert "custom code ended the process" in opened.decisions[0].reason
        return
    with pytest.raises(BadInput, match="custom code ended the process"):
        site_guard(path, "job-1", log=lambda line: None)


def test_a_pipe_as_code_is_refused(tmp_path: Path) -> None:
    path = site(tmp_path, POLICY.replace("site.py", "pipe.py"))
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(BadInput, match="not a regular file"):
        site_guard(path, "job-1", log=lambda line: None)


@pytest.mark.parametrize("run", ["", "..", "a/b", "x" * 300, "é"])
def test_a_run_cannot_choose_another_folder(run: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be the name of a folder"):
        site_guard(site(tmp_path), run, log=lambda line: None)


def test_an_absent_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        read_site_policy(tmp_path / "guard.toml")
