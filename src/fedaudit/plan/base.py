"""Base class of a study's sections, and types of their fields: ranges, settings and names of parts.

Names of parts are kept as their catalogue spells them, however they were typed.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
    ValidationError,
    model_validator,
)

from fedaudit.core import arguments
from fedaudit.core.arguments import without_ranges
from fedaudit.core.errors import BadInput, called_by, folded_name, option, setting
from fedaudit.core.importing import as_catalogued, refuse_unknown_part
from fedaudit.core.values import Setting


def as_known(kind: str, name: str) -> str:
    """A name as the catalogue of a kind spells it; as it is where that has none like it."""
    # Defaults of most studies, for which these two catalogues need not be loaded.
    if (kind, name) in (("defense", "none"), ("measure of risk", "train-mia")):
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
        case "shift":
            from fedaudit.datasets.partitions.shifts import ATTRIBUTE, SHIFTS

            return [*SHIFTS, ATTRIBUTE]
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


_checks_names: ContextVar[bool] = ContextVar("checks_names", default=False)


@contextmanager
def _checking_names() -> Iterator[None]:
    """Inside, refuse names of parts that do not exist.

    Sections that are constructed in Python check names at once. Records may have names of parts
    that are not installed here, and can be read all the same.
    """
    token = _checks_names.set(True)
    try:
        yield
    finally:
        _checks_names.reset(token)


def _of(kind: str) -> BeforeValidator:
    def resolve(name: object) -> object:
        if not isinstance(name, str):
            return name
        if _checks_names.get():
            refuse_unknown_part(kind, name, _catalogue(kind))
        return as_known(kind, name)

    return BeforeValidator(resolve)


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
ShiftName = Annotated[str, _of("shift")]


def _setting(value: object) -> Setting:
    """An option of a catalogue entry; the entry itself says what it takes."""
    if isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= 1e15):
        return value
    raise ValueError("it should be a number up to 1e15 in size, a text, or true or false")


# Whole numbers in quotation marks are none.
Count = Annotated[arguments.Count, Strict()]
Positive = Annotated[arguments.Positive, Strict()]
Rounds = Annotated[arguments.Rounds, Strict()]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Settings = dict[str, Annotated[Setting, PlainValidator(_setting)]]


def _set_elsewhere(name: str) -> str:
    return option(name.removeprefix("--")) if name.startswith("--") else setting(name)


Kind = TypeVar("Kind", bound=type)

if TYPE_CHECKING:
    from builtins import type as _Refusing
else:

    class _Refusing(type(BaseModel)):
        """Has sections that are made in Python refuse in one sentence, as those of a file do."""

        def __call__(cls, *args, **settings):
            from fedaudit.plan.values import refusal_of

            if args:
                raise BadInput(f"settings of {cls.python_name()} are given by name, got {args!r}")
            is_public = cls.__module__ == "fedaudit"
            with called_by("objects"), _checking_names() if is_public else nullcontext():
                try:
                    return super().__call__(**settings)
                except ValidationError as error:
                    raise refusal_of(error, cls, cls.python_name()) from error

        @property
        def __signature__(cls):
            named = {one.alias or name: one for name, one in cls.model_fields.items()}
            return Signature(
                [
                    Parameter(
                        name,
                        Parameter.KEYWORD_ONLY,
                        default=Parameter.empty
                        if one.is_required()
                        else one.get_default(call_default_factory=True),
                        annotation=without_ranges(one.annotation),
                    )
                    for name, one in named.items()
                ]
            )

        @__signature__.setter
        def __signature__(cls, given):
            pass  # pydantic's takes anything

        def __dir__(cls):
            above = cls.__mro__[: cls.__mro__.index(Section)]
            methods = [name for kind in above for name, one in vars(kind).items() if callable(one)]
            return [*cls.model_fields, *(name for name in methods if not name.startswith("_"))]


def public(kind: Kind) -> Kind:
    """Name a section as :mod:`fedaudit` exports it, without "Section"."""
    kind.__name__ = kind.__qualname__ = kind.__name__.removesuffix("Section")
    kind.__module__ = "fedaudit"
    return kind


class Section(BaseModel, metaclass=_Refusing):
    """A table of settings, read once and never changed.

    Raises:
        BadInput: One sentence naming the first setting that is wrong, and what is allowed.
    """

    # A whole study's schema is built once, when first used, and no section's for itself before.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    set_elsewhere: ClassVar[Mapping[str, str]] = {}
    """Names that ``options`` never have, as the program passes these itself, and what sets them."""

    @model_validator(mode="after")
    def _leaves_out_what_is_set_elsewhere(self) -> "Section":
        for name in getattr(self, "options", {}):
            if name in self.set_elsewhere:
                raise ValueError(
                    f"options.{name} is no setting of its own, since the program passes {name} "
                    f"itself; leave it out and set {_set_elsewhere(self.set_elsewhere[name])}"
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _spelled_as_known(cls, given: object) -> object:
        """Choices may be typed with hyphens or underscores; one form is kept."""
        if not isinstance(given, Mapping):
            return given
        found = dict(given)
        for name, field in cls.model_fields.items():
            if get_origin(field.annotation) is Literal and isinstance(found.get(name), str):
                typed = folded_name(found[name])
                known = (one for one in get_args(field.annotation) if folded_name(one) == typed)
                found[name] = next(known, found[name])
        return found

    def __dir__(self) -> list[str]:
        return dir(type(self))

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        for name, value in super().__repr_args__():
            field = type(self).model_fields.get(name or "")
            yield (field.alias if field and field.alias else name), value

    @classmethod
    def python_name(cls) -> str:
        """Return the name that Python code has for the section."""
        return f"fedaudit.{cls.__name__.removesuffix('Section')}"
