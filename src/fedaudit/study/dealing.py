"""Training and audited samples, as a study's draw and partition deal them."""

from inspect import signature

from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.core.importing import called, named
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Deal
from fedaudit.datasets.draws.fair import DRAWS
from fedaudit.datasets.partitions.attribute import BySide, dealt_by_side, sides_of
from fedaudit.datasets.partitions.feature_shift import of_clients
from fedaudit.datasets.partitions.schemes import PARTITIONS, Partition
from fedaudit.study.config import Study
from fedaudit.study.options import check_options
from fedaudit.study.section import Settings

ATTRIBUTE = "attribute"
"""The kind of shift in which groups of clients have different people."""


def dealt(study: Study, dataset: Dataset, seed: int) -> Deal:
    """Deals a data set out under one seed.

    Raises:
        BadInput: A draw, partition or setting that does not exist, or data that do not suffice.
    """
    if study.shift is None or study.shift.kind != ATTRIBUTE:
        return _dealt(study, dataset, partition_of(study), seed)
    group = of_clients(study.partition.clients, study.shift.minority)
    partition = BySide(partition_of(study), tuple(group.tolist()))
    sides = sides_of(dataset, study.shift.value)
    return dealt_by_side(dataset, sides, lambda apart: _dealt(study, apart, partition, seed))


def _dealt(study: Study, dataset: Dataset, partition: Partition, seed: int) -> Deal:
    audit = study.audit
    if audit.draw not in DRAWS:
        raise unknown_name("draw", audit.draw, DRAWS)
    settings: dict[str, object] = {
        "clients": study.partition.clients,
        "partition": partition,
        "seed": seed,
        "targets": audit.targets,
    }
    if audit.draw == "fair":
        settings |= {
            "n_fair": audit.fair,
            "extra_other": audit.extra_other,
            "extra_unseen": audit.extra_unseen,
            "background": audit.background,
        }
    if audit.options:
        check_options("draw", audit.draw, DRAWS[audit.draw], audit.options, complete=False)
    return DRAWS[audit.draw](dataset, **settings, **audit.options)


def partition_of(study: Study) -> Partition:
    """The partition of training samples among clients.

    Raises:
        BadInput: A scheme or setting that does not exist.
    """
    given = study.partition
    scheme = named(
        "partition",
        given.scheme,
        PARTITIONS,
        wanted="a class or function that makes a fedaudit.datasets.partitions.schemes.Partition",
        fits=callable,
    )
    options: Settings = dict(given.options)
    if "samples_per_client" in signature(scheme).parameters:
        options |= {"samples_per_client": given.samples_per_client}
    elif given.samples_per_client:
        raise BadInput(
            f"the partition {given.scheme!r} deals everything; leave samples_per_client at 0"
        )
    check_options("partition", given.scheme, scheme, options)
    made = called("partition", given.scheme, scheme, **options)
    if not isinstance(made, Partition):
        raise BadInput(
            f"the partition {given.scheme!r} made a {type(made).__name__}, which has no method "
            "quotas; give a fedaudit.datasets.partitions.schemes.Partition"
        )
    return made
