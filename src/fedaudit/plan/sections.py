"""A study's settings, every one named, with its range and its default.

Everything that changes a result is in here; what does not (folders, workers, progress) is not.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, model_validator

from fedaudit.attacks import DEFAULT_SET
from fedaudit.core.arguments import (
    Decay,
    Fraction,
    LearningRate,
    ProperShare,
    Share,
    WeightDecay,
    documented_by,
)
from fedaudit.core.errors import BadInput, setting, table
from fedaudit.core.importing import code_key
from fedaudit.core.metric_names import tpr_at
from fedaudit.fl.training.local import LocalTraining, OptimizerName, ScheduleName
from fedaudit.plan.base import (
    AlgorithmName,
    AttackName,
    Count,
    Digest,
    DrawName,
    MeasureName,
    MetricName,
    ModelName,
    PartitionName,
    Positive,
    Rounds,
    Section,
    Settings,
    ShiftName,
    TaskName,
    ViewName,
    each_once,
    public,
)
from fedaudit.plan.optional import (
    AttackerSection,
    CanariesSection,
    DefenseSection,
    ReferencesSection,
    SecureSumSection,
    ShadowSection,
    UnlearningSection,
)

_MOST_FIGURES = 100
"""False-positive rates, and further metrics, of one study: every attack's figure has each."""


class DataSection(Section):
    """Which data set; ``options`` are its source's own.

    Attributes:
        classes: Only samples of these are kept, and they are numbered in this order; all if empty.
        first_class: Number of the first class. Those before it are classes without samples, such
            as a public set's.
    """

    set_elsewhere: ClassVar[Mapping[str, str]] = {"seed": "seeds", "data_dir": "--data-dir"}

    name: str = "digits"
    options: Settings = Field(default_factory=dict)
    classes: tuple[Count, ...] = ()
    first_class: Annotated[int, Field(ge=0, le=10**6, strict=True)] = 0


class PartitionSection(Section):
    """The partition of data among clients; ``options`` are the scheme's own (beta, per_client)."""

    set_elsewhere: ClassVar[Mapping[str, str]] = {
        "clients": "partition.clients",
        "samples_per_client": "partition.samples_per_client",
    }

    scheme: PartitionName = "iid"
    clients: Annotated[int, Field(ge=2, le=10**6, strict=True)] = 10
    samples_per_client: Count = 0
    options: Settings = Field(default_factory=dict)


class TaskSection(Section):
    """The task that clients train their model for; ``options`` are its own.

    Attributes:
        name: Of the catalogue, or a loss of one's own (``module:function``, of outputs and
            targets, one number a sample).
    """

    name: TaskName = "classification"
    options: Settings = Field(default_factory=dict)


class ModelSection(Section):
    """Which architecture; ``options`` are its own."""

    set_elsewhere: ClassVar[Mapping[str, str]] = {
        "shape": "data.name",
        "classes": "data.classes",
    }

    name: ModelName = "mlp"
    options: Settings = Field(default_factory=dict)


class PretrainingSection(Section):
    """The training of a model's frozen network beforehand, on data that are public.

    It is done once for all studies with the same settings, with Adam, and kept.

    Attributes:
        data: The public data; of a data set that clients have samples of too, other classes.
        epochs: Passes over them.
        batch_size: Samples a step.
        lr: Learning rate, which falls along half a cosine.
        seed: Of everything random in it.
    """

    data: DataSection
    epochs: Positive = 10
    batch_size: Positive = 64
    lr: Annotated[float, Field(gt=0, le=1)] = 1e-3
    seed: Count = 0


class AlgorithmSection(Section):
    """The federated algorithm; ``options`` are its own."""

    set_elsewhere: ClassVar[Mapping[str, str]] = {"task": "task, model and training"}

    name: AlgorithmName = "fedavg"
    options: Settings = Field(default_factory=dict)


