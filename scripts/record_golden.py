"""Records the transcripts of golden_transcripts/.

    python scripts/record_golden.py                # all, with the embedded model where it can
    python scripts/record_golden.py --scripted     # only those whose completions are written here
    python scripts/record_golden.py NAME...        # those whose names begin with one of these

What is recorded stands in scripts/golden_set/. A scripted run gives the same bytes each time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mlx_tools.golden import write_golden  # noqa: E402
from scripts.golden_set import bounds, deciding, mending, planted, reading  # noqa: E402
from scripts.golden_set.scene import Scene, record_scene  # noqa: E402

FOLDER = ROOT / "golden_transcripts"
THEMES = (reading, mending, deciding, bounds, planted)


def list_scripted_scenes() -> list[Scene]:
    """Return all scenes with scripted completions."""
    return [scene for theme in THEMES for scene in theme.scenes()]


def is_selected(name: str, given: Sequence[str]) -> bool:
    """Return True if a transcript should be recorded."""
    return not given or any(name.startswith(one) for one in given)


async def record(folder: Path, names: Sequence[str], *, real: bool) -> int:
    """Records what is wanted; returns how many transcripts were written."""
    written = 0
    for scene in list_scripted_scenes():
        if is_selected(scene.name, names):
            golden = await record_scene(scene)
            write_golden(golden, folder / f"{scene.name}.jsonl")
            written += 1
    if real:
        from scripts.golden_set import real as by_model

        async for scene, golden in by_model.recorded(lambda name: is_selected(name, names)):
            write_golden(golden, folder / f"{scene.name}.jsonl")
            print(f"{scene.name}: {[dict(o) for o in golden.golden.outcomes]}", file=sys.stderr)
            written += 1
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="the beginnings of names; all by default")
    parser.add_argument("--scripted", action="store_true", help="leave the real model alone")
    parser.add_argument("--into", type=Path, default=FOLDER, help="the folder that they go to")
    options = parser.parse_args()
    written = anyio.run(lambda: record(options.into, options.names, real=not options.scripted))
    if not written:
        print("no transcript is named so", file=sys.stderr)
        return 1
    print(f"{written} transcripts in {options.into}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
