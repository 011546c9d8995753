"""A gateway on a socket, until it is stopped."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

from mlx_tools.app import Configuration, Door, RunOptions, listen, session_store, signing_key
from mlx_tools.gateway.admission import Admission
from mlx_tools.gateway.meters import Meters
from mlx_tools.gateway.page import PATH, Keep, Page, Person
from mlx_tools.gateway.runs import Runs
from mlx_tools.gateway.served_models import Note, ServedModels
from mlx_tools.gateway.server import Gateway, application
from mlx_tools.gateway.webhooks import Webhooks

GRACE_SECONDS: Final = 30
"""How long requests may take to end once the gateway is told to."""

KEEP_ALIVE_SECONDS: Final = 75
"""How long an idle connection stays open: longer than clients keep theirs, who would else now and
then write into one that is just being closed."""


async def serve(options: RunOptions, key: str, note: Note, keep: Keep) -> None:
    """Serve as the settings say; clients must bear ``key`` where it is not empty. ``keep`` keeps
    sessions as golden transcripts.

    Raises `UsageError` where its port cannot be had, and what `mlx_tools.app.found` raises.
    """
    own = options.configuration.settings.gateway
    models = ServedModels(options, note)
    secret, meters = own.webhook_secret, Meters()
    runs = Runs(
        options.configuration,
        models,
        Admission(own.concurrency, own.concurrency + own.queue, time.monotonic),
        own.concurrency + own.queue,
        note,
        webhooks=Webhooks(own.webhooks, signing_key(secret) if secret else b""),
        meters=meters,
    )
    person = Person(session_store(options.configuration).secret, time.time)
    gateway = Gateway(
        models,
        Admission(own.concurrency, own.queue, time.monotonic),
        meters=meters,
        temperature=options.configuration.settings.model.temperature,
        runs=runs,
        page=Page(runs, models, person, keep),
    )
    door = Door(hosts={own.host, *own.hosts}, origins=own.origins, key=key, page=PATH)
    config = uvicorn.Config(
        application(gateway, door),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with listen(own.host, own.port) as listening:
        await models.open()
        host, port = listening.getsockname()[:2]
        note(f"{models.rows()[0]['id']} is served at {address(host, port)}v1")
        if sys.stderr.isatty():  # a file would keep the key
            note(f"its page is at {page_link(options.configuration, host, port)}")
        await _Server(config, runs.leave).serve(sockets=[listening])


def address(host: str, port: int) -> str:
    """The address of what listens there."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def page_link(configuration: Configuration, host: str, port: int) -> str:
    """The address of the page, with the key that opens it, which a browser sends to nobody."""
    return f"{address(host, port)}#key={Person(session_store(configuration).secret, time.time).key}"


class _Server(uvicorn.Server):
    """A server that says when it is told to end: what streams without end ends then."""

    def __init__(self, config: uvicorn.Config, told: Callable[[], None]) -> None:
        super().__init__(config)
        self._loop, self._told = asyncio.get_running_loop(), told

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._told)
        super().handle_exit(sig, frame)
