"""Audited samples of a recorded federation, and which client trains on each."""

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
from fedaudit.datasets.dataset import number_rows, occur_in_several
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.clients import ByClient, ClientRef, number_of, numbers_of
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
    """Training and audited samples of each client.

    Attributes:
        train: Positions of the samples that each client may train on, by client.
        audit: The audited samples; a fair coin decided for each whether it is also in ``train``.
    """

    train: dict[ClientRef, Int[ndarray, " samples"]]
    audit: AuditSet

    def __repr__(self) -> str:
        """Return sizes, never positions of samples."""
        return f"Split(train={summary(self.train)}, audit={self.audit!r})"

    @property
    def part(self) -> dict[str, ndarray]:
        """Arrays of the audited samples by name, and of no others; see :func:`join_audits`.

        "features" (or "input/NAME" for each named input), "labels", "targets" if they are not
        classes, "owner" (the client that trains on a sample, -1 for held-out ones) and "panel"
        (the client for which a coin decided).
        """
        tensors = {**features_by_name(self.audit.samples), **self.audit.tensors()}
        return {name: tensors[name].numpy() for name in tensors if name not in ("ids", "group")}

    def save(self, path: Path | str) -> None:
        """Write :attr:`part` to a file and create missing folders.

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
    """Build an audit set if members are known already.

    A difference in distribution between members and unseen samples (another hospital, another
    year) looks like leakage; a control with a classifier of inputs alone warns of it. Bounds on
    epsilon need a fair draw and are not computed; see :func:`fair_split`.

    Args:
        members: For each client, by number or name, some samples that it trains on.
        unseen: Samples of the same kind that no client trains on.
        training: All samples that each client trains on, to check members and unseen samples; they
            are not kept. By default members and unseen samples are only compared with each other.
        copies: "refuse" exact copies (same features and target), or "drop" them with a warning:
            every copy that is on two sides, and repeats on one.
        seed: Seed of the order of samples.

    Raises:
        BadInput: A side has no samples, features and labels do not fit together, there are exact
            copies, an unseen sample is trained on, or a member is not.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> features, labels = torch.arange(60.0).reshape(30, 2), torch.arange(30) % 2
        >>> members = {"a": (features[:10], labels[:10]), "b": (features[10:20], labels[10:20])}
        >>> len(fa.audit_samples(members, (features[20:], labels[20:])).samples)
        30
    """
    if copies not in ("refuse", "drop"):
        raise unknown_name("treatment of copies", str(copies), ["refuse", "drop"])
    if not isinstance(members, Mapping):
        raise BadInput(
            "members are a dictionary from each client to a pair of features and targets, such as "
            f'{{"hospital": (x, y)}}; got {type(members).__name__}'
        )
    if not members:
        raise BadInput("an audit needs members; give some samples that a client trains on")
    parts = {client: labelled_samples(data, f"client {client}") for client, data in members.items()}
    numbers = _numbers(parts)
    held_out = labelled_samples(unseen, "unseen")
    if training is not None:
        _check_training(parts, held_out, training)
    owners = [np.full(len(part), numbers[client]) for client, part in parts.items()]
    owner = np.concatenate([*owners, np.full(len(held_out), NOBODY)])
    samples = Samples.joined(*parts.values(), held_out)
    panel = np.full(len(owner), NOBODY)
    rows = _without_copies(samples, owner, panel, refused=copies == "refuse")
    return _shuffled(samples.take(torch.from_numpy(rows)), owner[rows], panel[rows], seed)


def _check_training(
    members: Mapping[ClientRef, Samples], unseen: Samples, training: ByClient[Labelled]
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
            "train on; remove them"
        )
    by_client = dict(zip(trained, trained_rows, strict=True))
    for client, member_rows in zip(members, rows, strict=False):
        absent = int((~np.isin(member_rows, by_client[numbers[number_of(client)]])).sum())
        if absent:
            raise BadInput(
                f"{absent} of {len(member_rows)} members of client {client} are not among the "
                "samples that it trains on; give members in the form that is trained on"
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
            f"{what}; a sample with a copy on another side is member and non-member at once: "
            'remove copies, or pass copies="drop"'
        )
    positions = np.flatnonzero(~is_shared & ~is_repeated)
    if not len(positions):
        raise BadInput(f"{what}, so that none is left; give samples that differ")
    warnings.warn(f"{what}; they are excluded from the audit", stacklevel=3)
    return positions


def fair_split(
    data: ByClient[Labelled], *, audited: int | Mapping[ClientRef, int] = 300, seed: int = 1
) -> Split:
    """Draw members and unseen samples of each client by fair coins, before training.

    ``audited`` samples of each client are drawn, and a fair coin decides for each whether the
    client trains on it. Members and unseen samples then have the same distribution, which bounds
    on epsilon need.

    Exact copies within a client's data count as one sample. Audited samples with a copy in another
    client's data are left out of the audit, with a warning. A client that splits its data alone
    gets the same split; see :func:`join_audits`.

    Args:
        data: All samples of each client, by number or name.
        audited: Samples drawn of each client, or the number for each client; about half of them
            are lost to training.
        seed: Seed of the draw.

    Raises:
        BadInput: A client has too few samples that differ.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> features, labels = torch.randn(80, 2), torch.arange(80) % 2
        >>> data = {"a": (features[:40], labels[:40]), "b": (features[40:], labels[40:])}
        >>> split = fa.fair_split(data, audited=20)
        >>> len(split.audit.samples)
        40

    Source: Steinke, Nasr and Jagielski 2023 (independent inclusion).
    """
    numbers = _numbers(data)
    samples_of = {
        client: labelled_samples(arrays, f"client {client}") for client, arrays in data.items()
    }
    if not samples_of:
        raise BadInput("an audit needs clients; give the samples of at least one")
    rows = dict(zip(samples_of, number_rows(*samples_of.values()), strict=True))
    shared = occur_in_several(list(rows.values()))
    train: dict[ClientRef, Int[ndarray, " samples"]] = {}
    samples, owners, panels = [], [], []
    left_out = 0
    # Use the order of client numbers, in which :func:`join_audits` joins parts.
    for client, client_samples in sorted(samples_of.items(), key=lambda item: numbers[item[0]]):
        number, client_rows = numbers[client], rows[client]
        count = audited_of(client, audited)
        rng = seeded_numpy(seed, "fair split", number)
        order = rng.permutation(len(client_samples))
        # Keep the first of each group of copies, in the drawn order.
        drawn = order[np.sort(np.unique(client_rows[order], return_index=True)[1])]
        if not 0 < count < len(drawn):
            raise BadInput(
                f"{count} samples of client {client} cannot be audited: it has "
                f"{len(client_samples)}, of which {len(drawn)} differ, and must keep some; lower "
                "audited"
            )
        drawn = drawn[:count]
        is_member = rng.random(count) < 0.5
        train[client] = np.flatnonzero(~np.isin(client_rows, client_rows[drawn[~is_member]]))
        is_unique = ~np.isin(client_rows[drawn], shared)
        left_out += int((~is_unique).sum())
        samples.append(client_samples.take(torch.from_numpy(drawn[is_unique])))
        owners.append(np.where(is_member, number, NOBODY)[is_unique])
        panels.append(np.full(int(is_unique.sum()), number))
    if left_out:
        what = f"{left_out} audited samples have an exact copy in another client's data"
        if not sum(map(len, samples)):
            raise BadInput(f"{what}, so that none is left; give clients samples that differ")
        warnings.warn(f"{what}; they are excluded from the audit", stacklevel=2)
    together = Samples.joined(*samples)
    train = {client: train[client] for client in samples_of}
    return Split(train, _shuffled(together, np.concatenate(owners), np.concatenate(panels), seed))


def audited_of(client: ClientRef, audited: int | Mapping[ClientRef, int]) -> int:
    """Return how many samples of a client are audited."""
    count: object = audited
    if isinstance(audited, Mapping):
        counts = {number: audited[ref] for ref, number in numbers_of(audited).items()}
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
            f"audited is {count!r:.80} ({type_of(count)}) for client {client}; give a whole number "
            "of samples, or one for each client"
        ) from None


def join_audits(parts: Iterable[Part], *, seed: int = 1) -> AuditSet:
    """Join the audit sets of clients that split their data separately.

    The draw of :func:`fair_split` depends on the client's number, its number of samples and the
    seed alone. If all clients use one seed, the joined audit set equals that of a split of all
    data at once. Samples with an exact copy in another part are left out, with a warning; copies
    among samples that are not audited are not noticed.

    Args:
        parts: :attr:`Split.part` of each client, or the file that :meth:`Split.save` wrote; both
            are untrusted. The order of parts does not matter.
        seed: The seed with which clients split.

    Raises:
        BadInput: There are no parts, one is invalid, two are of one client, their samples differ
            in shape, or all of them have copies.
        Damaged: A file cannot be read.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> features, labels = torch.randn(80, 2), torch.arange(80) % 2
        >>> first = fa.fair_split({0: (features[:40], labels[:40])}, audited=20)
        >>> second = fa.fair_split({1: (features[40:], labels[40:])}, audited=20)
        >>> len(fa.join_audits([first.part, second.part]).samples)
        40
    """
    read = [_part(part, f"part {place}", seed) for place, part in enumerate(parts, 1)]
    if not read:
        raise BadInput("an audit needs the part of at least one client; check their paths")
    read.sort(key=lambda part: part.clients)
    first, named = read[0], dict[ClientId, str]()
    for part in read:
        for client in part.clients:
            if client in named:
                raise BadInput(
                    f"{named[client]} and {part.name} are both of client {client}; give one part "
                    "for each client, under its number"
                )
            named[client] = part.name
        shapes = [tuple(each.samples.features.shape[1:]) for each in (first, part)]
        if shapes[0] != shapes[1]:
            raise BadInput(
                f"samples of {first.name} have the shape {shapes[0]} and those of {part.name} "
                f"{shapes[1]}; give all of them in the shape of the model's input"
            )
    together = Samples.joined(*(part.samples for part in read))
    owner = np.concatenate([part.owner for part in read])
    panel = np.concatenate([part.panel for part in read])
    rows = _without_copies(together, owner, panel)
    return _shuffled(together.take(torch.from_numpy(rows)), owner[rows], panel[rows], seed)


class _ClientPart(NamedTuple):
    name: str
    clients: tuple[ClientId, ...]
    samples: Samples
    owner: Int[ndarray, " samples"]
    panel: Int[ndarray, " samples"]


def _part(part: Part, name: str, seed: int) -> _ClientPart:
    """Read a client's part and undo its shuffling."""
    if isinstance(part, Path | str):
        name, part = str(part), read_tensors(Path(part))[0]
    missing = [key for key in _OF_A_PART if key not in part]
    inputs = {n.removeprefix(_INPUT): v for n, v in part.items() if n.startswith(_INPUT)}
    missing += [_FEATURES] if not inputs and _FEATURES not in part else []
    if missing:
        raise BadInput(
            f"{name} has no {missing[0]!r}, so it is not a client's part of an audit; give "
            "fair_split(...).part, or the file that its save wrote"
        )
    labels = torch.as_tensor(part["labels"])
    samples = labelled_samples((inputs or part[_FEATURES], part.get(_TARGETS, labels)), name)
    if _TARGETS in part:
        samples = samples.replace(
            labels=labelled_samples((torch.arange(labels.numel())[:, None], labels), name).labels
        )
    owner, panel = (torch.as_tensor(part[key]) for key in ("owner", "panel"))
    is_typed = all(t.dtype == torch.int64 and t.shape == (len(samples),) for t in (owner, panel))
    clients = sorted({*owner.tolist(), *panel.tolist()} - {NOBODY}) if is_typed else []
    fits = is_typed and bool(((panel == NOBODY) | (owner == NOBODY) | (owner == panel)).all())
    if not fits or not clients or min(clients) < 0:
        raise BadInput(
            f"{name} does not state the client of each of its {len(samples)} samples; give "
            "fair_split(...).part"
        )
    back = np.argsort(_order(len(samples), seed))
    return _ClientPart(
        name,
        tuple(clients),
        samples.take(torch.from_numpy(back)),
        owner.numpy()[back],
        panel.numpy()[back],
    )


