"""The web, as tools see it: addresses that may be asked, pages within limits, searches."""
