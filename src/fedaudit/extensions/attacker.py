"""Malicious client that sends poisoned updates in some rounds.

The table [attacker] of a study file configures it.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedaudit.attacks.base import Attack
from fedaudit.attacks.rules import Recovery
from fedaudit.core.devices import samples_on
from fedaudit.core.errors import BadInput, NotVisible, Unsupported, format_setting, format_table
from fedaudit.core.modules import in_model_dtype
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Batch, Capability, ClientId, Samples, scaled
from fedaudit.datasets.dataset import Dataset
from fedaudit.fl.algorithms.base import Participants
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import TRAINING_HOOKS, Defense, TrainingContext
from fedaudit.observe.round import Update, Upload
from fedaudit.observe.views import PARTICIPANT, View, with_resources
from fedaudit.plan.optional import AttackerSection
from fedaudit.plan.parts import Extension, Setup
from fedaudit.plan.sections import Study

_ASCENT_LIMIT = 2.0
"""Loss at which gradient ascent ends, as a multiple of the loss of uniform guessing."""


@dataclass(frozen=True)
class PoisonedUpload(Defense):
    """Poisoned updates of a malicious client, which raise the loss of audited samples.

    The client sends them in some rounds. In the other rounds, it trains honestly.

    Attributes:
        probes: Audited samples, with the labels on which the client trains.
        rounds: Poisoned rounds.
        max_loss: For gradient ascent, the loss at which the ascent stops for a sample; 0 to train
            on wrong labels instead.
        strength: Factor by which poisoned updates are multiplied.

    Source: Nasr et al. 2019, active attacks by gradient ascent; Mo et al. 2025 (FedPoisonMIA), for
        wrong labels.
    Differs: The ascent is the client's local training with the opposite sign, instead of one step
        with a separate learning rate. It leaves out samples with a high loss, so that the loss
        stays finite. FedPoisonMIA also chooses updates that resemble honest ones. This is not
        implemented here, since no aggregation rule in fedaudit rejects outliers.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update,)

    probes: Samples
    rounds: frozenset[int]
    max_loss: float = 0.0
    strength: float = 1.0

    def acts_in(self, hook: str) -> bool:
        """Return True if the defense uses a hook; it uses "loss" only for gradient ascent."""
        return super().acts_in(hook) and (hook != "loss" or self.max_loss > 0)

    def select(self, data: Samples, context: TrainingContext) -> Samples:
        """Return the probes in poisoned rounds, and otherwise the client's samples."""
        return samples_on(self.probes, context.device) if context.round in self.rounds else data

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        """Return the negative loss in poisoned rounds, to train by gradient ascent."""
        if not self.max_loss or context.round not in self.rounds:
            return super().loss(outputs, batch, context)
        losses = context.received.architecture.loss(outputs, batch.y)
        return -losses.clamp(max=self.max_loss).mean()

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        """Return the update, multiplied by the strength in poisoned rounds."""
        if context.round not in self.rounds:
            return upload
        return replace(upload, values=scaled(upload.values, self.strength))


@dataclass(frozen=True)
class Attacker(Extension):
    """The malicious client of a run.

    Attributes:
        client: Number of the client.
        poison: Its poisoned training, which is applied before its defense.
    """

    client: ClientId
    poison: PoisonedUpload

    table: ClassVar[str] = "attacker"

    @classmethod
    def extend_view(cls, study: Study, view: View) -> View:
        """Return the view of a participant that chooses its upload."""
        return _as_attacker(study, _section(study), view)

    @classmethod
    def configure_attack(cls, study: Study, attack: Attack) -> Attack:
        """Return the attack, with the schedule of poisoned rounds if its rule uses them."""
        if not isinstance(attack.rule, Recovery):
            return attack
        section = _section(study)
        rule = replace(attack.rule, first=section.first, every=section.every)
        return replace(attack, rule=rule)

    @classmethod
    def extra_rounds(cls, study: Study) -> set[int]:
        """Return each poisoned round, and the last honest round before the next poisoned one."""
        last_honest = _section(study).every - 1
        return {index + offset for index in poisoned_rounds(study) for offset in (0, last_honest)}

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        """Return the run with its malicious client, unless it sends no poisoned updates."""
        section = _section(run.study)
        if section.kind == "none":
            return run
        return run.with_extension(_create_attacker(run, section, dataset.classes))

    def extend_clients(self, clients: Participants) -> Participants:
        """Return all clients; the malicious client sends poisoned updates."""
        defense = clients.defenses.get(self.client)
        poisoned = self.poison if defense is None else Chain((self.poison, defense))
        return clients._replace(defenses={**clients.defenses, self.client: poisoned})

    def untested(self) -> str:
        return "The federation without its malicious client, which has poisoned its models."


