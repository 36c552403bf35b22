"""The user's function that makes a recorder is found by name, or refused before anybody trains."""

import importlib.util
from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.integrations.nvflare.ledger import made, name_of
from fedaudit.live.recorder import Recorder, record
from tests.live.federation import data, network

HERE = __name__


def whole(folder: Path) -> Recorder:
    return record(folder, network, data().split.audit, attacks=("avg-cosine",))


def changes(folder: Path) -> Recorder:
    audit = data().split.audit
    return record(folder, network, audit, attacks=("avg-cosine",), uploads="updates")


def nothing(folder: Path) -> None:
    pass


def test_a_function_is_made_a_name_and_found_again(tmp_path: Path) -> None:
    assert name_of(whole) == f"{HERE}:whole" == name_of(f"{HERE}:whole")
    assert made(name_of(whole), tmp_path).recording.attacks == ("avg-cosine",)


@pytest.mark.parametrize("makes", [lambda folder: None, "whole", "a b:c", "__main__:whole", "os:"])
def test_what_no_other_process_finds_is_refused(makes: object) -> None:
    with pytest.raises(BadInput, match="in the server's process, which cannot find"):
        name_of(makes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:whole", "add its file to the job with add_server_file"),
        (f"{HERE}:no_such", "add its file to the job with add_server_file"),
        (f"{HERE}:nothing", "makes None; return what fedaudit.record returns"),
        (f"{HERE}:changes", "makes a recorder of updates; leave uploads out"),
    ],
)
def test_what_makes_no_recorder_of_models_is_refused(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=says):
        made(name, tmp_path)


def test_the_package_is_imported_without_nvflare_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import fedaudit.integrations.nvflare as package

    monkeypatch.setattr(package, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"install \"fedaudit\[nvflare\]\""):
        package.__getattr__("RecordingFilter")
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        package.__getattr__("other")
    if importlib.util.find_spec("nvflare") is None:
        monkeypatch.undo()
        with pytest.raises(ImportError, match="needs NVFlare"):
            from fedaudit.integrations.nvflare import RecordingFilter  # noqa: F401
