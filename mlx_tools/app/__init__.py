"""The ground of applications: settings, and the registry, store, backend and controller of them."""
