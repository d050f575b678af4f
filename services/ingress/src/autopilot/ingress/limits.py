"""Who is calling, and how much they may: sliding minutes per address, and tokens that were good lately (S9.2)."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from autopilot.kit import log

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

WINDOW_S = 60.0
GOOD_FOR_S = 600.0
_MAX_KEYS = 20_000
_MAX_KNOWN = 10_000

_logger = log.get_logger()


class SlidingMinute:
    """At most `limit` charges of one key within any 60 seconds; 0 is no limit.

    Keys that were not charged for longest are forgotten first, so that a flood of addresses costs bounded memory.
    """

    def __init__(self, limit: int, now: Callable[[], float], *, max_keys: int = _MAX_KEYS) -> None:
        self._limit = limit
        self._now = now
        self._max_keys = max_keys
        self._charges: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, key: str) -> int:
        """0 if one more charge fits; else the whole seconds, 1 to 60, until one does. Charges nothing."""
        charges = self._charges.get(key)
        if charges is None or len(charges) < self._limit:
            return 0
        left_s = charges[-self._limit] + WINDOW_S - self._now()
        return min(max(math.ceil(left_s), 1), 60) if left_s > 0 else 0

    def charge(self, key: str) -> None:
        """Count one; only the newest `limit` charges matter."""
        if not self._limit:
            return
        charges = self._charges.get(key)
        if charges is None:
            charges = self._charges[key] = deque(maxlen=self._limit)
            if len(self._charges) > self._max_keys:
                self._charges.popitem(last=False)
        else:
            self._charges.move_to_end(key)
        charges.append(self._now())


class GoodTokens:
    """The hashes of tokens that were good within the last ten minutes."""

    def __init__(self, now: Callable[[], float], *, max_tokens: int = _MAX_KNOWN) -> None:
        self._now = now
        self._max_tokens = max_tokens
        self._seen: OrderedDict[bytes, float] = OrderedDict()

    def note(self, token_hash: bytes) -> None:
        now = self._now()
        if now - self._seen.get(token_hash, -math.inf) < 1.0:
            return  # a busy token need not be noted for every webhook
        self._seen[token_hash] = now
        self._seen.move_to_end(token_hash)
        if len(self._seen) > self._max_tokens:
            self._seen.popitem(last=False)

    def forget(self, token_hash: bytes) -> None:
        self._seen.pop(token_hash, None)

    def __contains__(self, token_hash: bytes) -> bool:
        seen = self._seen.get(token_hash)
        return seen is not None and self._now() - seen <= GOOD_FOR_S


class Callers:
    """Names the caller of a request: its address, the /64 for IPv6, through the proxies that are trusted."""

    def __init__(self, trusted: Sequence[Network]) -> None:
        self._trusted = tuple(trusted)
        self._keys: dict[str, str] = {}
        self._warned = False

    def name(self, peer: str | None, forwarded: Sequence[str]) -> str:
        """`peer` is the address of the connection, `forwarded` the values of its X-Forwarded-For headers in order.

        The right-most hop that is not a trusted proxy counts. A forwarded header from anybody else is ignored.
        """
        peer = peer or ""
        if not forwarded:
            return self._key(peer)
        if not self._trusts(peer):
            if not self._warned:
                self._warned = True
                _logger.warning(
                    "forwarded_header_ignored", peer=peer, hint="AUTOPILOT_INGRESS_TRUSTED_PROXIES"
                )
            return self._key(peer)
        nearest = peer
        for hop in reversed(",".join(forwarded).split(",")):
            address = _parse(hop)
            if address is None:
                break
            nearest = str(address)
            if not self._trusts(nearest):
                break
        return self._key(nearest)

    def _trusts(self, text: str) -> bool:
        address = _parse(text)
        return address is not None and any(
            address in network for network in self._trusted if network.version == address.version
        )

    def _key(self, text: str) -> str:
        key = self._keys.get(text)
        if key is None:
            if len(self._keys) >= _MAX_KNOWN:
                self._keys.clear()
            key = self._keys[text] = _key_of(text)
        return key


def _key_of(text: str) -> str:
    address = _parse(text)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, 64), strict=False))
    return str(address) if address is not None else text


def _parse(text: str) -> Address | None:
    """An address as proxies write it: with a port, in brackets, or IPv4 mapped into IPv6."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