@documented_by(LocalTraining)
@public
class TrainingSection(Section):
    """Rounds, participation, and each client's local training.

    Attributes:
        rounds: Number of rounds, from 1 to 999,999.
        participation: Share of the clients that train in each round, in (0, 1]; 1 for all.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Training(rounds=20, lr=0.05).rounds
        20
    """

    rounds: Rounds = 30
    participation: Share = 1.0
    epochs: Positive = 1
    batch_size: Positive = 32
    lr: LearningRate = 0.1
    momentum: Decay = 0.0
    weight_decay: WeightDecay = 0.0
    schedule: ScheduleName = "constant"
    optimizer: OptimizerName = "sgd"

    def local(self) -> LocalTraining:
        """Local training of each client in its round.

        Raises:
            BadInput: Settings that do not fit together.
        """
        return LocalTraining(
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            optimizer=self.optimizer,
        )


@public
class AuditSection(Section):
    """The audited samples, and the view that they are audited in.

    Attributes:
        draw: "fair" (the default draw), "canaries", or a published split by name.
        targets: Clients under audit.
        options: Another draw's own settings (count and kind of canaries; share, n_unseen, n_other).
        unit: Whose membership is asked for, and what a fair coin decides about: each "sample" by
            itself, or each "person" with all of its samples, whose score is the mean over them.
            Data then say of which person each sample is (``data.options.subject``).
        fair: Samples, or people, whose owner a fair draw decides, for each target. The argument is
            ``samples``; a study file may say ``people``.
        clients_per_person: Among how many clients the samples of a person who takes part are
            divided, as those of a patient who visits several hospitals.
        extra_other: Further audited samples of other clients.
        extra_unseen: Further audited samples that no client trains on.
        background: Samples of each target beside the audited ones; None tops it up.
        sources: Random samples of each client's own training data that source inference asks
            about, in addition to the audited ones; as many as the smallest client has if that is
            fewer. 0 asks about audited samples only. By default a third of the fairly drawn
            samples divided among the clients (rounded down) where an attack on sources runs on a
            fair draw and clients' label distributions differ, and 0 elsewhere.
        every: Measured rounds are this far apart; 0 means every max(1, rounds // 10).
        view: What the adversary sees.
        merge: Clients that the adversary attacks as one, through the weighted mean of their
            uploads: a coalition whose single uploads hide behind each other. Their data
            together are then the members. None if empty.
        keep: "signals" keeps measurements only; "snapshots" also the global models of measured
            rounds; "full" also every client's update there.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Audit(samples=200, view="globals").view
        'globals'
    """

    set_elsewhere: ClassVar[Mapping[str, str]] = {
        "clients": "partition.clients",
        "partition": "partition.scheme",
        "seed": "seeds",
        "targets": "audit.targets",
    }

    draw: DrawName = "fair"
    targets: tuple[Count, ...] = (0,)
    unit: Literal["sample", "person"] = "sample"
    # Type checkers read the alias as the name of the argument.
    fair: Count = Field(
        default=300,
        alias="samples",
        validation_alias=AliasChoices("fair", "samples", "people"),
    )
    clients_per_person: Annotated[int, Field(ge=1, strict=True)] = 1
    extra_other: Count = 0
    extra_unseen: Count = 0
    background: Count | None = None
    sources: Count | None = None
    options: Settings = Field(default_factory=dict)
    every: Count = 0
    view: ViewName = "uploads"
    merge: tuple[Count, ...] = ()
    keep: Literal["signals", "snapshots", "full"] = "signals"

    @model_validator(mode="before")
    @classmethod
    def _called_once(cls, given: object) -> object:
        if isinstance(given, Mapping) and len({"fair", "samples", "people"} & given.keys()) > 1:
            raise ValueError("fair, samples and people are one setting; give one of them")
        return given

    @model_validator(mode="after")
    def _of_people(self) -> "AuditSection":
        if self.unit == "person" and self.draw != "fair":
            raise ValueError(
                f'unit "person" needs the draw "fair", and draw is {self.draw!r}; leave out draw'
            )
        if self.unit == "sample" and self.clients_per_person != 1:
            raise ValueError(
                f"clients_per_person is {self.clients_per_person}, which only the unit "
                '"person" uses; set unit to "person", or leave out clients_per_person'
            )
        return self


