"""Policy of a gate: ceilings on estimates of a record, and requirements on the evidence."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Hashable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from fedaudit.core.metric_names import AUC, BALANCED_ACCURACY, rate_of
from fedaudit.core.naming import number_of_client
from fedaudit.plan.values import parse_toml, read_toml, settings_from
from fedaudit.results.estimate import SUCCESS_RATE
from fedaudit.results.guessing import LEAST_LEARNED

Fraction = Annotated[float, Field(ge=0, le=1, strict=True)]
Budget = Annotated[float, Field(ge=0, le=1e15, strict=True)]
Count = Annotated[int, Field(ge=0, le=10**9, strict=True)]
ClientName = Annotated[str, Field(min_length=1, max_length=200)]
Contrast = Literal["unseen", "other_client", "mixed"]
Control = Literal["permuted members", "untrained model", "blind classifier", "planted leak"]
Value = TypeVar("Value", bound=Hashable)


def _raise_if_repeated(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Raise if a list has an entry twice, which would be judged twice."""
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise ValueError(f"{str(repeated[0])[:80]!r} is named twice; name it once")
    return values


def _raise_if_unknown_metrics(names: tuple[str, ...]) -> tuple[str, ...]:
    """Raise if an estimate of a metric has no interval that allows a comparison."""
    allowed = (AUC, BALANCED_ACCURACY, SUCCESS_RATE)
    for name in names:
        if name not in allowed and rate_of(name) is None:
            raise ValueError(
                f"{name[:80]!r} is not compared; name {', '.join(allowed)}, or a true-positive "
                "rate such as tpr@0.01"
            )
    return names


_Distinct = AfterValidator(_raise_if_repeated)
Names = Annotated[tuple[str, ...], Field(max_length=1000), _Distinct]
SeedRule = Literal["each", "these runs", "further runs", "mean"]
FaultOutcome = Literal["inconclusive", "fail"]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9 ._=,+-]{0,199}$"


