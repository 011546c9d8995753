"""The fixtures of tests that ask a gateway for its page."""

from tests.gateway.conftest import anyio_backend as anyio_backend
from tests.gateway.conftest import begin as begin
from tests.gateway.conftest import house as house
