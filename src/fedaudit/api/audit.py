"""Audits of federations in Python, and their results."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from jaxtyping import Float, Int
from numpy import ndarray

from fedaudit.api.federation import (
    AttackLike,
    AttacksLike,
    AuditOptions,
    AuditPlan,
    Federation,
    plan_of,
    section_settings,
)
from fedaudit.api.games import Games, plan_of_games
from fedaudit.api.references import attack_settings, registering
from fedaudit.core.arguments import Count, check_arguments
from fedaudit.core.devices import device_named
from fedaudit.core.display import describe, repr_html
from fedaudit.core.errors import BadInput, Unsupported, called_by, unknown_name
from fedaudit.core.files import (
    ATTACKED_FOLDER,
    RECORD_FILE,
    REPORT_FILE,
    SCORES_FILE,
    path_without_links,
    record_at,
    write_atomically,
)
from fedaudit.core.importing import RegisteredObject, with_registered
from fedaudit.core.metric_names import Origin
from fedaudit.core.naming import changed_fields
from fedaudit.core.progress import progress_for
from fedaudit.core.values import ClientId
from fedaudit.engines.base import CountedEngine
from fedaudit.evaluation.sample_scores import read_scores
from fedaudit.plan.games import GameStudy
from fedaudit.plan.identity import named_custom_parts, study_key
from fedaudit.plan.sections import AuditSection as Audit
from fedaudit.plan.sections import FiguresSection as Figures
from fedaudit.plan.sections import Study
from fedaudit.results.frames import frame_of
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.study.build import with_derived_settings
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study

if TYPE_CHECKING:
    from fedaudit.api.asking import Answer
    from fedaudit.sinks.base import SinkLike
    from fedaudit.summary.page import SummarySection

AnyPlan: TypeAlias = AuditPlan[Study] | AuditPlan[GameStudy]
Choice = TypeVar("Choice", int, str)

# Annotations in quotation marks are not checked by @checked. They belong to arguments whose own
# checks give a more helpful message.

_DEFAULT_NAME = "audit"
_KEY_LENGTH = 8
"""Number of characters of the study's key in the name of a default folder."""
_MAX_NAME_LENGTH = 80


class Scores(NamedTuple):
    """Scores of one attack on the audited samples of one target in one run.

    Attributes:
        ids: Numbers of the samples in the data set.
        scores: Membership scores; larger scores mean that samples are more likely members.
        origin: Origin of each sample, as values of ``fedaudit.Origin``.
    """

    ids: Int[ndarray, " samples"]
    scores: Float[ndarray, " samples"]
    origin: Int[ndarray, " samples"]

    def __repr__(self) -> str:
        """Return numbers of samples only, since scores and origins reveal membership."""
        members = int((self.origin == Origin.MEMBER).sum())
        return f"<Scores of {len(self.ids)} samples, of which {members} are members>"


_FIRST_COLUMNS = ("attack", "metric", "value", "low", "high", "contrast", "target", "seed")


