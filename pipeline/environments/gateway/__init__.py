"""An HTTP endpoint through which an unmodified program talks to the policy: the wires chat, responses and messages."""
