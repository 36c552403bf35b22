"""Command that checks the policy of a data holder's guard before a job."""

from pathlib import Path

from fedaudit.cli.application import GUARD_POLICY, app, explain_if_other_kind, log_wrapped
from fedaudit.core.errors import BadInput
from fedaudit.core.progress import LONG_SECONDS, without_garbage_collection


@app.command(name="check-guard")
def check_guard(policy: Path, /, *, seconds: float = 60) -> None:
    """Check the policy of a site's guard before a job, and print what the guard will do.

    The guard is opened in a temporary folder, and checks an upload without a leak and an upload
    with a planted leak. Run the command as the user that runs the site. It imports the Python files
    that the policy names. Exit code 0: the policy is valid, perhaps with warnings; 2: the guard
    refuses it.

    Parameters
    ----------
    policy
        The policy, a TOML file such as guard.toml.
    seconds
        Time limit of the training that plants a leak; 0 plants no leak.
    """
    with without_garbage_collection():
        from fedaudit.guard.checking import check_site_policy

    if not 0 <= seconds <= LONG_SECONDS:
        raise BadInput(f"--seconds is from 0 (no leak) to {LONG_SECONDS}, got {seconds:g}")
    n_warnings = 0
    with explain_if_other_kind(policy, GUARD_POLICY):
        for statement in check_site_policy(policy, seconds=seconds):
            log_wrapped(f"{statement.topic}: {statement.text}")
            n_warnings += statement.is_warning
    ending = {0: "", 1: ", with 1 warning"}.get(n_warnings, f", with {n_warnings} warnings")
    log_wrapped(f"{policy} is valid{ending}")