class Run:
    """The result of an audit, stored in a folder.

    A notebook displays the verdict with a chart, and ``print`` the verdict with a table.

    Attributes:
        folder: Folder of the audit's runs, result file (record) and report.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
        >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/opened")
        >>> fa.Run("runs/opened").scores("loss-series", target=0, seed=1).scores.shape
        (300,)
    """

    @check_arguments
    @called_by("objects")
    def __init__(
        self,
        folder: Path | str,
        federation: Federation | None = None,
        *,
        attacks: "AttacksLike" = (),
        options: AuditOptions | None = None,
    ) -> None:
        """Open the result of an earlier audit.

        Args:
            folder: Folder that was passed to the audit as ``out``, or a live recording that was
                attacked.
            federation: The audited federation, if further attacks need its objects. Objects of a
                script or notebook cannot be imported by name.
            attacks: Attacks of the audit that were passed as objects.
            options: Options of the audit, if its server, view or metrics were passed as objects, or
                if the data set's file is in another folder (``data_dir``).

        Raises:
            BadInput: There is no record in the folder.
        """
        self.folder = record_at(Path(folder)).parent
        options = options or AuditOptions()
        self._objects: Mapping[str, RegisteredObject] = {}
        self._data_dir = None if options.data_dir is None else Path(options.data_dir)
        self._record: Record | None = None
        if federation is not None:
            plan = plan_of(federation, attacks=attacks, options=options, name=_DEFAULT_NAME)
            self._objects, self._data_dir = plan.objects, self._data_dir or plan.data_dir
        if not (self.folder / RECORD_FILE).is_file():
            raise BadInput(f"{folder} has no record; give the folder of an audit that has finished")

    @staticmethod
    def _of(
        folder: Path, objects: Mapping[str, RegisteredObject], data_dir: Path | None, record: Record
    ) -> "Run":
        run = Run(folder)
        run._objects, run._data_dir, run._record = objects, data_dir, record
        return run

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return describe(self)

    def __str__(self) -> str:
        """Return verdict, estimates of the attacks and next steps, in 80 columns."""
        return str(self.record)

    @property
    def record(self) -> Record:
        """All estimates, controls and settings."""
        if self._record is None:
            self._record = read_record(self.folder / RECORD_FILE)
        return self._record

    def to_frame(self) -> object:
        """Return the estimates as a pandas table, or as a list of rows if pandas is not installed.

        Columns without values are left out. Attack, metric and estimate come first.
        """
        frame = self.record.frame()
        if not hasattr(frame, "dropna"):
            return frame
        known = frame.dropna(axis=1, how="all")
        first = [name for name in _FIRST_COLUMNS if name in known]
        return known[[*first, *known.columns.drop(first)]]

    @check_arguments
    def scores(
        self,
        attack: str | None = None,
        *,
        target: ClientId | str | None = None,
        seed: int | None = None,
    ) -> Scores:
        """Return the scores of a membership attack.

        Args:
            attack: Name of the attack in the record, with or without the part after ``#``. May be
                left out if the audit has a single attack.
            target: Client under audit, by number or name; may be left out if there is only one.
            seed: Seed of the run; may be left out if there is only one.

        Raises:
            BadInput: There is no such attack, target or seed, or an argument with several possible
                values is left out.
        """
        stored = read_scores(self.folder / SCORES_FILE)
        seed = _choose("seed", seed, {seed for seed, _ in stored})
        targets = {target for _, target in stored}
        if isinstance(target, str):
            from fedaudit.api.asking import audited_client

            target = audited_client(self.record, target, targets)
        ids, origin, by_attack = stored[seed, _choose("target", target, targets)]
        if attack is None:
            name = _choose("attack", attack, by_attack)
        else:
            names = [name for name in by_attack if attack in (name, name.partition("#")[0])]
            if not names:
                raise unknown_name("attack with scores", attack, by_attack)
            name = names[0]
        return Scores(ids, by_attack[name], origin)

    @check_arguments
    def signals(self, *names: str, seed: int | None = None) -> object:
        """Return the measured signals as a pandas table, or as a list of rows without pandas.

        The table has a row per seed, round, client and audited sample. Attacks compute their scores
        from these values. Values are larger for likelier members.

        Args:
            names: Names of signals, such as "loss"; all measured signals if empty.
            seed: Seed of the run; by default, all runs.

        Returns:
            Columns "seed", "round", "client" (whose upload was measured), "sample" (number in the
            data set), "label", "owner" (the client that trains on the sample; -1 or "" if none
            does), and one column per signal.

        Raises:
            BadInput: A signal was not measured, there is no such seed, or the measurements are not
                next to the record.

        Examples:
            >>> import fedaudit as fa
            >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
            >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/tables")
            >>> len(run.signals("loss"))  # 2 rounds, 10 clients, 300 samples
            6000
        """
        from fedaudit.api.tables import signal_columns
        from fedaudit.formatting.wording import full_client_names

        seeds = self.record.seeds if seed is None else [_choose("seed", seed, self.record.seeds)]
        names_of_clients = full_client_names(self.record)
        return frame_of(signal_columns(self.folder, seeds, names, names_of_clients))

    def samples(self) -> object:
        """Return the audited samples with their scores, as a pandas table or a list of rows.

        Returns:
            A row per seed, target and audited sample, with the columns "seed", "target", "sample"
            (number in the data set, or of the person), "origin" ("member", "other_client" or
            "unseen"), "is_member", and one column of scores per attack.

        Raises:
            BadInput: The scores are not next to the record.

        Examples:
            >>> import fedaudit as fa
            >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
            >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/tables")
            >>> len(run.samples())
            300
        """
        from fedaudit.api.tables import sample_columns
        from fedaudit.formatting.wording import full_client_names

        stored = read_scores(self.folder / SCORES_FILE)
        return frame_of(sample_columns(stored, full_client_names(self.record)))

    @check_arguments
    def save_report(self, path: Path | str | None = None) -> Path:
        """Write the report, next to the record by default, and return its path.

        Args:
            path: Path of the file, which must end in .html.

        Raises:
            BadInput: The path has another suffix, or cannot be written.
        """
        from fedaudit.report.page import write_report

        target = self.folder / REPORT_FILE if path is None else Path(path)
        write_report(self.record, target)
        return target

    def log_to(self, to: "SinkLike | Sequence[SinkLike]", *, artifacts: bool = True) -> None:
        """Log estimates, verdict, report and summary to a tracker of experiments.

        Names of metrics are paths such as "membership/fedmia-2/unseen/client-0/auc", with "_low"
        and "_high" for the limits. With several seeds, estimates over all seeds are logged. Samples
        and labels are never logged.

        Args:
            to: "mlflow", "tensorboard" or "wandb", an object with the methods of
                :class:`fedaudit.sinks.base.Sink`, or several.
            artifacts: Whether to log report and summary, too.

        Raises:
            BadInput: There is no such tracker.
            Unsupported: The library of a tracker is not installed.
        """
        from fedaudit.sinks.records import log_audit

        log_audit(self.record, to, self.folder, artifacts=artifacts)

    def summary(self, policy: Path | str | None = None, *, valid_until: str = "") -> str:
        """Return a summary for archiving, as Markdown: question, model, answer and limits.

        Args:
            policy: File of a policy, whose outcome the summary states; none by default.
            valid_until: Last day on which the summary is valid, such as "2027-06-30".

        Raises:
            BadInput: The policy cannot be read, or the date is invalid.
        """
        from fedaudit.summary.page import summary_markdown

        return summary_markdown(self.record, self._policy_section(policy), valid_until)

    @check_arguments
    def save_summary(
        self,
        path: Path | str | None = None,
        *,
        policy: Path | str | None = None,
        valid_until: str = "",
    ) -> Path:
        """Write a summary for archiving, next to the record by default, and return its path.

        Args:
            path: Path of the file; Markdown is written if it ends in .md, and HTML otherwise.
            policy: File of a policy, whose outcome the summary states; none by default.
            valid_until: Last day on which the summary is valid, such as "2027-06-30".

        Raises:
            BadInput: The policy cannot be read, the date is invalid, or the path cannot be written.
        """
        from fedaudit.report.page import write_page
        from fedaudit.summary import page as summary

        target = self.folder / summary.SUMMARY_FILE if path is None else Path(path)
        values = (self.record, self._policy_section(policy), valid_until)
        if target.suffix.lower() in summary.MARKDOWN_SUFFIXES:
            write_atomically(target, summary.summary_markdown(*values), owner_only=True)
        else:
            write_page(target, summary.summary_html(*values))
        return target

    def _policy_section(self, policy: Path | str | None) -> "SummarySection | None":
        from fedaudit.gate.outputs import evaluated_policy_section

        if policy is None:
            return None
        return evaluated_policy_section(self.record, Path(policy))

    @check_arguments
    @called_by("objects")
    def ask(
        self,
        *,
        row: int | None = None,
        line: int | None = None,
        sample: Path | str | ndarray | Mapping[str, object] | None = None,
        person: int | None = None,
        target: ClientId | str | None = None,
        seed: int | None = None,
        prior: float | None = None,
        false_alarm_rate: float = 0.05,
    ) -> "Answer":
        """Return what the attacks show about one audited sample or person.

        A non-member is flagged with a probability of at most ``false_alarm_rate``, even if attacks
        depend on each other. A flag is evidence that the models reveal membership to this
        adversary, not proof of membership. A missing flag is no proof of non-membership.

        Give one of ``row``, ``line``, ``sample`` and ``person``.

        Args:
            row: Row in the result of :meth:`scores` for the first seed.
            line: Line of an audited row in the CSV file of the audit; the header is line 1.
            sample: Features of an audited sample, in the form of the model's input or of the data
                set, or the path of a ``.npz``, ``.csv``, ``.json`` or picture file with them. For a
                table also a dictionary with the value of each column.
            person: Number of an audited person.
            target: Client under audit, by number or name; may be left out if there is only one.
            seed: Seed of the run to use; by default, all runs are used. The data set is then read,
                to find the sample in the other runs.
            prior: Probability of membership before the attacks, in (0, 1); by default 0.5.
            false_alarm_rate: Maximum probability of flagging a non-member, in (0, 1).

        Raises:
            BadInput: The result is a pack or has no scores, the sample or person was not audited,
                or no attack is reliable because controls failed.
            Damaged: The scores do not belong to the record.

        Examples:
            >>> import fedaudit as fa
            >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
            >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/asked")
            >>> answer = run.ask(row=0, prior=0.1)
            >>> answer.flagged, answer.runs[0].origin
            (False, 'unseen')
        """
        from fedaudit.api.asking import Question, answer_to
        from fedaudit.datasets.formats.single import SingleSample, sample_of_cells

        source: Path | SingleSample | None = None
        if isinstance(sample, Path | str):
            source = Path(sample)
        elif isinstance(sample, Mapping):
            source = sample_of_cells(sample)
        elif sample is not None:
            source = SingleSample(sample)
        question = Question(
            row=row,
            line=line,
            sample=source,
            person=person,
            target=target,
            seed=seed,
            prior=prior,
            false_alarm_rate=false_alarm_rate,
        )
        with with_registered(self._objects):
            return answer_to(question, self.folder, self.record, self._data_dir)

    @check_arguments
    @called_by("objects")
    def attack(
        self,
        *attacks: AttackLike,
        out: Path | str | None = None,
        figures: "Figures | None" = None,
        device: str = "cpu",
        progress: bool | None = None,
    ) -> "Run":
        """Run further attacks on the measured signals, without training.

        Args:
            attacks: Names of attacks, or objects of :mod:`fedaudit.attacks`; by default, all
                attacks that the stored signals allow.
            out: Folder of the new record; by default, the folder "attacked" in the audit's folder.
            figures: Evaluation settings that differ from those of the audit: ``fedaudit.Figures``.
            device: Device that computes new signals and controls, such as "cuda".
            progress: Whether to show progress; by default in a terminal and in a notebook.

        Raises:
            BadInput: An attack needs signals that were not measured, and no updates were stored.
        """
        objects = dict(self._objects)
        names = list(attack_settings(attacks, registering(objects)))
        folder = path_without_links(self.folder, ATTACKED_FOLDER) if out is None else Path(out)
        changed = section_settings(figures=figures).get("figures", {})
        with with_registered(objects), progress_for(progress) as report:
            record = reattack(
                self.folder,
                names,
                folder,
                self._data_dir,
                {f"figures.{name}": value for name, value in changed.items()},
                device_named(device),
                trust=True,
                progress=report,
            )
        return Run._of(folder, objects, self._data_dir, record)


