"""Fixtures for tests of recordings from tables of signals."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedaudit.live.tables.record import from_signals
from tests.live.federation import POLICY
from tests.programs import exit_code

RecordTable = Callable[..., Path]


@pytest.fixture
def record_table(tmp_path: Path) -> RecordTable:
    """Function that records a table of signals, by default in the folder "table"."""

    def record(table: object, name: str = "table", **settings: object) -> Path:
        settings = {"out": tmp_path / name, "log": lambda line: None, **settings}
        return from_signals(table, **settings)  # type: ignore[arg-type]

    return record


@pytest.fixture
def pack_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], str]:
    """Function that attacks, gates, packs and verifies the recording in the folder "table"."""

    def pack() -> str:
        monkeypatch.chdir(tmp_path)
        controls = 'required = ["permuted members"]'
        Path("policy.toml").write_text(POLICY.replace("required = []", controls))
        policy = ("--policy", "policy.toml")
        assert exit_code("attack", "table", "--figures.permutations=20") == 0
        assert exit_code("gate", "table", *policy) in (0, 3)
        assert exit_code("pack", "table", *policy, "--out", "pack") == 0
        assert exit_code("verify", "pack", "--recording", "table") == 0
        return capsys.readouterr().out

    return pack
