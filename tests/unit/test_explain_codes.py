"""The codes that explain may answer with, and the list of them that people read."""

from __future__ import annotations

import ast
import re
from importlib import resources
from pathlib import Path

from autopilot.domain.states import ReasonCode
from autopilot.rules_api.explain.next_steps import NEXT_STEPS

DOCS = Path(__file__).parents[2] / "docs" / "explain.md"
MAKERS = {"ok", "note", "wait", "stop"}


def given() -> set[str]:
    """Every code that stands in the source of a check."""
    found = {"nobody_answers"}
    for module in resources.files("autopilot.rules_api.explain").iterdir():
        if not module.name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
                code = node.args[1]
                if isinstance(code, ast.Constant) and isinstance(code.value, str):
                    found.add(code.value)
    return found


def listed() -> set[str]:
    """The codes in the table of the page."""
    table = DOCS.read_text("utf-8").partition("| code | meaning |")[2]
    return {
        code
        for line in table.splitlines()
        for code in re.findall(r"`(\w+)`", line.split("|")[1] if "|" in line else "")
    }


def test_the_page_lists_every_code_and_no_other() -> None:
    """S13.3: `verdict` is stable, so it is documented."""
    assert given() == listed()
    assert not given() & {code.value for code in ReasonCode}, "a reason code means what it means elsewhere"


def test_every_reason_has_a_next_step() -> None:
    """S4.2, S13.3"""
    assert set(NEXT_STEPS) == set(ReasonCode)
