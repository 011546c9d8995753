"""The fixtures of tests that run commands."""

from tests.command_line import configure as configure
from tests.command_line import environ as environ
from tests.command_line import home as home
from tests.command_line import run as run
from tests.command_line import terminal as terminal
from tests.command_line import write as write
