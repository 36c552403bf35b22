"""Attacks: signals, a rule over them that gives scores or posteriors, and a source.

Entries of the attack catalogue are typed functions, each of which constructs one attack.
:func:`with_rule_settings` and :func:`with_signal_settings` define an entry in one line. The entry
takes the settings of its rule or of its signal as keyword arguments, with their types and defaults,
so that a type checker and ``help()`` know them.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import attribute_meaning, checked, refuse_unfit
from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.core.tasks import Reading
from fedaudit.core.values import ClientId, Sees, Setting
from fedaudit.observe.measurements import Measurements
from fedaudit.signals.base import Signal


class _Described(Protocol):
    """Properties of any rule that the catalogue shows.

    Attributes:
        over_clients: What it does over clients, in a few words, for the catalogue.
        over_rounds: What it does over rounds.
        needs: What the adversary must see beyond what the signals need.
    """

    @property
    def over_clients(self) -> str: ...

    @property
    def over_rounds(self) -> str: ...

    @property
    def needs(self) -> Sees: ...


@runtime_checkable
class Rule(_Described, Protocol):
    """Turns measurements into one score a sample. A frozen dataclass with its settings."""

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """Scores; larger means likelier a member of the target client's data."""
        ...


@runtime_checkable
class LearnedRule(Rule, Protocol):
    """A rule that scores nothing until it is shown samples of which membership is known."""

    def fitted(
        self,
        *measurements: Measurements,
        is_member: Bool[Tensor, " samples"],
        target: ClientId,
        seed: int,
    ) -> Rule:
        """The rule with what it has learned; never shown a sample that is to be attacked.

        Args:
            measurements: Of a shadow run, or of samples whose membership is known.
            is_member: Who of them was a member of ``target``.
            target: A client of theirs.
            seed: Root of all random choices.
        """
        ...


@runtime_checkable
class SideInformationRule(Rule, Protocol):
    """A rule that needs side information: what a defense let the target train on."""

    def with_side_information(self, used: Mapping[int, Bool[Tensor, "*samples"]]) -> Rule:
        """The rule with side information.

        Args:
            used: By measured round, which samples the target can have trained on.
        """
        ...


@runtime_checkable
class SourceRule(_Described, Protocol):
    """Turns measurements into a chance for each client to have each sample.

    ``over_clients`` ends with "arg max", which tells it in a record from a rule on membership.
    """

    def posterior(
        self, *measurements: Measurements, sizes: Mapping[ClientId, int]
    ) -> Float[Tensor, "clients samples"]:
        """Chance of each client to have each sample; columns sum to 1.

        Clients stand in the measurements' order. Who was never measured has no chance.

        Args:
            measurements: Of samples that some client has.
            sizes: Number of training samples of each client, for a prior.
        """
        ...


@dataclass(frozen=True, eq=False)
class PerClient:
    """A rule that differs by client, as where clients defend themselves in different ways.

    Attributes:
        rules: By audited client; all are of one kind. Other clients take the first.
    """

    rules: Mapping[ClientId, Rule]

    @property
    def over_clients(self) -> str:
        return self._any.over_clients

    @property
    def over_rounds(self) -> str:
        return self._any.over_rounds

    @property
    def needs(self) -> Sees:
        return self._any.needs

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        return self.rules.get(target, self._any)(*measurements, target=target)

    @property
    def _any(self) -> Rule:
        return next(iter(self.rules.values()))


class Tuning(NamedTuple):
    """Samples of which it is known on which of the adversary's own federations trained on them.

    Attributes:
        measured: The attack's signals of one federation, in their order.
        owner: The client of that federation that trained on each sample, or ``NOBODY``.
    """

    measured: tuple[Measurements, ...]
    owner: Int[Tensor, " tuning"]


class Reference(NamedTuple):
    """One federation of the adversary's own, as it was measured on the samples under attack.

    Attributes:
        measured: The attack's signals, in their order.
        target: The client that stands for the one under audit.
        trained_on: On which of the samples some client of it trained.
        alike: The client that stands for each audited one, where that is not ``target`` for all.
        tuning: Samples that settings of the rule are chosen on, the same of all references.
    """

    measured: tuple[Measurements, ...]
    target: ClientId
    trained_on: Bool[Tensor, " samples"]
    alike: Mapping[ClientId, ClientId] = MappingProxyType({})
    tuning: Tuning | None = None

    def on_samples(self, chosen: Tensor) -> "Reference":
        """The same of some of the samples: their positions, or a mask."""
        kept = tuple(m.on_samples(chosen) for m in self.measured)
        return self._replace(measured=kept, trained_on=self.trained_on[chosen])

    def client_for(self, target: ClientId) -> ClientId:
        """Return the client of this federation that stands for an audited one."""
        return self.alike.get(target, self.target)


