"""The parts that one run of a study is made of."""

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
from fedaudit.core.errors import Damaged, Unsupported
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.seeds import seed_for
from fedaudit.core.tasks import Task
from fedaudit.core.values import ClientId, Params, short_repr
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Deal
from fedaudit.datasets.partitions.schemes import Partition
from fedaudit.engines.base import Engine
from fedaudit.engines.local import LOCAL
from fedaudit.fl.algorithms.base import (
    HONEST,
    Algorithm,
    ChoosesModels,
    Server,
    TurnContext,
    draw_cohort,
)
from fedaudit.fl.hooks import Defense
from fedaudit.fl.simulate import simulate
from fedaudit.metrics.table import Exact, Metric
from fedaudit.observe.measurements import MeasuredRound, Stored
from fedaudit.observe.round import Round, Update
from fedaudit.observe.tensors import read_tensors
from fedaudit.observe.views import View
from fedaudit.plan.dealing import Groups, HoldOutRule
from fedaudit.plan.identity import run_key
from fedaudit.plan.sections import Study
from fedaudit.results.coverage import Coverage
from fedaudit.results.estimate import Estimate
from fedaudit.results.text import plain
from fedaudit.signals.base import Signal

if TYPE_CHECKING:
    from fedaudit.results.record import ControlResult

Kind = TypeVar("Kind", bound="Extension")


class Recorded(NamedTuple):
    """What is known of a recorded federation in place of how it trains.

    Attributes:
        untrained: Signals of all audited samples on untrained models.
        config: Settings of the recording, for its record.
        missing: What is not known of the federation, in sentences for the reader.
        names: Of clients that have one.
        coverage: Which rounds and uploads were measured.
    """

    untrained: tuple[MeasuredRound, ...]
    config: Mapping[str, object]
    missing: tuple[str, ...]
    names: Mapping[ClientId, str] = MappingProxyType({})
    coverage: Coverage | None = None


@short_repr
@dataclass(frozen=True)
class Parts:
    """Parts that a study names, looked up once, with everything refused that needs no data.

    Attributes:
        study: The settings, with those that follow from others: digests of custom code, and the
            number of samples for source inference.
        task: What models are trained for.
        partition: How training samples are dealt to clients.
        make_algorithm: Constructs the algorithm once there are data.
        defenses: One instance for each defended client; training works on copies.
        server: Who sends clients their models.
        view: What the adversary sees of an algorithm that averages parameters.
        attacks: Attacks that the study names, or those of its set, whatever the view offers.
        metrics: Further metrics by name.
        measured_rounds: Rounds to be measured, ascending.
        extensions: What its optional tables add to a run, in this order.
    """

    study: Study
    task: Task
    partition: Partition
    make_algorithm: Callable[..., Algorithm]
    defenses: Mapping[ClientId, Defense]
    server: Server
    view: View
    attacks: Mapping[str, Attack]
    metrics: Mapping[str, Exact | Metric]
    measured_rounds: tuple[int, ...]
    extensions: "tuple[type[Extension], ...]"


