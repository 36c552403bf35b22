"""Comparison of the mean of the clients' models with the saved global models."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, format_assignment, format_option
from fedaudit.core.values import ClientId, Model
from fedaudit.live.checkpoints.files import StoredWeights
from fedaudit.live.checkpoints.rounds import CheckpointModels, Saved
from fedaudit.live.weights import Weights

_MAX_RELATIVE_DISTANCE, _MAX_ROUNDING = 0.01, 1e-6
"""Largest distance of a mean from the global model: a fraction of the largest distance of a client
from the mean, plus a fraction of the norm of the global model. For models in 16 bits, the
second fraction is half the spacing of their numbers."""

_STATISTICS = ("running_mean", "running_var")
"""Running statistics, which some servers do not average, so they are not compared."""


@dataclass
class MeanCheck:
    """Comparison of the mean of the clients' models with the saved global models.

    Attributes:
        models: The models of each round.
        sizes: Number of training samples of each client; empty for equal weights.
        number_of_name: Client's number for each client's name in file names.
    """

    models: CheckpointModels
    sizes: Mapping[ClientId, int]
    number_of_name: Mapping[str, ClientId]
    _is_mean_after: dict[int, bool] = field(default_factory=dict)
    _with_faulty_upload: set[int] = field(default_factory=set)

    def compare_all(self) -> None:
        """Compare the mean of each round with the global model after it.

        Raises:
            BadInput: The mean of a round is the global model after another round.
        """
        for index, files in self.models.clients.items():
            if files and index in self.models.after:
                after = self.models.after[index]
                uploads = self.models.uploads(index)
                self._is_mean_after[index] = self._is_mean(uploads, after)
                if not (self._is_mean_after[index] or _are_comparable(uploads)):
                    self._with_faulty_upload.add(index)
        exchanged = [index for index in self._is_mean_after if self.contradicts_other_rounds(index)]
        for index in exchanged[1:]:
            first = exchanged[0]
            if self._is_mean(self.models.uploads(first), self.models.after[index]):
                raise BadInput(
                    f"the mean of the clients' models of round {first} is the global model of "
                    f"round {index}, so files of both rounds are exchanged; correct their names"
                )

    @property
    def average_is_known(self) -> bool:
        """True if all saved global models are means of the clients' models."""
        return bool(self._is_mean_after) and all(self._is_mean_after.values())

    def contradicts_other_rounds(self, index: int) -> bool:
        """Return True if only this round's global model is no mean, among rounds of its clients."""
        # The recorder reports an upload that cannot be measured, which explains the difference.
        if self._is_mean_after.get(index, True) or index in self._with_faulty_upload:
            return False
        clients = self.models.clients[index].keys()
        return any(
            is_mean and self.models.clients[other].keys() == clients
            for other, is_mean in self._is_mean_after.items()
        )

    def check_saved(self, saved: Saved) -> None:
        """Raise if global models were saved at another time of a round than ``saved`` states.

        In that case the mean of the clients' models of the first round is the global model of
        the round before or after.
        """
        index = min(index for index, files in self.models.clients.items() if files)
        after = self.models.after
        neighbour = self.models.sent.get(index) if saved == "sent" else after.get(index + 1)
        if neighbour is None or index not in after:
            return
        uploads = self.models.uploads(index)
        if self._is_mean(uploads, neighbour) and not self._is_mean(uploads, after[index]):
            choice = "after" if saved == "sent" else "sent"
            raise BadInput(
                f"the mean of the clients' models of round {index} is not the global model that "
                f"{format_assignment('saved', repr(saved))} takes for it, but that of "
                f"{format_assignment('saved', repr(choice))}; pass "
                f"{format_assignment('saved', repr(choice))}"
            )

    def fault(self, index: int) -> str:
        """Return a fault if the global model after a round is not the mean; empty if it is."""
        if self._is_mean_after.get(index, True):
            return ""
        if self.contradicts_other_rounds(index):
            return (
                "the global model after it is not the mean of the clients' models, unlike after "
                "other rounds of the same clients, so files may be of other rounds or clients"
            )
        if self.sizes:
            return (
                "the global model after it is not the mean of the saved clients' models; models "
                "of further clients may be missing, or the server does not compute a weighted mean"
            )
        return (
            "the global model after it is not the plain mean of the saved clients' models; pass "
            f"{format_option('sizes')} if the server weights clients by their numbers of samples"
        )

    def warning(self) -> str:
        """Return a warning if the global model of a round was not the mean; empty otherwise."""
        if all(self._is_mean_after.values()):
            return ""
        agreements, sizes = [*self._is_mean_after.values()], format_option("sizes")
        kind, advice = "plain", f"pass {sizes} if the server weights clients"
        if self.sizes:
            kind, advice = "weighted", f"check the numbers in {sizes}"
        return (
            f"warning: after {agreements.count(False)} of {len(agreements)} rounds, the global "
            f"model is not the {kind} mean of the clients' models; {advice}, and check the client "
            "of each file"
        )

    def _is_mean(self, uploads: Mapping[str, StoredWeights], after: Path | Weights) -> bool:
        """Return True if a model is the weighted mean of the finite uploads, up to rounding."""
        target = _vector(self.models.weights(after))
        vector_of_name = {name: _vector(upload) for name, upload in uploads.items()}
        # The recorder assumes that the server omits an upload with a value that is not finite.
        names = [name for name, vector in vector_of_name.items() if bool(vector.isfinite().all())]
        vectors = [vector_of_name[name] for name in names]
        sizes = [self.sizes[self.number_of_name[name]] if self.sizes else 1 for name in names]
        if len({len(vector) for vector in (target, *vectors)}) > 1 or sum(sizes) <= 0:
            return False
        mean = torch.zeros_like(target)
        for size, vector in zip(sizes, vectors, strict=True):
            mean += size / sum(sizes) * vector
        client_distance = max(float((vector - mean).norm()) for vector in vectors)
        spacing = max(map(number_spacing, (*uploads.values(), self.models.weights(after))))
        rounding = max(_MAX_ROUNDING, spacing / 2) * float(target.norm())
        limit = _MAX_RELATIVE_DISTANCE * client_distance + rounding
        return float((mean - target).norm()) <= limit