@runtime_checkable
class ReferenceRule(Rule, Protocol):
    """A rule that scores nothing until it has reference models, measured on the same samples."""

    def with_references(self, references: Sequence[Reference]) -> Rule:
        """The rule with what the adversary's own federations give."""
        ...

    def on_samples(self, chosen: Tensor) -> Rule:
        """The rule for some of the samples that the references were measured on."""
        ...


def nothing_learned() -> BadInput:
    """Return the error for scores by a rule that has not been fitted."""
    return BadInput(
        "this attack has learned nothing yet; fit it on measurements of samples whose "
        "membership is known (Attack.fitted), or name it in a study, which does so"
    )


def measured_rounds(
    values: Float[Tensor, "rounds samples"], target: ClientId
) -> Bool[Tensor, " rounds"]:
    """The rounds in which a client was measured.

    Raises:
        BadInput: There is none.
    """
    there = ~torch.isnan(values).any(1)
    if not bool(there.any()):
        raise BadInput(
            f"client {target} took part in none of the measured rounds; measure more rounds"
        )
    return there


Part = TypeVar("Part")


@arguments.dataclass(frozen=True)
class Attack:
    """A row of the catalogue.

    Attributes:
        signals: What is measured.
        rule: What is done with it.
        source: Paper, with equation or section.
        about: The attack in one sentence.
        name: Name in the catalogue; empty for a custom attack.

    Examples:
        >>> from fedaudit.attacks.rules import Mean
        >>> from fedaudit.signals.outputs import Confidence
        >>> Attack((Confidence(),), Mean(), "A custom attack").settings()
        {'snapshot': 'local'}
    """

    signals: tuple[Signal, ...]
    rule: Rule | SourceRule
    source: str
    about: str = field(default="")
    name: str = field(default="", repr=False, compare=False)

    @property
    def needs(self) -> Sees:
        """The parts that the adversary must see."""
        needs = self.rule.needs
        for signal in self.signals:
            needs |= signal.needs
        return needs

    @property
    def reads(self) -> Reading:
        """Readings of a model's outputs that its signals take beside a loss."""
        found = Reading.NOTHING
        for signal in self.signals:
            found |= getattr(signal, "reads", Reading.NOTHING)
        return found

    def scores(
        self, measured: Mapping[str, Measurements], target: ClientId
    ) -> Float[Tensor, " samples"]:
        """One score a sample, larger for likelier members of the target's data.

        Args:
            measured: Measurements by signal name.
            target: The client under audit.

        Raises:
            BadInput: A signal that the attack needs was not measured, or it is an attack on
                sources.
        """
        if isinstance(self.rule, SourceRule):
            raise BadInput("this attack infers sources and scores no membership; ask its posterior")
        return self.rule(*self._cubes(measured), target=target)

    @cached_property
    def infers_source(self) -> bool:
        """True if it infers the source of a sample, and not its membership."""
        return isinstance(self.rule, SourceRule)

    @property
    def compares_clients(self) -> bool:
        """True if the score of one client depends on the values of others."""
        return self.rule.over_clients.startswith(("one-sided likelihood", "arg max"))

    def posterior(
        self, measured: Mapping[str, Measurements], sizes: Mapping[ClientId, int]
    ) -> Float[Tensor, "clients samples"]:
        """Chance of each client to have each sample, in the order of the first signal's clients.

        Args:
            measured: Measurements by signal name.
            sizes: Number of training samples of each client.

        Raises:
            BadInput: A signal that the attack needs was not measured, or it is an attack on
                membership.
        """
        if not isinstance(self.rule, SourceRule):
            raise BadInput("this attack scores membership and infers no source; ask its scores")
        return self.rule.posterior(*self._cubes(measured), sizes=sizes)

    @cached_property
    def learns(self) -> bool:
        """True if it must be fitted before it can score."""
        return isinstance(self.rule, LearnedRule)

    def fitted(
        self,
        measured: Mapping[str, Measurements],
        is_member: Bool[Tensor, " samples"],
        target: ClientId,
        seed: int,
    ) -> "Attack":
        """The attack with its rule fitted; the attack itself if there is nothing to learn.

        Args:
            measured: By signal name, measurements of samples whose membership is known and
                that are not attacked afterwards.
            is_member: Who of them was a member of ``target``.
            target: A client of theirs, or the group named after it.
            seed: Root of all random choices.

        Raises:
            BadInput: A signal that the attack needs was not measured, or there are no members
                or no non-members to learn from.
        """
        if not isinstance(self.rule, LearnedRule):
            return self
        if bool(is_member.all()) or not bool(is_member.any()):
            raise BadInput(
                f"an attack learns from members and non-members, got {int(is_member.sum())} "
                f"members of {len(is_member)} samples; give more samples"
            )
        cubes = self._cubes(measured)
        return replace(
            self, rule=self.rule.fitted(*cubes, is_member=is_member, target=target, seed=seed)
        )

    @cached_property
    def needs_side_information(self) -> bool:
        """True if it cannot score without knowing a defense's choices."""
        return isinstance(self.rule, SideInformationRule)

    def with_side_information(self, used: Mapping[int, Bool[Tensor, "*samples"]]) -> "Attack":
        """The attack, knowing what a defense chose; the attack itself if it asks for nothing.

        Args:
            used: By measured round, which samples the target can have trained on, as far as
                their class tells.
        """
        if not isinstance(self.rule, SideInformationRule):
            return self
        return replace(self, rule=self.rule.with_side_information(used))

    @cached_property
    def needs_references(self) -> bool:
        """True if it cannot score without reference models."""
        return isinstance(self.rule, ReferenceRule)

    def with_references(
        self,
        references: Sequence[Mapping[str, Measurements]],
        target: ClientId,
        trained_on: Bool[Tensor, "references samples"],
        alike: Mapping[ClientId, ClientId] = MappingProxyType({}),
        owners: Int[Tensor, "references measured"] | None = None,
    ) -> "Attack":
        """The attack with reference models; the attack itself if it takes none.

        Args:
            references: By signal name, each federation's measurements of the samples under attack,
                and of any others after these.
            target: The client of these that stands for the one under audit.
            trained_on: On which of the samples some client of each federation trained.
            alike: The client that stands for each audited one, where that is not ``target``.
            owners: The client of each federation that trained on each of all measured samples, or
                ``NOBODY``; settings can then be chosen on these.

        Raises:
            BadInput: A signal that the attack needs was not measured.
        """
        if not isinstance(self.rule, ReferenceRule):
            return self
        attacked = slice(0, trained_on.shape[1])
        given = []
        for at, (one, mask) in enumerate(zip(references, trained_on, strict=True)):
            cubes = tuple(self._cubes(one))
            tuning = None if owners is None else Tuning(cubes, owners[at])
            kept = tuple(cube.on_samples(attacked) for cube in cubes)
            given.append(Reference(kept, target, mask, alike, tuning))
        return replace(self, rule=self.rule.with_references(given))

    def on_samples(self, chosen: Tensor) -> "Attack":
        """The attack for some of the samples that its reference models were measured on.

        Args:
            chosen: Their positions, or a mask.
        """
        if not isinstance(self.rule, ReferenceRule):
            return self
        return replace(self, rule=self.rule.on_samples(chosen))

    def with_settings(self, settings: Mapping[str, Setting]) -> "Attack":
        """The attack with some settings of its rule or signals changed.

        Raises:
            BadInput: No part has a setting of that name.
        """
        attack = self
        for name, value in settings.items():
            attack = attack._with(name, value)
        return attack

    def settings(self) -> dict[str, Setting]:
        """All settings of the rule and the signals, by name."""
        found: dict[str, Setting] = {}
        for part in self.parts:
            found |= {name: getattr(part, name) for name in _fields(part)}
        return found

    @property
    def parts(self) -> tuple[Signal | Rule | SourceRule, ...]:
        """Signals and rule."""
        return (*self.signals, self.rule)

    def _cubes(self, measured: Mapping[str, Measurements]) -> list[Measurements]:
        missing = [signal.name for signal in self.signals if signal.name not in measured]
        if missing:
            raise BadInput(
                f"this attack needs the signals {missing}, which were not measured; measured: "
                f"{sorted(measured)}"
            )
        return [measured[signal.name] for signal in self.signals]

    def _with(self, name: str, value: Setting) -> "Attack":
        if name not in self.settings():
            raise unknown_name("setting of this attack", name, self.settings() or {"(none)": 0})
        signals = tuple(_replaced(signal, name, value) for signal in self.signals)
        return replace(self, signals=signals, rule=_replaced(self.rule, name, value))


