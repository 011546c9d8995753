"""Where verdicts stand: a file for each model in the state folder; the embedded one's comes along.

A file is replaced as a whole, so whoever reads while another writes reads the old or the new one.
One that cannot be read is passed over, and the caller is told in a line.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from pathlib import Path
from typing import Final

from mlx_tools.backends.models.embedded import EMBEDDED
from mlx_tools.backends.verdicts.verdict import FoundVerdict, NoVerdict, Verdict
from mlx_tools.errors import ConfigError, MlxToolsError, UsageError
from mlx_tools.paths import private_dir, read_data, state_dir
from mlx_tools.process import clean

MAX_BYTES: Final = 1 << 20
"""No verdict is this long: a file that is longer is not read."""

SHIPPED: Final = "config/verdicts/{}.json"

_HINT: Final = "mlx-tools doctor --probe measures again"


class VerdictStore:
    """A folder of verdicts, by default ``verdicts`` in the state folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = state_dir() / "verdicts" if folder is None else folder

    def path(self, model: str) -> Path:
        """The file of the model with this identity: readable, and never that of another model."""
        digest = hashlib.sha256(model.encode(errors="surrogatepass")).hexdigest()[:12]
        readable = re.sub(r"[^A-Za-z0-9._]+", "-", model).strip("-.")[:60]
        return self.folder / f"{readable or 'model'}-{digest}.json"

    def get(self, model: str) -> FoundVerdict:
        """The verdict on ``model``, if one is kept; ``problem`` tells of a file of no use."""
        path = self.path(model)
        try:
            with path.open("rb") as file:
                text = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return FoundVerdict(model=model)
        except OSError as error:
            return _passed_over(model, path, error.strerror or str(error))
        try:
            return FoundVerdict(
                model=model, verdict=_parsed(text, model), source="stored", place=str(path)
            )
        except NoVerdict as error:
            return _passed_over(model, path, str(error))

    def put(self, verdict: Verdict) -> Path:
        """Keeps a verdict in place of the model's earlier one, and returns its file.

        Raises `UsageError` where it cannot be written; the earlier one then still stands.
        """
        path = self.path(verdict.model)
        private_dir(self.folder)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        text = json.dumps(verdict.to_json(), indent=1) + "\n"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise UsageError(
                f"the verdict cannot be kept in {self.folder}: {error.strerror}",
                hint="free some space, or name another folder by MLX_TOOLS_STATE_DIR",
            ) from None
        return path


def shipped_verdict(model: str) -> Verdict | None:
    """The verdict that comes with mlx-tools: on the embedded model alone."""
    if model not in EMBEDDED:
        return None
    try:
        text = read_data(SHIPPED.format(model))
        return _parsed(text.encode(), model)
    except (ConfigError, NoVerdict):
        return None


def find_verdict(model: str | None, store: VerdictStore | None = None) -> FoundVerdict:
    """What is known of the model with this identity: what was measured here, else what comes along.

    ``store`` is by default the one in the state folder. Never raises.
    """
    if model is None:
        return FoundVerdict()
    try:
        found = (store or VerdictStore()).get(model)
    except MlxToolsError as error:
        found = FoundVerdict(model=model, problem=str(error))
    if found.verdict is None and (shipped := shipped_verdict(model)) is not None:
        place = SHIPPED.format(model)
        return FoundVerdict(
            model=model, verdict=shipped, source="shipped", place=place, problem=found.problem
        )
    return found


def _parsed(text: bytes, model: str) -> Verdict:
    if len(text) > MAX_BYTES:
        raise NoVerdict("it is too long")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise NoVerdict("it is no JSON") from None
    verdict = Verdict.from_json(value)
    if verdict.model != model:
        raise NoVerdict("it is on another model")
    return verdict


def _passed_over(model: str, path: Path, why: str) -> FoundVerdict:
    line = f"the verdict {path} is passed over: {clean(why, 200)}; {_HINT}"
    return FoundVerdict(model=model, place=str(path), problem=line)
