"""Base class of the sections of a study, and types of their fields: ranges, options and names.

Names of parts are stored as their catalogue spells them.
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
from fedaudit.core.errors import BadInput, called_by, folded_name, option, setting
from fedaudit.core.importing import GROUPS, as_catalogued, known_name
from fedaudit.core.naming import DataSetting
from fedaudit.core.values import Setting


def _catalogue_spelling(kind: str, name: str) -> str:
    # Defaults of most studies, for which these two catalogues need not be loaded.
    if (kind, name) in (("defense", "none"), ("measure of risk", "train-mia")):
        return name
    return as_catalogued(kind, name, _catalogue(kind))


def _catalogue(kind: str) -> Collection[str]:
    """Return the names of a catalogue."""
    # Catalogues are imported when a name is checked, as code that only reads settings has to start
    # fast.
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
            from fedaudit.datasets.partitions.shifts import KINDS

            return KINDS
        case "measure of risk":
            from fedaudit.risk.catalog import MEASURES

            return [*MEASURES, *_catalogue("attack")]
    raise LookupError(kind)


def refuse_repeated_attacks(table: object) -> object:
    """Raise if a table of attacks has two spellings of the same name."""
    spellings: dict[str, str] = {}
    for name in table if isinstance(table, dict) else ():
        attack = _catalogue_spelling("attack", str(name))
        if attack in spellings:
            raise ValueError(
                f"{spellings[attack]!r} and {name!r} are the same attack; leave one of them out"
            )
        spellings[attack] = str(name)
    return table


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
            return known_name(kind, name, _catalogue(kind), allows_custom=kind in GROUPS)
        return _catalogue_spelling(kind, name)

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
    """Return an option of a catalogue entry, whose type the entry checks later."""
    if isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= 1e15):
        return value
    raise ValueError("it should be a number up to 1e15 in size, a text, or true or false")


def _data_setting(value: object) -> DataSetting:
    """Return an option of a data set: a setting, or a list or a table of settings or lists."""
    if isinstance(value, Mapping):
        return {str(name): _setting_or_list(entry) for name, entry in value.items()}
    return _setting_or_list(value)


def _setting_or_list(value: object) -> Setting | Sequence[Setting]:
    return [*map(_setting, value)] if isinstance(value, list | tuple) else _setting(value)


# Strict: a number in quotation marks is a text.
Count = Annotated[arguments.Count, Strict()]
Positive = Annotated[arguments.Positive, Strict()]
Rounds = Annotated[arguments.Rounds, Strict()]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Settings = dict[str, Annotated[Setting, PlainValidator(_setting)]]
DataSettings = dict[str, Annotated[DataSetting, PlainValidator(_data_setting)]]


def distinct(fault: str, key: Callable[[Any], object] = str) -> AfterValidator:
    """Return a validator of tuples whose entries must differ by a key."""

    def check(entries: tuple[object, ...]) -> tuple[object, ...]:
        if len(set(map(key, entries))) < len(entries):
            raise ValueError(f"{fault}; give each once")
        return entries

    return AfterValidator(check)


def _set_elsewhere(name: str) -> str:
    return option(name.removeprefix("--")) if name.startswith("--") else setting(name)


Kind = TypeVar("Kind", bound=type)

if TYPE_CHECKING:
    from builtins import type as _SectionMeta
else:

    class _SectionMeta(type(BaseModel)):
        """Metaclass that gives sections a signature and errors of one sentence in Python."""

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
            pass  # pydantic sets its own, which accepts any argument

        def __dir__(cls):
            kinds = cls.__mro__[: cls.__mro__.index(Section)]
            methods = [
                name for kind in kinds for name, member in vars(kind).items() if callable(member)
            ]
            return [*cls.model_fields, *(name for name in methods if not name.startswith("_"))]


def public(kind: Kind) -> Kind:
    """Give a section the name under which :mod:`fedaudit` exports it, without "Section"."""
    kind.__name__ = kind.__qualname__ = kind.__name__.removesuffix("Section")
    kind.__module__ = "fedaudit"
    return kind


class Section(BaseModel, metaclass=_SectionMeta):
    """An immutable table of settings.

    Raises:
        BadInput: One sentence naming the first setting that is wrong, and what is allowed.
    """

    # Building schemas takes time: that of a study is built at its first use, and sections alone
    # get none before they are used alone.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    set_elsewhere: ClassVar[Mapping[str, str]] = {}
    """Parameters that ``options`` must not have, with the setting that determines each."""

    @model_validator(mode="after")
    def _refuse_options_set_elsewhere(self) -> "Section":
        for name in getattr(self, "options", {}):
            if name in self.set_elsewhere:
                raise ValueError(
                    f"options.{name} is not a setting, as another setting determines {name}; leave "
                    f"it out and set {_set_elsewhere(self.set_elsewhere[name])}"
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _normalise_choices(cls, values: object) -> object:
        """Replace the spelling of choices (hyphens, underscores) by the declared spelling."""
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
        """Return the name that Python code has for the section."""
        return f"fedaudit.{cls.__name__.removesuffix('Section')}"