def _fields(part: object) -> tuple[str, ...]:
    # Without class variables, and without a rule within a rule.
    named = [f.name for f in fields(part)] if is_dataclass(part) else []
    return tuple(name for name in named if isinstance(getattr(part, name), Setting))


def _replaced(part: Part, name: str, value: Setting) -> Part:
    if name not in _fields(part):
        return part
    default = getattr(part, name)
    (annotation,) = (one.type for one in fields(part) if one.name == name)  # type: ignore[arg-type]
    refuse_unfit(f"{name} of this attack", value, annotation, default)
    return replace(part, **{name: type(default)(value)})  # type: ignore[type-var]


Settings = ParamSpec("Settings")

ENTRIES: dict[str, Callable[..., Attack]] = {}
"""Every entry by its catalogue name, in the order of definition."""


def with_rule_settings(
    name: str,
    signals: tuple[Signal, ...],
    rule: Callable[Settings, Rule | SourceRule],
    source: str,
    about: str,
    /,
    *values: Settings.args,
    **defaults: Settings.kwargs,
) -> Callable[Settings, Attack]:
    """Define an attack whose constructor takes the settings of its rule.

    Args:
        name: Name in the catalogue.
        signals: What is measured. Their settings are changed by :meth:`Attack.with_settings`.
        rule: Class of the rule.
        source: Paper, with equation or section.
        about: The attack in one sentence.
        values: None; settings are given by name.
        defaults: Settings of the rule that this attack sets to something else.
    """
    rule_with_defaults = rule(*values, **defaults)
    return _entry(Attack(signals, rule_with_defaults, source, about, name), rule)


