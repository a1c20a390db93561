"""The package that is installed: its parts are links to the folders next to it in the repository."""
