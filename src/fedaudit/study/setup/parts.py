"""The parts that one run of a study is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch

from fedaudit.attacks.base import Attack
from fedaudit.core.devices import CPU
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Deal
from fedaudit.datasets.draws.shadow import Known
from fedaudit.defenses.base import Defense
from fedaudit.engines.base import Engine
from fedaudit.engines.local import LOCAL
from fedaudit.fl.algorithms.base import HONEST, Algorithm, Server
from fedaudit.fl.visits import TurnContext, cohort_of
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.views import View
from fedaudit.signals.base import Signal
from fedaudit.study.settings.sections import Study
from fedaudit.study.setup.attacker import Attacker
from fedaudit.study.setup.canaries import Canaries
from fedaudit.study.setup.dealing import Groups
from fedaudit.study.setup.holdout import HoldOutRule


class Watched(NamedTuple):
    """The known parts of a federation that was somebody else's.

    Attributes:
        untrained: Signals of all audited samples on untrained models.
        config: What is said of it in place of a study's settings.
        missing: What is not known of it, in sentences for the reader.
        names: Of clients that have one.
    """

    untrained: tuple[MeasuredRound, ...]
    config: Mapping[str, object]
    missing: tuple[str, ...]
    names: Mapping[ClientId, str] = MappingProxyType({})


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
        references: The undefended runs on other data whose models attacks compare with.
        canaries: The canary clients, if there are any; no part of the deal.
        unlearned: What the unlearning trains after this run, if it does.
        retrained: The federation that never had the forgotten samples, if there are such.
        attacker: The malicious client, if one sends poison.
        known: The samples of this run that attacks learn from, if they do so.
        is_shadow: True for such a shadow, of which nothing but its signals is of interest.
        watched: Where the federation was somebody else's, what is known of it.
        server: Who sends clients their models.
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
    references: "tuple[Setup, ...]" = ()
    canaries: Canaries | None = None
    unlearned: "Setup | None" = None
    retrained: "Setup | None" = None
    attacker: Attacker | None = None
    known: Known | None = None
    is_shadow: bool = False
    watched: Watched | None = None
    server: Server = HONEST

    @property
    def holdout(self) -> HoldOutRule:
        """The rule that decides which of their samples clients train on."""
        rounds, seed = self.study.training.rounds, seed_for(self.seed, "federation")
        return HoldOutRule(self.defenses, self.algorithm, rounds, seed)

    @property
    def on_membership(self) -> dict[str, Attack]:
        """The attacks that ask whether a sample was the target's."""
        return {name: attack for name, attack in self.attacks.items() if not attack.infers_source}

    @property
    def on_source(self) -> dict[str, Attack]:
        """The attacks that ask whose a sample was."""
        return {name: attack for name, attack in self.attacks.items() if attack.infers_source}

    def cohort(self, index: int) -> tuple[ClientId, ...]:
        """The clients that are asked in a round, canaries among them."""
        clients = {*self.deal.clients, *(self.canaries.clients if self.canaries else ())}
        share = self.study.training.participation
        return cohort_of(sorted(clients), share, self.holdout.seed, index)

    @property
    def everybody(self) -> TurnContext:
        """All simulated clients with their data and defenses, canaries and poison among them."""
        clients, defenses = dict(self.deal.clients), dict(self.defenses)
        if self.attacker is not None:
            defenses[self.attacker.client] = self.attacker.defense(self.defenses)
        if self.canaries is not None:
            like = next(iter(clients.values()))
            clients |= self.canaries.data(like)
            defenses |= self.canaries.defenses(self.defenses)
        return TurnContext(self.algorithm, clients, defenses)

    @property
    def own_federations(self) -> "tuple[Setup, ...]":
        """The runs beside this one: the adversary's own, and those of unlearning."""
        beside = (self.shadow, *self.references, self.unlearned, self.retrained)
        return tuple(one for one in beside if one is not None)

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Every signal that an attack needs, each once."""
        found = {s.name: s for attack in self.attacks.values() for s in attack.signals}
        return tuple(found.values())


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
