"""The place for sessions that this plugin adds."""

from __future__ import annotations

from mlx_tools.app import StoreKind, hookimpl


@hookimpl
def store() -> list[StoreKind]:
    """Return databases of PostgreSQL."""
    from mlx_tools.plugins.postgres.postgres import check_address
    from mlx_tools.plugins.postgres.session_rows import PostgresStore

    return [StoreKind(("postgresql", "postgres"), PostgresStore, check_address)]
