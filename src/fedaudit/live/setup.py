"""Conversion of a recording to a run, and the attacks that are possible on it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from fedaudit.attacks import ATTACK_SETS, DEFAULT_SET, catalogue_spellings, resolve_attack
from fedaudit.attacks.base import Attack
from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.core.metric_names import Origin
from fedaudit.core.tasks import Task, missing_outputs_message
from fedaudit.core.values import Architecture, Capability, ClientId
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Assignment, AuditSet
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.training.local import LocalTraining
from fedaudit.live.recording import Recording
from fedaudit.observe.views import View, updates_view
from fedaudit.plan.assignment import Groups
from fedaudit.plan.parts import RecordingInfo, Setup
from fedaudit.plan.sections import (
    AuditSection,
    DataSection,
    FiguresSection,
    PartitionSection,
    Study,
    TrainingSection,
)
from fedaudit.results.runs import ALL_CLIENTS as EVERY_CLIENT

SEED = 1
"""Seed of random draws for controls and estimates; the federation's seed is unknown."""

RECORDED = "recorded"
"""Name of the data set and of the draw of a recording."""

_NOT_RECORDED = {
    Capability.REFERENCE_MODELS: "reference models, trained as the federation trains",
    Capability.CHOOSES_UPLOAD: "an adversary that chooses what a client sends",
    Capability.CHOOSES_MODEL: "an adversary that chooses the model that clients are sent",
    Capability.CONTROL_VARIATES: "the clients' control variates",
}
"""Capabilities that the adversary of a recording lacks, unless its view offers them."""


def setup_of_recording(
    recording: Recording,
    audit: AuditSet,
    architecture: Architecture,
    *,
    clients: Sequence[ClientId] = (),
    rounds: tuple[int, ...] = (),
    figures: Mapping[str, object] | None = None,
    attacks: Sequence[str] = (),
    recording_info: RecordingInfo | None = None,
) -> Setup:
    """Return the setup of a run with the settings of a recording, for estimates and controls.

    Nothing is trained: the algorithm of the run only provides the architecture.
    """
    view, task = recording.adversary, architecture.task
    names = tuple(attacks) or recording.attacks
    study = Study(
        name=recording.name,
        seeds=(SEED,),
        data=DataSection(name=RECORDED),
        partition=PartitionSection(clients=max(2, len(clients))),
        training=TrainingSection(rounds=max(rounds, default=1)),
        # The constructor refuses this draw, which is not in the catalogue; model_validate does not.
        audit=AuditSection.model_validate(
            {
                "draw": RECORDED,
                "targets": recording.targets,
                "every": recording.every,
                "view": recording.view,
                "keep": recording.keep,
            }
        ),
        attacks={name: {} for name in names},
        figures=FiguresSection.model_validate(figures or {}),
    )
    _raise_if_targets_without_members(audit, recording.targets)
    run = setup_of_audit(
        study,
        audit,
        architecture,
        view=view,
        attacks={name: _attack_or_raise(name, view, task) for name in names},
        classes=recording.classes,
        clients=clients,
        sizes=recording.sizes,
    )
    return replace(
        run,
        refused={} if attacks else recording.refused,
        measured_rounds=rounds,
        recording_info=recording_info,
    )


def setup_of_audit(
    study: Study,
    audit: AuditSet,
    architecture: Architecture,
    *,
    view: View,
    attacks: Mapping[str, Attack],
    classes: int,
    seed: int = SEED,
    clients: Sequence[ClientId] = (),
    sizes: Mapping[ClientId, int] = MappingProxyType({}),
) -> Setup:
    """Return the setup of a run of which only the settings and the audited samples are known.

    Args:
        study: Settings.
        audit: The audited samples.
        architecture: The clients' architecture, which is only asked for its task.
        view: The adversary's view.
        attacks: Attacks by name.
        classes: Number of outputs of the model.
        seed: Seed of the run.
        clients: All clients; those that own audited samples are added.
        sizes: Number of training samples of each client, if known.
    """
    owners = audit.owner[audit.owner >= 0].tolist()
    samples_of = {
        client: audit.samples.take(torch.from_numpy(audit.owner == client))
        for client in sorted({*clients, *owners})
    }
    return Setup(
        study=study,
        seed=seed,
        dataset=_dataset(classes, audit),
        assignment=Assignment(samples_of, audit, sizes),
        algorithm=FedAvg(architecture, LocalTraining()),
        defenses={},
        view=view,
        attacks=attacks,
        refused={},
        measured_rounds=(),
        groups=Groups((EVERY_CLIENT,), dict.fromkeys(samples_of, 0), audit.owner),
    )


def attacks_in(
    view: View, names: Sequence[str], task: Task
) -> tuple[dict[str, Attack], dict[str, str]]:
    """Return the possible attacks, and for each excluded attack the reason.

    Without ``names``, the attacks of the default set are tried. Otherwise an impossible attack is
    an error.
    """
    view = updates_view(view)
    if names:
        return {name: _attack_or_raise(name, view, task) for name in catalogue_spellings(names)}, {}
    possible, refused = {}, {}
    for name in ATTACK_SETS[DEFAULT_SET]:
        try:
            possible[name] = _attack_or_raise(name, view, task)
        except NotVisible as error:
            refused[name] = str(error)
    return possible, refused


def _raise_if_targets_without_members(audit: AuditSet, targets: Sequence[ClientId]) -> None:
    for target in targets:
        is_member = audit.origin(target) == Origin.MEMBER
        if is_member.all() or not is_member.any():
            raise BadInput(
                f"client {target} cannot be audited: it trains on {int(is_member.sum())} of "
                f"{len(is_member)} audited samples; give samples on which it trains, and others"
            )


def _attack_or_raise(name: str, view: View, task: Task) -> Attack:
    attack = resolve_attack(name)
    needs = attack.needs & ~view.offers
    missing = [text for part, text in _NOT_RECORDED.items() if part in needs]
    if attack.learns or attack.needs_side_information:
        missing = ["a federation to learn from or knowledge of a defense"]
    if missing:
        raise NotVisible(
            f"the attack {name!r} needs {missing[0]}, which a live recording does not have; leave "
            "out the attack, or simulate the federation with `fedaudit run`"
        )
    view.raise_unless_offered(attack.needs & ~Capability.AUXILIARY_DATA, f"the attack {name!r}")
    if attack.needed_outputs & ~task.output_kinds:
        raise NotVisible(
            missing_outputs_message(f"the attack {name!r}", attack.needed_outputs, task)
        )
    return attack


def _dataset(classes: int, audit: AuditSet) -> Dataset:
    """Return members as the training part and held-out samples as the test part."""
    is_held_out = torch.from_numpy(audit.owner < 0)
    train, test = audit.samples.take(~is_held_out), audit.samples.take(is_held_out)
    ids = torch.arange(len(audit))
    return Dataset(
        RECORDED,
        train.replace(ids=ids[: len(train)]),
        test.replace(ids=ids[len(train) :]),
        classes,
        "as recorded in the federation",
    )
