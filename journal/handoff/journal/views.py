# ruff: noqa: S608  # the statements are put together from our own words alone
"""The views of a journal file: what SQL, sqlite-utils and Datasette show to people.

Numbers of words are written with the word beside them, so the schema reads without the dictionary. A handoff ends when
its source side says so (`session_ended` of the source session, a rejection, or a refused permit); where nobody ran
sessions, as in offline runs, the coordinator's `complete` stands for it. Both sides' ends are shown, since they may
differ. An obligation is open when an intent row has no later answer of the same actor, and the session it belongs to
has not ended; a cleanup that was begun stays open until the engine has answered it.

Each view scans the rows once for each thing that it looks for; none needs an index.
"""

from handoff.journal.terms import TERM_CODE, ActorKind, EndState, Kind
from handoff.journal.vocabulary import ActionName


def _sql(word: str) -> str:
    """The word's number, with the word beside it for whoever reads the schema."""
    return f"{TERM_CODE[word]} /* {word} */"


_EVENTS = """CREATE VIEW events AS
SELECT r.seq, r.grp, r.run, h.handoff_id AS handoff, a.kind AS actor_kind, a.label AS actor_label,
  s.name AS source, r.at_ms, r.at_min_ms, r.at_max_ms, k.word AS kind, n.word AS name, r.action_id,
  o.word AS outcome, v.word AS verdict, r.cause, r.rank, r.generation, r.attempt, r.payload,
  r.handoff AS handoff_number, r.actor AS actor_number
FROM row r
LEFT JOIN term k ON k.code = r.kind
LEFT JOIN term n ON n.code = r.name
LEFT JOIN term o ON o.code = r.outcome
LEFT JOIN term v ON v.code = r.verdict
LEFT JOIN handoff h ON h.handoff = r.handoff
LEFT JOIN actor a ON a.actor = r.actor
LEFT JOIN source s ON s.source = r.source"""

_RUNS = """CREATE VIEW runs AS
SELECT b.run, b.tool, b.wall_ns, b.trace_digest, b.seq AS first_seq, e.seq AS last_seq,
  (SELECT count(*) FROM run r WHERE r.run = b.run AND r.mark = 'resumed') AS resumed,
  (SELECT count(*) FROM handoff h WHERE h.run = b.run) AS handoffs,
  e.state, e.reason
FROM run b LEFT JOIN run e ON e.run = b.run AND e.mark = 'ended'
WHERE b.mark = 'started'"""


def _session_end(side: ActorKind) -> str:
    """The last end that a session of one side reported, by handoff."""
    return f"""SELECT r.handoff, max(r.seq) AS seq, r.at_ms, t.word AS state,
    json_extract(r.payload, '$.message') AS error
  FROM row r JOIN actor a ON a.actor = r.actor LEFT JOIN term t ON t.code = r.name
  WHERE r.kind = {_sql(Kind.SESSION_ENDED)} AND r.verdict IS NULL AND a.kind = '{side}'
  GROUP BY r.handoff"""


_HANDOFFS = f"""CREATE VIEW handoffs AS
WITH source_end AS (
  {_session_end(ActorKind.SOURCE_SESSION)}
), destination_end AS (
  {_session_end(ActorKind.DESTINATION_SESSION)}
), completion AS (
  SELECT r.handoff, min(r.seq) AS seq, r.at_ms, r.kind,
    coalesce(json_extract(r.payload, '$.message'), json_extract(r.payload, '$.reason')) AS error
  FROM row r
  WHERE r.handoff IS NOT NULL AND (r.kind = {_sql(Kind.ACTION_ISSUED)} AND r.name = {_sql(ActionName.COMPLETE)}
    OR r.kind IN ({_sql(Kind.REJECTED)}, {_sql(Kind.PERMIT_REFUSED)}))
  GROUP BY r.handoff
), cleanup AS (
  SELECT r.handoff, min(r.seq) AS seq FROM row r
  WHERE r.handoff IS NOT NULL AND r.kind = {_sql(Kind.ACTION_ISSUED)}
    AND r.name IN ({_sql(ActionName.CANCEL_SOURCE)}, {_sql(ActionName.CANCEL_DESTINATION)})
  GROUP BY r.handoff
), extent AS (
  SELECT r.handoff, max(r.seq) AS seq, count(*) AS row_count FROM row r
  WHERE r.handoff IS NOT NULL GROUP BY r.handoff
)
SELECT h.handoff_id AS id, h.handoff AS number, h.run, h.handoff_order, h.engine_type, h.request, h.room, h.attempt,
  o.at_ms AS opened_ms, coalesce(s.at_ms, c.at_ms) AS ended_ms, s.state AS source_end, d.state AS destination_end,
  CASE
    WHEN s.seq IS NOT NULL THEN s.state
    WHEN c.kind IN ({_sql(Kind.REJECTED)}, {_sql(Kind.PERMIT_REFUSED)}) THEN 'rejected'
    WHEN c.seq IS NOT NULL AND x.seq IS NULL THEN 'success'
    WHEN c.seq IS NOT NULL THEN 'canceled'
  END AS completion,
  coalesce(s.error, d.error, c.error) AS error, h.seq AS first_seq, e.seq AS last_seq, e.row_count
FROM handoff h
JOIN row o ON o.seq = h.seq
LEFT JOIN source_end s ON s.handoff = h.handoff
LEFT JOIN destination_end d ON d.handoff = h.handoff
LEFT JOIN completion c ON c.handoff = h.handoff
LEFT JOIN cleanup x ON x.handoff = h.handoff
LEFT JOIN extent e ON e.handoff = h.handoff"""

