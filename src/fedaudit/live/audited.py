"""Audited samples of a recorded federation, and which client trains on each."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Literal, NamedTuple, SupportsIndex, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.display import repr_html
from fedaudit.core.errors import BadInput, type_of, unknown_name
from fedaudit.core.modules import SUPPORTED
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NO_CLIENT, ClientId, Samples, summary
from fedaudit.datasets.arrays import raise_if_identical_features
from fedaudit.datasets.dataset import number_rows, rows_in_several_parts
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.clients import ByClient, ClientRef, by_number, names_among, number_of, numbers_of
from fedaudit.live.weights import Array
from fedaudit.observe.tensors import read_tensors, write_tensors

_MAX_CLIENT_NUMBER = 10**9
_REQUIRED = ("labels", "owner", "panel")
"""Names of the arrays that every part has, in addition to features."""
_FEATURES, _TARGETS, _INPUT = "features", "targets", "input/"
_NAMES = "names"
"""Note of a file with the names of clients, one in each line."""

Labelled: TypeAlias = tuple[Array | Mapping[str, Array], Array]
"""Features in the form that the model takes (one array, or several by name), and class indices or
other targets. Each has one row per sample."""

Part: TypeAlias = Mapping[str, Array] | Path | str
"""A client's audited samples: :attr:`Split.part`, or a file of it."""


class Split(NamedTuple):
    """Training and audited samples of each client.

    Attributes:
        train: Positions of the samples that each client may train on, by client.
        audit: The audited samples; a fair coin decided for each whether it is also in ``train``.
    """

    train: dict[ClientRef, Int[ndarray, " samples"]]
    audit: AuditSet

    def _repr_html_(self) -> str:
        return repr_html(self)

    def __repr__(self) -> str:
        """Return sizes only, since positions of samples reveal membership."""
        return f"Split(train={summary(self.train)}, audit={self.audit!r})"

    @property
    def part(self) -> dict[str, ndarray]:
        """Arrays of the audited samples by name, for :func:`join_audits`.

        The arrays are "features" (or "input/NAME" for each named input), "labels", "targets" if
        they are not classes, "owner" (the client that trains on a sample, -1 for a held-out sample)
        and "panel" (the client whose coin decided on the sample).
        """
        return {name: value.numpy() for name, value in _stored(self.audit).items()}

    def save(self, path: Path | str) -> None:
        """Write :attr:`part` to a file and create missing folders.

        Raises:
            BadInput: The file cannot be written.
        """
        save_audit(self.audit, path)


def save_audit(audit: AuditSet, path: Path | str) -> None:
    """Write audited samples to a file and create missing folders.

    ``fedaudit attack --samples`` and :func:`join_audits` read the file.

    Args:
        audit: The audited samples of one or several clients, such as from :func:`audit_samples`.
        path: Path of the file.

    Raises:
        BadInput: The file cannot be written.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> x, y = torch.randn(60, 2), torch.arange(60) % 2
        >>> audit = fa.audit_samples({0: (x[:30], y[:30])}, (x[30:], y[30:]))
        >>> fa.save_audit(audit, "samples")
        >>> len(fa.join_audits(["samples"]).samples)
        60
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    notes = {_NAMES: "\n".join(audit.names)} if audit.names else {}
    write_tensors(_stored(audit), Path(path), notes)


def _stored(audit: AuditSet) -> dict[str, Tensor]:
    """Return the tensors of a file of audited samples by name."""
    tensors = features_by_name(audit.samples) | audit.tensors()
    return {name: value for name, value in tensors.items() if name not in ("ids", "group")}


def audit_samples(
    members: ByClient[Labelled],
    unseen: Labelled,
    *,
    training: ByClient[Labelled] | None = None,
    copies: Literal["refuse", "drop"] = "refuse",
    seed: int = 1,
) -> AuditSet:
    """Build an audit set from samples whose membership is known.

    A difference in distribution between members and held-out samples (another hospital, another
    year) looks like leakage. A control warns of it by classifying samples from their features only.
    Bounds on epsilon need a fair draw and are not computed; see :func:`fair_split`.

    Args:
        members: For each client, by number or name, some samples that it trains on.
        unseen: Held-out samples of the same kind, on which no client trains.
        training: All samples that each client trains on, with which members and held-out samples
            are compared; they are not stored. By default members and held-out samples are only
            compared with each other.
        copies: Treatment of exact copies (same features and target): "refuse" raises an error,
            "drop" warns and removes samples that are members of two clients, or both member and
            held-out, and all but the first of other copies.
        seed: Seed of the order of samples.

    Raises:
        BadInput: A client or the held-out set has no samples, features and labels differ in length,
            there are exact copies, a client trains on a held-out sample, or not on a member.

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
    owner = np.concatenate([*owners, np.full(len(held_out), NO_CLIENT)])
    samples = Samples.concatenate(*parts.values(), held_out)
    fair_target = np.full(len(owner), NO_CLIENT)
    rows = _without_copies(samples, owner, fair_target, refuse=copies == "refuse")
    audit = _shuffled(samples.take(torch.from_numpy(rows)), owner[rows], fair_target[rows], seed)
    return replace(audit, names=names_among(parts))