def _section(study: Study) -> AttackerSection:
    assert study.attacker is not None
    return study.attacker


def poisoned_rounds(study: Study) -> tuple[int, ...]:
    """Return the poisoned rounds of a study with a malicious client, in ascending order.

    Each poisoned round is followed by ``every - 1`` honest rounds before training ends.

    Raises:
        BadInput: There are too few rounds for one poisoned round.
    """
    section, training_rounds = _section(study), study.training.rounds
    # An attack compares each poisoned round with the honest rounds after it.
    rounds = tuple(range(section.first, training_rounds - section.every + 2, section.every))
    if not rounds:
        needed = section.first + section.every - 1
        raise BadInput(
            f"with attacker.first = {section.first} and attacker.every = {section.every}, a "
            f"malicious client needs {needed} rounds, but training has {training_rounds}; set "
            f"{format_setting('training.rounds')} to {needed} or more"
        )
    return rounds


def _as_attacker(study: Study, section: AttackerSection, view: View) -> View:
    if view.name != PARTICIPANT:
        raise NotVisible(
            f"a malicious client sees what a participant sees, but audit.view is {view.name!r}; "
            f"set it to {PARTICIPANT!r}"
        )
    rounds = poisoned_rounds(study)  # Raises for too few rounds.
    action = {
        "none": "trains honestly in all rounds",
        "mislabel": "trains on the audited samples with wrong labels",
        "ascent": "maximises the loss on the audited samples",
    }[section.kind]
    if section.kind != "none":
        round_list = ", ".join(map(str, rounds[:2]))
        if len(rounds) > 2:
            round_list += f", ... {rounds[-1]}"
        action += f" in rounds {round_list}, and sends the update"
        if section.strength != 1:
            action += f" times {section.strength:g}"
    return replace(
        with_resources(view, Capability.CHOOSES_UPLOAD),
        description=f"{view.description}; it is client {study.malicious_client} and {action}",
    )


def _create_attacker(run: Setup, section: AttackerSection, classes: int) -> Attacker:
    study = run.study
    run.raise_if_several_models("attacker")
    if study.task.name != "classification":
        raise Unsupported(
            f"a malicious client needs a task with classes, but the task is {study.task.name!r}; "
            f"use classification, or leave out {format_table('attacker')}"
        )
    client = study.malicious_client
    defense = run.defenses.get(client)
    if defense is not None and (
        defense.cancels or any(defense.acts_in(hook) for hook in TRAINING_HOOKS)
    ):
        raise Unsupported(
            f"client {client} is the malicious client, whose training cannot also be changed by a "
            f"defense; list only the other clients in {format_setting('defense.clients')}, or use "
            "a defense that only changes updates, such as client-dp"
        )
    if study.training.participation < 1:
        raise Unsupported(
            f"{format_setting('training.participation')} is {study.training.participation:g}, but "
            "a malicious client must participate in each round that it poisons; set it to 1, or "
            f"leave out {format_table('attacker')}"
        )
    if study.canaries is not None:
        raise Unsupported(
            f"{format_table('canaries')} measures how well honest clients' updates are hidden, but "
            f"{format_table('attacker')} makes a client malicious; leave out one of the two tables"
        )
    # Training hooks receive samples in the model's data type, so convert the probes to it.
    samples = run.assignment.audit.samples
    net = run.algorithm.nets[0].initial(0)
    probes = samples.replace(features=in_model_dtype(samples.features, net))
    max_loss = 0.0
    if section.kind == "ascent":
        max_loss = _ASCENT_LIMIT * math.log(classes)
    else:
        # A nonzero shift modulo the number of classes never gives the true label.
        rng = seeded(run.seed, "wrong labels")
        shift = torch.randint(1, classes, (len(probes),), generator=rng)
        probes = probes.replace(targets=(probes.labels + shift) % classes)
    rounds = frozenset(poisoned_rounds(study))
    return Attacker(client, PoisonedUpload(probes, rounds, max_loss, section.strength))