def fault_of_copies(
    uploads: Mapping[str, StoredWeights], sent: Weights, after: Weights | None
) -> str:
    """Return a fault if files of one round have the same weights; empty if all differ.

    A client may return the model that it was sent without changes. Such models do not count as
    copies.
    """
    start, name_of_digest = _vector(sent), dict[bytes, str]()
    if after is not None and uploads and torch.equal(_vector(after), start):
        return "the global models before and after it are equal, so one file may be a copy"
    for name, upload in uploads.items():
        vector = _vector(upload)
        digest = hashlib.sha256(vector.numpy().tobytes()).digest()
        first = name_of_digest.setdefault(digest, name)
        if first != name and not torch.equal(vector, start):
            return f"the models of clients {first} and {name} are equal, so one may be a copy"
    return ""


def _are_comparable(uploads: Mapping[str, StoredWeights]) -> bool:
    """Return True if all uploads are finite and have the same number of values."""
    vectors = [_vector(upload) for upload in uploads.values()]
    is_finite = all(bool(vector.isfinite().all()) for vector in vectors)
    return is_finite and len({len(vector) for vector in vectors}) == 1


def number_spacing(weights: Weights) -> float:
    """Return the relative spacing of the coarsest floating-point type in weights; 0 without one."""
    return max((torch.finfo(value.dtype).eps for value in _parameters(weights)), default=0.0)


def _vector(weights: Weights) -> Tensor:
    """Return all parameters as one vector, sorted by name so that files are comparable."""
    vectors = [value.double().reshape(-1) for value in _parameters(weights)]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *vectors])


def _parameters(weights: Weights) -> list[Tensor]:
    """Return all floating-point tensors but running statistics, sorted by name."""
    if isinstance(weights, nn.Module):
        weights = weights.state_dict()
    elif isinstance(weights, Model):
        weights = weights.tensors()
    pairs = list(weights.items()) if isinstance(weights, Mapping) else list(enumerate(weights))
    values = [
        torch.as_tensor(array).detach()
        for name, array in sorted(pairs, key=lambda pair: str(pair[0]))
        if not str(name).endswith(_STATISTICS)
    ]
    return [value for value in values if value.is_floating_point()]
