"""Triggers over the wire; what belongs to the other kind is refused by name (S8.7), secrets are redacted (S6.5)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from autopilot.domain import cron, cron_fields
from autopilot.domain.cron_words import describe
from autopilot.domain.ids import AutopilotId, TriggerId, UserId
from autopilot.domain.rule_fields import MAX_LABEL, MAX_PACE_PER_MIN, MAX_SECRET, MIN_SECRET
from autopilot.domain.schedule import MAX_LATENESS_S, CatchUp
from autopilot.domain.states import TriggerKind
from autopilot.domain.webhook import filters
from autopilot.domain.webhook.providers import NAMES
from autopilot.engine.secrets import Vault
from autopilot.engine.triggers import NewTrigger, TriggerEdit
from autopilot.rules_api.wire.common import Body, SeenVersion
from autopilot.storage.triggers import ListedTrigger, Trigger

WEBHOOK_PATH = "/api/webhooks/autopilots/"

_EVENT_NAME = {"type": "string", "minLength": 1, "maxLength": filters.MAX_NAME_LENGTH, "pattern": r"\S"}

Label = Annotated[str, msgspec.Meta(max_length=MAX_LABEL)]
# Judged by the engine, which says more; what stands here is for the OpenAPI document.
Cron = Annotated[
    str,
    msgspec.Meta(
        extra_json_schema={"maxLength": cron_fields.MAX_LENGTH},
        description="Five fields",
        examples=["0 9 * * MON-FRI"],
    ),
]
Timezone = Annotated[
    str,
    msgspec.Meta(max_length=100, description="An IANA name; UTC if none", examples=["Europe/Berlin"]),
]
Provider = Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(NAMES)})]
EventFilters = Annotated[
    list[dict[str, Any]],
    msgspec.Meta(
        max_length=filters.MAX_FILTERS,
        description="Any row suffices; a row without actions takes them all",
        examples=[[{"event": "pull_request", "actions": ["opened"]}]],
        extra_json_schema={
            "items": {
                "type": "object",
                "properties": {
                    "event": _EVENT_NAME,
                    "actions": {
                        "type": ["array", "null"],
                        "maxItems": filters.MAX_ACTIONS,
                        "items": _EVENT_NAME,
                    },
                },
                "required": ["event"],
                "additionalProperties": False,
            }
        },
    ),
]
Lateness = Annotated[
    int, msgspec.Meta(ge=0, le=MAX_LATENESS_S, description="Seconds; with catch_up `latest` only")
]
Pace = Annotated[int, msgspec.Meta(ge=1, le=MAX_PACE_PER_MIN, description="Runs a minute")]
SigningSecret = Annotated[str, msgspec.Meta(min_length=MIN_SECRET, max_length=MAX_SECRET)]


class TriggerCreate(Body, frozen=True, kw_only=True):
    """A schedule needs `cron`; a webhook needs nothing. `event_filters` are `[{event, actions?}]`."""

    kind: TriggerKind
    label: Label | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    cron: Cron | UnsetType | None = UNSET
    timezone: Timezone | UnsetType | None = UNSET
    catch_up: CatchUp | UnsetType | None = UNSET
    lateness_s: Lateness | UnsetType | None = UNSET
    provider: Provider | UnsetType | None = UNSET
    event_filters: EventFilters | UnsetType | None = UNSET
    pace_per_min: Pace | UnsetType | None = UNSET
    signing_secret: SigningSecret | UnsetType | None = UNSET

    def as_new(self, trigger_id: TriggerId) -> NewTrigger:
        return NewTrigger(id=trigger_id, **msgspec.structs.asdict(self))


class TriggerPatch(Body, frozen=True, kw_only=True):
    """What is not sent stays."""

    version: SeenVersion | UnsetType = UNSET
    label: Label | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    cron: Cron | UnsetType = UNSET
    timezone: Timezone | UnsetType | None = UNSET
    catch_up: CatchUp | UnsetType | None = UNSET
    lateness_s: Lateness | UnsetType | None = UNSET
    provider: Provider | UnsetType | None = UNSET
    event_filters: EventFilters | UnsetType | None = UNSET
    pace_per_min: Pace | UnsetType | None = UNSET

    def as_edit(self) -> TriggerEdit:
        fields = msgspec.structs.asdict(self)
        del fields["version"]
        return TriggerEdit(**fields)


class SigningSecretPut(Body, frozen=True, kw_only=True):
    """`grace_s`: how long the previous secret stays valid; default 24 h, 0 ends it at once (S9.13)."""

    secret: SigningSecret
    grace_s: Annotated[int, msgspec.Meta(ge=0, le=7 * 86_400)] | None = None


class TriggerView(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger. The URL's parts are null without the right to write; a signing secret is never shown.

    `description`: a schedule in plain words; null for a webhook, and where `schedule_error` says what is wrong.
    """

    id: TriggerId
    autopilot_id: AutopilotId
    kind: TriggerKind
    label: str | None
    enabled: bool
    version: int
    published_by: UserId | None
    cron: str | None
    timezone: str | None
    description: str | None
    catch_up: CatchUp | None
    lateness_s: int | None
    next_run_at: datetime | None
    schedule_error: str | None
    provider: str | None
    event_filters: list[dict[str, Any]] | None
    pace_per_min: int | None
    webhook_token: str | None
    webhook_path: str | None
    webhook_url: str | None
    has_signing_secret: bool
    signing_secret_hint: str | None
    previous_secret_until: datetime | None
    last_fired_at: datetime | None
    created_at: datetime
    updated_at: datetime


def show_trigger(
    trigger: Trigger, vault: Vault, *, can_write: bool, ingress_url: str | None, now: datetime
) -> TriggerView:
    """SecretUnreadable when the token is to be shown and no key opens it."""
    token = vault.decrypt(trigger.token_enc) if can_write and trigger.token_enc is not None else None
    path = WEBHOOK_PATH + token if token is not None else None
    return TriggerView(
        id=trigger.id,
        autopilot_id=trigger.autopilot_id,
        kind=trigger.kind,
        label=trigger.label,
        enabled=trigger.enabled,
        version=trigger.rev,
        published_by=trigger.published_by,
        cron=trigger.cron,
        timezone=trigger.timezone,
        description=_describe(trigger, now),
        catch_up=trigger.catch_up,
        lateness_s=trigger.lateness_s,
        next_run_at=trigger.next_run_at,
        schedule_error=trigger.schedule_error,
        provider=trigger.provider,
        event_filters=trigger.event_filters,
        pace_per_min=trigger.pace_per_min,
        webhook_token=token,
        webhook_path=path,
        webhook_url=ingress_url.rstrip("/") + path if ingress_url and path is not None else None,
        has_signing_secret=trigger.secret_enc is not None,
        signing_secret_hint=trigger.secret_hint if can_write else None,
        previous_secret_until=trigger.previous_secret_until,
        last_fired_at=trigger.last_fired_at if isinstance(trigger, ListedTrigger) else None,
        created_at=trigger.created_at,
        updated_at=trigger.updated_at,
    )


def _describe(trigger: Trigger, now: datetime) -> str | None:
    if trigger.cron is None or trigger.timezone is None:
        return None
    try:
        return describe(cron.parse(trigger.cron), cron.zone(trigger.timezone), now)
    except (cron.InvalidCron, cron.InvalidTimezone):
        return None
