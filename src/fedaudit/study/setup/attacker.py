"""The malicious client of a study: who it is, when it poisons what it sends, and with what."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from fedaudit.core.errors import BadInput, NotVisible, Unsupported
from fedaudit.core.modules import as_taken
from fedaudit.core.seeds import seeded
from fedaudit.core.values import ClientId, Samples, Sees
from fedaudit.defenses.base import Defense
from fedaudit.defenses.chain import Chain
from fedaudit.defenses.poison import PoisonedUpload
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.observe.round import Update
from fedaudit.observe.views import PARTICIPANT, View, with_own
from fedaudit.study.settings.sections import AttackerSection, Study

_TRAINING_HOOKS = ("prepare", "select", "batches", "batch", "loss", "gradient")
_CLIMBS = 2.0
"""An ascent ends at the loss of a guess among all classes, this often."""


class Attacker(NamedTuple):
    """The malicious client of a run.

    Attributes:
        client: Its number.
        poison: Its doing, before what its own defense does to uploads.
    """

    client: ClientId
    poison: PoisonedUpload

    def defense(self, others: Mapping[ClientId, Defense]) -> Defense:
        """The client's: its poison, with the upload treated like any other of its."""
        own = others.get(self.client)
        return self.poison if own is None else Chain((self.poison, own))


def poisoned_rounds(study: Study) -> tuple[int, ...]:
    """The poisoned rounds of a study with a malicious client, ascending.

    The last round of the run comes after the last of them has been recovered from.

    Raises:
        BadInput: There are too few rounds for one.
    """
    given, last = _given(study), study.training.rounds
    found = tuple(range(given.first, last - given.every + 2, given.every))
    if not found:
        raise BadInput(
            f"attacker.first is {given.first} and attacker.every {given.every}, so that the first "
            f"poison would be recovered from in round {given.first + given.every - 1} of {last}; "
            "raise training.rounds, or lower these"
        )
    return found


def measured_for(study: Study) -> set[int]:
    """Rounds in which the malicious client has to look: after each poison, and before the next."""
    if study.attacker is None:
        return set()
    later = study.attacker.every - 1
    return {index + wait for index in poisoned_rounds(study) for wait in (0, later)}


def as_attacker(study: Study, view: View) -> View:
    """The view of a participant who chooses what it sends.

    Raises:
        NotVisible: The view is another's.
        BadInput: The client is audited, or there is no such.
    """
    if view.name != PARTICIPANT:
        raise NotVisible(
            f"a malicious client sees what a participant sees, and audit.view is {view.name!r}; "
            f"use the view {PARTICIPANT!r}"
        )
    given, client = _given(study), malicious_client(study)
    rounds = poisoned_rounds(study)
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


def attacker_of(
    study: Study,
    seed: int,
    probes: Samples,
    classes: int,
    algorithm: Algorithm,
    defenses: Mapping[ClientId, Defense],
) -> Attacker | None:
    """The malicious client that a study asks for; None where it sends no poison.

    Args:
        study: Its settings.
        seed: Of the run.
        probes: The audited samples.
        classes: How many there are.
        algorithm: It averages updates of one model.
        defenses: Of all clients.

    Raises:
        Unsupported: An algorithm, task, defense, participation or canary clients under which the
            poison would not be what is said of it.
    """
    given = study.attacker
    if given is None or given.kind == "none":
        return None
    if algorithm.upload_kind is not Update:
        raise Unsupported(
            "a malicious client poisons an update of the one model that all train, and "
            f"{study.algorithm.name} has no such; use fedavg, or leave [attacker] out"
        )
    if study.task.name != "classification":
        raise Unsupported(
            f"a malicious client gives samples wrong classes, or climbs to the loss of guessing "
            f"among them, and the task is {study.task.name!r}; use classification"
        )
    client = malicious_client(study)
    own = defenses.get(client)
    if own is not None and (own.cancels or any(own.acts_in(hook) for hook in _TRAINING_HOOKS)):
        raise Unsupported(
            f"client {client} is malicious, and its defense acts on more than its own upload; name "
            "the other clients in defense.clients, or use a defense of uploads, such as client-dp"
        )
    if study.training.participation < 1:
        raise Unsupported(
            f"training.participation is {study.training.participation:g}, and a malicious client "
            "would not be asked in each round that it is to poison; give 1, or leave [attacker] out"
        )
    if study.canaries is not None:
        raise Unsupported(
            "canary clients tell how well honest clients' updates are hidden; leave out [canaries] "
            "or [attacker]"
        )
    chosen = frozenset(poisoned_rounds(study))
    # As clients' samples are once training begins.
    net = algorithm.nets[0].initial(0)
    probes = probes.replace(features=as_taken(probes.features, net))
    if given.kind == "ascent":
        return Attacker(
            client,
            PoisonedUpload(probes, chosen, _CLIMBS * math.log(classes), given.strength),
        )
    rng = seeded(seed, "wrong labels")
    wrong = (probes.labels + torch.randint(1, classes, (len(probes),), generator=rng)) % classes
    return Attacker(
        client, PoisonedUpload(probes.replace(targets=wrong), chosen, strength=given.strength)
    )


def _given(study: Study) -> AttackerSection:
    assert study.attacker is not None
    return study.attacker


def malicious_client(study: Study) -> ClientId:
    """The number of the malicious client.

    Raises:
        BadInput: It is audited, or there is no such.
    """
    free = [c for c in range(study.partition.clients) if c not in study.audit.targets]
    asked = _given(study).client
    client = max(free, default=-1) if asked is None else asked
    if client not in free:
        raise BadInput(
            f"attacker.client is {asked}, and has to be one of the {study.partition.clients} "
            "clients that is not audited; give another, or audit fewer clients"
        )
    return client
