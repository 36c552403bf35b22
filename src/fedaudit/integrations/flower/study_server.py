"""A study as the server of a Flower run carries it out."""

from collections.abc import Mapping
from pathlib import Path
from time import monotonic

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedaudit.engines.local import local_engine
from fedaudit.errors import Refusal
from fedaudit.integrations.flower.study_nodes import FlowerNodes
from fedaudit.integrations.flower.study_settings import studies_of
from fedaudit.progress import Tick
from fedaudit.report.page import write_report
from fedaudit.report.terminal import print_record
from fedaudit.study.run import run_study
from fedaudit.study.study_file import chosen_studies

_EVERY = 5.0
"""Seconds between two lines on how far a study is."""


def study_server(study: Path) -> ServerApp:
    """The ServerApp of a study, whose clients train on nodes that run :func:`study_client`.

    What the run configuration may say:

    * ``out``: folder of the record; ``runs/`` and the study's name by default. With ``variant =
      "all"`` each study has a folder in it.
    * ``pool``: folder of runs that several studies share.
    * ``variant``: a variant that the file names, or ``all``.
    * ``nodes``: how many nodes to wait for, ``patience``: for how many seconds.
    * ``workers``: processes in which the server measures.
    * ``training.rounds`` and the like: settings of the study, by dotted name.

    Args:
        study: The TOML file, which is part of the app.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            carry_out(study, grid, context.run_config)
        except Refusal as refusal:
            # Flower shows no more than a trace of it, and "flwr run" ends as if all were well.
            _say(f"fedaudit: {refusal}")
            raise

    return app


def carry_out(file: Path, grid: Grid, config: Mapping[str, object]) -> None:
    """Carries out what :func:`study_server` describes.

    Raises:
        Refusal: As :func:`fedaudit.study.run.run_study`, and what keeps nodes from their work.
    """
    variant = str(config.get("variant", ""))
    studies = chosen_studies(studies_of(file, config), variant)
    folder = Path(str(config.get("out", "") or Path("runs") / studies[0].name))
    pool = Path(str(config["pool"])) if config.get("pool") else None
    several = len(studies) > 1
    for study in studies:
        out = folder / study.name if several else folder
        nodes = FlowerNodes(
            grid,
            study,
            nodes=_whole(config, "nodes", 1),
            patience=float(str(config.get("patience", 60))),
            here=local_engine(_whole(config, "workers", 1)),
        )
        record = run_study(
            study,
            out,
            pool=pool or (folder / "pool" if several else None),
            engine=nodes,
            tick=_lines(),
            say=_say,
        )
        write_report(record, out / "report.html")
        print_record(record)
        _say(f"content hash: {record.content_hash}\nrecord: {out / 'record.json'}")


def _whole(config: Mapping[str, object], name: str, default: int) -> int:
    return int(str(config.get(name, default)))


def _say(text: str) -> None:
    print(text, flush=True)


def _lines() -> Tick:
    """How far the study is, as lines for a log."""
    last: dict[str, tuple[float, int]] = {}

    def tick(phase: str, done: int, total: int) -> None:
        when, what = last.get(phase, (0.0, -1))
        if total and done != what and (done == total or monotonic() - when >= _EVERY):
            last[phase] = monotonic(), done
            _say(f"{phase}: {done} of {total}")

    return tick
