"""Audits of Python objects, their results, and refusals in terms of Python arguments."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxtyping import Float, Int
from numpy import ndarray

from fedaudit.core.errors import BadInput, FedauditError, Unsupported, type_of, unknown_name
from fedaudit.core.files import (
    ATTACKED,
    RECORD_FILE,
    REPORT_FILE,
    SCORES_FILE,
    own_place,
    record_at,
)
from fedaudit.core.importing import GivenObject, objects_given
from fedaudit.core.naming import changed_fields
from fedaudit.core.progress import bars, quiet
from fedaudit.core.values import ClientId
from fedaudit.engines.base import Counted
from fedaudit.evaluation.sample_scores import read_scores
from fedaudit.fl.algorithms.base import Server
from fedaudit.games.run import run_games
from fedaudit.observe.views import View
from fedaudit.plan.base import Section
from fedaudit.plan.games import GameStudy
from fedaudit.plan.optional import (
    OPTIONAL,
    AttackerSection,
    CanariesSection,
    ReferencesSection,
    SecureSumSection,
    ShadowSection,
    UnlearningSection,
)
from fedaudit.plan.sections import AuditSection, FiguresSection, Study
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.study.front.federation import (
    AttackGiven,
    AttacksGiven,
    AuditPlan,
    Federation,
    MetricGiven,
    Questions,
    plan_of,
)
from fedaudit.study.front.games import Games, GamesPlan, games_plan
from fedaudit.study.front.spelling import attack_settings, registering
from fedaudit.study.running.identity import own_parts, study_key, with_code
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study

_ARGUMENTS = {
    **{name: kind.python_name() for name, kind in OPTIONAL.items()},
    "audit": "fedaudit.Audit",
    "figures": "fedaudit.Figures",
    "risk": "fedaudit.Risk",
    "shift": "fedaudit.Shift",
    "training": "fedaudit.Training",
    "data": "data",
    "partition": "clients",
    "model": "model",
    "algorithm": "algorithm",
    "defense": "defenses",
    "server": "server",
    "game": "fedaudit.Game",
    "neuron": "fedaudit.Neuron",
    "rounds": "fedaudit.Rounds",
    "detector": "fedaudit.Detector",
    "records": "fedaudit.Games",
    "mechanism": "mechanism",
}
"""What says in Python what a table of a study file says: a class of settings, or an argument."""

_SETTING = re.compile(rf"(?<![\w.])({'|'.join(_ARGUMENTS)})\.(\w+)(?:\.(\w+))?")


@contextmanager
def in_python() -> Iterator[None]:
    """Inside, a refusal that names settings of study files says how they are given in Python."""
    try:
        yield
    except FedauditError as refusal:
        said = str(refusal)
        named = dict.fromkeys(found for found in _SETTING.finditer(said) if _is_setting(found))
        meant = dict.fromkeys(f"{one[0]} is {_argument(one)}" for one in named)
        if meant:
            refusal.args = (f"{said} (in Python, {', '.join(meant)})",)
        raise


def _is_setting(found: re.Match[str]) -> bool:
    section = {**GameStudy.model_fields, **Study.model_fields}[found[1]].annotation
    fields = getattr(section, "model_fields", None)
    return fields is None or found[2] in fields


def _argument(found: re.Match[str]) -> str:
    section, setting, option = found.groups()
    argument = _ARGUMENTS[section]
    if argument.startswith("fedaudit."):
        return f"{argument}({setting}=...)"
    return f"{option}= of what {argument}= is" if option else f"said by {argument}="


if TYPE_CHECKING:
    from fedaudit.report.summary import Section as SummarySection

_UNNAMED = "audit"
_KEY_LENGTH = 8
_LONGEST_NAME = 80


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Less common settings of :func:`audit`; by default none of them changes anything.

    Attributes:
        shadow: Source of the examples that learning attacks train on.
        references: Reference models that the adversary trains itself.
        canaries: Canary clients that measure how well one client's update is hidden.
        unlearning: Unlearning of audited samples after training.
        secure_sum: Measurement of how well one round's sum hides one upload.
        attacker: A client that sends poisoned updates.
        metrics: Further metrics of scores: names, functions of scores and membership, and
            :class:`fedaudit.metrics.Metric` objects.
        server: Server that alters the models that it sends to clients.
        view: Custom view of the adversary. Set a catalogued one by ``fedaudit.Audit(view=...)``.
        engine: Where clients train: "local", "ray" or an engine.
        pool: Folder of runs that several audits share.
        data_dir: Folder of data sets; by default that of the federation's file, or of the variable
            ``FEDAUDIT_DATA``.
        about: Sentence for the reader of the report.

    Examples:
        >>> AuditOptions(metrics=["average_precision"], about="A first look.").engine
        'local'
    """

    shadow: ShadowSection | None = None
    references: ReferencesSection | None = None
    canaries: CanariesSection | None = None
    unlearning: UnlearningSection | None = None
    secure_sum: SecureSumSection | None = None
    attacker: AttackerSection | None = None
    metrics: MetricGiven | Sequence[MetricGiven] = ()
    server: str | Server | None = None
    view: str | View | None = None
    engine: Counted | str = "local"
    pool: Path | str | None = None
    data_dir: Path | str | None = None
    about: str = ""

    @property
    def tables(self) -> dict[str, Section | None]:
        """Optional tables of a study by name; None for those that are not set."""
        return {name: getattr(self, name) for name in OPTIONAL}