@check_arguments
@called_by("objects")
def audit(
    federation: "Federation | Games",
    *,
    attacks: "AttacksLike" = (),
    targets: "int | str | Sequence[int | str] | None" = None,
    seeds: "int | Sequence[int]" = (1,),
    out: Path | str | None = None,
    audit: "Audit | None" = None,
    figures: "Figures | None" = None,
    options: AuditOptions | None = None,
    workers: Count = 1,
    device: str = "cpu",
    name: str = "",
    progress: bool | None = None,
) -> Run:
    """Audit a federation: train it, attack what the adversary sees, and write the results.

    Security games are played instead if ``federation`` is a :class:`fedaudit.Games`.

    An interrupted audit resumes if it is called again with the same settings, objects and folder.
    Objects of a script or notebook are identified by their source code.

    Args:
        federation: Federation under audit, or :class:`fedaudit.Games`. For games, give only one
            seed, and no attacks, targets, audit settings, evaluation settings, workers or device.
        attacks: One attack or several: names such as "fedmia-2", or objects of
            :mod:`fedaudit.attacks`; or a dictionary from names to attacks, or from catalogue names
            to dictionaries of settings. By default, the set of attacks that ``fedaudit run`` uses.
        targets: Client under audit by number or by its name in the data, or several clients; client
            0 unless ``audit`` sets other targets.
        seeds: Seed, or several seeds, with one run for each.
        out: Folder of runs and record; by default, a folder in ``runs`` whose name includes a hash
            of the settings.
        audit: Audited samples, and the view of the adversary: ``fedaudit.Audit``.
        figures: Settings of the evaluation and its controls: ``fedaudit.Figures``.
        options: Less common settings: ``fedaudit.AuditOptions``.
        workers: Number of training processes; 0 for one per core. Results do not depend on it.
        device: Device that trains clients and computes signals, such as "cuda".
        name: Name of the audit in its report; by default, the name of the folder ``out``.
        progress: Whether to show progress and notes; by default, progress is shown in a terminal
            and in a notebook.

    Returns:
        The audit's result, with record and scores. ``save_report`` and ``save_summary`` write
        pages.

    Raises:
        FedauditError: A setting or object cannot be used. This is checked before any training.

    Examples:
        >>> import fedaudit as fa
        >>> algorithm = fa.algorithms.FedAvg(rounds=2)
        >>> federation = fa.Federation("digits", clients=4, algorithm=algorithm)
        >>> run = fa.audit(federation, attacks=[fa.attacks.LossSeries()], out="runs/digits")
        >>> run.scores("loss-series").scores.shape
        (300,)
    """
    from fedaudit.engines.local import engine_named

    options = options or AuditOptions()
    name = name or _name_from(out)
    plan: AnyPlan
    if isinstance(federation, Games):
        arguments = {"attacks": attacks, "targets": targets, "audit": audit, "figures": figures}
        _raise_if_federation_settings(options, {**arguments, "workers": workers, "device": device})
        plan = plan_of_games(federation, seeds=seeds, name=name, about=options.about)
    else:
        plan = plan_of(
            federation,
            attacks=attacks,
            targets=targets,
            seeds=seeds,
            audit=audit,
            figures=figures,
            options=options,
            name=name,
        )
    engine = options.engine
    cluster = engine_named(engine, workers) if isinstance(engine, str) else engine
    _raise_if_unimportable(plan, cluster, workers)
    data_dir = plan.data_dir if options.data_dir is None else Path(options.data_dir)
    with with_registered(plan.objects):
        if out is None:
            key = study_key(with_derived_settings(plan.study))
            out = Path("runs") / f"{name}-{key[:_KEY_LENGTH]}"
        folder = Path(out)
        with progress_for(progress) as report:
            log: Callable[[str], None] = print if progress else lambda text: None
            if isinstance(plan.study, Study):
                record = run_study(
                    plan.study,
                    folder,
                    pool=None if options.pool is None else Path(options.pool),
                    data_dir=data_dir,
                    workers=workers,
                    device=device_named(device),
                    engine=cluster,
                    keep_model=options.keep_model,
                    progress=report,
                    log=log,
                )
            else:
                from fedaudit.games.run import run_games

                record = run_games(plan.points, folder, data_dir=data_dir, progress=report, log=log)
    return Run._of(folder, plan.objects, data_dir, record)


