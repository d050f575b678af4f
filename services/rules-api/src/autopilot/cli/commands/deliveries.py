"""`deliveries` and `delivery-replay`: what webhooks brought, and taking one of them once more."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

import click
import msgspec

from autopilot.cli.commands.common import ask_once, calling, full_id_option, host_now, output_option
from autopilot.cli.config import Settings
from autopilot.cli.lookup import PATH, resolve, resolve_under
from autopilot.cli.output import JSON, TABLE, print_json, print_table
from autopilot.cli.text import one_line, past, short_ids
from autopilot.domain.states import DeliveryStatus, RunStatus
from autopilot.kit.ids import uuid7

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

COLUMNS = ("ID", "STATUS", "EVENT", "RECEIVED", "TIMES", "RUN", "REPLAY_OF", "REASON")
_NOTHING_RUNS = frozenset({DeliveryStatus.IGNORED, DeliveryStatus.FAILED, DeliveryStatus.REJECTED})


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What a table shows of a delivery."""

    id: str
    status: str
    event: str
    received_at: datetime
    attempt_count: int = 1
    run_id: str | None = None
    run_status: str | None = None
    replayed_from: str | None = None
    reason_code: str | None = None
    error: str | None = None

    @property
    def reason(self) -> str:
        """Why it started nothing, or nothing yet, as code and words; empty if it did."""
        return ": ".join(part for part in (self.reason_code, self.error) if part)


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]


@click.command("deliveries")
@click.argument("autopilot_id", metavar="ID")
@click.option("--trigger", "trigger_id", metavar="ID", help="Only those to this trigger.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True)
@click.option("--offset", type=click.IntRange(0, 10_000), default=0, show_default=True)
@output_option(TABLE)
@full_id_option()
@click.pass_obj
def list_deliveries(
    settings: Settings,
    autopilot_id: str,
    trigger_id: str | None,
    limit: int,
    offset: int,
    output: str,
    full_id: bool,
) -> None:
    """List the webhook deliveries of an autopilot, newest first, with what became of them."""

    async def read(api: ApiClient) -> tuple[list[msgspec.Raw], list[Delivery]]:
        path = f"{PATH}/{await resolve(api, autopilot_id)}"
        query = {"limit": str(limit)} | ({"offset": str(offset)} if offset else {})
        if trigger_id is not None:
            query["trigger"] = await resolve_under(
                api, f"{path}/triggers", trigger_id, "trigger", paged=False
            )
        items = api.decode(await api.call("GET", f"{path}/deliveries", query=query), _Page).items
        return items, [api.decode(bytes(item), Delivery) for item in items]

    raw, found = calling(settings.as_person(), read)
    if output == JSON:
        print_json(msgspec.json.encode(raw))
    elif not found:
        click.echo("No deliveries here." if offset == 0 else "No more deliveries.", err=True)
    else:
        print_table(COLUMNS, delivery_rows(found, host_now(), None, full_id=full_id))


@click.command("delivery-replay")
@click.argument("autopilot_id", metavar="ID")
@click.argument("delivery_id", metavar="DELIVERY")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Repeating a call with the same key gives the same replay. Default: a new one.",
)
@output_option(TABLE)
@click.pass_obj
def replay_delivery(
    settings: Settings, autopilot_id: str, delivery_id: str, idempotency_key: str | None, output: str
) -> None:
    """acts for real: take a webhook delivery once more, as if it came now.

    Its agent does the work again, with all its effects; there is no dry run. The original stays as it is, the replay is a
    new delivery. Exits with 0 if it has a run that is to be done, and with 1 and the reason if it has none, or a skipped one.
    """
    key = str(uuid7()) if idempotency_key is None else idempotency_key

    async def replay(api: ApiClient) -> tuple[bytes, Delivery]:
        deliveries = f"{PATH}/{await resolve(api, autopilot_id)}/deliveries"
        original = await resolve_under(api, deliveries, delivery_id, "delivery")
        answer = await ask_once(api, f"{deliveries}/{original}/replay", key, made="a replay")
        return answer, api.decode(answer, Delivery)

    raw, made = calling(settings.as_person(), replay)
    if output == JSON:
        print_json(raw)
    else:
        print_table(COLUMNS, delivery_rows([made], host_now(), None, full_id=True))
    if made.status in _NOTHING_RUNS or made.run_status in (RunStatus.SKIPPED, RunStatus.FAILED):
        state = made.status if made.run_status is None else f"followed by a run that is {made.run_status}"
        raise click.ClickException(f"The replay is {state}: {one_line(made.reason)}")


def delivery_rows(
    found: list[Delivery], now: datetime, zone: tzinfo | None, *, full_id: bool = False
) -> list[tuple[str, ...]]:
    """The rows of `deliveries`; a zone of None is the viewer's own."""
    ids = [delivery.id for delivery in found]
    shown = ids if full_id else short_ids(ids)
    return [
        (
            shown_id,
            delivery.status,
            delivery.event,
            past(delivery.received_at, now, zone),
            str(delivery.attempt_count),
            delivery.run_status or "-",
            delivery.replayed_from or "-",
            delivery.reason or "-",
        )
        for shown_id, delivery in zip(shown, found, strict=True)
    ]
