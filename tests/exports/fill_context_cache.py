"""Program that fills the HTTP cache of roc-validator, so that it validates crates offline.

The only file that the validator fetches is the JSON-LD context of RO-Crate 1.3, which the package
rocrate contains. Usage: ``python tests/exports/fill_context_cache.py CACHE``, in an environment
with roc-validator and rocrate.
"""

import sys
from importlib.resources import files

from requests import Request
from requests_cache import CachedResponse, CachedSession

CONTEXT = "https://w3id.org/ro/crate/1.3/context"


def main(path: str) -> None:
    """Store the context in the cache at a path."""
    cache = CachedSession(path, backend="sqlite", expire_after=-1).cache
    cache.responses[cache.create_key(Request("GET", CONTEXT))] = CachedResponse(
        status_code=200,
        url=CONTEXT,
        headers={"Content-Type": "application/ld+json"},
        content=(files("rocrate") / "data" / "ro-crate.jsonld").read_bytes(),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
