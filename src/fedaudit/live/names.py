"""Matching of parameter names in uploads with names in the network given to a recorder.

Wrappers change names. Opacus adds the prefix "_module.", Lightning the attribute that contains the
network. FSDP also adds "_fsdp_wrapped_module." in the middle of names.
"""

from collections.abc import Collection, Iterable, Mapping

from fedaudit.core.errors import BadInput, type_of

_WRAPPERS = {"module", "_module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Attributes in which DataParallel, Opacus, the compiler, FSDP and checkpointing wrap a module."""

_NOT_IN_NETWORK = {"n_averaged"}
"""Counter that torch's AveragedModel adds to a state dict."""

_EXTRA_CHARACTERS = 1000
_KEYS_PER_NAME, _EXTRA_KEYS = 4, 1000
"""Limits of the number and length of names in an upload, which is untrusted. They are checked
before names are matched, since matching takes time for each name."""


class NameTable:
    """Names of a network's parameters and buffers, matched with names in uploads."""

    def __init__(self, names: Iterable[str], trained: Iterable[str]) -> None:
        """Index every name that an upload may use; messages list some of ``trained``."""
        self._known, self._trained = frozenset(names), tuple(trained)
        self._max_characters = _EXTRA_CHARACTERS + max(map(len, self._known), default=0)
        self._max_keys = _KEYS_PER_NAME * len(self._known) + _EXTRA_KEYS
        # Names that differ only in wrappers are ambiguous, so keys must match them exactly.
        self._unwrapped = dict[str, str]()
        self._ambiguous = set[str]()
        for name in sorted(self._known):
            short = _without_wrappers(name)
            if self._unwrapped.setdefault(short, name) != name:
                self._ambiguous.add(short)

    def raise_if_too_many(self, keys: Collection[object], subject: str) -> None:
        """Raise if an upload has more or longer keys than any wrapper produces."""
        if len(keys) > self._max_keys:
            raise BadInput(
                f"{subject} has {len(keys):,} names, and the model given to the recorder "
                f"{len(self._known)}; send the model's state dict"
            )
        for key in keys:
            if not isinstance(key, str):
                raise BadInput(
                    f"{subject} has {str(key)[:80]!r} ({type_of(key)}) as a name; name parameters "
                    "as the model's state dict does"
                )
            if len(key) > self._max_characters:
                raise BadInput(
                    f"{subject} has a name of {len(key):,} characters, {key[:40]!r} ...; name "
                    "parameters as the model's state dict does"
                )

    def matched(self, keys: Collection[str], subject: str) -> Mapping[str, str]:
        """Return the network's name for each key; raise if no name or several names match.

        Wrappers are ignored. If all keys have an additional prefix, or all lack one, it is removed
        or added.
        """
        if self._known.issuperset(keys):
            return {key: key for key in keys}
        names = {key: _without_wrappers(key) for key in keys if key not in _NOT_IN_NETWORK}
        if not self._unwrapped.keys() >= {*names.values()}:
            names = self._with_prefix(names, subject)
        if ambiguous := [key for key, name in names.items() if name in self._ambiguous]:
            raise BadInput(
                f"{subject} has {ambiguous[0]!r}, which matches several names of the model given "
                "to the recorder; name parameters as the model's state dict does"
            )
        return {key: self._unwrapped[name] for key, name in names.items()}

    def _with_prefix(self, names: Mapping[str, str], subject: str) -> dict[str, str]:
        """Remove a prefix that all names share, or add a prefix that all names lack."""
        known = self._unwrapped.keys()
        # Every possible prefix follows from one name; the shortest has the fewest candidates.
        first = min(names.values(), key=len, default="")
        candidates = list[dict[str, str]]()
        for known_name in known:
            if known_name and first.endswith(f".{known_name}"):
                prefix = first[: -len(known_name)]
                if all(name.startswith(prefix) for name in names.values()):
                    candidates.append({k: name.removeprefix(prefix) for k, name in names.items()})
            if first and known_name.endswith(f".{first}"):
                prefix = known_name[: -len(first)]
                candidates.append({k: prefix + name for k, name in names.items()})
        matches = [candidate for candidate in candidates if known >= {*candidate.values()}]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise BadInput(
                f"{subject} has {first[:200]!r}, which matches {len(matches)} parts of the model "
                "given to the recorder; name parameters as the model's state dict does"
            )
        unknown = next(key for key, name in names.items() if name not in known)
        raise BadInput(
            f"{subject} has {unknown[:200]!r}, which the model given to the recorder lacks; it has "
            f"{', '.join(self._trained[:6])} ..., and no prefix makes all names match"
        )


def _without_wrappers(name: str) -> str:
    *path, last = name.split(".")
    return ".".join([part for part in path if part not in _WRAPPERS] + [last])
