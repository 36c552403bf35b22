"""The Ray engine: contract, and results identical to the local engine."""

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import pytest
import torch

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.importing import add_module_folders
from fedaudit.engines.base import CountedEngine, Engine
from fedaudit.engines.ray_cluster import RayCluster
from fedaudit.study.running.run import run_study
from tests.engines import contract
from tests.study.studies import small_study

pytest.importorskip("ray")

from ray.exceptions import RayError

pytestmark = pytest.mark.slow

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")

# The samples are four blocks, so that several workers measure.
STUDY = small_study(
    training={"rounds": 2, "epochs": 1},
    audit={"fair": 450, "background": 450, "every": 1},
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster with two workers for all tests, since starting Ray takes seconds."""
    engine = RayCluster(workers=2)
    with engine.session(contract.product, 1) as run:
        list(run([1]))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def local_hash(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the hash of the study without workers."""
    return hashed(tmp_path_factory.mktemp("here"), None)


def hashed(folder: Path, engine: CountedEngine | None) -> str:
    return run_study(STUDY, folder, engine=engine).content_hash


CONTRACT: tuple[Callable[[Engine], None], ...] = (
    contract.results_come_in_the_order_of_the_items,
    contract.errors_are_raised_unchanged,
    contract.tensors_are_sent_unchanged,
    contract.received_tensors_can_be_written_to,
    contract.an_item_finds_its_shard,
    contract.work_is_done_on_one_thread,
)


@pytest.mark.parametrize("clause", CONTRACT, ids=[clause.__name__ for clause in CONTRACT])
def test_ray_keeps_the_contract_of_engines(
    clause: Callable[[Engine], None], cluster: RayCluster
) -> None:
    assert isinstance(cluster, Engine)
    assert isinstance(cluster, CountedEngine)
    clause(cluster)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_study_has_the_same_hash_on_any_number_of_workers(
    workers: int, cluster: RayCluster, local_hash: str, tmp_path: Path
) -> None:
    assert hashed(tmp_path, RayCluster(workers=workers)) == local_hash


def warning(shared: object, text: str) -> None:
    logging.getLogger("fedaudit").warning(text)


def test_log_messages_of_workers_are_shown_once(
    cluster: RayCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.session(warning, ()) as run:
        list(run(["the slower exact way"] * 3))
    assert caplog.messages == ["the slower exact way"]


def test_script_definitions_are_sent_and_unpicklable_values_refused(
    cluster: RayCluster,
) -> None:
    def sum_of(shared: int, item: int) -> int:
        return shared + item

    with cluster.session(sum_of, 1) as run:
        assert list(run([1])) == [2]
    with (
        pytest.raises(Unsupported, match=r"cannot be sent to other processes"),
        cluster.session(contract.untouched, threading.Lock()),
    ):
        pass


def test_a_model_that_all_items_share_is_packed_once() -> None:
    from fedaudit.engines.ray_tasks import pack_all

    model, separate = torch.ones(1000), [torch.zeros(10), torch.zeros(10)]
    parcels = pack_all(
        [{"model": model, "own": tensor} for tensor in separate], put=lambda part: part
    )
    assert [array.size for array in parcels.common] == [1000]
    assert [[type(part) for part in parcel.arrays] for parcel in parcels.parcels] == [
        [int, type(parcels.common[0])]
    ] * 2


def test_another_version_on_the_cluster_is_refused(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedaudit.engines import ray_tasks

    # Workers use the real version.
    monkeypatch.setattr(ray_tasks, "VERSIONS", ray_tasks.VERSIONS._replace(torch="1.0"))
    with (
        cluster.session(contract.product, 1) as run,
        pytest.raises(
            Unsupported, match=r"a machine of the cluster has .* instead of .* with 1\.0"
        ),
    ):
        list(run([1]))


def test_no_cluster_at_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refuse(**settings: object) -> None:
        raise ConnectionError("could not find any running Ray instance")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(BadInput, match=r"cannot connect to Ray at 'auto': could not find"):
        _ = RayCluster("auto").count


def test_workers_import_modules_next_to_a_study(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "beside_a_study.py").write_text(
        "def times(shared, item):\n    return shared * item\n"
    )
    add_module_folders([str(tmp_path)])
    work = importlib.import_module("beside_a_study").times
    with cluster.session(work, 3) as run:
        assert list(run([1, 2])) == [3, 6]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to connect to Ray cluster at 10.0.0.1:6379. Please check that"),
        RayError("Token authentication is enabled but no authentication token was found. Ensure"),
    ],
)
def test_a_failed_connection_explains_the_token_of_clusters(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refuse(**settings: object) -> None:
        raise error

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(
        BadInput, match=r"InvalidAuthToken.*set RAY_AUTH_MODE=token here"
    ) as refusal:
        _ = RayCluster("10.0.0.1:6379").count
    assert str(error).split(". ")[0] in str(refusal.value), "the address is cut at its first point"


# These tests are the last, since it takes seconds to replace killed workers.


@dataclass(frozen=True)
class KillingEngine:
    """An engine whose workers are killed, once while training and once while measuring.

    Attributes:
        engine: The engine.
        folder: Folder for marks of killed workers.
    """

    engine: RayCluster
    folder: Path

    @property
    def count(self) -> int:
        return self.engine.count

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        task = Task(cast(Callable[[object, object], object], work), shared, self.folder)
        with self.engine.session(killed_in_round_2, task) as run:
            yield cast(Callable[[Iterable[Item]], Iterator[Result]], run)


class Task(NamedTuple):
    work: Callable[[object, object], object]
    shared: object
    folder: Path


def killed_in_round_2(task: Task, item: object) -> object:
    context = getattr(item, "client_context", None)
    position = (context.round, context.client) if context else (item.round.index, item.number)  # type: ignore[attr-defined]
    marker = task.folder / task.work.__name__
    if position == (2, 1) and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), 9)
    return task.work(task.shared, item)


def test_killed_workers_do_not_change_the_hash_of_a_study(
    cluster: RayCluster, local_hash: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    died = tmp_path / "died"
    died.mkdir()
    with caplog.at_level(logging.WARNING, "fedaudit"):
        study_hash = hashed(tmp_path / "study", KillingEngine(RayCluster(workers=2), died))
    assert sorted(path.name for path in died.iterdir()) == ["_measure_block", "run_client"]
    assert caplog.text.count("a Ray worker was lost") >= 2
    assert study_hash == local_hash


def always_killed(shared: object, item: object) -> None:
    os.kill(os.getpid(), 9)


def test_work_that_kills_every_worker_is_abandoned(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedaudit.engines import ray_tasks

    monkeypatch.setattr(ray_tasks, "_MAX_LOSSES", 2)
    with (
        cluster.session(always_killed, ()) as run,
        pytest.raises(MemoryError, match=r"lost 2 times .* fewer"),
    ):
        list(run([0]))
