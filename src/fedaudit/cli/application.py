"""The command-line program: shared options, kinds of input files, and exit codes."""

import csv
import os
import re
import signal
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Annotated, NamedTuple, NoReturn, TextIO, cast

from cyclopts import App, CycloptsError, Parameter

from fedaudit import __version__
from fedaudit.core.errors import BUG_EXIT_CODE, BadInput, FedauditError, called_by
from fedaudit.core.files import MANIFEST_FILE, RECORDING_FILE, open_regular
from fedaudit.core.importing import code_named_in
from fedaudit.results.text import LogLines, indent_lines, one_line

_PREFIX = "fedaudit: "
_PACKAGE = Path(__file__).parents[1]

_MAX_TRACE = 8000
"""Number of characters of a traceback that are printed."""

app = App(
    name="fedaudit",
    help="Measure how much a federated-learning run leaks about its training data.",
    version=__version__,
    suppress_keyboard_interrupt=False,
)

Folder = Annotated[Path, Parameter(help="Folder to write to; created if missing.")]
DataDir = Annotated[
    Path | None,
    Parameter(name="--data-dir", help="Folder of data sets; by default $FEDAUDIT_DATA."),
]
Pool = Annotated[
    Path | None,
    Parameter(
        help="Folder of trained runs that studies share; by default runs/pool, or the study's "
        "folder if --out is given."
    ),
]
WorkerCount = Annotated[
    int,
    Parameter(name="--workers", help="Training processes, with one thread each; 0: one per core."),
]

DeviceName = Annotated[
    str,
    Parameter(
        name="--device",
        help="Device: cpu, cuda (the first GPU) or cuda:1; a GPU allows only one worker.",
    ),
]

Trust = Annotated[
    bool,
    Parameter(
        name="--trust",
        negative=(),
        help="Import and run custom code that the folder names, such as a filter or a model; only "
        "for folders that you trust.",
    ),
]

EngineName = Annotated[
    str,
    Parameter(
        name="--engine",
        help="Engine that trains and measures: local; ray, for Ray on this machine; or a Ray "
        "cluster: ray:auto, ray:host:6379 or ray://host:10001.",
    ),
]

REFUSED = 2
"""Exit code for an error in the user's input or environment."""
_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. An error prints one sentence to standard error, with exit code 2.

    A bug in fedaudit prints its traceback and has exit code 70, which no verdict uses. If output is
    lost, for example because the disk is full, the exit code is 2, unless it is the code of an
    error or a verdict.

    Args:
        arguments: Arguments of the command line; by default, the arguments of the process.
    """
    with robust_printing() as output:
        try:
            with stopping_at_sigterm():
                words = list(sys.argv[1:] if arguments is None else arguments)
                _raise_if_nul(words)
                # Only the help of single commands contains Markdown. Its package is slow to load.
                is_overview = words[:1] in ([], ["-h"], ["--help"])
                app.help_format = "plaintext" if is_overview else "markdown"
                # Commands that run a study, or have --trust, allow custom code in a context.
                with (
                    called_by("command"),
                    code_named_in("the command line", trusted=False),
                    warnings_in_one_line(),
                ):
                    app(
                        words,
                        exit_on_error=False,
                        print_error=False,
                        result_action="return_none",
                    )
            # Commands with a verdict have already exited, with the code of the verdict.
            output.flush()
            if output.write_error is not None:
                raise BadInput(
                    f"standard output could not be written ({output.write_error}); send it to a "
                    "terminal, a pipe or a file: all files are complete"
                )
        except (Exception, KeyboardInterrupt) as error:
            code = BUG_EXIT_CODE
            # An error that cannot be printed must not end with the code of a verdict.
            with suppress(Exception):
                code = _print_error(error)
            sys.exit(code)
    sys.exit(0)


def _print_error(error: BaseException) -> int:
    """Print an error to standard error, and return its exit code."""
    exit_of_error = exit_of(error)
    if exit_of_error is None:
        trace = "".join(traceback.format_exception(error))
        exit_of_error = _Exit(
            f"{trace[-_MAX_TRACE:].strip()}\nfedaudit: this is a bug in fedaudit, not an error in "
            "its input; please report it with the lines above",
            BUG_EXIT_CODE,
        )
    # The message may quote another person's file, so it must not contain control characters.
    print(f"fedaudit: {indent_lines(exit_of_error.message)}", file=sys.stderr)
    return exit_of_error.code


def _raise_if_nul(words: Sequence[str]) -> None:
    """Raise if an argument has a NUL character, where operating systems would truncate a path."""
    word = next((word for word in words if "\0" in word), None)
    if word is not None:
        raise BadInput(f"{word!r} has a NUL character, which no path or setting has; leave it out")


def log(*lines: str) -> None:
    """Print each text as one line, without control characters that it may quote from files."""
    for line in lines:
        print(one_line(line))


def log_wrapped(sentence: str) -> None:
    """Print a sentence in lines of the terminal's width, with further lines indented."""
    from rich.console import Console

    from fedaudit.report.terminal import width_of

    # A break at a hyphen would split the names of attacks and options.
    width = width_of(Console())
    log(*textwrap.wrap(sentence, width, subsequent_indent="  ", break_on_hyphens=False))


