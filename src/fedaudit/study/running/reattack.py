"""Runs further attacks on the stored measurements of a study, and checks these measurements."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.attacks import catalogue_spellings
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, Damaged, FedauditError, format_option, format_table
from fedaudit.core.files import delete_partial_files, path_without_links
from fedaudit.core.importing import (
    code_named_in,
    convert_exits_to_errors,
    import_callable,
    is_custom,
)
from fedaudit.core.progress import Progress, ignore_progress
from fedaudit.observe.measurements import (
    MeasuredRound,
    StoredRound,
    measured_rounds_in,
    measuring_device,
    warn_of_unhashed,
)
from fedaudit.observe.tensors import read_tensors
from fedaudit.plan.parts import FitContext, MeasuredRun, Resources, Setup
from fedaudit.plan.sections import Study
from fedaudit.plan.values import study_from
from fedaudit.results.record import Record
from fedaudit.study.build import resolve, run_of
from fedaudit.study.running.environment import Clock
from fedaudit.study.running.folder import (
    REATTACK_MAY_CHANGE,
    STUDY_FILE,
    recorded_study,
    replaceable_record_or_raise,
    replaced_attacks,
)
from fedaudit.study.running.observing import measure_kept_updates, stored_rounds, with_all_signals
from fedaudit.study.running.pool import ADDITIONAL_FOLDER, is_measured, run_folder
from fedaudit.study.running.record import evaluate_and_write

_MAX_RMS, _MAX_DIFFERENCE = 0.02, 0.1
"""Largest allowed differences between two measurements of a signal: root mean square and maximum.

The unit is the standard deviation over the samples. Updates are stored with 16 bits, which changes
signals of a small network by 1e-4 on average and by at most 5e-4. Larger changes could affect an
AUC.
"""


def why_not_remeasurable(recording: Path) -> str:
    """Return the reason why a study's signals cannot be measured again; empty if they can."""
    study = recorded_study(recording)
    if study.audit.keep != "full":
        return 'the run did not store its updates (audit.keep = "full")'
    devices = {
        measuring_device(stored)
        for seed in study.seeds
        if (stored := measured_rounds_in(run_folder(recording, seed)))
    }
    # For large networks, signals differ between kinds of devices by more than rounding errors.
    other_devices = sorted(devices - {CPU.type})
    if not other_devices:
        return ""
    return (
        f"they were measured on {other_devices[0]}, but would be measured again on the CPU, where "
        "signals of large networks differ"
    )


def contradicting_signals(
    recording: Path, data_dir: Path | None = None, *, trust: bool = False
) -> list[str]:
    """Measure a study's signals again on its stored updates, and describe signals that differ.

    Returns:
        A sentence for each run and round with such signals, or in which the stored groups of
        clients with the same received model are wrong. Empty if the signals cannot be measured
        again; see :func:`why_not_remeasurable`.

    Raises:
        BadInput: There is no study in the folder, or it names code that is not trusted.
        Damaged: The recording is incomplete or was changed.
    """
    if why_not_remeasurable(recording):
        return []
    contradictions = []
    custom = code_named_in(recording / STUDY_FILE, trusted=trust, folder=Path.cwd())
    with custom, convert_exits_to_errors():
        parts = resolve(recorded_study(recording))
        for seed in parts.study.seeds:
            run = replace(run_of(parts, seed, data_dir), folder=run_folder(recording, seed))
            raise_if_other_data(run)
            stored = stored_rounds(run)
            measured = measure_kept_updates(run, stored, run.signals, Resources())
            for old, new in zip(stored, measured, strict=True):
                where = f"round {new.index} of seed {seed}"
                if names := sorted(_differing_signals(old.measured, new)):
                    contradictions.append(
                        f"{where} has signals that differ from those of its stored updates: "
                        f"{', '.join(names)}"
                    )
                if not torch.equal(_shares_base(old.measured), _shares_base(new)):
                    contradictions.append(
                        f"{where}: the stored updates contradict which clients were sent the same "
                        "model"
                    )
    return contradictions


def _differing_signals(old: MeasuredRound, new: MeasuredRound) -> Iterator[str]:
    """Yield the names of signals that differ between two measurements of a round."""
    for name, values in new.signals.items():
        difference = (old.signals[name] - values).double()
        std = values.double().std(1, correction=0)
        # The second term allows for rounding errors if all samples have the same value.
        scale = std + 1e-5 * values.double().abs().amax(1)
        rms, largest = difference.square().mean(1).sqrt(), difference.abs().amax(1)
        differs = (rms > _MAX_RMS * scale) | (largest > _MAX_DIFFERENCE * scale)
        if bool(differs.any()):
            yield name


