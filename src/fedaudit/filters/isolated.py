"""Check of a filter in a child process, so that a crash of the filter does not end the command.

It is no protection from malicious code: the filter runs with the user's rights.
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

from fedaudit.core.errors import BadInput, FedauditError, called_by, option
from fedaudit.core.importing import code_named_in
from fedaudit.filters.claim import FilterVerdict

_MAX_ANSWER_BYTES = 2**20
_VERDICT, _REFUSAL, _FAULT = "verdict", "refusal", "fault"
# The fork server imports torch once, and then each check takes one second instead of four.
_FORKSERVER = "forkserver"


class IsolatedAudit(NamedTuple):
    """Outcome of a check in a child process: the verdict, and the audit as it is printed."""

    verdict: FilterVerdict
    text: str


def check_in_child(
    filter: str, settings: Mapping[str, object], *, seconds: float = 0
) -> IsolatedAudit:
    """Run :func:`fedaudit.filters.check.check_dp` in a child process and return its outcome.

    Only an answer with the token of this check is a verdict, never the child's exit code, which the
    filter can set. Output of the child is discarded.
    """
    method = _FORKSERVER if _FORKSERVER in get_all_start_methods() else "spawn"
    # All contexts have the same methods, but type stubs define only contexts of this system.
    context = cast(SpawnContext, get_context(method))
    if method == _FORKSERVER:
        context.set_forkserver_preload(["fedaudit.filters.check"])
    receiver, sender = context.Pipe(duplex=False)
    token = secrets.token_hex(16)
    process = context.Process(target=_run_check, args=(sender, token, filter, dict(settings)))
    process.start()
    sender.close()
    # The timeout of wait() is not enough, since a child may stop in the middle of its answer.
    timer = Timer(seconds, process.kill) if seconds else None
    start = monotonic()
    try:
        if timer is not None:
            timer.daemon = True
            timer.start()
        wait([receiver, process.sentinel])
        answer = _receive_answer(receiver, token)
        if answer is None:
            process.join(1)
    finally:
        if timer is not None:
            timer.cancel()
        process.kill()
        process.join()
        receiver.close()
    if answer is None:
        is_late = bool(seconds) and monotonic() - start >= seconds
        raise BadInput(_no_answer(filter, process.exitcode or 0, seconds if is_late else 0))
    kind, verdict, text = answer
    if kind == _REFUSAL:
        raise BadInput(text)
    if kind == _FAULT:
        raise RuntimeError(f"the check has a fault:\n{text}")
    return IsolatedAudit(FilterVerdict(verdict), text)


def _run_check(sender: Connection, token: str, filter: str, settings: dict[str, object]) -> None:
    """Run the check in the child without output, and send the outcome."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    kind, verdict, text = _outcome(filter, settings)
    sender.send_bytes(json.dumps([token, kind, verdict, text]).encode())


def _outcome(filter: str, settings: dict[str, object]) -> tuple[str, str, str]:
    # The user's command line names the filter, whose code is therefore trusted.
    importing = code_named_in("the command line", trusted=True, folder=Path.cwd())
    try:
        from fedaudit.filters.check import check_dp

        with called_by("command"), importing:
            audit = check_dp(filter, **settings)  # type: ignore[arg-type]  # checked by the command
        return _VERDICT, audit.verdict, str(audit)
    except (FedauditError, OSError, MemoryError) as error:
        return _REFUSAL, "", str(error) or type(error).__name__
    except SystemExit as error:
        reason = (
            f"{filter!r} ended the program (SystemExit: {error}); fix it, and run it on its own"
        )
        return _REFUSAL, "", reason
    except Exception:
        return _FAULT, "", traceback.format_exc()


def _receive_answer(receiver: Connection, token: str) -> tuple[str, str, str] | None:
    """Return kind, verdict and text of an answer; None if it is missing or lacks the token."""
    try:
        if not receiver.poll():
            return None
        answer = json.loads(receiver.recv_bytes(_MAX_ANSWER_BYTES))
        answer_token, kind, verdict, text = map(str, answer)
    except (EOFError, OSError, ValueError, TypeError, RecursionError):
        return None
    if not secrets.compare_digest(answer_token.encode(), token.encode()):
        return None
    return kind, verdict, text


def _no_answer(filter: str, code: int, seconds: float) -> str:
    if seconds:
        return (
            f"the check of {filter!r} was stopped after {seconds:g} s; run the filter on its own, "
            f"or raise {option('seconds')} (0: no limit)"
        )
    status = f"signal {_signal_name(-code)}" if code < 0 else f"exit code {code}"
    return (
        f"{filter!r} ended the process in which it was checked ({status}), so there is no result; "
        "fix it, and run it on its own"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
