"""The OpenAPI document as a page to read at `/docs`: plain HTML, made here, with no script and nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

from aiohttp import web

from autopilot.rules_api import openapi
from autopilot.rules_api.endpoint import Route

PATH: Final = "/docs"

_STYLE: Final = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2430;background:#fff}
h2{margin-top:2.5rem;border-bottom:1px solid #d5dae1}
summary{cursor:pointer;padding:.3rem 0}
details details{margin-left:1rem}
details>div{margin:0 0 1rem 1rem}
code,.method{font-family:ui-monospace,monospace;font-size:.9em}
.method{display:inline-block;min-width:4.5rem;font-weight:700}
table{border-collapse:collapse;margin:.5rem 0}
td,th{border:1px solid #d5dae1;padding:.2rem .6rem;text-align:left;vertical-align:top}
@media (prefers-color-scheme:dark){body{color:#e3e8ef;background:#12161c}h2,td,th{border-color:#3a4350}a{color:#8ab8ff}}
"""
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_CODE = re.compile(r"`([^`]+)`")


def attach(app: web.Application, routes: Sequence[Route]) -> None:
    """Serve the page, to anybody; it is made once, when somebody first asks."""
    made: list[str] = []

    async def serve(_request: web.Request) -> web.Response:
        if not made:
            made.append(page(openapi.document(routes)))
        return web.Response(text=made[0], content_type="text/html", headers=_HEADERS)

    app.router.add_get(PATH, serve)


def page(document: dict[str, Any]) -> str:
    """The whole page for an OpenAPI document."""
    info = document["info"]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width"><title>',
            f"{escape(info['title'])} API</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(info['title'])} API {escape(info['version'])}</h1>{_prose(info['description'])}",
            f'<p>For programs: <a href="{openapi.PATH}">{openapi.PATH}</a> (OpenAPI {document["openapi"]}).</p>',
            *_operations(document),
            "<h2>Problem codes</h2>",
            _prose(document["components"]["schemas"]["Code"]["description"]),
            "<h2>Shapes</h2>",
            *(
                f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{_shape(schema)}</details>'
                for name, schema in document["components"]["schemas"].items()
            ),
            "</body></html>",
        ]
    )


def _operations(document: dict[str, Any]) -> Iterator[str]:
    found = [
        (operation["tags"][0], path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'].capitalize())}</h2>"
        for name, path, method, operation in found:
            if name == tag["name"]:
                yield _operation(document, path, method, operation)


def _operation(document: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    parts = [_prose(operation["description"])]
    parameters = [_resolved(document, parameter) for parameter in operation["parameters"]]
    if parameters:
        rows = [
            (
                f"<code>{escape(given['name'])}</code>",
                given["in"] + ("" if given.get("required") else ", optional"),
                f"{_kind(given['schema'])} {_words(given.get('description', ''))}",
            )
            for given in parameters
        ]
        parts.append(_table(("Parameter", "In", "Is"), rows))
    if "requestBody" in operation:
        parts.append(
            f"<p>Body: {_kind(operation['requestBody']['content']['application/json']['schema'])}</p>"
        )
    rows = []
    for status, answer in operation["responses"].items():
        told = _resolved(document, answer)
        shapes = [_kind(media["schema"]) for media in told.get("content", {}).values() if status < "300"]
        rows.append((status, _words(told["description"]), " ".join(shapes)))
    parts.append(_table(("Status", "Means", "Body"), rows))
    return (
        f'<details id="{escape(operation["operationId"])}"><summary><span class="method">{method.upper()}</span>'
        f"<code>{escape(path)}</code> {_words(operation['summary'])}</summary><div>{''.join(parts)}</div></details>"
    )


def _shape(schema: dict[str, Any]) -> str:
    told = _prose(schema.get("description", ""))
    if "properties" not in schema:
        return f"<div>{told}<p>{_kind(schema)}</p></div>"
    required = schema.get("required", [])
    rows = [
        (
            f"<code>{escape(name)}</code>" + ("" if name in required else " (optional)"),
            f"{_kind(given)} {_words(given.get('description', ''))}",
        )
        for name, given in schema["properties"].items()
    ]
    return f"<div>{told}{_table(('Field', 'Is'), rows)}</div>"


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to the shapes it names."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}"><code>{name}</code></a>'
    if "anyOf" in schema:
        return " or ".join(_kind(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    kind = schema.get("type", "any JSON")
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if kind == "array" and schema.get("items"):
        text = f"list of {_kind(schema['items'])}"
    limits = [
        f"{word} {schema[key]}"
        for key, word in (
            ("format", ""),
            ("minimum", "from"),
            ("maximum", "to"),
            ("maxLength", "up to"),
            ("maxItems", "up to"),
        )
        if key in schema
    ]
    return " ".join([text, *limits])


def _resolved(document: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in given:
        return given
    found: Any = document
    for step in given["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    resolved: dict[str, Any] = found
    return resolved


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _prose(text: str) -> str:
    """Paragraphs and lists of `- ` lines."""
    blocks: list[str] = []
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if lines and all(line.startswith("- ") for line in lines):
            blocks.append("<ul>" + "".join(f"<li>{_words(line[2:])}</li>" for line in lines) + "</ul>")
        elif lines:
            blocks.append(f"<p>{_words(' '.join(lines))}</p>")
    return "".join(blocks)


def _words(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text, quote=False))
