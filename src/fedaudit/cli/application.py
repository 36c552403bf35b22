"""The command-line program: shared options, kinds of input files, and exit codes."""

import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Annotated, NamedTuple, NoReturn, TextIO, cast

from cyclopts import App, CycloptsError, Parameter

from fedaudit import __version__
from fedaudit.core.errors import FAULT, BadInput, FedauditError, called_by
from fedaudit.core.files import MANIFEST_FILE, RECORDING_FILE, open_regular
from fedaudit.core.importing import code_named_in
from fedaudit.results.text import LogLines, indented, one_line

_LONGEST_TRACE = 8000

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
        help="Folder of trained runs that studies share; by default runs/pool, or with --out the "
        "study's folder."
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
        help="Device: cpu, cuda (the first GPU) or cuda:1; a GPU allows a single worker.",
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
_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM


def main(words: Sequence[str] | None = None) -> None:
    """Run a command. An error is one sentence on standard error and exit code 2.

    A fault of the program prints its traceback and ends with exit code 70, which no verdict has. A
    terminal that cannot print the output changes no exit code of an error or a verdict. Any other
    command ends with exit code 2 if its output is lost.

    Args:
        words: Arguments of the command line; those of the process by default.
    """
    with robust_printing() as printed:
        try:
            with stopping_at_sigterm():
                arguments = list(sys.argv[1:] if words is None else words)
                _refuse_nul(arguments)
                # Only the help of a command has Markdown, which takes long to load.
                is_overview = arguments[:1] in ([], ["-h"], ["--help"])
                app.help_format = "plaintext" if is_overview else "markdown"
                # Commands that run a study, or have --trust, trust its code themselves.
                with called_by("command"), code_named_in("the command line", trusted=False):
                    app(
                        arguments,
                        exit_on_error=False,
                        print_error=False,
                        result_action="return_none",
                    )
            # A verdict has already ended the program, with its code even if the output is lost.
            printed.flush()
            if printed.lost is not None:
                raise BadInput(
                    f"standard output could not be written ({printed.lost}); send it to a "
                    "terminal, a pipe or a file: all files are complete"
                )
        except (Exception, KeyboardInterrupt) as error:
            code = FAULT
            # An error that cannot be printed must not end with the code of a verdict.
            with suppress(Exception):
                code = _print_error(error)
            sys.exit(code)
    sys.exit(0)


def _print_error(error: BaseException) -> int:
    """Print an error to standard error, and return its exit code."""
    end = end_of(error)
    if end is None:
        trace = "".join(traceback.format_exception(error))
        end = _End(
            f"{trace[-_LONGEST_TRACE:].strip()}\nfedaudit: this is a fault of fedaudit, and not of "
            "its input; please report it with the lines above",
            FAULT,
        )
    # The message may quote a file of another person.
    print(f"fedaudit: {indented(end.message)}", file=sys.stderr)
    return end.code


def _refuse_nul(words: Sequence[str]) -> None:
    """Raise if an argument has a NUL character, at which operating systems cut a path off."""
    word = next((word for word in words if "\0" in word), None)
    if word is not None:
        raise BadInput(f"{word!r} has a NUL character, which no path or setting has; leave it out")


def log(*lines: str) -> None:
    """Print each text as one line, without control characters that it may quote from files."""
    for line in lines:
        print(one_line(line))


class Terminated(KeyboardInterrupt):
    """SIGTERM, which stops the program as Ctrl-C does."""


class _End(NamedTuple):
    message: str
    code: int


def end_of(error: BaseException) -> _End | None:
    """Return message and exit code of an error; None for a fault of the program."""
    if isinstance(error, KeyboardInterrupt):
        code = _TERMINATED if isinstance(error, Terminated) else _INTERRUPTED
        return _End("stopped; start the same command again to resume", code)
    if isinstance(error, FedauditError | CycloptsError):
        return _End(str(error).strip(), REFUSED)
    if isinstance(error, OSError | MemoryError):
        return _End(
            f"the operating system refused ({str(error) or 'out of memory'}); check the path, the "
            "disk and the memory, and start again: completed work is kept",
            REFUSED,
        )
    if isinstance(error, RuntimeError) and _is_out_of_memory(error):
        return _End(
            "out of memory; choose a smaller model, fewer samples or fewer workers, and start "
            "again: completed work is kept",
            REFUSED,
        )
    return None


