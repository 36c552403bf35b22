"""A run of a study with its parts, extensions and measured rounds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from numpy import ndarray

from fedaudit.attacks.base import Attack
from fedaudit.core.devices import CPU
from fedaudit.core.errors import Damaged, Unsupported, format_table
from fedaudit.core.progress import Progress, ignore_progress
from fedaudit.core.seeds import seed_for
from fedaudit.core.tasks import Task
from fedaudit.core.values import ClientId, Params, short_repr
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Assignment
from fedaudit.datasets.partitions.schemes import Partition
from fedaudit.engines.base import Engine
from fedaudit.engines.local import LOCAL
from fedaudit.fl.algorithms.base import (
    HONEST_SERVER,
    Algorithm,
    ChoosesModels,
    Participants,
    SendsExtra,
    Server,
    draw_cohort,
)
from fedaudit.fl.hooks import Defense
from fedaudit.fl.simulate import simulate
from fedaudit.metrics.catalogue import ExactMetric, Metric
from fedaudit.observe.measurements import MeasuredRound, StoredRound, measuring_device
from fedaudit.observe.round import Round, Update
from fedaudit.observe.tensors import read_tensors
from fedaudit.observe.views import View
from fedaudit.plan.assignment import Groups, HoldOutRule
from fedaudit.plan.identity import run_key
from fedaudit.plan.sections import Study
from fedaudit.results.estimate import Estimate
from fedaudit.results.runs import Coverage
from fedaudit.results.text import clean_text
from fedaudit.signals.base import Signal

if TYPE_CHECKING:
    from fedaudit.results.record import ControlResult

Kind = TypeVar("Kind", bound="Extension")


class RecordingInfo(NamedTuple):
    """Facts about a federation that another program trained.

    Attributes:
        untrained: Signals of all audited samples on untrained models, for controls.
        config: Settings of the recording, which its record stores.
        limitations: Sentences for the report on what is unknown about the federation.
        names: Names of the clients that have a name.
        coverage: Measured rounds and updates.
        has_models: False if another program measured the signals, so that fedaudit has no models.
        is_separate: True if each client was measured only on the audited samples that were drawn
            for it.
    """

    untrained: tuple[MeasuredRound, ...]
    config: Mapping[str, object]
    limitations: tuple[str, ...]
    names: Mapping[ClientId, str] = MappingProxyType({})
    coverage: Coverage | None = None
    has_models: bool = True
    is_separate: bool = False


@short_repr
@dataclass(frozen=True)
class Parts:
    """Parts of a study, which are constructed and checked before data are loaded.

    Attributes:
        study: Settings, including those that follow from others: digests of custom code, and the
            number of samples for source inference.
        task: Task of the models.
        partition: Partition of training samples among clients.
        make_algorithm: Function or class that constructs the algorithm after data are loaded.
        defenses: Defense of each defended client. Training uses copies, since defenses have state.
        server: Server that sends clients their models.
        view: The adversary's view if the algorithm averages parameters.
        attacks: Attacks that the study lists, or those of its attack set. Some may be impossible in
            the view.
        metrics: Further metrics by name.
        measured_rounds: Measured rounds, ascending.
        extensions: Extensions of the study's optional tables, in the order in which they are added.
    """

    study: Study
    task: Task
    partition: Partition
    make_algorithm: Callable[..., Algorithm]
    defenses: Mapping[ClientId, Defense]
    server: Server
    view: View
    attacks: Mapping[str, Attack]
    metrics: Mapping[str, ExactMetric | Metric]
    measured_rounds: tuple[int, ...]
    extensions: "tuple[type[Extension], ...]"


@short_repr
@dataclass(frozen=True)
class Setup:
    """A run of a study with its settings, data and parts, which is ready to be simulated.

    Attributes:
        study: Settings.
        seed: Root seed of this run.
        dataset: The data set.
        assignment: Clients' training samples, and audited samples.
        algorithm: The federated algorithm.
        defenses: Defense of each defended client.
        view: The adversary's view.
        attacks: Membership inference and source inference attacks that the view allows.
        refused: Maps the name of each attack that cannot run to the reason.
        measured_rounds: Measured rounds, ascending.
        groups: Groups of clients whose features differ.
        extensions: Extensions of the study's optional tables.
        is_auxiliary: True for an auxiliary federation, such as a shadow federation, in which
            signals are measured but no attack is evaluated.
        recording_info: Description of a recorded federation; None for a simulated one.
        server: Server that sends clients their models.
        parts: Parts of the study; None for a recorded federation.
        folder: Folder of the run's files, which is set when the run starts.
        title: Name of an auxiliary federation in error messages; empty for the audited federation.
    """

    study: Study
    seed: int
    dataset: Dataset
    assignment: Assignment
    algorithm: Algorithm
    defenses: Mapping[ClientId, Defense]
    view: View
    attacks: Mapping[str, Attack]
    refused: Mapping[str, str]
    measured_rounds: tuple[int, ...]
    groups: Groups
    extensions: "tuple[Extension, ...]" = ()
    is_auxiliary: bool = False
    recording_info: RecordingInfo | None = None
    server: Server = HONEST_SERVER
    parts: Parts | None = None
    folder: Path = Path()
    title: str = ""

    @property
    def display_name(self) -> str:
        """Title of the run, or its seed."""
        return self.title or f"seed {self.seed}"

    def client_name(self, client: ClientId) -> str:
        """Return the name of a client, or "client" and its number if it has no name."""
        return clean_text(self.names.get(client, f"client {client}"))

    @property
    def names(self) -> Mapping[ClientId, str]:
        """Names of clients, if a recording or the data name them."""
        info = self.recording_info
        return info.names if info else dict(enumerate(self.dataset.client_names))

    @property
    def federation_seed(self) -> int:
        """Seed of the simulated federation."""
        return seed_for(self.seed, "federation")

    def key(self, device_type: str = CPU.type) -> str:
        """Return the key of the run on a type of device; see :func:`run_key`."""
        return run_key(self.study, self.seed, device_type)

    def simulate(
        self,
        engine: Engine = LOCAL,
        device: torch.device = CPU,
        checkpoint: Path | None = None,
    ) -> Iterator[Round]:
        """Simulate the federation and yield its rounds.

        Raises:
            FedauditError: As :func:`fedaudit.fl.simulate.simulate`.
        """
        clients = self.all_clients
        return simulate(
            self.algorithm,
            clients.data,
            rounds=self.study.training.rounds,
            seed=self.federation_seed,
            defenses=clients.defenses,
            server=self.server,
            engine=engine,
            participation=self.study.training.participation,
            checkpoint=checkpoint,
            device=device,
        )

    @property
    def holdout(self) -> HoldOutRule:
        """Rule that decides which samples clients hold out of training."""
        rounds = self.study.training.rounds
        return HoldOutRule(self.defenses, self.algorithm, rounds, self.federation_seed)

    @property
    def membership_attacks(self) -> dict[str, Attack]:
        """Membership inference attacks by name."""
        return {name: attack for name, attack in self.attacks.items() if not attack.infers_source}

    @property
    def source_attacks(self) -> dict[str, Attack]:
        """Source inference attacks by name."""
        return {name: attack for name, attack in self.attacks.items() if attack.infers_source}

    @property
    def ignores_people(self) -> bool:
        """True if the unit of the audit is a sample, but a person has several audited samples."""
        person, audit = self.dataset.person, self.assignment.audit
        if person is None or audit.person is not None:
            return False
        people = person[audit.samples.ids].tolist()
        return len(set(people)) < len(people)

    def extension(self, kind: type[Kind]) -> Kind | None:
        """Return the extension of a class; None if the run has none."""
        return next((e for e in self.extensions if isinstance(e, kind)), None)

    def with_extension(self, extension: "Extension") -> "Setup":
        """Return the run with an extension, which replaces any extension of the same class."""
        other_extensions = tuple(e for e in self.extensions if type(e) is not type(extension))
        return replace(self, extensions=(*other_extensions, extension))

    def without_attacks(self, refused: Mapping[str, str]) -> "Setup":
        """Return the run without some attacks.

        Args:
            refused: Maps the name of each of these attacks to the reason.
        """
        attacks = {name: attack for name, attack in self.attacks.items() if name not in refused}
        return replace(self, attacks=attacks, refused={**self.refused, **refused})

    def cohort(self, index: int) -> tuple[ClientId, ...]:
        """Return the clients that participate in a round, including clients of extensions."""
        added = {client for extension in self.extensions for client in extension.clients}
        clients = sorted({*self.assignment.clients, *added})
        return draw_cohort(clients, self.study.training.participation, self.federation_seed, index)

    def raise_if_several_models(self, name: str) -> None:
        """Raise if clients do not all send an update of the same model, and nothing else.

        Args:
            name: Table of the study that needs such clients.
        """
        is_update = self.algorithm.upload_kind is Update
        if not is_update or isinstance(self.algorithm, ChoosesModels | SendsExtra):
            raise Unsupported(
                f"{format_table(name)} needs clients that all send only an update of the same "
                f"model, but clients of {type(self.algorithm).__name__} do not; use fedavg, or "
                f"remove {format_table(name)}"
            )

    @property
    def all_clients(self) -> Participants:
        """All simulated clients with data and defenses, including clients of extensions."""
        clients = Participants(self.algorithm, dict(self.assignment.clients), dict(self.defenses))
        for extension in self.extensions:
            clients = extension.extend_clients(clients)
        return clients

    @property
    def additional_federations(self) -> "tuple[Setup, ...]":
        """Federations that extensions train, such as shadow and retrained federations."""
        return tuple(run for extension in self.extensions for run in extension.federations)

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Signals that attacks need, without repetition."""
        signals = [signal for attack in self.attacks.values() for signal in attack.signals]
        return tuple({signal.name: signal for signal in signals}.values())


