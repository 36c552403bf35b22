"""The program: shared options, kinds of file that commands take, and how it ends."""

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
from fedaudit.core.files import RECORDING_FILE, open_regular
from fedaudit.core.importing import code_named_in
from fedaudit.results.text import LogLines, indented, one_line

_LONGEST_TRACE = 8000

app = App(
    name="fedaudit",
    help="Measure what a federated-learning run gives away about who was in it.",
    version=__version__,
    suppress_keyboard_interrupt=False,
)

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

Trust = Annotated[
    bool,
    Parameter(
        name="--trust",
        negative=(),
        help="Import and run code that the folder names, such as a filter or a model of one's own; "
        "for folders of people whose code you would run.",
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

REFUSED = 2
_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM


def main(words: Sequence[str] | None = None) -> None:
    """Runs a command; a refusal is one sentence on standard error and exit code 2.

    A fault of the program is shown whole and ends with exit code 70, which no verdict has. What
    the terminal cannot take changes neither, nor a verdict's code; a command that ends with none
    is refused where what it has printed is lost.

    Args:
        words: The command line after the program's name; that of the process by default.
    """
    with printing_anyway() as printed:
        try:
            with stopping_at_sigterm():
                given = list(sys.argv[1:] if words is None else words)
                _refuse_nul(given)
                # Only the help of a command has Markdown, which takes long to load.
                is_overview = given[:1] in ([], ["-h"], ["--help"])
                app.help_format = "plaintext" if is_overview else "markdown"
                # What carries out a study, or is told to trust a folder, says so itself.
                with called_by("command"), code_named_in("what was given", trusted=False):
                    app(
                        given,
                        exit_on_error=False,
                        print_error=False,
                        result_action="return_none",
                    )
            # A verdict has ended the program by now, and stands whoever could read it.
            printed.flush()
            if printed.lost is not None:
                raise BadInput(
                    f"standard output did not take what was printed ({printed.lost}); send it to a "
                    "terminal, a pipe or a file: what was written to files is kept"
                )
        except (Exception, KeyboardInterrupt) as error:
            code = FAULT
            # An error that cannot even be told of must not pass for a verdict.
            with suppress(Exception):
                code = _ended(error)
            sys.exit(code)
    sys.exit(0)


def _ended(error: BaseException) -> int:
    """The exit code of a command that an error ended, which is told of on standard error."""
    end = end_of(error)
    if end is None:
        trace = "".join(traceback.format_exception(error))
        end = _End(
            f"{trace[-_LONGEST_TRACE:].strip()}\nfedaudit: this is a fault of fedaudit and says "
            "nothing about what it was given; please report it with the lines above",
            FAULT,
        )
    # A refusal may quote a file of somebody else's.
    print(f"fedaudit: {indented(end.said)}", file=sys.stderr)
    return end.code


def _refuse_nul(words: Sequence[str]) -> None:
    """Refuses a character that no path has: operating systems end one there."""
    word = next((word for word in words if "\0" in word), None)
    if word is not None:
        raise BadInput(f"{word!r} has a NUL character, which no path or setting has; leave it out")


def log(*lines: str) -> None:
    """Prints lines for people; each may quote files of others, and stays one line."""
    for line in lines:
        print(one_line(line))


class Terminated(KeyboardInterrupt):
    """Somebody asked the program to end (SIGTERM); it stops as it does at Ctrl-C."""


class _End(NamedTuple):
    said: str
    code: int


def end_of(error: BaseException) -> _End | None:
    """The end that an error makes; None for a fault of the program, which should be seen whole."""
    if isinstance(error, KeyboardInterrupt):
        code = _TERMINATED if isinstance(error, Terminated) else _INTERRUPTED
        return _End("stopped; start the same command again to go on", code)
    if isinstance(error, FedauditError | CycloptsError):
        return _End(str(error).strip(), REFUSED)
    if isinstance(error, OSError | MemoryError):
        return _End(
            f"this machine could not do it ({str(error) or 'out of memory'}); check the path, the "
            "disk and the memory, and start again: what was written before is kept",
            REFUSED,
        )
    if isinstance(error, RuntimeError) and _is_out_of_memory(error):
        return _End(
            "out of memory; choose a smaller model, fewer samples or fewer workers, and start "
            "again: what was written before is kept",
            REFUSED,
        )
    return None


class _TerminalStream:
    """A stream of text that nobody need be reading, and that need not take what is written.

    Attributes:
        lost: Why something that was written is lost, be it a full disk; None where nothing is, or
            where its reader is gone and did not want it.
    """

    def __init__(self, stream: object, *, closed: bool = False) -> None:
        self._stream = cast(TextIO, stream)
        self._lines = LogLines()
        self._closed = closed
        self.lost: Exception | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes, to nowhere once nothing can be; never what a CI system takes for a command."""
        if self._closed:
            self.lost = OSError("it is closed")
        try:
            self._stream.write(self._lines.defused(text))
            return len(text)
        except (OSError, ValueError) as error:
            self._to_nowhere(error)
            return len(text)

    def flush(self) -> None:
        """Flushes, to nowhere once nothing can be."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._to_nowhere(error)

    def _to_nowhere(self, error: Exception) -> None:
        if not isinstance(error, BrokenPipeError):
            self.lost = self.lost or error
        # Below the stream, since what it holds is written again when the program ends, which
        # would then end with an exit code of Python's own. A stream that is closed holds nothing.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def printing_anyway() -> Iterator[_TerminalStream]:
    """Inside, printing ends no command: no reader that is gone, full disk or narrow encoding.

    A character that the terminal's encoding lacks is printed as its escape, and what is printed
    after a pipe was closed (``fedaudit run study.toml | head -1``) goes nowhere, as all does that
    a stream cannot take.

    Yields:
        Standard output, which says whether something that was printed is lost.
    """
    out, err = sys.stdout, sys.stderr
    before = [(stream, stream.errors) for stream in (out, err) if isinstance(stream, TextIOWrapper)]
    for stream, _ in before:
        _reconfigure(stream, "backslashreplace")
    with ExitStack() as opened:
        if out is None or err is None:
            _take_closed()
        printed, told = (
            _TerminalStream(
                one or opened.enter_context(open(os.devnull, "w", encoding="utf-8")),
                closed=one is None,
            )
            for one in (out, err)
        )
        sys.stdout, sys.stderr = cast(TextIO, printed), cast(TextIO, told)
        try:
            yield printed
        finally:
            printed.flush()
            told.flush()
            sys.stdout, sys.stderr = out, err
            for stream, errors in before:
                _reconfigure(stream, errors)


def _reconfigure(stream: TextIOWrapper, errors: str | None) -> None:
    # It flushes, which a stream cannot that is closed or full.
    with suppress(OSError, ValueError):
        stream.reconfigure(errors=errors)


def _take_closed() -> None:
    """Opens nothing under the numbers of standard streams that the program was started without.

    A file that were opened later would get them, and what libraries print there would be in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one


@contextmanager
def stopping_at_sigterm() -> Iterator[None]:
    """Inside, SIGTERM stops the program as Ctrl-C does; a second one ends it on the spot."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
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
    """True if torch raised it where Python would raise MemoryError."""
    # Not imported here: what torch raises comes from a torch that is there.
    torch = sys.modules.get("torch")
    on_gpu = getattr(torch, "OutOfMemoryError", None)
    if on_gpu is not None and isinstance(error, on_gpu):
        return True
    # On the CPU torch raises a bare RuntimeError, so that its words are all there is to go by.
    return "DefaultCPUAllocator" in str(error)


_MARK = re.compile(rb'"format":\s?"fedaudit-(\w+)"')
_MARKED_WITHIN = 200
"""Bytes at the start of a JSON file, within which it says what it is."""


class Kind(NamedTuple):
    """A kind of file or folder, and the commands that take it."""

    noun: str
    taken: str


STUDY = Kind("a study", "`fedaudit run` carries it out")
POLICY = Kind("a policy", "`fedaudit gate`, `summary` and `pack` take it as --policy")
RECORD = Kind(
    "the record of a run", "`fedaudit report`, `summary`, `compare`, `gate` and `pack` take it"
)
COMPARISON = Kind("a comparison", "`fedaudit compare` makes it again")
VERDICT = Kind("a verdict", "`fedaudit gate` gives it again, of a record and a policy")
PACK = Kind("a pack", "`fedaudit verify` checks its folder")
RUN = Kind(
    "the folder of a run",
    "`fedaudit report`, `summary`, `compare`, `gate`, `pack`, `attack` take it",
)
RECORDING = Kind("a live recording", "`fedaudit attack` attacks it")

HAVE_RECORDS = (RECORD, RUN, RECORDING, PACK)
"""Kinds that a command takes which is after a record."""

_BY_MARK = {b"record": RECORD, b"comparison": COMPARISON, b"verdict": VERDICT, b"pack": PACK}


@contextmanager
def meant_as(path: Path, *kinds: Kind) -> Iterator[None]:
    """Inside, a refusal says what the path is and which command takes it, if it is another kind."""
    try:
        yield
    except FedauditError as error:
        found = _kind_at(path)
        if found is None or found in kinds:
            raise
        raise BadInput(f"{path} is {found.noun} and not {kinds[0].noun}; {found.taken}") from error


def _kind_at(path: Path) -> Kind | None:
    with suppress(OSError, FedauditError):
        return _kind_of_folder(path) if path.is_dir() else _kind_of_file(path)
    return None


def _kind_of_folder(folder: Path) -> Kind | None:
    from fedaudit.pack.manifest import MANIFEST_FILE
    from fedaudit.study.running.folder import STUDY_FILE

    kinds = {MANIFEST_FILE: PACK, RECORDING_FILE: RECORDING, STUDY_FILE: RUN}
    return next((kind for name, kind in kinds.items() if (folder / name).is_file()), None)


def _kind_of_file(path: Path) -> Kind | None:
    from fedaudit.plan.values import read_toml

    with open_regular(path) as file:
        mark = _MARK.search(file.read(_MARKED_WITHIN))
    return _BY_MARK.get(mark[1]) if mark else _kind_of_tables(read_toml(path, "the file"))


def _kind_of_tables(tables: dict[str, object]) -> Kind | None:
    """A study or a policy, whichever has more of the tables."""
    from fedaudit.gate.policy import Policy
    from fedaudit.plan.games import GameStudy
    from fedaudit.plan.sections import Study

    of_study = len(tables.keys() & (Study.model_fields.keys() | GameStudy.model_fields.keys()))
    of_policy = len(tables.keys() & Policy.model_fields.keys())
    if of_study == of_policy:
        return None
    return STUDY if of_study > of_policy else POLICY
