"""Programs, with checked arguments, in a sandbox."""