class FitContext(NamedTuple):
    """Functions that :meth:`Extension.fit` can use after the run is measured.

    Attributes:
        measure: Function that returns the measured rounds of an auxiliary federation, and trains
            it if its measurements are not stored. Its arguments are the federation, a description,
            and a function that constructs the federation to train (None to train the first
            argument).
        progress: Callback for progress.
    """

    measure: "Callable[[Setup, str, Callable[[], Setup] | None], list[StoredRound]]"
    progress: Progress = ignore_progress


class MeasuredRun(NamedTuple):
    """A run with its measured rounds.

    Attributes:
        run: The run.
        rounds: Measured rounds, ascending.
    """

    run: Setup
    rounds: Sequence[StoredRound]

    @property
    def key(self) -> str:
        """Key of the run, which is stored in its files."""
        return self.run.key(measuring_device(self.rounds))

    def extension(self, kind: type[Kind]) -> Kind:
        """Return the run's extension of a class, which it must have."""
        extension = self.run.extension(kind)
        assert extension is not None
        return extension

    def load_tensors(self, file: str, shapes: Mapping[str, tuple[int, ...]]) -> Params:
        """Return the tensors that an extension has written to a file of the run's folder.

        Args:
            file: Name of the file.
            shapes: Expected shape of each tensor, by name.

        Raises:
            Damaged: The file is missing, belongs to another run, or has unexpected contents.
        """
        path = self.run.folder / file
        tensors, notes = read_tensors(path) if path.is_file() else ({}, {})
        expected = {name: tensors[name] for name in shapes.keys() & tensors.keys()}
        has_shapes = {name: tuple(value.shape) for name, value in expected.items()} == shapes
        is_finite = all(bool(value.isfinite().all()) for value in expected.values())
        if notes.get("run") != self.key or not has_shapes or not is_finite:
            raise Damaged(
                f"{path} is missing, damaged or from another run; delete {path.parent} and run the "
                "study again"
            )
        return tensors


