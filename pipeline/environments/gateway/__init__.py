"""An HTTP server through which any program talks to the policy, by chat completions."""
