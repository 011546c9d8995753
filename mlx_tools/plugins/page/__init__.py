"""The page of the gateway, where a person asks, decides and reads sessions."""