class ServerSection(Section):
    """The server that sends the models that clients train.

    Attributes:
        name: "honest", or a server of the user's own that tampers (``module:Class``).
        options: Its own settings.
    """

    name: str = "honest"
    options: Settings = Field(default_factory=dict)


@public
class ShiftSection(Section):
    """A minority of clients whose samples differ from the majority's.

    Attributes:
        kind: "rotation" (degrees) or "brightness" (factors) of images; "attribute" where the
            minority's clients have people with one value of the data set's attribute, and the
            others' all others.
        minority: Share of the clients that are in the minority, the first ones.
        value: Of the attribute; the rarest if empty.
        minority_range: Each of its clients draws its own amount from there.
        majority_range: And each of the others from there.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Shift(kind="rotation").kind
        'rotation'
    """

    kind: ShiftName
    minority: ProperShare = 0.15
    minority_range: tuple[float, float] = (0.0, 25.0)
    majority_range: tuple[float, float] = (25.0, 50.0)
    value: str = ""


@public
class RiskSection(Section):
    """The measure of the models' membership risk, and what clients accept.

    Only for algorithms whose clients choose among several models.

    Attributes:
        measure: "train-mia", or an attack of the catalogue.
        shadows: Shadow models for each model, at most 100.
        training: "repeated": a shadow model goes through as much training as the model it stands
            for, in a federation of its own; "continued": it goes on from that model for a few
            epochs, which is cheap and far too low where models learn samples by heart.
        epochs: Passes of a continued shadow model over its samples; 5 if not given. To give them is
            to ask for continued ones.
        sizes: Where the server has too few samples for shadows as large as the clusters,
            "proportional" scales all down alike; "capped" gives each half of the samples at most.
        samples: Of the server's own for shadow models, neither trained on nor audited; 0 for
            all there are.
        low: The lowest risk (balanced accuracy) that some client may accept.
        high: The highest; each client's own is drawn in between.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Risk(shadows=4).shadows
        4
    """

    measure: MeasureName = "train-mia"
    shadows: Annotated[int, Field(ge=1, le=100, strict=True)] = 3
    training: Literal["repeated", "continued"] = "repeated"
    epochs: Positive | None = None
    sizes: Literal["proportional", "capped"] = "proportional"
    samples: Count = 0
    low: Fraction = 0.5
    high: Fraction = 0.8

    @model_validator(mode="before")
    @classmethod
    def _continued(cls, given: object) -> object:
        if not isinstance(given, Mapping) or given.get("epochs") is None:
            return given
        if given.get("training", "continued") != "continued":
            raise ValueError(
                f"epochs is {given['epochs']}, which only continued shadow models use, and "
                f"training is {given['training']!r}; leave out one of them"
            )
        return {**given, "training": "continued"}


def _each_rate_once(fprs: tuple[float, ...]) -> tuple[float, ...]:
    if len({tpr_at(fpr) for fpr in fprs}) < len(fprs):
        raise ValueError("each false-positive rate may stand once, to six digits")
    return fprs


def _each_metric_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("each metric may stand once")
    return names


@public
class FiguresSection(Section):
    """Which figures are printed.

    Attributes:
        fprs: False-positive rates at which the true-positive rate is given.
        evaluation: "aligned", or "redraw" for the published code's way (parity only).
        nobody_is_a_member: Calls half of the unseen samples members: what an evaluation finds
            where there is nothing to find.
        permutations: Of the membership labels, for the permuted control.
        blind_classifier: Trains the control that sees inputs only; some seconds a target.
        alpha: Error level of the corrected family of tests.
        most_exposed: How many members are listed.
        planted_leak: Also trains a small twin run with a leak that every attack must find.
        metrics: Further metrics of every attack's scores, by name (``fedaudit list metrics``).

    Examples:
        >>> import fedaudit as fa
        >>> fa.Figures(permutations=100, blind_classifier=False).permutations
        100
    """

    fprs: Annotated[
        tuple[Share, ...], Field(max_length=_MOST_FIGURES), AfterValidator(_each_rate_once)
    ] = (0.01, 0.001)
    evaluation: Literal["aligned", "redraw"] = "aligned"
    nobody_is_a_member: bool = False
    permutations: Annotated[int, Field(ge=20, le=10**6, strict=True)] = 200
    blind_classifier: bool = True
    alpha: ProperShare = 0.05
    most_exposed: Count = 10
    planted_leak: bool = False
    metrics: Annotated[
        tuple[MetricName, ...], Field(max_length=_MOST_FIGURES), AfterValidator(_each_metric_once)
    ] = ()


