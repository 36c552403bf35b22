"""A live recording as the parts of a run, so that it is attacked like any study's."""

from collections.abc import Mapping, Sequence

import torch

from fedaudit.attacks.base import Attack
from fedaudit.attacks.catalog import ATTACK_SETS, DEFAULT_SET, attack_named
from fedaudit.core import Architecture, ClientId, Samples, Sees
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.datasets.draws.deal import Deal
from fedaudit.errors import BadInput, NotVisible
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.training.local import LocalTraining
from fedaudit.live.recording import Recording
from fedaudit.observe.views import View, view_named
from fedaudit.origin import Origin
from fedaudit.results.clusters import EVERYBODY
from fedaudit.study.config import (
    AuditSection,
    DataSection,
    FiguresSection,
    PartitionSection,
    Study,
    TrainingSection,
)
from fedaudit.study.groups import Groups
from fedaudit.study.parts import Setup, Watched

SEED = 1
"""Of what is drawn for controls and figures; the federation's own is not known."""

RECORDED = "recorded"


def live_setup(
    recording: Recording,
    audit: AuditSet,
    architecture: Architecture,
    *,
    clients: Sequence[ClientId] = (),
    rounds: tuple[int, ...] = (),
    figures: Mapping[str, object] | None = None,
    attacks: Sequence[str] = (),
    watched: Watched | None = None,
) -> Setup:
    """The parts of a run that was watched, with stand-ins for what nobody knows of it.

    Args:
        recording: What it says of itself.
        audit: The audited samples.
        architecture: What clients train; never built where ``watched`` is given.
        clients: That took part, beside the owners of audited samples.
        rounds: That were measured.
        figures: Settings of figures.
        attacks: To be run; those that the recording was made for if empty.
        watched: What is known of the federation, once it has been recorded.

    Raises:
        BadInput: A target of whom no member is audited, or an unknown attack.
        NotVisible: An attack needs more than the view shows.
    """
    view = view_named(recording.view)
    names = tuple(attacks) or recording.attacks
    study = Study(
        name=recording.name,
        seeds=(SEED,),
        data=DataSection(name=RECORDED),
        partition=PartitionSection(clients=max(2, len(clients))),
        training=TrainingSection(rounds=max(rounds, default=1)),
        audit=AuditSection(
            draw=RECORDED,
            targets=recording.targets,
            every=recording.every,
            view=recording.view,
            keep=recording.keep,
        ),
        attacks={name: {} for name in names},
        figures=FiguresSection.model_validate(figures or {}),
    )
    refuse_targets_without_members(audit, recording.targets)
    held = {
        client: audit.samples.take(torch.from_numpy(audit.owner == client))
        for client in sorted({*clients, *audit.owner[audit.owner >= 0].tolist()})
    }
    return Setup(
        study=study,
        seed=SEED,
        dataset=_dataset(recording, audit),
        deal=Deal(held, audit, recording.sizes),
        algorithm=FedAvg(architecture, LocalTraining()),
        defenses={},
        view=view,
        attacks={name: _possible(name, view) for name in names},
        refused=recording.refused if not attacks else {},
        measured_rounds=rounds,
        groups=Groups((EVERYBODY,), dict.fromkeys(held, 0), audit.owner),
        watched=watched,
    )


def attacks_in(view: View, names: Sequence[str]) -> tuple[dict[str, Attack], dict[str, str]]:
    """The attacks that can be recorded for, and why others cannot.

    Args:
        view: What the adversary sees.
        names: Those asked for; those of the default set if empty.

    Raises:
        BadInput: No such attack.
        NotVisible: One that is asked for needs more than the view shows.
    """
    if names:
        return {name: _possible(name, view) for name in names}, {}
    found, refused = {}, {}
    for name in ATTACK_SETS[DEFAULT_SET]:
        try:
            found[name] = _possible(name, view)
        except NotVisible as error:
            refused[name] = str(error)
    return found, refused


def refuse_targets_without_members(audit: AuditSet, targets: Sequence[ClientId]) -> None:
    """Refuses an audit in which nobody could be told from anybody."""
    for target in targets:
        origin = audit.origin(target)
        if not ((origin == Origin.MEMBER).any() and (origin != Origin.MEMBER).any()):
            raise BadInput(
                f"client {target} cannot be audited: {int((origin == Origin.MEMBER).sum())} of "
                f"{len(origin)} audited samples are its own; give some that it trains on and some "
                "that it does not"
            )


def _possible(name: str, view: View) -> Attack:
    attack = attack_named(name)
    if attack.learns or attack.informed:
        raise NotVisible(
            f"the attack {name!r} needs a federation to learn from or knowledge of a defense, "
            "which a live recording has not"
        )
    view.refuse_unless_offered(attack.needs & ~Sees.AUXILIARY_DATA, f"the attack {name!r}")
    return attack


def _dataset(recording: Recording, audit: AuditSet) -> Dataset:
    """Members as the training part and unseen samples as the test part, for accuracies."""
    unseen = torch.from_numpy(audit.owner < 0)
    parts = [audit.samples.take(~unseen), audit.samples.take(unseen)]
    numbers = torch.arange(len(audit))
    first = len(parts[0])
    train, test = (
        Samples(part.features, part.labels, ids)
        for part, ids in zip(parts, (numbers[:first], numbers[first:]), strict=True)
    )
    return Dataset(RECORDED, train, test, recording.classes, "as the federation has it")
