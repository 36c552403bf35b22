"""Checks of the arguments of public classes and functions at each call.

Annotations state what is allowed: a type, a range (``Annotated[int, Range(ge=1)]``), a condition
(:class:`Condition`) or one of several names (``Literal``). Settings of study files are checked
against the same annotations. Importing this module loads neither torch nor pydantic.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from importlib import import_module
from math import inf
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from annotated_types import Interval

from fedaudit.core.errors import BadArgument, similar_names, unknown_name, with_article

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Range(Interval):
    """Range of a number."""

    def description(self, noun: str) -> str:
        """Describe the allowed numbers.

        Args:
            noun: "a number" or "a whole number".
        """
        low = self.ge if self.gt is None else self.gt
        high = self.le if self.lt is None else self.lt
        if high is None or high == inf:
            noun = noun if high is None else "a finite number"
            return f"{noun} {'above' if self.ge is None else 'of at least'} {low}"
        if self.gt is None and self.lt is None:
            return f"{noun} from {low:,} to {high:,}"
        opening, closing = "[" if self.gt is None else "(", "]" if self.lt is None else ")"
        return f"{noun} in {opening}{low}, {high}{closing}"

    def __contains__(self, value: float | int) -> bool:
        return (
            (self.ge is None or value >= self.ge)  # type: ignore[operator]
            and (self.gt is None or value > self.gt)  # type: ignore[operator]
            and (self.le is None or value <= self.le)  # type: ignore[operator]
            and (self.lt is None or value < self.lt)  # type: ignore[operator]
        )


class Condition(NamedTuple):
    """Condition that cannot be written as a range.

    Attributes:
        description: What is allowed, for messages.
        holds: Function that returns whether a value of the right type is allowed.
    """

    description: str
    holds: Callable[[object], bool]


def _are_different(values: object) -> bool:
    return isinstance(values, Collection) and 0 < len(values) == len(set(values))


Count = Annotated[int, Range(ge=0, le=10**9)]
Positive = Annotated[int, Range(ge=1, le=10**9)]
Rounds = Annotated[int, Range(ge=1, le=999_999)]
AtLeastZero = Annotated[float, Range(ge=0, lt=inf)]
AboveZero = Annotated[float, Range(gt=0, lt=inf)]
AboveZeroOrInfinite = Annotated[float, Range(gt=0)]
Fraction = Annotated[float, Range(ge=0, le=1)]
PositiveFraction = Annotated[float, Range(gt=0, le=1)]
ProperFraction = Annotated[float, Range(gt=0, lt=1)]
Decay = Annotated[float, Range(ge=0, lt=1)]
LearningRate = Annotated[float, Range(gt=0, le=1000)]
WeightDecay = Annotated[float, Range(ge=0, le=1000)]
ClientIds = Annotated[
    Sequence[Annotated[int, Range(ge=0)]],
    Condition("client numbers, such as [0, 1], at least one and each only once", _are_different),
]


def raise_if_invalid(
    subject: str, value: object, annotation: object, default: object = ...
) -> None:
    """Raise if an annotation does not allow a value.

    Args:
        subject: Name of the value, such as "rounds of FedAvg".
        value: The value.
        annotation: Type with ranges and conditions. Types that cannot be checked at run time allow
            any value.
        default: Default value, for the message; ``...`` if the argument is required.

    Raises:
        BadArgument: The value is not allowed.
    """
    if _is_allowed(value, annotation):
        return
    text = repr(value)
    text = text if len(text) <= 80 else f"{text[:80]}... ({len(text)} characters)"
    near = (
        similar_names(value, _literal_strings(annotation), limit=1)
        if isinstance(value, str)
        else []
    )
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if not near and default is not ...:
        hint = f"; omit it to use the default {default!r}"
    raise BadArgument(f"{subject} takes {describe_allowed(annotation)}, got {text}{hint}")


def _is_allowed(value: object, annotation: object) -> bool:
    origin, type_arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        allowed_type, *rules = type_arguments
        return _is_allowed(value, allowed_type) and all(_obeys(value, rule) for rule in rules)
    if origin in (Union, UnionType):
        return any(_is_allowed(value, option) for option in type_arguments)
    if origin is Literal:
        return any(type(value) is type(item) and value == item for item in type_arguments)
    if annotation is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if annotation is float:
        # NaN is not allowed.
        return isinstance(value, Real) and not isinstance(value, bool) and value == value
    allowed_type = NoneType if annotation is None else origin or annotation
    if allowed_type in (tuple, list, Sequence, Collection):
        # The items of tuples are checked only if all have the same type: tuple[int, ...].
        is_uniform = allowed_type is not tuple or type_arguments[1:] == (...,)
        item_types = type_arguments[:1] if is_uniform else ()
        return (
            isinstance(value, allowed_type)
            and not isinstance(value, str | bytes)
            and all(_is_allowed(item, item_type) for item_type in item_types for item in value)
        )
    if not isinstance(allowed_type, type):
        return True
    try:
        return isinstance(value, allowed_type)
    except TypeError:  # A protocol that cannot be checked at run time.
        return True


def _obeys(value: object, rule: object) -> bool:
    if isinstance(rule, Condition):
        return rule.holds(value)
    return not isinstance(rule, Range) or value in rule  # type: ignore[operator]


def _literal_strings(annotation: object) -> list[str]:
    """Return the strings that a ``Literal``, or a union with literals, allows."""
    type_arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [item for item in type_arguments if isinstance(item, str)]
    is_union = get_origin(annotation) in (Union, UnionType)
    options = type_arguments if is_union else ()
    return [text for option in options for text in _literal_strings(option)]


_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
    NoneType: "None",
    Callable: "a function",
    Mapping: "a dictionary",
}


def describe_allowed(annotation: object) -> str:
    """Describe the values that an annotation allows."""
    origin, type_arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        allowed_type, *rules = type_arguments
        conditions = [rule.description for rule in rules if isinstance(rule, Condition)]
        noun = describe_allowed(allowed_type)
        ranges = [rule.description(noun) for rule in rules if isinstance(rule, Range)]
        return [*conditions, *ranges, noun][0]
    if origin in (Union, UnionType):
        return " or ".join(map(describe_allowed, type_arguments))
    if origin is Literal:
        return " or ".join(map(repr, type_arguments))
    if origin in (tuple, list, Sequence, Collection):
        return f"a list, each entry {describe_allowed(type_arguments[0])}"
    allowed_type = origin or annotation
    description = _TYPE_NAMES.get(allowed_type)
    return description or with_article(getattr(allowed_type, "__name__", str(allowed_type)))


def check_arguments(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return a function that checks its arguments before each call.

    Raises:
        BadArgument: In a call: an argument is unknown, missing, or not allowed by its annotation.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        # The name is read at each call, since `dataclass` renames constructors after this.
        _check(call.__qualname__.removesuffix(".__init__"), signature, args, kwargs)
        return function(*args, **kwargs)

    # Displayed signatures have no ranges, which docstrings state in words.
    parameters = [
        parameter.replace(annotation=without_ranges(parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    # `parameters` reads the signature with ranges from this attribute.
    call.__annotated__ = signature  # type: ignore[attr-defined]
    return call


def names_checked(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return a function whose errors explain unknown and missing arguments; values are not checked.

    A correct call has no overhead, which matters for constructors that are called for every batch.

    Raises:
        BadArgument: In a call: an argument is unknown or missing.
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # If the error was raised inside the function, the traceback has another frame.
            if error.__traceback__ and error.__traceback__.tb_next is None:
                owner = call.__qualname__.removesuffix(".__init__")
                _check(owner, inspect.signature(function), args, kwargs)
            raise

    return call


def parameters(class_or_function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a class or function, with the annotations that are checked."""
    is_class = isinstance(class_or_function, type)
    function = class_or_function.__init__ if is_class else class_or_function
    signature: inspect.Signature | None = getattr(function, "__annotated__", None)
    try:
        signature = signature or inspect.signature(class_or_function, eval_str=True)
    except NameError:  # Annotations with names that only type checkers import.
        signature = inspect.signature(class_or_function)
    return {name: parameter for name, parameter in signature.parameters.items() if name != "self"}


