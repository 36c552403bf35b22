"""Titles of regimes with sizes from the configuration of their records."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from docs.claims.data import ROOT, Regime, Scale, is_of_games, regimes
from docs.claims.figures import path_of
from fedaudit.formatting.wording import format_count
from fedaudit.plan.file import read_studies
from fedaudit.results.runs import ClusterResult, clients_in, model_choices, models_of_groups
from results.archives import committed_record

STUDIES = ROOT / "studies"
DATA = {
    "adult": "Adult",
    "cifar10": "CIFAR-10",
    "digits": "Digits",
    "emnist_letters": "EMNIST letters",
    "fashion_mnist": "Fashion-MNIST",
    "location30": "Location-30",
    "mnist": "MNIST",
    "orl_faces": "ORL faces",
    "synthetic": "SIA's synthetic data",
    "tiny_imagenet32": "Tiny-ImageNet-32",
    "tiny_imagenet64": "Tiny-ImageNet-64",
}
NETWORKS = {
    "alexnet": "FedMIA's AlexNet",
    "cnn": "`cnn`",
    "diffusion": "a frozen diffusion model",
    "mlp": "MLP",
    "wide-resnet": "WRN",
}
APART = "groups_apart"
_PLACE = re.compile(r"\{([^}]*)\}")


def title_of(name: str) -> str:
    regime = regimes()[name]
    if not _PLACE.search(regime.title):
        return regime.title
    config = config_of(regime.study, regime.base)
    return _PLACE.sub(
        lambda place: _separated_groups(regime) if place[1] == APART else _filled(place[1], config),
        regime.title,
    )


@cache
def config_of(study: str, variant: str) -> Mapping[str, Any]:
    """Return the settings of a committed record; those of the study's file before it is run."""
    path = path_of(study, variant)
    if path.is_file():
        config: dict[str, Any] = json.loads(path.read_bytes())["config"]
        return config
    if is_of_games(study):
        return tomllib.loads((STUDIES / "games" / f"{study}.toml").read_text(encoding="utf-8"))
    base, *variants = read_studies(STUDIES / f"{study}.toml")
    named_so = [candidate for candidate in variants if candidate.name == f"{study}-{variant}"]
    return (named_so[0] if variant else base).model_dump(mode="json")


@cache
def scale_of(name: str) -> Scale:
    """Return the sizes of a regime that are compared with those of a paper."""
    regime = regimes()[name]
    config = config_of(regime.study, regime.base)
    if regime.kind == "games":
        game = config["game"]
        return Scale(copies=game["copies"], others=game["background"])
    partition = config["partition"]
    samples = partition["samples_per_client"] or _smallest_client(regime)
    clients = partition["clients"]
    return Scale(
        clients=clients,
        samples=samples,
        rounds=config["training"]["rounds"],
        total_samples=samples and clients * samples,
    )


def _smallest_client(regime: Regime) -> int | None:
    path = path_of(regime.study, regime.base)
    if not path.is_file():
        return None
    clients = json.loads(path.read_bytes())["clients"]
    return min(int(client["samples"]) for client in clients)


def _separated_groups(regime: Regime) -> str:
    runs = committed_record(path_of(regime.study, regime.base)).clusters
    n_separated = sum(_is_separated(run) for run in runs)
    return f"groups separated in {n_separated} of {format_count(len(runs), 'seed')}"


def _is_separated(run: ClusterResult) -> bool:
    used = model_choices(run)
    return all(
        len({used[client] for client in clients_in(run, group)}) == 1
        for group in models_of_groups(run)
    )


def _filled(place: str, config: Mapping[str, Any]) -> str:
    if place in _WORDS:
        return _WORDS[place](config)
    value: Any = config
    for key in place.split("."):
        value = value[key]
    return DATA.get(value, f"{value}")


def _network(config: Mapping[str, Any]) -> str:
    name, options = config["model"]["name"], config["model"]["options"]
    if name == "mlp" and options.get("hidden"):
        return f"MLP {str(options['hidden']).replace(',', '-')}"
    if name == "wide-resnet":
        return f"WRN-{options['depth']}-{options['width']}"
    return NETWORKS[name]


def _clients(config: Mapping[str, Any]) -> str:
    partition = config["partition"]
    each = partition["samples_per_client"]
    return f"{partition['clients']} clients" + (f" x {each:,}" if each else "")


def _rounds(config: Mapping[str, Any]) -> str:
    rounds, epochs = config["training"]["rounds"], config["training"]["epochs"]
    return f"{rounds} rounds of {epochs} epoch{'s' if epochs > 1 else ''}"


def _sizes(config: Mapping[str, Any]) -> str:
    return f"{_clients(config)}, {_rounds(config)}"


def _alpha(config: Mapping[str, Any]) -> str:
    return f"{config['partition']['options']['beta']:g}"


def _shift(config: Mapping[str, Any]) -> str:
    shift = config["shift"]
    few, many = shift["minority_range"], shift["majority_range"]
    share = f"{shift['minority']:.0%} of the clients"
    if shift["kind"] == "rotation":
        others = f", others by {_range(many)}" if any(many) else ""
        return f"{share} rotated by {_range(few)}{others} degrees"
    if shift["kind"] == "brightness":
        return f"{share} at {_range(few)} of the brightness, others at {_range(many)}"
    return f"{share} have only people of one group, the others only people of other groups"


def _games(config: Mapping[str, Any]) -> str:
    game = config["game"]
    trained = f"{game['copies']:,} copies of the target and {game['background']:,} other samples"
    played = f"{game['games']:,} games a point over {game['targets']:,} targets"
    return f"batches of {game['batch']}, {trained}, {played}"


def _range(ends: Sequence[float]) -> str:
    return f"{ends[0]:g}" if ends[0] == ends[1] else f"{ends[0]:g} to {ends[1]:g}"


_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "data": lambda config: DATA[config["data"]["name"]],
    "network": _network,
    "clients": _clients,
    "rounds": _rounds,
    "sizes": _sizes,
    "alpha": _alpha,
    "shift": _shift,
    "games": _games,
}
"""Functions for the names in braces of a title that are not dotted settings."""
