"""Attacks on what a study has kept, and new measurements of kept updates, without any training."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from fedaudit.attacks import catalogued
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, Damaged, FedauditError, option
from fedaudit.core.files import own_place, sweep
from fedaudit.core.importing import code_named_in, imported, is_own, refusing_exits
from fedaudit.core.progress import Progress, quiet
from fedaudit.observe.measurements import MeasuredRound, Stored, stored_in, tell_of_unhashed
from fedaudit.observe.tensors import read_tensors
from fedaudit.plan.parts import Means, Setup, Work
from fedaudit.plan.sections import Study
from fedaudit.plan.values import study_from
from fedaudit.results.record import Record
from fedaudit.study.build import resolve, run_of
from fedaudit.study.running.environment import Clock
from fedaudit.study.running.folder import (
    ATTACKS,
    STUDY_FILE,
    recorded_study,
    refuse_other_record,
    replaced_attacks,
)
from fedaudit.study.running.observing import (
    measured_of_kept,
    measured_on,
    stored_rounds,
    with_all_signals,
)
from fedaudit.study.running.pool import is_measured, run_folder
from fedaudit.study.running.record import conclude
from fedaudit.study.running.run import SHADOW

_MOST_APART, _MOST_APART_ONCE = 0.02, 0.1
"""Root mean square and largest difference, in standard deviations over the samples.

Updates are kept in 16 bits: on a small network that moves signals by 1e-4 on average and by 5e-4
at most. A change that moves an AUC is larger."""


def unmeasurable(recording: Path) -> str:
    """Return why signals of a study's run cannot be measured again; empty if they can."""
    study = recorded_study(recording)
    if study.audit.keep != "full":
        return 'the run did not keep its updates (audit.keep = "full")'
    devices = {
        measured_on(stored)
        for seed in study.seeds
        if (stored := stored_in(run_folder(recording, seed)))
    }
    # Digits of signals differ between kinds of devices, on large networks by more than rounding.
    other = sorted(devices - {CPU.type})
    return f"they were measured on {other[0]}, and are measured again on the CPU" if other else ""


def contradicting_signals(
    recording: Path, data_dir: Path | None = None, *, trust: bool = False
) -> list[str]:
    """Measure the signals of a run again and name those that its kept updates contradict.

    Args:
        recording: The folder of a study.
        data_dir: Folder with data sets.
        trust: Import code that the recording's settings name.

    Returns:
        One sentence for each run and round with such signals; empty if :func:`unmeasurable`.

    Raises:
        BadInput: No study in the folder, or code that is not trusted.
        Damaged: The recording is incomplete or altered.
    """
    if unmeasurable(recording):
        return []
    named = code_named_in(recording / STUDY_FILE, trusted=trust, folder=Path.cwd())
    with named, refusing_exits():
        return list(_contradicting(recording, data_dir))


def _contradicting(recording: Path, data_dir: Path | None) -> Iterator[str]:
    parts = resolve(recorded_study(recording))
    for seed in parts.study.seeds:
        run, folder = run_of(parts, seed, data_dir), run_folder(recording, seed)
        refuse_other_data(run, folder)
        stored = stored_rounds(run, folder)
        again = measured_of_kept(run, folder, stored, run.signals, Work())
        for old, new in zip(stored, again, strict=True):
            if odd := sorted(_differing(old.measured, new)):
                yield (
                    f"round {new.index} of seed {seed} has other signals than its kept updates "
                    f"give: {', '.join(odd)}"
                )


def _differing(old: MeasuredRound, new: MeasuredRound) -> Iterator[str]:
    """Yield names of what differs between a stored round and the same measured again."""
    for name, values in new.signals.items():
        apart = (old.signals[name] - values).double()
        spread = values.double().std(1, correction=0)
        # Rounding of a signal that is the same for all samples.
        spread = spread + 1e-5 * values.double().abs().amax(1)
        rms = apart.square().mean(1).sqrt()
        worst = apart.abs().amax(1)
        if bool((rms > _MOST_APART * spread).any() or (worst > _MOST_APART_ONCE * spread).any()):
            yield name
    same_base = [one.bases[:, None] == one.bases[None, :] for one in (old, new)]
    if not torch.equal(*same_base):
        yield "which clients were sent the same model"


