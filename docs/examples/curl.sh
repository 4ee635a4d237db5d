#!/usr/bin/env bash
# A chat completion, a stream, one of Anthropic's messages, and how the draft did.
set -euo pipefail
url=${EAGLEGATE_URL:-http://127.0.0.1:8000}
json='content-type: application/json'
question='[{"role": "user", "content": "What is 84 - 37?"}]'

curl -fsS "$url/v1/chat/completions" -H "$json" -d "{\"model\": \"demo\", \"messages\": $question}"
echo
curl -fsSN "$url/v1/chat/completions" -H "$json" \
  -d "{\"model\": \"demo\", \"stream\": true, \"messages\": $question}"
curl -fsS "$url/v1/messages" -H "$json" \
  -d "{\"model\": \"demo\", \"max_tokens\": 100, \"messages\": $question}"
echo
curl -fsS "$url/metrics" | grep -E '^eaglegate_(acceptance_length|fallback_ratio)'
