"""Commands for the release of a model: gate, pack, verify, and check-dp."""

import sys
from datetime import date
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fedaudit.cli.application import (
    KINDS_WITH_A_RECORD,
    PACK,
    POLICY,
    DataDir,
    Trust,
    app,
    explain_if_other_kind,
    log,
    log_wrapped,
)
from fedaudit.cli.showing import baseline_in, reason_without_record, record_in, record_path
from fedaudit.core.errors import BadInput
from fedaudit.core.files import raise_if_other_suffix, record_at, write_atomically
from fedaudit.core.progress import LONG_SECONDS


@app.command
def signals(recording: Path, /, *, out: Path, client: str = "") -> None:
    """Write the signals of a guard or recording as a table, without samples and labels.

    For a joint audit, the tables of all sites are recorded and attacked with fedaudit attack
    --signals. A table contains losses and similar values of each audited sample, and whether the
    client trains on it.

    Parameters
    ----------
    recording
        Folder of a guard, or of a recording of the view uploads.
    out
        CSV file to write, which must not exist.
    client
        Name of the client in the table, which no other site may use; by default, the name in the
        recording.
    """
    from fedaudit.live.recording import read_recording
    from fedaudit.live.tables.export import csv_of, signal_table

    raise_if_other_suffix(out, ".csv", format_name="a CSV table")
    if out.exists():
        raise BadInput(f"{out} exists; give another file with --out, or delete it")
    table = signal_table(recording, client=client)
    write_atomically(out, csv_of(table), owner_only=True)
    n_rounds, n_samples = len({*table["round"].tolist()}), len({*table["sample"].tolist()})
    log(
        f"signals: {out}",
        f"{n_rounds} rounds and {n_samples} samples of {', '.join(sorted({*table['client']}))}; "
        "the table states which samples are members",
    )
    if conflicts := read_recording(recording).conflicts:
        rounds = ", ".join(map(str, sorted(conflicts)[:10]))
        log(f"the table does not contain the second uploads of repeated rounds ({rounds})")
    if "drawn_for" in table:
        log("membership of each sample was decided at random: attack the table with --fair")


@app.command
def gate(
    record: Path | None = None,
    /,
    *,
    policy: Path | None = None,
    baseline: Path | None = None,
    junit: Path | None = None,
    json: Path | None = None,
    print_policy: bool = False,
) -> None:
    """Compare the upper confidence limits of a record with a policy's ceilings.

    Exit code 0: pass, 1: fail, 3: inconclusive; 2: an error, for example because the file is not a
    record. If a guard withheld every upload, the outcome is inconclusive.

    Parameters
    ----------
    record
        A record.json, its folder, or a live recording that was attacked.
    policy
        The policy, a TOML file.
    baseline
        Result file of the last release: no estimate may be significantly higher. The table
        [baseline] of the policy sets which increase is allowed.
    junit
        File for the verdict as JUnit XML. An existing file is replaced only if it is a verdict.
    json
        File for the verdict as JSON. An existing file is replaced only if it is a verdict.
    print_policy
        Print an example policy, and exit.
    """
    from fedaudit.gate.policy import DEFAULT_POLICY, read_policy

    if print_policy:
        print(DEFAULT_POLICY, end="")
        return
    if record is None or policy is None:
        raise BadInput(
            "a gate needs a result and a policy: fedaudit gate RESULT --policy policy.toml "
            "(--print-policy prints an example policy)"
        )
    from fedaudit.gate.evaluate import evaluate_policy, verdict_without_uploads
    from fedaudit.gate.outcome import EXIT_CODES
    from fedaudit.gate.outputs import print_verdict, raise_if_overwriting, write_verdict

    path, reason = record, ""
    try:
        path = record_at(record)
    except BadInput:
        # A guard that sent nothing has no record, and its job should not end with an error.
        reason = reason_without_record(record)
        if not reason:
            raise
    older = [] if baseline is None else [record_path(baseline)]
    for target, suffix, what in ((junit, ".xml", "JUnit XML"), (json, ".json", "JSON")):
        if target is not None:
            raise_if_other_suffix(target, suffix, format_name=what)
            raise_if_overwriting(target, [path, policy, *older])
    with explain_if_other_kind(policy, POLICY):
        verdict = (
            verdict_without_uploads(record.resolve().name, read_policy(policy), reason)
            if reason
            else evaluate_policy(
                record_in(path),
                read_policy(policy),
                None if baseline is None else baseline_in(baseline),
            )
        )
    write_verdict(verdict, junit=junit, json=json)
    print_verdict(verdict)
    sys.exit(EXIT_CODES[verdict.outcome])