@refusing_exits()
def reattack(
    recording: Path,
    names: Sequence[str],
    out: Path,
    data_dir: Path | None = None,
    figures: Mapping[str, object] | None = None,
    device: torch.device = CPU,
    *,
    trust: bool = False,
    progress: Progress = quiet,
    log: Callable[[str], None] = lambda text: None,
) -> Record:
    """Runs attacks on a study's measurements; new signals are measured if updates were kept.

    Args:
        recording: The folder of a study.
        names: Attacks to run; all that the recording allows if empty.
        out: Folder for the record; the recording itself is left as it is. A record of the same
            study with other attacks is replaced, and tests are corrected over the attacks named
            now; one of other settings is not.
        data_dir: Folder with data sets.
        figures: Settings of the study's ``figures`` to change, by dotted name; others would
            need another run.
        device: Where new signals and controls are measured.
        trust: Import code that the recording's settings name, such as a filter. Else it is
            refused, since the folder may be somebody else's.
        progress: Called with (phase, done, total) as the work goes on.
        log: Takes lines of text for the user.

    Raises:
        BadInput: No study in the folder, a setting that is not of figures, an attack whose
            signals cannot be measured any more, or not on this kind of device, a folder for
            the record that is a study's or holds another record, or code that is not trusted.
        Damaged: The recording is incomplete or altered.

    Examples:
        >>> from pathlib import Path
        >>> import fedaudit as fa
        >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
        >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/loss")
        >>> record = reattack(Path("runs/loss"), ["blackbox-loss"], Path("runs/again"))
        >>> {row.attack for row in record.estimates if row.attack}
        {'blackbox-loss'}
    """
    work = Work(device=device, progress=progress)
    with code_named_in(recording / STUDY_FILE, trusted=trust, folder=Path.cwd()):
        _refuse_distrusted(recording, names, trusted=trust)
        return _attacked(recording, names, out, data_dir, figures or {}, work, log)


def _attacked(
    recording: Path,
    names: Sequence[str],
    out: Path,
    data_dir: Path | None,
    figures: Mapping[str, object],
    work: Work,
    log: Callable[[str], None],
) -> Record:
    clock = Clock()
    study = recorded_study(recording)
    parts = resolve(_asked(study, names, figures))
    asked = parts.study
    _refuse_taken(out, asked)
    sweep(out, before=clock.at)
    runs, stored, notes = [], [], list[str]()
    for seed in study.seeds:
        run = run_of(parts, seed, data_dir)
        folder = run_folder(recording, seed)
        refuse_other_data(run, folder)
        rounds = with_all_signals(run, folder, stored_rounds(run, folder), work, notes.append)
        tell_of_unhashed(folder, log)
        possible = _possible(run, rounds, named=bool(names))
        runs.append(_with_fitted_attacks(possible, recording, work, log, named=bool(names)))
        stored.append(rounds)
    # A mean over the runs that are left would pass for one over all.
    lost = {name: why for run in runs for name, why in run.refused.items()}
    runs = [
        run.without_attacks({name: why for name, why in lost.items() if name in run.attacks})
        for run in runs
    ]
    places = {seed: run_folder(recording, seed) for seed in study.seeds}
    replaced = list[str]()
    record = conclude(
        runs,
        stored,
        out,
        work,
        clock,
        log,
        places=places,
        notes=notes,
        check=lambda: replaced.append(_refuse_taken(out, asked)),
    )
    if replaced[0]:
        log(f"replaced in {out}: {replaced[0]}")
    return record


def _refuse_distrusted(recording: Path, names: Sequence[str], *, trusted: bool) -> None:
    """Refuses code that whoever asks has named, and not the recording, as named by them."""
    asked = [name for name in names if is_own(name)]
    if not asked or trusted:
        return
    own = recorded_study(recording).attacks
    with code_named_in(_to_asker("the command line", "the call"), trusted=False):
        for name in asked:
            if name not in own:
                imported(name, "attack")


def _refuse_taken(out: Path, asked: Study) -> str:
    """Return which attacks' record is replaced; raise if that is a study's own, or another's."""
    if (out / STUDY_FILE).exists():
        raise BadInput(
            f"{out} is the folder of a study, whose own record stays as it is; give another folder "
            f"with {option('out')}"
        )
    return replaced_attacks(refuse_other_record(out, asked, besides=ATTACKS), asked.attacks)


