"""Random requests at the sandbox's service: each is answered or refused with a reason, and none harms the next."""

from __future__ import annotations

import pytest

from tests.sandbox.service_fuzz import LIMITS, TERMS, TOKEN, Fuzz
from verizero import sandbox
from verizero.sandbox.serve import SandboxService

pytestmark = pytest.mark.integration  # a server


def test_each_request_gets_its_own_answer() -> None:
    with (
        sandbox.Pool(workers=1) as pool,
        SandboxService(pool, token=TOKEN, limits=LIMITS, sessions=TERMS) as service,
    ):
        fuzz = Fuzz(service)
        fuzz.draw(150)
        assert fuzz.is_well()
        assert {400, 404, 422} <= set(fuzz.counts)