@app.command
def pack(
    record: Path,
    /,
    *,
    policy: Path,
    out: Path,
    smallest_group: int = 10,
    sign: Path | None = None,
    statement: Path | None = None,
    baseline: Path | None = None,
    model: Path | None = None,
) -> None:
    """Pack a record, its report and a policy's verdict, with hashes that verify them.

    The pack has no data about single samples or small groups.

    Parameters
    ----------
    record
        A record.json, its folder, or a live recording that was attacked.
    policy
        The policy, a TOML file.
    out
        New or empty folder for the pack.
    smallest_group
        Groups with fewer samples are suppressed.
    sign
        Ed25519 private key (PEM) that signs the pack; the signature is manifest.sig.
    statement
        Your statement, a TOML file: your role, the purpose of the model, the last day on which the
        pack is valid, and questions of clauses.json that do not apply.
    baseline
        Record or pack of the last release: the verdict compares this one with it, as `fedaudit gate
        --baseline` does. The pack contains it without small groups.
    model
        File of the released model, which must be the final model of the record or its adapter. The
        pack states its name, size and SHA-256.
    """
    from fedaudit.pack.packing import write_pack

    path = record_path(record)
    if smallest_group < 0:
        raise BadInput(f"a group has 0 samples or more, got {smallest_group}")
    model_file = None
    if model is not None:
        from fedaudit.pack.models import released_file

        model_file = released_file(record_in(path), model)
    with explain_if_other_kind(path, *KINDS_WITH_A_RECORD), explain_if_other_kind(policy, POLICY):
        manifest = write_pack(
            path,
            policy,
            out,
            smallest_group=smallest_group,
            sign=sign,
            statement=statement,
            baseline=None if baseline is None else baseline_in(baseline),
            model_file=model_file,
        )
    suppressed = [f"{count} of {name}" for name, count in manifest.suppressed.items() if count]
    log(f"pack: {out} ({manifest.outcome}; suppressed: {', '.join(suppressed) or 'nothing'})")
    log(f"digest (store it outside the pack): {manifest.digest}")


@app.command
def verify(
    folder: Path,
    /,
    *,
    digest: str = "",
    signer: Path | None = None,
    policy: Path | None = None,
    model: Path | None = None,
    not_before: date | None = None,
    recording: Path | None = None,
    data_dir: DataDir = None,
    other_version: Annotated[bool, Parameter(negative=())] = False,
    trust_code: Trust = False,
) -> None:
    """Verify a pack: every hash, and every file that can be recomputed from record and policy.

    Exit code 0: sound; 1: a file was changed, is missing or does not belong in the pack, or the
    packer's statement has expired; 4: another version wrote the pack, and files that may differ for
    that reason are not checked; 2: an error.

    Parameters
    ----------
    folder
        Folder of the pack.
    digest
        Digest that `fedaudit pack` printed. Without digest or signer, a replacement of the whole
        pack would not be noticed.
    signer
        Ed25519 public key (PEM) of the expected signer.
    policy
        Your policy: the policy in the pack must have the same settings.
    model
        File of the released model (torch, safetensors or NumPy): it must be a model of the record.
    not_before
        First day on which the audit may have started, such as 2027-06-30. An older pack could be
        the evidence of an earlier model.
    recording
        Folder of the study's run, or of a live recording, from which all estimates, controls and
        settings of the record are recomputed.
    other_version
        Accept a pack of another version if everything that can be checked is sound.
    """
    from fedaudit.pack.verifying import OTHER_VERSION, SOUND, UNSOUND, question_on_file
    from fedaudit.pack.verifying import verify as verify_pack

    with explain_if_other_kind(folder, PACK):
        result = verify_pack(
            folder, digest=digest, signer=signer, policy=policy, not_before=not_before
        )
    is_about_model = False
    if model is not None and result.record is not None:
        from fedaudit.pack.models import compare_file, compare_model

        compared = compare_model(result.record, model)
        is_about_model = bool(compared.digest)
        result = result.extended(compared.results)
        named_file = result.manifest.model_file if result.manifest else None
        if is_about_model and named_file is not None:
            remaining = [text for text in result.unchecked if text != question_on_file(named_file)]
            result = result._replace(unchecked=remaining)
            result = result.extended(compare_file(named_file, model))
    if recording is not None:
        from fedaudit.pack.recomputing import compare_with_run

        result = compare_with_run(result, recording, data_dir, trust=trust_code)
    for problem in result.problems:
        log_wrapped(f"wrong: {problem}")
    for text in result.checked:
        log_wrapped(f"verified: {text}")
    for text in result.unchecked:
        log_wrapped(f"not checked: {text}")
    if result.problems:
        log_wrapped("the pack is not sound")
        sys.exit(UNSOUND)
    if result.other_version and not other_version:
        log_wrapped(
            "another version wrote the pack: verify it with that version, or give --other-version "
            "to accept the checks of this version"
        )
        sys.exit(OTHER_VERSION)
    confirmed, not_checked = ["its files and verdict follow from its record"], []
    for claim, option, is_checked in (
        ("it is the pack that you expect", "--digest or --signer", bool(digest or signer)),
        ("its policy is yours", "--policy", policy is not None),
        ("it is about your model", "--model", is_about_model),
        ("it is recent enough", "--not-before", not_before is not None),
        ("its record's estimates are those of the run", "--recording", recording is not None),
    ):
        if is_checked:
            confirmed.append(claim)
        else:
            not_checked.append(f"{claim} ({option})")
    sentence = f"the pack is sound: {', '.join(confirmed)}"
    if not_checked:
        sentence += f"; not checked: that {', or that '.join(not_checked)}"
    log_wrapped(sentence)
    if result.record is not None and result.policy is not None:
        from fedaudit.gate.evaluate import evaluate_policy

        outcome = evaluate_policy(result.record, result.policy, result.baseline).outcome
        log_wrapped(f"verdict of its policy: {outcome}" + " (not a pass)" * (outcome != "pass"))
    sys.exit(SOUND)


