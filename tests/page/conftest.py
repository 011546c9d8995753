"""The fixtures of tests that ask a gateway for its page."""

from tests.runs.conftest import anyio_backend as anyio_backend
from tests.runs.conftest import begin as begin
from tests.runs.conftest import house as house
from tests.runs.conftest import prepare as prepare
