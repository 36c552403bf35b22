"""Attacks, each of which consists of signals and a rule that computes scores from them.

Each entry of the attack catalogue is a function that constructs an attack. :func:`define_attack`
defines an entry in one line. The arguments of the entry are the settings of its rule and signals.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import attribute_meaning, check_arguments, raise_if_invalid
from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.core.tasks import OutputKind
from fedaudit.core.values import Capability, ClientId, Setting
from fedaudit.observe.measurements import Measurements
from fedaudit.signals.base import Signal


class _DescribedRule(Protocol):
    """Properties of a rule that the catalogue shows.

    Attributes:
        client_aggregation: Short description of how the rule combines clients.
        round_aggregation: Short description of how the rule combines rounds.
        needs: What the adversary must see for the rule, in addition to the needs of the signals.
    """

    @property
    def client_aggregation(self) -> str: ...

    @property
    def round_aggregation(self) -> str: ...

    @property
    def needs(self) -> Capability: ...


@runtime_checkable
class Rule(_DescribedRule, Protocol):
    """Function that computes one score per sample from measurements; a frozen dataclass."""

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """Return scores; a larger score means a likelier member of the target client's data."""
        ...


@runtime_checkable
class LearnedRule(Rule, Protocol):
    """A rule that must be fitted on samples with known membership."""

    def fitted(
        self,
        *measurements: Measurements,
        is_member: Bool[Tensor, " samples"],
        target: ClientId,
        seed: int,
    ) -> Rule:
        """Return the fitted rule. The samples must not be attacked afterwards.

        Args:
            measurements: Measurements of samples with known membership, such as those of a shadow
                run.
            is_member: Whether each of these samples was a member of ``target``.
            target: A client of the shadow run.
            seed: Root of all random choices.
        """
        ...


@runtime_checkable
class SideInformationRule(Rule, Protocol):
    """A rule that needs side information: the samples that a defense uses in each round."""

    def with_side_information(self, may_be_used: Mapping[int, Bool[Tensor, "*samples"]]) -> Rule:
        """Return the rule with side information.

        Args:
            may_be_used: For each measured round, whether the target may have trained on each
                sample; a single entry applies to all samples.
        """
        ...


@runtime_checkable
class SourceRule(_DescribedRule, Protocol):
    """A rule that computes, for each sample, the probability that each client owns it.

    ``client_aggregation`` ends with "arg max" (``results.record.SOURCE_RULE_SUFFIX``), by which
    records recognise source inference. See :attr:`Attack.compares_clients` for its beginning.
    """

    def posterior(
        self, *measurements: Measurements, sizes: Mapping[ClientId, int]
    ) -> Float[Tensor, "clients samples"]:
        """Return the probability that each client owns each sample; columns sum to 1.

        Rows have the measurements' order of clients. A client that was never measured has
        probability 0.

        Args:
            measurements: Measurements of samples. Each sample belongs to one of the clients.
            sizes: Number of training samples of each client, for a prior.
        """
        ...


@dataclass(frozen=True, eq=False)
class PerClient:
    """A rule whose settings depend on the audited client, since clients have different defenses.

    Attributes:
        rules: Rules of the same class by audited client. All other clients use the first rule.
    """

    rules: Mapping[ClientId, Rule]

    @property
    def client_aggregation(self) -> str:
        return self._first.client_aggregation

    @property
    def round_aggregation(self) -> str:
        return self._first.round_aggregation

    @property
    def needs(self) -> Capability:
        return self._first.needs

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        return self.rules.get(target, self._first)(*measurements, target=target)

    @property
    def _first(self) -> Rule:
        return next(iter(self.rules.values()))


class Tuning(NamedTuple):
    """Samples on which settings of a rule are tuned, measured in a reference federation.

    Attributes:
        measured: Measurements of the attack's signals, in the order of the signals.
        owner: Client of the reference federation that trained on each sample, or ``NO_CLIENT``.
    """

    measured: tuple[Measurements, ...]
    owner: Int[Tensor, " tuning"]