def _raise_if_federation_settings(options: AuditOptions, arguments: Mapping[str, object]) -> None:
    """Raise if an argument or option is set that games do not use."""
    defaults = {"attacks": (), "workers": 1, "device": "cpu"}
    changed = [name for name, value in arguments.items() if value != defaults.get(name)]
    changed += sorted(changed_fields(options).keys() - {"about", "data_dir"})
    if changed:
        raise BadInput(f"{changed[0]}= applies only to federations, not to games; leave it out")


def _raise_if_unimportable(plan: AnyPlan, engine: CountedEngine | None, workers: int) -> None:
    """Raise if worker processes would need an object that they cannot import."""
    if engine is None and workers == 1:
        return
    # Local worker processes only train. Engines also measure, which needs the attacks.
    used_by_workers = {"model", "algorithm", "defense", *(() if engine is None else ("attack",))}
    names = [name for kind, name in named_custom_parts(plan.study) if kind in used_by_workers]
    unimportable = [name for name in names if name.startswith("__main__:") or "<" in name]
    if unimportable:
        setting = type(engine).__name__ if engine is not None else f"workers={workers}"
        raise Unsupported(
            f"{unimportable[0].partition('#')[0]!r} is an object of this script or notebook, which "
            f"other processes cannot import ({setting}); move it to a module, or leave out engine "
            "and workers"
        )


def _choose(argument: str, value: Choice | None, choices: Iterable[Choice]) -> Choice:
    """Return the value of an argument, or the only choice if it was left out."""
    ordered = sorted(choices)
    if value is None and len(ordered) == 1:
        return ordered[0]
    if value is None or value not in ordered:
        problem = f"there is no {argument} {value!r}"
        if value is None:
            problem = f"there are several {argument}s"
        raise BadInput(f"{problem}; set {argument}= to one of {', '.join(map(str, ordered))}")
    return value


def _name_from(out: Path | str | None) -> str:
    """Return the name of the folder, without characters that are not allowed in names of audits."""
    if out is None:
        return _DEFAULT_NAME
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", Path(out).absolute().name)
    return name.lstrip("._=,+-")[:_MAX_NAME_LENGTH] or _DEFAULT_NAME
