"""Check of a filter in a child process, so that a crash of the filter does not end the command.

The child process does not protect from malicious code: the filter runs with the user's rights.
"""

import json
import os
import secrets
import signal
import traceback
from collections.abc import Mapping
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import NamedTuple, cast

from fedaudit.core.errors import BadInput, FedauditError, called_by, format_option
from fedaudit.core.importing import code_named_in
from fedaudit.filters.claim import FilterVerdict

_MAX_MESSAGE_BYTES = 2**20
_VERDICT, _USER_ERROR, _INTERNAL_ERROR = "verdict", "refusal", "fault"
"""Kinds of the message that the child sends."""
# The fork server imports torch only once, which shortens every further check from 4 s to 1 s.
_FORKSERVER = "forkserver"


class IsolatedAudit(NamedTuple):
    """Outcome of a check in a child process: the verdict, and the printed audit."""

    verdict: FilterVerdict
    text: str


class _Message(NamedTuple):
    """Message of the child.

    Attributes:
        kind: Kind of the message.
        verdict: The verdict; empty for an error.
        text: The printed audit, or the error message.
    """

    kind: str
    verdict: str
    text: str


def check_in_child(
    filter: str, settings: Mapping[str, object], *, seconds: float = 0
) -> IsolatedAudit:
    """Run :func:`fedaudit.filters.check.check_dp` in a child process and return its outcome.

    The child sends the verdict with a secret token. Its exit code and its printed output are
    ignored, since the filter controls both.

    Args:
        filter: Name of the filter, as ``module:object``.
        settings: Further arguments of ``check_dp``.
        seconds: Time limit; 0 for none.
    """
    method = _FORKSERVER if _FORKSERVER in get_all_start_methods() else "spawn"
    # All contexts have the same methods, but the type stubs differ between operating systems.
    context = cast(SpawnContext, get_context(method))
    if method == _FORKSERVER:
        context.set_forkserver_preload(["fedaudit.filters.check"])
    receiver, sender = context.Pipe(duplex=False)
    token = secrets.token_hex(16)
    process = context.Process(target=_run_check, args=(sender, token, filter, dict(settings)))
    process.start()
    sender.close()
    # A timeout of wait() would not be enough, since a child may hang while it sends its message.
    timer = Timer(seconds, process.kill) if seconds else None
    start = monotonic()
    try:
        if timer is not None:
            timer.daemon = True
            timer.start()
        wait([receiver, process.sentinel])
        message = _receive(receiver, token)
        if message is None:
            process.join(1)
    finally:
        if timer is not None:
            timer.cancel()
        process.kill()
        process.join()
        receiver.close()
    if message is None:
        if seconds and monotonic() - start >= seconds:
            raise BadInput(
                f"the check of {filter!r} was stopped after {seconds:g} s; call the filter outside "
                f"fedaudit to see where it hangs, or raise {format_option('seconds')} (0: no limit)"
            )
        raise BadInput(
            f"{filter!r} ended the process in which it was checked "
            f"({_describe_exit(process.exitcode or 0)}), so there is no result; call the filter "
            "outside fedaudit to find the error"
        )
    if message.kind == _USER_ERROR:
        raise BadInput(message.text)
    if message.kind == _INTERNAL_ERROR:
        raise RuntimeError(f"internal error in the check:\n{message.text}")
    return IsolatedAudit(FilterVerdict(message.verdict), message.text)


def _run_check(sender: Connection, token: str, filter: str, settings: dict[str, object]) -> None:
    """Run the check in the child without output, and send a message with the outcome."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    message = _outcome(filter, settings)
    sender.send_bytes(json.dumps([token, *message]).encode())


def _outcome(filter: str, settings: dict[str, object]) -> _Message:
    # The user named the filter on the command line, so its code is trusted.
    importing = code_named_in("the command line", trusted=True, folder=Path.cwd())
    try:
        from fedaudit.filters.check import check_dp

        with called_by("command"), importing:
            audit = check_dp(filter, **settings)  # type: ignore[arg-type]  # checked by the command
        return _Message(_VERDICT, audit.verdict, str(audit))
    except (FedauditError, OSError, MemoryError) as error:
        return _Message(_USER_ERROR, "", str(error) or type(error).__name__)
    except SystemExit as error:
        text = (
            f"{filter!r} ended the program (SystemExit: {error}); call the filter outside fedaudit "
            "to find the error"
        )
        return _Message(_USER_ERROR, "", text)
    except Exception:
        return _Message(_INTERNAL_ERROR, "", traceback.format_exc())


def _receive(receiver: Connection, token: str) -> _Message | None:
    """Return the child's message; None if it is missing or lacks the token."""
    try:
        if not receiver.poll():
            return None
        received = json.loads(receiver.recv_bytes(_MAX_MESSAGE_BYTES))
        received_token, kind, verdict, text = map(str, received)
    except (EOFError, OSError, ValueError, TypeError, RecursionError):
        return None
    if not secrets.compare_digest(received_token.encode(), token.encode()):
        return None
    return _Message(kind, verdict, text)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