Scores = Mapping[tuple[int, ClientId, str], Float[ndarray, " samples"]]
"""Scores of audited samples, by seed, target and attack."""


class ExtensionResults(NamedTuple):
    """Estimates and results of controls that extensions of one class add to a study's result."""

    figures: Sequence[Estimate] = ()
    checks: "Sequence[ControlResult]" = ()


class Extension:
    """Base class of extensions, each of which implements an optional table of a study.

    The class methods are called if the study has the extension's table (see
    :func:`fedaudit.extensions.extensions_of`). :meth:`add_to` adds an instance to a run. The
    instance's methods are called while the run is set up, trained, measured and evaluated. In this
    base class, all methods do nothing.
    """

    table: ClassVar[str] = ""
    """Name of the table; empty if another setting enables the extension."""

    @classmethod
    def extend_view(cls, study: Study, view: View) -> View:
        """Return the adversary's view, including what the extension reveals.

        Raises:
            FedauditError: The extension cannot be used in this view.
        """
        return view

    @classmethod
    def configure_attack(cls, study: Study, attack: Attack) -> Attack:
        """Return the attack with the settings that the extension determines."""
        return attack

    @classmethod
    def extra_rounds(cls, study: Study) -> set[int]:
        """Return the rounds that must be measured for the extension."""
        return set()

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run with the extension, if its study has the extension's table.

        Args:
            run: The run with all earlier extensions.
            dataset: The run's data before a shift changes its features.

        Raises:
            FedauditError: The extension cannot be used in the run.
        """
        return run

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Clients that the extension adds to the clients of the assignment."""
        return ()

    @property
    def federations(self) -> tuple[Setup, ...]:
        """Additional federations of the extension."""
        return ()

    def extend_clients(self, clients: Participants) -> Participants:
        """Return all clients, including those that the extension adds or changes."""
        return clients

    def watch(
        self, rounds: Iterator[Round], run: Setup, key: str, progress: Progress
    ) -> Iterator[Round]:
        """Yield the run's rounds unchanged; may write statistics of them to a file.

        The rounds are complete, since the adversary's view is applied later.
        """
        return rounds

    def measure(
        self, run: Setup, round: Round, notes: Mapping[str, str], device: torch.device
    ) -> None:
        """Measure further signals in a measured round."""

    def missing_signals(self, run: Setup) -> list[str]:
        """Return the signals of :meth:`measure` that are missing in the run's folder."""
        return []

    def raise_if_untrainable(self, run: Setup) -> None:
        """Raise, before the run, if the extension could not train its models after the run."""

    def cost(self) -> str:
        """Describe the cost of auxiliary federations; empty if none are trained."""
        return ""

    def is_needed_by(self, attack: Attack) -> bool:
        """Return True if the attack cannot run without the extension."""
        return False

    @property
    def knows_defense(self) -> bool:
        """True if attacks use models that the adversary trained with the audited run's defense."""
        return False

    @property
    def ignores_defense(self) -> bool:
        """True if attacks on defended clients use the adversary's undefended models."""
        return False

    def fit(self, run: Setup, context: FitContext) -> Setup:
        """Measure auxiliary federations, and return the run with attacks that use them.

        Raises:
            FedauditError: A federation cannot be measured, or its measurements cannot be read.
        """
        return run

    @classmethod
    def evaluate(cls, runs: Sequence[MeasuredRun], scores: Scores) -> ExtensionResults:
        """Return estimates and control results over all runs that have the extension."""
        return ExtensionResults()

    def untested(self) -> str:
        """Describe what this extension leaves untested; empty if nothing."""
        return ""


@dataclass(frozen=True)
class Resources:
    """Resources for running a study, which affect at most the last digits of results.

    Attributes:
        engine: Engine that trains clients.
        workers: Number of workers of the measuring engine; without a measuring engine, the number
            of threads that compute gradient signals.
        device: Device for training and measurements.
        progress: Callback for the progress of training, metrics and controls.
        measuring_engine: Engine that measures audited samples; None to measure in this process.
    """

    engine: Engine = LOCAL
    workers: int = 1
    device: torch.device = CPU
    progress: Progress = ignore_progress
    measuring_engine: Engine | None = None