def _order(count: int, seed: int) -> Int[ndarray, " samples"]:
    return seeded_numpy(seed, "order of an audit").permutation(count)


def _numbers(clients: Iterable[ClientRef]) -> dict[ClientRef, ClientId]:
    numbers = numbers_of(clients)
    beyond = [number for number in numbers.values() if not 0 <= number <= _LARGEST]
    if beyond:
        raise BadInput(
            f"an audited client has the number {beyond[0]}; give whole numbers from 0 to "
            f"{_LARGEST}, or names"
        )
    return numbers


def labelled_samples(labelled: Labelled, whose: str) -> Samples:
    """Return features and targets as samples; raise if they do not fit or are not finite."""
    try:
        given_features, given_targets = labelled
        named = isinstance(given_features, Mapping)
        parts = given_features if isinstance(given_features, Mapping) else {"": given_features}
        if any(np.ma.is_masked(part) for part in (*parts.values(), given_targets)):
            raise ValueError("some entries are masked")
        inputs = {n: torch.as_tensor(part).detach().cpu() for n, part in parts.items()}
        targets = torch.as_tensor(given_targets).detach().cpu()
    # These errors are raised for texts, lists of several lengths, and three parts.
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(
            f"the samples of {whose} are not a pair of features and targets ({reason}); "
            f"{SUPPORTED}: give two arrays, or a dictionary of the model's inputs, and an array"
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
                "finite numbers; remove the others"
            )
    if len(inputs) == 1:
        refuse_constant(next(iter(inputs.values())), f"samples of {whose}")
    features = {n: part.float() if part.is_floating_point() else part for n, part in inputs.items()}
    return Samples(features if named else features[""], targets, torch.arange(len(targets)))


def features_by_name(samples: Samples) -> dict[str, Tensor]:
    """Return features as they are stored: one tensor, or one per named input."""
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
    shuffled = samples.take(torch.from_numpy(order)).replace(ids=torch.arange(len(samples)))
    return AuditSet(shuffled, owner[order].astype(np.int64), panel[order].astype(np.int64))
