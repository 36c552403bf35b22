"""Commands for continuous integration: check, which runs all steps of an audit, and init."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fedaudit.cli.application import (
    POLICY,
    DataDir,
    DeviceName,
    Folder,
    Pool,
    Trust,
    WorkerCount,
    app,
    explain_if_other_kind,
    log,
)
from fedaudit.cli.running import attack, run_command
from fedaudit.cli.showing import baseline_in, record_in, record_path
from fedaudit.core.errors import BadInput
from fedaudit.core.files import RECORDING_FILE, create_subfolder, write_atomically

AUDIT, EVIDENCE = "audit", "evidence"
"""Folders that `fedaudit check` writes: results of the attacks on a study or a recording, and the
evidence pack."""
_STARTER = Path(__file__).with_name("starter")
_STUDY, _POLICY = "study.toml", "policy.toml"
_CI_FILES = {
    "github": ("github.yml", ".github/workflows/privacy-gate.yml"),
    "gitlab": ("gitlab.yml", ".gitlab-ci.yml"),
}
"""For each CI service, the package's workflow and the path at which the service expects it."""

JUNIT, VERDICT, SUMMARY = "gate.xml", "verdict.json", "summary.md"
"""Files that `fedaudit check` writes next to the folders `audit` and `evidence`."""


@app.command
def check(
    audited: Path,
    /,
    *,
    policy: Path,
    baseline: Path | None = None,
    out: Folder,
    pool: Pool = None,
    data_dir: DataDir = None,
    workers: WorkerCount = 0,
    device: DeviceName = "cpu",
    trust_code: Trust = False,
) -> None:
    """Audit, gate, summarise and pack in one command, for example in a CI job.

    A study is run, and a live recording is attacked. Then the policy is evaluated as in `fedaudit
    gate`, and the folder gets `gate.xml`, `verdict.json`, `summary.md` and the pack `evidence`.
    The exit code is that of `fedaudit gate`. The same command resumes an audit that was stopped.

    Parameters
    ----------
    audited
        A study (TOML), the folder of a live recording, or the result file of a finished audit
        (record.json) or its folder.
    policy
        The policy, a TOML file.
    baseline
        Result file or pack of the last release: no estimate may be significantly higher.
    """
    from fedaudit.gate.evaluate import evaluate_policy
    from fedaudit.gate.outcome import EXIT_CODES
    from fedaudit.gate.outputs import policy_section, print_verdict, write_verdict
    from fedaudit.gate.policy import read_policy
    from fedaudit.pack.packing import write_pack
    from fedaudit.summary.page import summary_markdown

    # All inputs are read before an audit that may take hours.
    with explain_if_other_kind(policy, POLICY):
        rules = read_policy(policy)
    if not rules.has_ceilings:
        raise BadInput(
            f"{policy} sets no limit on leakage, but the verdict in a pack needs one; add a table "
            "such as [membership], or use `fedaudit gate`"
        )
    older = None if baseline is None else baseline_in(baseline)
    create_subfolder(out)
    # An earlier verdict is deleted first. Custom code can end the process with exit code 0, and the
    # folder must then not contain the verdict on another audit.
    (out / VERDICT).unlink(missing_ok=True)
    result = out / AUDIT
    if audited.is_file() and audited.suffix == ".toml":
        run_command(
            audited, out=result, pool=pool, data_dir=data_dir, workers=workers, device=device
        )
    elif (audited / RECORDING_FILE).is_file():
        attack(audited, out=result, data_dir=data_dir, device=device, trust_code=trust_code)
    else:
        result = audited
    path = record_path(result)
    record = record_in(path)
    verdict = evaluate_policy(record, rules, older)
    write_verdict(verdict, junit=out / JUNIT, json=out / VERDICT)
    section = policy_section(record, verdict, rules, policy)
    write_atomically(out / SUMMARY, summary_markdown(record, section), owner_only=True)
    log("")
    print_verdict(verdict)
    manifest = write_pack(path, policy, out / EVIDENCE, baseline=older, replaces_pack=True)
    log("", f"summary: {out / SUMMARY}", f"pack: {out / EVIDENCE} (digest {manifest.digest})")
    sys.exit(EXIT_CODES[verdict.outcome])


@app.command
def init(
    folder: Path = Path(),
    /,
    *,
    ci: Annotated[Literal["github", "gitlab", "none"], Parameter(show_choices=True)] = "github",
) -> None:
    """Write a study, a policy and a CI workflow to start from.

    The study audits scikit-learn's digits and runs as it is. Change it to your data and model.
    No existing file is replaced.

    Parameters
    ----------
    folder
        Root folder of your repository; created if missing.
    ci
        CI service of the workflow, or none.
    """
    sources = {folder / name: name for name in (_STUDY, _POLICY)}
    if ci in _CI_FILES:
        source, place = _CI_FILES[ci]
        sources[folder / place] = source
    existing = [str(path) for path in sources if path.exists()]
    if existing:
        raise BadInput(
            f"{', '.join(existing)} would be replaced; give another folder or move the files away"
            + " (--ci none writes no workflow)" * (ci != "none")
        )
    for path, source in sources.items():
        create_subfolder(path.parent)
        write_atomically(path, (_STARTER / source).read_text(encoding="utf-8"))
        log(f"wrote {path}")
    study, policy = (folder / name for name in (_STUDY, _POLICY))
    log("", f"try it: fedaudit check {study} --policy {policy} --out {folder / 'privacy-gate'}")
