"""Objects as settings: an importable name, plain settings, and a digest of their source.

Two studies differ if the names and options of their parts do. An object is serialised to the same
name and options that a study file uses (``module:Class``), if these recreate it. The name of any
other object (a class of a script or notebook, a fitted network, arrays) has a digest of all that
the object is made of. No text here contains a memory address.
"""

import dataclasses
import functools
import hashlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from torch._tensor_str import printoptions

from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.importing import KNOWN_PACKAGES, GivenObject
from fedaudit.core.tasks import refuse_mean_loss
from fedaudit.core.values import Setting

_SHOWN = 1000
"""Numbers of an array that ``repr`` shows in full, in numpy and torch."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DIGITS = 8


class PartReference(NamedTuple):
    """A part as a study has it.

    Attributes:
        name: Of a catalogue, ``module:object``, or ``module:object#digest``.
        options: Its plain settings.
        given: What the name stands for; None if a catalogue has it.
    """

    name: str
    options: dict[str, Setting]
    given: GivenObject | None = None


def part_reference(
    value: type | types.FunctionType, options: Mapping[str, object], *, kind: str
) -> PartReference:
    """Return a class or function with settings, by the name of where it is defined.

    Args:
        value: Class or function.
        options: Settings to call it with.
        kind: What it is wanted as, for refusals.

    Raises:
        BadInput: A setting is no number, text, or true or false; or a loss is no loss per sample.
    """
    if kind == "task":
        refuse_mean_loss(value, options)
    name = _name(value)
    given = GivenObject(value, name, _digest_of(value))
    return PartReference(name, plain_options(kind, name, options), given)


def plain_options(kind: str, name: str, options: Mapping[str, object]) -> dict[str, Setting]:
    """Return the settings of a part as numbers, texts, and true or false.

    Raises:
        BadInput: A setting is something else.
    """
    plain: dict[str, Setting] = {}
    for option, value in options.items():
        value = value.item() if isinstance(value, np.generic) else value
        if not isinstance(value, bool | int | float | str):
            raise BadInput(
                f"{option} of the {kind} {name!r} is {type_of(value)}, and a setting is a number, "
                "a text, or true or false; give a constructed object, or a function that holds it"
            )
        plain[option] = value
    return plain


def snapshot_reference(
    value: object, *, make: Callable[[object, str], object] | None = None, label: str = ""
) -> PartReference:
    """Return an object under a name with a digest of all that it is made of.

    Args:
        value: The object.
        make: Returns what the name stands for, of object and digest; the object itself if None.
        label: Its name; that of its class if left out.

    Raises:
        BadInput: A part of it cannot be distinguished from another.
    """
    digest = _sha256("\n".join([canonical_repr(value), *_sources(value)]))
    name = f"{label or _name(type(value))}#{digest[:_DIGITS]}"
    given = value if make is None else make(value, digest)
    return PartReference(name, {}, GivenObject(given, name, digest))


def plain_settings(value: object, *, besides: tuple[str, ...] = ()) -> dict[str, Setting] | None:
    """Return the settings that recreate an object; None if plain settings do not.

    Args:
        value: Instance of a dataclass, or of a class without settings.
        besides: Fields that are set elsewhere.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {} if not getattr(value, "__dict__", {}) and _takes_nothing(type(value)) else None
    settings: dict[str, Setting] = {}
    for field in dataclasses.fields(value):
        setting = getattr(value, field.name)
        if not field.init or field.name in besides:
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
        found: object = attrgetter(value.__qualname__)(sys.modules[module])  # type: ignore[attr-defined]
    except (AttributeError, KeyError):
        return False
    return found is value


def canonical_repr(value: object) -> str:
    """Return a text that is the same in every process, and differs for another object.

    It is that of ``repr`` for plain settings. Large arrays have a digest in addition, objects
    without a ``__repr__`` their class and attributes, and custom functions a digest of their
    source. Print options that a script or notebook has set do not change it.
    """
    with printoptions(profile="default"), _numpy_defaults():
        return _repr_of(value, ())


