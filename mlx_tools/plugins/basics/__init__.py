"""The tools ``calculator``, ``clock`` and ``format_xml``."""

from mlx_tools.plugins.basics.calculator import calculator
from mlx_tools.plugins.basics.clock import clock
from mlx_tools.plugins.basics.format_xml import format_xml

__all__ = ("calculator", "clock", "format_xml")
