"""A journal that can be shown to others: names, hosts and free text replaced, everything that decides kept.

Every text in a row that is not a word of the vocabulary becomes a token: a keyed digest of it, so that equal texts have
equal tokens and nobody without the key can try guesses. Names are replaced part by part (``req-7-d`` keeps its shape),
so that one name still begins with another; UUIDs become UUIDs. A refusal's sentence, which quotes names and messages,
quotes their tokens instead. Numbers, times, words and block ids stay: they are what replay and the findings rest on.

Whoever redacts must not trust the list of what was thought of. So the result is searched for what looks private (an
address, a path, a host, an e-mail, a long secret), and its findings and its replay are compared with the original's;
if anything remains or differs, nothing is written. Kept is the ``core`` tier of replay; sessions and engines word their
own sentences, so the ``full`` tier of a redacted journal finds other ones.
"""

import hmac
import re
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from typing import Any
from uuid import UUID

from attrs import define, evolve, field

from handoff.journal.event import Event, payload_to_json
from handoff.journal.event_source import (
    ActorDeclaration,
    DeclaredActor,
    DeclaredHandoff,
    EventSource,
    HandoffDeclaration,
)
from handoff.journal.examination import examine
from handoff.journal.replayer import replay
from handoff.journal.terms import TERMS, Kind
from handoff.journal.vocabulary import EngineType, HandoffOrder, TimingMode, WorkerRole

_VOCABULARY = frozenset(
    {
        *TERMS,
        *(word.value for words in (EngineType, HandoffOrder, TimingMode, WorkerRole) for word in words),
        "source_freed", "source_lease_expired", "destination_blocks", "destination_freed", "destination_finished",
        "destination_quarantined", "lease_renewed", "rank_done", "peer_closed", "deadline_fired", "cancel_requested",
        "shutdown_requested", "destination_queued", "source_queued", "handoff_expected", "computed_locally",
        "request_failed", "unknown_handoff", "run", "imported", "observed", "round_robin", "kv_router",
    }
)  # fmt: skip
_WORKER = re.compile(r"(?:prefill|decode|source|destination)(?:-\d+)?\Z")
_NUMBER = re.compile(r"-?\d{1,20}(?:\.\d+)?\Z")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
_PART = re.compile(r"[A-Za-z0-9]+")
_CODE_KEYS = frozenset({"code", "resource", "on", "do", "digest", "mode", "kind", "durability"})
"""Fields whose words are ours or are digests, whatever they say; `resource` only if it is a known one."""

_PRIVATE = {
    "an address": re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}\b"),
    "an e-mail address": re.compile(r"[\w.+-]+@[\w-]+\.\w+"),
    "a path": re.compile(r"(?<![\w.])/(?:home|root|var|etc|mnt|data|tmp|usr|opt|work)/\w"),
    "a web address": re.compile(r"\bhttps?://"),
    "a host name": re.compile(r"\b[a-z0-9-]+\.(?:[a-z0-9-]+\.)*(?:com|net|org|io|ai|dev|internal|local|svc)\b", re.I),
    "a secret": re.compile(r"\b(?:sk|hf|gh[pousr])[-_][A-Za-z0-9]{16,}|\b[A-Za-z0-9+/]{40,}={0,2}(?![A-Za-z0-9+/=])"),
}


