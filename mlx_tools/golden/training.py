"""Recorded runs as training data: prompts, and their right completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from mlx_tools.errors import StorageError, UsageError
from mlx_tools.golden.file import Golden
from mlx_tools.messages import json_line
from mlx_tools.paths import write_whole
from mlx_tools.prompt import ChatFormat
from mlx_tools.transcript import (
    CompletionRecord,
    CorrectionRecord,
    ObservationRecord,
    Record,
    RepairRecord,
)

TRAIN: Final = "train.jsonl"
VALID: Final = "valid.jsonl"
CONFIG: Final = "lora.yaml"

_VALID_SHARE: Final = 10
"""Every tenth run is kept for validation, a usual share."""

_MODELS_FAULTS: Final = frozenset(
    (
        *("invalid_json", "unknown_tool", "invalid_arguments", "payload_too_large"),
        *("repeated_call", "echoed_call"),
    )
)
"""Errors of calls that a model should not learn to make."""

_CONFIG_TEXT: Final = """\
# For mlx_lm.lora --config. Prompts are looked for under a key that no line has, so that each line
# is taken as it is, under "text". Else a chat template is put around prompts that have one.
prompt_feature: none
"""


class ExportCounts(Struct, frozen=True):
    """The size of an export."""

    train: int
    """Completions to train with."""
    valid: int
    """Completions to validate with, of other runs."""
    left_out: int
    """Completions that were wrong, or were there already."""


class TrainingExample(Struct, frozen=True):
    """One completion to learn: the prompt, and the text that the model should write."""

    prompt: str
    completion: str
    text: str
    """Both, and the token that ends the model's turn."""

    def to_json(self) -> dict[str, str]:
        """Return the line of a data set."""
        return {"prompt": self.prompt, "completion": self.completion, "text": self.text}


def make_samples(golden: Golden) -> Iterator[TrainingExample | None]:
    """Yield a sample of each completion of a run; None if the completion was wrong."""
    ends = ChatFormat.from_json(golden.header.chat_format).end_tokens
    asked = ""
    for record, after in _turns(golden.records):
        if record.prompt is None:
            yield None
            continue
        asked = asked[: record.shared_prefix_chars] + record.prompt
        if not _is_right(record, after):
            yield None
            continue
        prompt = asked.removesuffix(record.prefix)
        completion = record.prefix + record.text if record.reasoning else record.retained_text
        yield TrainingExample(prompt, completion, "".join((prompt, completion, *ends[:1])))


def export_lora(goldens: Iterable[Golden], folder: Path) -> ExportCounts:
    """Write the right completions of runs as a data set for ``mlx_lm.lora``.

    Args:
        goldens: The runs. Every tenth one goes to the validation, the last one if they are fewer.
        folder: Where ``train.jsonl``, ``valid.jsonl`` and ``lora.yaml`` go; none may be there.

    Returns:
        How many completions were written, and left out.

    Raises:
        UsageError: no completion is right, or a file is there already.
        StorageError: a file cannot be written.
    """
    if taken := [name for name in (TRAIN, VALID, CONFIG) if (folder / name).exists()]:
        raise UsageError(f"{folder / taken[0]} is there already", hint="name another folder")
    seen: set[tuple[str, str]] = set()
    runs: list[list[TrainingExample]] = []
    left_out = 0
    for golden in goldens:
        run: list[TrainingExample] = []
        for sample in make_samples(golden):
            if sample is None or (sample.prompt, sample.completion) in seen:
                left_out += 1
            else:
                seen.add((sample.prompt, sample.completion))
                run.append(sample)
        runs += [run] if run else []
    if not runs:
        raise UsageError(
            "these runs hold no completion to learn from",
            hint="completions that were repaired, refused or cut off are left out",
        )
    held_back = [*range(_VALID_SHARE - 1, len(runs), _VALID_SHARE)] or [len(runs) - 1]
    held_back = held_back if len(runs) > 1 else []
    valid = [sample for place in held_back for sample in runs[place]]
    train = [sample for place, run in enumerate(runs) if place not in held_back for sample in run]
    _write(folder / TRAIN, "".join(f"{json_line(sample.to_json())}\n" for sample in train))
    _write(folder / VALID, "".join(f"{json_line(sample.to_json())}\n" for sample in valid))
    _write(folder / CONFIG, _CONFIG_TEXT)
    return ExportCounts(len(train), len(valid), left_out)


def _turns(records: Sequence[Record]) -> Iterator[tuple[CompletionRecord, Sequence[Record]]]:
    """Yield each completion, with the records up to the next one."""
    places = [n for n, record in enumerate(records) if isinstance(record, CompletionRecord)]
    for place, end in zip(places, [*places[1:], len(records)], strict=True):
        record = records[place]
        assert isinstance(record, CompletionRecord)
        yield record, records[place + 1 : end]


def _is_right(record: CompletionRecord, later_records: Sequence[Record]) -> bool:
    """Return whether a model should learn this: complete, read without repairs."""
    whole = record.error is None and (record.finish_reason != "length" or record.closed_early)
    if (
        not whole
        or record.repeated
        or record.dropped
        or record.bare_text
        or not record.retained_text
    ):
        return False
    for one in later_records:
        if isinstance(one, CorrectionRecord | RepairRecord):
            return False
        error = one.error if isinstance(one, ObservationRecord) else None
        if error is not None and error.code in _MODELS_FAULTS:
            return False
    return True


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}",
            hint="check the folder's permissions and free space",
        ) from None
