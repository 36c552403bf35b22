"""The samples of an audit of somebody's federation, and who trains on them."""

import warnings
from collections.abc import Iterable, Mapping
from operator import index
from pathlib import Path
from typing import Literal, NamedTuple, SupportsIndex, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import BadInput, type_of, unknown_name
from fedaudit.core.modules import SUPPORTED
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NOBODY, ClientId, Samples, summary
from fedaudit.datasets.arrays import refuse_constant
from fedaudit.datasets.copies import number_rows, occur_in_several
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.clients import ByClient, Called, number_of, numbers_of
from fedaudit.observe.tensors import read_tensors, write_tensors

_LARGEST = 10**9
_OF_A_PART = ("labels", "owner", "panel")
_FEATURES, _TARGETS, _INPUT = "features", "targets", "input/"

Array: TypeAlias = Tensor | ndarray
Labelled: TypeAlias = tuple[Array | Mapping[str, Array], Array]
"""Features as the model takes them, one tensor or several by name, and class indices or other
targets, one row a sample."""

Part: TypeAlias = Mapping[str, Tensor | ndarray] | Path | str
"""A client's part of an audit: :attr:`Split.part`, or a file of it."""


class Split(NamedTuple):
    """Each client's samples, so that an audit can tell.

    Attributes:
        train: For each client, as it was called, the positions of the samples that it may train
            on.
        audit: The audited samples: half of them, by the toss of a coin, are among these.
    """

    train: dict[Called, Int[ndarray, " samples"]]
    audit: AuditSet

    def __repr__(self) -> str:
        """Return sizes, never positions of samples."""
        return f"Split(train={summary(self.train)}, audit={self.audit!r})"

    @property
    def part(self) -> dict[str, ndarray]:
        """Arrays by name that measuring these clients takes.

        The audited samples ("features", or "input/NAME" of a model that takes several; "labels",
        and "targets" where these are no classes), who trains on each ("owner", -1 for nobody) and
        for whom a coin decided that ("panel"). Nothing is in it of samples that are not audited.
        See :func:`join_audits`.
        """
        tensors = {**features_by_name(self.audit.samples), **self.audit.tensors()}
        return {name: tensors[name].numpy() for name in tensors if name not in ("ids", "group")}

    def save(self, path: Path | str) -> None:
        """Writes :attr:`part` to a file, for whoever measures; folders are made.

        Raises:
            BadInput: It cannot be written.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_tensors({n: torch.from_numpy(value) for n, value in self.part.items()}, Path(path))


def audit_samples(
    members: ByClient[Labelled],
    unseen: Labelled,
    *,
    training: ByClient[Labelled] | None = None,
    copies: Literal["refuse", "drop"] = "refuse",
    seed: int = 1,
) -> AuditSet:
    """Samples to be audited, if who trains on what is settled already.

    Anything that distinguishes members from unseen samples by their looks (another hospital,
    another year) passes for leakage; a control with a classifier of inputs alone warns of that.
    Bounds on epsilon rest on a fair draw and are not given: see :func:`fair_split`.

    Args:
        members: For each client, by number or name, some samples that it trains on.
        unseen: Samples of the same kind that no client trains on.
        training: All samples that each client trains on, to check members and unseen samples;
            nothing of them is kept. None checks members and unseen samples against each other only.
        copies: Whether exact copies (same features and target) between members and unseen samples,
            between clients and within either are refused, or left out with a warning that counts
            them: all that are on two sides, and all but one of the others.
        seed: Decides the order, which is independent of who is a member.

    Raises:
        BadInput: There are no samples of a kind, features and labels do not fit together, there are
            exact copies, an unseen sample is trained on, or a member is not.

    Examples:
        >>> features, labels = torch.arange(60.0).reshape(30, 2), torch.arange(30) % 2
        >>> members = {"a": (features[:10], labels[:10]), "b": (features[10:20], labels[10:20])}
        >>> len(audit_samples(members, (features[20:], labels[20:])).samples)
        30
    """
    if copies not in ("refuse", "drop"):
        raise unknown_name("treatment of copies", str(copies), ["refuse", "drop"])
    if not members:
        raise BadInput("an audit needs members: give some samples that a client trains on")
    parts = {client: labelled_samples(data, f"client {client}") for client, data in members.items()}
    numbers = _numbers(parts)
    nobody = labelled_samples(unseen, "unseen")
    if training is not None:
        _check_training(parts, nobody, training)
    owners = [np.full(len(part), numbers[client]) for client, part in parts.items()]
    owner = np.concatenate([*owners, np.full(len(nobody), NOBODY)])
    whole = Samples.joined(*parts.values(), nobody)
    panel = np.full(len(owner), NOBODY)
    kept = _without_copies(whole, owner, panel, refused=copies == "refuse")
    return _shuffled(whole.take(torch.from_numpy(kept)), owner[kept], panel[kept], seed)


def _check_training(
    members: Mapping[Called, Samples], unseen: Samples, training: ByClient[Labelled]
) -> None:
    trained = {
        client: labelled_samples(data, f"client {client}") for client, data in training.items()
    }
    numbers = {number: client for client, number in numbers_of(trained).items()}
    if unknown := [client for client in members if number_of(client) not in numbers]:
        raise BadInput(f"training has no samples of client {unknown[0]}; give those of all clients")
    rows = number_rows(*members.values(), unseen, *trained.values())
    unseen_rows, trained_rows = rows[len(members)], rows[len(members) + 1 :]
    seen = int(np.isin(unseen_rows, np.concatenate(trained_rows)).sum())
    if seen:
        raise BadInput(
            f"{seen} of {len(unseen_rows)} unseen samples are exact copies of samples that clients "
            "train on; leave them out"
        )
    by_client = dict(zip(trained, trained_rows, strict=True))
    for client, own in zip(members, rows, strict=False):
        absent = int((~np.isin(own, by_client[numbers[number_of(client)]])).sum())
        if absent:
            raise BadInput(
                f"{absent} of {len(own)} members of client {client} are not among the samples that "
                "it trains on; give members as they are trained on"
            )


def _without_copies(
    samples: Samples,
    owner: Int[ndarray, " samples"],
    panel: Int[ndarray, " samples"],
    *,
    refused: bool = False,
) -> Int[ndarray, " kept"]:
    """Return the positions of samples without exact copies that belong to another side.

    Of copies on one side (with the same owner and panel) the first is kept.
    """
    (rows,) = number_rows(samples)
    _, first, place = np.unique(rows, return_index=True, return_inverse=True)
    differs = (owner != owner[first][place]) | (panel != panel[first][place])
    is_shared = np.isin(rows, rows[differs])
    is_repeated = ~is_shared & (np.arange(len(rows)) != first[place])
    shared, repeated = int(is_shared.sum()), int(is_repeated.sum())
    if not shared + repeated:
        return np.arange(len(rows))
    with_unseen = is_shared & np.isin(rows, rows[(owner == NOBODY)])
    what = (
        f"{shared} of {len(rows)} audited samples have an exact copy on another side "
        f"({int((with_unseen & (owner == NOBODY)).sum())} unseen samples among them), and "
        f"{repeated} repeat a sample of the same side"
    )
    if refused:
        raise BadInput(
            f"{what}; a sample with a copy elsewhere is member and non-member at once: leave "
            'copies out, or pass copies="drop"'
        )
    kept = np.flatnonzero(~is_shared & ~is_repeated)
    if not len(kept):
        raise BadInput(f"{what}, so that none is left; give samples that differ")
    warnings.warn(f"{what}; they are left out of the audit", stacklevel=3)
    return kept


def fair_split(
    data: ByClient[Labelled], *, audited: int | Mapping[Called, int] = 300, seed: int = 1
) -> Split:
    """Sets samples of each client aside by the toss of a coin, before anybody trains.

    Of each client ``audited`` samples are drawn, and a fair coin decides for each whether the
    client trains on it or nobody does. Members and unseen samples then differ in nothing else, and
    bounds on epsilon can be given.

    Exact copies within a client's data are one sample: one coin decides for all of them. Audited
    samples with a copy in another client's data are left out of the audit, with a warning that
    counts them.

    A client that splits its own data alone gets the same as in a split of everybody's; see
    :func:`join_audits`.

    Args:
        data: All samples of each client, by number or name.
        audited: Samples drawn of each client, or the number for each client; about half of them
            are lost to training.
        seed: Of the draw.

    Raises:
        BadInput: A client has too few samples that differ.

    Examples:
        >>> features, labels = torch.randn(80, 2), torch.arange(80) % 2
        >>> data = {"a": (features[:40], labels[:40]), "b": (features[40:], labels[40:])}
        >>> split = fair_split(data, audited=20)
        >>> len(split.audit.samples)
        40

    Source: Steinke, Nasr and Jagielski 2023 (independent inclusion).
    """
    numbers = _numbers(data)
    whole = {client: labelled_samples(given, f"client {client}") for client, given in data.items()}
    if not whole:
        raise BadInput("an audit needs clients: give the samples of at least one")
    rows = dict(zip(whole, number_rows(*whole.values()), strict=True))
    shared = occur_in_several(list(rows.values()))
    train: dict[Called, Int[ndarray, " samples"]] = {}
    samples, owners, panels = [], [], []
    left_out = 0
    # In the order of numbers, as parts are joined.
    for client, every in sorted(whole.items(), key=lambda item: numbers[item[0]]):
        number, own = numbers[client], rows[client]
        count = audited_of(client, audited)
        rng = seeded_numpy(seed, "fair split", number)
        order = rng.permutation(len(every))
        # The first of each group of copies, in the order drawn.
        drawn = order[np.sort(np.unique(own[order], return_index=True)[1])]
        if not 0 < count < len(drawn):
            raise BadInput(
                f"{count} samples of client {client} cannot be audited: it has {len(every)}, of "
                f"which {len(drawn)} differ, and is to keep some; lower audited"
            )
        drawn = drawn[:count]
        member = rng.random(count) < 0.5
        train[client] = np.flatnonzero(~np.isin(own, own[drawn[~member]]))
        alone = ~np.isin(own[drawn], shared)
        left_out += int((~alone).sum())
        samples.append(every.take(torch.from_numpy(drawn[alone])))
        owners.append(np.where(member, number, NOBODY)[alone])
        panels.append(np.full(int(alone.sum()), number))
    if left_out:
        what = f"{left_out} audited samples have an exact copy in another client's data"
        if not sum(map(len, samples)):
            raise BadInput(f"{what}, so that none is left; give clients samples that differ")
        warnings.warn(f"{what}; they are left out of the audit", stacklevel=2)
    together = Samples.joined(*samples)
    train = {client: train[client] for client in whole}
    return Split(train, _shuffled(together, np.concatenate(owners), np.concatenate(panels), seed))


def audited_of(client: Called, audited: int | Mapping[Called, int]) -> int:
    """Return how many samples of a client are audited."""
    count: object = audited
    if isinstance(audited, Mapping):
        counts = {number: audited[called] for called, number in numbers_of(audited).items()}
        if number_of(client) not in counts:
            raise BadInput(
                f"audited has no number for client {client}; it has one for "
                f"{', '.join(map(str, audited)) or 'none'}"
            )
        count = counts[number_of(client)]
    try:
        if isinstance(count, bool):
            raise TypeError
        return index(cast("SupportsIndex", count))
    except TypeError:
        raise BadInput(
            f"audited is a whole number of samples, or one for each client, got {count!r:.80} "
            f"({type_of(count)}) for client {client}"
        ) from None


def join_audits(parts: Iterable[Part], *, seed: int = 1) -> AuditSet:
    """The audit set of several clients, each of which has split its data by itself.

    A client needs nobody's data for :func:`fair_split` but its own: what is drawn depends on its
    number, on how many samples it has and on the seed. With one seed everywhere, the joined audit
    set is that of a split of all clients' data at once; bounds on epsilon are given all the same
    where clients have seeds of their own. Samples with an exact copy in another part are left out,
    with a warning that counts them; copies among samples that are not audited cannot be seen.

    Args:
        parts: Of the clients, each :attr:`Split.part` or the file that :meth:`Split.save` wrote;
            they may be anybody's. In whichever order they come, the result is the same.
        seed: With which the clients split.

    Raises:
        BadInput: There are no parts, one is none, two are of one client, their samples differ
            in shape, or all of them have copies.
        Damaged: A file cannot be read.

    Examples:
        >>> features, labels = torch.randn(80, 2), torch.arange(80) % 2
        >>> first = fair_split({0: (features[:40], labels[:40])}, audited=20)
        >>> second = fair_split({1: (features[40:], labels[40:])}, audited=20)
        >>> len(join_audits([first.part, second.part]).samples)
        40
    """
    read = [_part(one, f"part {place}", seed) for place, one in enumerate(parts, 1)]
    if not read:
        raise BadInput("an audit needs the part of at least one client; check where they lie")
    read.sort(key=lambda part: part.clients)
    first, named = read[0], dict[ClientId, str]()
    for part in read:
        for client in part.clients:
            if client in named:
                raise BadInput(
                    f"{named[client]} and {part.name} are both of client {client}; give each "
                    "client's once, under its own number"
                )
            named[client] = part.name
        shapes = [tuple(one.samples.features.shape[1:]) for one in (first, part)]
        if shapes[0] != shapes[1]:
            raise BadInput(
                f"samples of {first.name} have the shape {shapes[0]} and those of {part.name} "
                f"{shapes[1]}; all clients give them as the model takes them"
            )
    whole = Samples.joined(*(part.samples for part in read))
    owner = np.concatenate([part.owner for part in read])
    panel = np.concatenate([part.panel for part in read])
    kept = _without_copies(whole, owner, panel)
    return _shuffled(whole.take(torch.from_numpy(kept)), owner[kept], panel[kept], seed)


class _Read(NamedTuple):
    name: str
    clients: tuple[ClientId, ...]
    samples: Samples
    owner: Int[ndarray, " samples"]
    panel: Int[ndarray, " samples"]


def _part(given: Part, name: str, seed: int) -> _Read:
    """A part as its client had it before it was shuffled."""
    if isinstance(given, Path | str):
        name, given = str(given), read_tensors(Path(given))[0]
    missing = [key for key in _OF_A_PART if key not in given]
    inputs = {n.removeprefix(_INPUT): v for n, v in given.items() if n.startswith(_INPUT)}
    missing += [_FEATURES] if not inputs and _FEATURES not in given else []
    if missing:
        raise BadInput(
            f"{name} has no {missing[0]!r}, and is no client's part of an audit; give what "
            "fair_split(...).part is, or the file that its save wrote"
        )
    labels = torch.as_tensor(given["labels"])
    samples = labelled_samples((inputs or given[_FEATURES], given.get(_TARGETS, labels)), name)
    if _TARGETS in given:
        samples = samples.replace(
            labels=labelled_samples((torch.arange(labels.numel())[:, None], labels), name).labels
        )
    owner, panel = (torch.as_tensor(given[key]) for key in ("owner", "panel"))
    told = all(t.dtype == torch.int64 and t.shape == (len(samples),) for t in (owner, panel))
    clients = sorted({*owner.tolist(), *panel.tolist()} - {NOBODY}) if told else []
    fits = told and bool(((panel == NOBODY) | (owner == NOBODY) | (owner == panel)).all())
    if not fits or not clients or min(clients) < 0:
        raise BadInput(
            f"{name} does not say of each of its {len(samples)} samples which client trains on it; "
            "give what fair_split(...).part is"
        )
    back = np.argsort(_order(len(samples), seed))
    return _Read(
        name,
        tuple(clients),
        samples.take(torch.from_numpy(back)),
        owner.numpy()[back],
        panel.numpy()[back],
    )


def _order(count: int, seed: int) -> Int[ndarray, " samples"]:
    return seeded_numpy(seed, "order of an audit").permutation(count)


def _numbers(clients: Iterable[Called]) -> dict[Called, ClientId]:
    numbers = numbers_of(clients)
    beyond = [number for number in numbers.values() if not 0 <= number <= _LARGEST]
    if beyond:
        raise BadInput(
            f"clients that are audited have whole numbers from 0 to {_LARGEST}, or names, got "
            f"{beyond[0]}; number or name them so"
        )
    return numbers


def labelled_samples(given: Labelled, whose: str) -> Samples:
    """Return features and targets as samples; raise if they do not fit or are not finite."""
    try:
        given_features, given_targets = given
        named = isinstance(given_features, Mapping)
        parts = given_features if isinstance(given_features, Mapping) else {"": given_features}
        if any(np.ma.is_masked(part) for part in (*parts.values(), given_targets)):
            raise ValueError("some entries are masked, and would be read as if they were not")
        inputs = {n: torch.as_tensor(part).detach().cpu() for n, part in parts.items()}
        targets = torch.as_tensor(given_targets).detach().cpu()
    # Texts, lists of several lengths, three parts.
    except (TypeError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())[:200]
        raise BadInput(
            f"the samples of {whose} are no pair of features and targets ({said}); {SUPPORTED}: "
            "give two arrays, or a dictionary of what the model takes by name, and an array"
        ) from error
    sizes = {len(targets), *(len(part) if part.ndim else 0 for part in inputs.values())}
    if len(sizes) != 1 or not len(targets) or targets.is_complex():
        shapes = ", ".join(str(tuple(part.shape)) for part in inputs.values())
        raise BadInput(
            f"the samples of {whose} are features of shape {shapes} and targets of shape "
            f"{tuple(targets.shape)} ({targets.dtype}); give one row and one target each"
        )
    targets = targets.float() if targets.is_floating_point() else targets.long()
    if targets.ndim == 1 and int(targets.min()) < 0 and not targets.is_floating_point():
        raise BadInput(f"class indices start at 0, and those of {whose} have {targets.min()}")
    for name, part in inputs.items():
        if part.is_complex() or not bool(part.isfinite().all()):
            raise BadInput(
                f"the features {name + ' ' if name else ''}of {whose} are {part.dtype} and not all "
                "finite numbers; leave out what is not"
            )
    if len(inputs) == 1:
        refuse_constant(next(iter(inputs.values())), f"samples of {whose}")
    taken = {n: part.float() if part.is_floating_point() else part for n, part in inputs.items()}
    return Samples(taken if named else taken[""], targets, torch.arange(len(targets)))


def features_by_name(samples: Samples) -> dict[str, Tensor]:
    """Features as they are stored: one tensor, or each that a model takes by name."""
    if samples.inputs is None:
        return {_FEATURES: samples.features}
    return {f"{_INPUT}{n}": v for n, v in samples.inputs.unpacked(samples.features).items()}


def features_stored(tensors: Mapping[str, Tensor]) -> Tensor | dict[str, Tensor]:
    """Return features as :func:`features_by_name` stores them."""
    inputs = {n.removeprefix(_INPUT): v for n, v in tensors.items() if n.startswith(_INPUT)}
    return inputs or tensors[_FEATURES]


def _shuffled(
    samples: Samples, owner: Int[ndarray, " samples"], panel: Int[ndarray, " samples"], seed: int
) -> AuditSet:
    order = _order(len(samples), seed)
    mixed = samples.take(torch.from_numpy(order))
    numbered = mixed.replace(ids=torch.arange(len(mixed)))
    return AuditSet(numbered, owner[order].astype(np.int64), panel[order].astype(np.int64))
