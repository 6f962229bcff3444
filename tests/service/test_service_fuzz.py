"""The service against a fuzzer that reads its OpenAPI description."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from vagen.service.app import make_app
from vagen.service.settings import ServiceSettings

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-the-fuzzer"


def test_no_request_makes_a_server_error(tmp_path) -> None:
    """Whatever the fuzzer makes of the description is answered as the description says."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"fuzzer:{TOKEN}\n")
    app = make_app(ServiceSettings(workers=0, max_sessions=50, tokens_file=str(tokens)))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    tried = []
    for operation in schema.get_all_operations():

        @given(case=operation.ok().as_strategy())
        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        def answered_as_described(case: schemathesis.Case) -> None:
            case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"})

        answered_as_described()
        tried.append(operation.ok().label)
    assert "POST /v1/sessions/step" in tried and len(tried) >= 10
