"""The page on Python runs as it stands, one block after another."""

import re
from pathlib import Path

import pytest

import fedaudit as fa

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.slow
def test_all_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 6
    told: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), told)
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
    assert (tmp_path / "roc.png").stat().st_size > 1000
    found, more = told["found"], told["more"]
    assert isinstance(found, fa.Run)
    assert isinstance(more, fa.Run)
    assert {f.attack for f in more.record.findings} == {"fedmia-1", "avg-cosine"}
    gaps = [f for f in found.record.findings if f.metric.endswith(":mean_gap")]
    assert {f.attack.partition("#")[0] for f in gaps} == {"fedmia-2", "sure"}
    for f in gaps:
        assert f.low is not None
        assert f.value is not None
        assert f.high is not None
        assert f.low <= f.value <= f.high
    played = told["played"]
    assert isinstance(played, fa.Run)
    assert [one.label for one in played.record.games] == ["", "bitrand", "dp-sgd", "larger"]
    assert (tmp_path / "runs" / "games" / "report.html").is_file()
    lines = [line for line in blocks[0].splitlines() if line.strip()]
    audited = lines[lines.index("x, y = load_breast_cancer(return_X_y=True)") :]
    assert len(audited) < 20, "beside the network, an audit is short"
