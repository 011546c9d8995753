"""Where sessions, artifacts, access lists and old bytes of files are kept."""