class Study(Section):
    """A whole study.

    Attributes:
        name: Of the study and its folder.
        about: One sentence for the reader of the report.
        hours: What it takes, as its author measured it; for people, changes nothing.
        seeds: One run each.
        pretraining: Of the model's frozen network, where there is this table.
        models: Networks of the clients' own, dealt in turn, where an algorithm averages no
            parameters: a ``[[models]]`` table of ``name`` and ``options`` each, in place of
            ``[model]``.
        server: Who sends the models that clients train.
        shadow: Examples for attacks that learn. Without this table they run only where they are
            named, on a shadow federation.
        references: The adversary's own federations, for attacks that compare with reference models.
            Without this table there are some where such an attack is named, and where no attack is
            named and the view shows no client's uploads.
        canaries: Clients that show how well one client's update is hidden; none without this table.
        unlearning: Of audited samples once the model is trained; none without this table.
        secure_sum: How well one round's sum hides one upload; not asked without this table.
        attacker: A client that poisons what it sends; none without this table.
        shift: Groups of clients with other features; none without this table.
        attacks: Settings by attack name; those of ``attack_set`` if there is no table.
        attack_set: Which set of attacks is run where there is no ``[attacks]`` table; that of
            this version if left out.
        code: SHA-256 of the source that defines each part of the user's own, filled in when the
            study is carried out; where one is given, other source is refused. The name of a module
            stands for its whole file.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=,+-]{0,199}$")]
    about: str = ""
    hours: str = ""
    seeds: Annotated[tuple[Count, ...], Field(min_length=1)] = (1,)
    data: DataSection = DataSection.model_construct()
    partition: PartitionSection = PartitionSection.model_construct()
    task: TaskSection = TaskSection.model_construct()
    model: ModelSection = ModelSection.model_construct()
    pretraining: PretrainingSection | None = None
    models: tuple[ModelSection, ...] = ()
    algorithm: AlgorithmSection = AlgorithmSection.model_construct()
    training: TrainingSection = TrainingSection.model_construct()
    audit: AuditSection = AuditSection.model_construct()
    server: ServerSection = ServerSection.model_construct()
    shift: ShiftSection | None = None
    risk: RiskSection = RiskSection.model_construct()
    shadow: ShadowSection | None = None
    references: ReferencesSection | None = None
    canaries: CanariesSection | None = None
    unlearning: UnlearningSection | None = None
    secure_sum: SecureSumSection | None = None
    attacker: AttackerSection | None = None
    defense: DefenseSection = DefenseSection.model_construct()
    figures: FiguresSection = FiguresSection.model_construct()
    attacks: Annotated[dict[AttackName, Settings], BeforeValidator(each_once)] = Field(
        default_factory=dict
    )
    attack_set: str = ""
    code: dict[str, Digest] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _of_this_version(cls, values: object) -> object:
        # Named, so that a record says what was run once there are other sets.
        if isinstance(values, dict) and not values.get("attacks"):
            return {"attack_set": DEFAULT_SET, **values}
        return values

    @model_validator(mode="after")
    def _one_run_a_seed(self) -> "Study":
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"each seed may stand once, got {list(self.seeds)}")
        if self.audit.draw == "fair" and self.audit.fair == 0:
            raise ValueError(
                f"{setting('audit.fair')} is 0, so that an audit would have no members; give at "
                "least 1"
            )
        if self.audit.draw == "fair" and self.audit.options:
            raise ValueError(
                'the draw "fair" has no options; leave out audit.options, or choose another draw'
            )
        self._check_sources()
        if self.attacks and self.attack_set:
            raise ValueError(
                f"attack_set is {self.attack_set!r}, and {table('attacks')} names single attacks; "
                "leave out one of them"
            )
        self._check_merge()
        self._check_models()
        self._check_pretraining()
        return self

    def _check_sources(self) -> None:
        if not self.audit.sources:
            return
        # Not at the top: what reads settings need not draw.
        from fedaudit.datasets.draws.fair import OF_EACH_CLIENT

        if self.audit.draw in OF_EACH_CLIENT:
            raise ValueError(
                f"the draw {self.audit.draw!r} audits random samples of each client's own data, "
                "which source inference asks about; leave audit.sources out"
            )

    def _check_merge(self) -> None:
        merged, targets = self.audit.merge, self.audit.targets
        if merged and (len(set(merged)) < max(2, len(merged))):
            raise ValueError(f"audit.merge names at least two clients, each once: {list(merged)}")
        if len(set(merged) & set(targets)) > 1:
            raise ValueError(
                f"audit.targets {list(targets)} are several of audit.merge, which are attacked as "
                "one; name one of them"
            )

    def _check_models(self) -> None:
        if self.models and self.model != ModelSection():
            raise ValueError(
                f"model is {self.model.name!r}, of all clients, and models are of each; leave out "
                "one of them"
            )
        if len(self.models) > self.partition.clients:
            raise ValueError(
                f"there are {len(self.models)} models and {self.partition.clients} clients, so "
                "that no client would train some of them; give at most one a client"
            )

    def _check_pretraining(self) -> None:
        given = self.pretraining
        if given is None:
            return
        if self.models or "weights" in self.model.options:
            raise ValueError(
                "pretraining makes the values that one model begins with; leave out models and "
                "model.options.weights"
            )
        public, own = set(given.data.classes), set(self.data.classes)
        if given.data.name == self.data.name and (not public or not own or public & own):
            raise ValueError(
                f"pretraining.data and data are both {self.data.name!r}; give each classes of its "
                "own, as nothing public is to be audited"
            )

    @property
    def has_equal_clients(self) -> bool:
        """True if every client has the same label distribution and features."""
        return self.partition.scheme == "iid" and self.shift is None

    @property
    def pretrained_settings(self) -> dict[str, object]:
        """All settings that decide what the pretrained network is."""
        given = self.model_dump(mode="json", include={"model", "pretraining"})
        # A denoiser's options are of what is measured, not of how it is trained.
        options = {} if self.task.name == "denoising" else self.task.options
        task = {"name": self.task.name, "options": options} if options else self.task.name
        parts = [("model", self.model.name), ("task", self.task.name)]
        parts += [("data set", self.pretraining.data.name)] if self.pretraining else []
        keys = {code_key(*part) for part in parts}
        code = {key: digest for key, digest in self.code.items() if key in keys}
        return {"task": task, **given, **({"code": code} if code else {})}

    @property
    def pretrained_name(self) -> str:
        """Of the file of the pretrained network; empty without pretraining."""
        if self.pretraining is None:
            return ""
        text = json.dumps(self.pretrained_settings, sort_keys=True)
        return f"{self.model.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def measured_every(self) -> int:
        """Distance of measured rounds: as asked, or a tenth of the run."""
        return self.audit.every or max(1, self.training.rounds // 10)

    @property
    def malicious_client(self) -> int:
        """The number of the malicious client that the table [attacker] asks for.

        Raises:
            BadInput: It is audited, or there is no such.
        """
        assert self.attacker is not None
        free = [c for c in range(self.partition.clients) if c not in self.audit.targets]
        asked = self.attacker.client
        client = max(free, default=-1) if asked is None else asked
        if client not in free:
            raise BadInput(
                f"attacker.client is {asked}, and has to be one of the {self.partition.clients} "
                "clients that is not audited; give another, or audit fewer clients"
            )
        return client
