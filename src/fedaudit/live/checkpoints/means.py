"""Comparison of saved global models with the mean of the clients' models."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId, Model
from fedaudit.live.checkpoints.files import StoredWeights
from fedaudit.live.checkpoints.rounds import CheckpointModels, Saved
from fedaudit.live.clients import ClientRef, number_of
from fedaudit.live.weights import Weights

_MAX_RELATIVE_DISTANCE, _ROUNDING = 0.01, 1e-6
"""Largest distance of a mean from the global model: relative to the largest distance of a client
from the mean, and to the norm of the global model."""

_STATISTICS = ("running_mean", "running_var")
"""Names of running statistics, which some servers do not average."""


@dataclass
class Means:
    """Comparison of the mean of the clients' models with the saved global models.

    Attributes:
        models: The models of each round.
        sizes: Training samples of each client, by number; empty for equal weights.
        by_name: Client, by number or name, for each name in files.
    """

    models: CheckpointModels
    sizes: Mapping[ClientId, int]
    by_name: Mapping[str, ClientRef]
    _n_equal: int = 0
    _n_different: int = 0

    @property
    def are_known(self) -> bool:
        """True if all global models so far are means of the clients' models."""
        return self._n_equal > 0 and not self._n_different

    def check_order(self, saved: Saved) -> None:
        """Raise if the first round shows that models were saved at another time of the round."""
        index = min(index for index, files in self.models.clients.items() if files)
        after = self.models.after
        shifted = self.models.sent.get(index) if saved == "sent" else after.get(index + 1)
        if shifted is None or index not in after:
            return
        uploads = self.models.uploads(index)
        if self._is_mean(uploads, shifted) and not self._is_mean(uploads, after[index]):
            choice = "after" if saved == "sent" else "sent"
            raise BadInput(
                f"the mean of the clients' models of round {index} is not the global model that "
                f"saved={saved!r} takes for it, but that of saved={choice!r}; pass this"
            )

    def note(self, index: int, uploads: Mapping[str, StoredWeights]) -> str:
        """Return a note if the global model after a round is not the mean of the uploads."""
        after = self.models.after.get(index)
        if after is None:
            return ""
        if self._is_mean(uploads, after):
            self._n_equal += 1
            return ""
        self._n_different += 1
        if self.sizes:
            return (
                "the global model after it is not the mean of the saved clients' models; models "
                "of further clients may be missing, or the server averages in another way"
            )
        return (
            "the global model after it is not the plain mean of the saved clients' models; pass "
            "sizes= if the server weights clients by their numbers of samples"
        )

    def copies(
        self, uploads: Mapping[str, StoredWeights], sent: Weights, after: Weights | None
    ) -> str:
        """Return a note if files of one round have the same weights; empty if none do.

        A client that sends back the model that it was sent is no copy of another one.
        """
        start, seen = _vector(sent), dict[bytes, str]()
        if after is not None and uploads and torch.equal(_vector(after), start):
            return "the global model after it is the one before it, so that a file may be a copy"
        for name, upload in uploads.items():
            vector = _vector(upload)
            digest = hashlib.sha256(vector.numpy().tobytes()).digest()
            other = seen.setdefault(digest, name)
            if other != name and not torch.equal(vector, start):
                return (
                    f"the models of clients {other} and {name} are equal, so that one may be a copy"
                )
        return ""

    def warning(self) -> str:
        """Return a sentence on rounds whose global model is not a mean; empty if all are."""
        if not self._n_different:
            return ""
        total = self._n_equal + self._n_different
        return (
            f"warning: after {self._n_different} of {total} rounds, the global model is not the "
            f"{'weighted' if self.sizes else 'plain'} mean of the clients' models; pass sizes= if "
            "the server weights clients, and check whose models the files are"
        )

    def _is_mean(self, uploads: Mapping[str, StoredWeights], after: Path | Weights) -> bool:
        """Return True if a model is the weighted mean of the uploads, up to rounding."""
        weights = [
            self.sizes[number_of(self.by_name[name])] if self.sizes else 1 for name in uploads
        ]
        vectors = [_vector(upload) for upload in uploads.values()]
        target = _vector(self.models.weights(after))
        if len({len(vector) for vector in (target, *vectors)}) > 1 or sum(weights) <= 0:
            return False
        mean = torch.zeros_like(target)
        for weight, vector in zip(weights, vectors, strict=True):
            mean += weight / sum(weights) * vector
        client_distance = max(float((vector - mean).norm()) for vector in vectors)
        limit = max(_MAX_RELATIVE_DISTANCE * client_distance, _ROUNDING * float(target.norm()))
        return float((mean - target).norm()) <= limit


def _vector(weights: Weights) -> Tensor:
    """Return all parameters as one vector, in an order that does not depend on the file."""
    if isinstance(weights, nn.Module):
        weights = weights.state_dict()
    elif isinstance(weights, Model):
        weights = weights.tensors()
    pairs = list(weights.items()) if isinstance(weights, Mapping) else list(enumerate(weights))
    values = [
        torch.as_tensor(value)
        for name, value in sorted(pairs, key=lambda pair: str(pair[0]))
        if not str(name).endswith(_STATISTICS)
    ]
    floating = [
        value.detach().double().reshape(-1) for value in values if value.is_floating_point()
    ]
    return torch.cat(floating or [torch.zeros(0, dtype=torch.float64)])