def _numpy_defaults() -> AbstractContextManager[object]:
    """Inside, numpy prints with its default options."""
    return np.printoptions(
        precision=8,
        threshold=_SHOWN,
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


def _repr_of(value: object, within: tuple[int, ...]) -> str:
    if id(value) in within:
        return "..."
    if isinstance(value, torch.Tensor):
        return _array(value, value.numel(), lambda: value.detach().cpu().contiguous().numpy())
    if isinstance(value, np.ndarray):
        return _array(value, value.size, lambda: np.ascontiguousarray(value))
    if isinstance(value, types.FunctionType | type | functools.partial | types.MethodType):
        return _code_repr(value)
    inner = (*within, id(value))
    if type(value) in (dict, types.MappingProxyType, tuple, list, set, frozenset):
        return _of_container(value, inner)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = dict(zip(value._fields, value, strict=True))
        return f"{type(value).__name__}({_listed(fields, inner)})"
    if _has_generated_repr_of(value):
        shown = [one.name for one in dataclasses.fields(value) if one.repr]  # type: ignore[arg-type]
        parts = {name: getattr(value, name) for name in shown}
        return f"{type(value).__qualname__}({_listed(parts, inner)})"
    if isinstance(value, torch.nn.Module):
        return f"{value!r}({_repr_of(dict(value.state_dict()), inner)})"
    if type(value).__repr__ is object.__repr__:
        return f"{_name(type(value))}({_listed(getattr(value, '__dict__', {}), inner)})"
    return _ADDRESS.sub("", repr(value))


def _listed(parts: Mapping[str, object], within: tuple[int, ...]) -> str:
    return ", ".join(f"{name}={_repr_of(one, within)}" for name, one in parts.items())


def _of_container(value: object, within: tuple[int, ...]) -> str:
    """Return a container as ``repr`` has it; sets are sorted."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_repr_of(k, within)}: {_repr_of(v, within)}" for k, v in value.items())
        return f"{{{pairs}}}" if isinstance(value, dict) else f"mappingproxy({{{pairs}}})"
    assert isinstance(value, tuple | list | set | frozenset)
    words = [_repr_of(one, within) for one in value]
    if isinstance(value, tuple):
        return f"({words[0]},)" if len(words) == 1 else f"({', '.join(words)})"
    if isinstance(value, list):
        return f"[{', '.join(words)}]"
    inside = ", ".join(sorted(words))
    if isinstance(value, set):
        return f"{{{inside}}}" if inside else "set()"
    return f"frozenset({{{inside}}})" if inside else "frozenset()"


def source_of(value: type | types.FunctionType) -> str:
    """Return the source of a class or function, with what it uses of the same module.

    If no source is kept (``python -c``), it is that of the compiled code.
    """
    return "\n".join(_definitions(value, set()))


def _definitions(value: object, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:
        return
    seen.add(id(value))
    yield _text_of(value)
    for one in _used_by(value):
        if isinstance(one, type | types.FunctionType):
            yield from _definitions(one, seen)
        else:
            yield canonical_repr(one)


def _used_by(value: object) -> Iterator[object]:
    """Yield classes, functions and plain values of its module that a definition names."""
    module = getattr(value, "__module__", "")
    if isinstance(value, type):
        yield from (base for base in value.__mro__[1:] if base.__module__ == module)
        for one in vars(value).values():
            function = getattr(one, "__func__", getattr(one, "fget", one))
            if isinstance(function, types.FunctionType):
                yield from _used_by(function)
        return
    if not isinstance(value, types.FunctionType):
        return
    around = inspect.getclosurevars(inspect.unwrap(value))
    for _, one in sorted({**around.globals, **around.nonlocals}.items()):
        ours = isinstance(one, type | types.FunctionType) and one.__module__ == module
        if ours or isinstance(one, bool | int | float | str | tuple):
            yield one


def _text_of(value: object) -> str:
    if not isinstance(value, type | types.FunctionType):
        return ""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        pass
    if isinstance(value, types.FunctionType):
        return _code_text(value.__code__)
    functions = {
        name: getattr(one, "__func__", getattr(one, "fget", one))
        for name, one in sorted(vars(value).items())
    }
    codes = [
        f"{name} {_code_text(one.__code__) if isinstance(one, types.FunctionType) else ''}"
        for name, one in functions.items()
        if not name.startswith("__") or isinstance(one, types.FunctionType)
    ]
    plain = [f"{k}={v!r}" for k, v in sorted(vars(value).items()) if isinstance(v, Setting)]
    return "\n".join([value.__qualname__, *codes, *plain])


def _code_text(code: types.CodeType) -> str:
    inner = [
        _code_text(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts
    ]
    return " ".join([code.co_name, code.co_code.hex(), repr(code.co_names), *inner])


def _sources(value: object) -> list[str]:
    """Return digests of the source of an object's class, and of all that the object holds."""
    found: dict[str, str] = {}
    waiting, seen = [value], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor | np.ndarray | bool | int | float | str | None):
            continue
        if isinstance(one, Mapping):
            waiting += [*one.values()]
            continue
        if isinstance(one, Sequence | set | frozenset):
            waiting += [*one]
            continue
        code = one if isinstance(one, type | types.FunctionType) else type(one)
        found |= _own_source(code)
        if isinstance(one, torch.nn.Module):
            waiting += [*one.children()]
        elif code is not one:
            waiting += [*getattr(one, "__dict__", {}).values()]
    return [f"{name} {digest}" for name, digest in sorted(found.items())]


def source_behind(kind: type) -> str:
    """Return the SHA-256 of a custom class's source; empty for a package of known version."""
    return next(iter(_own_source(kind).values()), "")


def _own_source(code: type | types.FunctionType) -> dict[str, str]:
    """Return the digest of a custom class's or function's source, by its name."""
    module = code.__module__ or ""
    return {} if module.partition(".")[0] in KNOWN_PACKAGES else {_name(code): _digest_of(code)}


def _digest_of(code: type | types.FunctionType) -> str:
    """Return the SHA-256 of the source that defines a class or function, and of what it uses."""
    if is_importable(code):
        # Not at the top: only studies with custom code need it.
        from fedaudit.core.definitions import definition_digest

        return definition_digest(code.__module__, code.__qualname__)
    return _sha256(source_of(code))


def _array(value: object, size: int, numbers: Callable[[], np.ndarray]) -> str:
    text = repr(value)
    if size <= _SHOWN:
        return text
    whole = numbers()
    return f"{text} {whole.shape} {whole.dtype} {hashlib.sha256(whole.data).hexdigest()}"


def _code_repr(value: object) -> str:
    if isinstance(value, functools.partial):
        inside = [canonical_repr(value.func), *map(canonical_repr, value.args)]
        inside += [f"{name}={canonical_repr(one)}" for name, one in value.keywords.items()]
        return f"functools.partial({', '.join(inside)})"
    if isinstance(value, types.MethodType):
        return f"<bound method {value.__qualname__} of {canonical_repr(value.__self__)}>"
    assert isinstance(value, type | types.FunctionType)
    text = _ADDRESS.sub("", repr(value))
    sources = _own_source(value)
    return f"{text} {next(iter(sources.values()))}" if sources else text


def _has_generated_repr_of(value: object) -> bool:
    """Return whether ``repr`` lists a dataclass's fields, which then are listed one by one."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return hasattr(type(value).__repr__, "__wrapped__")


def _takes_nothing(kind: type) -> bool:
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
