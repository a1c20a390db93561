"""Source files that are sent into the sandbox and run there, next to a program or in its place."""
