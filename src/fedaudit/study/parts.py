"""The parts that one run of a study is made of."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedaudit.attacks.base import Attack
from fedaudit.core import ClientId
from fedaudit.data.dataset import Dataset
from fedaudit.data.deal import Deal
from fedaudit.data.shadow import Known
from fedaudit.defenses.base import Defense
from fedaudit.fl.algorithm import Algorithm
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.views import View
from fedaudit.seeds import seed_for
from fedaudit.signals.base import Signal
from fedaudit.study.config import Study
from fedaudit.study.groups import Groups
from fedaudit.study.holdout import Trainers


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
        shadow: The undefended run on other data that attacks learn from, if they do so.
        known: The samples of this run that attacks learn from, if they do so.
        teaches: Whether it is such a shadow, of which nothing but its signals is of interest.
        untrained: Signals of all audited samples on models that nobody trained, where they were
            measured before; else they are measured when they are needed.
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
    shadow: "Setup | None" = None
    known: Known | None = None
    teaches: bool = False
    untrained: tuple[MeasuredRound, ...] = ()

    @property
    def watched(self) -> bool:
        """Whether this federation was somebody else's, of which only measurements are there."""
        return bool(self.untrained)

    @property
    def trainers(self) -> Trainers:
        """What decides which of their samples clients train on."""
        rounds, seed = self.study.training.rounds, seed_for(self.seed, "federation")
        return Trainers(self.defenses, self.algorithm, rounds, seed)

    @property
    def on_membership(self) -> dict[str, Attack]:
        """The attacks that ask whether a sample was the target's."""
        return {name: attack for name, attack in self.attacks.items() if not attack.infers_source}

    @property
    def on_source(self) -> dict[str, Attack]:
        """The attacks that ask whose a sample was."""
        return {name: attack for name, attack in self.attacks.items() if attack.infers_source}

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Every signal that an attack needs, each once."""
        found = {s.name: s for attack in self.attacks.values() for s in attack.signals}
        return tuple(found.values())
