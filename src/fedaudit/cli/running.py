"""Commands that run studies and attacks: demo, run and attack."""

from collections.abc import Mapping, Sequence
from functools import partial
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
    exit_of,
    explain_if_other_kind,
    log,
    split_at_commas,
)
from fedaudit.cli.saved import NO_SAVED_OPTIONS, SavedOptions, write_recording_from_files
from fedaudit.cli.showing import compare, raise_if_not_replaceable
from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.core.files import (
    ATTACKED_FOLDER,
    RECORD_FILE,
    REPORT_FILE,
    TooLarge,
    create_subfolder,
    exclusive_access,
    path_without_links,
    raise_if_folder_of_recordings,
    read_bytes,
    write_atomically,
)
from fedaudit.core.importing import code_named_in, location_of
from fedaudit.core.progress import without_garbage_collection

if TYPE_CHECKING:
    import fedaudit.plan.sections
    import fedaudit.results.record

_DEMO = Path(__file__).with_name("demo.toml")
"""Study of ``fedaudit demo``, on data of scikit-learn."""

_DEMO_STUDY = "study.toml"
"""Copy of the study in the demo's folder."""

_RUN_OPTIONS = ("variant", "out", "pool", "data-dir", "workers", "device", "engine", "keep-model")
"""Options of ``fedaudit run`` that are not settings; errors suggest them for misspelt names."""


class _Resources(NamedTuple):
    pool: Path | None = None
    data_dir: Path | None = None
    workers: int = 1
    device: str = "cpu"
    engine: str = "local"
    keep_model: bool = False


