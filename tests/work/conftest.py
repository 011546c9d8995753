"""The fixtures of tests that run commands."""

from tests.command_line import home as home
from tests.command_line import run as run
from tests.command_line import terminal as terminal
