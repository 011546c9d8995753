"""The cost of PostgreSQL beside files: the time of a record, and of a list of many sessions.

python benchmarks/stores.py postgresql://USER@HOST/NAME   (an empty database; it is filled)
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from mlx_tools.plugins.postgres.session_rows import PostgresStore
from mlx_tools.store import SessionStore, TranscriptStore, encode
from mlx_tools.transcript import ExecutionRecord, Header, UserRecord

SESSIONS = 100_000
RECORDS = 500
SHOWN = 50


def record_ms(store: SessionStore) -> float:
    """The middle time of a record that must last."""
    files, times = store.create(), []
    for _ in range(RECORDS):
        began = time.perf_counter()
        files.transcript.append(ExecutionRecord(call="c1", mutates=True))
        times.append(time.perf_counter() - began)
    files.transcript.close()
    return statistics.median(times) * 1e3


def list_s(store: SessionStore) -> float:
    """The time of `mlx-tools sessions list`: the ids last written to, and how they stand."""
    began = time.perf_counter()
    ids = store.by_last_update(SHOWN)
    assert len(ids) == SHOWN
    for session in ids:
        store.describe(session)
    return time.perf_counter() - began


def main(address: str) -> None:
    lines = [encode(Header(session="s", created="", version=2)), encode(UserRecord(content="why?"))]
    data = "".join(f"{line}\n" for line in lines).encode()
    with tempfile.TemporaryDirectory() as folder:
        stores = {"files": TranscriptStore(Path(folder, "s")), "PostgreSQL": PostgresStore(address)}
        steps = {name: record_ms(store) for name, store in stores.items()}
        for number in range(SESSIONS):
            place = Path(folder, "s", f"20260101-{number:06d}-aa")
            place.mkdir()
            (place / "transcript.jsonl").write_bytes(data)
        with psycopg.connect(address, autocommit=True) as db:
            names = f"FROM generate_series(1, {SESSIONS}) AS n"
            db.execute(f"INSERT INTO mlx_tools.sessions (id) SELECT '20260101-' || n {names}")
            for at, line in enumerate(lines):
                insert = "INSERT INTO mlx_tools.records SELECT '20260101-' || n"
                db.execute(f"{insert}, {at}, %b {names}", (line.encode(),))
            db.execute("ANALYZE")
        for name, store in stores.items():
            list_s(store)  # the first list makes the index of the files, and warms the database
            print(f"{name}: a record {steps[name]:.2f} ms, a list {list_s(store):.2f} s")


if __name__ == "__main__":
    main(sys.argv[1])
