"""References to Python objects in studies: a name, plain settings, and a digest of the source.

Two studies differ if the names or options of their parts differ. An object is serialised to the
name and options that a study file uses (``module:Class``), if these recreate it. The name of any
other object (a class of a script or notebook, a fitted network, arrays) includes a digest of all
values and source code of the object. No text here contains a memory address.
"""

import dataclasses
import functools
import hashlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._tensor_str import printoptions

from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.importing import KNOWN_PACKAGES, RegisteredObject
from fedaudit.core.naming import DataSetting
from fedaudit.core.task_catalogue import raise_if_mean_loss
from fedaudit.core.values import Setting

_MAX_SHOWN = 1000
"""Size up to which ``repr`` shows all numbers of an array, in numpy and torch."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DIGEST_LENGTH = 8


class PartReference(NamedTuple):
    """Name and settings by which a study refers to a part.

    Attributes:
        name: Catalogue name, ``module:object``, or ``module:object#digest``.
        options: Plain settings of the part.
        registered: Object that the name refers to; None for catalogue names.
    """

    name: str
    options: Mapping[str, DataSetting]
    registered: RegisteredObject | None = None


def part_reference(
    value: type | types.FunctionType, options: Mapping[str, object], *, kind: str
) -> PartReference:
    """Return the reference ``module:object`` to a class or function, with settings.

    Raises:
        BadInput: A setting is not a number, text, or true or false, or a loss does not return one
            value per sample.
    """
    if kind == "task":
        raise_if_mean_loss(value, options)
    name = _name(value)
    registered = RegisteredObject(value, name, _source_digest(value))
    return PartReference(name, plain_options(kind, name, options), registered)


def plain_options(kind: str, name: str, options: Mapping[str, object]) -> dict[str, DataSetting]:
    """Return the settings of a part as numbers, texts, and true or false.

    Settings of data sets may also be lists and dictionaries of these.

    Raises:
        BadInput: A setting is something else.
    """
    plain: dict[str, DataSetting] = {}
    for option, value in options.items():
        value = value.item() if isinstance(value, np.generic) else value
        if kind == "data set" and isinstance(value, Mapping | list | tuple):
            plain[option] = _plain_tree(value)
            continue
        if not isinstance(value, bool | int | float | str):
            raise BadInput(
                f"{option} of the {kind} {name!r} is {type_of(value)}, but a setting is a number, "
                "a text, or true or false; pass a constructed object, or a function that "
                "constructs the part with this value"
            )
        plain[option] = value
    return plain


def _plain_tree(value: object) -> Any:
    """Return a value with dictionaries and lists in place of other mappings and tuples."""
    if isinstance(value, Mapping):
        return {str(key): _plain_tree(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_plain_tree, value)]
    return value.item() if isinstance(value, np.generic) else value


def snapshot_reference(
    value: object, *, make: Callable[[object, str], object] | None = None, label: str = ""
) -> PartReference:
    """Return a reference to an object by a name that includes a digest of its values and source.

    Args:
        value: The object.
        make: Function of object and digest that returns what the name refers to; by default, the
            name refers to the object.
        label: Name before the digest; by default, the name of the object's class.
    """
    digest = _sha256("\n".join([canonical_repr(value), *_source_digests(value)]))
    name = f"{label or _name(type(value))}#{digest[:_DIGEST_LENGTH]}"
    target = value if make is None else make(value, digest)
    return PartReference(name, {}, RegisteredObject(target, name, digest))


def plain_settings(value: object, *, exclude: tuple[str, ...] = ()) -> dict[str, Setting] | None:
    """Return the settings that recreate an object; None if plain settings do not suffice.

    Args:
        value: Instance of a dataclass, or of a class without settings.
        exclude: Names of fields to leave out, since they are set elsewhere.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return (
            {} if not getattr(value, "__dict__", {}) and _needs_no_arguments(type(value)) else None
        )
    settings: dict[str, Setting] = {}
    for field in dataclasses.fields(value):
        setting = getattr(value, field.name)
        if not field.init or field.name in exclude:
            continue
        if not isinstance(setting, bool | int | float | str):
            return None
        if field.default is dataclasses.MISSING or setting != field.default:
            settings[field.name] = setting
    return settings


def is_importable(value: object) -> bool:
    """Return whether another process can import a class or function by its name."""
    module = getattr(value, "__module__", None) or ""
    if module in ("", "__main__"):
        return False
    try:
        imported: object = attrgetter(value.__qualname__)(sys.modules[module])  # type: ignore[attr-defined]
    except (AttributeError, KeyError):
        return False
    return imported is value


