"""Names of catalogues in settings, kept as the catalogue spells them, however they were typed."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import BeforeValidator

from fedaudit.core.importing import as_catalogued


def as_known(kind: str, name: str) -> str:
    """A name as the catalogue of a kind spells it; as it is where that has none like it."""
    # Most studies use no defense, and the catalogue of defenses loads all of them.
    if (kind, name) == ("defense", "none"):
        return name
    return as_catalogued(kind, name, _catalogue(kind))


def _catalogue(kind: str) -> Iterable[str]:
    """The names of a catalogue, which is loaded only now: what reads settings need not train."""
    match kind:
        case "attack":
            from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS

            return [*ATTACKS, *SOURCE_ATTACKS]
        case "defense":
            from fedaudit.defenses import DEFENSES

            return DEFENSES
        case "algorithm":
            from fedaudit.algorithms import ALGORITHMS

            return ALGORITHMS
        case "model":
            from fedaudit.models import MODELS

            return MODELS
        case "partition":
            from fedaudit.datasets.partitions.schemes import PARTITIONS

            return PARTITIONS
        case "draw":
            from fedaudit.datasets.draws.fair import DRAWS

            return DRAWS
        case "task":
            from fedaudit.core.tasks import TASKS

            return TASKS
        case "view":
            from fedaudit.observe.views import VIEWS

            return VIEWS
        case "metric":
            from fedaudit.metrics.table import METRICS

            return METRICS
        case "measure of risk":
            from fedaudit.risk.catalog import MEASURES

            return [*MEASURES, *_catalogue("attack")]
    raise LookupError(kind)


def each_once(given: object) -> object:
    """Refuses a table of attacks in which two spellings of one name stand.

    Raises:
        ValueError: There are two.
    """
    kept: dict[str, str] = {}
    for name in given if isinstance(given, dict) else ():
        known = as_known("attack", str(name))
        if known in kept:
            raise ValueError(f"{kept[known]!r} and {name!r} are one attack; leave one of them out")
        kept[known] = str(name)
    return given


def _of(kind: str) -> BeforeValidator:
    return BeforeValidator(lambda name: as_known(kind, name) if isinstance(name, str) else name)


AttackName = Annotated[str, _of("attack")]
DefenseName = Annotated[str, _of("defense")]
AlgorithmName = Annotated[str, _of("algorithm")]
ModelName = Annotated[str, _of("model")]
PartitionName = Annotated[str, _of("partition")]
DrawName = Annotated[str, _of("draw")]
ViewName = Annotated[str, _of("view")]
TaskName = Annotated[str, _of("task")]
MeasureName = Annotated[str, _of("measure of risk")]
MetricName = Annotated[str, _of("metric")]