def _check_training(
    members: Mapping[ClientRef, Samples], unseen: Samples, training: ByClient[Labelled]
) -> None:
    """Raise if a client trains on a held-out sample, or not on one of its members."""
    trained = {
        client: labelled_samples(data, f"client {client}") for client, data in training.items()
    }
    numbers = {number: client for client, number in numbers_of(trained).items()}
    if unknown := [client for client in members if number_of(client) not in numbers]:
        raise BadInput(
            f"training has no samples of client {unknown[0]}; give the samples of all clients"
        )
    rows = number_rows(*members.values(), unseen, *trained.values())
    unseen_rows, trained_rows = rows[len(members)], rows[len(members) + 1 :]
    n_trained = int(np.isin(unseen_rows, np.concatenate(trained_rows)).sum())
    if n_trained:
        raise BadInput(
            f"{n_trained} of {len(unseen_rows)} unseen samples are exact copies of samples that "
            "clients train on; remove these copies"
        )
    by_client = dict(zip(trained, trained_rows, strict=True))
    for client, member_rows in zip(members, rows, strict=False):
        n_absent = int((~np.isin(member_rows, by_client[numbers[number_of(client)]])).sum())
        if n_absent:
            raise BadInput(
                f"{n_absent} of {len(member_rows)} members of client {client} are not among the "
                "samples that it trains on; give members in the form in which it trains on them"
            )


def _without_copies(
    samples: Samples,
    owner: Int[ndarray, " samples"],
    fair_target: Int[ndarray, " samples"],
    *,
    refuse: bool = False,
) -> Int[ndarray, " positions"]:
    """Return the positions of samples to audit.

    Samples with a copy of another owner or fair target are removed. Of other copies, the first is
    kept.
    """
    (rows,) = number_rows(samples)
    _, first_positions, row_numbers = np.unique(rows, return_index=True, return_inverse=True)
    # Position of the first copy of each sample.
    first = first_positions[row_numbers]
    differs = (owner != owner[first]) | (fair_target != fair_target[first])
    is_ambiguous = np.isin(rows, rows[differs])
    is_repeated = ~is_ambiguous & (np.arange(len(rows)) != first)
    n_ambiguous, n_repeated = int(is_ambiguous.sum()), int(is_repeated.sum())
    if not n_ambiguous + n_repeated:
        return np.arange(len(rows))
    description = (
        f"{n_ambiguous} of {len(rows)} audited samples have an exact copy with another membership "
        f"({int((is_ambiguous & (owner == NO_CLIENT)).sum())} held-out samples among them), and "
        f"{n_repeated} are further copies with the same membership"
    )
    if refuse:
        raise BadInput(
            f"{description}; a sample cannot be both member and non-member: remove copies, or pass "
            'copies="drop"'
        )
    positions = np.flatnonzero(~is_ambiguous & ~is_repeated)
    if not len(positions):
        raise BadInput(f"{description}, so that no sample is left; give samples that differ")
    warnings.warn(f"{description}; they are excluded from the audit", stacklevel=3)
    return positions


