"""Filters of the user's own: any function from update to update is a defense to be audited."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaudit.core.arguments import checked
from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.importing import imported
from fedaudit.core.seeds import seed_globally
from fedaudit.core.values import Params, flat
from fedaudit.fl.hooks import ConfiguredDefense, Turn
from fedaudit.observe.round import Upload


@dataclass(frozen=True)
class Filter(ConfiguredDefense):
    """Passes the upload through a function of the user's own, and sends what comes back.

    The function is given tensors by name, copies that it may change, and returns tensors of the
    same names and shapes. What it draws from torch's generator is drawn anew for each client and
    round, from the run's seed; what it draws elsewhere is its own affair. The cosine between
    the upload before and after is noted in each round as ``filter_cosine``, unless one of them
    is zero.

    Attributes:
        function: From update to update. With several workers it must be importable.
    """

    function: Callable[[Params], object]

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round: the filtered upload.

        Raises:
            BadInput: The function fails, or what it returns is no such upload.
        """
        raw = upload.values
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            seed_globally(int(torch.randint(2**62, (), generator=turn.rng("filter"))))
            try:
                result = self.function({n: value.clone() for n, value in raw.items()})
            except Exception as error:
                raise BadInput(
                    f"{self._what} failed on client {turn.client}'s upload of round "
                    f"{turn.round}: {type(error).__name__}: {error}"
                ) from error
        sent = self._checked(result, raw)
        cosine = _cosine(flat(raw).double(), flat(sent).double())
        if cosine is not None:
            turn.note("filter_cosine", cosine)
        return replace(upload, values=sent)

    @property
    def _what(self) -> str:
        return f"the filter {getattr(self.function, '__qualname__', repr(self.function))!r}"

    def _checked(self, result: object, raw: Params) -> Params:
        """The result in the upload's own order and precision, if it is one."""
        if not isinstance(result, Mapping):
            raise BadInput(
                f"{self._what} returned {type_of(result)}; a filter takes tensors by "
                "name and returns tensors by the same names"
            )
        if set(result) != set(raw):
            odd = sorted(map(str, set(result) ^ set(raw)))
            raise BadInput(
                f"{self._what} must return the names that it is given; lacking or new: "
                f"{', '.join(odd)}"
            )
        return {name: self._checked_tensor(name, result[name], raw[name]) for name in raw}

    def _checked_tensor(self, name: str, value: object, raw: Tensor) -> Tensor:
        if not isinstance(value, Tensor) or value.shape != raw.shape or value.is_complex():
            given = (
                f"a {value.dtype} tensor of shape {tuple(value.shape)}"
                if isinstance(value, Tensor)
                else type_of(value)
            )
            raise BadInput(
                f"{self._what} returned {given} as {name!r}; return a real tensor of shape "
                f"{tuple(raw.shape)}"
            )
        sent = value.detach().to(raw)
        if not bool(sent.isfinite().all()):
            raise BadInput(
                f"{self._what} returned entries of {name!r} that are not finite; check it for "
                "divisions by zero, such as on an update of zeros"
            )
        return sent


@checked
def imported_filter(*, path: str) -> Filter:
    """Passes the upload through a function of the user's own, from where it can be imported.

    It takes tensors by name and returns tensors of the same names and shapes.

    Args:
        path: ``package.module:callable``; importable by every worker process too.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.imported_filter(path="copy:copy").function.__name__
        'copy'

    Raises:
        BadInput: The path cannot be imported, or is nothing to call.
    """
    return Filter(imported(path, "filter"))


def _cosine(left: Tensor, right: Tensor) -> Tensor | None:
    lengths = left.norm() * right.norm()
    return (left @ right / lengths)[None] if lengths > 0 else None