def canonical_repr(value: object) -> str:
    """Return a text that is the same in every process, and differs between different objects.

    For plain settings the text is their ``repr``. For large arrays, a digest is added. For objects
    without a ``__repr__``, the text lists the class and the attributes. For custom functions, it
    contains a digest of their source. Print options of numpy and torch do not change the text.
    """
    with printoptions(profile="default"), _numpy_defaults():
        return _repr_of(value, ())


def _numpy_defaults() -> AbstractContextManager[object]:
    return np.printoptions(
        precision=8,
        threshold=_MAX_SHOWN,
        edgeitems=3,
        linewidth=75,
        suppress=False,
        nanstr="nan",
        infstr="inf",
        sign="-",
        formatter=None,
        floatmode="maxprec",
        legacy=False,
    )


def _repr_of(value: object, enclosing: tuple[int, ...]) -> str:
    """Return the canonical text of a value; ``enclosing`` has the ids of objects around it."""
    if id(value) in enclosing:
        return "..."
    if isinstance(value, torch.Tensor):
        return _array_repr(value, value.numel(), lambda: value.detach().cpu().contiguous().numpy())
    if isinstance(value, np.ndarray):
        return _array_repr(value, value.size, lambda: np.ascontiguousarray(value))
    if isinstance(value, types.FunctionType | type | functools.partial | types.MethodType):
        return _code_repr(value)
    inner = (*enclosing, id(value))
    if type(value) in (dict, types.MappingProxyType, tuple, list, set, frozenset):
        return _container_repr(value, inner)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = dict(zip(value._fields, value, strict=True))
        return f"{type(value).__name__}({_format_fields(fields, inner)})"
    if _has_generated_repr(value):
        names = [field.name for field in dataclasses.fields(value) if field.repr]  # type: ignore[arg-type]
        parts = {name: getattr(value, name) for name in names}
        return f"{type(value).__qualname__}({_format_fields(parts, inner)})"
    if isinstance(value, torch.nn.Module):
        return f"{value!r}({_repr_of(dict(value.state_dict()), inner)})"
    if type(value).__repr__ is object.__repr__:
        return f"{_name(type(value))}({_format_fields(getattr(value, '__dict__', {}), inner)})"
    return _ADDRESS.sub("", repr(value))


def _format_fields(fields: Mapping[str, object], enclosing: tuple[int, ...]) -> str:
    return ", ".join(f"{name}={_repr_of(value, enclosing)}" for name, value in fields.items())


def _container_repr(value: object, enclosing: tuple[int, ...]) -> str:
    if isinstance(value, Mapping):
        pairs = ", ".join(
            f"{_repr_of(key, enclosing)}: {_repr_of(entry, enclosing)}"
            for key, entry in value.items()
        )
        return f"{{{pairs}}}" if isinstance(value, dict) else f"mappingproxy({{{pairs}}})"
    assert isinstance(value, tuple | list | set | frozenset)
    items = [_repr_of(item, enclosing) for item in value]
    if isinstance(value, tuple):
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(value, list):
        return f"[{', '.join(items)}]"
    # Sets are sorted, since their order differs between processes.
    sorted_items = ", ".join(sorted(items))
    if isinstance(value, set):
        return f"{{{sorted_items}}}" if sorted_items else "set()"
    return f"frozenset({{{sorted_items}}})" if sorted_items else "frozenset()"


def source_of(value: type | types.FunctionType) -> str:
    """Return the source of a class or function, with everything it uses from the same module.

    If there is no source file (``python -c``), return a text of the compiled code.
    """
    return "\n".join(_definitions(value, set()))


def _definitions(value: object, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:
        return
    seen.add(id(value))
    yield _definition_text(value)
    for used in _used_by(value):
        if isinstance(used, type | types.FunctionType):
            yield from _definitions(used, seen)
        else:
            yield canonical_repr(used)


def _used_by(value: object) -> Iterator[object]:
    """Yield the classes, functions and plain values that a definition uses from its module."""
    module = getattr(value, "__module__", "")
    if isinstance(value, type):
        yield from (base for base in value.__mro__[1:] if base.__module__ == module)
        for member in vars(value).values():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, types.FunctionType):
                yield from _used_by(function)
        return
    if not isinstance(value, types.FunctionType):
        return
    captured = inspect.getclosurevars(inspect.unwrap(value))
    for _, used in sorted({**captured.globals, **captured.nonlocals}.items()):
        is_local = isinstance(used, type | types.FunctionType) and used.__module__ == module
        if is_local or isinstance(used, bool | int | float | str | tuple):
            yield used


