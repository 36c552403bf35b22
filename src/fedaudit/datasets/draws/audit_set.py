"""The audited samples and the truth about them: who trained on what."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core import NOBODY, ClientId, Samples
from fedaudit.datasets.dataset import Dataset
from fedaudit.errors import Damaged
from fedaudit.origin import Origin


@dataclass(frozen=True)
class AuditSet:
    """Samples to be attacked, the same for every client and round, and their true owners.

    Attributes:
        samples: The audited samples, in an order that says nothing about them.
        owner: The client that trains on each, or ``NOBODY``.
        panel: The target client for which a fair draw decided the sample's owner, or
            ``NOBODY`` where its owner was not left to such a draw.
        group: Group of each sample (a protected attribute), if the data set has one.
    """

    samples: Samples
    owner: Int[ndarray, " samples"]
    panel: Int[ndarray, " samples"]
    group: Int[ndarray, " samples"] | None = None

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def fair(self) -> Bool[ndarray, " samples"]:
        """Which samples had their owner decided by a fair draw for some target."""
        decided: Bool[ndarray, " samples"] = self.panel != NOBODY
        return decided

    def fair_for(self, target: ClientId) -> Bool[ndarray, " samples"]:
        """Which samples were member, other client's or unseen with equal chance for this target.

        Bounds that rest on independent inclusion use these samples only.
        """
        decided: Bool[ndarray, " samples"] = self.panel == target
        return decided

    def origin(self, target: ClientId) -> Int[ndarray, " samples"]:
        """Provenance of each sample as seen from the target: values of :class:`Origin`."""
        elsewhere = np.where(self.owner == NOBODY, Origin.UNSEEN, Origin.OTHER_CLIENT)
        return np.where(self.owner == target, Origin.MEMBER, elsewhere).astype(np.int64)

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the features, for storage beside a run."""
        stored = {
            "ids": self.samples.ids,
            "labels": self.samples.labels,
            "owner": torch.from_numpy(self.owner.astype(np.int64)),
            "panel": torch.from_numpy(self.panel.astype(np.int64)),
        }
        if self.group is not None:
            stored["group"] = torch.from_numpy(self.group.astype(np.int64))
        return stored

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> "AuditSet":
        """The inverse of :meth:`tensors`; features are empty until :meth:`attach`.

        Raises:
            Damaged: A part is missing, of another length, or no list of whole numbers.
        """
        missing = {"ids", "labels", "owner", "panel"} - tensors.keys()
        if missing:
            raise Damaged(f"the stored audit set lacks {', '.join(sorted(missing))}; draw it again")
        shapes = {tuple(value.shape) for value in tensors.values()}
        whole = all(value.dtype == torch.int64 for value in tensors.values())
        if len(shapes) != 1 or len(next(iter(shapes))) != 1 or not whole:
            raise Damaged(
                "the stored audit set must be lists of whole numbers of one length, got shapes "
                f"{sorted(shapes)}; draw it again"
            )
        empty = torch.empty((len(tensors["ids"]), 0))
        group = tensors.get("group")
        return AuditSet(
            Samples(empty, tensors["labels"], tensors["ids"]),
            tensors["owner"].numpy(),
            tensors["panel"].numpy(),
            None if group is None else group.numpy(),
        )

    def attach(self, dataset: Dataset) -> "AuditSet":
        """The same audit set with features looked up by id.

        Raises:
            BadInput: An id that the data set does not have.
            Damaged: The data set labels the samples otherwise, so it is not the one they were
                drawn from.
        """
        samples = dataset.samples(self.samples.ids)
        if not torch.equal(samples.labels, self.samples.labels):
            raise Damaged(
                f"{int((samples.labels != self.samples.labels).sum())} of {len(self)} audited "
                f"samples have another label in {dataset.name!r}; load the data set (and seed) "
                "that the audit set was drawn from"
            )
        return AuditSet(samples, self.owner, self.panel, self.group)