def without_ranges(annotation: object) -> object:
    """Return an annotation without ranges and conditions."""
    origin, type_arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return without_ranges(type_arguments[0])
    plain_arguments = tuple(map(without_ranges, type_arguments))
    if origin in (Union, UnionType):
        return Union[plain_arguments]  # noqa: UP007
    return origin[plain_arguments] if origin in (Sequence, tuple, list, dict) else annotation


def _check(
    owner: str,
    signature: inspect.Signature,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> None:
    parameters_by_name = {name: p for name, p in signature.parameters.items() if name != "self"}
    accepts_any_name = any(p.kind is p.VAR_KEYWORD for p in parameters_by_name.values())
    names = [name for name, p in parameters_by_name.items() if p.kind is not p.POSITIONAL_ONLY]
    for name in () if accepts_any_name else kwargs:
        if name not in names and not names:
            raise BadArgument(f"{owner} takes no arguments, got {name!r}; leave it out")
        if name not in names:
            if remedy := _argument_of_holder(name, parameters_by_name):
                raise BadArgument(f"there is no argument of {owner} named {name!r}; give {remedy}")
            raise BadArgument(unknown_name(f"argument of {owner}", name, names))
    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        missing = re.search("missing a required .*argument: '(.*)'", str(error))
        if missing:
            name = missing[1]
            annotation = parameters_by_name[name].annotation
            expected = "" if isinstance(annotation, str) else f", {describe_allowed(annotation)}"
            raise BadArgument(f"{owner} needs {name}{expected}; give it as {name}=...") from error
        remedy = f"give arguments by name: {', '.join(names)}" if names else "leave them out"
        raise BadArgument(f"{owner}: {error}; {remedy}") from error
    for name, value in arguments.items():
        parameter = signature.parameters[name]
        is_single = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if is_single and parameter.annotation is not parameter.empty:
            default = ... if parameter.default is parameter.empty else parameter.default
            raise_if_invalid(f"{name} of {owner}", value, parameter.annotation, default)


_HOLDERS = ("Federation", "Training", "Audit", "AuditOptions", "Figures")
"""Public classes that hold most settings of an audit, so that users look for these elsewhere."""


def _argument_of_holder(name: str, function_parameters: Mapping[str, inspect.Parameter]) -> str:
    """Return how to give a setting that belongs to an object of another argument, or "".

    For ``view``, this is "audit=Audit(view=...)". Objects within such an object come last.
    """
    holders = [
        (argument, kind)
        for argument, parameter in function_parameters.items()
        for kind in _holders_in(parameter.annotation)
    ]
    for argument, kind in holders:
        if name in parameters(kind):
            return f"{argument}={kind.__name__}({name}=...)"
    for argument, kind in holders:
        if nested := _argument_of_holder(name, parameters(kind)):
            return f"{argument}={kind.__name__}({nested})"
    return ""


def _holders_in(annotation: object) -> list[type]:
    names = annotation if isinstance(annotation, str) else str(get_args(annotation) or annotation)
    public = import_module("fedaudit")
    return [getattr(public, name) for name in _HOLDERS if name in re.findall(r"\w+", names)]


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(**options):
        """Define a dataclass whose constructor checks its arguments.

        Descriptions of inherited fields are added to the docstring.
        """

        def define(cls):
            cls = dataclasses.dataclass(**options)(cls)
            cls.__init__ = check_arguments(cls.__init__)
            cls.__init__.__qualname__ = f"{cls.__qualname__}.__init__"
            fields = [field.name for field in dataclasses.fields(cls) if field.init]
            return documented_by(*cls.__mro__[1:], names=fields)(cls)

        return define


Class = TypeVar("Class", bound=type)


def documented_by(*sources: type, names: Collection[str] = ()) -> Callable[[Class], Class]:
    """Return a decorator that adds attributes of other classes to a class's docstring.

    Args:
        sources: Classes that document attributes. If several describe an attribute, the first
            description is used.
        names: Attributes of the decorated class; by default, all annotated attributes.
    """

    def complete(cls: Class) -> Class:
        text = inspect.cleandoc(cls.__doc__ or "")
        cls.__doc__ = _with_attributes(
            text,
            {
                name: meaning
                for name in names or cls.__annotations__
                if not _description_in(text, name)
                if (meaning := attribute_meaning(sources, name))
            },
        )
        return cls

    return complete


def _with_attributes(text: str, added: Mapping[str, str]) -> str:
    """Add attributes to a docstring, after those that it already describes."""
    if not added:
        return text
    head, heading, tail = text.partition("Attributes:\n")
    if not heading:
        # A new section is added before the first other section, or at the end.
        section = re.search(r"^[A-Z]\w+:", text, re.MULTILINE)
        position = section.start() if section else len(text)
        head, tail = f"{text[:position].rstrip()}\n\n", f"\n{text[position:]}"
    match = re.match(r"(?: {4}.*\n?)*", tail)
    old_entries = match[0].rstrip("\n") if match else ""
    other_sections = tail[match.end() :] if match else tail
    new_entries = [f"    {name}: {meaning}" for name, meaning in added.items()]
    entries = "\n".join([*([old_entries] if old_entries else []), *new_entries])
    return f"{head}Attributes:\n{entries}\n{other_sections}".rstrip()


def attribute_meaning(classes: Sequence[type], name: str) -> str:
    """Return the description of an attribute from the first class that documents it."""
    meanings = (_description_in(inspect.cleandoc(cls.__doc__ or ""), name) for cls in classes)
    return next(filter(None, meanings), "")


def _description_in(text: str, name: str) -> str:
    """Return the description of an attribute in a docstring, or an empty string."""
    match = re.search(rf"^    {name}: (.*?)(?=^ {{0,4}}\S|\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    return match[1].rstrip() if match else ""
