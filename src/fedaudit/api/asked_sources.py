"""Posteriors over clients for a question about one sample, from stored measurements."""

from collections.abc import Mapping
from pathlib import Path

from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from fedaudit.api.tables import measured_run, measurements_of
from fedaudit.attacks import attack_set, resolve_attack
from fedaudit.attacks.base import Attack
from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.evaluation.individual_membership import label_posterior, normalise, source_posterior
from fedaudit.formatting.wording import client_name, client_names
from fedaudit.live.files import AUDIT_FILE
from fedaudit.observe.measurements import measured_rounds_in
from fedaudit.observe.tensors import read_tensors
from fedaudit.results.answer import SourceAnswer
from fedaudit.results.guessing import mark_doubts
from fedaudit.results.record import AttackRow, Record


def raise_if_other_labels(
    folder: Path, seed: int, ids: Int[ndarray, " samples"], labels: Int[Tensor, " samples"]
) -> None:
    """Raise if the data set's labels differ from the labels that are stored in the run.

    The check is skipped if the folder of the run is not known.

    Raises:
        Damaged: The data set was changed after the audit.
    """
    measured_folder = measurements_of(folder)
    if measured_folder is None:
        return
    tensors, _ = read_tensors(measured_run(measured_folder, seed) / AUDIT_FILE)
    by_id = dict(zip(tensors["ids"].tolist(), tensors["labels"].tolist(), strict=True))
    if [by_id.get(number) for number in ids.tolist()] != labels.tolist():
        raise Damaged(
            "the data set's labels differ from those of the audited samples, so it was changed "
            "after the audit; use the data set of the audit"
        )


def posteriors(
    folder: Path, record: Record, sample_ids: Mapping[int, int]
) -> tuple[list[SourceAnswer], list[str]]:
    """Return a sample's posteriors over clients, and reasons for missing posteriors.

    Args:
        folder: Folder of the result.
        record: Record of the result.
        sample_ids: Id of the sample in each run, by seed.
    """
    attacks = [row for row in record.attacks if row.infers_source and row.status == "run"]
    if not attacks or record.unit == "person":
        return [], []
    measured_folder = measurements_of(folder)
    if measured_folder is None:
        return [], ["No posterior over clients: the measurements are not in the result's folder"]
    answers, caveats = [], list[str]()
    failed_controls = {
        (estimate.attack, estimate.seed): estimate.doubt
        for estimate in mark_doubts(record).where(topic="source")
        if estimate.doubt
    }
    for seed, sample_id in sample_ids.items():
        for row in attacks:
            try:
                if failed_control := failed_controls.get((row.name, seed)):
                    raise BadInput(f"the control {failed_control} failed")
                run = measured_run(measured_folder, seed)
                answers.append(_posterior(record, row, run, seed, sample_id))
            except FedauditError as error:
                caveats.append(f"No posterior over clients by {row.name}, seed {seed}: {error}")
    return answers, caveats


def _posterior(
    record: Record, row: AttackRow, run: Path, seed: int, sample_id: int
) -> SourceAnswer:
    tensors, _ = read_tensors(run / AUDIT_FILE)
    columns = [tensors[name].tolist() for name in ("ids", "labels", "owner") if name in tensors]
    if len(columns) != 3 or sample_id not in columns[0]:
        raise Damaged(f"{run} does not have the audited sample; use the run of the result")
    ids, labels, owners = columns
    position = ids.index(sample_id)
    rounds = [stored.measured for stored in measured_rounds_in(run)]
    if rounds and position >= min(v.shape[1] for v in rounds[0].signals.values()):
        raise Damaged(f"{run} measured fewer samples than it audited; use the run of the result")
    sizes = {client.client: client.samples for client in record.clients}
    try:
        posterior = source_posterior(_attack(record, row.name), rounds, position, sizes)
    except KeyError as missing:
        raise BadInput(
            f"its prior needs the number of samples of client {missing}, but the record of a large "
            'federation does not list all clients; use prior = "equal"'
        ) from missing
    counts = {client.client: client.class_counts for client in record.clients}
    names = client_names(record)
    answer = SourceAnswer(
        attack=row.name,
        seed=seed,
        clients=[client_name(names.get(client, client)) for client in posterior],
        posterior=list(posterior.values()),
    )
    if not posterior.keys() <= counts.keys() or max(map(len, counts.values())) < 2:
        return answer
    class_counts = {client: counts[client] for client in posterior}
    label_only = label_posterior(class_counts, int(labels[position]), int(owners[position]))
    combined = normalise({client: posterior[client] * label_only[client] for client in posterior})
    update = {"by_labels": list(label_only.values()), "with_labels": list(combined.values())}
    return SourceAnswer(**{**answer.model_dump(), **update})


def _attack(record: Record, name: str) -> Attack:
    """Return an attack with the settings of the result."""
    attacks, set_name = (record.config.get(key) for key in ("attacks", "attack_set"))
    if not attacks and isinstance(set_name, str) and set_name:
        return attack_set(set_name)[name]
    settings = attacks.get(name) if isinstance(attacks, dict) else None
    return resolve_attack(name).with_settings(settings if isinstance(settings, dict) else {})
