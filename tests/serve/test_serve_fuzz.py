"""`vagen serve` against a fuzzer that reads its OpenAPI description."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from threaded_server import ThreadedServer

from vagen.serve.app import Server, ServeSettings, make_app
from vagen.serve.model import ServedModel

pytestmark = pytest.mark.slow


def test_no_request_makes_a_server_error(text_model, make_experiment) -> None:
    """Chat completions and the agent's sessions answer or refuse whatever the fuzzer sends."""
    served = ServedModel(text_model, rows=2)
    limits = ServeSettings(max_sessions=20)
    app = make_app(Server(served, "it", limits, run=make_experiment(model="tiny:text")))
    tried = []
    with ThreadedServer(app) as running:
        schema = schemathesis.openapi.from_url(f"{running.root}/openapi.json")
        for operation in schema.get_all_operations():
            case_of = operation.ok()

            @given(case=case_of.as_strategy())
            @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
            def answered(case: schemathesis.Case) -> None:
                if "name" in case.path_parameters:
                    case.path_parameters["name"] = "it"
                if isinstance(case.body, dict) and "model" in case.body:
                    case.body |= {"model": "it", "max_completion_tokens": 2}
                case.call_and_validate(checks=[not_a_server_error])

            answered()
            tried.append(case_of.label)
    served.close()
    assert {f"POST /v1/agents/{{name}}/{verb}" for verb in ("reset", "act", "close")} < {*tried}
    assert "POST /v1/chat/completions" in tried
