"""Fetches a repository into the Hugging Face cache.

It is run as a script, ``python -P hub_fetch.py OWNER/NAME CACHE PATTERN…``, in a separate process,
so that it can be ended at any moment. It prints ``total BYTES`` when the size is known. If it
fails, it prints a line ``failed JSON``, with the message and the class names of the error and its
causes. It imports nothing of mlx_tools.
"""

from __future__ import annotations

import fnmatch
import json
import sys


def main(name: str, cache: str, patterns: list[str]) -> None:
    """Fetch the repository. If it fails, print the reason and exit with code 1."""
    try:
        from huggingface_hub import HfApi, snapshot_download

        files = HfApi().model_info(name, files_metadata=True).siblings or []
        wanted = [f for f in files if any(fnmatch.fnmatch(f.rfilename, p) for p in patterns)]
        print("total", sum(file.size or 0 for file in wanted), flush=True)
        snapshot_download(name, cache_dir=cache, allow_patterns=patterns)
    except Exception as error:
        chain: list[BaseException] = []
        cause: BaseException | None = error
        while cause is not None and len(chain) < 8:
            chain.append(cause)
            cause = cause.__cause__ or cause.__context__
        kinds = [cls.__name__ for link in chain for cls in type(link).__mro__]
        is_disk_full = any(isinstance(link, OSError) and link.errno in (28, 122) for link in chain)
        report = {"kinds": kinds, "message": str(error)[:1000], "disk_full": is_disk_full}
        print("failed", json.dumps(report), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
