#!/bin/sh
# An agent that knows nothing of this project: it lends the policy a calculator, through curl alone.
set -eu
numbers='{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"]}'
tools=""
for name in add sub mul div; do
  tools="$tools${tools:+,}{\"type\":\"function\",\"function\":{\"name\":\"$name\",\"parameters\":$numbers}}"
done
messages="{\"role\":\"user\",\"content\":\"$VERIZERO_TASK\"}"
while :; do
  answer=$(curl -sS --fail-with-body "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" \
    -H "Content-Type: application/json" -d "{\"model\":\"policy\",\"messages\":[$messages],\"tools\":[$tools]}")
  message=$(printf '%s' "$answer" | sed 's/.*"message": \(.*\)}, "finish_reason".*/\1}/')
  case $message in
    *tool_calls*) ;;
    *) break ;;
  esac
  messages="$messages,$message"
  # One line for each call: its id, the tool's name, and the two numbers.
  calls=$(printf '%s' "$message" | sed 's/{"id"/\n{"id"/g' | sed -n \
    's/^{"id": "\([^"]*\)".*"name": "\([a-z]*\)", "arguments": "{\\"a\\": \(-*[0-9]*\), \\"b\\": \(-*[0-9]*\)}.*/\1 \2 \3 \4/p')
  while read -r id name a b; do
    case $name in
      add) result=$((a + b)) ;;
      sub) result=$((a - b)) ;;
      mul) result=$((a * b)) ;;
      *) result="wrong call" ;;
    esac
    messages="$messages,{\"role\":\"tool\",\"tool_call_id\":\"$id\",\"content\":\"$result\"}"
  done <<END
$calls
END
done
printf '%s\n' "$answer" | sed -n 's/.*"content": "\([^"]*\)".*/\1/p'
