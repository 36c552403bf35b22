"""Settings of a study, with their ranges and defaults.

Results depend only on these settings. Options that do not affect results, such as folders and
numbers of workers, are not settings.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_serializer, model_validator

from fedaudit.attacks import DEFAULT_SET
from fedaudit.core.arguments import (
    Decay,
    Fraction,
    LearningRate,
    PositiveFraction,
    ProperFraction,
    WeightDecay,
    documented_by,
)
from fedaudit.core.errors import BadInput, format_setting, format_table
from fedaudit.core.importing import code_key
from fedaudit.core.metric_names import tpr_at
from fedaudit.fl.training.local import LocalTraining, OptimizerName, ScheduleName
from fedaudit.plan.base import (
    AlgorithmName,
    AttackName,
    Count,
    DataSettings,
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
    raise_if_repeated_attacks,
    require_distinct,
    with_public_name,
)
from fedaudit.plan.optional import (
    AttackerSection,
    CanariesSection,
    DefenseSection,
    LabelInferenceSection,
    ReferencesSection,
    SecureSumSection,
    ShadowSection,
    UnlearningSection,
)

SAMPLES_NAMES = ("samples", "fair", "people")
"""Names of the setting for the number of audited samples in a study file."""

_MAX_METRICS = 100
"""Maximum number of false-positive rates, and of further metrics, in a study."""


class DataSection(Section):
    """The data set.

    Attributes:
        classes: Classes to use, which are renumbered in this order; all classes if empty.
        first_class: Number of the first class. Lower numbers are reserved for classes of another
            data set, such as a public data set.
    """

    set_elsewhere: ClassVar[Mapping[str, str]] = {"seed": "seeds", "data_dir": "--data-dir"}

    name: str = "digits"
    options: DataSettings = Field(default_factory=dict)
    classes: tuple[Count, ...] = ()
    first_class: Annotated[int, Field(ge=0, le=10**6, strict=True)] = 0


class PartitionSection(Section):
    """The partition of training data among clients."""

    set_elsewhere: ClassVar[Mapping[str, str]] = {
        "clients": "partition.clients",
        "samples_per_client": "partition.samples_per_client",
    }

    scheme: PartitionName = "iid"
    clients: Annotated[int, Field(ge=2, le=10**6, strict=True)] = 10
    samples_per_client: Count = 0
    options: Settings = Field(default_factory=dict)


class TaskSection(Section):
    """The task of the clients' model.

    Attributes:
        name: Task by catalogue name, or a custom loss as ``module:function``. The function takes
            outputs and targets and returns one number per sample.
    """

    name: TaskName = "classification"
    options: Settings = Field(default_factory=dict)


class ModelSection(Section):
    """The architecture of the model."""

    set_elsewhere: ClassVar[Mapping[str, str]] = {
        "shape": "data.name",
        "classes": "data.classes",
    }

    name: ModelName = "mlp"
    options: Settings = Field(default_factory=dict)


class PretrainingSection(Section):
    """Pretraining of the model, or of its frozen part, on public data.

    The network is trained once with Adam. All studies with the same settings use the same network.

    Attributes:
        data: The public data. If clients have samples of the same data set, the public classes
            must differ from the clients' classes.
        epochs: Number of passes over the public data.
        batch_size: Number of samples per training step.
        lr: Initial learning rate, which decays to 0 with a cosine schedule.
        seed: Seed of all random choices in pretraining.
    """

    data: DataSection
    epochs: Positive = 10
    batch_size: Positive = 64
    lr: Annotated[float, Field(gt=0, le=1)] = 1e-3
    seed: Count = 0


class AlgorithmSection(Section):
    """The federated algorithm."""

    set_elsewhere: ClassVar[Mapping[str, str]] = {"task": "task, model and training"}

    name: AlgorithmName = "fedavg"
    options: Settings = Field(default_factory=dict)


@documented_by(LocalTraining)
@with_public_name
class TrainingSection(Section):
    """Number of rounds, participation of clients, and each client's local training.

    Attributes:
        rounds: Number of rounds, from 1 to 999,999.
        participation: Fraction of the clients that train in each round, in (0, 1]; 1 for all.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Training(rounds=20, lr=0.05).rounds
        20
    """

    rounds: Rounds = 30
    participation: PositiveFraction = 1.0
    epochs: Positive = 1
    batch_size: Positive = 32
    lr: LearningRate = 0.1
    momentum: Decay = 0.0
    weight_decay: WeightDecay = 0.0
    schedule: ScheduleName = "constant"
    optimizer: OptimizerName = "sgd"

    def local(self) -> LocalTraining:
        """Return the settings of a client's local training.

        Raises:
            BadInput: Settings contradict each other.
        """
        return LocalTraining(**self.model_dump(exclude={"rounds", "participation"}))


def _raise_if_named(targets: object) -> object:
    """Raise if a client is given by name, since only the data map names to numbers."""
    if isinstance(targets, list | tuple) and any(isinstance(target, str) for target in targets):
        raise ValueError(
            "it should contain numbers of clients; only fedaudit.read_study, `fedaudit run` and "
            "fedaudit.audit also accept names"
        )
    return targets


@with_public_name
class AuditSection(Section):
    """The audited clients and samples, and the adversary's view.

    Attributes:
        draw: How audited samples are drawn: "fair" (the default), "canaries", or the name of a
            published split.
        targets: Audited clients, by number. A study file may also use the clients' names in the
            data.
        options: Options of a draw other than "fair", such as the number and kind of canaries.
        unit: Unit of membership. With "sample", a fair draw decides about every sample separately.
            With "person", it decides about all samples of a person together, and a person's score
            is the mean over their samples. The data must then name the person of each sample
            (``data.options.person``).
        samples: Number of audited samples of each target, or of people if ``unit`` is "person". A
            fair draw decides which client trains on each. Aliases of this key: ``fair``,
            ``people``.
        clients_per_person: Number of clients among which the samples of a person are divided. With
            2 or more, people are like patients who visit several hospitals.
        extra_other: Number of further audited samples, on which other clients train.
        extra_unseen: Number of further audited samples, on which no client trains.
        background: Number of training samples of each target that are not audited. By default, the
            partition determines the target's total number of samples.
        sources: Number of random training samples of each client on which source inference is
            tested, in addition to audited samples; at most as many as the smallest client has. By
            default, ``samples // (3 * clients)`` if a source inference attack runs on a fair draw
            and label distributions differ between clients, and otherwise 0.
        every: Number of rounds from one measured round to the next; 0 for
            ``max(1, rounds // 10)``.
        view: What the adversary observes, by catalogue name.
        merge: Clients that the adversary attacks as one client, through the weighted mean of their
            updates, such as a coalition that hides single updates. The training samples of all
            these clients are then members. If empty, clients are attacked separately.
        keep: What is stored on disk. "signals" stores only measurements, "snapshots" also the
            global models of measured rounds, and "full" also all clients' updates of measured
            rounds.

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
    targets: Annotated[tuple[Count, ...], BeforeValidator(_raise_if_named)] = (0,)
    unit: Literal["sample", "person"] = "sample"
    samples: Count = Field(default=300, validation_alias=AliasChoices(*SAMPLES_NAMES))
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

    @model_serializer(mode="wrap")
    def _serialize_samples_as_fair(
        self, serialize: Callable[["AuditSection"], dict[str, object]]
    ) -> dict[str, object]:
        # Records and keys of studies use the name of this setting in the first version, "fair".
        values = serialize(self)
        return {"fair" if name == "samples" else name: value for name, value in values.items()}

    @model_validator(mode="before")
    @classmethod
    def _raise_if_two_names(cls, values: object) -> object:
        if isinstance(values, Mapping) and len({*SAMPLES_NAMES} & values.keys()) > 1:
            raise ValueError("samples, fair and people name the same setting; give one of them")
        return values

    @model_validator(mode="after")
    def _check_unit(self) -> "AuditSection":
        if self.unit == "person" and self.draw != "fair":
            raise ValueError(
                f'unit "person" needs the draw "fair", but draw is {self.draw!r}; remove draw'
            )
        if self.unit == "sample" and self.clients_per_person != 1:
            raise ValueError(
                f"clients_per_person is {self.clients_per_person}, but it is only for the unit "
                '"person"; set unit to "person", or remove clients_per_person'
            )
        return self


class ServerSection(Section):
    """The server that sends clients the models that they train.

    Attributes:
        name: "honest", or a custom server that manipulates models, as ``module:Class``.
        options: Settings of the server.
    """

    name: str = "honest"
    options: Settings = Field(default_factory=dict)


@with_public_name
class ShiftSection(Section):
    """A minority of clients whose features differ from the majority's.

    Attributes:
        kind: "rotation" of images (in degrees), "brightness" of images (as a factor), or
            "attribute". With "attribute", clients in the minority have the people with one value of
            the data set's attribute, and other clients the people with other values.
        minority: Fraction of the clients that are in the minority, in (0, 1). These are the clients
            with the lowest numbers.
        value: Value of the attribute in the minority; the rarest value if empty.
        minority_range: Range from which each minority client draws its angle or factor.
        majority_range: Range from which each majority client draws its angle or factor.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Shift(kind="rotation").kind
        'rotation'
    """

    kind: ShiftName
    minority: ProperFraction = 0.15
    minority_range: tuple[float, float] = (0.0, 25.0)
    majority_range: tuple[float, float] = (25.0, 50.0)
    value: str = ""


@with_public_name
class RiskSection(Section):
    """Measurement of the models' membership risk, and the risk that clients accept.

    It is used only by algorithms whose clients choose among several models.

    Attributes:
        measure: "train-mia", or an attack by catalogue name.
        shadows: Number of shadow models for each model, from 1 to 100.
        training: How a shadow model is trained. "repeated" trains it in a separate federation, for
            as many rounds as the model that it imitates. "continued" starts from that model and
            trains it for a few epochs, which is cheap, but underestimates the risk if models
            memorise samples.
        epochs: Number of passes of a continued shadow model over its samples, 5 by default. Setting
            it also sets ``training`` to "continued".
        sizes: Sizes of shadow models' training sets if the server has fewer samples than the
            clusters. "proportional" scales all sizes by the same factor, and "capped" limits each
            size to half of the server's samples.
        samples: Number of the server's samples, on which shadow models are trained; 0 for all
            available samples. No client trains on them, and they are not audited.
        low: Lowest risk (balanced accuracy) that a client may accept.
        high: Highest risk that a client may accept. Each client's limit is drawn between ``low``
            and ``high``.

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
    def _continue_if_epochs(cls, values: object) -> object:
        if not isinstance(values, Mapping) or values.get("epochs") is None:
            return values
        if values.get("training", "continued") != "continued":
            raise ValueError(
                f"epochs is {values['epochs']}, which is only for continued shadow models, but "
                f"training is {values['training']!r}; remove one of them"
            )
        return {**values, "training": "continued"}

    @model_validator(mode="after")
    def _raise_if_empty_range(self) -> "RiskSection":
        if self.low >= self.high:
            raise ValueError(f"low is {self.low} and high is {self.high}; low must be below high")
        return self


@with_public_name
class FiguresSection(Section):
    """Reported metrics and controls.

    Attributes:
        fprs: False-positive rates at which true-positive rates are reported, each in (0, 1].
        evaluation: "aligned" evaluates the same non-members in all rounds. "redraw" draws other
            non-members for every round and client, as published code does; use it only to compare
            results with that code.
        null_members: Whether half of the held-out samples are labelled as members (a null audit),
            as a test of the audit itself: a valid evaluation then finds no leak.
        permutations: Number of permutations of the membership labels in the permutation control.
        blind_classifier: Whether to train a control classifier that sees only inputs. It takes
            some seconds for each target.
        alpha: Significance level of all tests of the study together, after correction, in (0, 1).
        most_exposed: Number of most exposed members to list.
        planted_leak: Whether to also train a small run with a planted leak, which every attack
            must find.
        metrics: Further metrics of every attack's scores, by name (``fedaudit list metrics``).

    Examples:
        >>> import fedaudit as fa
        >>> fa.Figures(permutations=100, blind_classifier=False).permutations
        100
    """

    fprs: Annotated[
        tuple[PositiveFraction, ...],
        Field(max_length=_MAX_METRICS),
        require_distinct("two false-positive rates agree to six digits", tpr_at),
    ] = (0.01, 0.001)
    evaluation: Literal["aligned", "redraw"] = "aligned"
    null_members: bool = False
    permutations: Annotated[int, Field(ge=20, le=10**6, strict=True)] = 200
    blind_classifier: bool = True
    alpha: ProperFraction = 0.05
    most_exposed: Count = 10
    planted_leak: bool = False
    metrics: Annotated[
        tuple[MetricName, ...],
        Field(max_length=_MAX_METRICS),
        require_distinct("a metric is repeated"),
    ] = ()


class Study(Section):
    """Name and seeds of a study, its attacks, and measurements that it can add.

    Attributes:
        name: Name of the study and of its folder.
        about: One sentence about the study for readers of the report.
        hours: Run time that the author measured, as a text for readers; it does not affect results.
        seeds: Seeds; the study has a run for each seed.
        pretraining: Pretraining of the model, or of its frozen part. Without this table, there is
            none.
        models: Architectures, if they differ between clients. They are assigned to clients in
            rotation. Each is a ``[[models]]`` table with ``name`` and ``options``. They replace
            ``[model]``, and need an algorithm that does not average parameters.
        server: The server that sends clients the models that they train.
        shadow: Training examples for attacks that learn. Without this table, these attacks run
            only if ``[attacks]`` names them, and then train a shadow federation.
        references: Reference federations, for attacks that use reference models. Without this
            table, they are trained if ``[attacks]`` names such an attack, or if there is no
            ``[attacks]`` table and the view shows no client's updates.
        canaries: Canary clients, which measure how well one client's update is hidden. Without
            this table, there are no canary clients.
        unlearning: Unlearning of audited samples after training. Without this table, no samples are
            unlearned.
        secure_sum: Measurement of how well the sum of a round's updates hides a single update.
            Without this table, it is not measured.
        label_inference: Inference of the classes that occur in each client's training data. Without
            this table, it is not measured.
        attacker: A malicious client that sends poisoned updates. Without this table, all clients
            are honest.
        shift: Groups of clients with different features. Without this table, features are not
            changed.
        attacks: Options of attacks by name. Without this table, the attacks of ``attack_set`` run.
        attack_set: Set of attacks that run if there is no ``[attacks]`` table; by default, the set
            of the installed version.
        code: SHA-256 of the source code of each custom part, which a run fills in. A run with
            different source code then raises an error. If importing a part's module has side
            effects, the digest covers the module's whole file.
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
    label_inference: LabelInferenceSection | None = None
    attacker: AttackerSection | None = None
    defense: DefenseSection = DefenseSection.model_construct()
    figures: FiguresSection = FiguresSection.model_construct()
    attacks: Annotated[dict[AttackName, Settings], BeforeValidator(raise_if_repeated_attacks)] = (
        Field(default_factory=dict)
    )
    attack_set: str = ""
    code: dict[str, Digest] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_attack_set(cls, values: object) -> object:
        # The record must name the set that ran, since later versions may have another default.
        if isinstance(values, dict) and not values.get("attacks"):
            return {"attack_set": DEFAULT_SET, **values}
        return values

    @model_validator(mode="after")
    def _check_consistency(self) -> "Study":
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"a seed is repeated in {list(self.seeds)}; give each once")
        if self.audit.draw == "fair" and self.audit.samples == 0:
            raise ValueError(
                f"{format_setting('audit.samples')} is 0, so no audited sample would be a member; "
                "give at least 1"
            )
        if self.audit.draw == "fair" and self.audit.options:
            raise ValueError(
                f"{format_setting('audit.options')} has {sorted(self.audit.options)}, but the fair "
                "draw has no options; remove them"
            )
        self._check_sources()
        if self.attacks and self.attack_set:
            raise ValueError(
                f"attack_set is {self.attack_set!r}, but {format_table('attacks')} lists single "
                "attacks; remove one of them"
            )
        if self.shadow and (self.shadow.client or 0) >= self.partition.clients:
            raise ValueError(
                f"shadow.client is {self.shadow.client}, but clients are numbered 0 to "
                f"{self.partition.clients - 1}"
            )
        self._check_merge()
        self._check_models()
        self._check_pretraining()
        return self

    def _check_sources(self) -> None:
        if not self.audit.sources:
            return
        # Imported here, since reading settings should not import code that draws samples.
        from fedaudit.datasets.draws.fair import CLIENT_SAMPLE_DRAWS

        if self.audit.draw in CLIENT_SAMPLE_DRAWS:
            raise ValueError(
                f"with the draw {self.audit.draw!r}, source inference is tested on the audited "
                f"samples, but audit.sources is {self.audit.sources}; remove it"
            )

    def _check_merge(self) -> None:
        merged, targets = self.audit.merge, self.audit.targets
        if merged and (len(set(merged)) < max(2, len(merged))):
            raise ValueError(
                f"audit.merge needs at least two different clients, got {list(merged)}"
            )
        if len(set(merged) & set(targets)) > 1:
            raise ValueError(
                f"audit.targets {list(targets)} contains several clients of audit.merge, which are "
                "attacked as one client; give only one of them"
            )

    def _check_models(self) -> None:
        if self.models and self.model != ModelSection():
            raise ValueError(
                f"model is {self.model.name!r} for all clients, but models assigns different "
                "models; remove model or models"
            )
        if len(self.models) > self.partition.clients:
            raise ValueError(
                f"there are {len(self.models)} models but only {self.partition.clients} clients, "
                "so no client would train some models; give at most one model per client"
            )

    def _check_pretraining(self) -> None:
        if self.pretraining is None:
            return
        if self.models or "weights" in self.model.options:
            raise ValueError(
                "pretraining determines the weights of a single model; remove models and "
                "model.options.weights"
            )
        public = self.pretraining.data
        classes, public_classes = set(self.data.classes), set(public.classes)
        is_disjoint = classes and public_classes and not classes & public_classes
        if public.name == self.data.name and not is_disjoint:
            raise ValueError(
                f"pretraining.data and data are both {self.data.name!r}, but public samples must "
                "not be audited; set different classes in the two tables"
            )

    @property
    def has_iid_clients(self) -> bool:
        """True if all clients have the same distribution of labels and features."""
        return self.partition.scheme == "iid" and self.shift is None

    @property
    def pretrained_settings(self) -> dict[str, object]:
        """All settings that determine the pretrained network."""
        settings = self.model_dump(mode="json", include={"model", "pretraining"})
        # The options of the task "denoising" affect measurements but not pretraining.
        options = {} if self.task.name == "denoising" else self.task.options
        task = {"name": self.task.name, "options": options} if options else self.task.name
        parts = [("model", self.model.name), ("task", self.task.name)]
        parts += [("data set", self.pretraining.data.name)] if self.pretraining else []
        keys = {code_key(*part) for part in parts}
        code = {key: digest for key, digest in self.code.items() if key in keys}
        return {"task": task, **settings, **({"code": code} if code else {})}

    @property
    def pretrained_name(self) -> str:
        """Name of the file with the pretrained network; empty without pretraining."""
        if self.pretraining is None:
            return ""
        text = json.dumps(self.pretrained_settings, sort_keys=True)
        return f"{self.model.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def measured_every(self) -> int:
        """Number of rounds from one measured round to the next."""
        return self.audit.every or max(1, self.training.rounds // 10)

    @property
    def malicious_client(self) -> int:
        """Number of the malicious client that the table [attacker] adds.

        Raises:
            BadInput: The client is audited or does not exist.
        """
        assert self.attacker is not None
        unaudited = [c for c in range(self.partition.clients) if c not in self.audit.targets]
        client = self.attacker.client
        if client is None:
            client = max(unaudited, default=-1)
        if client not in unaudited:
            raise BadInput(
                f"attacker.client is {self.attacker.client}, but must be one of the "
                f"{self.partition.clients} clients and must not be audited; give another client, "
                "or audit fewer clients"
            )
        return client