class Reference(NamedTuple):
    """A reference federation, measured on the samples under attack.

    Attributes:
        measured: Measurements of the attack's signals, in the order of the signals.
        target: Client of this federation that corresponds to the audited client.
        trained_on: Whether any client of this federation trained on each sample.
        matching_client: Client of this federation that corresponds to each audited client, for
            audited clients that do not correspond to ``target``.
        tuning: Samples on which settings of the rule are tuned; the same in all references.
    """

    measured: tuple[Measurements, ...]
    target: ClientId
    trained_on: Bool[Tensor, " samples"]
    matching_client: Mapping[ClientId, ClientId] = MappingProxyType({})
    tuning: Tuning | None = None

    def on_samples(self, selection: Tensor) -> "Reference":
        """Return the reference for some of the samples, chosen by positions or a mask."""
        measured = tuple(m.on_samples(selection) for m in self.measured)
        return self._replace(measured=measured, trained_on=self.trained_on[selection])

    def client_for(self, target: ClientId) -> ClientId:
        """Return the client of this federation that corresponds to an audited client."""
        return self.matching_client.get(target, self.target)


@runtime_checkable
class ReferenceRule(Rule, Protocol):
    """A rule that needs reference models that were measured on the same samples."""

    def with_references(self, references: Sequence[Reference]) -> Rule:
        """Return the rule with reference models."""
        ...

    def on_samples(self, selection: Tensor) -> Rule:
        """Return the rule for some of the samples on which the references were measured."""
        ...


def measured_rounds(
    values: Float[Tensor, "rounds samples"], target: ClientId
) -> Bool[Tensor, " rounds"]:
    """Return the rounds in which a client was measured.

    Raises:
        BadInput: There is no such round.
    """
    was_measured = ~torch.isnan(values).any(1)
    if not bool(was_measured.any()):
        raise BadInput(
            f"client {target} took part in none of the measured rounds; measure more rounds"
        )
    return was_measured


Part = TypeVar("Part")


