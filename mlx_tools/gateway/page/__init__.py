"""The page of the gateway: a person asks, watches, decides and looks back in a browser."""

from __future__ import annotations

from mlx_tools.gateway.page.routes import PATH, Keep, Page, Person