@app.command
def export(
    pack: Path,
    /,
    *,
    format: str,
    out: Path,
    model: Path | None = None,
    sign: Path | None = None,
    agent: str = "",
    organisation: str = "",
) -> None:
    """Export a pack in the format of another tool. The pack is verified first.

    Parameters
    ----------
    pack
        Folder of the pack.
    format
        in-toto (attestation of the verdict), cyclonedx (model card in a bill of materials),
        model-card (Hugging Face), ro-crate (Five Safes RO-Crate), csv or parquet (all estimates).
    out
        File or, for ro-crate, folder to write, which must not exist.
    model
        File of the released model, which must be the final model of the record.
    sign
        Ed25519 private key (PEM) that signs an in-toto attestation, in a DSSE envelope.
    agent
        Person who made the audit, for ro-crate: 'NAME' or 'NAME <https://orcid.org/...>'.
    organisation
        Organisation of the person, for ro-crate: 'NAME' or 'NAME <https://ror.org/...>'.
    """
    from fedaudit.exports.evidence import read_evidence
    from fedaudit.exports.formats import Options, format_named, write_export

    chosen = format_named(format)
    with explain_if_other_kind(pack, PACK):
        evidence = read_evidence(pack, model)
    write_export(evidence, format, out, Options(sign, agent, organisation))
    log(f"{chosen.what}: {out} ({evidence.verdict.outcome})")


@app.command(name="check-dp")
def check_dp(
    filter: str,
    /,
    *,
    sensitivity: float,
    sigma: float,
    adjacency: str = "remove",
    noise: str = "gaussian",
    kind: str = "",
    shape_from: str = "",
    stateful: Annotated[bool, Parameter(negative=())] = False,
    elsewhere: tuple[str, ...] = (),
    calls: int = 64,
    seed: int = 0,
    seconds: float = 600,
) -> None:
    """Check that a privacy filter clips, adds noise and keeps state as declared.

    The filter is imported and called several hundred times in a separate process, whose output is
    not shown: name only code that you trust. Exit code 0: sound, 1: broken, 3: could not be
    checked; 2: an error, such as a filter that fails or ends its process.

    Parameters
    ----------
    filter
        module:object, in this folder or on Python's path: a function from update to update, a step
        (from a batch to an update), a Flower mod, an NVFlare filter, a defense of fedaudit, or a
        class or function without arguments that returns one.
    sensitivity
        Maximum distance by which one contribution can change the output before noise is added: L2,
        or L1 with Laplace noise.
    sigma
        Noise multiplier: standard deviation divided by sensitivity; 0 if another component adds
        noise.
    adjacency
        remove: one contribution is removed; replace: it is replaced by any other, which can change
        the output by twice as much.
    noise
        Distribution of the noise: gaussian or laplace.
    kind
        function, step, defense, flower-mod or nvflare-filter; inferred by default.
    shape_from
        module:object that is, or returns, an example of an update (a network, or arrays) or of a
        step's batch.
    stateful
        Allow the output to depend on earlier rounds, as in adaptive clipping.
    elsewhere
        Name of another output, which another component makes private; may be repeated.
    calls
        Number of draws of noise, at least 16.
    seed
        Seed of all draws.
    seconds
        Time limit of the check; 0: no limit.
    """
    from fedaudit.filters.claim import EXIT_CODES
    from fedaudit.filters.isolated import check_in_child

    if not 0 <= seconds <= LONG_SECONDS:
        raise BadInput(f"--seconds is from 0 (no limit) to {LONG_SECONDS}, got {seconds:g}")
    audit = check_in_child(
        filter,
        {
            "sensitivity": sensitivity,
            "sigma": sigma,
            "adjacency": adjacency,
            "noise": noise,
            "kind": kind,
            "shape_from": shape_from or None,
            "stateful": stateful,
            "elsewhere": elsewhere,
            "calls": calls,
            "seed": seed,
        },
        seconds=seconds,
    )
    log(*audit.text.split("\n"))
    sys.exit(EXIT_CODES[audit.verdict])
