"""Figures of a finished audit for a sink."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fedaudit.formatting.wording import client_name, printable_record
from fedaudit.report.first import first_of_record
from fedaudit.report.page import write_report
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.record import Record
from fedaudit.sinks import open_sinks
from fedaudit.sinks.base import Sink, SinkLike
from fedaudit.summary.page import summary_markdown

_MAX_NAME, _MAX_TEXT = 240, 5000
"""Limits of MLflow for names of metrics and values of tags."""


class Metric(NamedTuple):
    """A number of an audit; the step is its round, or None."""

    name: str
    value: float
    step: int | None = None


def log_audit(
    record: Record, to: SinkLike | Sequence[SinkLike], folder: Path, *, artifacts: bool
) -> None:
    """Log an audit to sinks in runs of their own.

    Args:
        record: The audit's record.
        to: The sinks; see :func:`fedaudit.sinks.open_sinks`.
        folder: Folder for files of sinks that write to a folder.
        artifacts: Whether to log report and summary, too. They have no pictures of samples.
    """
    sink = open_sinks(to, record.name, folder)
    try:
        with TemporaryDirectory() as temporary:
            report, summary = Path(temporary) / "report.html", Path(temporary) / "summary.md"
            if artifacts:
                write_report(record, report)
                summary.write_text(summary_markdown(record), encoding="utf-8")
            log_record(record, sink, *[report, summary] if artifacts else [])
    finally:
        sink.close()


def log_record(record: Record, sink: Sink, *files: Path) -> None:
    """Log estimates, verdict and files of an audit.

    Samples, labels and scores are never logged. Clients have the names of the report.

    Args:
        record: The audit's record.
        sink: The sink, which stays open.
        files: Files to log, such as the report.
    """
    safe = printable_record(record, name_attack=str)
    for metric in metrics_of(safe):
        sink.metric(*metric)
    first = first_of_record(printable_record(record))
    texts = {
        "audit": safe.name,
        "verdict": first.status,
        "finding": first.finding,
        "controls": first.controls,
        "view": safe.view.name,
        "content_hash": record.content_hash,
        "model": _models_text(record),
    }
    for name, text in texts.items():
        if text:
            sink.text(name, text[:_MAX_TEXT])
    for path in files:
        sink.artifact(path)


def _models_text(record: Record) -> str:
    """Return the digests of the models after the last round."""
    if record.coverage is None:
        return ""
    several = record.coverage.several_final_models
    texts = [f"{label}: {digest}" for label, digest in several.items()]
    return ", ".join(texts) or record.coverage.final_model


def metrics_of(record: Record) -> Iterator[Metric]:
    """Yield the estimates over all runs of an audit, then accuracies and signals by round.

    Limits have the name of their estimate and "_low" or "_high": MLflow stores a metric as a file,
    so no name may continue another one with a slash. With several seeds, only estimates
    over all seeds are yielded, since the record has those of single runs.
    """
    several = len(record.seeds) > 1
    for estimate in record.estimates:
        if not (several and estimate.seed is not None):
            name = metric_name(estimate)
            limits = {"": estimate.value, "_low": estimate.low, "_high": estimate.high}
            for suffix, value in limits.items():
                if value is not None:
                    yield Metric(f"{name}{suffix}", value)
    for accuracy in record.accuracies:
        name = path_of("by_round", accuracy.defense, _seed(accuracy.seed, several), "test_accuracy")
        for index, value in zip(accuracy.rounds, accuracy.accuracy, strict=True):
            yield Metric(name, value, index)
    for line in record.trajectories:
        name = path_of(
            "by_round",
            line.defense,
            _seed(line.seed, several),
            client_name(line.target),
            line.signal,
            line.origin,
        )
        for index, mean in zip(line.rounds, line.mean, strict=True):
            if mean is not None:
                yield Metric(name, mean, index)


def metric_name(estimate: Estimate) -> str:
    """Return the path of an estimate: "membership/fedmia-2/unseen/client-0/auc"."""
    is_membership = estimate.topic == "membership" or bool(estimate.attack)
    against = f"_minus_{estimate.against}" if estimate.against else ""
    return path_of(
        estimate.topic,
        estimate.algorithm,
        estimate.attack,
        estimate.defense,
        estimate.contrast if is_membership else "",
        f"{estimate.unit}s" if estimate.unit != "sample" else "",
        "" if estimate.target is None else client_name(estimate.target),
        f"within_{estimate.within}" if estimate.within else "",
        f"{estimate.by}_{estimate.group}" if estimate.by else estimate.group,
        estimate.point,
        estimate.metric + against,
    )


def path_of(*parts: str) -> str:
    """Return names as one path, with characters that all sinks accept."""
    cleaned = (
        re.sub(r"[^A-Za-z0-9_.-]+", "-", part.replace("@", "_at_")).strip("-.")
        for part in parts
        if part and part != NO_DEFENSE
    )
    return "/".join(filter(None, cleaned))[:_MAX_NAME]


def _seed(seed: int, several: bool) -> str:
    return f"seed-{seed}" if several else ""