_FAILED_HANDOFFS = f"""CREATE VIEW failed_handoffs AS
SELECT * FROM handoffs
WHERE completion IS NOT '{EndState.SUCCESS}'
  OR destination_end IS NOT NULL AND destination_end <> '{EndState.SUCCESS}'"""


def _unanswered(duty: str, *, intent: str, answer: str) -> str:
    """The intents (row ``i``) that no later row ``a`` of the same actor answers."""
    return f"""SELECT i.seq, i.handoff, i.actor, i.at_ms, '{duty}' AS duty, i.kind, i.name, i.action_id FROM row i
LEFT JOIN row a ON a.actor = i.actor AND a.seq > i.seq AND {answer}
WHERE {intent} AND a.seq IS NULL"""


def _one_of(*kinds: Kind) -> str:
    return f"a.kind IN ({', '.join(_sql(kind) for kind in kinds)})"


_SAME_ACTION = "a.action_id IS i.action_id"
_INTENTS = "\nUNION ALL\n".join(
    (
        _unanswered(
            "end the session and give up what it holds",
            intent=f"i.kind = {_sql(Kind.SESSION_STARTED)}",
            answer=_one_of(Kind.SESSION_ENDED),
        ),
        _unanswered(
            "complete the handoff",
            intent=f"i.kind = {_sql(Kind.HANDOFF_STARTED)}",
            answer=f"{_one_of(Kind.ACTION_ISSUED)} AND a.name = {_sql(ActionName.COMPLETE)}",
        ),
        _unanswered(
            "answer the action",
            intent=f"i.kind = {_sql(Kind.ACTION_ISSUED)} AND i.name <> {_sql(ActionName.COMPLETE)}",
            answer=_SAME_ACTION
            + " AND "
            + _one_of(
                Kind.OUTCOME_APPLIED, Kind.OUTCOME_DUPLICATE, Kind.OUTCOME_CONFLICT, Kind.OUTCOME_INVALID,
                Kind.OUTCOME_UNKNOWN, Kind.OUTCOME_LATE,
            ),
        ),
        _unanswered(
            "answer the control call",
            intent=f"i.kind = {_sql(Kind.CONTROL_CALLED)}",
            answer=f"{_SAME_ACTION} AND a.name IS i.name AND {_one_of(Kind.CONTROL_REPLIED, Kind.CLEANUP_REPLIED)}",
        ),
        _unanswered(
            "finish the cleanup",
            intent=f"i.kind = {_sql(Kind.CLEANUP_STARTED)}",
            answer=_one_of(Kind.CLEANUP_FINISHED),
        ),
    )
)  # fmt: skip

_OPEN_OBLIGATIONS = f"""CREATE VIEW open_obligations AS
WITH ended AS (
  SELECT DISTINCT r.actor FROM row r WHERE r.kind = {_sql(Kind.SESSION_ENDED)} AND r.verdict IS NULL
), undone AS (
  SELECT DISTINCT r.cause AS seq FROM row r WHERE r.kind = {_sql(Kind.NOT_CARRIED_OUT)}
)
SELECT w.seq, h.handoff_id AS handoff, w.duty, k.word AS kind, n.word AS name, w.action_id, c.kind AS owner_kind,
  c.label AS owner, w.at_ms
FROM (
{_INTENTS}
) w
LEFT JOIN handoff h ON h.handoff = w.handoff
LEFT JOIN actor c ON c.actor = w.actor
LEFT JOIN term k ON k.code = w.kind
LEFT JOIN term n ON n.code = w.name
LEFT JOIN ended e ON e.actor = coalesce(c.parent, w.actor)
LEFT JOIN undone u ON u.seq = w.seq
WHERE u.seq IS NULL AND (e.actor IS NULL OR w.kind = {_sql(Kind.CLEANUP_STARTED)})"""

VIEWS: dict[str, str] = {
    "events": _EVENTS, "runs": _RUNS, "handoffs": _HANDOFFS, "failed_handoffs": _FAILED_HANDOFFS,
    "open_obligations": _OPEN_OBLIGATIONS,
}  # fmt: skip
