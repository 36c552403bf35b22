"""Recorder for servers of PFLlib, whose clients hold out the audited samples."""

import copy
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, Subset

from fedaudit.core.errors import BadInput, type_of
from fedaudit.integrations.common import fair_split_of_clients
from fedaudit.live.record import record
from fedaudit.live.recorder import Recorder

_METHODS = ("send_models", "receive_models", "aggregate_parameters")


def record_server(
    server: Any,
    folder: Path | str,
    *,
    audited: int = 150,
    clients: Collection[int] = (),
    seed: int = 1,
    **settings: Any,
) -> Recorder:
    """Record a server of PFLlib, from its set-up to the end of ``server.train()``.

    For each audited client, a fair coin decides for some samples whether the client trains on
    them. Call this function after the server was created, and train within its context::

        with record_server(server, "runs/pfllib"):
            server.train()

    The adversary is the server, which sees the model that each client uploads. What a client keeps,
    such as Ditto's personal model, is not recorded. If clients upload only a part of the model,
    name the other part: ``not_uploaded=["head.*"]`` for FedRep and FedPer.

    Args:
        server: A server with ``clients``, ``send_models``, ``receive_models`` and
            ``aggregate_parameters``, such as FedAvg, FedProx, Ditto, FedRep or FedPer.
        folder: Folder for the recording.
        audited: Number of audited samples per client, of which about half are held out; at most
            half of a client's samples.
        clients: Ids of the audited clients; all if empty.
        seed: Seed of the coins.
        settings: Further arguments of :func:`fedaudit.record`, such as ``every`` or ``view``.

    Returns:
        The recorder. Close it, or use it as a context.

    Raises:
        BadInput: The server has another structure, or samples are not pairs of a tensor and a
            class.
    """
    for name in (*_METHODS, "clients", "global_model"):
        if not hasattr(server, name):
            raise BadInput(
                f"{type_of(server)} has no {name!r}; give a server of PFLlib that averages models"
            )
    chosen = {c.id: c for c in server.clients if not clients or c.id in {*clients}}
    if unknown := {*clients} - chosen.keys():
        raise BadInput(f"there is no client {min(unknown)}; clients are {sorted(chosen)}")
    data = {number: _samples(client) for number, client in chosen.items()}
    split = fair_split_of_clients(data, audited, seed=seed)
    for number, client in chosen.items():
        _hold_out(client, split.train[number].tolist(), len(data[number][1]))
    network = copy.deepcopy(server.clients[0].model).cpu()
    recorder = record(folder, network, split.audit, **settings)
    _Hooks(server, recorder).install()
    return recorder


def _samples(client: Any) -> tuple[Tensor, Tensor]:
    """Return features and classes of all training samples of a client."""
    items = list(client.load_train_data().dataset)
    if not all(isinstance(value, Tensor) for item in items for value in item):
        raise BadInput(
            f"samples of client {client.id} are not pairs of a tensor and a class; record a data "
            "set of images or tables, such as MNIST"
        )
    features, classes = zip(*items, strict=True)
    return torch.stack(features), torch.stack(classes)


def _hold_out(client: Any, kept: list[int], count: int) -> None:
    """Let a client train only on the kept samples."""
    load = client.load_train_data

    def load_kept(*arguments: Any, **options: Any) -> DataLoader[Any]:
        loader = load(*arguments, **options)
        if len(loader.dataset) != count:
            raise BadInput(
                f"client {client.id} has {len(loader.dataset)} samples instead of {count}; record "
                "a client whose data do not change"
            )
        return DataLoader(
            Subset(loader.dataset, kept),
            batch_size=loader.batch_size,
            shuffle=isinstance(loader.sampler, RandomSampler),
            drop_last=loader.drop_last,
        )

    client.load_train_data = load_kept
    client.train_samples = len(kept)


class _Hooks:
    """Hooks on a server that pass each round to a recorder.

    Attributes:
        names: Names of all parameters and buffers of a client's model.
    """

    def __init__(self, server: Any, recorder: Recorder) -> None:
        self.server, self.recorder = server, recorder
        self.names = {*server.clients[0].model.state_dict()}
        self._sent: dict[str, Tensor] = {}
        self._round = 0

    def install(self) -> None:
        """Replace the methods of the server that begin and end a round."""
        send, aggregate = self.server.send_models, self.server.aggregate_parameters
        self.server.send_models = self._wrapped(send, before=self._keep_sent)
        self.server.aggregate_parameters = self._recorded(aggregate)

    def _wrapped(
        self, method: Callable[..., Any], before: Callable[[], None]
    ) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            before()
            return method(*arguments, **options)

        return call

    def _keep_sent(self) -> None:
        # Some servers change the global model in place.
        self._sent = _copied(self.server.global_model)

    def _recorded(self, aggregate: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            uploads, weights = self._uploads()
            result = aggregate(*arguments, **options)
            self._round += 1
            self.recorder.round(
                self._round,
                sent=self._full_names(self._sent, uploads),
                uploads=uploads,
                weights=weights,
                selected=[client.id for client in self.server.selected_clients],
                after=self._full_names(_copied(self.server.global_model), uploads),
            )
            return result

        return call

    def _uploads(self) -> tuple[dict[int, dict[str, Tensor]], dict[int, float]]:
        """Return the uploaded values and the weight of each client.

        Not all servers set ``uploaded_ids``, so that clients are recognised by their module.
        """
        owners = {
            id(module): (client.id, name)
            for client in self.server.clients
            for name, module in client.model.named_modules()
        }
        uploads, weights = {}, {}
        pairs = zip(self.server.uploaded_models, self.server.uploaded_weights, strict=True)
        for position, (model, weight) in enumerate(pairs):
            ids = getattr(self.server, "uploaded_ids", [])
            default = ids[position] if position < len(ids) else -1
            client, prefix = owners.get(id(model), (default, ""))
            uploads[client] = {
                f"{prefix}.{name}".lstrip("."): value for name, value in _copied(model).items()
            }
            weights[client] = float(weight)
        return uploads, weights

    def _full_names(
        self, values: Mapping[str, Tensor], uploads: Mapping[int, Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Return values with the names that they have in a client's model.

        A server that averages a part of the model names its values without the part's name.
        """
        if values.keys() <= self.names:
            return dict(values)
        names = next(iter(uploads.values()), {})
        prefixes = {name[: -len(key)] for key in values for name in names if name.endswith(key)}
        for prefix in sorted(prefixes):
            if {f"{prefix}{key}" for key in values} <= self.names:
                return {f"{prefix}{key}": value for key, value in values.items()}
        return dict(values)


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
