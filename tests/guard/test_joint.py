"""A coordinator audits the guards of several sites from their tables of signals."""

import csv
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedaudit as fa
from fedaudit.core.errors import BadInput
from fedaudit.guard.guard import Guard
from fedaudit.live.attack import attack_recording
from fedaudit.live.files import read_audit
from fedaudit.live.recording import read_recording
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from tests.live.checkpoints import record_live
from tests.live.federation import POLICY
from tests.programs import exit_code

SITES = ("ward a", "ward-b", "C")
AUDITED = 160
ATTACKS = ("loss-series", "avg-cosine", "avg-projres")


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 2))


def guarded(folder: Path, site: int) -> None:
    """Guard a site whose uploads memorise random labels; each site is client 0 to itself."""
    draw = torch.Generator().manual_seed(site)
    x = torch.randn(2 * AUDITED, 20, generator=draw)
    y = torch.randint(2, (len(x),), generator=draw)
    split = fa.fair_split({0: (x, y)}, audited=AUDITED)
    rows = split.train[0]
    model = network()
    options = {"limit": 0.999, "decide_by": "estimate", "attacks": ATTACKS}
    with Guard(folder, network, split.audit, log=lambda line: None, **options) as guard:  # type: ignore[arg-type]
        for number in (1, 2):
            received = {name: value.clone() for name, value in model.state_dict().items()}
            optimiser = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
            for _ in range(40):
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            assert guard.check(number, sent=received, upload=model) is not None


@pytest.fixture(scope="module")
def guards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("guards")
    for site, name in enumerate(SITES):
        guarded(folder / name, site)
    return folder


