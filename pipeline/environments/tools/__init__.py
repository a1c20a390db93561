"""Tools that environments offer: one file a tool."""