@app.command
def demo(
    *, out: Folder = Path("runs/demo"), workers: WorkerCount = 1, device: DeviceName = "cpu"
) -> None:
    """Show what leaks from four simulated hospitals, and what a defense changes.

    FedMIA and source inference attack a small network, first without a defense and then with
    CoFedMID. The comparison, both reports and the study file are written to the folder.
    """
    study = create_subfolder(out) / _DEMO_STUDY
    text = _DEMO.read_text(encoding="utf-8")
    if study.exists() and study.read_bytes() != text.encode():
        raise BadInput(f"{study} is not the study of the demo; give another folder with --out")
    write_atomically(study, text)
    _run_studies(study, (), "all", out, _Resources(workers=workers, device=device))


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
        Parameter(help="Variant of the study, or 'all' for the study and all of its variants."),
    ] = "",
    out: Folder | None = None,
    pool: Pool = None,
    data_dir: DataDir = None,
    workers: WorkerCount = 0,
    device: DeviceName = "cpu",
    engine: EngineName = "local",
    keep_model: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Run a study: train, record what the adversary observes, attack, and write a report.

    The same command resumes a run that was stopped. Studies and variants with the same settings of
    data, training and defense share their runs. All variants of security games are played, and
    their results are written to one record.

    Parameters
    ----------
    keep_model
        Write the model after the last round next to the record, as model.safetensors; with several
        seeds or models, one file each.
    """
    with without_garbage_collection():
        from fedaudit.plan.games import GameStudy, kind_of
        from fedaudit.plan.values import read_toml

    # By running a study, the user trusts the code that it names.
    with (
        code_named_in(study, trusted=True, folder=study.parent),
        explain_if_other_kind(study, STUDY),
    ):
        if kind_of(read_toml(study, "the study")) is not GameStudy:
            resources = _Resources(pool, data_dir, workers, device, engine, keep_model)
            _run_studies(study, overrides, variant, out, resources)
            return
        is_set = {
            "variant": variant,
            "pool": pool,
            "workers": workers,
            "device": device != "cpu",
            "engine": engine != "local",
            "keep-model": keep_model,
        }
        unsupported = [option for option, value in is_set.items() if value]
        if unsupported:
            raise BadInput(
                f"{study} is a study of games, but --{unsupported[0]} applies to studies that "
                "train; leave it out"
            )
        _play(study, overrides, out, data_dir)


def _play(study: Path, overrides: tuple[str, ...], out: Path | None, data_dir: Path | None) -> None:
    with without_garbage_collection():
        from fedaudit.core.progress import progress_bars
        from fedaudit.games.run import read_points, run_games

    points = read_points(study, settings_from(overrides, games=True))
    folder = out or Path("runs") / points[0].study.name
    with progress_bars() as progress:
        record = run_games(points, folder, data_dir=data_dir, progress=progress, log=log)
    _finish(record, folder)


def _run_studies(
    study: Path, overrides: tuple[str, ...], variant: str, out: Path | None, resources: _Resources
) -> None:
    with without_garbage_collection():
        from fedaudit.api.target_names import with_target_numbers
        from fedaudit.core.devices import device_named
        from fedaudit.engines.local import engine_named
        from fedaudit.plan.file import chosen_studies, read_studies
        from fedaudit.study.running.preflight import check_grid, raise_if_unsupported_device

    resolve_names = partial(with_target_numbers, data_dir=resources.data_dir)
    all_studies = read_studies(study, settings_from(overrides), resolve_names)
    studies = chosen_studies(all_studies, variant)
    folder = out or Path("runs") / studies[0].name
    if out is None and resources.pool is None:
        resources = resources._replace(pool=Path("runs") / "pool")
    if len(studies) == 1:
        _run(studies[0], folder, resources)
        return
    folders = [folder / variant.name for variant in studies]
    page = folder / "comparison.html"
    # This is checked before training, because the comparison is written last.
    raise_if_not_replaceable(page, [path / RECORD_FILE for path in folders])
    device = device_named(resources.device)
    raise_if_unsupported_device(
        device, resources.workers, engine_named(resources.engine, resources.workers)
    )
    check_grid(studies, resources.data_dir, device, log)
    resources = resources._replace(pool=resources.pool or folder / "pool")
    failed = dict[str, Exception]()
    for number, variant_study in enumerate(studies, 1):
        name = variant_study.name
        log("", f"{name} ({number} of {len(studies)})")
        try:
            _run(variant_study, folder / name, resources, brief=True)
        # A failed variant must not stop the other variants, which may take hours.
        except Exception as error:
            failed[name] = error
            log(f"{name} failed: {_describe_error(error)}; the other variants continue")
    complete = [path for path in folders if path.name not in failed]
    if len(complete) > 1:
        compare(*complete, out=page)
    if failed:
        raise _error_of_variants(failed, len(studies))


def _describe_error(error: Exception) -> str:
    exit_of_error = exit_of(error)
    if exit_of_error:
        return exit_of_error.message
    # A traceback is printed at the end, and only for the first bug.
    return f"a bug in fedaudit ({type(error).__name__}: {error}, {location_of(error)})"


def _error_of_variants(failed: Mapping[str, Exception], n_variants: int) -> Exception:
    """Return the first bug in fedaudit among the errors, or else an error with a summary."""
    descriptions = "\n".join(f"{name}: {_describe_error(error)}" for name, error in failed.items())
    summary = (
        f"{len(failed)} of {n_variants} variants failed, and the others are complete; run the same "
        f"command again to run only the failed variants:\n{descriptions}"
    )
    bug = next((error for error in failed.values() if exit_of(error) is None), None)
    if bug is None:
        return BadInput(summary)
    bug.add_note(summary)
    return bug


def _client_names(text: str) -> list[str]:
    names = split_at_commas("targets", text)
    if not names:
        raise BadInput(
            f"--targets {text!r} names no client; give names or numbers with commas between them"
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
            help="Attacks to run; by default, all that the recording allows. Also settings of "
            "figures to change: --figures.evaluation=redraw",
        ),
    ],
    out: Folder | None = None,
    data_dir: DataDir = None,
    device: DeviceName = "cpu",
    trust_code: Trust = False,
    targets: str | None = None,
    saved: SavedOptions = NO_SAVED_OPTIONS,
) -> None:
    """Attack the measurements of a study or a live recording, without training.

    With --checkpoints, the recording is first written from a folder of saved models. With
    --signals, it is written from tables of signals, which guards of several sites can export.

    Parameters
    ----------
    recording
        The folder of a study, or of a live recording; with --checkpoints or --signals, the folder
        to which the recording is written.
    out
        Folder for record and report; by default "attacked" in the recording. A record with other
        settings is never replaced.
    targets
        Audited clients of a live recording to attack, by name or number, separated by commas; put
        a name with a comma in double quotes. By default, all that took part.
    """
    with without_garbage_collection():
        from fedaudit.core.devices import device_named
        from fedaudit.core.progress import progress_bars
        from fedaudit.live.attack import attack_recording
        from fedaudit.live.recording import is_recording
        from fedaudit.study.running.reattack import evaluation_settings, reattack

    # The names of attacks come first, and settings follow from the first option on.
    n_attacks = next((i for i, name in enumerate(names) if name.startswith("--")), len(names))
    attacks, settings = names[:n_attacks], settings_from(names[n_attacks:])
    write_recording_from_files(recording, saved, attacks, device)
    folder = out or path_without_links(recording, ATTACKED_FOLDER)
    if is_recording(recording):
        with progress_bars() as progress:
            record = attack_recording(
                recording,
                attacks,
                folder,
                targets=() if targets is None else _client_names(targets),
                figures=evaluation_settings(settings),
                trust=trust_code,
                progress=progress,
                log=log,
            )
        _finish(record, folder)
        return
    raise_if_folder_of_recordings(recording)
    if targets is not None:
        raise BadInput(
            f"--targets applies to live recordings, but {recording} is the folder of a study, "
            "which names its targets in audit.targets; leave --targets out"
        )
    with explain_if_other_kind(recording, RUN, RECORDING), progress_bars() as progress:
        record = reattack(
            recording,
            attacks,
            folder,
            data_dir,
            figures=settings,
            device=device_named(device),
            trust=trust_code,
            progress=progress,
            log=log,
        )
    _finish(record, folder)


def _run(
    study: "fedaudit.plan.sections.Study", out: Path, resources: _Resources, *, brief: bool = False
) -> None:
    with without_garbage_collection():
        from fedaudit.core.devices import device_named
        from fedaudit.core.progress import progress_bars
        from fedaudit.engines.local import engine_named
        from fedaudit.study.running.run import run_study

    with progress_bars() as progress:
        record = run_study(
            study,
            out,
            pool=resources.pool,
            data_dir=resources.data_dir,
            workers=resources.workers,
            device=device_named(resources.device),
            engine=engine_named(resources.engine, resources.workers),
            keep_model=resources.keep_model,
            progress=progress,
            log=log,
        )
    _finish(record, out, brief=brief)


def _finish(record: "fedaudit.results.record.Record", folder: Path, *, brief: bool = False) -> None:
    from fedaudit.report.terminal import print_record

    write_report_of(folder, record)
    print_record(record, brief=brief)
    if not brief:
        log("")
    log(f"record: {folder / RECORD_FILE}", f"report: {folder / REPORT_FILE}")


def write_report_of(folder: Path, record: "fedaudit.results.record.Record") -> None:
    """Write the report of a record to the folder that contains the record.

    Raises:
        BadInput: Another process has replaced the record.
    """
    from fedaudit.report.page import write_report
    from fedaudit.results.record import record_json

    path, expected = folder / RECORD_FILE, record_json(record).encode()
    with exclusive_access(folder):
        try:
            is_unchanged = read_bytes(path, max_bytes=len(expected)) == expected
        except (OSError, TooLarge):
            is_unchanged = False
        if not is_unchanged:
            raise BadInput(
                f"another process has replaced {path}, so no report is written next to it; write "
                f"the report with `fedaudit report {folder}`"
            )
        write_report(record, folder / REPORT_FILE)


def settings_from(arguments: Sequence[str], *, games: bool = False) -> dict[str, object]:
    """Parse ``--a.b=1`` or ``--a.b 1`` to ``{"a.b": 1}``. A value that is not TOML is a string."""
    from fedaudit.plan.values import raise_if_many_dots

    settings: dict[str, object] = {}
    remaining = list(arguments)
    while remaining:
        option, equals, text = remaining.pop(0).partition("=")
        if not option.startswith("--"):
            raise BadInput(f"{option!r} is not a setting; write it as --section.setting=value")
        raise_if_many_dots(option, "the command line")
        name = _setting_name(option, games=games)
        if not equals:
            if not remaining:
                raise BadInput(f"{option} needs a value; write it as {option}=value")
            text = remaining.pop(0)
        settings[name] = value_of(option, text)
    return settings


def _raise_if_undecodable(option: str, text: str) -> None:
    """Raise if a value has bytes that are not text in the terminal's encoding."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"the value of {option} has bytes that are not text ({text[error.start]!r} at "
            f"character {error.start}); write it in UTF-8"
        ) from error