def changed_figures(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings of figures by their own names, from dotted ones.

    Raises:
        BadInput: A setting of something else.
    """
    others = [name for name in settings if not name.startswith("figures.")]
    if others and others[0].partition(".")[0] == "attacks":
        raise BadInput(
            "attacks on a recording are named one after another and keep their settings: "
            + _to_asker("fedaudit attack FOLDER fedmia-2 sia", 'names=["fedmia-2", "sia"]')
        )
    if others:
        raise BadInput(
            f"{others[0]!r} cannot be changed on a recording, since it holds from the first round "
            "on; only settings of figures can, as "
            + _to_asker("--figures.evaluation=redraw", 'figures={"figures.evaluation": "redraw"}')
        )
    return {name.removeprefix("figures."): value for name, value in settings.items()}


def _to_asker(command: str, python: str) -> str:
    """The command for something, or the Python for it, by who asks."""
    return command if option("").startswith("--") else python


def _asked(study: Study, names: Sequence[str], figures: Mapping[str, object]) -> Study:
    values = study.model_dump()
    values["figures"] |= changed_figures(figures)
    if names:
        names = catalogued(names)
        values["attacks"] = {name: study.attacks.get(name, {}) for name in names}
        values["attack_set"] = ""
    return study_from(values, source="the attack", overrides=figures)


def refuse_other_data(run: Setup, folder: Path) -> None:
    """Raise if the audited samples on disk are not those that settings and data set give."""
    kept, _ = read_tensors(folder / "audit.safetensors")
    made = run.deal.tensors()
    same = kept.keys() == made.keys() and all(
        kept[name].shape == made[name].shape and bool((kept[name] == made[name]).all())
        for name in made
    )
    if not same:
        raise Damaged(
            f"the audited samples in {folder} are not those of this study on this data set; "
            "use the data set that the recording was made with"
        )


def _with_fitted_attacks(
    run: Setup, recording: Path, work: Work, log: Callable[[str], None], *, named: bool
) -> Setup:
    """The run with attacks fitted on what the recording has to learn from, or compare with."""
    folder = run_folder(recording, run.seed)
    for one in run.extensions:
        means = Means(folder, partial(_measured_own, recording, one.table), work.progress)
        needing = [name for name, attack in run.attacks.items() if one.is_needed_by(attack)]
        try:
            run = one.fit(run, means)
        except FedauditError as refusal:
            if named or not needing or isinstance(refusal, Damaged):
                raise
            log(f"not run: {', '.join(needing)} ({refusal})")
            run = run.without_attacks(dict.fromkeys(needing, str(refusal)))
    return run


def _measured_own(
    recording: Path, table: str, own: Setup, what: str, begun: object
) -> list[Stored]:
    """Measured rounds of a federation beside the run, which none is trained for any more."""
    listed = run_folder(recording, own.seed)
    place = listed if listed.is_dir() else own_place(recording, SHADOW, f"seed-{own.seed}")
    if not is_measured(own, place):
        if place.is_dir():
            raise BadInput(
                f"{place} lacks rounds of a federation beside the audited one; let the study end "
                "if it has not, else delete that folder and run it again"
            )
        raise BadInput(
            f"{recording} has no federation beside the audited one that this attack needs; run the "
            f"study again with this attack named, or with the [{table}] table"
        )
    return stored_rounds(own, place)


def _possible(run: Setup, stored: Sequence[Stored], *, named: bool) -> Setup:
    """The run with those attacks only whose signals are there; a named one must be."""
    there = stored[0].measured.signals
    lacking: Mapping[str, list[str]] = {
        name: [s.name for s in attack.signals if s.name not in there]
        for name, attack in run.attacks.items()
    }
    refused = {
        name: f"the signals {', '.join(signals)} were not measured and no updates were kept"
        for name, signals in lacking.items()
        if signals
    }
    if named and refused:
        name, reason = next(iter(refused.items()))
        raise BadInput(
            f"{name!r} cannot be run on this recording: {reason}; run the study again with this "
            'attack, or with audit.keep = "full"'
        )
    return run.without_attacks(refused)
