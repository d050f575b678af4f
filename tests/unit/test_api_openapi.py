"""The OpenAPI document says what the routes are, and the docs list what the code can answer (S13)."""

from __future__ import annotations

import ast
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import schemathesis

from autopilot.domain.permissions import ALLOWED, Action, Standing, tokens_for
from autopilot.rules_api.app import ROUTES
from autopilot.rules_api.docs_page import page
from autopilot.rules_api.openapi import document, refusals_of
from autopilot.rules_api.problems import Code

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs/api.md").read_text()
DOCUMENT = document(ROUTES)
OPERATIONS: list[dict[str, Any]] = [
    operation for methods in DOCUMENT["paths"].values() for operation in methods.values()
]


def test_the_document_is_openapi_3_1_with_every_route_once() -> None:
    schemathesis.openapi.from_dict(DOCUMENT).validate()
    named = [(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods]
    assert sorted(named) == sorted((route.method, route.path) for route in ROUTES)
    ids = [operation["operationId"] for operation in OPERATIONS]
    assert len(set(ids)) == len(ids)


def test_every_body_refuses_unknown_fields_and_every_shape_is_explained() -> None:
    for operation in OPERATIONS:
        if "requestBody" in operation:
            name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[
                2
            ]
            assert DOCUMENT["components"]["schemas"][name]["additionalProperties"] is False, name
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert schema.get("description"), f"{name} has no docstring"


def test_the_document_speaks_to_whoever_has_nothing_but_the_document() -> None:
    assert re.findall(r"\b(?:S\d+\.\d+|S\d\b|HAZARDS)[^\"]{0,20}", json.dumps(DOCUMENT)) == []
    told = {operation["operationId"]: operation for operation in OPERATIONS}
    assert told["update_agent"]["summary"] == "Update agent"
    assert told["update_agent"]["description"].startswith("Unbinding it from its runtime pauses the rules")


def test_every_text_of_a_body_has_a_limit_that_is_told() -> None:
    """S13.8."""
    free: set[str] = set()
    schemas = DOCUMENT["components"]["schemas"]
    for operation in OPERATIONS:
        if "requestBody" not in operation:
            continue
        name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for field, schema in schemas[name]["properties"].items():
            for part in schema.get("anyOf", [schema]):
                if part.get("type") == "string" and not part.keys() & {"maxLength", "format", "enum"}:
                    free.add(f"{name}.{field}")
    assert free == {"CommentCreate.body", "Complete.result", "Fail.error", "Output.text"}  # 64 KiB of UTF-8


def test_instants_are_told_as_such_and_ids_as_uuids() -> None:
    run = DOCUMENT["components"]["schemas"]["RunView"]["properties"]
    assert run["created_at"] == {"type": "string", "format": "date-time"}
    assert run["planned_at"]["anyOf"][0] == {"type": "string", "format": "date-time"}
    assert run["id"] == {"type": "string", "format": "uuid"}
    event = DOCUMENT["components"]["schemas"]["RunEvent"]["properties"]
    assert event["occurred_at"]["format"] == "date-time"


def test_every_code_that_the_code_raises_is_in_the_list_and_every_listed_one_is_used() -> None:
    """S13: programs may rely on the list."""
    raised: set[str] = set()
    for folder in ("shared/src/autopilot", "services/rules-api/src/autopilot/rules_api"):
        for file in (ROOT / folder).rglob("*.py"):
            raised |= _codes_in(ast.parse(file.read_text()))
    # Ingress answers these, and a body within a body is told as malformed.
    unknown = raised - set(Code) - {"invalid_body"}
    assert not unknown
    declared = {code for route in ROUTES for codes in refusals_of(route).values() for code in codes}
    outside_routes = {Code.BAD_REQUEST, Code.METHOD_NOT_ALLOWED, Code.CONFLICT, Code.EXPECTATION_FAILED}
    assert declared | outside_routes == set(Code)


def test_the_docs_list_every_code_as_the_code_means_it() -> None:
    assert re.findall(r"^\| `(\w+)` \| (\d+) \| (.*) \|$", DOCS, re.MULTILINE) == [
        (str(code), str(code.status), code.meaning) for code in Code
    ]


def test_the_docs_list_every_right_as_the_table_of_permissions_has_it() -> None:
    """S6."""
    assert re.findall(r"^\| `([\w.]+)` \| ([a-z, ]+) \| ([a-z, ]+) \|$", DOCS, re.MULTILINE) == [
        (
            action.value,
            ", ".join(standing for standing in Standing if standing in ALLOWED[action]) or "nobody",
            ", ".join(sorted(tokens_for(action))),
        )
        for action in Action
    ]


def test_the_page_holds_every_operation_and_is_well_formed() -> None:
    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []
            self.ids: set[str] = set()
            self.links: set[str] = set()

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            self.ids.add(given.get("id") or "")
            self.links.add(given.get("href") or "")
            assert "src" not in given
            assert not [name for name in given if name.startswith("on")]
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    reader = Reader()
    reader.feed(page(DOCUMENT))
    assert reader.open == []
    assert {operation["operationId"] for operation in OPERATIONS} <= reader.ids
    assert {link.removeprefix("#") for link in reader.links if link.startswith("#")} <= reader.ids


def _codes_in(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
        if name == "Problem" and len(node.args) > 1:
            given.append(node.args[1])
        found |= {
            value.value for value in given if isinstance(value, ast.Constant) and isinstance(value.value, str)
        }
    return found
