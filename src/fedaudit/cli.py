"""The command line. Heavy imports stand inside the commands, so that help answers at once."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from fedaudit import __version__
from fedaudit.ending import end_of, stopping_at_sigterm
from fedaudit.errors import BadInput
from fedaudit.overrides import settings_from

if TYPE_CHECKING:
    import fedaudit.study.config
    import fedaudit.study.record

app = App(
    name="fedaudit",
    help="Measure what a federated-learning run gives away about who was in it.",
    version=__version__,
    suppress_keyboard_interrupt=False,
)

RECORD_FILE = "record.json"
GAMES_FILE = "games.json"
REPORT_FILE = "report.html"

Folder = Annotated[Path, Parameter(help="Folder to write to; made if it is not there.")]
DataDir = Annotated[
    Path | None,
    Parameter(name="--data-dir", help="Folder with data sets; by default $FEDAUDIT_DATA."),
]
Pool = Annotated[
    Path | None,
    Parameter(
        help="Folder of trained runs that studies share; runs/pool unless --out is given, and "
        "the study's own folder then."
    ),
]
WorkerCount = Annotated[
    int,
    Parameter(name="--workers", help="Processes to train in, one thread each; 0: one a core."),
]

DeviceName = Annotated[
    str,
    Parameter(
        name="--device",
        help="Where to calculate: cpu, cuda (the first GPU) or cuda:1; a GPU takes one worker.",
    ),
]

EngineName = Annotated[
    str,
    Parameter(
        name="--engine",
        help="Where to train and measure: local; ray, for Ray on this machine; or a Ray cluster: "
        "ray:auto, ray:host:6379 or ray://host:10001.",
    ),
]


@app.command
def demo(
    *, out: Folder = Path("runs/demo"), workers: WorkerCount = 1, device: DeviceName = "cpu"
) -> None:
    """Audit a small federation on handwritten digits and write a report, in under a minute."""
    from fedaudit.study.demo import DEMO

    _run(DEMO, out, None, None, workers, device)


@app.command(name="run")
def run_command(
    study: Path,
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
    """Carry out a study: train, look through the adversary's eyes, attack, report.

    A run that was stopped goes on where it was when it is started again. Studies and variants
    with the same settings of data, training and defense share their runs.
    """
    from fedaudit.study.setup import refuse_misfits
    from fedaudit.study.study_file import chosen_studies, read_studies

    studies = chosen_studies(read_studies(study, settings_from(overrides)), variant)
    folder = out or Path("runs") / studies[0].name
    shared = pool or (Path("runs") / "pool" if out is None else None)
    if len(studies) == 1:
        _run(studies[0], folder, shared, data_dir, workers, device, engine)
        return
    together = [folder / one.name for one in studies]
    page = folder / "comparison.html"
    # Before anything is trained, as it would be the last thing to be refused.
    _refuse_other_comparison(page, [one / RECORD_FILE for one in together])
    refuse_misfits(studies, data_dir)
    for place, one in enumerate(studies, 1):
        _say(f"\n{one.name} ({place} of {len(studies)})")
        _run(one, folder / one.name, shared or folder / "pool", data_dir, workers, device, engine)
    compare(*together, out=page)


@app.command
def games(
    study: Path,
    /,
    *overrides: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="Settings to change, by dotted name: --game.games=1000",
        ),
    ],
    out: Folder | None = None,
    data_dir: DataDir = None,
) -> None:
    """Play security games: does a server that plants a neuron tell who was in a batch?

    All variants and points of the study's grid are played, and make one record. Points that were
    played before are not played again.
    """
    from fedaudit.games.run import read_points, run_games
    from fedaudit.progress import bars
    from fedaudit.report.game_tables import print_games
    from fedaudit.report.games import write_games_report
    from fedaudit.study.outputs import refuse_foreign_page

    points = read_points(study, settings_from(overrides, command="games"))
    folder = out or Path("runs") / points[0].study.name
    # Before anything is played, as it would be the last thing to be refused.
    refuse_foreign_page(folder / REPORT_FILE)
    with bars() as tick:
        record = run_games(points, folder, data_dir=data_dir, tick=tick, say=_say)
    write_games_report(record, folder / REPORT_FILE)
    print_games(record)
    _say(f"\nrecord: {folder / GAMES_FILE}\nreport: {folder / REPORT_FILE}")


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
) -> None:
    """Attack what a study or a live recording has kept, without training anything.

    Parameters
    ----------
    recording
        The folder of a study, or of a live recording.
    out
        Where record and report go; by default the folder "attacked" in the recording. A record
        of other settings is never replaced.
    """
    from fedaudit.devices import device_named
    from fedaudit.live.attack import attack_recording, changed_figures
    from fedaudit.live.recording import is_recording
    from fedaudit.progress import bars
    from fedaudit.study.again import attack_again

    first = next((i for i, name in enumerate(names) if name.startswith("--")), len(names))
    folder = out or recording / "attacked"
    if is_recording(recording):
        changed = changed_figures(settings_from(names[first:]))
        with bars() as tick:
            found = attack_recording(
                recording, names[:first], folder, figures=changed, tick=tick, say=_say
            )
        _finish(found, folder)
        return
    with bars() as tick:
        record = attack_again(
            recording,
            names[:first],
            folder,
            data_dir,
            figures=settings_from(names[first:]),
            device=device_named(device),
            tick=tick,
            say=_say,
        )
    _finish(record, folder)


@app.command
def report(record: Path, /, *, out: Path | None = None) -> None:
    """Write the HTML report of a record, or of a record of games.

    Parameters
    ----------
    record
        A record.json or a games.json, or the folder it is in.
    out
        The HTML file; by default report.html beside the record. Only HTML is ever replaced.
    """
    from fedaudit.games.record import GameRecord
    from fedaudit.report.games import write_games_report
    from fedaudit.report.html import write_report
    from fedaudit.study.older import completed
    from fedaudit.study.outputs import refuse_foreign_page, refuse_missing_folder
    from fedaudit.study.reading import read_any_record

    path = _record_in(record) if record.is_dir() else record
    target = out or path.with_name(REPORT_FILE)
    found = read_any_record(path)
    whole = found if isinstance(found, GameRecord) else completed(found)
    refuse_missing_folder(target)
    refuse_foreign_page(target, [path])
    if isinstance(whole, GameRecord):
        write_games_report(whole, target)
    else:
        write_report(whole, target)
    _say(f"report: {target}")


@app.command
def compare(*records: Path, out: Path | None = None) -> None:
    """Put two or more records side by side: what a defense buys, for whom and at what cost.

    Parameters
    ----------
    records
        Records (record.json, or the folder it is in), the base first; or one comparison.json
        (or its folder), which is made again from the records that it names.
    out
        The HTML file; the figures go beside it as JSON. By default comparison.html, beside a
        comparison that is made again and else in the current folder. Neither a record nor a
        comparison of other records is ever replaced.
    """
    from fedaudit.report.html import write_comparison
    from fedaudit.study.compared import COMPARISON_FILE, write_comparison_file
    from fedaudit.study.comparing import compared, named_records, relative
    from fedaudit.study.older import completed
    from fedaudit.study.outputs import refuse_missing_folder
    from fedaudit.study.reading import read_record

    again = _comparison_in(records[0]) if len(records) == 1 else None
    if again is not None:
        paths = named_records(again)
    elif len(records) < 2:
        raise BadInput(
            f"a comparison needs at least two records or a {COMPARISON_FILE}, got {len(records)} "
            "record" + "s" * (not records)
        )
    else:
        paths = [r / RECORD_FILE if r.is_dir() else r for r in records]
    target = out or (again.with_suffix(".html") if again else Path("comparison.html"))
    found = [completed(read_record(path)) for path in paths]
    _refuse_other_comparison(target, paths)
    refuse_missing_folder(target)
    comparison = compared(found, [relative(path, target.parent) for path in paths])
    write_comparison_file(comparison, target.with_suffix(".json"))
    write_comparison(comparison, found, target)
    _say(f"comparison: {target}")


@app.command
def gate(
    record: Path | None = None,
    /,
    *,
    policy: Path | None = None,
    junit: Path | None = None,
    json: Path | None = None,
    print_policy: bool = False,
) -> None:
    """Hold the upper confidence limits of a record against a policy's ceilings.

    Exit code 0: pass, 1: fail, 3: inconclusive; 2 is a refusal, such as a file that is no record.

    Parameters
    ----------
    record
        A record.json or a games.json, or the folder it is in.
    policy
        The policy, a TOML file.
    junit
        Where the verdict goes as JUnit XML. Only an earlier verdict is ever replaced.
    json
        Where it goes as JSON; likewise.
    print_policy
        Print a policy to begin with, and stop.
    """
    from fedaudit.gate.policy import DEFAULT_POLICY, read_policy

    if print_policy:
        print(DEFAULT_POLICY, end="")
        return
    if record is None or policy is None:
        raise BadInput(
            "a gate needs a record and a policy: fedaudit gate RECORD --policy policy.toml "
            "(--print-policy prints one to begin with)"
        )
    from fedaudit.gate.judging import judged
    from fedaudit.gate.outcome import EXIT_CODES
    from fedaudit.gate.outputs import refuse_taken, write_verdict
    from fedaudit.gate.table import print_verdict
    from fedaudit.study.reading import read_any_record

    path = _record_in(record) if record.is_dir() else record
    for target in (junit, json):
        if target is not None:
            refuse_taken(target, [path, policy])
    verdict = judged(read_any_record(path), read_policy(policy))
    write_verdict(verdict, junit=junit, json=json)
    print_verdict(verdict)
    sys.exit(EXIT_CODES[verdict.outcome])


@app.command
def pack(record: Path, /, *, policy: Path, out: Path, smallest_group: int = 10) -> None:
    """Pack a record, its report and a policy's verdict with the hashes by which to check them.

    Nothing in the pack is about a single sample, or about a group of few.

    Parameters
    ----------
    record
        A record.json or a games.json, or the folder it is in.
    policy
        The policy, a TOML file.
    out
        Folder of the pack: new, or empty.
    smallest_group
        Groups with fewer samples are suppressed.
    """
    from fedaudit.pack.packing import write_pack

    path = _record_in(record) if record.is_dir() else record
    if smallest_group < 0:
        raise BadInput(f"a group has 0 samples or more, got {smallest_group}")
    manifest = write_pack(path, policy, out, smallest_group=smallest_group)
    gone = {name: count for name, count in manifest.suppressed.items() if count}
    told = ", ".join(f"{count} of {name}" for name, count in gone.items()) or "nothing"
    _say(f"pack: {out} ({manifest.outcome}; suppressed: {told})")
    _say(f"digest, to be kept elsewhere: {manifest.digest}")


@app.command
def verify(
    folder: Path,
    /,
    *,
    digest: str = "",
    recording: Path | None = None,
    data_dir: DataDir = None,
) -> None:
    """Check a pack: every hash, and the verdict again from record and policy.

    Exit code 0: sound, 1: something was changed, is missing or does not belong there.

    Parameters
    ----------
    folder
        Of the pack.
    digest
        As it was printed when the pack was made; without it a pack could have been made anew.
    recording
        The folder of the study's run, to make the record's content hash again from what was
        measured.
    """
    from fedaudit.pack.verifying import verify as verified

    found = verified(folder, digest=digest)
    problems = list(found.problems)
    if recording is not None and found.record is not None:
        from fedaudit.pack.remaking import remade

        problems += remade(found.record, recording, data_dir)
    for problem in problems:
        _say(f"wrong: {problem}")
    for said in found.checked:
        _say(f"held: {said}")
    if recording is not None and not problems:
        _say("held: the content hash is that of what the run has measured")
    if recording is None and not problems and found.kind == "study":
        _say(
            "not checked: the content hash of a study is over its measurements too, which only the "
            "folder of its run has (--recording)"
        )
    _say("the pack is not sound" if problems else "the pack is sound")
    sys.exit(1 if problems else 0)


def _record_in(folder: Path) -> Path:
    """The record in a folder: of games where there is no other."""
    path, games = folder / RECORD_FILE, folder / GAMES_FILE
    if path.exists() and games.exists():
        raise BadInput(f"{folder} holds {RECORD_FILE} and {GAMES_FILE}; name one of them")
    return games if games.exists() else path


def _refuse_other_comparison(page: Path, records: Sequence[Path]) -> None:
    """Neither the page nor the figures beside it may replace what is of something else."""
    from fedaudit.study.outputs import refuse_foreign_page, refuse_other_comparison

    if not page.name or page.suffix == ".json":
        raise BadInput(
            f"{page} is to be an HTML file, with the figures as JSON beside it; give --out a name "
            "such as comparison.html"
        )
    refuse_foreign_page(page, records)
    refuse_other_comparison(page.with_suffix(".json"), records)


def _comparison_in(path: Path) -> Path | None:
    """The comparison that a path is, or is the folder of."""
    from fedaudit.study.compared import COMPARISON_FILE

    if path.is_dir():
        return path / COMPARISON_FILE if (path / COMPARISON_FILE).is_file() else None
    return path if path.is_file() and path.name != RECORD_FILE else None


@app.command(name="list")
def list_command(
    kind: Annotated[str, Parameter(help="One catalogue only, such as attacks.")] = "", /
) -> None:
    """List what fedaudit knows: attacks, defenses, data sets, models, views, partitions."""
    from fedaudit.catalogue import listing

    _print(listing(kind))


@app.command
def explain(name: str, /) -> None:
    """Explain an attack, defense, view, model or other entry: what it does and its source."""
    from fedaudit.catalogue import explanation

    _say(explanation(name))


def _run(
    study: "fedaudit.study.config.Study",
    out: Path,
    pool: Path | None,
    data_dir: Path | None,
    workers: int,
    device: str,
    engine: str = "local",
) -> None:
    from fedaudit.devices import device_named
    from fedaudit.engines.ray_cluster import engine_named
    from fedaudit.progress import bars
    from fedaudit.study.run import run_study

    place, cluster = device_named(device), engine_named(engine, workers)
    with bars() as tick:
        record = run_study(
            study,
            out,
            pool=pool,
            data_dir=data_dir,
            workers=workers,
            device=place,
            engine=cluster,
            tick=tick,
            say=_say,
        )
    _finish(record, out)


def _finish(record: "fedaudit.study.record.Record", folder: Path) -> None:
    from fedaudit.report.html import write_report
    from fedaudit.report.tables import print_record

    write_report(record, folder / REPORT_FILE)
    print_record(record)
    _say(f"\nrecord: {folder / RECORD_FILE}\nreport: {folder / REPORT_FILE}")


def _say(text: str) -> None:
    print(text)


def _print(item: object) -> None:
    from rich.console import Console

    Console().print(item)


def main(words: Sequence[str] | None = None) -> None:
    """Runs a command; a refusal is one sentence on standard error and exit code 2.

    Args:
        words: The command line after the program's name; that of the process by default.
    """
    try:
        with stopping_at_sigterm():
            app(words, exit_on_error=False, print_error=False)
    except (Exception, KeyboardInterrupt) as error:
        end = end_of(error)
        if end is None:
            raise
        print(f"fedaudit: {end.said}", file=sys.stderr)
        sys.exit(end.code)


if __name__ == "__main__":
    main()
