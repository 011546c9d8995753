"""Pages of the web, and searches."""