@arguments.dataclass(frozen=True)
class Attack:
    """An attack of the catalogue, or a custom one.

    Attributes:
        signals: Signals that are measured.
        rule: Rule that computes scores or posteriors from the signals.
        source: Paper, with equation or section.
        about: Description of the attack in one sentence.
        name: Name in the catalogue; empty for a custom attack.

    Examples:
        >>> import fedaudit as fa
        >>> from fedaudit.attacks.rules import Mean
        >>> from fedaudit.signals.outputs import Confidence
        >>> fa.attacks.Attack((Confidence(),), Mean(), "A custom attack").settings()
        {'snapshot': 'local'}
    """

    signals: tuple[Signal, ...]
    rule: Rule | SourceRule
    source: str
    about: str = field(default="")
    name: str = field(default="", repr=False, compare=False)

    @property
    def needs(self) -> Capability:
        """What the adversary must see."""
        needs = self.rule.needs
        for signal in self.signals:
            needs |= signal.needs
        return needs

    @property
    def needed_outputs(self) -> OutputKind:
        """Quantities besides the loss that the signals need, such as class probabilities."""
        kinds = OutputKind.NOTHING
        for signal in self.signals:
            kinds |= getattr(signal, "needed_outputs", OutputKind.NOTHING)
        return kinds

    def scores(
        self, measured: Mapping[str, Measurements], target: ClientId
    ) -> Float[Tensor, " samples"]:
        """Return one score per sample, larger for likelier members of the target's data.

        Args:
            measured: Measurements by signal name.
            target: The client under audit.

        Raises:
            BadInput: A signal that the attack needs was not measured, or the attack infers sources.
        """
        if isinstance(self.rule, SourceRule):
            raise BadInput("this attack infers sources and scores no membership; use its posterior")
        return self.rule(*self._measurements_of(measured), target=target)

    @cached_property
    def infers_source(self) -> bool:
        """True if the attack infers the source of a sample, and not its membership."""
        return isinstance(self.rule, SourceRule)

    @property
    def compares_clients(self) -> bool:
        """True if the score of one client depends on the values of other clients."""
        # The suffix "arg max" of source rules may follow the description of the comparison.
        return self.rule.client_aggregation.startswith(("one-sided likelihood", "arg max"))

    @property
    def needs_other_clients(self) -> bool:
        """True if scores are comparisons of a client with at least two other clients.

        A rule states this by its class variable ``needs_other_clients``, which may be missing.
        """
        return bool(getattr(self.rule, "needs_other_clients", False))

    def posterior(
        self, measured: Mapping[str, Measurements], sizes: Mapping[ClientId, int]
    ) -> Float[Tensor, "clients samples"]:
        """Return the probability that each client owns each sample.

        Args:
            measured: Measurements by signal name.
            sizes: Number of training samples of each client.

        Returns:
            Probabilities, with rows in the order of the first signal's clients.

        Raises:
            BadInput: A signal that the attack needs was not measured, or the attack scores
                membership.
        """
        if not isinstance(self.rule, SourceRule):
            raise BadInput("this attack scores membership and infers no source; use its scores")
        return self.rule.posterior(*self._measurements_of(measured), sizes=sizes)

    @cached_property
    def learns(self) -> bool:
        """True if the attack must be fitted before it can score."""
        return isinstance(self.rule, LearnedRule)

    def fitted(
        self,
        measured: Mapping[str, Measurements],
        is_member: Bool[Tensor, " samples"],
        target: ClientId,
        seed: int,
    ) -> "Attack":
        """Return the attack with a fitted rule; the attack itself if its rule is not learned.

        Args:
            measured: Measurements by signal name of samples with known membership. These samples
                must not be attacked afterwards.
            is_member: Whether each of these samples was a member of ``target``.
            target: Client that trained on the members.
            seed: Root of all random choices.

        Raises:
            BadInput: A signal that the attack needs was not measured, or there are no members or
                no non-members.
        """
        if not isinstance(self.rule, LearnedRule):
            return self
        if bool(is_member.all()) or not bool(is_member.any()):
            raise BadInput(
                f"an attack learns from members and non-members, got {int(is_member.sum())} "
                f"members among {len(is_member)} samples; pass more samples"
            )
        measurements = self._measurements_of(measured)
        rule = self.rule.fitted(*measurements, is_member=is_member, target=target, seed=seed)
        return replace(self, rule=rule)

    @cached_property
    def needs_side_information(self) -> bool:
        """True if the attack needs to know which samples a defense uses in each round."""
        return isinstance(self.rule, SideInformationRule)

    def with_side_information(
        self, may_be_used: Mapping[int, Bool[Tensor, "*samples"]]
    ) -> "Attack":
        """Return the attack with side information; the attack itself if it needs none.

        Args:
            may_be_used: For each measured round, whether the target may have trained on each
                sample.
        """
        if not isinstance(self.rule, SideInformationRule):
            return self
        return replace(self, rule=self.rule.with_side_information(may_be_used))

    @cached_property
    def needs_references(self) -> bool:
        """True if the attack needs reference models."""
        return isinstance(self.rule, ReferenceRule)

    def with_references(
        self,
        references: Sequence[Mapping[str, Measurements]],
        target: ClientId,
        trained_on: Bool[Tensor, "references samples"],
        matching_client: Mapping[ClientId, ClientId] = MappingProxyType({}),
        owners: Int[Tensor, "references measured"] | None = None,
    ) -> "Attack":
        """Return the attack with reference models; the attack itself if it needs none.

        Args:
            references: Measurements of each reference federation by signal name. The first columns
                are the attacked samples, the others are tuning samples.
            target: Client of the reference federations that corresponds to the audited client.
            trained_on: Whether any client of each federation trained on each attacked sample.
            matching_client: Client of the reference federations that corresponds to each audited
                client, if it is not ``target``.
            owners: Client of each federation that trained on each measured sample, or
                ``NO_CLIENT``. If given, settings are tuned on the measured samples.

        Raises:
            BadInput: A signal that the attack needs was not measured.
        """
        if not isinstance(self.rule, ReferenceRule):
            return self
        attacked = slice(0, trained_on.shape[1])
        with_tuning = []
        for index, (measured, mask) in enumerate(zip(references, trained_on, strict=True)):
            measurements = tuple(self._measurements_of(measured))
            tuning = None if owners is None else Tuning(measurements, owners[index])
            on_attacked = tuple(signal.on_samples(attacked) for signal in measurements)
            with_tuning.append(Reference(on_attacked, target, mask, matching_client, tuning))
        return replace(self, rule=self.rule.with_references(with_tuning))

    def on_samples(self, selection: Tensor) -> "Attack":
        """Return the attack for some of the samples on which its references were measured.

        Args:
            selection: Positions of these samples, or a mask.
        """
        if not isinstance(self.rule, ReferenceRule):
            return self
        return replace(self, rule=self.rule.on_samples(selection))

    def with_settings(self, settings: Mapping[str, Setting]) -> "Attack":
        """Return the attack with other settings of its rule or signals.

        Raises:
            BadInput: Neither the rule nor a signal has a setting of that name.
        """
        attack = self
        for name, value in settings.items():
            attack = attack._with_setting(name, value)
        return attack

    def settings(self) -> dict[str, Setting]:
        """Return the settings of the rule and the signals by name.

        A setting on which the attack's parts differ is left out: an attack that compares two
        models, for example, measures one signal on each.
        """
        values: dict[str, list[Setting]] = {}
        for part in self.parts:
            for name in _setting_names(part):
                values.setdefault(name, []).append(getattr(part, name))
        return {name: same[0] for name, same in values.items() if same.count(same[0]) == len(same)}

    @property
    def parts(self) -> tuple[Signal | Rule | SourceRule, ...]:
        """Signals and rule."""
        return (*self.signals, self.rule)

    def _measurements_of(self, measured: Mapping[str, Measurements]) -> list[Measurements]:
        missing_signals = [signal.name for signal in self.signals if signal.name not in measured]
        if missing_signals:
            raise BadInput(
                f"this attack needs the signals {missing_signals}, which were not measured; "
                f"measured: {sorted(measured)}"
            )
        return [measured[signal.name] for signal in self.signals]

    def _with_setting(self, name: str, value: Setting) -> "Attack":
        if name not in self.settings():
            raise unknown_name("setting of this attack", name, self.settings() or {"(none)": 0})
        signals = tuple(_with_setting(signal, name, value) for signal in self.signals)
        return replace(self, signals=signals, rule=_with_setting(self.rule, name, value))