class Scores(NamedTuple):
    """One attack's scores on the audited samples of one target in one run.

    Attributes:
        ids: Of the samples, in the data set.
        scores: Larger for likelier members.
        origin: Where each sample comes from, as values of ``fedaudit.Origin``.
    """

    ids: Int[ndarray, " samples"]
    scores: Float[ndarray, " samples"]
    origin: Int[ndarray, " samples"]


class Run:
    """An audit that was carried out, in its folder.

    Attributes:
        folder: Of the study's runs, record and report.

    Examples:
        >>> import fedaudit as fa
        >>> federation = fa.Federation("digits", training=fa.Training(rounds=2))
        >>> run = fa.audit(federation, attacks=["loss-series"], out="runs/opened")
        >>> Run("runs/opened").scores("loss-series", target=0, seed=1).scores.shape
        (300,)
    """

    def __init__(
        self,
        folder: Path | str,
        federation: Federation | None = None,
        *,
        attacks: AttacksGiven = (),
        server: str | Server | None = None,
        view: str | View | None = None,
        data_dir: Path | str | None = None,
    ) -> None:
        """Opens what an earlier audit left.

        Args:
            folder: That the audit was given as ``out``, or a live recording that was attacked.
            federation: That was audited, where further attacks need its objects: those of a script
                or notebook are brought back by no name.
            attacks: Those of its attacks that were objects.
            server: The server, if it was one of the caller's own.
            view: The view, likewise.
            data_dir: Folder of its data set's file; that of the federation's if left out.

        Raises:
            BadInput: There is no record in the folder.
        """
        self.folder = record_at(Path(folder)).parent
        asked = Questions(attacks=attacks, server=server, view=view)
        known = None if federation is None else plan_of(federation, asked, name=_UNNAMED)
        self._objects: Mapping[str, GivenObject] = {} if known is None else known.objects
        self._data_dir = Path(data_dir) if data_dir is not None else known and known.data_dir
        self._record: Record | None = None
        if not (self.folder / RECORD_FILE).is_file():
            raise BadInput(f"{folder} holds no record; give the folder of an audit that has ended")

    @staticmethod
    def _of(
        folder: Path, objects: Mapping[str, GivenObject], data_dir: Path | None, record: Record
    ) -> "Run":
        run = Run(folder, data_dir=data_dir)
        run._objects, run._record = objects, record
        return run

    def __repr__(self) -> str:
        return f"<fedaudit.Run {self.record.name!r} in {str(self.folder)!r}>"

    @property
    def record(self) -> Record:
        """All that was found."""
        if self._record is None:
            self._record = read_record(self.folder / RECORD_FILE)
        return self._record

    def to_frame(self) -> object:
        """Return one row for each figure of a run, as a pandas table or as a list without pandas.

        Columns without any value are left out.
        """
        frame = self.record.frame()
        return frame.dropna(axis=1, how="all") if hasattr(frame, "dropna") else frame

    def scores(
        self, attack: str, *, target: ClientId | None = None, seed: int | None = None
    ) -> Scores:
        """The scores of one attack on membership.

        Args:
            attack: By its name in the record; what follows a ``#`` may be left out.
            target: Client under audit; may be left out where there is one.
            seed: Of the run; likewise.

        Raises:
            BadInput: No such attack, target or seed, or several to choose from.
        """
        found = read_scores(self.folder / SCORES_FILE)
        key = (
            _chosen("seed", seed, {one for one, _ in found}),
            _chosen("target", target, {one for _, one in found}),
        )
        there = found[key]
        names = [name for name in there.by_attack if attack in (name, name.partition("#")[0])]
        if not names:
            raise unknown_name("attack with scores", attack, there.by_attack)
        return Scores(there.ids, there.by_attack[names[0]], there.origin)

    def report(self, path: Path | str | None = None) -> Path:
        """Writes the report, beside the record by default, and says where it is."""
        from fedaudit.report.page import write_report

        target = self.folder / REPORT_FILE if path is None else Path(path)
        write_report(self.record, target)
        return target

    def summary(self, policy: Path | str | None = None, *, valid_until: str = "") -> str:
        """Return the page that can be filed, as Markdown: question, model, answer, limits.

        Args:
            policy: File of a policy whose outcome the page has; none by default.
            valid_until: Last day on which the page may be relied on, such as "2027-06-30".

        Raises:
            BadInput: No such policy or date.
        """
        from fedaudit.report.summary import summary_markdown

        return summary_markdown(self.record, self._judged(policy), valid_until)

    def save_summary(
        self,
        path: Path | str | None = None,
        *,
        policy: Path | str | None = None,
        valid_until: str = "",
    ) -> Path:
        """Write the page that can be filed, next to the record by default, and return its path.

        Args:
            path: The file; a name that ends in .md makes it Markdown, any other HTML.
            policy: File of a policy whose outcome the page has; none by default.
            valid_until: Last day on which the page may be relied on, such as "2027-06-30".

        Raises:
            BadInput: No such policy or date, or the path is no place for such a file.
        """
        from fedaudit.report.summary import SUMMARY_FILE, write_summary

        target = self.folder / SUMMARY_FILE if path is None else Path(path)
        write_summary(self.record, target, self._judged(policy), valid_until)
        return target

    def _judged(self, policy: Path | str | None) -> "SummarySection | None":
        from fedaudit.gate.outputs import judged

        return None if policy is None else judged(self.record, Path(policy))

    @in_python()
    def attack(
        self,
        *attacks: AttackGiven,
        out: Path | str | None = None,
        figures: FiguresSection | None = None,
        device: str = "cpu",
    ) -> "Run":
        """Further attacks on what was measured, without training anything.

        Args:
            attacks: Names and objects; all that was kept allows if none is given.
            out: Folder of the new record; the folder "attacked" in this one by default.
            figures: Settings of figures that differ from the audit's.
            device: Where new signals and controls are measured.

        Raises:
            BadInput: An attack whose signals were not measured, where no updates were kept.
        """
        from fedaudit.core.devices import device_named

        objects = dict(self._objects)
        names = list(attack_settings(attacks, registering(objects)))
        folder = own_place(self.folder, ATTACKED) if out is None else Path(out)
        changed = {} if figures is None else figures.model_dump(exclude_unset=True)
        with objects_given(objects):
            record = reattack(
                self.folder,
                names,
                folder,
                self._data_dir,
                {f"figures.{name}": value for name, value in changed.items()},
                device_named(device),
                trust=True,
            )
        return Run._of(folder, objects, self._data_dir, record)


