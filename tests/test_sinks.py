"""Figures in MLflow, TensorBoard, Weights & Biases and custom sinks."""

import re
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import fedaudit as fa
from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.sinks import SINKS, open_sinks
from fedaudit.sinks.base import Sink
from fedaudit.sinks.records import Metric, log_record, metrics_of
from tests.live.federation import recorder, rounds
from tests.report.records import HOSTILE, hostile, record
from tests.study.studies import SMALL


class Memory:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        self.texts: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.closed = 0

    def metric(self, name: str, value: float, step: int | None) -> None:
        self.metrics.append(Metric(name, value, step))

    def text(self, name: str, value: str) -> None:
        self.texts[name] = value

    def artifact(self, path: Path) -> None:
        self.files[path.name] = path.read_text(encoding="utf-8")

    def close(self) -> None:
        self.closed += 1

    def names(self) -> set[str]:
        return {metric.name for metric in self.metrics}


class Broken(Memory):
    """A sink whose server does not answer after a few calls."""

    def metric(self, name: str, value: float, step: int | None) -> None:
        raise ConnectionError("no answer from\nserver")


def test_every_estimate_is_a_metric_with_its_limits() -> None:
    first = record(details=False)
    metrics = list(metrics_of(first))
    by_name = {metric.name: metric.value for metric in metrics}
    assert len(by_name) == len(
        {(metric.name, metric.step) for metric in metrics if not metric.step}
    )
    several = len(first.seeds) > 1
    shown = [e for e in first.estimates if not (several and e.seed is not None)]
    numbers = sum(n is not None for e in shown for n in (e.value, e.low, e.high))
    assert numbers == sum(metric.step is None for metric in metrics)
    assert all(re.fullmatch(r"[A-Za-z0-9_./-]+", name) for name in by_name)
    auc = next(e for e in shown if e.metric == "auc" and e.attack == "fedmia-2" and e.low)
    name = next(n for n in by_name if n.startswith("membership/fedmia-2/") and n.endswith("/auc"))
    assert f"{name}_low" in by_name
    assert auc.value in by_name.values()


def test_signals_and_accuracies_are_logged_by_round() -> None:
    metrics = [metric for metric in metrics_of(record()) if metric.step is not None]
    assert {metric.name.split("/")[0] for metric in metrics} == {"by_round"}
    assert len({metric.step for metric in metrics}) > 1


def test_texts_have_the_verdict_and_no_unsafe_names() -> None:
    sink = Memory()
    log_record(hostile(), sink)
    assert sink.texts["verdict"]
    assert sink.texts["content_hash"] == hostile().content_hash
    assert not any("<" in name or " " in name for name in sink.names())
    assert all(value.isprintable() for value in sink.texts.values())
    assert HOSTILE not in sink.names()


def test_a_result_is_logged_with_report_and_summary(audited: fa.Run) -> None:
    sink = Memory()
    audited.log_to(sink)
    assert set(sink.files) == {"report.html", "summary.md"}
    assert sink.texts["content_hash"] == audited.record.content_hash
    assert "membership/loss-series/mixed/client-0/auc" in sink.names()
    assert sink.closed == 1
    without = Memory()
    audited.log_to([without, sink], artifacts=False)
    assert without.files == {}
    assert without.names() == sink.names()


def test_unknown_sinks_and_missing_libraries_are_refused(
    audited: fa.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match=r"no sink named 'mlfow'; did you mean 'mlflow'"):
        audited.log_to("mlfow")
    with pytest.raises(BadInput, match="has the methods metric, text, artifact and close"):
        audited.log_to(3)  # type: ignore[arg-type]

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("fedaudit.sinks.base.import_module", missing)
    for name in SINKS:
        with pytest.raises(Unsupported, match=rf"pip install 'fedaudit\[{name}\]'"):
            audited.log_to(name)


def test_a_recording_sends_figures_of_each_round(tmp_path: Path) -> None:
    sink = Memory()
    with recorder(tmp_path, to=sink) as recording:
        for live in rounds():
            recording.round(live.number, sent=live.sent, uploads=live.uploads, after=live.after)
            assert max(metric.step or 0 for metric in sink.metrics) == live.number
    aucs = [m for m in sink.metrics if m.name == "membership/blackbox-loss/unseen/client-0/auc"]
    assert [metric.step for metric in aucs] == [live.number for live in rounds()]
    assert {"round/uploads", "round/missing_uploads", "round/measuring_seconds"} <= sink.names()
    assert any(name.endswith("/auc_high") for name in sink.names())
    assert sink.texts["view"] == "uploads"
    assert sink.closed == 1
    final = fa.attack_recording(
        tmp_path, ["blackbox-loss"], tmp_path / "attacked", figures=SMALL["figures"]
    )
    auc = next(e for e in final.where(attack="blackbox-loss") if e.contrast == "unseen")
    assert aucs[-1].value == pytest.approx(auc.value)


