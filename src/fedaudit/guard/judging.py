"""Attacks on a client's uploads, and comparison of their AUCs with the policy's limit."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedaudit.attacks.base import Attack
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.guard.policy import GuardPolicy
from fedaudit.live.aucs import ClientAucs
from fedaudit.live.decisions import AttackAuc
from fedaudit.observe.measurements import MeasuredRound, stacked
from fedaudit.plan.parts import Setup


class Judgement(NamedTuple):
    """Figures of an upload.

    Attributes:
        aucs: AUC of each attack with confidence limits, without attacks that need more measured
            rounds.
        exceeds: True if at least one AUC is above the policy's limit.
    """

    aucs: tuple[AttackAuc, ...]
    exceeds: bool


class Judge:
    """Attacks of a policy on one client of a recording."""

    def __init__(self, run: Setup, attacks: Mapping[str, Attack], policy: GuardPolicy) -> None:
        """Select members and held-out samples, in the same way as for a record of this recording.

        Raises:
            BadInput: There are too few samples for the policy.
        """
        (self._client,) = run.study.audit.targets
        self._aucs = ClientAucs(run, self._client)
        self._attacks, self._policy = attacks, policy
        policy.raise_if_audit_too_small(self._aucs.members, self._aucs.nonmembers)

    def judge(self, rounds: Sequence[MeasuredRound]) -> Judgement:
        """Run each attack on the sent uploads and the new upload.

        Attacks that compare rounds are omitted until two rounds are measured.

        Raises:
            BadInput: No attack could be measured, or one failed.
        """
        selected, aucs = self._aucs.select(stacked(rounds, {self._client})), list[AttackAuc]()
        for name, attack in self._attacks.items():
            try:
                auc = self._aucs.auc_of(name, attack, selected, self._policy.level)
            except FedauditError as error:
                # Do not log the original message, which may contain numbers of samples.
                raise BadInput(f"the attack {name!r} could not be measured") from error
            if auc is not None:
                aucs.append(auc)
        if not aucs:
            raise BadInput(
                "every attack of the policy needs several rounds, so the first upload cannot be "
                "measured; add an attack that needs only one round, such as blackbox-loss"
            )
        exceeds = any(self._policy.exceeds(f.value, f.low, f.high) for f in aucs)
        return Judgement(tuple(aucs), exceeds)
