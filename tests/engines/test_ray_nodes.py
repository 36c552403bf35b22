"""A simulated Ray cluster of two machines, of which one fails during a round."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import pytest

from fedaudit.engines.ray_cluster import RayCluster
from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study

pytest.importorskip("ray")

pytestmark = pytest.mark.slow

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[object, object], object]

PATIENCE = 60.0


class Task(NamedTuple):
    work: Work
    shared: object
    head: str
    marker: Path


def killing_its_machine_in_round_2(task: Task, item: object) -> object:
    """Do the work; in round 2, kill the second machine before there is a result."""
    import ray

    client_context = getattr(item, "client_context", None)
    if client_context is not None and client_context.round == 2:
        if ray.get_runtime_context().get_node_id() != task.head:
            task.marker.touch()
            # The parent of the workers is Ray's process for the machine.
            os.kill(os.getppid(), 9)
            os.kill(os.getpid(), 9)
        deadline = time.monotonic() + PATIENCE
        while not task.marker.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    return task.work(task.shared, item)


def noting_its_machine(task: Task, item: object) -> object:
    """Do the work, and write a file with the name of the machine."""
    import ray

    (task.marker / ray.get_runtime_context().get_node_id()).touch()
    return task.work(task.shared, item)


@dataclass(frozen=True)
class WrappedEngine:
    """A Ray engine in which a given function does the work for each item."""

    engine: RayCluster
    done_by: Callable[[Task, object], object]
    marker: Path

    @property
    def count(self) -> int:
        return self.engine.count

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        import ray

        assert self.count == 2  # This connects to Ray.
        head = ray.get_runtime_context().get_node_id()
        task = Task(cast(Work, work), shared, head, self.marker)
        with self.engine.session(self.done_by, task) as run:
            yield cast(Callable[[Iterable[Item]], Iterator[Result]], run)


@pytest.fixture
def two_machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    """Two machines of one core each, whose loss is noticed within seconds."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from ray.cluster_utils import Cluster

    soon = {
        "health_check_initial_delay_ms": 500,
        "health_check_period_ms": 300,
        "health_check_timeout_ms": 1000,
        "health_check_failure_threshold": 3,
    }
    # Starting a node replaces the handler.
    before = signal.getsignal(signal.SIGTERM)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": soon})
    cluster.add_node(num_cpus=1)
    signal.signal(signal.SIGTERM, before)
    engine = RayCluster(cluster.address)
    yield engine
    engine.close()
    cluster.shutdown()


def test_a_study_on_two_machines_has_the_same_hash_as_on_one(
    two_machines: RayCluster, tmp_path: Path
) -> None:
    # Two blocks of samples, so that both machines measure as well.
    study = quick_study(training={"rounds": 2}, audit={"fair": 300})
    local_record = run_study(study, tmp_path / "here")
    machines = tmp_path / "machines"
    machines.mkdir()
    engine = WrappedEngine(two_machines, noting_its_machine, machines)
    assert (
        run_study(study, tmp_path / "there", engine=engine).content_hash
        == local_record.content_hash
    )
    assert len(list(machines.iterdir())) == 2, "both have worked"


def test_a_lost_machine_does_not_change_the_hash_of_a_study(
    two_machines: RayCluster, tmp_path: Path
) -> None:
    study = quick_study(training={"rounds": 3})
    local_record = run_study(study, tmp_path / "here")
    marker = tmp_path / "lost"
    engine = WrappedEngine(two_machines, killing_its_machine_in_round_2, marker)
    record = run_study(study, tmp_path / "there", engine=engine)
    assert marker.exists()
    assert record.content_hash == local_record.content_hash
