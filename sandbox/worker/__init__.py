"""The side of the sandbox that runs next to untrusted programs.

Loaded by a bare interpreter (`python -I -S`), so it imports the standard library and itself only, by relative import.
"""
