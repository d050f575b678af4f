"""Who is calling, and how much they may: sliding minutes per address, and tokens that were good lately (S9.2)."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Literal

from autopilot.kit import log

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
ForwardedHeader = Literal["X-Forwarded-For", "Forwarded"]

WINDOW_S = 60.0
GOOD_FOR_S = 600.0
_MAX_KEYS = 20_000
_MAX_KNOWN = 10_000
_MAX_HOPS = 32
_MAX_ADDRESS = 64
_NAME_BYTES = 16

_NEVER = (-math.inf, -math.inf)

_logger = log.get_logger()


class SlidingMinute:
    """At most `limit` charges of one key within any 60 seconds; 0 is no limit.

    What is older than the minute is forgotten, and beyond `max_keys` the keys that were not charged for longest, so
    that a flood of addresses costs bounded memory. `tell(key)` hears of each charge but those that were heard of.
    """

    def __init__(
        self,
        limit: int,
        now: Callable[[], float],
        *,
        max_keys: int = _MAX_KEYS,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._limit = limit
        self._now = now
        self._max_keys = max_keys
        self._tell = tell
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
        self.heard(key, 1)
        if self._tell is not None and self._limit:
            self._tell(key)

    def heard(self, key: str, times: int) -> None:
        """Count what another replica has charged just now."""
        if not self._limit:
            return
        now = self._now()
        charges = self._charges.get(key)
        if charges is None:
            charges = self._charges[key] = deque(maxlen=self._limit)
            self._forget(now)
        else:
            self._charges.move_to_end(key)
        charges.extend([now] * min(times, self._limit))

    def __len__(self) -> int:
        """How many keys it remembers."""
        return len(self._charges)

    def _forget(self, now: float) -> None:
        """Two at most for each key that comes, so that no single request pays for an hour of them."""
        for _ in range(2):
            key, charges = next(iter(self._charges.items()))
            over = len(self._charges) > self._max_keys
            if over or (charges and charges[-1] + WINDOW_S <= now):
                del self._charges[key]


class GoodTokens:
    """The hashes of tokens that were good within the last ten minutes; half a hash names one.

    `tell(name)` hears of each token when it turns out good, and again every few minutes while it is in use.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        max_tokens: int = _MAX_KNOWN,
        tell: Callable[[bytes], None] | None = None,
    ) -> None:
        self._now = now
        self._max_tokens = max_tokens
        self._tell = tell
        self._seen: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def note(self, token_hash: bytes) -> None:
        now, name = self._now(), token_hash[:_NAME_BYTES]
        seen, told = self._seen.get(name, _NEVER)
        if now - seen < 1.0:
            return  # a busy token need not be noted for every webhook
        if self._tell is not None and now - told > GOOD_FOR_S / 2:
            told = now
            self._tell(name)
        self._keep(name, now, told)

    def heard(self, name: bytes) -> None:
        """Another replica has found it good just now."""
        now = self._now()
        self._keep(name[:_NAME_BYTES], now, now)

    def forget(self, token_hash: bytes) -> None:
        self._seen.pop(token_hash[:_NAME_BYTES], None)

    def __contains__(self, token_hash: bytes) -> bool:
        noted = self._seen.get(token_hash[:_NAME_BYTES])
        return noted is not None and self._now() - noted[0] <= GOOD_FOR_S

    def _keep(self, name: bytes, seen: float, told: float) -> None:
        self._seen[name] = (seen, told)
        self._seen.move_to_end(name)
        if len(self._seen) > self._max_tokens:
            self._seen.popitem(last=False)


class Callers:
    """Names the caller of a request: its address, the /64 for IPv6, through the proxies that are trusted.

    `header` is the one header that is believed, from trusted proxies: they append to that one, and pass the other on
    as the caller wrote it.
    """

    def __init__(self, trusted: Sequence[Network], header: ForwardedHeader = "X-Forwarded-For") -> None:
        self.header = header
        self._trusted = tuple(trusted)
        self._keys: dict[str, str] = {}
        self._warned = False

    def name(self, peer: str | None, forwarded: Sequence[str]) -> str:
        """`peer` is the address of the connection, `forwarded` the values of its headers named `header`, in order.

        The right-most hop that is not a trusted proxy counts. A forwarded header from anybody else is ignored.
        """
        peer = peer or ""
        if not forwarded:
            return self._key(peer)
        if not self._trusts(peer):
            self._warn(peer)
            return self._key(peer)
        nearest = peer
        for hop in reversed(",".join(forwarded).split(",")[-_MAX_HOPS:]):
            address = _parse(hop if self.header == "X-Forwarded-For" else _for_of(hop))
            if address is None:
                break
            nearest = str(address)
            if not self._trusts(nearest):
                break
        return self._key(nearest)

    def _warn(self, peer: str) -> None:
        if not self._warned:
            self._warned = True
            _logger.warning("forwarded_header_ignored", peer=peer, hint="AUTOPILOT_INGRESS_TRUSTED_PROXIES")

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


def _for_of(hop: str) -> str:
    """The node of one hop of a Forwarded header: `for="[2001:db8::1]:4711";proto=https`."""
    for part in hop.split(";"):
        name, _, node = part.partition("=")
        if name.strip().lower() == "for":
            return node.strip().strip('"')
    return ""


def _parse(text: str) -> Address | None:
    """An address as proxies write it: with a port, in brackets, or IPv4 mapped into IPv6."""
    return _parse_short(text) if len(text) <= _MAX_ADDRESS else None


@lru_cache(maxsize=_MAX_KNOWN)
def _parse_short(text: str) -> Address | None:
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
