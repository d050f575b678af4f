"""Rules about security that ruff's do not know, because they are about how this code keeps queries, secrets and logs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

QUERIES = {"execute", "executemany", "fetch", "fetchrow", "fetchval", "prepare", "cursor", "copy_from_query"}
LOGGERS = {"log", "_log", "logger"}
SHELLS = {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "asyncio.create_subprocess_shell",
    "create_subprocess_shell",
}
LOADERS = {"pickle", "marshal", "shelve", "dill", "cPickle"}
# A query is a literal or a named one; these functions take it as an argument from those who have one.
TAKE_A_QUERY = {
    "lease_sweeps.py": {"query"},
    "invariants.py": {"sql"},
    "retention.py": {"sql"},
    "revision.py": {"body"},
}
FOR_CONSTANTS = {"revision.py"}  # SET takes no parameters
REVEALED_IN = {
    "bus/connection.py", "engine/secrets.py", "storage/database.py", "cli/client.py", "rules_api/bootstrap.py",
    "rules_api/rotate_keys.py", "scheduler/rerun.py",
}  # fmt: skip
COMPARED_IN_CONSTANT_TIME = re.compile(
    r"^_?(\w+_)?(signature|digest|mac|hmac|password|secret|token|token_hash)$"
)
FENCES = {"lease_token"}  # no secret: it says which of two workers is the later one


def faults(path: str, source: str) -> list[str]:
    """What of a file breaks a rule, as `line: why`."""
    found = [fault for node in ast.walk(ast.parse(source)) for fault in _faults(path, node)]
    for number, line in enumerate(source.splitlines(), 1):
        if re.search(r"#\s*noqa:\s*S\d+(?!.*\s-\s\w)", line):
            found.append(f"{number}: an exception from a rule of security without its reason")
        if re.search(r"#\s*(noqa|nosec|nosemgrep)\s*$", line):
            found.append(f"{number}: an exception from all rules")
    return sorted(found)


def _faults(path: str, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        for why in _of_call(path, node):
            yield f"{node.lineno}: {why}"
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
        if any(_is_secret(each) for each in (node.left, *node.comparators)):
            yield f"{node.lineno}: a secret is compared by hmac.compare_digest"
    elif isinstance(node, ast.Import | ast.ImportFrom):
        names = {node.module} if isinstance(node, ast.ImportFrom) else {each.name for each in node.names}
        if names & LOADERS:
            yield f"{node.lineno}: loading such data runs code of its author"
    elif isinstance(node, ast.Attribute) and node.attr in {"CERT_NONE", "_create_unverified_context"}:
        yield f"{node.lineno}: whom one talks to is verified"


def _of_call(path: str, call: ast.Call) -> Iterator[str]:
    name = _name(call.func)
    file = path.rsplit("/", 1)[-1]
    queries = "/storage/" in path and name in QUERIES and isinstance(call.func, ast.Attribute)
    if queries and call.args and not _is_fixed(file, call.args[0]):
        yield "a query is a literal or SQL[name]; values are its arguments"
    if _is_log(call) and (not call.args or not isinstance(call.args[0], ast.Constant)):
        yield "a log line has a fixed name, and values are its keys"
    if name == "reveal" and not any(path.endswith(place) for place in REVEALED_IN):
        yield "a secret is revealed at the place that uses it alone"
    tells = _is_log(call) or name.endswith("Error")
    if tells and any(isinstance(each, ast.Call) and _name(each.func) == "reveal" for each in ast.walk(call)):
        yield "a secret is in no log and in no error"
    if ast.unparse(call.func) in SHELLS or _says(call, "shell", True):
        yield "a program is started with its arguments, not by a shell"
    if _says(call, "ssl", False) or _says(call, "verify", False) or _says(call, "check_hostname", False):
        yield "whom one talks to is verified"
    if isinstance(call.func, ast.Name) and name in {"eval", "exec", "compile", "__import__"}:
        yield "data is not run"


def _is_fixed(file: str, query: ast.expr) -> bool:
    if isinstance(query, ast.Subscript):
        return ast.unparse(query.value) == "SQL" and isinstance(query.slice, ast.Constant)
    if isinstance(query, ast.JoinedStr):
        values = [each.value for each in query.values if isinstance(each, ast.FormattedValue)]
        return file in FOR_CONSTANTS and all(
            isinstance(each, ast.Name) and each.id.isupper() for each in values
        )
    if isinstance(query, ast.Name):
        return query.id in TAKE_A_QUERY.get(file, ())
    return isinstance(query, ast.Constant)


def _is_log(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in {"debug", "info", "warning", "error", "exception", "critical"}
        and _name(function.value) in LOGGERS
    )


def _is_secret(value: ast.expr) -> bool:
    name = _name(value)
    return bool(COMPARED_IN_CONSTANT_TIME.match(name)) and name not in FENCES


def _says(call: ast.Call, name: str, value: bool) -> bool:
    return any(
        each.arg == name and isinstance(each.value, ast.Constant) and each.value.value is value
        for each in call.keywords
    )


def _name(value: ast.expr) -> str:
    if isinstance(value, ast.Attribute):
        return value.attr
    return value.id if isinstance(value, ast.Name) else ""