def _setting_names(part: object) -> tuple[str, ...]:
    # Class variables and inner rules are not settings.
    names = [field.name for field in fields(part)] if is_dataclass(part) else []
    return tuple(name for name in names if isinstance(getattr(part, name), Setting))


def _with_setting(part: Part, name: str, value: Setting) -> Part:
    if name not in _setting_names(part):
        return part
    default = getattr(part, name)
    (annotation,) = (field.type for field in fields(part) if field.name == name)  # type: ignore[arg-type]
    raise_if_invalid(f"{name} of this attack", value, annotation, default)
    return replace(part, **{name: type(default)(value)})  # type: ignore[type-var]


def define_attack(
    name: str, signals: tuple[Signal, ...], rule: Rule | SourceRule, source: str, about: str
) -> Callable[..., Attack]:
    """Define an attack, and return its constructor, which takes all settings by name.

    Args:
        name: Name in the catalogue.
        signals: Signals that are measured, with the attack's default settings.
        rule: Rule over clients and rounds, with the attack's default settings.
        source: Paper, with equation or section.
        about: Description of the attack in one sentence.
    """
    attack = Attack(signals, rule, source, about, name)

    def construct(**settings: Setting) -> Attack:
        return attack.with_settings(settings)

    parameters, meanings = [], []
    fields_by_name = {field.name: (field, part) for part in attack.parts for field in fields(part)}  # type: ignore[arg-type]
    for name, default in attack.settings().items():
        field, owner = fields_by_name[name]
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type
            )
        )
        meanings.append(f"    {name}: {attribute_meaning(type(owner).__mro__, name)}")
    construct.__signature__ = inspect.Signature(parameters, return_annotation=Attack)  # type: ignore[attr-defined]
    paragraphs = [attack.about]
    if meanings:
        paragraphs.append("\n".join(["Args:", *meanings]))
        paragraphs.append(
            "Raises:\n    BadArgument: A setting is unknown, or its value is not allowed."
        )
    # constructors_in replaces NAME.
    paragraphs.append(
        "Examples:\n    >>> import fedaudit as fa\n"
        f"    >>> fa.attacks.NAME().name\n    {attack.name!r}"
    )
    paragraphs.append(f"Source: {attack.source}.")
    construct.__doc__ = "\n\n".join(paragraphs)
    constructor = check_arguments(construct)
    _constructors.append(constructor)
    return constructor


_constructors: list[Callable[..., Attack]] = []


def constructors_in(namespace: Mapping[str, object]) -> dict[str, Callable[..., Attack]]:
    """Name each constructor after its variable in a module, and return them by this name."""
    named: dict[str, Callable[..., Attack]] = {}
    for variable, value in namespace.items():
        for constructor in _constructors:
            if constructor is value:
                constructor.__name__ = constructor.__qualname__ = variable
                constructor.__module__ = "fedaudit.attacks"
                constructor.__doc__ = f"{constructor.__doc__}".replace("NAME(", f"{variable}(")
                named[variable] = constructor
    return named