@in_python()
def audit(
    federation: Federation | Games,
    *,
    attacks: AttacksGiven = (),
    targets: int | Sequence[int] | None = None,
    seeds: int | Sequence[int] = (1,),
    out: Path | str | None = None,
    audit: AuditSection | None = None,
    figures: FiguresSection | None = None,
    options: AuditOptions | None = None,
    workers: int = 1,
    device: str = "cpu",
    name: str = "",
    progress: bool = False,
) -> "Run":
    """Audit a federation: train it, attack what the adversary sees, and write a record.

    Security games are played instead if ``federation`` is a :class:`fedaudit.Games`.

    An interrupted audit resumes if it is called again with the same settings, objects and folder.
    Objects of a script or notebook are identified by their source code.

    Args:
        federation: What is audited. :class:`fedaudit.Games` take one seed, and no attacks, targets,
            audit settings, workers or device.
        attacks: Attacks of :mod:`fedaudit.attacks` or their names, or a dictionary from names to
            attacks or settings; the default set if empty.
        targets: Clients under audit; client 0 unless ``audit`` sets others.
        seeds: Seeds, one run each.
        out: Folder of runs and record; by default a folder in ``runs`` that is named after the
            settings.
        audit: Audited samples, and the view of the adversary.
        figures: Settings of figures and controls.
        options: Less common settings.
        workers: Processes to train in; 0 for one per core. Results do not depend on it.
        device: Where clients train and samples are measured, such as "cuda".
        name: Name of the audit in its report; that of ``out`` by default.
        progress: Whether to show progress.

    Returns:
        The finished audit, with its record and scores. Its ``report`` and ``save_summary`` write
        pages.

    Raises:
        FedauditError: A setting or object cannot work. Nothing has been trained then.

    Examples:
        >>> import fedaudit as fa
        >>> algorithm = fa.algorithms.FedAvg(rounds=2)
        >>> federation = fa.Federation("digits", clients=4, algorithm=algorithm)
        >>> run = fa.audit(federation, attacks=[fa.attacks.LossSeries()], out="runs/digits")
        >>> run.scores("loss-series").scores.shape
        (300,)
    """
    from fedaudit.core.devices import device_named
    from fedaudit.engines.ray_cluster import engine_named

    chosen = AuditOptions() if options is None else options
    _refuse_other_options(chosen)
    about, engine, pool = chosen.about, chosen.engine, chosen.pool
    asked = Questions(
        attacks=attacks,
        targets=targets,
        seeds=seeds,
        audit=audit,
        figures=figures,
        server=chosen.server,
        view=chosen.view,
        metrics=chosen.metrics,
        tables=chosen.tables,
    )
    called = name or _named_after(out)
    plan: AuditPlan | GamesPlan
    if isinstance(federation, Games):
        given = {"attacks": attacks, "targets": targets, "audit": audit, "figures": figures}
        _refuse_of_federations(chosen, {**given, "workers": workers, "device": device})
        plan = games_plan(federation, seeds=seeds, name=called, about=about)
    else:
        plan = plan_of(federation, asked, name=called, about=about)
    cluster = engine_named(engine, workers) if isinstance(engine, str) else engine
    _refuse_elsewhere(plan, cluster, workers)
    place = plan.data_dir if chosen.data_dir is None else Path(chosen.data_dir)
    with objects_given(plan.objects):
        folder = Path(out) if out is not None else Path("runs") / _folder_name(plan, called)
        with bars() if progress else nullcontext(quiet) as shown:
            log = print if progress else _nothing
            if isinstance(plan, GamesPlan):
                record = run_games(plan.points, folder, data_dir=place, progress=shown, log=log)
            else:
                record = run_study(
                    plan.study,
                    folder,
                    pool=None if pool is None else Path(pool),
                    data_dir=place,
                    workers=workers,
                    device=device_named(device),
                    engine=cluster,
                    progress=shown,
                    log=log,
                )
    return Run._of(folder, plan.objects, place, record)


