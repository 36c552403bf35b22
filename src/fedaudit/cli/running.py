"""Commands that run studies and attacks: demo, run, attack, games; any setting by its name."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from fedaudit.cli.application import (
    RECORDING,
    RUN,
    STUDY,
    DataDir,
    DeviceName,
    EngineName,
    Folder,
    Pool,
    Trust,
    WorkerCount,
    app,
    end_of,
    log,
    meant_as,
)
from fedaudit.cli.showing import compare, refuse_other_comparison
from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.core.files import (
    ATTACKED,
    RECORD_FILE,
    REPORT_FILE,
    own_folder,
    own_place,
    write_whole,
)
from fedaudit.core.importing import code_named_in, line_of
from fedaudit.core.progress import importing

if TYPE_CHECKING:
    import fedaudit.plan.sections
    import fedaudit.results.record

_DEMO = Path(__file__).with_name("demo.toml")
"""The study of ``fedaudit demo``, on data that come with scikit-learn."""

_DEMO_STUDY = "study.toml"
"""Copy of it in the demo's folder."""

_RUN_OPTIONS = ("variant", "out", "pool", "data-dir", "workers", "device", "engine")
"""What ``fedaudit run`` takes beside settings; a misspelt one is no setting either."""


class _Means(NamedTuple):
    """Where a study is run, and from which data."""

    pool: Path | None = None
    data_dir: Path | None = None
    workers: int = 1
    device: str = "cpu"
    engine: str = "local"


@app.command
def demo(
    *, out: Folder = Path("runs/demo"), workers: WorkerCount = 1, device: DeviceName = "cpu"
) -> None:
    """Show what leaks from four simulated hospitals, and what a defense changes.

    FedMIA and source inference attack a small network, first without a defense and then with
    CoFedMID. The comparison, both reports and the study file are in the folder.
    """
    study, text = own_folder(out) / _DEMO_STUDY, _DEMO.read_text(encoding="utf-8")
    if study.exists() and study.read_bytes() != text.encode():
        raise BadInput(f"{study} is not the demo's; give another folder with --out")
    write_whole(study, text)
    _carry_out(study, (), "all", out, _Means(workers=workers, device=device))


@app.command(name="run")
def run_command(
    study: Annotated[
        Path, Parameter(help="A TOML file: a study that trains, or one of security games.")
    ],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="Settings to change, by dotted name: --training.rounds=10",
        ),
    ],
    variant: Annotated[
        str,
        Parameter(help="A variant that the file names, or 'all' for the study and all of them."),
    ] = "",
    out: Folder | None = None,
    pool: Pool = None,
    data_dir: DataDir = None,
    workers: WorkerCount = 0,
    device: DeviceName = "cpu",
    engine: EngineName = "local",
) -> None:
    """Run a study: train, observe as the adversary, attack, report.

    The same command continues a run that was stopped. Studies and variants with the same settings
    of data, training and defense share their runs. All variants of security games are played, and
    make one record.
    """
    with importing():
        from fedaudit.plan.games import GameStudy, kind_of
        from fedaudit.plan.values import read_toml

    # A study may name code, which the user chose to run.
    with code_named_in(study, trusted=True, folder=study.parent), meant_as(study, STUDY):
        if kind_of(read_toml(study, "the study")) is not GameStudy:
            means = _Means(pool, data_dir, workers, device, engine)
            _carry_out(study, overrides, variant, out, means)
            return
        others = {"variant": variant, "pool": pool, "workers": workers}
        others |= {"device": device != "cpu", "engine": engine != "local"}
        refused = [name for name, value in others.items() if value]
        if refused:
            raise BadInput(
                f"{study} is a study of games, all of which are played in this process and make "
                f"one record, and --{refused[0]} is of studies that train; leave it out"
            )
        _play(study, overrides, out, data_dir)


def _play(study: Path, overrides: tuple[str, ...], out: Path | None, data_dir: Path | None) -> None:
    with importing():
        from fedaudit.core.progress import bars
        from fedaudit.games.run import read_points, run_games

    points = read_points(study, settings_from(overrides, games=True))
    folder = out or Path("runs") / points[0].study.name
    with bars() as progress:
        record = run_games(points, folder, data_dir=data_dir, progress=progress, log=log)
    _finish(record, folder)