def _definition_text(value: object) -> str:
    if not isinstance(value, type | types.FunctionType):
        return ""
    source = ""
    with suppress(OSError, TypeError):
        source = inspect.getsource(value)
    if isinstance(value, types.FunctionType):
        # The source of a lambda is its whole line, which may contain several lambdas.
        is_ambiguous = value.__name__ == "<lambda>" and source.count("lambda") > 1
        return source + _code_text(value.__code__) if is_ambiguous or not source else source
    if source:
        return source
    functions = {
        name: getattr(member, "__func__", getattr(member, "fget", member))
        for name, member in sorted(vars(value).items())
    }
    codes = [
        f"{name} {_code_text(member.__code__) if isinstance(member, types.FunctionType) else ''}"
        for name, member in functions.items()
        if not name.startswith("__") or isinstance(member, types.FunctionType)
    ]
    plain = [f"{k}={v!r}" for k, v in sorted(vars(value).items()) if isinstance(v, Setting)]
    return "\n".join([value.__qualname__, *codes, *plain])


def _code_text(code: types.CodeType) -> str:
    inner = [
        _code_text(constant) if isinstance(constant, types.CodeType) else repr(constant)
        for constant in code.co_consts
    ]
    return " ".join([code.co_name, code.co_code.hex(), repr(code.co_names), *inner])


def _source_digests(value: object) -> list[str]:
    """Return digests of the source of an object's class, and of the classes of its attributes."""
    digests: dict[str, str] = {}
    pending, seen_objects = [value], set[int]()
    while pending:
        item = pending.pop()
        if id(item) in seen_objects:
            continue
        seen_objects.add(id(item))
        if isinstance(item, torch.Tensor | np.ndarray | bool | int | float | str | None):
            continue
        if isinstance(item, Mapping):
            pending += [*item.values()]
            continue
        if isinstance(item, Sequence | set | frozenset):
            pending += [*item]
            continue
        code = item if isinstance(item, type | types.FunctionType) else type(item)
        digests |= _custom_source_digest(code)
        if isinstance(item, torch.nn.Module):
            pending += [*item.children()]
        elif code is not item:
            pending += [*getattr(item, "__dict__", {}).values()]
    return [f"{name} {digest}" for name, digest in sorted(digests.items())]


def class_source_digest(kind: type) -> str:
    """Return the SHA-256 of a custom class's source; empty for a known package."""
    return next(iter(_custom_source_digest(kind).values()), "")


def _custom_source_digest(code: type | types.FunctionType) -> dict[str, str]:
    """Return the digest of a definition's source by its name; empty for a known package."""
    module = code.__module__ or ""
    return {} if module.partition(".")[0] in KNOWN_PACKAGES else {_name(code): _source_digest(code)}


def _source_digest(code: type | types.FunctionType) -> str:
    if is_importable(code):
        # Imported here, since only studies with custom code need it.
        from fedaudit.core.definitions import definition_digest

        return definition_digest(code.__module__, code.__qualname__)
    return _sha256(source_of(code))


def _array_repr(value: object, size: int, numbers: Callable[[], np.ndarray]) -> str:
    text = repr(value)
    if size <= _MAX_SHOWN:
        return text
    array = numbers()
    return f"{text} {array.shape} {array.dtype} {hashlib.sha256(array.data).hexdigest()}"


def _code_repr(value: object) -> str:
    if isinstance(value, functools.partial):
        arguments = [canonical_repr(value.func), *map(canonical_repr, value.args)]
        arguments += [
            f"{name}={canonical_repr(argument)}" for name, argument in value.keywords.items()
        ]
        return f"functools.partial({', '.join(arguments)})"
    if isinstance(value, types.MethodType):
        return f"<bound method {value.__qualname__} of {canonical_repr(value.__self__)}>"
    assert isinstance(value, type | types.FunctionType)
    text = _ADDRESS.sub("", repr(value))
    digests = _custom_source_digest(value)
    return f"{text} {next(iter(digests.values()))}" if digests else text


def _has_generated_repr(value: object) -> bool:
    """Return whether the ``repr`` of a dataclass is the generated one, which lists its fields."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return hasattr(type(value).__repr__, "__wrapped__")


def _needs_no_arguments(kind: type) -> bool:
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError):
        return False
    return True


def _name(value: object) -> str:
    module = getattr(value, "__module__", "") or "__main__"
    return f"{module}:{getattr(value, '__qualname__', type(value).__qualname__)}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