def value_of(option: str, text: str) -> object:
    """Parse the value of an option as TOML; a value that is not TOML is a string."""
    from tomllib import TOMLDecodeError

    from fedaudit.plan.values import parse_toml

    _raise_if_undecodable(option, text)
    try:
        return parse_toml(f"value = {text}", f"the value of {option}")["value"]
    except BadInput as error:
        # A value that is not TOML is a string, but TOML that is too deep or too large is an error.
        if isinstance(error.__cause__, TOMLDecodeError):
            return text
        raise


def _setting_name(option: str, *, games: bool) -> str:
    """Convert ``--training.batch-size`` to a dotted name; only names of attacks keep hyphens."""
    # Imported here, so that the help of the command line does not load pydantic.
    from fedaudit.plan.games import GameStudy
    from fedaudit.plan.sections import Study

    sections = (GameStudy if games else Study).model_fields
    section, dot, name = option.removeprefix("--").partition(".")
    if not dot and section not in sections:
        with_section = [
            f"--{table}.{section}"
            for table, field in sections.items()
            if section.replace("-", "_") in getattr(field.annotation, "model_fields", {})
        ]
        if with_section:
            raise BadInput(
                f"there is no option of fedaudit run named {option!r}; write settings with their "
                f"section: {' or '.join(with_section)}"
            )
        options = [f"--{name}" for name in (*_RUN_OPTIONS, *sections)]
        raise unknown_name("option of fedaudit run", option, options)
    if section != "attacks":
        return f"{section}{dot}{name.replace('-', '_')}"
    attack, separator, setting = name.partition(".")
    return f"{section}{dot}{attack}{separator}{setting.replace('-', '_')}"
