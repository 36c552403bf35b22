"""Privacy set-ups of studies and of finished records, and lower bounds that records measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import LOWER_BOUNDS
from fedaudit.fl.accounting import FORMAL_DELTA
from fedaudit.plan.values import study_from
from fedaudit.privacy_budget.setup import Unit
from fedaudit.results.record import RECORDER_SETTINGS, Record

if TYPE_CHECKING:
    # The settings of studies import torch, which a set-up does not need.
    from fedaudit.plan.optional import Group
    from fedaudit.plan.sections import Study

CLIENT_DP, DP_SGD = "client-dp", "dp-sgd"

_LOCAL_EPOCHS = ("fedavg", "fedprox", "fedadam", "ifca")
"""Algorithms whose clients train for the epochs of the study in each round."""

_SET_UP = "write the settings of the mechanism into a privacy set-up"


@dataclass(frozen=True)
class MeasuredBound:
    """Lower bound on epsilon that a record measured.

    Attributes:
        unit: What the attack detected: "sample", "person" or "client".
        metric: Name of the figure in the record.
        value: The largest bound of this figure in the record.
        method: How it was computed, with delta and confidence.
    """

    unit: Unit
    metric: str
    value: float
    method: str


def measured_bounds(record: Record) -> tuple[MeasuredBound, ...]:
    """Return the largest lower bound of each kind in a record."""
    largest = dict[tuple[str, str], MeasuredBound]()
    for figure in record.estimates:
        if figure.metric not in LOWER_BOUNDS or figure.value is None:
            continue
        is_sample = figure.metric.startswith("epsilon")
        unit: Unit = figure.unit if is_sample else "client"
        bound = MeasuredBound(unit, figure.metric, figure.value, figure.method)
        key = (unit, figure.metric)
        if key not in largest or largest[key].value < bound.value:
            largest[key] = bound
    return tuple(largest[key] for key in sorted(largest))


def setup_of_record(record: Record) -> dict[str, object]:
    """Return the privacy set-up of the study that a record is of.

    Raises:
        BadInput: The record is not of a study, or its study has no mechanism to account for.
    """
    if record.points or set(record.config) <= RECORDER_SETTINGS:
        raise BadInput(
            f"the record {record.name!r} does not state how its clients trained; {_SET_UP}, and "
            "give this record as the measured one"
        )
    config = {name: value for name, value in record.config.items() if name != "code"}
    study = study_from(config, source=f"the study of the record {record.name!r}")
    sizes = {row.client: row.samples for row in record.clients}
    fewest = record.other_clients.fewest if record.other_clients is not None else None
    return setup_of_study(study, sizes, fewest=fewest)


def setup_of_study(
    study: "Study", sizes: Mapping[int, int], *, fewest: int | None = None
) -> dict[str, object]:
    """Return the settings of a privacy set-up for the audited clients of a study.

    Args:
        study: The study.
        sizes: Number of samples of each client.
        fewest: Smallest number of samples of clients that ``sizes`` leaves out.

    Raises:
        BadInput: The audited clients have no mechanism, or one whose epsilon is not composed over
            rounds.
    """
    group = _audited_group(study)
    mechanisms = [part for part in group.parts if part.name in (CLIENT_DP, DP_SGD)]
    if len(mechanisms) != 1:
        raise BadInput(_without_mechanism(study, group))
    options = mechanisms[0].options
    clip = options.get("clip")
    phase: dict[str, object] = {
        "rounds": study.training.rounds,
        "noise_multiplier": options.get("noise_multiplier"),
        "clip": clip if isinstance(clip, int | float) and isfinite(clip) else None,
    }
    common: dict[str, object] = {
        "name": study.name,
        "delta": FORMAL_DELTA,
        "clients": study.partition.clients,
    }
    if mechanisms[0].name == CLIENT_DP:
        # Its adversary sees each upload.
        phase |= {"protects": "client", "order": ("clip", "noise", "sum")}
        shared = study.audit.clients_per_person
        return common | {"adjacency": "zero-out", "person_clients": shared, "phase": [phase]}
    if study.algorithm.name not in _LOCAL_EPOCHS:
        raise BadInput(
            f"the steps of dp-sgd are counted for {', '.join(_LOCAL_EPOCHS)}, but the study "
            f"{study.name!r} uses {study.algorithm.name}; {_SET_UP}"
        )
    if study.audit.unit == "person":
        raise BadInput(
            f"the study {study.name!r} audits people and does not state how many samples one of "
            f"them has; {_SET_UP}, with person_samples"
        )
    if len(group.parts) > 1:
        names = ", ".join(part.name for part in group.parts if part.name != DP_SGD)
        raise BadInput(
            f"the study {study.name!r} combines dp-sgd with {names}, which may use a sample twice "
            f"in a batch; leave the other defense out, or {_SET_UP} if it does not"
        )
    # The claim of a record is that of its audited clients, too.
    targets = [client for client in study.audit.targets if client in group.clients]
    counts = [sizes[client] for client in targets or group.clients if client in sizes]
    samples = min(counts if targets or fewest is None else [*counts, fewest], default=0)
    if samples < 1:
        raise BadInput(
            f"the study {study.name!r} states no number of samples of its clients; {_SET_UP}"
        )
    phase |= {
        "protects": "sample",
        "sampling": "poisson",
        "batch_size": min(study.training.batch_size, samples),
        "epochs": study.training.epochs,
    }
    most = max(counts, default=samples)
    return common | {"samples": samples, "most_samples": max(most, samples), "phase": [phase]}


def _audited_group(study: "Study") -> "Group":
    """Return the group of clients with the defense of the audited clients."""
    groups = study.defense.groups(study.partition.clients)
    for target in study.audit.targets:
        for group in groups:
            if target in group.clients and group.parts:
                return group
    return groups[0]


def _without_mechanism(study: "Study", group: "Group") -> str:
    """Explain why there is no epsilon to compose."""
    # Imported here, since the defenses import torch.
    from fedaudit.defenses import DEFENSES
    from fedaudit.defenses.ldp import LocalDP

    names = [part.name for part in group.parts]
    if len({*names} & {CLIENT_DP, DP_SGD}) > 1:
        return (
            f"the study {study.name!r} combines client-dp with dp-sgd, which have different units; "
            f"{_SET_UP} for one of them"
        )
    kinds = {name: DEFENSES.get(name) for name in names}
    local = [
        name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, LocalDP)
    ]
    if local:
        return (
            f"{local[0]} of the study {study.name!r} changes each sample once, before the first "
            "round, so that its epsilon does not grow with rounds; the record of the study states "
            "it as formal epsilon"
        )
    defense = ", ".join(names) or "no defense"
    return (
        f"the study {study.name!r} has no mechanism for its audited clients ({defense}): only "
        f"client-dp and dp-sgd are accounted for; choose one of them, or {_SET_UP}"
    )
