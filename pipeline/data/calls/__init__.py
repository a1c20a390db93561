"""Forms in which policies write calls of tools: one file a form."""