def _carry_out(
    study: Path, overrides: tuple[str, ...], variant: str, out: Path | None, means: _Means
) -> None:
    with importing():
        from fedaudit.core.devices import device_named
        from fedaudit.engines.local import engine_named
        from fedaudit.plan.file import chosen_studies, read_studies
        from fedaudit.study.running.preflight import check_grid, refuse_place

    studies = chosen_studies(read_studies(study, settings_from(overrides)), variant)
    folder = out or Path("runs") / studies[0].name
    if out is None and means.pool is None:
        means = means._replace(pool=Path("runs") / "pool")
    if len(studies) == 1:
        _run(studies[0], folder, means)
        return
    together = [folder / row.name for row in studies]
    page = folder / "comparison.html"
    # Before anything is trained, as it would be the last thing to be refused.
    refuse_other_comparison(page, [row / RECORD_FILE for row in together])
    device = device_named(means.device)
    refuse_place(device, means.workers, engine_named(means.engine, means.workers))
    check_grid(studies, means.data_dir, device, log)
    means = means._replace(pool=means.pool or folder / "pool")
    failed = dict[str, Exception]()
    for place, row in enumerate(studies, 1):
        log("", f"{row.name} ({place} of {len(studies)})")
        try:
            _run(row, folder / row.name, means, brief=True)
        # Hours of other rows must not depend on this one.
        except Exception as error:
            failed[row.name] = error
            log(f"{row.name} failed: {_reason(error)}; the other rows go on")
    complete = [place for place in together if place.name not in failed]
    if len(complete) > 1:
        compare(*complete, out=page)
    if failed:
        raise _incomplete(failed, len(studies))


def _reason(error: Exception) -> str:
    end = end_of(error)
    if end:
        return end.said
    # The traceback of the first fault alone is printed.
    return f"a fault of fedaudit ({type(error).__name__}: {error}, {line_of(error)})"


def _incomplete(failed: Mapping[str, Exception], rows: int) -> Exception:
    """Return the error of a grid with failed rows: a fault, if there was one."""
    reasons = "\n".join(f"{name}: {_reason(error)}" for name, error in failed.items())
    summary = (
        f"{len(failed)} of {rows} rows failed, and the others are complete; start the same command "
        f"again to try only these:\n{reasons}"
    )
    fault = next((error for error in failed.values() if end_of(error) is None), None)
    if fault is None:
        return BadInput(summary)
    fault.add_note(summary)
    return fault


def _named_clients(text: str) -> list[str]:
    """Split names at commas; a name with a comma is in double quotes."""
    rows = csv.reader([text], skipinitialspace=True)
    names = [name for row in rows for entry in row if (name := entry.strip())]
    if not names:
        raise BadInput(
            f"--targets {text!r} names no client; give names or numbers with commas between them, "
            "or leave the option out to attack all audited clients that took part"
        )
    return names


@app.command
def attack(
    recording: Path,
    /,
    *names: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="Attacks to run, all that the recording allows if none is named; and settings "
            "of figures to change: --figures.evaluation=redraw",
        ),
    ],
    out: Folder | None = None,
    data_dir: DataDir = None,
    device: DeviceName = "cpu",
    trust: Trust = False,
    targets: str | None = None,
) -> None:
    """Attack the measurements of a study or a live recording, without training.

    Parameters
    ----------
    recording
        The folder of a study, or of a live recording.
    out
        Folder for record and report; by default "attacked" in the recording. A record of other
        settings is never replaced.
    targets
        Audited clients of a live recording to attack, by name or number, separated by commas; put
        a name with a comma in double quotes. All that took part by default.
    """
    with importing():
        from fedaudit.core.devices import device_named
        from fedaudit.core.progress import bars
        from fedaudit.live.attack import attack_recording
        from fedaudit.live.recording import is_recording
        from fedaudit.study.running.reattack import changed_figures, reattack

    first = next((i for i, name in enumerate(names) if name.startswith("--")), len(names))
    folder = out or own_place(recording, ATTACKED)
    if is_recording(recording):
        changed = changed_figures(settings_from(names[first:]))
        chosen = () if targets is None else _named_clients(targets)
        with bars() as progress:
            record = attack_recording(
                recording,
                names[:first],
                folder,
                targets=chosen,
                figures=changed,
                trust=trust,
                progress=progress,
                log=log,
            )
        _finish(record, folder)
        return
    if targets is not None:
        raise BadInput(
            "--targets is of live recordings; a study is attacked on the clients that it names in "
            "audit.targets"
        )
    with meant_as(recording, RUN, RECORDING), bars() as progress:
        record = reattack(
            recording,
            names[:first],
            folder,
            data_dir,
            figures=settings_from(names[first:]),
            device=device_named(device),
            trust=trust,
            progress=progress,
            log=log,
        )
    _finish(record, folder)


