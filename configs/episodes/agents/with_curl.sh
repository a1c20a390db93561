#!/bin/sh
# An agent that knows nothing of this project: it has the policy guess its task's number in five tries, through curl alone.
set -eu
messages='{"role":"user","content":"1 to 32?"}'
for try in 1 2 3 4 5; do
  answer=$(curl -sS --fail-with-body "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" \
    -H "Content-Type: application/json" -d "{\"model\":\"policy\",\"messages\":[$messages]}")
  guess=$(printf '%s' "$answer" | sed -n 's/.*"content": "\([^"]*\)".*/\1/p')
  case $guess in
    "$VERIZERO_TASK") break ;;
    '' | *[!0-9]*) hint="a number from 1 to 32" ;;
    *) if [ "$guess" -lt "$VERIZERO_TASK" ]; then hint=higher; else hint=lower; fi ;;
  esac
  messages="$messages,{\"role\":\"assistant\",\"content\":\"$guess\"},{\"role\":\"user\",\"content\":\"$hint\"}"
done
printf '%s\n' "$guess"
