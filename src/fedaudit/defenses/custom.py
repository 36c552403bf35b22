"""Custom defenses: a user's function that changes the upload (catalogue name "filter")."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaudit.core.arguments import check_arguments
from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.importing import import_callable
from fedaudit.core.seeds import seed_globally
from fedaudit.core.values import Params, flat
from fedaudit.fl.hooks import ConfiguredDefense, TrainingContext
from fedaudit.observe.round import Upload


@dataclass(frozen=True)
class CustomUploadDefense(ConfiguredDefense):
    """Defense that applies a custom function to the upload.

    The function receives copies of the upload's tensors by name, which it may change in place. It
    must return tensors with the same names and shapes. Torch's generator is seeded for each client
    and round from the run's seed; other random generators are not seeded. In each round, the cosine
    between the original and the filtered upload is recorded as ``filter_cosine``, unless one of
    them is zero.

    Attributes:
        function: Function of the upload's tensors. With several workers, it must be importable.
    """

    function: Callable[[Params], object]

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        original = upload.values
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            seed_globally(int(torch.randint(2**62, (), generator=context.rng("filter"))))
            try:
                result = self.function({n: value.clone() for n, value in original.items()})
            except Exception as error:
                raise BadInput(
                    f"{self._description} failed on client {context.client}'s upload of round "
                    f"{context.round}: {type(error).__name__}: {error}"
                ) from error
        filtered = self._check_result(result, original)
        before, after = flat(original).double(), flat(filtered).double()
        norms = before.norm() * after.norm()
        if norms > 0:
            context.note("filter_cosine", (before @ after / norms)[None])
        return replace(upload, values=filtered)

    @property
    def _description(self) -> str:
        return f"the filter {getattr(self.function, '__qualname__', repr(self.function))!r}"

    def _check_result(self, result: object, original: Params) -> Params:
        """Check the function's result, and convert it to the order and precision of the upload."""
        if not isinstance(result, Mapping):
            raise BadInput(
                f"{self._description} returned {type_of(result)}; a filter receives tensors by "
                "name and must return tensors with the same names"
            )
        if set(result) != set(original):
            differing = sorted(map(str, set(result) ^ set(original)))
            raise BadInput(
                f"{self._description} must return the names that it receives; missing or added: "
                f"{', '.join(differing)}"
            )
        return {name: self._check_tensor(name, result[name], original[name]) for name in original}

    def _check_tensor(self, name: str, value: object, original: Tensor) -> Tensor:
        if not isinstance(value, Tensor) or value.shape != original.shape or value.is_complex():
            description = type_of(value)
            if isinstance(value, Tensor):
                description = f"a {value.dtype} tensor of shape {tuple(value.shape)}"
            raise BadInput(
                f"{self._description} returned {description} as {name!r}; return a real tensor of "
                f"shape {tuple(original.shape)}"
            )
        filtered = value.detach().to(original)
        if not bool(filtered.isfinite().all()):
            raise BadInput(
                f"{self._description} returned entries of {name!r} that are not finite; check "
                "the filter for divisions by zero, which can occur if the update is zero"
            )
        return filtered


@check_arguments
def imported_filter(*, path: str) -> CustomUploadDefense:
    """Defense that applies a custom function to the upload, given by its import path.

    The function receives tensors by name and returns tensors with the same names and shapes.

    Args:
        path: Import path ``package.module:callable``, importable in every worker process.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.imported_filter(path="copy:copy").function.__name__
        'copy'

    Raises:
        BadInput: The path cannot be imported, or is not callable.
    """
    return CustomUploadDefense(import_callable(path, "filter"))