def fair_split(
    data: ByClient[Labelled], *, audited: int | Mapping[ClientRef, int] = 300, seed: int = 1
) -> Split:
    """Draw members and held-out samples of each client by fair coins, before training.

    ``audited`` samples of each client are drawn, and a fair coin decides for each whether the
    client trains on it. Members and held-out samples then have the same distribution, which bounds
    on epsilon need.

    Exact copies within a client's data count as one sample. Audited samples with a copy in another
    client's data are left out of the audit, with a warning. A client that splits only its own data
    gets the same split; see :func:`join_audits`.

    Args:
        data: All samples of each client, by number or name.
        audited: Number of samples that are drawn from each client, or a number for each client.
            Clients do not train on about half of them.
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
    shared = rows_in_several_parts(list(rows.values()))
    train: dict[ClientRef, Int[ndarray, " samples"]] = {}
    samples, owners, fair_targets = [], [], []
    n_excluded = 0
    # Use the order of client numbers, in which :func:`join_audits` joins parts.
    for client, client_samples in sorted(samples_of.items(), key=lambda item: numbers[item[0]]):
        number, client_rows = numbers[client], rows[client]
        count = n_audited(client, audited)
        rng = seeded_numpy(seed, "fair split", number)
        order = rng.permutation(len(client_samples))
        # Of copies, only the first in the random order counts.
        drawn_rows = order[np.sort(np.unique(client_rows[order], return_index=True)[1])]
        if not 0 < count < len(drawn_rows):
            raise BadInput(
                f"{count} samples of client {client} cannot be audited: it has "
                f"{len(client_samples)} samples, of which {len(drawn_rows)} differ, and needs "
                "others for training; lower audited"
            )
        drawn_rows = drawn_rows[:count]
        is_member = rng.random(count) < 0.5
        train[client] = np.flatnonzero(~np.isin(client_rows, client_rows[drawn_rows[~is_member]]))
        is_unique = ~np.isin(client_rows[drawn_rows], shared)
        n_excluded += int((~is_unique).sum())
        samples.append(client_samples.take(torch.from_numpy(drawn_rows[is_unique])))
        owners.append(np.where(is_member, number, NO_CLIENT)[is_unique])
        fair_targets.append(np.full(int(is_unique.sum()), number))
    if n_excluded:
        reason = f"{n_excluded} audited samples have an exact copy in another client's data"
        if not sum(map(len, samples)):
            raise BadInput(f"{reason}, so that no sample is left; give clients samples that differ")
        warnings.warn(f"{reason}; they are excluded from the audit", stacklevel=2)
    together = Samples.concatenate(*samples)
    train = {client: train[client] for client in samples_of}
    audit = _shuffled(together, np.concatenate(owners), np.concatenate(fair_targets), seed)
    return Split(train, replace(audit, names=names_among(samples_of)))


def n_audited(client: ClientRef, audited: int | Mapping[ClientRef, int]) -> int:
    """Return the number of audited samples of a client."""
    count: object = audited
    if isinstance(audited, Mapping):
        counts = by_number(audited)
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

    The draw of :func:`fair_split` depends only on the client's number, its number of samples and
    the seed. If all clients use the same seed, the joined audit set equals that of one split of all
    clients' data. Samples with an exact copy in another part are left out, with a warning. Copies
    among samples that are not audited are not detected.

    Args:
        parts: :attr:`Split.part` of each client, or the file that :meth:`Split.save` or
            :func:`save_audit` wrote; all are untrusted. The order of parts does not matter.
        seed: The seed with which clients split their data.

    Raises:
        BadInput: There are no parts, a part is invalid, two parts are of one client, samples of two
            parts differ in shape, or all samples have copies.
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
    ordered = [_read_part(part, f"part {number}", seed) for number, part in enumerate(parts, 1)]
    if not ordered:
        raise BadInput("an audit needs the part of at least one client; check their paths")
    ordered.sort(key=lambda part: part.clients)
    first, part_of = ordered[0], dict[ClientId, str]()
    for part in ordered:
        for client in part.clients:
            if client in part_of:
                raise BadInput(
                    f"{part_of[client]} and {part.name} are both of client {client}; give one part "
                    "for each client, under its number"
                )
            part_of[client] = part.name
        shapes = [tuple(each.samples.features.shape[1:]) for each in (first, part)]
        if shapes[0] != shapes[1]:
            raise BadInput(
                f"samples of {first.name} have the shape {shapes[0]} and those of {part.name} "
                f"{shapes[1]}; give all of them in the shape of the model's input"
            )
    together = Samples.concatenate(*(part.samples for part in ordered))
    owner = np.concatenate([part.owner for part in ordered])
    fair_target = np.concatenate([part.fair_target for part in ordered])
    rows = _without_copies(together, owner, fair_target)
    audit = _shuffled(together.take(torch.from_numpy(rows)), owner[rows], fair_target[rows], seed)
    return replace(audit, names=tuple(name for part in ordered for name in part.names))


class _ClientPart(NamedTuple):
    name: str
    clients: tuple[ClientId, ...]
    samples: Samples
    owner: Int[ndarray, " samples"]
    fair_target: Int[ndarray, " samples"]
    names: tuple[str, ...]


def _read_part(part: Part, name: str, seed: int) -> _ClientPart:
    """Check a client's part, and restore the order of its samples before shuffling."""
    notes: Mapping[str, str] = {}
    if isinstance(part, Path | str):
        name, (part, notes) = str(part), read_tensors(Path(part))
    missing = [key for key in _REQUIRED if key not in part]
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
    owner, fair_target = torch.as_tensor(part["owner"]), torch.as_tensor(part["panel"])
    clients = _clients_in(owner, fair_target, len(samples))
    if not clients:
        raise BadInput(
            f"{name} does not state the client of each of its {len(samples)} samples; give "
            "fair_split(...).part"
        )
    unshuffled = np.argsort(_order(len(samples), seed))
    return _ClientPart(
        name,
        clients,
        samples.take(torch.from_numpy(unshuffled)),
        owner.numpy()[unshuffled],
        fair_target.numpy()[unshuffled],
        # The file may be another person's, so only names of its own clients are used.
        tuple(n for n in names_among(notes.get(_NAMES, "").split("\n")) if number_of(n) in clients),
    )


