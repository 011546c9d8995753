"""Tools that are folders of files, each run in a process of its own."""