def test_late_measurements_are_sent_for_their_round(tmp_path: Path) -> None:
    now, late = Memory(), Memory()
    for folder, sink, measure in (("now", now, "now"), ("late", late, "after")):
        with recorder(tmp_path / folder, to=sink, measure=measure) as recording:
            for live in rounds():
                recording.round(live.number, sent=live.sent, uploads=live.uploads)
    aucs = [
        {(m.name, m.step): m.value for m in sink.metrics if m.name.startswith("membership/")}
        for sink in (now, late)
    ]
    assert aucs[0] == pytest.approx(aucs[1])


def test_a_sink_that_fails_warns_once_and_the_recording_continues(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with recorder(tmp_path, to=Broken(), strict=True) as recording:
            for live in rounds():
                recording.round(live.number, sent=live.sent, uploads=live.uploads)
    texts = [str(warning.message) for warning in caught if "sink" in str(warning.message)]
    assert len(texts) == 1
    assert "ConnectionError" in texts[0]
    assert "\n" not in texts[0]
    assert len(recording.measured) == len(list(rounds()))


def test_a_sink_that_cannot_be_opened_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: object) -> Sink:
        raise ConnectionError("refused")

    monkeypatch.setattr("fedaudit.live.sending.open_sinks", unreachable)
    with pytest.warns(RuntimeWarning, match="the recording continues"):
        recorder(tmp_path, to="mlflow").close()


@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
def test_a_store_that_needs_the_whole_mlflow_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setitem(sys.modules, "alembic", None)
    monkeypatch.delitem(sys.modules, "mlflow.store.db.utils", raising=False)
    monkeypatch.delitem(sys.modules, "mlflow.store.tracking.sqlalchemy_store", raising=False)
    with pytest.raises(Unsupported, match=r"run pip install mlflow, or set .*MLFLOW_TRACKING_URI"):
        open_sinks("mlflow", "run", tmp_path)


@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_metrics_tags_and_files(
    audited: fa.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    audited.log_to("mlflow")
    assert mlflow.active_run() is None
    (run,) = mlflow.MlflowClient().search_runs(["0"])
    assert run.info.status == "FINISHED"
    assert run.data.tags["fedaudit.content_hash"] == audited.record.content_hash
    logged = {metric.name: metric.value for metric in metrics_of(audited.record)}
    assert run.data.metrics.keys() == logged.keys()
    files = {file.path for file in mlflow.MlflowClient().list_artifacts(run.info.run_id)}
    assert files == {"report.html", "summary.md"}
    with mlflow.start_run() as active:
        audited.log_to("mlflow", artifacts=False)
        assert mlflow.active_run().info.run_id == active.info.run_id
    assert mlflow.get_run(active.info.run_id).data.metrics.keys() == logged.keys()


@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_the_metrics_of_each_round_in_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    sent = []
    log_batch = mlflow.MlflowClient.log_batch

    def counted(client: Any, run_id: str, metrics: Any) -> None:
        sent.append({metric.step for metric in metrics})
        log_batch(client, run_id, metrics=metrics)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", counted)
    with recorder(tmp_path / "live", to="mlflow") as live:
        for count, each in enumerate(rounds(), 1):
            live.round(each.number, sent=each.sent, uploads=each.uploads)
            assert len(sent) == count, "a round is sent when it is measured"
    assert sent == [{each.number} for each in rounds()]
    (run,) = mlflow.MlflowClient().search_runs(["0"])
    assert any(name.endswith("/auc_low") for name in run.data.metrics)


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard is not installed")
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_scalars_and_texts(audited: fa.Run) -> None:
    audited.log_to("tensorboard")
    folder = audited.folder / "tensorboard"
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    logged = {metric.name for metric in metrics_of(audited.record)}
    assert set(events.Tags()["scalars"]) == logged
    assert "verdict/text_summary" in events.Tags()["tensors"]
    assert (folder / "report.html").is_file()


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
@pytest.mark.filterwarnings("ignore")
def test_wandb_runs_are_offline_by_default(
    audited: fa.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    audited.log_to("wandb")
    assert list((audited.folder / "wandb").glob("offline-run-*"))


@pytest.mark.filterwarnings("ignore")
def test_an_active_run_of_wandb_receives_every_metric(audited: fa.Run, tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    with wandb.init(mode="offline", dir=str(tmp_path)) as active:
        audited.log_to("wandb")
        assert wandb.run is active
        summary = dict(active.summary)
    for metric in metrics_of(audited.record):
        if metric.step is None:
            assert summary[metric.name] == pytest.approx(metric.value)
    assert {metric.name for metric in metrics_of(audited.record)} <= set(summary)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> fa.Run:
    federation = fa.Federation("digits", clients=3, training=fa.Training(rounds=2))
    out = tmp_path_factory.mktemp("audited") / "run"
    return fa.audit(federation, attacks=["loss-series"], out=out)


def test_sinks_are_files_with_the_methods_of_the_protocol() -> None:
    assert list(SINKS) == ["mlflow", "tensorboard", "wandb"]
    assert all(issubclass(kind, Sink) for kind in SINKS.values())
    assert isinstance(open_sinks([Memory(), Memory()], "x", Path()), Sink)