class Terminated(KeyboardInterrupt):
    """Signal SIGTERM, which stops the process like Ctrl-C."""


class _Exit(NamedTuple):
    message: str
    code: int


def exit_of(error: BaseException) -> _Exit | None:
    """Return the message and exit code for an error; None if the error is a bug in fedaudit."""
    if isinstance(error, KeyboardInterrupt):
        code = _TERMINATED if isinstance(error, Terminated) else _INTERRUPTED
        return _Exit(str(error) or "stopped; run the same command again to resume", code)
    if isinstance(error, FedauditError | CycloptsError):
        return _Exit(str(error).strip(), REFUSED)
    if isinstance(error, OSError | MemoryError):
        return _Exit(
            f"the operating system reported an error ({str(error) or 'out of memory'}); check the "
            "path, the disk and the memory, and start again: completed work is kept",
            REFUSED,
        )
    if isinstance(error, RuntimeError) and _is_out_of_memory(error):
        return _Exit(
            "out of memory; choose a smaller model, fewer samples or fewer workers, and start "
            "again: completed work is kept",
            REFUSED,
        )
    return None


class _TerminalStream:
    """Text stream that raises no error if it is closed, full, or without a reader.

    Attributes:
        write_error: First error that lost a part of the output, such as a full disk. None if
            nothing was lost, or if the reader closed the pipe.
    """

    def __init__(self, stream: object, *, closed: bool = False) -> None:
        self._stream = cast(TextIO, stream)
        self._lines = LogLines()
        self._closed = closed
        self.write_error: Exception | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text. Lines that a CI system would run as commands are made harmless."""
        if self._closed:
            self.write_error = OSError("it is closed")
        try:
            self._stream.write(self._lines.defused(text))
            return len(text)
        except (OSError, ValueError) as error:
            self._discard_further_output(error)
            return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._discard_further_output(error)

    def _discard_further_output(self, error: Exception) -> None:
        if not isinstance(error, BrokenPipeError):
            self.write_error = self.write_error or error
        # Python flushes the stream's buffer again when the program ends. An error would then change
        # the exit code, so the file descriptor is redirected to the null device. A closed stream
        # has no buffer, so errors are ignored.
        with suppress(OSError, ValueError):
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self._stream.fileno())
            os.close(devnull)


@contextmanager
def robust_printing() -> Iterator[_TerminalStream]:
    """Prevent errors of standard output and standard error from ending a command in the context.

    A character that the terminal's encoding lacks is printed as an escape sequence. Output to a
    closed pipe (``fedaudit run study.toml | head -1``) or to a full disk is discarded.

    Yields:
        Standard output, with the first error that lost a part of it.
    """
    stdout, stderr = sys.stdout, sys.stderr
    error_modes = [
        (stream, stream.errors) for stream in (stdout, stderr) if isinstance(stream, TextIOWrapper)
    ]
    for stream, _ in error_modes:
        _reconfigure(stream, "backslashreplace")
    with ExitStack() as opened:
        if stdout is None or stderr is None:
            _open_closed_descriptors()
        output, error_output = (
            _TerminalStream(
                stream or opened.enter_context(open(os.devnull, "w", encoding="utf-8")),
                closed=stream is None,
            )
            for stream in (stdout, stderr)
        )
        sys.stdout, sys.stderr = cast(TextIO, output), cast(TextIO, error_output)
        try:
            yield output
        finally:
            output.flush()
            error_output.flush()
            sys.stdout, sys.stderr = stdout, stderr
            for stream, error_mode in error_modes:
                _reconfigure(stream, error_mode)


def _reconfigure(stream: TextIOWrapper, errors: str | None) -> None:
    # This flushes the stream, which fails if the stream is closed or the disk is full.
    with suppress(OSError, ValueError):
        stream.reconfigure(errors=errors)


def _open_closed_descriptors() -> None:
    """Open the null device for each standard stream that was closed when the program started.

    Otherwise, a file that is opened later could get the descriptor of such a stream, and libraries
    would write their output to this file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # Uses the lowest free number, which is `descriptor`.


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Format fedaudit's warnings within the context as lines for a user, without lines of code."""
    as_python = warnings.formatwarning

    def as_line(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        text = str(message)
        if not text.startswith(_PREFIX) and _PACKAGE not in Path(filename).parents:
            return as_python(message, category, filename, lineno, line)
        return f"{_PREFIX}warning: {one_line(text.removeprefix(_PREFIX))}\n"

    warnings.formatwarning = as_line
    try:
        yield
    finally:
        warnings.formatwarning = as_python


@contextmanager
def stopping_at_sigterm() -> Iterator[None]:
    """Let SIGTERM stop the process like Ctrl-C within the context; a second SIGTERM kills it."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


def _is_out_of_memory(error: RuntimeError) -> bool:
    # Torch is slow to import. If it raised the error, it is already imported.
    torch = sys.modules.get("torch")
    gpu_error = getattr(torch, "OutOfMemoryError", None)
    if gpu_error is not None and isinstance(error, gpu_error):
        return True
    # On the CPU, torch raises a RuntimeError without a class of its own.
    return "DefaultCPUAllocator" in str(error)


_FORMAT = re.compile(rb'"format":\s?"fedaudit-(\w+)"')
_FORMAT_BYTES = 200
"""Number of bytes at the start of a JSON file that contain its format."""


class Kind(NamedTuple):
    """Kind of file or folder that commands read or write.

    Attributes:
        noun: Name of the kind, with its article.
        usage: Clause about the commands that accept this kind.
    """

    noun: str
    usage: str


STUDY = Kind("a study", "`fedaudit run` runs it")
POLICY = Kind("a policy", "`fedaudit gate`, `summary` and `pack` take it as --policy")
GUARD_POLICY = Kind("the policy of a guard", "`fedaudit check-guard` checks it")
PRIVACY_SETUP = Kind("a privacy set-up", "`fedaudit budget` takes it")
RECORD = Kind(
    "the record of a run", "`fedaudit report`, `summary`, `compare`, `gate` and `pack` take it"
)
COMPARISON = Kind("a comparison", "`fedaudit compare` updates it")
VERDICT = Kind("a verdict", "`fedaudit gate` writes it for a record and a policy")
PACK = Kind("a pack", "`fedaudit verify` checks its folder")
RUN = Kind(
    "the folder of a run",
    "`fedaudit report`, `ask`, `summary`, `compare`, `gate`, `pack`, `attack` take it",
)
RECORDING = Kind("a live recording", "`fedaudit attack` attacks it")

BENCHMARK = Kind("a benchmark", "`fedaudit score` takes its folder as --suite")
LEADERBOARD = Kind("a leaderboard", "`fedaudit benchmark` and `score` write it for a benchmark")

KINDS_WITH_A_RECORD = (RECORD, RUN, RECORDING, PACK)
"""Kinds that commands accept where they need a record."""

_BY_FORMAT = {
    b"record": RECORD,
    b"comparison": COMPARISON,
    b"verdict": VERDICT,
    b"pack": PACK,
    b"benchmark": BENCHMARK,
    b"leaderboard": LEADERBOARD,
}


@contextmanager
def explain_if_other_kind(path: Path, *kinds: Kind) -> Iterator[None]:
    """Explain an error in the context if its cause is a path of another kind.

    For example, the command for a study file may have been called with a record.

    Args:
        path: File or folder.
        kinds: Kinds that the command accepts.
    """
    try:
        yield
    except FedauditError as error:
        kind = _kind_at(path)
        if kind is None or kind in kinds:
            raise
        raise BadInput(f"{path} is {kind.noun} and not {kinds[0].noun}; {kind.usage}") from error


def _kind_at(path: Path) -> Kind | None:
    with suppress(OSError, FedauditError):
        return _kind_of_folder(path) if path.is_dir() else _kind_of_file(path)
    return None


def _kind_of_folder(folder: Path) -> Kind | None:
    from fedaudit.study.running.folder import STUDY_FILE

    kinds = {MANIFEST_FILE: PACK, RECORDING_FILE: RECORDING, STUDY_FILE: RUN}
    return next((kind for name, kind in kinds.items() if (folder / name).is_file()), None)


def _kind_of_file(path: Path) -> Kind | None:
    from fedaudit.plan.values import read_toml

    with open_regular(path) as file:
        match = _FORMAT.search(file.read(_FORMAT_BYTES))
    return _BY_FORMAT.get(match[1]) if match else _kind_of_tables(read_toml(path, "the file"))


def _kind_of_tables(tables: dict[str, object]) -> Kind | None:
    """Return the kind of a TOML file, or None if it is unknown.

    A privacy set-up is recognised by its phases, and the policy of a guard by its limit. A study
    and a policy are distinguished by the number of their tables.
    """
    if "phase" in tables:
        return PRIVACY_SETUP
    if "limit" in tables:
        return GUARD_POLICY
    from fedaudit.gate.policy import Policy
    from fedaudit.plan.games import GameStudy
    from fedaudit.plan.sections import Study

    study_names = Study.model_fields.keys() | GameStudy.model_fields.keys()
    n_study_tables = len(tables.keys() & study_names)
    n_policy_tables = len(tables.keys() & Policy.model_fields.keys())
    if n_study_tables == n_policy_tables:
        return None
    return STUDY if n_study_tables > n_policy_tables else POLICY


def split_at_commas(option: str, text: str) -> list[str]:
    """Return the entries of an option; an entry that contains a comma is in double quotes."""
    try:
        (entries,) = csv.reader([text], skipinitialspace=True)
    except csv.Error as error:
        raise BadInput(
            f"--{option} {text[:80]!r} cannot be read ({error}); give one line with commas between "
            "the entries"
        ) from None
    return [entry.strip() for entry in entries if entry.strip()]
