"""How the Ray engine is asked for, and what is said where Ray is missing."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec

import pytest

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.engines import ray_cluster
from fedaudit.engines.local import engine_named
from fedaudit.engines.ray_cluster import RayCluster
from tests.programs import exit_code


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: ModuleSpec(name, None))


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("ray", "local"),
        ("ray:auto", "auto"),
        ("ray:10.0.0.1:6379", "10.0.0.1:6379"),
        ("ray://head:10001", "ray://head:10001"),
    ],
)
def test_the_name_of_an_engine_states_the_cluster(name: str, address: str) -> None:
    assert engine_named(name, 3) == RayCluster(address, 3)


@pytest.mark.parametrize("name", ["flower", "ray:", "Ray", ""])
def test_an_unknown_engine_is_refused_with_the_existing_names(name: str) -> None:
    with pytest.raises(BadInput, match=r'no engine named .* "ray:auto"'):
        engine_named(name, 1)


@pytest.mark.usefixtures("missing")
def test_the_local_engine_needs_no_ray() -> None:
    assert engine_named("local", 1) is None


@pytest.mark.usefixtures("missing")
def test_missing_ray_raises_with_install_command() -> None:
    with pytest.raises(Unsupported, match=r"pip install 'fedaudit\[ray\]'"):
        engine_named("ray", 1)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("address", "workers"), [("local", -1), ("", 1)])
def test_an_impossible_cluster_is_refused(address: str, workers: int) -> None:
    with pytest.raises(BadInput):
        RayCluster(address, workers)


@pytest.mark.usefixtures("installed")
def test_a_local_cluster_has_one_worker_per_core_by_default() -> None:
    assert RayCluster().count >= 1
    assert RayCluster(workers=5).count == 5


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_the_command_line_refuses_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("run", "studies/fedmia-mnist.toml", "--engine", "ray") == 2
    assert "fedaudit[ray]" in capsys.readouterr().err


def test_ray_is_not_imported_by_naming_it() -> None:
    before = "ray" in sys.modules
    RayCluster(workers=2) if importlib.util.find_spec("ray") else None
    assert ("ray" in sys.modules) == before
