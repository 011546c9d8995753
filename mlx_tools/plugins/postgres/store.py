"""The kind of session store that this plugin adds."""

from __future__ import annotations

from mlx_tools.app import StoreKind, hookimpl


@hookimpl
def store() -> list[StoreKind]:
    """Return the store for addresses of PostgreSQL databases."""
    from mlx_tools.plugins.postgres.postgres import check_address
    from mlx_tools.plugins.postgres.session_rows import PostgresStore

    return [StoreKind(("postgresql", "postgres"), PostgresStore, check_address)]
