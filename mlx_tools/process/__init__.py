"""Other programs: run so that they end with this one, and their words made fit to be shown."""