def _clients_in(owner: Tensor, fair_target: Tensor, n_samples: int) -> tuple[ClientId, ...]:
    """Return the clients of a part, ascending; empty if owners or fair targets are invalid."""
    for values in (owner, fair_target):
        if values.dtype != torch.int64 or values.shape != (n_samples,):
            return ()
    # A member belongs to the client whose coin was tossed.
    agrees = (owner == fair_target) | (owner == NO_CLIENT) | (fair_target == NO_CLIENT)
    clients = sorted({*owner.tolist(), *fair_target.tolist()} - {NO_CLIENT})
    return tuple(clients) if agrees.all() and clients and clients[0] >= 0 else ()


def _order(count: int, seed: int) -> Int[ndarray, " samples"]:
    return seeded_numpy(seed, "order of an audit").permutation(count)


def _numbers(clients: Iterable[ClientRef]) -> dict[ClientRef, ClientId]:
    numbers = numbers_of(clients)
    invalid = [number for number in numbers.values() if not 0 <= number <= _MAX_CLIENT_NUMBER]
    if invalid:
        raise BadInput(
            f"an audited client has the number {invalid[0]}; give whole numbers from 0 to "
            f"{_MAX_CLIENT_NUMBER}, or names"
        )
    return numbers


def labelled_samples(labelled: Labelled, source: str) -> Samples:
    """Return features and targets as samples; raise if they are no pair of finite arrays."""
    try:
        raw_features, raw_targets = labelled
        has_names = isinstance(raw_features, Mapping)
        arrays = raw_features if isinstance(raw_features, Mapping) else {"": raw_features}
        if any(np.ma.is_masked(array) for array in (*arrays.values(), raw_targets)):
            raise ValueError("some entries are masked")
        inputs = {name: torch.as_tensor(array).detach().cpu() for name, array in arrays.items()}
        targets = torch.as_tensor(raw_targets).detach().cpu()
    # These errors are raised for texts, nested lists of unequal lengths, and more than two values.
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(
            f"the samples of {source} are not a pair of features and targets ({reason}); "
            f"{SUPPORTED}: give two arrays, or a dictionary of the model's inputs, and an array"
        ) from error
    sizes = {len(targets), *(len(values) if values.ndim else 0 for values in inputs.values())}
    if len(sizes) != 1 or not len(targets) or targets.is_complex():
        shapes = ", ".join(str(tuple(values.shape)) for values in inputs.values())
        raise BadInput(
            f"the samples of {source} are features of shape {shapes} and targets of shape "
            f"{tuple(targets.shape)} ({targets.dtype}); give one row and one target per sample"
        )
    targets = targets.float() if targets.is_floating_point() else targets.long()
    if targets.ndim == 1 and int(targets.min()) < 0 and not targets.is_floating_point():
        raise BadInput(f"class indices start at 0, and those of {source} have {targets.min()}")
    for name, values in inputs.items():
        if values.is_complex() or not bool(values.isfinite().all()):
            raise BadInput(
                f"the features {name + ' ' if name else ''}of {source} are {values.dtype} and not "
                "all finite real numbers; remove the samples with others"
            )
    if len(inputs) == 1:
        raise_if_identical_features(next(iter(inputs.values())), f"samples of {source}")
    features = {
        name: values.float() if values.is_floating_point() else values
        for name, values in inputs.items()
    }
    return Samples(features if has_names else features[""], targets, torch.arange(len(targets)))


def features_by_name(samples: Samples) -> dict[str, Tensor]:
    """Return the tensors in which features are stored: one, or one per named input."""
    if samples.inputs is None:
        return {_FEATURES: samples.features}
    return {f"{_INPUT}{n}": v for n, v in samples.inputs.unpack(samples.features).items()}


def features_stored(tensors: Mapping[str, Tensor]) -> Tensor | dict[str, Tensor]:
    """Return the features in tensors of :func:`features_by_name`."""
    inputs = {n.removeprefix(_INPUT): v for n, v in tensors.items() if n.startswith(_INPUT)}
    return inputs or tensors[_FEATURES]


def _shuffled(
    samples: Samples,
    owner: Int[ndarray, " samples"],
    fair_target: Int[ndarray, " samples"],
    seed: int,
) -> AuditSet:
    order = _order(len(samples), seed)
    shuffled = samples.take(torch.from_numpy(order)).replace(ids=torch.arange(len(samples)))
    return AuditSet(shuffled, owner[order].astype(np.int64), fair_target[order].astype(np.int64))