def _shares_base(measured: MeasuredRound) -> Bool[Tensor, "clients clients"]:
    """Return whether each pair of clients was sent the same model."""
    return measured.bases[:, None] == measured.bases[None, :]


@convert_exits_to_errors()
def reattack(
    recording: Path | str,
    names: Sequence[str],
    out: Path | str,
    data_dir: Path | str | None = None,
    figures: Mapping[str, object] | None = None,
    device: torch.device = CPU,
    *,
    trust: bool = False,
    progress: Progress = ignore_progress,
    log: Callable[[str], None] = lambda text: None,
) -> Record:
    """Run attacks on the measurements of a study, without training.

    If an attack needs signals that were not measured, the study must have stored its updates.

    Args:
        recording: Folder of the study.
        names: Attacks to run; empty for all attacks that the recording allows.
        out: Folder for the new result file (``record.json``); the recording is not changed. A
            result file of the same study with other attacks is replaced, and tests are corrected
            over the attacks of this call. A result file with other settings is not replaced.
        data_dir: Folder of data sets.
        figures: Changed evaluation settings (the study's ``figures`` table), by dotted name. To
            change other settings, run the study again.
        device: Device on which new signals and the control experiments are computed.
        trust: Whether to import custom code that the study names, such as a filter. By default, an
            error is raised instead, because the folder may come from another person.
        progress: Called with (phase, done, total).
        log: Called with lines of text for the user.

    Raises:
        BadInput: There is no study in the folder, a setting is not in the ``figures`` table, an
            attack needs signals that can no longer be measured, the folder ``out`` contains a study
            or the results of another one, or custom code is not trusted.
        Damaged: The recording is incomplete or was changed.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
        >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/loss")
        >>> record = fa.reattack("runs/loss", ["blackbox-loss"], "runs/again")
        >>> {row.attack for row in record.estimates if row.attack}
        {'blackbox-loss'}
    """
    recording, out = Path(recording), Path(out)
    data_dir = None if data_dir is None else Path(data_dir)
    resources = Resources(device=device, progress=progress)
    with code_named_in(recording / STUDY_FILE, trusted=trust, folder=Path.cwd()):
        _raise_if_untrusted(recording, names, trusted=trust)
        clock = Clock()
        study = recorded_study(recording)
        parts = resolve(_changed_study(study, names, figures or {}))
        _raise_if_overwriting(out, parts.study)
        delete_partial_files(out, before=clock.start_time)
        measured, notes = list[MeasuredRun](), list[str]()
        for seed in study.seeds:
            run = replace(run_of(parts, seed, data_dir), folder=run_folder(recording, seed))
            raise_if_other_data(run)
            rounds = with_all_signals(run, stored_rounds(run), resources, notes.append)
            warn_of_unhashed(run.folder, log)
            run = _drop_unmeasured_attacks(run, rounds, is_required=bool(names))
            run = _fit_attacks(run, recording, resources, log, is_required=bool(names))
            measured.append(MeasuredRun(run, rounds))
        measured = _drop_refused_in_all(measured)
        before_writing = partial(_raise_if_overwriting, out, parts.study)
        return evaluate_and_write(
            measured, out, resources, clock, log, notes=notes, before_writing=before_writing
        )


