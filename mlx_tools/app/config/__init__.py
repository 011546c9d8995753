"""Settings: defaults, the user's file, the project's file, environment, command line."""

from __future__ import annotations

from mlx_tools.app.config.layers import PROJECT_FILE, USER_FILE, ConfigErrors, Layer, read_file
from mlx_tools.app.config.load import Configuration, Origin, defaults, load, merge
from mlx_tools.app.config.setting import Group
from mlx_tools.app.config.settings import Settings
from mlx_tools.app.config.table import SettingRow, table

__all__ = [
    "PROJECT_FILE",
    "USER_FILE",
    "ConfigErrors",
    "Configuration",
    "Group",
    "Layer",
    "Origin",
    "SettingRow",
    "Settings",
    "defaults",
    "load",
    "merge",
    "read_file",
    "table",
]
