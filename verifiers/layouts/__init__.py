"""Layouts of references of programs, one a file: the public data sets', and our own."""