class RedactionRefused(Exception):
    """A journal that cannot be redacted safely; nothing was written.

    Attributes:
        reason: what remains or differs.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@define
class Redactor:
    """Replaces texts by tokens.

    Attributes:
        key: the secret that the tokens depend on; the same key gives the same tokens in another journal.
    """

    key: bytes
    _tokens: dict[str, str] = field(factory=dict)
    _quoted: dict[int | None, dict[str, str]] = field(factory=dict)

    def event(self, event: Event) -> Event:
        """The row with its texts replaced.

        Raises:
            RedactionRefused: what is left of it still looks private.
        """
        if event.payload_json is None:
            return event
        payload = dict(event.payload)
        if event.kind == Kind.RUN_STARTED:
            payload = {**payload, "wall_ns": 0, "scenario": {}}
            payload.pop("trace_digest", None)
        if event.kind == Kind.COORDINATOR_ERROR:
            redacted = {**payload, "message": self._requoted(str(payload.get("message", "")), event.handoff)}
        else:
            redacted = {key: self.value(key, item, event.handoff) for key, item in payload.items()}
        text = payload_to_json(redacted)
        for what, pattern in _PRIVATE.items():
            found = pattern.search(text)
            if found is not None and event.kind not in (Kind.ENGINE_TOKENS,):
                raise RedactionRefused(f"row {event.seq} still shows what looks like {what}: {found.group()!r}")
        return evolve(event, payload_json=text)

    def name(self, text: str) -> str:
        """The token of a name; its parts are replaced one by one, so that prefixes stay prefixes."""
        if _UUID.match(text):
            return str(UUID(bytes=self._digest(text)[:16], version=4))
        shape = re.sub(r"[^A-Za-z0-9._-]", "-", text)
        return _PART.sub(lambda part: self.token(part.group()), shape)

    def token(self, text: str) -> str:
        """The token of one text: a letter and eight hexadecimal digits."""
        token = self._tokens.get(text)
        if token is None:
            token = self._tokens[text] = "t" + self._digest(text).hex()[:8]
        return token

    def _digest(self, text: str) -> bytes:
        return hmac.new(self.key, text.encode(), sha256).digest()

    def value(self, key: str, item: Any, handoff: int | None) -> Any:
        """A field's value with its texts replaced; texts are remembered for refusals of the same handoff."""
        if isinstance(item, str):
            return self.text(key, item, handoff)
        if isinstance(item, Mapping):
            return {
                (word if _is_plain(word) else self.name(word)): self.value(word, inner, handoff)
                for word, inner in item.items()
            }
        if isinstance(item, list | tuple):
            return [self.value(key, inner, handoff) for inner in item]
        return item

    def text(self, key: str, text: str, handoff: int | None) -> str:
        """A field's text or its token."""
        kept = text in _VOCABULARY or _WORKER.match(text) or _NUMBER.match(text) or key in _CODE_KEYS - {"resource"}
        if kept or (key == "resource" and text in _VOCABULARY):
            return text
        token = self.token(text) if " " in text else self.name(text)
        self._quoted.setdefault(handoff, {})[text] = token
        return token

    def _requoted(self, sentence: str, handoff: int | None) -> str:
        for original, token in sorted(self._quoted.get(handoff, {}).items(), key=lambda pair: -len(pair[0])):
            sentence = re.sub(rf"(?<!\w){re.escape(original)}(?!\w)", token, sentence)
        return sentence


def _is_plain(word: str) -> bool:
    """Whether a field's name is a plain word, which tells nothing about anybody."""
    return re.fullmatch(r"[a-z][a-z0-9_]{0,40}", word) is not None


@define
class RedactedSource:
    """A journal seen through a redactor; it is read anew for each pass and never copied."""

    source: EventSource
    redactor: Redactor

    @property
    def last_seq(self) -> int:
        """See `EventSource`."""
        return self.source.last_seq

    def events(
        self,
        *,
        first: int = 1,
        last: int | None = None,
        handoff: int | None = None,
        actor: int | None = None,
        run: int | None = None,
        kinds: Collection[str] | None = None,
    ) -> Iterator[Event]:
        """See `EventSource`."""
        found = self.source.events(first=first, last=last, handoff=handoff, actor=actor, run=run, kinds=kinds)
        return map(self.redactor.event, found)

    def event(self, seq: int) -> Event:
        """See `EventSource`."""
        return self.redactor.event(self.source.event(seq))

    def actor(self, number: int) -> ActorDeclaration:
        """See `EventSource`."""
        declared = self.source.actor(number)
        config = self.redactor.value("config", dict(declared.config), declared.handoff)
        return DeclaredActor(
            declared.actor, declared.kind, declared.label, config, declared.parent, declared.handoff, 0
        )

    def handoffs(self, run: int | None = None) -> Iterator[HandoffDeclaration]:
        """See `EventSource`."""
        return map(self._declared, self.source.handoffs(run))

    def handoff(self, number: int) -> HandoffDeclaration:
        """See `EventSource`."""
        return self._declared(self.source.handoff(number))

    def _declared(self, declared: HandoffDeclaration) -> DeclaredHandoff:
        opened = declared.opened
        names: dict[str, Any] = {
            word: self.redactor.text(word, text, declared.number)
            for word in ("handoff_id", "request", "parent_request", "room")
            for text in [getattr(opened, word)]
            if text is not None
        }
        return DeclaredHandoff(declared.number, declared.run, evolve(opened, **names))


def redacted(source: EventSource, key: bytes) -> RedactedSource:
    """A journal without names, hosts and free text, that replays and is found as the original.

    Raises:
        RedactionRefused: something that looks private remains, or redaction changes what is found or replayed.
    """
    seen = RedactedSource(source, Redactor(key))
    before = [(finding.code, finding.certainty, finding.rows) for finding in examine(source).findings]
    after = [(finding.code, finding.certainty, finding.rows) for finding in examine(seen).findings]
    if before != after:
        raise RedactionRefused("other things would be found without the names; try another key, or `fixture export`")
    if replay(source).agrees is not replay(seen).agrees:
        raise RedactionRefused("the coordinators would replay otherwise without the names")
    for _ in seen.events():
        pass  # looks at every row, and refuses one that still shows something
    return seen
