"""Conversion of membership labels and scores given by users to checked numpy arrays."""

from typing import Any, cast

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Int, Shaped

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import Origin

_NAMES = {origin.name.lower(): origin for origin in Origin}
_KNOWN = ", ".join(f"{origin.value} ({origin.name})" for origin in Origin)
_READINGS = (
    "0 is Origin.MEMBER among origins and a non-member among 0/1 labels; pass booleans (True for "
    "a member), or Origin values such as [Origin(number) for number in origin]"
)


def as_array(values: object) -> Shaped[np.ndarray, "..."]:
    """Return an array, list, table column or tensor as a numpy array.

    Tensors may require gradients, be on any device and have any floating-point type. Torch itself
    is not imported.

    Raises:
        BadInput: Entries of an array are masked.
    """
    if np.ma.is_masked(values):
        raise BadInput("some entries are masked; leave these samples out on both sides")
    if isinstance(values, list | tuple):
        values = [_on_cpu(value) for value in values] if _holds_tensors(values) else values
    return np.asarray(_on_cpu(values))


def _holds_tensors(values: list[object] | tuple[object, ...]) -> bool:
    return any(hasattr(value, "detach") for value in values)


def _on_cpu(value: object) -> object:
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    # Numpy has no bfloat16, and every smaller floating-point type is exact in double precision.
    return (tensor.double() if tensor.dtype.is_floating_point else tensor).numpy()


def as_origins(
    truth: npt.ArrayLike, samples: int, *, codes: bool = False
) -> Int[np.ndarray, " samples"]:
    """Return the origin of each sample.

    Args:
        truth: Booleans (True for a member, False for an unseen sample), ``Origin`` values, their
            names, or their numbers if a 2 is among these.
        samples: Number of samples.
        codes: Whether numbers are ``Origin`` values even if no 2 is among them.

    Raises:
        BadInput: Another length, an unknown value, values of several kinds, or numbers that could
            be origins or membership.
    """
    is_enum = isinstance(truth, list | tuple) and _all_are(truth, Origin)
    is_mixed = isinstance(truth, list | tuple) and _mixes_booleans(truth)
    try:
        values = as_array(truth)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"membership has one entry per sample: {error}; pass booleans") from error
    if values.shape != (samples,):
        raise BadInput(
            "scores and membership must have one entry a sample, "
            f"got {samples} scores and membership of shape {values.shape}"
        )
    if not samples:
        return np.empty(0, dtype=np.int64)
    if values.dtype == object:
        entries = cast(list[object], values.tolist())
        is_enum, is_mixed = _all_are(entries, Origin), _mixes_booleans(entries)
        values = np.asarray(entries) if not is_mixed else values
    if is_mixed:
        raise BadInput(f"membership mixes booleans with other values; {_READINGS}")
    if values.dtype == bool:
        return np.where(values, Origin.MEMBER, Origin.UNSEEN).astype(np.int64)
    if values.dtype.kind in "UST":
        return _named(values)
    if values.dtype.kind not in "iu":
        raise BadInput(
            f"membership is given as booleans or origins, got {values.dtype}; {_READINGS}"
        )
    strange = sorted({str(value) for value in values[~np.isin(values, list(Origin))]})
    if strange:
        raise BadInput(f"unknown origins {', '.join(strange[:5])}; known: {_KNOWN}; {_READINGS}")
    if not is_enum and not codes and Origin.UNSEEN not in values:
        raise BadInput(f"whole numbers without a 2 can be read in two ways: {_READINGS}")
    return values.astype(np.int64)


def as_truth(is_member: npt.ArrayLike, samples: int) -> Bool[np.ndarray, " samples"]:
    """Return whether each sample is a member; see :func:`as_origins`.

    Raises:
        BadInput: As :func:`as_origins` does.
    """
    members: Bool[np.ndarray, " samples"] = as_origins(is_member, samples) == Origin.MEMBER
    return members


def as_strata(strata: npt.ArrayLike, samples: int) -> Shaped[np.ndarray, " samples"]:
    """Return the stratum of each sample.

    Raises:
        BadInput: Another length, or samples without a stratum.
    """
    labels = as_array(strata)
    if labels.shape != (samples,):
        raise BadInput(
            f"every sample needs a stratum, got strata of shape {labels.shape} for {samples} scores"
        )
    # NaN is unlike itself, and would leave its samples out of all strata.
    if labels.dtype.kind in "fcO" and any(map(_is_missing, labels.tolist())):
        raise BadInput("some samples have no stratum; leave them out, or give them one")
    return labels


def _is_missing(value: object) -> bool:
    try:
        return value is None or bool(value != value)
    # Missing entries of pandas compare as neither.
    except TypeError:
        return True


def refuse_misaligned(scores: object, truth: object) -> None:
    """Raise if two table columns have different indices: their rows belong to other samples.

    Raises:
        BadInput: They have.
    """
    indices: list[Any] = [getattr(column, "index", None) for column in (scores, truth)]
    # Lists have a method called index.
    if all(hasattr(index, "equals") for index in indices) and not indices[0].equals(indices[1]):
        raise BadInput(
            "scores and membership are table columns with different indices; bring both to one "
            "order, or pass .to_numpy() if rows correspond by position"
        )


def _all_are(values: list[object] | tuple[object, ...], kind: type) -> bool:
    return bool(values) and all(isinstance(value, kind) for value in values)


def _mixes_booleans(values: list[object] | tuple[object, ...]) -> bool:
    booleans = sum(isinstance(value, bool | np.bool_) for value in values)
    return 0 < booleans < len(values)


def _named(values: Shaped[np.ndarray, " samples"]) -> Int[np.ndarray, " samples"]:
    names = [str(value).strip().lower() for value in values.tolist()]
    unknown = sorted(set(names) - set(_NAMES))
    if unknown:
        raise BadInput(
            f"unknown origins {', '.join(unknown[:5])}; known: {', '.join(_NAMES)}; or pass "
            "booleans (True for a member)"
        )
    return np.array([_NAMES[name] for name in names], dtype=np.int64)
