"""Hostile TOML files are refused before parsing becomes slow."""

import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.cli.running import settings_from
from fedaudit.core.errors import BadInput
from fedaudit.games.run import read_points
from fedaudit.gate.policy import read_policy
from fedaudit.plan.file import read_studies
from fedaudit.plan.values import parse_toml, read_toml
from tests.study.studies import quick_study

DOTS = ".".join(["a"] * 200_000)
"""400 kB."""


@pytest.mark.parametrize(
    "text",
    [
        f"{DOTS} = 1",
        f"[{DOTS}]",
        f"[[{DOTS}]]",
        f"x = {{{DOTS} = 1}}",
        f'name = "#"\n{DOTS.replace(".", " . ")} = 1',
        '."a"' * 100_000 + " = 1",
        '"a".' * 100_000 + "'a' = 1",
        "x = '''\n'''\n" + f"{DOTS} = 1",
        'x = """\\""""\n' + f"{DOTS} = 1",
        'x = """a""""" # "\n' + f"{DOTS} = 1",
        "x = [" * 100_000,
        "x = {y = " * 50_000,
    ],
    ids=lambda text: f"{text[:12]!r}",
)
def test_long_runs_of_dots_or_brackets_are_refused_within_a_second(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(text)
    for read in (read_studies, read_policy, read_points):
        start = time.process_time()
        with pytest.raises(BadInput):
            read(path)
        assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "text",
    [
        f'x = "{DOTS}"',
        f"x = '{DOTS}'",
        f'x = """\n{DOTS}\n"""',
        f"x = '''{DOTS}'''",
        f"x = 1 # {DOTS}",
        f'x = """\\"{DOTS}"""',
        f"x = [{'0.5, ' * 1000}]",
        "[a.b]\n" * 1 + "\n".join(f"k{i}.x.y = 1.5" for i in range(1000)),
        "x = " + "1" * 4000 + ".5",
    ],
    ids=lambda text: f"{text[:12]!r}",
)
def test_dots_that_separate_no_parts_of_a_key_are_read(text: str) -> None:
    assert parse_toml(text, "it") == tomllib.loads(text)


PIECES = st.lists(
    st.sampled_from(
        ['"', "'", '"""', "'''", "#", "\n", "a", ".", "=", " ", "\\", "a.b", "x = 1\n", "[", "]"]
    ),
    max_size=40,
).map("".join)


@settings(max_examples=300)
@given(PIECES, st.booleans())
def test_toml_files_are_accepted_except_for_long_keys(before: str, deep: bool) -> None:
    try:
        values = tomllib.loads(before)
    except tomllib.TOMLDecodeError:
        return
    key = ".".join(["zz"] * (40 if deep else 20))
    text = f"{before}\n{key} = 1"
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # the key is there, or cannot stand there
        return
    assert parse_toml(before, "it") == values
    if deep:
        with pytest.raises(BadInput, match="more than 32 levels of tables"):
            parse_toml(text, "it")
    else:
        assert parse_toml(text, "it") == tomllib.loads(text)


@pytest.mark.parametrize("digits", ["0x" + "f" * 3700, "0x" + "f" * 17, "-" + "9" * 20])
def test_a_whole_number_of_over_64_bits_is_refused(digits: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(f"[training]\nrounds = {digits}\n")
    for read in (read_studies, read_policy, read_points, lambda path: read_toml(path, "it")):
        with pytest.raises(BadInput, match="more than 64 bits"):
            read(tmp_path / "x.toml")
    with pytest.raises(BadInput, match="more than 64 bits"):
        settings_from([f"--training.rounds={digits}"])


@pytest.mark.parametrize("table", ['[variants.y]\n"{}" = 1', '[grid]\n"{}" = [1, 2]'])
def test_a_setting_of_many_dots_in_quotes_is_refused_too(table: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(f'name = "x"\n{table.format(DOTS)}\n')
    with pytest.raises(BadInput, match="more than 32 levels of tables"):
        read_studies(tmp_path / "x.toml")
    with pytest.raises(BadInput, match="more than 32 levels of tables"):
        settings_from([f"--training.{DOTS}=1"])


def test_a_misspelt_file_gets_the_nearest_name_in_its_folder(tmp_path: Path) -> None:
    for name in ("policy.toml", "fedmia-mnist.toml", "polcy.json"):
        (tmp_path / name).write_text("")
    with pytest.raises(BadInput, match=r"polcy\.toml does not exist; did you mean \S*policy\.toml"):
        read_policy(tmp_path / "polcy.toml")
    with pytest.raises(BadInput, match=r"did you mean \S*/fedmia-mnist\.toml\? give the path"):
        read_studies(tmp_path / "fedmia-mnst")
    with pytest.raises(BadInput, match="does not exist; give the path of a TOML file"):
        read_toml(tmp_path / "nowhere" / "policy.toml", "the policy")


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b'\xef\xbb\xbfname = "x"\r\nseeds = [1, 2]\r\n')
    assert read_studies(path)[0].seeds == (1, 2)
    path.write_bytes(b'\xef\xbb\xbf# a policy\nname = "loose"\n')
    assert read_policy(path).name == "loose"
    assert parse_toml("\ufeffa = 1", "it") == {"a": 1}


def test_the_study_in_the_folder_of_a_run_is_read_as_a_study(tmp_path: Path) -> None:
    study = quick_study(seeds=[1, 2], figures={"planted_leak": True})
    path = tmp_path / "study.json"
    for text in (study.model_dump_json(indent=1), "\ufeff" + study.model_dump_json()):
        path.write_text(text, encoding="utf-8")
        assert read_studies(path) == [study]
    path.write_text('{"name": "x", "data": ')
    with pytest.raises(BadInput, match="is not valid JSON"):
        read_studies(path)
    path.write_text('{"name": "x", "sedes": [1]}')
    with pytest.raises(BadInput, match="did you mean 'seeds'"):
        read_studies(path)


@pytest.mark.parametrize("name", ["studies/fedmia-mnist.toml", "examples/own-parts/study.toml"])
def test_missing_repository_files_raise_with_advice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="in a checkout of fedaudit"):
        read_studies(Path(name))