@short_repr
@dataclass(frozen=True)
class Setup:
    """The parts of one run of a study.

    Attributes:
        study: The settings.
        seed: Root seed of this run.
        dataset: Where samples come from.
        deal: Who trains on what, and what is audited.
        algorithm: How the federation learns.
        defenses: One instance for each defended client.
        view: What the adversary sees.
        attacks: Those that the view allows, on membership and on sources.
        refused: For each other attack, what is missing.
        measured_rounds: Rounds to be measured, ascending.
        groups: Which clients are alike, and whose data each sample is like.
        extensions: What the study's optional tables add.
        is_shadow: True for a federation beside the audited one, of which nothing but its signals is
            of interest.
        recorded: Facts of a federation that was recorded; None of one that is simulated.
        server: Who sends clients their models.
        parts: What the study names; None for a recorded federation, of which no study is known.
        title: What a refusal calls a federation beside the audited one, whose seed no study names;
            empty for the audited one.
    """

    study: Study
    seed: int
    dataset: Dataset
    deal: Deal
    algorithm: Algorithm
    defenses: Mapping[ClientId, Defense]
    view: View
    attacks: Mapping[str, Attack]
    refused: Mapping[str, str]
    measured_rounds: tuple[int, ...]
    groups: Groups
    extensions: "tuple[Extension, ...]" = ()
    is_shadow: bool = False
    recorded: Recorded | None = None
    server: Server = HONEST
    parts: Parts | None = None
    title: str = ""

    @property
    def named_for_people(self) -> str:
        """The run in words: its title, or its seed."""
        return self.title or f"seed {self.seed}"

    def called(self, client: ClientId) -> str:
        """The name of a client that has one, else "client" and its number."""
        return plain(self.names.get(client, f"client {client}"))

    @property
    def names(self) -> Mapping[ClientId, str]:
        """Names of clients that have one, as in recordings."""
        return self.recorded.names if self.recorded else {}

    @property
    def federation_seed(self) -> int:
        """The seed that the federation is simulated with."""
        return seed_for(self.seed, "federation")

    def key(self, kind: str = CPU.type) -> str:
        """Return the name of the run by all that makes it, on a kind of device."""
        return run_key(self.study, self.seed, kind)

    def simulated(
        self,
        engine: Engine = LOCAL,
        device: torch.device = CPU,
        checkpoint: Path | None = None,
    ) -> Iterator[Round]:
        """Return the rounds of the federation.

        Args:
            engine: Where clients train.
            device: Where models are trained.
            checkpoint: File of the state from which a stopped run continues.

        Raises:
            FedauditError: As :func:`fedaudit.fl.simulate.simulate`.
        """
        everybody = self.everybody
        return simulate(
            self.algorithm,
            everybody.data,
            rounds=self.study.training.rounds,
            seed=self.federation_seed,
            defenses=everybody.defenses,
            server=self.server,
            engine=engine,
            participation=self.study.training.participation,
            checkpoint=checkpoint,
            device=device,
        )

    @property
    def holdout(self) -> HoldOutRule:
        """The rule that decides which of their samples clients train on."""
        rounds = self.study.training.rounds
        return HoldOutRule(self.defenses, self.algorithm, rounds, self.federation_seed)

    @property
    def on_membership(self) -> dict[str, Attack]:
        """The attacks that ask whether a sample was the target's."""
        return {name: attack for name, attack in self.attacks.items() if not attack.infers_source}

    @property
    def on_source(self) -> dict[str, Attack]:
        """The attacks that ask whose a sample was."""
        return {name: attack for name, attack in self.attacks.items() if attack.infers_source}

    @property
    def ignores_people(self) -> bool:
        """True if data say of which person each sample is, and several of one are audited one by
        one."""
        known, audit = self.dataset.subject, self.deal.audit
        if known is None or audit.subject is not None:
            return False
        people = known[audit.samples.ids].tolist()
        return len(set(people)) < len(people)

    def extension(self, kind: type[Kind]) -> Kind | None:
        """The extension of a kind; None where its table asks for none."""
        return next((one for one in self.extensions if isinstance(one, kind)), None)

    def extended(self, one: "Extension") -> "Setup":
        """The run with one more extension, in the place of an earlier one of its kind."""
        others = tuple(given for given in self.extensions if type(given) is not type(one))
        return replace(self, extensions=(*others, one))

    def without_attacks(self, refused: Mapping[str, str]) -> "Setup":
        """The run without some attacks, by name with the reason for each."""
        attacks = {name: attack for name, attack in self.attacks.items() if name not in refused}
        return replace(self, attacks=attacks, refused={**self.refused, **refused})

    def cohort(self, index: int) -> tuple[ClientId, ...]:
        """The clients that are asked in a round, those of extensions among them."""
        more = (client for one in self.extensions for client in one.clients)
        share = self.study.training.participation
        return draw_cohort(sorted({*self.deal.clients, *more}), share, self.holdout.seed, index)

    def refuse_several_models(self, table: str) -> None:
        """Raise if clients send anything but an update of the one model that all train.

        Args:
            table: The optional table that needs it.

        Raises:
            Unsupported: They do, and the table cannot be used.
        """
        if self.algorithm.upload_kind is not Update or isinstance(self.algorithm, ChoosesModels):
            raise Unsupported(
                f"[{table}] takes clients that send an update of the one model that all train, and "
                f"{type(self.algorithm).__name__} has no such; use fedavg, or leave [{table}] out"
            )

    @property
    def everybody(self) -> TurnContext:
        """All simulated clients with their data and defenses, those of extensions among them."""
        found = TurnContext(self.algorithm, dict(self.deal.clients), dict(self.defenses))
        for one in self.extensions:
            found = one.joined(found)
        return found

    @property
    def own_federations(self) -> "tuple[Setup, ...]":
        """The runs beside this one: the adversary's own, and those of unlearning."""
        return tuple(one for each in self.extensions for one in each.federations)

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Every signal that an attack needs, each once."""
        found = {s.name: s for attack in self.attacks.values() for s in attack.signals}
        return tuple(found.values())


class Means(NamedTuple):
    """Means of an extension once its run is measured.

    Attributes:
        folder: The run's.
        measured: Gives the measured rounds of a federation beside the run, which it trains if need
            be; told what that federation is, and what to do before it is trained.
        progress: Called as the work goes on.
    """

    folder: Path
    measured: "Callable[[Setup, str, Callable[[], Setup] | None], list[Stored]]"
    progress: Progress = quiet


class MeasuredRun(NamedTuple):
    """A run with its measured rounds.

    Attributes:
        run: The run.
        rounds: Ascending.
        place: Its folder.
        key: Names it in its files.
    """

    run: Setup
    rounds: Sequence[Stored]
    place: Path
    key: str

    def extension(self, kind: type[Kind]) -> Kind:
        """The run's extension of a kind, which it has."""
        found = self.run.extension(kind)
        assert found is not None
        return found

    def left(self, file: str, shapes: Mapping[str, tuple[int, ...]]) -> Params:
        """The tensors that an extension has left in a file of the run's folder.

        Args:
            file: Its name.
            shapes: Of the tensors that must be there.

        Raises:
            Damaged: The file is not there, is another run's, or holds something else.
        """
        path = self.place / file
        tensors, notes = read_tensors(path) if path.is_file() else ({}, {})
        there = {name: tuple(tensors[name].shape) for name in shapes.keys() & tensors.keys()}
        finite = all(bool(tensors[name].isfinite().all()) for name in there)
        if notes.get("run") != self.key or there != shapes or not finite:
            raise Damaged(
                f"{path} is not what this run left; delete {self.place} and run the study again"
            )
        return tensors


