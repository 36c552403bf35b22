"""Base class of a study's sections, and types of their fields: ranges, options and names.

The name of a part, such as an attack or a model, is stored in the spelling of the part's catalogue.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
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
from fedaudit.core.errors import BadInput, called_by, folded_name, format_option, format_setting
from fedaudit.core.importing import GROUPS, catalogue_spelling, known_name
from fedaudit.core.naming import DataSetting
from fedaudit.core.values import Setting


def _catalogue_spelling(kind: str, name: str) -> str:
    # For these defaults, which most studies have, the catalogues need not be imported.
    if (kind, name) in (("defense", "none"), ("measure of risk", "train-mia")):
        return name
    return catalogue_spelling(kind, name, _catalogue(kind))


def _catalogue(kind: str) -> Collection[str]:
    """Return the names of a catalogue."""
    # Imported here, so that code that only reads settings starts fast.
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
            from fedaudit.core.task_catalogue import TASKS

            return TASKS
        case "view":
            from fedaudit.observe.views import VIEWS

            return VIEWS
        case "metric":
            from fedaudit.metrics.catalogue import METRICS

            return METRICS
        case "shift":
            from fedaudit.datasets.partitions.shifts import SHIFT_KINDS

            return SHIFT_KINDS
        case "measure of risk":
            from fedaudit.risk.catalog import MEASURES

            return [*MEASURES, *_catalogue("attack")]
    raise LookupError(kind)


def raise_if_repeated_attacks(table: object) -> object:
    """Raise if a table of attacks contains an attack twice, in two spellings."""
    spellings: dict[str, str] = {}
    for name in table if isinstance(table, dict) else ():
        attack = _catalogue_spelling("attack", str(name))
        if attack in spellings:
            raise ValueError(
                f"{spellings[attack]!r} and {name!r} are the same attack; remove one of them"
            )
        spellings[attack] = str(name)
    return table


_checks_names: ContextVar[bool] = ContextVar("checks_names", default=False)


@contextmanager
def _checking_names() -> Iterator[None]:
    """Raise an error, within the context, if a section names a part that does not exist.

    This is used for sections that are constructed in Python. It is not used for records, which must
    stay readable if they name parts that are not installed.
    """
    token = _checks_names.set(True)
    try:
        yield
    finally:
        _checks_names.reset(token)


def _name_of(kind: str) -> BeforeValidator:
    def resolve(name: object) -> object:
        if not isinstance(name, str):
            return name
        if _checks_names.get():
            return known_name(kind, name, _catalogue(kind), allows_custom=kind in GROUPS)
        return _catalogue_spelling(kind, name)

    return BeforeValidator(resolve)


AttackName = Annotated[str, _name_of("attack")]
DefenseName = Annotated[str, _name_of("defense")]
AlgorithmName = Annotated[str, _name_of("algorithm")]
ModelName = Annotated[str, _name_of("model")]
PartitionName = Annotated[str, _name_of("partition")]
DrawName = Annotated[str, _name_of("draw")]
ViewName = Annotated[str, _name_of("view")]
TaskName = Annotated[str, _name_of("task")]
MeasureName = Annotated[str, _name_of("measure of risk")]
MetricName = Annotated[str, _name_of("metric")]
ShiftName = Annotated[str, _name_of("shift")]


def _setting(value: object) -> Setting:
    """Return the value of a part's option. The part checks its type later."""
    if isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= 1e15):
        return value
    raise ValueError("it should be a number from -1e15 to 1e15, a text, true or false")


def _data_setting(value: object) -> DataSetting:
    """Return an option of a data set: a setting, or a list or a table of settings or lists."""
    if isinstance(value, Mapping):
        return {str(name): _setting_or_list(entry) for name, entry in value.items()}
    return _setting_or_list(value)


def _setting_or_list(value: object) -> Setting | Sequence[Setting]:
    return [*map(_setting, value)] if isinstance(value, list | tuple) else _setting(value)


# Strict, so that a number in quotation marks is not accepted as a number.
Count = Annotated[arguments.Count, Strict()]
Positive = Annotated[arguments.Positive, Strict()]
Rounds = Annotated[arguments.Rounds, Strict()]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Settings = dict[str, Annotated[Setting, PlainValidator(_setting)]]
DataSettings = dict[str, Annotated[DataSetting, PlainValidator(_data_setting)]]


