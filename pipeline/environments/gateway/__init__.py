"""An HTTP server through which any program talks to the policy: the APIs chat completions, responses, messages."""