def _drop_refused_in_all(measured: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Drop each attack that is refused in any run from all runs.

    Otherwise, a mean over some runs could be misread as a mean over all runs.
    """
    refused = {name: reason for run, _ in measured for name, reason in run.refused.items()}
    remaining = []
    for run, rounds in measured:
        dropped = {name: reason for name, reason in refused.items() if name in run.attacks}
        remaining.append(MeasuredRun(run.without_attacks(dropped), rounds))
    return remaining


def _raise_if_untrusted(recording: Path, names: Sequence[str], *, trusted: bool) -> None:
    """Raise if the caller, not the study file, names a custom attack and does not trust it.

    The error for a custom attack in the study file is raised elsewhere, and names that file.
    """
    custom = [name for name in names if is_custom(name)]
    if not custom or trusted:
        return
    named_in_study = recorded_study(recording).attacks
    with code_named_in(_for_caller("the command line", "the call"), trusted=False):
        for name in custom:
            if name not in named_in_study:
                import_callable(name, "attack")


def _raise_if_overwriting(out: Path, study: Study) -> str:
    """Raise if a folder has a study or results of another one; describe replaced attacks."""
    if (out / STUDY_FILE).exists():
        raise BadInput(
            f"{out} is the folder of a study, whose results are not replaced; choose another "
            f"folder with {format_option('out')}"
        )
    record = replaceable_record_or_raise(out, study, ignored=REATTACK_MAY_CHANGE)
    return replaced_attacks(record, study.attacks)


def evaluation_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Return evaluation settings without the prefix "figures.", the name of their table.

    Raises:
        BadInput: A setting is in another table of a study file.
    """
    training_settings = [name for name in settings if not name.startswith("figures.")]
    if training_settings and training_settings[0].partition(".")[0] == "attacks":
        raise BadInput(
            "settings of attacks cannot be changed on a recording; give only the names of attacks: "
            + _for_caller("fedaudit attack FOLDER fedmia-2 sia", 'names=["fedmia-2", "sia"]')
        )
    if training_settings:
        raise BadInput(
            f"{training_settings[0]!r} cannot be changed on a recording; only evaluation settings "
            "(the table 'figures') can be changed, such as "
            + _for_caller("--figures.evaluation=redraw", 'figures={"figures.evaluation": "redraw"}')
        )
    return {name.removeprefix("figures."): value for name, value in settings.items()}


def _for_caller(command: str, python: str) -> str:
    """Return a text for the command line, or for Python."""
    return command if format_option("").startswith("--") else python


def _changed_study(study: Study, names: Sequence[str], figures: Mapping[str, object]) -> Study:
    values = study.model_dump()
    values["figures"] |= evaluation_settings(figures)
    if names:
        names = catalogue_spellings(names)
        values["attacks"] = {name: study.attacks.get(name, {}) for name in names}
        values["attack_set"] = ""
    return study_from(values, source="the attack", overrides=figures)


def raise_if_other_data(run: Setup) -> None:
    """Raise if the run's settings and data set give other audited samples than those stored."""
    stored, _ = read_tensors(run.folder / "audit.safetensors")
    expected = run.assignment.tensors()
    is_same = stored.keys() == expected.keys() and all(
        stored[name].shape == values.shape and bool((stored[name] == values).all())
        for name, values in expected.items()
    )
    if not is_same:
        raise Damaged(
            f"the audited samples in {run.folder} are not those of this study on this data set; "
            "use the data set of the recording"
        )


def _fit_attacks(
    run: Setup,
    recording: Path,
    resources: Resources,
    log: Callable[[str], None],
    *,
    is_required: bool,
) -> Setup:
    """Fit attacks that use shadow or reference federations, which the adversary simulates.

    Attacks that cannot be fitted are dropped, or raise an error if they are required.
    """
    for extension in run.extensions:
        context = FitContext(
            partial(_measured_federation, recording, extension.table), resources.progress
        )
        dependent = [name for name, attack in run.attacks.items() if extension.is_needed_by(attack)]
        try:
            run = extension.fit(run, context)
        except FedauditError as error:
            if is_required or not dependent or isinstance(error, Damaged):
                raise
            log(f"not run: {', '.join(dependent)} ({error})")
            run = run.without_attacks(dict.fromkeys(dependent, str(error)))
    return run


def _measured_federation(
    recording: Path, section: str, run: Setup, description: str, construct: object
) -> list[StoredRound]:
    """Return the measured rounds of a shadow or reference federation; raise if they are missing."""
    in_pool = run_folder(recording, run.seed)
    folder = (
        in_pool
        if in_pool.is_dir()
        else path_without_links(recording, ADDITIONAL_FOLDER, f"seed-{run.seed}")
    )
    run = replace(run, folder=folder)
    if not is_measured(run):
        if folder.is_dir():
            raise BadInput(
                f"{folder} lacks rounds of a shadow or reference federation; wait until the study "
                "has finished if it is running, or delete that folder and run the study again"
            )
        raise BadInput(
            f"{recording} lacks the shadow or reference federation that this attack needs; run the "
            f"study again and name this attack, or add {format_table(section)}"
        )
    return stored_rounds(run)


def _drop_unmeasured_attacks(
    run: Setup, stored: Sequence[StoredRound], *, is_required: bool
) -> Setup:
    """Drop attacks whose signals were not measured, or raise if they are required."""
    measured = stored[0].measured.signals
    missing: Mapping[str, list[str]] = {
        name: [signal.name for signal in attack.signals if signal.name not in measured]
        for name, attack in run.attacks.items()
    }
    refused = {
        name: f"the signals {', '.join(signals)} were not measured and no updates were stored"
        for name, signals in missing.items()
        if signals
    }
    if is_required and refused:
        name, reason = next(iter(refused.items()))
        raise BadInput(
            f"{name!r} cannot be run on this recording: {reason}; run the study again with this "
            'attack, or with audit.keep = "full"'
        )
    return run.without_attacks(refused)