def require_distinct(fault: str, key: Callable[[Any], object] = str) -> AfterValidator:
    """Return a validator that raises if two entries of a tuple have the same key.

    Args:
        fault: First part of the error message.
        key: Function that computes the key of an entry.
    """

    def check(entries: tuple[object, ...]) -> tuple[object, ...]:
        if len(set(map(key, entries))) < len(entries):
            raise ValueError(f"{fault}; give each once")
        return entries

    return AfterValidator(check)


def _caller_name(name: str) -> str:
    """Return the name of an option or setting as the user writes it, in a command or in Python."""
    return format_option(name.removeprefix("--")) if name.startswith("--") else format_setting(name)


Kind = TypeVar("Kind", bound=type)

if TYPE_CHECKING:
    from builtins import type as _SectionMeta
else:

    class _SectionMeta(type(BaseModel)):
        """Metaclass that gives sections a signature, and converts pydantic's errors."""

        def __call__(cls, *args, **settings):
            from fedaudit.plan.values import refusal_of

            if args:
                raise BadInput(
                    f"{cls.python_name()} takes settings by name, got {args!r}; write name=value"
                )
            is_public = cls.__module__ == "fedaudit"
            with called_by("objects"), _checking_names() if is_public else nullcontext():
                try:
                    return super().__call__(**settings)
                except ValidationError as error:
                    raise refusal_of(error, cls, cls.python_name()) from error

        @property
        def __signature__(cls):
            return Signature(
                [
                    Parameter(
                        name,
                        Parameter.KEYWORD_ONLY,
                        default=Parameter.empty
                        if field.is_required()
                        else field.get_default(call_default_factory=True),
                        annotation=without_ranges(field.annotation),
                    )
                    for name, field in cls.model_fields.items()
                ]
            )

        @__signature__.setter
        def __signature__(cls, signature):
            pass  # Ignore pydantic's signature, which accepts any argument.

        def __dir__(cls):
            kinds = cls.__mro__[: cls.__mro__.index(Section)]
            methods = [
                name for kind in kinds for name, member in vars(kind).items() if callable(member)
            ]
            return [*cls.model_fields, *(name for name in methods if not name.startswith("_"))]


def with_public_name(kind: Kind) -> Kind:
    """Give a section the name under which :mod:`fedaudit` exports it, without "Section"."""
    kind.__name__ = kind.__qualname__ = kind.__name__.removesuffix("Section")
    kind.__module__ = "fedaudit"
    return kind


class Section(BaseModel, metaclass=_SectionMeta):
    """Immutable table of settings.

    Raises:
        BadInput: A setting is invalid. The message names the first such setting and the allowed
            values.
    """

    # Building a pydantic schema is slow, so it is built when a section is first used.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    set_elsewhere: ClassVar[Mapping[str, str]] = {}
    """Maps each parameter that must not be in ``options`` to the setting that determines it."""
    former_names: ClassVar[Mapping[str, str]] = {}
    """Maps former names of settings to the current names, for error messages."""

    @model_validator(mode="after")
    def _raise_if_options_set_elsewhere(self) -> "Section":
        for name in getattr(self, "options", {}):
            if name in self.set_elsewhere:
                raise ValueError(
                    f"options.{name} is not allowed, since another setting determines {name}; "
                    f"remove it and set {_caller_name(self.set_elsewhere[name])}"
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _normalise_choices(cls, values: object) -> object:
        """Accept other spellings of choices, with other case, hyphens or underscores."""
        if not isinstance(values, Mapping):
            return values
        normalised = dict(values)
        for name, field in cls.model_fields.items():
            value = normalised.get(name)
            if get_origin(field.annotation) is Literal and isinstance(value, str):
                choices = get_args(field.annotation)
                matching = (c for c in choices if folded_name(c) == folded_name(value))
                normalised[name] = next(matching, value)
        return normalised

    def __dir__(self) -> list[str]:
        return dir(type(self))

    @classmethod
    def python_name(cls) -> str:
        """Return the name of the section in Python."""
        return f"fedaudit.{cls.__name__.removesuffix('Section')}"
