"""Who trains on what and what is audited, as a study's draw and partition deal it."""

from inspect import signature

from fedaudit.data.dataset import Dataset
from fedaudit.data.deal import Deal
from fedaudit.data.draws import DRAWS
from fedaudit.data.partition import PARTITIONS, Partition
from fedaudit.errors import BadInput, unknown_name
from fedaudit.study.config import Study
from fedaudit.study.options import check_options
from fedaudit.study.section import Settings


def dealt(study: Study, dataset: Dataset, seed: int) -> Deal:
    """Deals a data set out under one seed.

    Raises:
        BadInput: A draw, partition or setting that does not exist, or data that do not suffice.
    """
    audit = study.audit
    if audit.draw not in DRAWS:
        raise unknown_name("draw", audit.draw, DRAWS)
    settings: dict[str, object] = {
        "clients": study.partition.clients,
        "partition": partition_of(study),
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
    """How training samples are dealt to clients.

    Raises:
        BadInput: A scheme or setting that does not exist.
    """
    given = study.partition
    if given.scheme not in PARTITIONS:
        raise unknown_name("partition", given.scheme, PARTITIONS)
    scheme = PARTITIONS[given.scheme]
    options: Settings = dict(given.options)
    if "samples_per_client" in signature(scheme).parameters:
        options |= {"samples_per_client": given.samples_per_client}
    elif given.samples_per_client:
        raise BadInput(
            f"the partition {given.scheme!r} deals everything; leave samples_per_client at 0"
        )
    check_options("partition", given.scheme, scheme, options)
    return scheme(**options)
