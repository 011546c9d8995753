"""Tools to read web pages and to search the web."""
