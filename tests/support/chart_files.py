"""`python -m tests.support.chart_files`: the parts of the chart and of the kustomize base that are made from others.

The settings in values.schema.json come from the services' configurations, the alerts from deploy/prometheus, and the
kustomize base is the chart, rendered.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import yaml
from tests.support import charts

from autopilot.dispatcher.config import DispatcherConfig
from autopilot.ingress.config import Config as IngressConfig
from autopilot.kit.config import CommonConfig, key_of
from autopilot.rules_api.config import Config as RulesApiConfig
from autopilot.scheduler.config import SchedulerConfig

CONFIGS: dict[str, type[CommonConfig]] = {
    "ingress": IngressConfig,
    "scheduler": SchedulerConfig,
    "dispatcher": DispatcherConfig,
    "rules-api": RulesApiConfig,
}
# The chart itself says these: from Secrets, from the ports of its objects, from how long a pod may drain.
OWN = frozenset(
    key_of(name)
    for name in (
        "database_url",
        "nats_url",
        "secret_keys",
        "health_host",
        "health_port",
        "grace_s",
        "ingress_host",
        "ingress_port",
        "api_host",
        "api_port",
        "ingress_url",
    )
)
ALERTS = charts.ROOT / "deploy" / "prometheus" / "alerts.yml"
ALERTS_OF_THE_CHART = charts.CHART / "files" / "alerts.yml"
SCHEMA = charts.CHART / "values.schema.json"
BASE = charts.ROOT / "deploy" / "kustomize" / "base"
BASE_VALUES = charts.ROOT / "deploy" / "kustomize" / "values.yaml"


def settings_schemas() -> dict[str, Any]:
    """The definitions of values.schema.json for `settings`, by name."""
    made = {"settingsCommon": settings_schema(CommonConfig)}
    for service, struct in CONFIGS.items():
        made["settings" + "".join(part.capitalize() for part in service.split("-"))] = settings_schema(struct)
    return made


def settings_schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(struct, include_extras=True)
    keys = {
        key_of(field.name): value_schema(hints[field.name])
        for field in msgspec.structs.fields(struct)
        if key_of(field.name) not in OWN
    }
    return {"type": "object", "additionalProperties": False, "properties": keys}


def value_schema(hint: Any) -> dict[str, Any]:
    bare, metas = hint, []
    if get_origin(hint) is Annotated:
        bare, *metas = get_args(hint)
    if get_origin(bare) is Literal:
        made: dict[str, Any] = {"enum": list(get_args(bare))}
    elif get_origin(bare) is tuple:
        made = {"type": "array", "items": {"type": "string"}}
    else:
        made = {"type": {int: "integer", float: "number", bool: "boolean", str: "string"}[bare]}
    words = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
    for meta in metas:
        limits = {word: getattr(meta, name) for name, word in words.items()}
        made |= {word: limit for word, limit in limits.items() if limit is not None}
        made["description"] = meta.description
    return made


def schema_text() -> str:
    """values.schema.json with the settings as the code has them now."""
    schema = json.loads(SCHEMA.read_text("utf-8"))
    kept = {name: part for name, part in schema["$defs"].items() if not name.startswith("settings")}
    schema["$defs"] = kept | settings_schemas()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def base_files() -> dict[str, str]:
    """The kustomize base by file name: one file a kind, and without what only helm reads."""
    files: dict[str, list[charts.Object]] = {}
    for found in charts.rendered(BASE_VALUES):
        files.setdefault(f"{found['kind'].lower()}.yaml", []).append(without_helm(found))
    head = "# Made from the chart by `make charts`; change that, or patch this in an overlay.\n"
    texts = {
        name: head + yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=1000)
        for name, objects in sorted(files.items())
    }
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(texts),
    }
    return texts | {"kustomization.yaml": head + yaml.safe_dump(kustomization, sort_keys=False)}


def without_helm(found: Any) -> Any:
    if isinstance(found, list):
        return [without_helm(each) for each in found]
    if not isinstance(found, dict):
        return found
    dropped = ("helm.sh/chart", "app.kubernetes.io/managed-by")
    kept = {key: without_helm(value) for key, value in found.items() if key not in dropped}
    return {key: value for key, value in kept.items() if not (key == "annotations" and not value)}


def files() -> dict[Path, str]:
    """Every file that is made, with its text."""
    made = {SCHEMA: schema_text(), ALERTS_OF_THE_CHART: ALERTS.read_text("utf-8")}
    return made | {BASE / name: text for name, text in base_files().items()}


def main() -> None:
    """Write them all, the base last and without files of kinds that are gone."""
    SCHEMA.write_text(schema_text(), "utf-8")
    made = files()
    BASE.mkdir(parents=True, exist_ok=True)
    for path in BASE.glob("*.yaml"):
        if path not in made:
            path.unlink()
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