class Table(BaseModel):
    """Immutable table of a policy; unknown keys raise an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MembershipPolicy(Table):
    """Ceilings on membership inference. Metrics without a ceiling are not judged.

    Attributes:
        auc: Ceiling on the AUC of every attack on every client in every run.
        tpr: Ceilings on the true-positive rate, by false-positive rate: ``"0.01" = 0.05``.
        balanced_accuracy: Ceiling on the balanced accuracy, at a threshold chosen on the other half
            of the samples.
        group_auc: Ceiling on the AUC of the worst group: within a class, or against one client's
            samples.
        epsilon: Ceiling on lower bounds on epsilon. A bound above it fails the gate, but a bound
            below it does not make the gate pass.
        formal_epsilon: Ceiling on the epsilon that is proven for the whole training.
        contrasts: Kinds of non-members; each is judged separately.
        attacks: Attacks that are required and judged; all attacks of the record if empty.
        targets: Audited clients that are required and judged, by number or name; all if empty.
        clients: "each" judges every client by its limits. "pooled" judges clients together, if the
            record has an estimate over all clients. A client for which a leak is shown, or whose
            lower limit is above a ceiling, is always judged by its limits.
        small_audits: Outcome of a true-positive rate if too few samples are audited to show that
            it is below its ceiling: "inconclusive" or "not judged".
        seeds: "each" judges every run by its limits. "these runs" judges the mean over the runs by
            its confidence interval. "further runs" judges the mean over all possible seeds by
            Student-t limits, and needs five seeds. "mean" is an older name of "further runs".
        smallest_group: Minimum number of members and of non-members in a judged group. Smaller
            groups are counted but not judged.
    """

    auc: Fraction | None = None
    tpr: Annotated[dict[str, Fraction], Field(max_length=20)] = Field(default_factory=dict)
    balanced_accuracy: Fraction | None = None
    group_auc: Fraction | None = None
    epsilon: Budget | None = None
    formal_epsilon: Budget | None = None
    contrasts: Annotated[tuple[Contrast, ...], Field(min_length=1), _Distinct] = (
        "unseen",
        "other_client",
    )
    attacks: Names = ()
    targets: Annotated[tuple[Count | ClientName, ...], Field(max_length=1000), _Distinct] = ()
    clients: Literal["each", "pooled"] = "each"
    small_audits: Literal["inconclusive", "not judged"] = "inconclusive"
    seeds: SeedRule = "each"
    smallest_group: Count = 10

    @property
    def judges_each_client(self) -> bool:
        """True if every client is judged by its limits, and no clients are judged together."""
        return self.clients == "each" or bool(self.targets)

    @property
    def client_numbers(self) -> tuple[int, ...]:
        """Numbers of the required clients; see :func:`with_client_numbers` for names."""
        return tuple(client for client in self.targets if isinstance(client, int))

    @field_validator("tpr")
    @classmethod
    def _normalise_rates(cls, ceilings: dict[str, float]) -> dict[str, float]:
        normalised = {f"{_parse_rate(text):g}": ceiling for text, ceiling in ceilings.items()}
        if len(normalised) < len(ceilings):
            raise ValueError("a false-positive rate is given twice; give each once")
        return normalised


class SourcesPolicy(Table):
    """Ceilings on source inference.

    Attributes:
        above_label_distributions: Ceiling on the success rate minus the rate that the clients'
            label distributions explain.
        attacks: Attacks that are required and judged; all attacks of the record if empty.
        seeds: As ``membership.seeds``.
    """

    above_label_distributions: Annotated[float, Field(ge=-1, le=1, strict=True)]
    attacks: Names = ()
    seeds: SeedRule = "each"


class ClustersPolicy(Table):
    """Ceilings on the models of a clustered federation.

    Attributes:
        risk: Ceiling on the membership risk (balanced accuracy) of each model that clients use
            after training, in every run.
    """

    risk: Fraction


class GamesPolicy(Table):
    """Ceilings on the success of a server that plants a neuron, for records of games.

    Attributes:
        success: Ceiling on the fraction of games that the server wins (Adv).
        epsilon: Ceiling on the lower bound on epsilon. A bound above it fails the gate, but a bound
            below it does not make the gate pass.
        actual_epsilon: Ceiling on the epsilon that is computed from the mechanism's probabilities.
        contradicted: Whether a point of the study fails if its games refute the claimed epsilon.
        mechanisms: Mechanisms that are required and judged; all mechanisms if empty.
    """

    success: Fraction | None = None
    epsilon: Budget | None = None
    actual_epsilon: Budget | None = None
    contradicted: bool = True
    mechanisms: Names = ()


class ControlsPolicy(Table):
    """Controls that a record must have. Other controls also count if they fail.

    Source inference attacks have only the control "untrained model", and models of clusters have
    no control.

    Attributes:
        required: Controls that must pass for every judged attack. A live recording needs no
            "planted leak", which is possible only in a simulation.
        otherwise: Outcome of a missing or failed control.
    """

    required: Annotated[tuple[Control, ...], _Distinct] = (
        "permuted members",
        "untrained model",
        "blind classifier",
        "planted leak",
    )
    otherwise: FaultOutcome = "inconclusive"


class EvidencePolicy(Table):
    """Requirements on the evidence.

    Attributes:
        least_seeds: Minimum number of runs in a record.
        views: Allowed views of the adversary; any view if empty.
        confidence: Confidence level that limits must have, in (0, 1).
        least_learned: Fraction of the range from chance to 1 that the training accuracy must reach
            in every run, in [0, 1]. If it is lower, the gate is inconclusive. The gate is also
            inconclusive if the task has no accuracy and no attack beats chance. 0 disables the
            check.
        sampled_rounds: Whether to accept live recordings that measured only some rounds
            (``every``).
    """

    least_seeds: Count = 1
    views: Names = ()
    confidence: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.95
    least_learned: Fraction = LEAST_LEARNED
    sampled_rounds: bool = False


class BaselinePolicy(Table):
    """Comparison with the last release: no estimate may be significantly higher.

    The table applies if the gate is given a baseline (`--baseline`).

    Attributes:
        metrics: Compared metrics, such as "auc" and "tpr@0.01"; if empty, the AUC and the success
            rate of source inference and of games.
        allow: Increase of each metric that is accepted, in [0, 1].
        relevant: Increase that the audits must be large enough to detect with a probability of
            80%. If they are smaller, the comparison is inconclusive. 1 accepts audits of any size.
        clients: "pooled" compares figures over all audited clients, if both records have them.
            "each" compares those of single clients.
    """

    metrics: Annotated[Names, AfterValidator(_raise_if_unknown_metrics)] = ()
    allow: Fraction = 0.0
    relevant: Fraction = 0.1
    clients: Literal["pooled", "each"] = "pooled"


class Policy(Table):
    """Ceilings and requirements for a record.

    Attributes:
        name: Name of the policy.
        owner: Person or office that set the policy, printed in summaries; empty if not stated.
        membership: Ceilings on membership inference. Without this table, it is not judged.
        sources: Ceilings on source inference. Without this table, it is not judged.
        clusters: Ceilings on models of clusters. Without this table, they are not judged.
        games: Ceilings for records of games.
        baseline: Comparison with the record of the last release.
    """

    name: Annotated[str, Field(pattern=_NAME)]
    owner: Annotated[str, Field(max_length=200)] = ""
    membership: MembershipPolicy | None = None
    sources: SourcesPolicy | None = None
    clusters: ClustersPolicy | None = None
    games: GamesPolicy | None = None
    baseline: BaselinePolicy | None = None
    controls: ControlsPolicy = ControlsPolicy()
    evidence: EvidencePolicy = EvidencePolicy()

    @property
    def has_ceilings(self) -> bool:
        """True if a table sets a ceiling for results of some kind."""
        return bool(self.membership or self.sources or self.clusters or self.games)

    def digest(self) -> str:
        """Return the SHA-256 of all settings, including defaults, the name and a stated owner."""
        # Settings that older versions lacked are left out if unset, so that digests stay the same.
        excluded = {name for name in ("owner", "baseline") if not getattr(self, name)}
        text = json.dumps(self.model_dump(mode="json", exclude=excluded), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


DEFAULT_POLICY = """\
# Ceilings for `fedaudit gate`: upper confidence limits must lie at or below them.
name = "default"
# owner = "data protection office"        # who set it; a summary prints it

