"""Attack on a known defense: it uses only the rounds in which a sample may have been trained on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.attacks.base import Rule
from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId, Sees
from fedaudit.observe.measurements import Measurements


@dataclass(frozen=True)
class WhereAssigned:
    """Another rule, applied for each sample to the rounds in which the target trained on its class.

    A defense that reassigns classes in every round creates rounds in which a member was not trained
    on. A mean over all rounds then hides the member. An adversary that knows the target's classes
    omits these rounds. A sample whose class the target got in no measured round is scored on all of
    them.

    Attributes:
        rule: Rule that is applied to the remaining rounds.
        used: For each round, the samples that the target may have trained on; one entry for all
            samples if they do not differ. None until side information is given.

    Source: None; CoFedMID section 5.4 attacks the coalition's aggregate instead. The adversary has
    obtained the seed that a coalition shares, or is one of its members.
    """

    rule: Rule
    used: Mapping[int, Bool[Tensor, "*samples"]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def over_clients(self) -> str:
        return self.rule.over_clients

    @property
    def over_rounds(self) -> str:
        return f"{self.rule.over_rounds}, where assigned"

    @property
    def needs(self) -> Sees:
        return self.rule.needs | Sees.ROUNDS

    def with_side_information(
        self, used: Mapping[int, Bool[Tensor, "*samples"]]
    ) -> "WhereAssigned":
        return replace(self, used=dict(used))

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """Return the score of every sample.

        Raises:
            BadInput: Side information on the target's classes is missing, or covers only some
                rounds.
        """
        used = self._used(measurements[0])
        # Samples with the same informative rounds are scored together.
        patterns, which = torch.unique(used, dim=1, return_inverse=True)
        scores = torch.empty(used.shape[1], dtype=torch.float64)
        for number, rounds in enumerate(patterns.unbind(1)):
            samples = (which == number).nonzero().flatten()
            parts = [_part(m, rounds, samples) for m in measurements]
            scores[samples] = self.rule(*parts, target=target)
        return scores

    def _used(self, m: Measurements) -> Bool[Tensor, "rounds samples"]:
        """Return the rounds to use for each sample; all rounds if its class was in none."""
        if self.used is None:
            raise BadInput(
                "this attack needs the samples that the target may have trained on in each round; "
                "use Attack.with_side_information, or name it in a study, which does so"
            )
        unknown = [index for index in m.rounds if index not in self.used]
        if unknown:
            raise BadInput(
                f"the target's samples in the rounds {unknown} are unknown; give those of all "
                f"measured rounds {list(m.rounds)}"
            )
        count = m.values.shape[2]
        used = torch.stack([self.used[index].expand(count) for index in m.rounds])
        return used | ~used.any(0)


def _part(m: Measurements, rounds: Bool[Tensor, " rounds"], samples: Tensor) -> Measurements:
    row_numbers = rounds.nonzero().flatten().tolist()
    return replace(
        m,
        values=m.values[rounds][:, :, samples],
        rounds=tuple(m.rounds[row] for row in row_numbers),
        bases=m.bases[rounds],
        stands_for=tuple(m.stands_for[row] for row in row_numbers) if m.stands_for else (),
    )
