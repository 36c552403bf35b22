"""The program, the options that several commands share, and how it ends."""

import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from fedaudit import __version__
from fedaudit.cli.ending import End, end_of, printing_anyway, stopping_at_sigterm
from fedaudit.core.errors import FAULT, BadInput, on_command_line
from fedaudit.core.importing import code_named_in
from fedaudit.results.text import plain

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
                _refuse_nul(sys.argv[1:] if words is None else words)
                # What carries out a study, or is told to trust a folder, says so itself.
                with on_command_line(), code_named_in("what was given", trusted=False):
                    app(
                        words,
                        exit_on_error=False,
                        print_error=False,
                        result_action="return_none",
                    )
            # A verdict has ended the program by now, and stands whoever could read it.
            printed.flush()
            if printed.lost is not None:
                raise printed.lost
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
        end = End(
            f"{trace[-_LONGEST_TRACE:].strip()}\nfedaudit: this is a fault of fedaudit and says "
            "nothing about what it was given; please report it with the lines above",
            FAULT,
        )
    # A refusal may quote a file of somebody else's; a return would write over what is there.
    print(f"fedaudit: {plain(end.said)}".replace("\r", "\ufffd"), file=sys.stderr)
    return end.code


def _refuse_nul(words: Sequence[str]) -> None:
    """Refuses a character that no path has: operating systems end one there."""
    word = next((word for word in words if "\0" in word), None)
    if word is not None:
        raise BadInput(f"{word!r} has a NUL character, which no path or setting has; leave it out")


def log(text: str) -> None:
    """Prints a line for people; it may quote files of others."""
    print(plain(text))
