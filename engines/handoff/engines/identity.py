"""Who takes part in a handoff: what every frame of a connection repeats, and what a participant says of itself.

Identifiers are kept as text in canonical form (lower-case UUIDs), since that is how rows, frames and people write
them. A bootstrap room is an unsigned 64-bit number; rows show it as text, because readers of JSON lose such numbers.
"""

import uuid
from enum import StrEnum

from attrs import frozen

from handoff.journal.vocabulary import EngineType, HandoffId, HandoffOrder, RequestId

MAX_ROOM = (1 << 64) - 1
MAX_RANK = (1 << 32) - 1


class InvalidIdentity(ValueError):
    """An identity or a registration that cannot travel.

    Attributes:
        field: which part of it.
        value: what it was.
    """

    def __init__(self, field: str, value: object) -> None:
        self.field = field
        self.value = value
        super().__init__(f"{field} cannot be {value!r}")


class ParticipantRole(StrEnum):
    """What a participant that registers over the wire can be; sources register inside their own process."""

    DESTINATION = "destination"


def canonical_uuid(text: str) -> bool:
    """Whether `text` is a UUID in the one form that is accepted: lower case, with hyphens."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


@frozen
class HandoffIdentity:
    """What both sides must agree on before anything is scheduled, and in every frame after that.

    Attributes:
        handoff_id: the handoff, a canonical UUID.
        bootstrap_room: the meeting place, 0 to 2**64 - 1.
        request_id: the client's request, a canonical UUID.

    Raises:
        InvalidIdentity: on creation with anything else.
    """

    handoff_id: HandoffId
    bootstrap_room: int
    request_id: RequestId

    def __attrs_post_init__(self) -> None:
        if not canonical_uuid(self.handoff_id):
            raise InvalidIdentity("handoff_id", self.handoff_id)
        if not 0 <= self.bootstrap_room <= MAX_ROOM:
            raise InvalidIdentity("bootstrap_room", self.bootstrap_room)
        if not canonical_uuid(self.request_id):
            raise InvalidIdentity("request_id", self.request_id)


@frozen
class ParticipantRegistration:
    """What a destination says of itself when it connects.

    Attributes:
        order: in which order it expects the two sides to be asked.
        engine_type: the kind of scheduler that it runs.
        dp_rank: its data-parallel rank, 0 to 2**32 - 1; told, never compared.
        role: always ``destination``.
    """

    order: HandoffOrder
    engine_type: EngineType
    dp_rank: int = 0
    role: ParticipantRole = ParticipantRole.DESTINATION

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.dp_rank <= MAX_RANK:
            raise InvalidIdentity("dp_rank", self.dp_rank)
