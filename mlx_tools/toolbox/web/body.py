"""A response's body, read within limits: so many bytes as they came, and so many unpacked."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from mlx_tools.process import clean
from mlx_tools.tools.context import ToolError

ENCODINGS: Final = ("gzip",)
"""What is asked for. A body that comes in another encoding is refused, but for ``deflate``."""

_MAX_MEMBERS: Final = 1000
"""Parts that one gzip body may have."""

_TELLING: Final = 2
"""Bytes that tell one form of deflate from the other."""

_STEP: Final = 262_144
"""Bytes that are unpacked at a time."""

_FORMS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 47}


@dataclass(frozen=True, slots=True)
class Body:
    """What was read, unpacked. ``cut`` is whether there was more."""

    data: bytes = field(repr=False)
    cut: bool


class Unpacker:
    """Unpacks gzip and deflate piece by piece, never more at a time than there is room for."""

    def __init__(self, encoding: str) -> None:
        self._form = _FORMS[encoding]
        self._unpack = zlib.decompressobj(self._form)
        self._members = 1
        self._begun = False
        self._held = b""

    @property
    def ended(self) -> bool:
        """Whether what came so far is whole."""
        return self._unpack.eof or not (self._begun or self._held)

    def feed(self, piece: bytes, room: int) -> bytes:
        """What a piece unpacks to, at most ``room`` bytes. Raises ToolError where it is broken."""
        piece = self._held + piece
        short = not self._begun and len(piece) < _TELLING
        self._held = piece if short else b""
        parts: list[bytes] = []
        more = not short and bool(piece)
        while more and room > 0 and (not self._unpack.eof or self._next(piece)):
            step = min(room, _STEP)
            parts.append(self._some(piece, step))
            room -= len(parts[-1])
            piece = self._unpack.unconsumed_tail or self._unpack.unused_data
            more = bool(piece) or len(parts[-1]) == step  # what is unpacked may not be out yet
        return b"".join(parts)

    def _next(self, piece: bytes) -> bool:
        """Begins the next part, where there is one: what else follows the last one is padding."""
        if self._form != _FORMS["gzip"] or not piece.startswith(b"\x1f"):
            return False
        self._members += 1
        if self._members > _MAX_MEMBERS:
            raise ToolError("the page is packed in too many parts")
        self._unpack = zlib.decompressobj(self._form)
        return True

    def _some(self, piece: bytes, most: int) -> bytes:
        try:
            data = self._unpack.decompress(piece, most)
        except zlib.error:
            if self._begun or self._form != _FORMS["deflate"]:
                raise ToolError("the page cannot be unpacked: its compression is broken") from None
            self._form = -15  # without the frame that the standard asks for, as some servers send
            self._unpack = zlib.decompressobj(self._form)
            self._begun = True
            return self._some(piece, most)
        self._begun = True
        return data


async def read_body(pieces: AsyncIterator[bytes], encoding: str, limit: int) -> Body:
    """The body that comes in ``pieces``, in the encoding that the server names; no more than
    ``limit`` bytes are read, and no more come of unpacking. Raises ToolError."""
    named = [name.strip().lower() for name in encoding.split(",")]
    packed = [name for name in named if name not in ("", "identity")]
    if len(packed) > 1 or (packed and packed[0] not in _FORMS):
        raise ToolError(
            f"the page is packed as {clean(', '.join(packed), 60)}, which was not asked for"
        )
    unpacker = Unpacker(packed[0]) if packed else None
    data = bytearray()
    came = 0
    async for piece in pieces:
        came += len(piece)
        room = limit + 1 - len(data)
        data += piece[:room] if unpacker is None else unpacker.feed(piece, room)
        if len(data) > limit or came > limit:
            return Body(bytes(data[:limit]), cut=True)
    if unpacker is not None and not unpacker.ended:
        raise ToolError("the page broke off before its end")
    return Body(bytes(data), cut=False)