def _run(
    study: "fedaudit.plan.sections.Study", out: Path, means: _Means, *, brief: bool = False
) -> None:
    with importing():
        from fedaudit.core.devices import device_named
        from fedaudit.core.progress import bars
        from fedaudit.engines.local import engine_named
        from fedaudit.study.running.run import run_study

    with bars() as progress:
        record = run_study(
            study,
            out,
            pool=means.pool,
            data_dir=means.data_dir,
            workers=means.workers,
            device=device_named(means.device),
            engine=engine_named(means.engine, means.workers),
            progress=progress,
            log=log,
        )
    _finish(record, out, brief=brief)


def _finish(record: "fedaudit.results.record.Record", folder: Path, *, brief: bool = False) -> None:
    from fedaudit.report.page import write_report_beside
    from fedaudit.report.terminal import print_record

    write_report_beside(record, folder)
    print_record(record, brief=brief)
    gap = () if brief else ("",)
    log(*gap, f"record: {folder / RECORD_FILE}", f"report: {folder / REPORT_FILE}")


def settings_from(words: Sequence[str], *, games: bool = False) -> dict[str, object]:
    """Return ``--a.b=1`` or ``--a.b 1`` as ``{"a.b": 1}``; values are TOML, else text."""
    from fedaudit.plan.values import refuse_many_dots

    settings: dict[str, object] = {}
    waiting = list(words)
    while waiting:
        option, equals, text = waiting.pop(0).partition("=")
        if not option.startswith("--"):
            raise BadInput(f"{option!r} is no setting; write it as --section.setting=value")
        refuse_many_dots(option, "the command line")
        name = _setting_name(option, games=games)
        if not equals:
            if not waiting:
                raise BadInput(f"{option} needs a value; write it as {option}=value")
            text = waiting.pop(0)
        _refuse_bytes(option, text)
        settings[name] = _value(option, text)
    return settings


def _refuse_bytes(option: str, text: str) -> None:
    """Raise if a value holds bytes that are not text in the terminal's encoding."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"the value of {option} has bytes that are no text ({text[error.start]!r} at character "
            f"{error.start}); write it in UTF-8"
        ) from error


def _value(option: str, text: str) -> object:
    from tomllib import TOMLDecodeError

    from fedaudit.plan.values import parsed_toml

    try:
        return parsed_toml(f"value = {text}", f"the value of {option}")["value"]
    except BadInput as error:
        # What is no TOML is a text; what is too deep or too large is refused.
        if isinstance(error.__cause__, TOMLDecodeError):
            return text
        raise


def _setting_name(option: str, *, games: bool) -> str:
    """Return the dotted name of ``--training.batch-size``; names of attacks keep hyphens."""
    # Not above: the command line's help must not wait for pydantic.
    from fedaudit.plan.games import GameStudy
    from fedaudit.plan.sections import Study

    sections = (GameStudy if games else Study).model_fields
    section, dot, name = option.removeprefix("--").partition(".")
    if not dot and section not in sections:
        options = [f"--{name}" for name in (*_RUN_OPTIONS, *sections)]
        within = [
            f"--{table}.{section}"
            for table, field in sections.items()
            if section.replace("-", "_") in getattr(field.annotation, "model_fields", {})
        ]
        if within:
            raise BadInput(
                f"there is no option of fedaudit run named {option!r}; settings are named "
                f"with their section: {' or '.join(within)}"
            )
        raise unknown_name("option of fedaudit run", option, options)
    if section != "attacks":
        return f"{section}{dot}{name.replace('-', '_')}"
    attack, dot_too, setting = name.partition(".")
    return f"{section}{dot}{attack}{dot_too}{setting.replace('-', '_')}"