class _TerminalStream:
    """Text stream that raises no error if it is closed, full, or without a reader.

    Attributes:
        lost: Error that lost a part of the output, such as a full disk. None if nothing was lost,
            or if the reader closed the pipe.
    """

    def __init__(self, stream: object, *, closed: bool = False) -> None:
        self._stream = cast(TextIO, stream)
        self._lines = LogLines()
        self._closed = closed
        self.lost: Exception | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, without lines that a CI system would run as commands."""
        if self._closed:
            self.lost = OSError("it is closed")
        try:
            self._stream.write(self._lines.defused(text))
            return len(text)
        except (OSError, ValueError) as error:
            self._discard_from_now(error)
            return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._discard_from_now(error)

    def _discard_from_now(self, error: Exception) -> None:
        if not isinstance(error, BrokenPipeError):
            self.lost = self.lost or error
        # The file descriptor is redirected, because Python flushes the stream's buffer again when
        # the program ends, and an error would then change the exit code. A closed stream has no
        # buffer.
        with suppress(OSError, ValueError):
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self._stream.fileno())
            os.close(devnull)


@contextmanager
def robust_printing() -> Iterator[_TerminalStream]:
    """Inside, no error of standard output or standard error ends a command.

    A character that the terminal's encoding lacks is printed as an escape. Output after a pipe was
    closed (``fedaudit run study.toml | head -1``), or to a full disk, is discarded.

    Yields:
        Standard output, with the error that lost a part of it.
    """
    out, err = sys.stdout, sys.stderr
    before = [(stream, stream.errors) for stream in (out, err) if isinstance(stream, TextIOWrapper)]
    for stream, _ in before:
        _reconfigure(stream, "backslashreplace")
    with ExitStack() as opened:
        if out is None or err is None:
            _open_closed_descriptors()
        printed, errors_printed = (
            _TerminalStream(
                stream or opened.enter_context(open(os.devnull, "w", encoding="utf-8")),
                closed=stream is None,
            )
            for stream in (out, err)
        )
        sys.stdout, sys.stderr = cast(TextIO, printed), cast(TextIO, errors_printed)
        try:
            yield printed
        finally:
            printed.flush()
            errors_printed.flush()
            sys.stdout, sys.stderr = out, err
            for stream, errors in before:
                _reconfigure(stream, errors)


def _reconfigure(stream: TextIOWrapper, errors: str | None) -> None:
    # Flushes the stream, which fails if it is closed or full.
    with suppress(OSError, ValueError):
        stream.reconfigure(errors=errors)


def _open_closed_descriptors() -> None:
    """Open the null device for standard streams that the program was started without.

    A file that is opened later would get their descriptors, and output of libraries with them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # Gets the lowest free number, which is this one.


@contextmanager
def stopping_at_sigterm() -> Iterator[None]:
    """Inside, SIGTERM stops the program as Ctrl-C does; a second SIGTERM ends it at once."""
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
    """Return whether torch raised the error for want of memory."""
    # Torch is not imported here: an error of torch shows that it has been imported.
    torch = sys.modules.get("torch")
    on_gpu = getattr(torch, "OutOfMemoryError", None)
    if on_gpu is not None and isinstance(error, on_gpu):
        return True
    # On the CPU torch raises a plain RuntimeError, which only its text distinguishes.
    return "DefaultCPUAllocator" in str(error)


_MARK = re.compile(rb'"format":\s?"fedaudit-(\w+)"')
_MARKED_WITHIN = 200
"""Number of bytes at the start of a JSON file that contain its format."""


class Kind(NamedTuple):
    """A kind of file or folder, and the commands that take it."""

    noun: str
    usage: str


STUDY = Kind("a study", "`fedaudit run` runs it")
POLICY = Kind("a policy", "`fedaudit gate`, `summary` and `pack` take it as --policy")
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

HAVE_RECORDS = (RECORD, RUN, RECORDING, PACK)
"""Kinds that commands accept where they need a record."""

_BY_MARK = {b"record": RECORD, b"comparison": COMPARISON, b"verdict": VERDICT, b"pack": PACK}


@contextmanager
def expecting(path: Path, *kinds: Kind) -> Iterator[None]:
    """Inside, an error names the kind of a path and its commands, if it is of another kind."""
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
        mark = _MARK.search(file.read(_MARKED_WITHIN))
    return _BY_MARK.get(mark[1]) if mark else _kind_of_tables(read_toml(path, "the file"))


def _kind_of_tables(tables: dict[str, object]) -> Kind | None:
    """Return the kind with more of the tables, a study or a policy; None if neither has.

    A privacy set-up is recognised by its phases.
    """
    if "phase" in tables:
        return PRIVACY_SETUP
    from fedaudit.gate.policy import Policy
    from fedaudit.plan.games import GameStudy
    from fedaudit.plan.sections import Study

    of_study = len(tables.keys() & (Study.model_fields.keys() | GameStudy.model_fields.keys()))
    of_policy = len(tables.keys() & Policy.model_fields.keys())
    if of_study == of_policy:
        return None
    return STUDY if of_study > of_policy else POLICY
