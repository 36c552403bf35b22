"""Privacy set-ups of studies and of their records, and lower bounds in records."""

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

_LOCAL_EPOCHS = ("fedavg", "fedprox", "fedadam", "fednova", "feddyn", "ditto", "ifca")
"""Algorithms whose clients train for the epochs of the study in each round."""

_WRITE_SETUP = (
    "write the settings of the mechanism into a privacy set-up (a TOML file for `fedaudit budget`)"
)


@dataclass(frozen=True)
class MeasuredBound:
    """Lower bound on epsilon that a record measured.

    Attributes:
        unit: Unit of privacy that the attack detected: "sample", "person" or "client".
        metric: Name of the figure in the record.
        value: The largest bound of this figure in the record.
        method: How the bound was computed, with delta and confidence.
    """

    unit: Unit
    metric: str
    value: float
    method: str


def measured_bounds(record: Record) -> tuple[MeasuredBound, ...]:
    """Return the largest lower bound for each unit and metric in a record."""
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
    """Return the privacy set-up of a record's study.

    Raises:
        BadInput: The record is of a live recording or of security games, or its study has no
            mechanism to account for.
    """
    is_of_games = record.kind == "games"
    if is_of_games or set(record.config) <= RECORDER_SETTINGS:
        raise BadInput(
            f"the record {record.name!r} does not state how its clients trained; {_WRITE_SETUP}, "
            "and pass this record as the measured one"
        )
    config = {name: value for name, value in record.config.items() if name != "code"}
    study = study_from(config, source=f"the study of the record {record.name!r}")
    sizes = {row.client: row.samples for row in record.clients}
    fewest = None if record.other_clients is None else record.other_clients.fewest
    return setup_of_study(study, sizes, fewest=fewest)


def setup_of_study(
    study: "Study", sizes: Mapping[int, int], *, fewest: int | None = None
) -> dict[str, object]:
    """Return the settings of a privacy set-up for the audited clients of a study.

    Args:
        study: The study.
        sizes: Number of samples of each client, or of some clients.
        fewest: Smallest number of samples of the clients that ``sizes`` leaves out.

    Raises:
        BadInput: The audited clients have no mechanism whose epsilon is composed over rounds.
    """
    group = _audited_group(study)
    mechanisms = [part for part in group.parts if part.name in (CLIENT_DP, DP_SGD)]
    if len(mechanisms) != 1:
        raise BadInput(_mechanism_error(study, group))
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
        if study.algorithm.name == "scaffold":
            raise BadInput(
                f"clients of the study {study.name!r} also send control variates (scaffold), which "
                "client-dp neither clips nor noises, so there is no epsilon; use another algorithm"
            )
        # The adversary sees each upload, to which its client has added noise.
        phase.update({"protects": "client", "order": ("clip", "noise", "sum")})
        person_clients = study.audit.clients_per_person
        return {
            **common,
            "adjacency": "zero-out",
            "person_clients": person_clients,
            "phase": [phase],
        }
    if study.algorithm.name not in _LOCAL_EPOCHS:
        raise BadInput(
            f"the steps of dp-sgd are counted for {', '.join(_LOCAL_EPOCHS)}, but the study "
            f"{study.name!r} uses {study.algorithm.name}; {_WRITE_SETUP}"
        )
    if study.audit.unit == "person":
        raise BadInput(
            f"the study {study.name!r} audits people and does not state how many samples one of "
            f"them has; {_WRITE_SETUP}, with person_samples"
        )
    if len(group.parts) > 1:
        names = ", ".join(part.name for part in group.parts if part.name != DP_SGD)
        raise BadInput(
            f"the study {study.name!r} combines dp-sgd with {names}, which may use a sample twice "
            f"in a batch; leave the other defense out, or {_WRITE_SETUP} if it does not"
        )
    # As in a record, epsilon is that of audited clients, or of all clients if none is in the group.
    targets = [client for client in study.audit.targets if client in group.clients]
    counts = [sizes[client] for client in targets or group.clients if client in sizes]
    if fewest is not None and not targets:
        samples = min([*counts, fewest])
    else:
        samples = min(counts, default=0)
    if samples < 1:
        raise BadInput(
            f"the study {study.name!r} states no number of samples of its clients; {_WRITE_SETUP}"
        )
    phase.update(
        {
            "protects": "sample",
            "sampling": "poisson",
            "batch_size": min(study.training.batch_size, samples),
            "epochs": study.training.epochs,
        }
    )
    most_samples = max([*counts, samples])
    return {**common, "samples": samples, "most_samples": most_samples, "phase": [phase]}


def _audited_group(study: "Study") -> "Group":
    """Return the group of clients that have the same defense as an audited client."""
    groups = study.defense.groups(study.partition.clients)
    for target in study.audit.targets:
        for group in groups:
            if target in group.clients and group.parts:
                return group
    return groups[0]


def _mechanism_error(study: "Study", group: "Group") -> str:
    """Explain why a study has no epsilon that is composed over rounds."""
    # Imported here, since the defenses import torch.
    from fedaudit.defenses import DEFENSES
    from fedaudit.defenses.ldp import LocalDP

    names = [part.name for part in group.parts]
    if len({*names} & {CLIENT_DP, DP_SGD}) > 1:
        return (
            f"the study {study.name!r} combines client-dp with dp-sgd, which have different units; "
            f"{_WRITE_SETUP} for one of them"
        )
    local_mechanisms = []
    for name in names:
        defense = DEFENSES.get(name)
        if isinstance(defense, type) and issubclass(defense, LocalDP):
            local_mechanisms.append(name)
    if local_mechanisms:
        return (
            f"{local_mechanisms[0]} of the study {study.name!r} changes each sample once, before "
            "the first round, so that its epsilon does not grow with rounds; the record of the "
            "study states it as formal epsilon"
        )
    listed = ", ".join(names) or "no defense"
    return (
        f"the study {study.name!r} has no mechanism for its audited clients ({listed}): only "
        f"client-dp and dp-sgd are accounted for; choose one of them, or {_WRITE_SETUP}"
    )
