"""What happened in a session, as values: records, outcomes, events, metrics. Pure."""
