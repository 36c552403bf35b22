"""Texts of a record cannot start commands of a CI system or imitate a verdict."""

import json
import re
import sys
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from fedaudit.cli.application import log, robust_printing
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.outputs import junit_xml, print_verdict
from fedaudit.gate.verdict import FigureCheck, ceiling_check
from fedaudit.report.terminal import print_comparison, print_record
from fedaudit.results.read import read_record
from fedaudit.results.text import LogLines, indent_lines, one_line, without_commands
from fedaudit.study.comparing import compare_records
from results.archives import unpacked
from tests.gate.parts import auc, policy, record_of
from tests.programs import exit_code

ROOT = Path(__file__).parents[1]
COMMANDS = (
    "::error::PASS",
    "  ::set-output name=x::y",
    "##vso[task.complete result=Succeeded]",
    "##[error]PASS",
    "##teamcity[buildStatus status='SUCCESS']",
    "::stop-commands::x",
)
BREAKS = ("\n", "\r", "\r\n", "\u2028", "\u2029", "\x85", "\v", "\f", "\x1e")


def commands_in(text: str) -> list[str]:
    """Return the lines that a CI system would run; any line break of Unicode counts."""
    anywhere = ("##vso[", "##[", "##teamcity[")
    return [
        line
        for line in text.splitlines()
        if line.lstrip().startswith("::") or any(prefix in line for prefix in anywhere)
    ]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("end", BREAKS)
def test_line_breaks_in_names_make_no_ci_command(command: str, end: str) -> None:
    text = f"a name{end}{command}{end}PASS: all"
    assert commands_in(text)
    assert not commands_in(without_commands(text))
    assert len(one_line(text).splitlines()) == 1
    _, *following = indent_lines(text).splitlines()
    assert all(line.startswith("  ") for line in following)


PARTS = (*COMMANDS, *BREAKS, "::", ":", "#", "##", "[", "vso", "vso[", " ", "x", "\x1b", "[", "0m")


@given(st.lists(st.sampled_from(PARTS)))
@example([":", ":error::x", "\n", "#", "#vso[task.complete]"])
@example(["##", "vso", "[task.complete]"])
@example(["##vso##", "[error]x"])
@example(["\x1b[1", "m:", "\x1b[0m", ":error::x\n#\x1b", "[31;1m#vso", "\x1b[0m[task.complete]"])
def test_a_ci_command_written_in_parts_is_defused(parts: list[str]) -> None:
    lines = LogLines()
    printed = "".join(map(lines.defused, parts))
    assert printed == without_commands("".join(parts))
    assert not commands_in(printed)
    assert not commands_in(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed))


@given(st.lists(st.sampled_from(PARTS)))
def test_nothing_but_spaces_is_added_to_a_log(parts: list[str]) -> None:
    text = "".join(parts)
    printed = without_commands(text)
    assert printed.replace(" ", "") == text.replace(" ", "")


@given(st.text(alphabet="ab:# [\n\r\u2028é"))
def test_text_without_colons_and_hashes_is_printed_unchanged(text: str) -> None:
    if "::" not in text and "##" not in text:
        assert without_commands(text) == text


@pytest.mark.parametrize("word", ["a::b", "std::error::x", "#1 [x]", "## heading", "12::30"])
def test_colons_and_hashes_within_a_line_are_unchanged(word: str) -> None:
    assert without_commands(f"name {word}\n") == f"name {word}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_printed_lines_are_no_ci_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with robust_printing():
        print(command)
        print("", command, sep="\n", file=sys.stderr)
        print(" ", end="")
        print(command)
        log(f"x\n{command}\u2028{command}")
        Console().print(command, markup=False)
    captured = capsys.readouterr()
    assert not commands_in(captured.out + captured.err)
    assert captured.out.count("\n") == 4


@pytest.mark.parametrize("command", COMMANDS)
def test_a_refusal_that_quotes_a_file_is_no_ci_command(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"format": "fedaudit-record", "version": f"\n{command}"}))
    named = tmp_path / f"x\n{command.replace('/', '')}\nPASS: all.toml"
    for words in (
        ("report", record),
        ("compare", record, record),
        ("verify", named),
        ("report", named),
        ("run", named),
        ("gate", named, "--policy", named),
        ("explain", f"\n{command}"),
        ("list", f"\n{command}"),
        ("nothing", f"\n{command}"),
    ):
        assert exit_code(*words) == 2
        captured = capsys.readouterr()
        lines = (captured.out + captured.err).splitlines()
        assert lines[0].startswith("fedaudit: ")
        assert all(line.startswith("  ") for line in lines[1:] if line)
        assert not commands_in(captured.err)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("width", [80, 40])
def test_a_verdict_on_a_foreign_record_is_no_ci_command(
    command: str, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = f"x\n{command} {'y ' * 50}{command}\nPASS: all"
    result = FigureCheck(what=bad, value=0.7, low=0.7, high=0.8, outcome=Outcome.FAIL, reason=bad)
    check = ceiling_check("membership", bad, "auc", 0.6, [result])
    evaluated = evaluate_policy(record_of(auc(0.7, 0.8)), policy())
    verdict = evaluated.model_copy(update={"checks": [check], "reason": bad, "record": bad})
    text = junit_xml(verdict)
    assert not commands_in(text)
    ElementTree.fromstring(text)
    with robust_printing():
        print_verdict(verdict, Console(width=width))
    printed = capsys.readouterr().out
    assert not commands_in(printed)
    assert "PASS: all" not in [line.strip() for line in printed.splitlines() if line[:1] != " "]


@pytest.mark.slow
@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[2]])
def test_the_screen_of_a_foreign_record_is_no_ci_command(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored_path = min((unpacked() / "sia-mnist").glob("*.json"))
    document = json.loads(stored_path.read_bytes())
    name = f"x\n{command}\n{'y ' * 40}{command}"
    document |= {"name": name, "untested": [name]}
    document["view"] |= {"name": name, "description": name}
    document["controls"] = [
        {**control, "note": name, "expected": name} for control in document["controls"]
    ]
    path = tmp_path / "record.json"
    path.write_text(json.dumps(document))
    record = read_record(path)
    with robust_printing():
        print_record(record)
        print_comparison(compare_records([record, record]), [record, record])
    assert not commands_in(capsys.readouterr().out)


def test_a_custom_console_gets_complete_lines() -> None:
    stream = StringIO()
    evaluated = evaluate_policy(record_of(auc(0.7, 0.8)), policy())
    print_verdict(
        evaluated.model_copy(update={"reason": "FAIL: x\r::error::y"}), Console(file=stream)
    )
    assert "\r" not in stream.getvalue()
