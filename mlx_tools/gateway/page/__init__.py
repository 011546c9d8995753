"""The page of the gateway, where a person asks, decides and looks back."""

from __future__ import annotations

from mlx_tools.gateway.page.routes import PATH, Keep, Page, Person
