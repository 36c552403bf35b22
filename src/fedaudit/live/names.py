"""Names of parameters in uploads, matched with those of the network given to a recorder.

Wrappers change names: Opacus puts "_module." before them, Lightning the attribute that holds the
network, FSDP "_fsdp_wrapped_module." also in the middle.
"""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from torch import nn

from fedaudit.core.errors import BadInput, type_of

_WRAPPERS = frozenset(
    {
        "module",
        "_module",
        "_orig_mod",
        "_fsdp_wrapped_module",
        "_checkpoint_wrapped_module",
    }
)
"""Attributes under which DataParallel, Opacus, the compiler, FSDP and checkpointing hold a part."""

_BESIDE_NETWORK = frozenset({"n_averaged"})
"""What torch's AveragedModel counts; no part of the network."""

_MORE_CHARACTERS = 1000
_TIMES_KEYS, _MORE_KEYS = 4, 1000
"""Longer names and more keys are refused before any work: a client chooses them."""


class NameTable:
    """Names of a network's parameters and buffers, matched with names in uploads."""

    def __init__(self, names: Iterable[str], trained: Iterable[str]) -> None:
        """Index every name that an upload may use; those of ``trained`` are for messages."""
        self._known, self._trained = frozenset(names), tuple(trained)
        self._longest = _MORE_CHARACTERS + max(map(len, self._known), default=0)
        self._most_keys = _TIMES_KEYS * len(self._known) + _MORE_KEYS
        # Names that differ only in wrappers must match exactly.
        self._unwrapped = dict[str, str]()
        self._shared = set[str]()
        for name in sorted(self._known):
            short = _without_wrappers(name)
            if self._unwrapped.setdefault(short, name) != name:
                self._shared.add(short)

    def refuse_too_many(self, keys: Collection[object], whose: str) -> None:
        """Raise if an upload has more keys, or longer ones, than any wrapper makes."""
        if len(keys) > self._most_keys:
            raise BadInput(
                f"{whose} has {len(keys):,} names, and the model given to the recorder "
                f"{len(self._known)}; send the model's state dict"
            )
        for key in keys:
            if not isinstance(key, str):
                raise BadInput(
                    f"{whose} has {str(key)[:80]!r} ({type_of(key)}) as a name; name parameters "
                    "as the model's state dict does"
                )
            if len(key) > self._longest:
                raise BadInput(
                    f"{whose} has a name of {len(key):,} characters, {key[:40]!r} ...; name "
                    "parameters as the model's state dict does"
                )

    def matched(self, keys: Collection[str], whose: str) -> Mapping[str, str]:
        """Return the network's own name for each key; raise if one fits no name, or several.

        Names are compared without wrappers and without a prefix that all keys share or lack.
        """
        if self._known.issuperset(keys):
            return {key: key for key in keys}
        short = {key: _without_wrappers(key) for key in keys if key not in _BESIDE_NETWORK}
        if any(unwrapped not in self._unwrapped for unwrapped in short.values()):
            short = self._with_prefix(short, whose)
        ambiguous = next(
            (key for key, unwrapped in short.items() if unwrapped in self._shared), None
        )
        if ambiguous is not None:
            raise BadInput(
                f"{whose} has {ambiguous!r}, which fits several names of the model given to the "
                "recorder; name parameters as the model's state dict does"
            )
        return {key: self._unwrapped[unwrapped] for key, unwrapped in short.items()}

    def _with_prefix(self, short: Mapping[str, str], whose: str) -> dict[str, str]:
        """Remove a prefix that all names share, or add one that all lack."""
        first = min(short.values(), key=len, default="")
        shared = [
            first[: -len(name)] for name in self._unwrapped if name and first.endswith(f".{name}")
        ]
        lacking = [
            name[: -len(first)] for name in self._unwrapped if first and name.endswith(f".{first}")
        ]
        fits = [
            {key: name.removeprefix(prefix) for key, name in short.items()}
            for prefix in shared
            if all(
                name.startswith(prefix) and name[len(prefix) :] in self._unwrapped
                for name in short.values()
            )
        ]
        fits += [
            {key: prefix + name for key, name in short.items()}
            for prefix in lacking
            if all(prefix + name in self._unwrapped for name in short.values())
        ]
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise BadInput(
                f"{whose} has {first[:200]!r}, which fits {len(fits)} parts of the model given to "
                "the recorder; name parameters as the model's state dict does"
            )
        unknown = next(key for key, name in short.items() if name not in self._unwrapped)
        raise BadInput(
            f"{whose} has {unknown[:200]!r}, which the model given to the recorder lacks; it has "
            f"{', '.join(self._trained[:6])} ..., and no prefix makes all names match"
        )


def _without_wrappers(name: str) -> str:
    *path, last = name.split(".")
    return ".".join([part for part in path if part not in _WRAPPERS] + [last])


def sent_names(module: nn.Module) -> dict[str, str]:
    """Map the names under which PEFT sends trained parameters to the network's own names.

    ``get_peft_model_state_dict`` leaves out what an adapter is called (``lora_A.weight`` for
    ``lora_A.default.weight``), and the path of the adapted part in a larger network.

    Returns:
        In PEFT's order; nothing for a network without adapters of PEFT's, and no name that two
        trained adapters share.
    """
    parts = ((path, part) for path, part in module.named_modules() if hasattr(part, "peft_config"))
    path, adapted = next(parts, ("", None))
    # Creating such a network requires the import.
    if adapted is None or "peft" not in sys.modules:
        return {}
    from peft import get_peft_model_state_dict

    names_by_address = {
        p.data_ptr(): name for name, p in module.named_parameters() if p.requires_grad
    }
    pairs = [
        (name, names_by_address[value.data_ptr()])
        for adapter in adapted.peft_config
        # By default the function would look for the network on the internet.
        for name, value in get_peft_model_state_dict(
            adapted, adapter_name=adapter, save_embedding_layers=False
        ).items()
        if value.data_ptr() in names_by_address
    ]
    shared = Counter(name for name, _ in pairs)
    unshared = {name: mine for name, mine in pairs if shared[name] == 1}
    return unshared | {f"{path}.{name}": mine for name, mine in unshared.items() if path}