[membership]                              # who was in the training data?
auc = 0.6
tpr = { "0.01" = 0.05, "0.001" = 0.02 }   # by false-positive rate
epsilon = 2.0                             # lower bounds: above it fails, below it proves nothing
contrasts = ["unseen", "other_client"]    # or "mixed"; each is judged separately, if it is fair
clients = "pooled"                        # small clients together; or "each"
small_audits = "not judged"               # rates that need more samples; or "inconclusive"
seeds = "each"                            # the worst run; or "these runs", "further runs"
# balanced_accuracy = 0.6
# group_auc = 0.7                         # the worst class, and against the worst client
# formal_epsilon = 8.0                    # proven of the whole training
# attacks = ["fedmia-2"]                  # all of the record without this line
# targets = [0]                           # all audited clients

# [sources]                               # whose sample is it?
# above_label_distributions = 0.1

# [clusters]                              # clustered federations
# risk = 0.6

[games]                                   # records of security games
success = 0.6
contradicted = true                       # success that refutes the claimed epsilon fails
# actual_epsilon = 8.0
# mechanisms = ["bitwise-rr"]

# [baseline]                              # no worse than the record of --baseline
# allow = 0.0                             # increase that is accepted
# relevant = 0.1                          # increase that the audits must be able to detect
# metrics = ["auc", "tpr@0.01"]

[controls]
required = ["permuted members", "untrained model", "blind classifier", "planted leak"]
otherwise = "inconclusive"                # or "fail"

[evidence]
least_seeds = 1
views = []                                # such as ["uploads"]
confidence = 0.95
least_learned = 0.1                       # a model near guessing has nothing to leak
sampled_rounds = false                    # live recordings that measure some rounds (every > 1)
"""
"""Example policy, which `fedaudit gate --print-policy` prints.

Above its ceilings, reports call a leak clear. The control "planted leak" runs only if a study sets
`figures.planted_leak`."""


_LABELS = {"name", "owner"}
"""Settings that do not affect the outcome of a policy."""


def example_with_settings_of(policy: Policy) -> str:
    """Return the command that writes an example policy with these settings; empty if none does.

    Only name and owner may differ.
    """
    for command, text in _examples().items():
        example = policy_from(text, source="an example policy")
        if example.model_dump(exclude=_LABELS) == policy.model_dump(exclude=_LABELS):
            return command
    return ""


def _examples() -> dict[str, str]:
    """Return fedaudit's example policies by the command that writes each."""
    starter = resources.files("fedaudit") / "cli" / "starter" / "policy.toml"
    return {
        "fedaudit gate --print-policy": DEFAULT_POLICY,
        "fedaudit init": starter.read_text(encoding="utf-8"),
    }


def with_client_numbers(policy: Policy, names: Mapping[int, str]) -> Policy:
    """Return the policy with numbers instead of names of clients.

    Args:
        policy: The policy.
        names: Names of the record's clients by number.

    Raises:
        BadInput: The record has no client of that name.
    """
    membership = policy.membership
    if membership is None or all(isinstance(client, int) for client in membership.targets):
        return policy
    numbers = [number_of_client(client, names) for client in membership.targets]
    # A client may be given by name and by number.
    changes = {"targets": tuple(dict.fromkeys(numbers))}
    return policy.model_copy(update={"membership": membership.model_copy(update=changes)})


def judges_all_seeds(seeds: SeedRule) -> bool:
    """Return True if a policy judges the mean over all possible seeds."""
    return seeds in ("further runs", "mean")


def read_policy(path: Path) -> Policy:
    """Read the policy in a TOML file.

    Args:
        path: The file, which is not trusted.

    Raises:
        BadInput: The file does not exist or is not TOML, or a setting is wrong.
    """
    return settings_from(read_toml(path, "the policy"), Policy, source=str(path))


def policy_from(text: str, *, source: str = "the policy") -> Policy:
    """Read the policy in a TOML text; see :func:`read_policy`."""
    return settings_from(parse_toml(text, source), Policy, source=source)


def _parse_rate(text: str) -> float:
    if not re.fullmatch(r"(0?\.\d{1,12}|1|1\.0|\d(\.\d{1,6})?e-\d{1,2})", text):
        raise ValueError(f"a false-positive rate is written like 0.01, not {text[:40]!r}")
    rate = float(text)
    if not 0 < rate <= 1:
        raise ValueError(f"a false-positive rate is {text[:40]}; give a number in (0, 1]")
    return rate
