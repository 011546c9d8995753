"""What applications stand on: settings, and the registry, store, backend and controller of them."""