def _refuse_other_options(given: object) -> None:
    if not isinstance(given, AuditOptions):
        raise BadInput(f"options is fedaudit.AuditOptions(...), got {type_of(given)}")


def _refuse_of_federations(options: AuditOptions, given: Mapping[str, object]) -> None:
    """Raise if an argument or option is set that games do not use."""
    usual = {name: one.default for name, one in signature(audit).parameters.items()}
    for_games = {"about", "data_dir"}
    changed = changed_fields(options).keys() - for_games
    for name in (*(one for one in given if given[one] != usual[one]), *sorted(changed)):
        raise BadInput(f"{name}= is of audits of federations, and of no games; leave it out")


def _refuse_elsewhere(plan: AuditPlan | GamesPlan, engine: Counted | None, workers: int) -> None:
    """Refuses to send to other processes what no import brings back there."""
    if engine is None and workers == 1:
        return
    sent = {"model", "algorithm", "defense", *(["attack"] if engine is not None else [])}
    named = [name for kind, name in own_parts(plan.study) if kind in sent]
    here = [name for name in named if name.startswith("__main__:") or "<" in name]
    if here:
        where = type(engine).__name__ if engine is not None else f"workers={workers}"
        raise Unsupported(
            f"{here[0].partition('#')[0]!r} is an object of this script or notebook, which other "
            f"processes cannot import ({where}); put it into a module of its own, or leave engine "
            "and workers as they are by default"
        )


def _chosen(what: str, given: int | None, there: set[int]) -> int:
    if given is None and len(there) == 1:
        return next(iter(there))
    if given not in there:
        known = ", ".join(map(str, sorted(there)))
        asked = f"there is no {what} {given}" if given is not None else f"there are several {what}s"
        raise BadInput(f"{asked}; give {what}= one of {known}")
    return int(given)


def _named_after(out: Path | str | None) -> str:
    """A name for people: that of the folder, of the characters that names may have."""
    if out is None:
        return _UNNAMED
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", Path(out).absolute().name)
    return name.lstrip("._=,+-")[:_LONGEST_NAME] or _UNNAMED


def _folder_name(plan: AuditPlan | GamesPlan, name: str) -> str:
    return f"{name}-{study_key(with_code(plan.study))[:_KEY_LENGTH]}"


def _nothing(text: str) -> None:
    """Logs nothing."""