def with_signal_settings(
    name: str,
    signal: Callable[Settings, Signal],
    rule: Rule,
    source: str,
    about: str,
    /,
    *values: Settings.args,
    **defaults: Settings.kwargs,
) -> Callable[Settings, Attack]:
    """Define an attack on one signal whose constructor takes the settings of that signal.

    Args:
        name: Name in the catalogue.
        signal: Class of the signal.
        rule: Rule without settings of its own.
        source: Paper, with equation or section.
        about: The attack in one sentence.
        values: None; settings are given by name.
        defaults: Settings of the signal that this attack sets to something else.
    """
    signal_with_defaults = signal(*values, **defaults)
    return _entry(Attack((signal_with_defaults,), rule, source, about, name), signal)


def name_entries(namespace: Mapping[str, object]) -> list[str]:
    """Name each entry after its variable in a module, for ``help()``, and return these names.

    Args:
        namespace: Variables of the module that defines the entries.
    """
    names = []
    for variable, value in namespace.items():
        if any(value is entry for entry in ENTRIES.values()):
            assert inspect.isfunction(value)
            value.__name__ = value.__qualname__ = variable
            value.__module__ = "fedaudit.attacks"
            value.__doc__ = f"{value.__doc__}".replace("NAME(", f"{variable}(")
            names.append(variable)
    return names


def _entry(
    usual: Attack, part: Callable[Settings, Rule | SourceRule | Signal]
) -> Callable[Settings, Attack]:
    """List an attack with its defaults, and return its constructor, which takes all its settings.

    Args:
        usual: Attack with its defaults.
        part: Class of the rule or signal whose settings type checkers know.
    """

    def construct(**settings: Setting) -> Attack:
        return usual.with_settings(settings)

    defaults = usual.settings()
    taken = {one.name: (one, kind) for kind in usual.parts for one in fields(kind)}  # type: ignore[arg-type]
    settings = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=taken[name][0].type
        )
        for name, default in defaults.items()
    ]
    construct.__signature__ = inspect.Signature(settings, return_annotation=Attack)  # type: ignore[attr-defined]
    meanings = [
        f"    {name}: {attribute_meaning(type(taken[name][1]).__mro__, name)}" for name in defaults
    ]
    construct.__doc__ = "\n\n".join(
        [
            usual.about,
            *(["\n".join(["Args:", *meanings])] if meanings else []),
            f"Examples:\n    >>> NAME().name\n    {usual.name!r}",
            f"Source: {usual.source}.",
        ]
    )
    entry = cast(Callable[Settings, Attack], checked(construct))
    ENTRIES[usual.name] = entry
    return entry
