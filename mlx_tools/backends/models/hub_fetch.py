"""Fetches a repository into the Hugging Face cache.

Run as a script, ``python -P hub_fetch.py OWNER/NAME CACHE PATTERN…``, in a process of its own, so
that it can be ended at any moment. Prints ``total BYTES`` when the size is known, and where it
fails a line ``failed JSON``: the names of the error's classes, causes included, and its words.
Imports nothing of mlx_tools.
"""

from __future__ import annotations

import fnmatch
import json
import sys


def main(name: str, cache: str, patterns: list[str]) -> None:
    """Fetch, or print why not and end with code 1."""
    try:
        from huggingface_hub import HfApi, snapshot_download

        files = HfApi().model_info(name, files_metadata=True).siblings or []
        wanted = [f for f in files if any(fnmatch.fnmatch(f.rfilename, p) for p in patterns)]
        print("total", sum(file.size or 0 for file in wanted), flush=True)
        snapshot_download(name, cache_dir=cache, allow_patterns=patterns)
    except Exception as error:
        chain: list[BaseException] = []
        seen: BaseException | None = error
        while seen is not None and len(chain) < 8:
            chain.append(seen)
            seen = seen.__cause__ or seen.__context__
        kinds = [cls.__name__ for link in chain for cls in type(link).__mro__]
        full = any(isinstance(link, OSError) and link.errno in (28, 122) for link in chain)
        said = {"kinds": kinds, "message": str(error)[:1000], "disk_full": full}
        print("failed", json.dumps(said), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
