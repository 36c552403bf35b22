"""The table [attacker]: a malicious client, when it poisons what it sends, and with what."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedaudit.attacks.base import Attack
from fedaudit.attacks.rules import Recovery
from fedaudit.core.devices import samples_on
from fedaudit.core.errors import BadInput, NotVisible, Unsupported, setting, table
from fedaudit.core.modules import as_taken
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Batch, ClientId, Samples, Sees, scaled
from fedaudit.datasets.dataset import Dataset
from fedaudit.fl.algorithms.base import TurnContext
from fedaudit.fl.hooks import Chain, Defense, Turn
from fedaudit.observe.round import Update, Upload
from fedaudit.observe.views import PARTICIPANT, View, with_own
from fedaudit.plan.optional import AttackerSection
from fedaudit.plan.parts import Extension, Setup
from fedaudit.plan.sections import Study

_TRAINING_HOOKS = ("prepare", "select", "batches", "batch", "loss", "gradient")
_CLIMBS = 2.0
"""An ascent ends at the loss of a guess among all classes, this often."""


@dataclass(frozen=True)
class PoisonedUpload(Defense):
    """Trains on probed samples in poisoned rounds, to raise the loss on them; honest in others.

    Attributes:
        probes: The probed samples, with the labels that the client trains them on.
        rounds: The poisoned ones.
        ascends_to: The loss up to which the client climbs on each sample; 0 for descent, on labels
            that are wrong.
        strength: Factor of what is sent in these rounds.

    Source: Nasr et al. 2019, active attacks by gradient ascent; Mo et al. 2025 (FedPoisonMIA), for
        wrong labels.
    Differs: The ascent is the client's local training with its steps turned round, not one step at
        a rate of its own, and leaves out samples whose loss is high already, as it would not stay
        finite. FedPoisonMIA's choice of an update that passes for an honest one among others'
        is left out: no aggregation here tells outliers.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update,)

    probes: Samples
    rounds: frozenset[int]
    ascends_to: float = 0.0
    strength: float = 1.0

    def acts_in(self, hook: str) -> bool:
        """False of the loss where there is no ascent."""
        return super().acts_in(hook) and (hook != "loss" or self.ascends_to > 0)

    def select(self, data: Samples, turn: Turn) -> Samples:
        """Each round: the probes in poisoned ones, the client's own samples in others."""
        return samples_on(self.probes, turn.device) if turn.round in self.rounds else data

    def loss(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor:
        """Each step: minus the loss, up to where the ascent ends."""
        if not self.ascends_to or turn.round not in self.rounds:
            return super().loss(outputs, batch, turn)
        losses = turn.received.architecture.loss(outputs, batch.y)
        return -losses.clamp(max=self.ascends_to).mean()

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round: lengthened in poisoned ones."""
        if turn.round not in self.rounds:
            return upload
        return replace(upload, values=scaled(upload.values, self.strength))


@dataclass(frozen=True)
class Attacker(Extension):
    """The malicious client of a run.

    Attributes:
        client: Its number.
        poison: Its doing, before what its own defense does to uploads.
    """

    client: ClientId
    poison: PoisonedUpload

    table: ClassVar[str] = "attacker"

    @classmethod
    def extend_view(cls, study: Study, view: View) -> View:
        """Return the view of a participant who chooses what it sends."""
        return _as_attacker(study, _section(study), view)

    @classmethod
    def configure_attack(cls, study: Study, attack: Attack) -> Attack:
        """Give an attack on poisoned rounds the numbers of these."""
        if not isinstance(attack.rule, Recovery):
            return attack
        given = _section(study)
        rule = replace(attack.rule, first=given.first, every=given.every)
        return replace(attack, rule=rule)

    @classmethod
    def extra_rounds(cls, study: Study) -> set[int]:
        """Return rounds in which the malicious client looks: after each poison, before the next."""
        later = _section(study).every - 1
        return {index + wait for index in poisoned_rounds(study) for wait in (0, later)}

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run with its malicious client, unless that sends no poison."""
        given = _section(run.study)
        if given.kind == "none":
            return run
        return run.with_extension(_attacker(run, given, dataset.classes))

    def extend_clients(self, clients: TurnContext) -> TurnContext:
        """Return all clients, where one sends poisoned updates under its defense."""
        defense = clients.defenses.get(self.client)
        poisoned = self.poison if defense is None else Chain((self.poison, defense))
        return clients._replace(defenses={**clients.defenses, self.client: poisoned})

    def untested(self) -> str:
        """Return a sentence on the federation without its malicious client."""
        return "The federation without its malicious client, whose poison is in its models."


def _section(study: Study) -> AttackerSection:
    """Return the table of a study that has one."""
    assert study.attacker is not None
    return study.attacker


def poisoned_rounds(study: Study) -> tuple[int, ...]:
    """Return the poisoned rounds of a study with a malicious client, ascending.

    The last round of the run comes after the last of them has been recovered from.

    Raises:
        BadInput: There are too few rounds for one.
    """
    given, last = _section(study), study.training.rounds
    found = tuple(range(given.first, last - given.every + 2, given.every))
    if not found:
        raise BadInput(
            f"attacker.first is {given.first} and attacker.every {given.every}, so that the first "
            f"poison would be recovered from in round {given.first + given.every - 1} of {last}; "
            f"raise {setting('training.rounds')}, or lower these"
        )
    return found


def _as_attacker(study: Study, given: AttackerSection, view: View) -> View:
    if view.name != PARTICIPANT:
        raise NotVisible(
            f"a malicious client sees what a participant sees, and audit.view is {view.name!r}; "
            f"use the view {PARTICIPANT!r}"
        )
    rounds, client = poisoned_rounds(study), study.malicious_client
    sends = {
        "none": "trains as it should in all rounds",
        "mislabel": "trains on the audited samples with wrong labels",
        "ascent": "climbs the loss on the audited samples",
    }[given.kind]
    listed = ", ".join(map(str, rounds[:2])) + (f", ... {rounds[-1]}" if len(rounds) > 2 else "")
    when = "" if given.kind == "none" else f" in rounds {listed}, and sends that"
    times = f", at {given.strength:g} times its length" if when and given.strength != 1 else ""
    return replace(
        with_own(view, Sees.CHOOSES_UPLOAD),
        description=f"{view.description}; it is client {client} and {sends}{when}{times}",
    )


def _attacker(run: Setup, given: AttackerSection, classes: int) -> Attacker:
    study, algorithm = run.study, run.algorithm
    run.refuse_several_models("attacker")
    if study.task.name != "classification":
        raise Unsupported(
            f"a malicious client gives samples wrong classes, or climbs to the loss of guessing "
            f"among them, and the task is {study.task.name!r}; use classification"
        )
    client = study.malicious_client
    own = run.defenses.get(client)
    if own is not None and (own.cancels or any(own.acts_in(hook) for hook in _TRAINING_HOOKS)):
        raise Unsupported(
            f"client {client} is malicious, and its defense acts on more than its own upload; name "
            f"the other clients in {setting('defense.clients')}, or use a defense of uploads, such "
            "as client-dp"
        )
    if study.training.participation < 1:
        raise Unsupported(
            f"{setting('training.participation')} is {study.training.participation:g}, and a "
            "malicious client would not take part in each round that it poisons; give 1, or "
            f"leave out {table('attacker')}"
        )
    if study.canaries is not None:
        raise Unsupported(
            "canary clients measure how well honest clients' updates are hidden; leave out "
            f"{table('canaries')} or {table('attacker')}"
        )
    chosen = frozenset(poisoned_rounds(study))
    # As clients' samples are once training begins.
    net = algorithm.nets[0].initial(0)
    probes = run.deal.audit.samples
    probes = probes.replace(features=as_taken(probes.features, net))
    if given.kind == "ascent":
        poison = PoisonedUpload(probes, chosen, _CLIMBS * math.log(classes), given.strength)
    else:
        rng = seeded(run.seed, "wrong labels")
        shift = torch.randint(1, classes, (len(probes),), generator=rng)
        probes = probes.replace(targets=(probes.labels + shift) % classes)
        poison = PoisonedUpload(probes, chosen, strength=given.strength)
    return Attacker(client, poison)