Scores = Mapping[tuple[int, ClientId, str], Float[ndarray, " samples"]]
"""Attacks' scores of audited samples, by seed, target and attack."""


class Conclusion(NamedTuple):
    """Figures and controls that extensions of one kind add to a study's record."""

    figures: Sequence[Estimate] = ()
    checks: "Sequence[ControlResult]" = ()


class Extension:
    """An extension of a run, which an optional table of its study asks for.

    Class methods are called for the studies that ask for it
    (:func:`fedaudit.extensions.extensions_of`). What :meth:`added` gives a run is asked through
    methods, from the first round to the record.
    """

    table: ClassVar[str] = ""
    """The table's name in a study; empty where another setting asks for it."""

    @classmethod
    def seen(cls, study: Study, view: View) -> View:
        """The adversary's view, with what it has besides.

        Raises:
            FedauditError: The extension is none of this view.
        """
        return view

    @classmethod
    def informed(cls, study: Study, attack: Attack) -> Attack:
        """An attack that is named in a study, told of what it must know of the extension."""
        return attack

    @classmethod
    def measured_in(cls, study: Study) -> set[int]:
        """Further rounds in which the adversary has to look."""
        return set()

    @classmethod
    def added(cls, run: Setup, dataset: Dataset) -> Setup:
        """The run with the extension, if its study asks for it.

        Args:
            run: With the extensions before this one.
            dataset: Its data as they are without a shift.

        Raises:
            FedauditError: The extension and the run do not fit.
        """
        return run

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Clients beside those of the deal."""
        return ()

    @property
    def federations(self) -> tuple[Setup, ...]:
        """Runs beside this one."""
        return ()

    def joined(self, everybody: TurnContext) -> TurnContext:
        """All clients, with the extension's among them or in their place."""
        return everybody

    def watching(
        self, rounds: Iterator[Round], run: Setup, folder: Path, key: str, progress: Progress
    ) -> Iterator[Round]:
        """The rounds as others see them, before any view; what is kept goes into a file.

        Args:
            rounds: As they were.
            run: That they are of.
            folder: Its own.
            key: Names it.
            progress: Called as the work goes on.
        """
        return rounds

    def measure(
        self, run: Setup, round: Round, folder: Path, notes: Mapping[str, str], device: torch.device
    ) -> None:
        """Measures more in a measured round.

        Args:
            run: That the round is of.
            round: As the adversary sees it.
            folder: The run's.
            notes: Of the round; they name the run.
            device: Where models are run.
        """

    def unmeasured(self, run: Setup, folder: Path) -> list[str]:
        """Return names of signals that :meth:`measure` would have left in a measured run's folder.

        Args:
            run: The run.
            folder: Its folder.
        """
        return []

    def refuse_untrainable(self, run: Setup) -> None:
        """Raise if what the extension trains after the run cannot be trained.

        Raises:
            BadInput: A model cannot take a step on its samples.
        """

    def cost(self) -> str:
        """A sentence on what the federations beside a run cost; empty for nothing."""
        return ""

    def serves(self, attack: Attack) -> bool:
        """True if the attack cannot do without the extension."""
        return False

    @property
    def knows_defense(self) -> bool:
        """True if attacks use models that the adversary trained with the audited defense."""
        return False

    @property
    def ignores_defense(self) -> bool:
        """True if attacks on defended clients use undefended models of the adversary's."""
        return False

    def fitted(self, run: Setup, means: Means) -> Setup:
        """The measured run with attacks and extension as they are once theirs is measured too.

        Raises:
            FedauditError: That cannot be measured, or not be read any more.
        """
        return run

    @classmethod
    def concluded(cls, found: Sequence[MeasuredRun], scores: Scores) -> Conclusion:
        """Figures and controls of the runs of one study that have the extension.

        Args:
            found: These runs.
            scores: Of their attacks on membership.
        """
        return Conclusion()

    def untested(self) -> str:
        """A sentence on what was not tested because of the extension; empty for nothing."""
        return ""


@dataclass(frozen=True)
class Work:
    """Means of the work; they change no result, but for the last digits on another device.

    Attributes:
        engine: Where clients train.
        workers: Threads for the gradient signals, or what the measuring engine has workers.
        device: Where clients train and samples are measured.
        progress: Called as training, figures and controls go on.
        measuring: Where audited samples are measured; None for this process.
    """

    engine: Engine = LOCAL
    workers: int = 1
    device: torch.device = CPU
    progress: Progress = quiet
    measuring: Engine | None = None
