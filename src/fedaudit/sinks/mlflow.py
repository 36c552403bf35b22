"""Figures in MLflow."""

import time
from pathlib import Path
from typing import Any

from fedaudit.core.errors import Unsupported
from fedaudit.sinks.base import import_library

_MAX_BATCH = 1000
"""Largest number of metrics in one request to MLflow."""


class MLflow:
    """Run of MLflow, in the experiment and on the server that MLflow is configured for.

    Metrics are sent together by :meth:`flush`, since each request to a server takes a while.

    If a run is active, figures are logged to it. Otherwise a run is started, which does not become
    the active run, so that a training loop can start its own. A local database, MLflow's default,
    needs the whole package ``mlflow``; the extra of fedaudit installs the client for a server.
    """

    def __init__(self, name: str, folder: Path) -> None:
        mlflow = import_library("mlflow", "mlflow")
        try:
            self._client = mlflow.MlflowClient()
        except ImportError as error:
            # The extra installs mlflow-skinny, which has no libraries for databases.
            raise Unsupported(
                f"MLflow cannot open its store {mlflow.get_tracking_uri()!r} ({error}); run pip "
                "install mlflow, or set the environment variable MLFLOW_TRACKING_URI to the "
                "address of an MLflow server"
            ) from error
        self._new_metric: Any = mlflow.entities.Metric
        self._collected: list[Any] = []
        self._is_own = mlflow.active_run() is None
        run = mlflow.active_run() or mlflow.start_run(run_name=name)
        self._run: str = run.info.run_id
        if self._is_own:
            mlflow.end_run("RUNNING")

    def metric(self, name: str, value: float, step: int | None) -> None:
        """Collect a metric of the run."""
        self._collected.append(self._new_metric(name, value, int(1000 * time.time()), step or 0))

    def flush(self) -> None:
        """Send the collected metrics."""
        collected, self._collected = self._collected, []
        for start in range(0, len(collected), _MAX_BATCH):
            self._client.log_batch(self._run, metrics=collected[start : start + _MAX_BATCH])

    def text(self, name: str, value: str) -> None:
        """Set a tag of the run."""
        self._client.set_tag(self._run, f"fedaudit.{name}", value)

    def artifact(self, path: Path) -> None:
        """Upload a file to the run."""
        self._client.log_artifact(self._run, str(path))

    def close(self) -> None:
        """Send the collected metrics, and end the run unless it was started elsewhere."""
        self.flush()
        if self._is_own:
            self._client.set_terminated(self._run)