@pytest.fixture
def tables(guards: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "tables"
    folder.mkdir()
    for name in SITES:
        out = folder / f"{name}.csv"
        assert exit_code("signals", guards / name, "--out", out, "--client", name) == 0
    return folder


def figures(record: Record) -> dict[tuple[str, str, int | None], float | None]:
    return {
        (e.attack, e.metric, e.target): e.value
        for e in record.estimates
        if e.contrast == "unseen" and e.metric in ("auc", "tpr@0.01") and e.attack in ATTACKS
    }


def test_the_joint_audit_has_the_figures_of_each_site(
    guards: Path, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joint = tmp_path / "joint"
    words = ("--signals", tables, "--fair", "--sizes", "ward a=160,ward-b=170,C=180")
    assert exit_code("attack", joint, *ATTACKS, *words) == 0
    assert "3 clients and 480 samples" in " ".join(capsys.readouterr().out.split())
    recording, record = read_recording(joint), read_record(joint / "attacked" / "record.json")
    assert sorted(recording.names.values()) == sorted(SITES)
    assert recording.table == "separate"
    by_default = fa.from_signals(sorted(tables.glob("*.csv")), out=tmp_path / "default", fair=True)
    refused = read_recording(by_default).refused
    assert "compares all clients at each sample" in refused["fedmia-1"]
    assert read_audit(joint).samples.features.numel() == 0
    number_of = {name: number for number, name in recording.names.items()}
    joint_figures = figures(record)
    for name in SITES:
        alone = attack_recording(guards / name, ATTACKS, tmp_path / f"alone {name}")
        for (attack, metric, _), value in figures(alone).items():
            assert joint_figures[attack, metric, number_of[name]] == pytest.approx(value, abs=1e-12)
    assert max(value or 0 for value in joint_figures.values()) > 0.7
    policy = tmp_path / "policy.toml"
    for ceiling, code in ((1.0, 0), (0.6, 1)):
        policy.write_text(POLICY.replace("auc = 1.0", f"auc = {ceiling}"))
        assert exit_code("gate", joint / "attacked", "--policy", policy) == code
    assert exit_code("report", joint / "attacked") == 0


def test_a_table_has_signals_and_membership_and_no_samples(guards: Path, tables: Path) -> None:
    audit = read_audit(guards / SITES[0])
    with (tables / f"{SITES[0]}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    signals = {"loss", "cosine", "projection_residual"}
    assert set(rows[0]) == {"round", "client", "sample", "owner", "drawn_for", *signals}
    assert len(rows) == 2 * AUDITED
    assert [row["owner"] for row in rows[:AUDITED]] == [
        SITES[0] if owner >= 0 else "" for owner in audit.owner.tolist()
    ]
    assert rows[0]["sample"] == "ward a-0"
    # The order of samples and their positions at the site are not in the table.
    assert not {str(number) for number in audit.samples.ids.tolist()} & {r["sample"] for r in rows}


def test_python_accepts_tables_without_files(guards: Path, tmp_path: Path) -> None:
    tables = [fa.signal_table(guards / name, client=name) for name in SITES]
    path = fa.from_signals(tables, out=tmp_path / "joint", fair=True, log=lambda line: None)
    assert len(read_recording(path).targets) == 3


def test_tables_that_do_not_fit_are_refused_in_one_sentence(
    guards: Path, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (str(tables / f"{name}.csv") for name in SITES[:2])
    text = Path(second).read_text()
    header, *lines = text.splitlines()
    same_client = tables / "same.csv"
    assert exit_code("signals", guards / SITES[1], "--out", same_client, "--client", "ward a") == 0
    cases = {
        "client ward a is in the tables 1 and 2": same_client.read_text(),
        "the column 'projection_residual' is in only one of": "\n".join(
            line.rpartition(",")[0] for line in text.splitlines()
        ),
        "there is no row of sample ward-b-7": "\n".join([header, *lines[:7], *lines[8:]]),
        "have two rows; give one": "\n".join([header, *lines, lines[0]]),
        "has two values in owner": text.replace("ward-b,ward-b-0,ward-b,", "ward-b,ward-b-0,,", 1)
        if ",ward-b-0,ward-b," in text
        else text.replace("ward-b,ward-b-0,,", "ward-b,ward-b-0,ward-b,", 1),
        "is not a finite number": re.sub(r"^(1,ward-b,.*),[^,]*$", r"\1,nan", text, flags=re.M),
        "projection_residual has values from": re.sub(
            r"^(1,ward-b,.*),[^,]*$", r"\1,7", text, flags=re.M
        ),
        "values in line 3 and 8 columns": "\n".join([header, lines[0], lines[1] + ",1"]),
        "no column of table 2": text.replace("cosine", "cosin", 1),
        "is not a CSV file|cannot be read|single column": "\0\1",
    }
    capsys.readouterr()
    for message, content in cases.items():
        Path(second).write_text(content)
        assert exit_code("attack", tmp_path / "x", "--signals", first, "--signals", second) == 2
        stderr = capsys.readouterr().err.strip()
        assert re.search(message, stderr), (message, stderr)
        assert "Traceback" not in stderr
        assert not (tmp_path / "x" / "recording.json").exists()
    (tmp_path / "empty").mkdir()
    assert exit_code("attack", tmp_path / "x", "--signals", tmp_path / "empty") == 2
    assert "folder without .csv files" in capsys.readouterr().err


def test_further_uploads_of_a_round_are_reported(
    guards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(guards / "C", tmp_path / "again")
    audit = read_audit(tmp_path / "again")
    options: Any = {"limit": 0.999, "decide_by": "estimate", "attacks": ATTACKS}
    with Guard(tmp_path / "again", network, audit, log=lambda line: None, **options) as guard:
        assert guard.check(2, sent=network(), upload=network()) is not None
    assert exit_code("signals", tmp_path / "again", "--out", tmp_path / "table.csv") == 0
    output = capsys.readouterr().out
    assert "the table does not contain the second uploads of repeated rounds (2)" in output
    assert "attack the table with --fair" in output


def test_folders_without_own_uploads_have_no_table(
    guards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput, match="is not a recording; give the folder of a guard"):
        fa.signal_table(tmp_path)
    record_live(tmp_path / "globals", view="globals", attacks=("avg-cosine",))
    with pytest.raises(BadInput, match="a recording of the view 'globals'; give a recording of"):
        fa.signal_table(tmp_path / "globals")
    record_live(tmp_path / "uploads", attacks=("loss-series", "fedmia-2"))
    with pytest.raises(BadInput, match="has 3 clients, and client= names one"):
        fa.signal_table(tmp_path / "uploads", client="x")
    for client in (" ", "x" * 201):
        with pytest.raises(BadInput, match=r"client= is .*; give a name of 1 to 200 letters"):
            fa.signal_table(guards / "C", client=client)
    out = tmp_path / "a.csv"
    out.touch()
    assert exit_code("signals", guards / "C", "--out", out) == 2
    assert "exists; give another file with --out" in capsys.readouterr().err


def test_a_table_of_all_uploads_restores_the_recording(tmp_path: Path) -> None:
    record_live(tmp_path / "uploads", attacks=("loss-series", "fedmia-2"))
    table = fa.signal_table(tmp_path / "uploads")
    path = fa.from_signals(table, out=tmp_path / "again", fair=True, log=lambda line: None)
    names = ["loss-series", "fedmia-2"]
    first, second = (
        {
            (e.attack, e.target): e.value
            for e in attack_recording(folder, names, tmp_path / f"{folder.name}-record").estimates
            if (e.metric, e.contrast) == ("auc", "unseen")
        }
        for folder in (tmp_path / "uploads", path)
    )
    assert first == pytest.approx(second, abs=1e-12)
    assert len(first) >= 6
