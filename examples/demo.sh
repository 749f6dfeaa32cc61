#!/bin/sh
# The main job on real input, told in seven commands. `make demo` runs it; the journals stay in out/ for you to look at.
set -eu
cd "$(dirname "$0")/.."
mkdir -p out
rm -f out/chat.db out/chat.db-* out/lost-ack.db out/lost-ack.db-*

say() { printf '\n%s\n' "$*"; }
run() { printf '\n$ %s\n' "$*"; "$@"; }
run_expecting_findings() {  # exit status 1 means: the command worked and found something
  printf '\n$ %s\n' "$*"
  "$@" && { echo "demo: expected a finding here"; exit 1; }
  status=$?
  [ "$status" = 1 ] || exit "$status"
}

say "1. Two prefill and two decode engines serve the first rows of a real conversation trace. Each prompt's KV cache"
echo "   changes hands over TCP, and every action, outcome and fact goes to one SQLite file."
run handoff record examples/chat-vllm.toml --journal out/chat.db

say "2. The file is sound, and re-executing every decision from it gives the same decisions."
run handoff verify out/chat.db
run handoff replay out/chat.db --tier full

say "3. Now one acknowledgement gets lost on its way, as it does in production."
run handoff record examples/lost-ack.toml --journal out/lost-ack.db
run handoff list out/lost-ack.db --failed

say "4. Why? Each sentence names the rows that prove it."
run_expecting_findings handoff why out/lost-ack.db

say "5. The failed run replays exactly, too: this file is all that a colleague needs."
run handoff replay out/lost-ack.db --tier full

say "The journals are out/chat.db and out/lost-ack.db. Go on with:"
echo "   . .venv/bin/activate                                 puts the commands on your path"
echo "   handoff show out/lost-ack.db HANDOFF                 the rows of one handoff as a ladder (any unique prefix of its id)"
echo "   sqlite-utils rows out/lost-ack.db handoffs           the same facts for SQL"
