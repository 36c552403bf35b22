"""Commands for the benchmark of attacks: benchmark and score."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fedaudit.cli.application import DataDir, DeviceName, WorkerCount, app, log
from fedaudit.core.progress import without_garbage_collection

if TYPE_CHECKING:
    from fedaudit.benchmark.leaderboard import Leaderboard

CONTROL_FAILED = 1
"""Exit code if a control of the scored attack failed."""
_DEFAULT_SUITE = Path("runs/benchmark")


@app.command
def benchmark(
    *regimes: Annotated[
        str,
        Parameter(
            help="Federations to record: digits, synthetic, location30, mnist; by default, all "
            "whose data are available."
        ),
    ],
    out: Annotated[Path, Parameter(help="Folder to write to; created if missing.")] = (
        _DEFAULT_SUITE
    ),
    seed: int = 1,
    data_dir: DataDir = None,
    workers: WorkerCount = 1,
    device: DeviceName = "cpu",
) -> None:
    """Build the benchmark of attacks: recordings of federations that leak, with true membership.

    The federations digits and synthetic need no data folder. Each federation is trained three
    times, and attacked by all built-in attacks that apply. The signals and the membership
    are written to separate files, with metadata in the Croissant format and a leaderboard. A build
    that was stopped is continued.

    Parameters
    ----------
    seed
        First seed of the recordings. Another seed gives other data, clients and members.
    """
    with without_garbage_collection():
        from fedaudit.benchmark.building import build_suite
        from fedaudit.benchmark.scoring import catalogue_leaderboard
        from fedaudit.core.devices import device_named
        from fedaudit.core.progress import progress_bars

    with progress_bars() as progress:
        build_suite(
            out,
            regimes,
            seed=seed,
            data_dir=data_dir,
            workers=workers,
            device=device_named(device),
            progress=progress,
            log=log,
        )
        board = catalogue_leaderboard(out, progress=progress)
    _write(board, out / "leaderboard.html")


@app.command
def score(
    attack: str,
    /,
    *,
    suite: Annotated[Path, Parameter(help="Folder of the benchmark.")] = _DEFAULT_SUITE,
    out: Path | None = None,
    timeout: float = 600.0,
) -> None:
    """Score an attack of yours on the benchmark, next to all built-in attacks.

    The attack is a function `attack(signals, target)` that returns one score for each sample,
    larger for likelier members. `signals["loss"].of(target)` has the values of the audited client
    by round and sample. A third argument, if there is one, receives federations
    trained for reference models. The attack runs in another process, which does not receive the
    true membership. Its code is run, so name only code that you trust.

    The exit code is 0 if all controls of the attack passed, 1 if one failed (the page is written,
    but its results are not valid), 2 if the attack or an option is refused, or the attack fails or
    exceeds the time, and 130 after Ctrl-C.

    Parameters
    ----------
    attack
        file.py, file.py:name, module:object, or the name of a built-in attack.
    out
        HTML file to write; by default score-NAME.html in the current folder. The same results are
        written next to it as Markdown and JSON.
    timeout
        Largest number of seconds for one recording.
    """
    with without_garbage_collection():
        from fedaudit.benchmark.scoring import score_attack
        from fedaudit.core.progress import progress_bars

    target = out or Path(f"score-{_file_name(attack)}.html")
    _raise_if_not_replaceable(target)
    try:
        with progress_bars() as progress:
            board = score_attack(attack, suite, timeout=timeout, progress=progress)
    except KeyboardInterrupt as stop:
        raise type(stop)(
            "stopped; no page was written, and the same command starts from the beginning"
        ) from stop
    _write(board, target)
    sys.exit(0 if all(control.passed for control in board.controls) else CONTROL_FAILED)


def _file_name(attack: str) -> str:
    """Return the name of an attack for a file: the stem of its file, and the object's name."""
    path, _, name = attack.partition(".py:")
    stem = Path(path).name.removesuffix(".py")
    return "".join(
        char if char.isalnum() or char in "-_" else "-" for char in f"{stem} {name}".strip()
    )


def _raise_if_not_replaceable(page: Path) -> None:
    """Raise if a page, or the files next to it, would replace files of another kind."""
    from fedaudit.benchmark.page import MARKDOWN_MARK
    from fedaudit.gate.outputs import raise_if_overwriting
    from fedaudit.study.running.outputs import (
        raise_if_missing_folder,
        raise_if_page_not_replaceable,
    )

    raise_if_missing_folder(page)
    raise_if_page_not_replaceable(page)
    signatures = {".md": MARKDOWN_MARK, ".json": '{"format":"fedaudit-leaderboard"'}
    for suffix, signature in signatures.items():
        raise_if_overwriting(
            page.with_suffix(suffix), [], what="leaderboard", marks=[signature.encode()]
        )


def _write(board: "Leaderboard", page: Path) -> None:
    from fedaudit.benchmark.leaderboard import write_leaderboard
    from fedaudit.benchmark.page import markdown_page, terminal_lines, write_leaderboard_page
    from fedaudit.core.files import write_atomically

    write_leaderboard_page(board, page)
    write_atomically(page.with_suffix(".md"), markdown_page(board))
    write_leaderboard(board, page.with_suffix(".json"))
    log(*terminal_lines(board))
    log("", f"page: {page}", f"results: {page.with_suffix('.json')}, {page.with_suffix('.md')}")
